"""The report folder, read as the page reads it. The page itself is tested in tests/browser/."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_triples
from evaluation.loop import evaluate
from evaluation.result import EvaluationResult, ScoringOptions
from evaluation.selection import SelectionMetrics
from reporting.folder import ReportFolder
from reporting.report import LIST_LENGTH, About, ReportWriter
from reporting.summary import control_data, selection_data, training_data
from structures import (
    MISSING_CONDITIONS,
    HeadOutput,
    ModalBatch,
    Modality,
    ModelOutput,
    PerModality,
    Role,
    Selection,
)

NUM_TRIPLES = 12
GRID = (4, 2)
ABOUT = About(
    title="Toy on Nothing",
    dataset="Nothing",
    weights="w.pth",
    config="A: 1\n",
    commit="abc1234",
    camera_names=("one", "two"),
    scene_names=("7",),
    re_ranking=False,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
COST = {
    "parts": {
        "backbone": {"parameters": 2_000_000, "trainable": 0, "gflops": 1.5},
        "total": {"parameters": 2_000_000, "trainable": 0, "gflops": 1.5},
    }
}
HISTORY = {
    "choice": "epoch 2, best on test",
    "epochs": [
        {"epoch": 1, "loss": 2.0, "accuracy": 0.1},
        {"epoch": 2, "loss": 1.0, "accuracy": 0.5, "test": {"pattern_1": {"mAP": 30.0, "rank_1": 40.0}}},
    ],
    "summary": {
        "last epoch": {"pattern_1": {"mAP": 30.0}},
        "best on test": {"pattern_1": {"mAP": 30.0}, "epoch": 2},
        "untrained": {"pattern_1": {"mAP": 3.0, "rank_1": 4.0}, "samples": 12},
    },
}


class SelectingModel:
    """Two patterns, and a selection whose numbers are drawn at random but the same each time."""

    def __call__(self, batch: ModalBatch) -> ModelOutput:
        return self._output(batch)

    def _output(self, batch: ModalBatch) -> ModelOutput:
        generator = torch.Generator().manual_seed(int(batch.person_ids.sum()))
        features = torch.cat([image.mean(dim=(2, 3)) for image in batch.images], dim=1)
        patches, count = GRID[0] * GRID[1], len(batch)
        weights = torch.rand(count, 2, 3, generator=generator)

        def sources(modality: Modality) -> dict[str, torch.Tensor]:
            others = [other.key for other in Modality if other is not modality]
            names = ("learned", "own", *others)
            return {name: torch.rand(count, patches, generator=generator) for name in names}

        selection = Selection(
            kept=PerModality.build(lambda m: torch.tensor([[0, 3, 5 + len(m.value) % 2]] * count)),
            scores=PerModality.build(lambda _: 1.5 * torch.rand(count, patches, generator=generator)),
            sources=PerModality.build(sources),
            weights=PerModality.build(lambda _: weights / weights.sum(dim=-1, keepdim=True)),
            grid=GRID,
        )
        heads = [HeadOutput(name, features, f, f, role) for name, f, role in _heads(features)]
        return ModelOutput(heads=tuple(heads), selections={"sdtps": selection})


def _heads(features: torch.Tensor) -> list[tuple[str, torch.Tensor, Role]]:
    return [("ori", features, Role.ORIGINAL), ("sdtps", features.square(), Role.FUSED)]


class Written:
    """What went into a report, and what came out."""

    def __init__(self, folder: Path, make_batch: Callable[..., ModalBatch], model: Any) -> None:
        ids = [person for person in range(NUM_TRIPLES // 4) for _ in range(4)]
        whole = make_batch(ids, size=(64, 32))
        whole = replace(whole, names=('<b>"0".jpg', *whole.names[1:]))
        self.batches = [_rows(whole, slice(0, 8)), _rows(whole, slice(8, None))]
        writer = ReportWriter(ReportFolder(folder), ABOUT)
        self.outputs: list[Any] = []

        def observe(batch: ModalBatch, outputs: Any) -> None:
            self.outputs.append(outputs)
            writer.observe(batch, outputs)
            self.seen_while_writing = sorted(path.name for path in folder.glob("*"))

        self.results: dict[str, EvaluationResult] = evaluate(
            model,
            make_triples(self.batches),
            conditions=list(MISSING_CONDITIONS),
            scoring=ScoringOptions(),
            device=torch.device("cpu"),
            observe=observe,
        )
        self.page = writer.finish(self.results, cost=COST, history=HISTORY)
        self.folder = folder

    def data(self, name: str) -> Any:
        """The content of a data file, which must be one call of REPORT.receive with its own name."""
        text = (self.folder / "data" / f"{name}.js").read_text("ascii")
        match = re.fullmatch(r'REPORT\.receive\("([a-z_0-9/]+)",(.*)\);\n', text)
        assert match is not None
        assert match[1] == name

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(match[2], parse_constant=refuse)


def _rows(batch: ModalBatch, rows: slice) -> ModalBatch:
    return ModalBatch(
        batch.images.map(lambda image: image[rows]),
        batch.person_ids[rows],
        batch.camera_ids[rows],
        batch.scene_ids[rows],
        batch.names[rows],
    )


@pytest.fixture
def written(tmp_path: Path, make_batch: Callable[..., ModalBatch]) -> Written:
    return Written(tmp_path / "report", make_batch, SelectingModel())


def test_the_folder_is_complete(written: Written) -> None:
    assert not written.seen_while_writing
    assert written.page == written.folder / "index.html"
    assert written.page.is_file()
    assert sorted(p.name for p in (written.folder / "images").iterdir()) == sorted(
        f"{row}.jpg" for row in range(NUM_TRIPLES)
    )
    names = {p.stem for p in (written.folder / "data").glob("*.js")}
    rankings = {f"ranking_{condition}_{pattern}" for condition in MISSING_CONDITIONS for pattern in (1, 2, 3)}
    assert names == {"summary", *rankings}
    assert not list(written.folder.parent.glob(".*"))
    page = written.page.read_text()
    for source in re.findall(r'(?:src|href)="([^"#]+)"', page):
        assert source.startswith("data:") or (written.folder / source).is_file(), source
    assert "://" not in page.replace("http://www.w3.org", "")


def test_the_summary(written: Written) -> None:
    summary = written.data("summary")
    assert summary["title"] == "Toy on Nothing"
    assert (summary["commit"], summary["protocol"]) == ("abc1234", "camera")
    assert summary["image"] == {"height": 64, "width": 32}
    assert summary["grid"] == [4, 2]
    assert summary["has_tokens"] is True
    assert summary["sources"]["NI"] == ["learned", "own: NI", "RGB", "TI"]
    assert [pattern["name"] for pattern in summary["patterns"]] == ["original", "fused", "original + fused"]
    assert summary["conditions"][5] == {"id": "rt", "missing": ["RGB", "TI"]}
    assert summary["triples"]["names"][0] == '<b>"0".jpg'
    assert summary["triples"]["camera"][:3] == ["one", "two", "one"]
    assert set(summary["triples"]["scene"]) == {"7"}
    assert summary["queries"] == list(range(NUM_TRIPLES))
    assert summary["choice"] == "epoch 2, best on test"
    assert (summary["training"]["split"], summary["training"]["mAP"]) == ("test", [None, 30.0])
    assert summary["controls"] == [{"name": "untrained", "mAP": 3.0, "rank_1": 4.0}]
    assert summary["cost"]["parts"] == [{"name": "backbone", "gflops": 1.5, "params_m": 2.0}]
    pairs = {(pair["query"], pair["gallery"]) for pair in summary["breakdown"]["camera_pairs"]}
    assert pairs == {("one", "two"), ("two", "one")}
    assert all(len(points["x"]) == NUM_TRIPLES for points in summary["feature_map"].values())
    assert len(summary["results"]) == 21
    for row in summary["results"]:
        metrics = written.results[row["condition"]].ranking[row["pattern"]]
        assert row["mAP"] == pytest.approx(100 * metrics.mean_ap)
        assert row["cmc"][0] == pytest.approx(row["rank_1"], abs=0.01)


def test_selection_is_compared_with_chance_the_best_and_the_same_patches() -> None:
    metrics = SelectionMetrics(PerModality(0.5, 0.4, 0.3), 0.25, 0.75, PerModality(0.45, 0.35, 0.3))
    data = selection_data(metrics)
    assert data.pop("same_patches") == pytest.approx({"RGB": 45, "NI": 35, "TI": 30})
    assert data == pytest.approx({"RGB": 50, "NI": 40, "TI": 30, "chance": 25, "best_possible": 75})


def test_the_lists_are_the_rankings(written: Written) -> None:
    for condition, pattern in (("complete", 3), ("nt", 1)):
        content = written.data(f"ranking_{condition}_{pattern}")
        samples = written.results[condition].samples
        features = torch.nn.functional.normalize(samples.embedding(pattern), dim=1).double()
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").numpy()
        for query in range(NUM_TRIPLES):
            same = (samples.person_ids == samples.person_ids[query]) & (
                samples.camera_ids == samples.camera_ids[query]
            )
            order = [row for row in np.argsort(distances[query], kind="stable") if not same[row]]
            assert content["rows"][query] == order[:LIST_LENGTH]
            assert content["distances"][query] == pytest.approx(distances[query][order], abs=1e-4)
            right = (samples.person_ids[order] == samples.person_ids[query]).tolist()
            first = right.index(True)
            assert content["first"][query] == first + 1
            assert content["match"][query][:2] == [first + 1, order[first]]
        metrics = written.results[condition].ranking[pattern]
        assert np.mean(content["ap"]) == pytest.approx(100 * metrics.mean_ap, abs=0.01)
        assert np.mean(content["inp"]) == pytest.approx(100 * metrics.mean_inp, abs=0.01)


def test_the_selections(written: Written) -> None:
    row, in_batch = 9, 1  # the second of the second batch
    content = written.data(f"triples/{row}")
    assert list(content) == list(MISSING_CONDITIONS)
    for condition in ("complete", "n"):
        selection = written.outputs[1][condition].selection
        for modality in Modality:
            image = content[condition][modality.value]
            assert image["kept"] == selection.kept.of(modality)[in_batch].tolist()
            scores = np.frombuffer(base64.b64decode(image["scores"]), np.uint8).reshape(5, 8) / 255
            total = selection.scores.of(modality)[in_batch].numpy()
            np.testing.assert_allclose(scores[0] * image["score_max"], total, atol=1.5 / 255)
            sources = np.stack([source[in_batch] for source in selection.sources.of(modality).values()])
            np.testing.assert_allclose(scores[1:], sources, atol=1 / 255)
            weights = np.frombuffer(base64.b64decode(image["weights"]), np.uint8).reshape(image["tokens"], 3)
            np.testing.assert_allclose(
                weights / 255 * image["weight_max"],
                selection.weights.of(modality)[in_batch],
                atol=1 / 255,
            )


class PlainModel(SelectingModel):
    """One pattern and no selection."""

    def _output(self, batch: ModalBatch) -> ModelOutput:
        whole = super()._output(batch)
        return ModelOutput(heads=whole.heads[:1])


def test_a_model_without_selection(tmp_path: Path, make_batch: Callable[..., ModalBatch]) -> None:
    written = Written(tmp_path / "report", make_batch, PlainModel())
    summary = written.data("summary")
    assert summary["grid"] is summary["sources"] is None
    assert [pattern["id"] for pattern in summary["patterns"]] == [1]
    assert not list((written.folder / "data" / "triples").iterdir())


def test_training_curves_name_the_split_that_they_are_of() -> None:
    scores = {"pattern_1": {"mAP": 10.0}, "pattern_2": {"mAP": 20.0, "rank_1": 50.0}}
    training = training_data([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0, "validation": scores}])
    assert training is not None
    assert (training["split"], training["mAP"], training["rank_1"]) == (
        "validation",
        [None, 20.0],
        [None, 50.0],
    )
    names = ("last epoch", "best on validation", "raw pixels")
    summary = {name: {"pattern_1": {"mAP": 1.0}} for name in names}
    assert control_data(summary) == [{"name": "raw pixels", "mAP": 1.0}]
