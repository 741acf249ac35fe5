from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import make_triples
from evaluation.distances import GivenDistances
from evaluation.loop import evaluate
from evaluation.ranking import Retrieval, rank, score_retrieval
from evaluation.rerank import rerank
from evaluation.result import EvaluationResult, ScoringOptions, main_scores, results_as_dict
from structures import HeadOutput, ModalBatch, ModelOutput, PerModality, Role

NUM_SAMPLES, DIM = 24, 5
RAW = ScoringOptions(normalise=False)


def make_head(name: str, features: Tensor, *, fused: bool) -> HeadOutput:
    role = Role.FUSED if fused else Role.ORIGINAL
    return HeadOutput(name, torch.zeros(len(features), 3), features, features.flip(0), role)


@pytest.fixture
def original() -> Tensor:
    return torch.randn(NUM_SAMPLES, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def fused() -> Tensor:
    # Much longer than the original features, so that it matters where they are normalised.
    return 30 * torch.randn(NUM_SAMPLES, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def batch() -> ModalBatch:
    rows = torch.arange(NUM_SAMPLES)
    return ModalBatch(
        images=PerModality.build(lambda _: torch.zeros(NUM_SAMPLES, 3, 8, 4)),
        person_ids=rows % 4,
        camera_ids=rows // 4 % 2,
        scene_ids=rows // 8,
        names=tuple(f"{row:02}.jpg" for row in rows.tolist()),
    )


def piece(batch: ModalBatch, rows: slice) -> ModalBatch:
    return ModalBatch(
        images=batch.images.map(lambda images: images[rows]),
        person_ids=batch.person_ids[rows],
        camera_ids=batch.camera_ids[rows],
        scene_ids=batch.scene_ids[rows],
        names=batch.names[rows],
    )


def find(
    batches: list[ModalBatch], outputs: list[ModelOutput], *, scoring: ScoringOptions, **rows: Any
) -> EvaluationResult:
    """The result of a model that gives these outputs."""
    given = iter(outputs)
    triples = make_triples(batches, **rows)
    cpu = torch.device("cpu")
    return evaluate(lambda _: next(given), triples, conditions=["complete"], scoring=scoring, device=cpu)[
        "complete"
    ]


def find_one(batch: ModalBatch, *heads: HeadOutput, scoring: ScoringOptions, **rows: Any) -> EvaluationResult:
    """All samples in one batch; the first eight are the queries."""
    return find([batch], [ModelOutput(heads)], scoring=scoring, **{"query": range(8), **rows})


def expected_map(features: Tensor, batch: ModalBatch, groups: Tensor) -> float:
    array, ids, group = features.numpy(), batch.person_ids.numpy(), groups.numpy()
    return rank(array[:8], array, ids[:8], ids, group[:8], group).mean_ap


def test_every_pattern_from_batches_of_different_size(
    original: Tensor, fused: Tensor, batch: ModalBatch
) -> None:
    pieces = (slice(0, 10), slice(10, 20), slice(20, NUM_SAMPLES))
    outputs = [
        ModelOutput(
            (make_head("ori", original[rows], fused=False), make_head("moe", fused[rows], fused=True))
        )
        for rows in pieces
    ]
    result = find([piece(batch, rows) for rows in pieces], outputs, scoring=RAW, query=range(8))
    assert result.num_samples == NUM_SAMPLES
    samples = result.samples
    both = torch.cat([original, fused], dim=1)
    assert samples.patterns == (1, 2, 3)
    assert {p: tuple(samples.embedding(p).shape) for p in (1, 2, 3)} == {1: (24, 5), 2: (24, 5), 3: (24, 10)}
    assert torch.equal(samples.embedding(3), both)
    assert samples.names == batch.names
    assert samples.scene_ids.tolist() == batch.scene_ids.tolist()

    assert list(result.ranking) == [1, 2, 3]
    for pattern, features in ((1, original), (2, fused), (3, both)):
        assert result.ranking[pattern].mean_ap == expected_map(features, batch, batch.camera_ids)
        assert result.ranking[pattern].num_queries == 8
    assert result.main is result.ranking[3]


def test_a_pattern_is_normalised_as_a_whole(original: Tensor, fused: Tensor, batch: ModalBatch) -> None:
    heads = (make_head("ori", original, fused=False), make_head("moe", fused, fused=True))
    result = find_one(batch, *heads, scoring=ScoringOptions(normalise=True))
    both = torch.cat([original, fused], dim=1)
    as_a_whole = both / both.norm(dim=1, keepdim=True)
    by_part = torch.cat([f / f.norm(dim=1, keepdim=True) for f in (original, fused)], dim=1)
    wanted, others = (expected_map(f, batch, batch.camera_ids) for f in (as_a_whole, by_part))
    assert abs(wanted - others) > 1e-3, "the example must tell the two apart"
    assert result.ranking[3].mean_ap == pytest.approx(wanted, abs=1e-9)


def test_without_a_fusion_part_there_is_one_pattern(original: Tensor, batch: ModalBatch) -> None:
    result = find_one(batch, make_head("ori", original, fused=False), scoring=RAW)
    assert list(result.ranking) == [1]
    arrays = result.arrays()
    for pattern in (1, 2, 3):
        np.testing.assert_array_equal(arrays[f"features_{pattern}"], original.numpy())
    assert arrays["is_query"].sum() == 8
    assert arrays["is_gallery"].all()


def test_scene_protocol_and_features_after_the_neck(original: Tensor, batch: ModalBatch) -> None:
    scoring = ScoringOptions(normalise=False, after_neck=True)
    found = {}
    for protocol, groups in (("camera", batch.camera_ids), ("scene", batch.scene_ids)):
        head = make_head("ori", original, fused=False)
        found[protocol] = find_one(batch, head, scoring=scoring, protocol=protocol).main.mean_ap
        assert found[protocol] == expected_map(original.flip(0), batch, groups)
    assert found["camera"] != found["scene"]


def on_a_line(positions: list[float], people: list[int], cameras: list[int], **rows: Any) -> EvaluationResult:
    """Samples on a line; queries and gallery are rows of them."""
    batch = ModalBatch(
        images=PerModality.build(lambda _: torch.zeros(len(positions), 3, 1, 1)),
        person_ids=torch.tensor(people),
        camera_ids=torch.tensor(cameras),
        scene_ids=torch.zeros(len(positions), dtype=torch.int64),
    )
    head = make_head("ori", torch.tensor(positions).unsqueeze(1), fused=False)
    return find_one(batch, head, scoring=RAW, **rows)


def test_without_a_protocol_only_the_query_itself_is_dropped() -> None:
    # The query is sample 1; its twin shot, sample 0, is of the same camera.
    positions, people, cameras = [1.0, 0.0, 0.5], [7, 7, 5], [0, 0, 0]
    for gallery in ([0, 1, 2], [0, 2]):
        result = on_a_line(positions, people, cameras, query=[1], gallery=gallery, protocol="none")
        assert result.main.mean_ap == 0.5
        assert result.rank_lists(top=3)[1].items.tolist() == [[2, 0, -1]]
    with pytest.raises(ValueError, match="none of the 1 queries"):
        on_a_line(positions, people, cameras, query=[1], gallery=[0, 1, 2], protocol="camera")


def test_rank_lists_name_rows_of_the_samples() -> None:
    result = on_a_line(
        [9.0, 0.0, 3.0, 1.0, 2.0],
        people=[7, 7, 7, 5, 4],
        cameras=[1, 0, 0, 1, 0],
        query=[1, 3],
        gallery=[4, 2, 0, 3],
    )
    lists = result.rank_lists(top=2)[1]
    assert lists.items.tolist() == [[3, 4], [4, 2]]  # row 2 is dropped for the first query, 3 for the second
    assert lists.distances == pytest.approx(np.array([[1.0, 2.0], [1.0, 2.0]]))
    assert lists.positive_ranks.tolist() == [3, 0]
    assert lists.positives.tolist() == [0, -1]
    assert lists.positive_distances == pytest.approx(np.array([9.0, np.nan]), nan_ok=True)


def test_re_ranking_replaces_the_distances(
    original: Tensor, fused: Tensor, batch: ModalBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
        calls.append(query.shape)
        return rerank(query, gallery)

    monkeypatch.setattr("evaluation.result.rerank", counted)
    heads = (make_head("ori", original, fused=False), make_head("moe", fused, fused=True))
    result = find_one(batch, *heads, scoring=ScoringOptions(re_rank=True))
    lists, parts = result.rank_lists(top=5), result.breakdown
    assert calls == [(8, 5), (8, 5), (8, 10)], "once for each pattern"
    assert result.as_dict()["re_ranked"] is True

    both = torch.cat([original, fused], dim=1)
    features = (both / both.norm(dim=1, keepdim=True)).numpy()
    compared = result.samples.compared_features(3)
    np.testing.assert_allclose(features, compared, atol=1e-7)
    distances = rerank(compared[:8], compared)
    ids, cameras = batch.person_ids.numpy(), batch.camera_ids.numpy()
    expected = score_retrieval(Retrieval(GivenDistances(distances), ids[:8], ids, cameras[:8], cameras))
    assert result.main.mean_ap == expected.mean_ap
    assert result.main.mean_ap != expected_map(torch.tensor(features), batch, batch.camera_ids)
    np.testing.assert_array_equal(
        lists[3].distances, np.take_along_axis(distances, lists[3].items, axis=1), strict=True
    )
    by_person = sum(score["queries"] * score["mAP"] for score in parts["identities"]) / 8
    assert by_person == pytest.approx(100 * expected.mean_ap)


def test_half_precision_features_are_collected_in_float32(original: Tensor, batch: ModalBatch) -> None:
    result = find_one(batch, make_head("ori", original.half(), fused=False), scoring=RAW)
    assert result.samples.embedding(1).dtype == torch.float32


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unknown evaluation protocol 'time'; choose from \['camera', 'scene', 'none'\]"
    ):
        make_triples([], protocol="time")


def test_the_numbers_of_several_conditions(original: Tensor, fused: Tensor, batch: ModalBatch) -> None:
    heads = (make_head("ori", original, fused=False), make_head("moe", fused, fused=True))
    results = {
        "nt": find_one(batch, *heads, scoring=RAW),
        "r": find_one(batch, *heads, scoring=ScoringOptions(normalise=True)),
    }
    content = results_as_dict(results)
    assert list(content) == ["result", "breakdown", "missing", "missing_mean"]
    both = [main_scores(content["missing"][name])["mAP"] for name in ("nt", "r")]
    assert content["missing_mean"]["conditions"] == 2
    assert content["missing_mean"]["pattern_3"]["mAP"] == pytest.approx(sum(both) / 2)
    assert results_as_dict({"complete": results["r"]})["missing_mean"] == {"conditions": 0}
    assert content["result"] == content["missing"]["nt"] != content["missing"]["r"]
    assert content["breakdown"] == results["nt"].breakdown
    scores = main_scores(content["missing"]["r"])
    assert scores == results["r"].main.as_dict()
    assert scores["mAP"] == 100 * results["r"].ranking[3].mean_ap
