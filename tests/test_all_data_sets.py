"""Miniatures of all real data sets are read, trained on and evaluated, each with its own configuration."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader
from yacs.config import CfgNode

import test_net as test_entry
import train_net as train_entry
from config import load_config
from conftest import ROOT
from datasets.build import TrainingSplit, build_data, build_test_data, scan_data
from datasets.dataset import DatasetError, Sample
from datasets.sources import SOURCES
from errors import UserError
from miniatures import MINIATURES, PLACES, TEST_IDS, TRAIN_IDS, draw_miniature, draw_triple, save
from structures import ImageRecord, Modality

each_set = pytest.mark.parametrize("name", MINIATURES)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the four miniatures."""
    folder = tmp_path_factory.mktemp("miniatures")
    for name in MINIATURES:
        draw_miniature(name, folder)
    return folder


def arguments(name: str, root: Path, *more: str, variant: str = "DeMo_SDTPS") -> list[str]:
    """The configuration of a data set with a small network and batch, without pretrained weights."""
    settings = {
        "MODEL.TRANSFORMER_TYPE": "vit_tiny_stem_patch8",
        "MODEL.STRIDE_SIZE": "[8, 8]",
        "MODEL.PRETRAIN_PATH_T": "",
        "INPUT.SIZE_TRAIN": "[32, 32]",
        "INPUT.SIZE_TEST": "[32, 32]",
        "INPUT.PADDING": "2",
        "DATASETS.ROOT_DIR": str(root),
        "DATALOADER.NUM_WORKERS": "0",
        "DATALOADER.NUM_INSTANCE": "2",
        "SOLVER.IMS_PER_BATCH": "8",
        "SOLVER.MAX_EPOCHS": "2",
        "SOLVER.WARMUP_ITERS": "1",
        "SOLVER.BASE_LR": "1e-3",
    }
    words = [word for pair in settings.items() for word in pair]
    return ["--config_file", str(ROOT / "configs" / name / f"{variant}.yml"), *words, *more]


def small_config(name: str, root: Path, *more: str) -> CfgNode:
    _, file, *settings = arguments(name, root, *more)
    return load_config(file, settings)


def records_of(loader: DataLoader[Sample]) -> tuple[ImageRecord, ...]:
    records: tuple[ImageRecord, ...] = loader.dataset.records  # type: ignore[attr-defined]
    return records


@each_set
def test_two_epochs_and_an_evaluation(name: str, root: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_entry.main(arguments(name, root, "OUTPUT_DIR", str(run)))
    trained = json.loads((run / "metrics.json").read_text())
    assert len(trained["epochs"]) == 2
    assert all(np.isfinite(epoch["sdtps/triplet"]) for epoch in trained["epochs"])

    metrics = ["--metrics", str(tmp_path / "test.json"), "TEST.WEIGHT", str(run / "last.pth")]
    folder = draw_miniature(name, tmp_path / "data")  # the same images
    (training,) = (path for path in folder.rglob("*train*") if path.is_dir())
    shutil.rmtree(training)  # testing needs the test images alone
    test_entry.main([*metrics, "DATASETS.ROOT_DIR", str(tmp_path / "data")])
    tested = json.loads((tmp_path / "test.json").read_text())["result"]
    last = trained["summary"]["last epoch"]
    assert tested["samples"] == last["samples"] == (16 if name == "RGBNT201" else 24)
    for pattern in ("pattern_1", "pattern_2", "pattern_3"):
        assert tested[pattern] == last[pattern]
        assert tested[pattern]["queries"] == (16 if name == "RGBNT201" else 8)
        assert tested[pattern]["skipped"] == 0
        assert 0 < tested[pattern]["mAP"] <= 100


@each_set
def test_bundle(name: str, root: Path) -> None:
    data = build_data(small_config(name, root))
    assert data.split.sizes == (6, 2, 2 if name in ("MSVR310", "WMVeID863") else 0)
    assert data.test.protocol == ("scene" if name == "MSVR310" else "camera")
    train, test = records_of(data.train_loader), records_of(data.test.loader)
    assert len(train) == 24
    assert sorted({record.person_id for record in train}) == list(range(6))
    query, gallery = (
        [test[row] for row in data.test.query_rows],
        [test[row] for row in data.test.gallery_rows],
    )
    if name == "RGBNT201":
        assert query == gallery
    else:
        assert not set(query) & set(gallery)
    assert len(gallery) == 16
    batch = next(iter(data.train_loader))
    assert {images.shape for images in batch.images} == {(8, 3, 32, 32)}


@each_set
def test_the_protocol_drops_and_leaves_something_for_every_query(name: str, root: Path) -> None:
    data = build_data(small_config(name, root))
    test = records_of(data.test.loader)
    for kind in ("camera_id", "scene_id"):
        for query in (test[row] for row in data.test.query_rows):
            same = [test[row] for row in data.test.gallery_rows if test[row].person_id == query.person_id]
            dropped = [record for record in same if getattr(record, kind) == getattr(query, kind)]
            assert len(same) == 4
            assert len(dropped) == (4 if kind == "scene_id" and name.startswith("RGBNT") else 2)


@each_set
@pytest.mark.parametrize("variant", ["Baseline", "DeMo", "DeMo_SDTPS"])
def test_the_published_settings_of_each_set(name: str, variant: str) -> None:
    """SPEC §5: image size, heads, P x K, epochs and warm-up."""
    cfg = load_config(ROOT / "configs" / name / f"{variant}.yml", [])
    vehicle = name != "RGBNT201"
    assert name == cfg.DATASETS.NAMES
    assert list(cfg.INPUT.SIZE_TRAIN) == ([128, 256] if vehicle else [256, 128])
    assert (0 if vehicle else 1) == cfg.MODEL.DIRECT
    assert (cfg.MODEL.HEAD == 8) == (vehicle and variant == "DeMo")
    instances = {"RGBNT201": 8, "RGBNT100": 16, "MSVR310": 4, "WMVeID863": 4}[name]
    batch, epochs, warmup = (128, 30, 5) if name == "RGBNT100" else (64, 50, 10)
    assert instances == cfg.DATALOADER.NUM_INSTANCE
    assert (batch, epochs, warmup) == (
        cfg.SOLVER.IMS_PER_BATCH,
        cfg.SOLVER.MAX_EPOCHS,
        cfg.SOLVER.WARMUP_ITERS,
    )
    assert f"./runs/{name}/{variant}" == cfg.OUTPUT_DIR


def test_views_can_be_embedded_where_there_are_scenes(root: Path) -> None:
    cfg = small_config("MSVR310", root, "MODEL.SIE_VIEW", "True")
    assert build_data(cfg).split.num_views == 2


def draw_mine(root: Path) -> None:
    """A set of one's own as docs/data.md describes it: two modalities, no cameras."""
    for split, ids, first in (("train", TRAIN_IDS, 0), ("query", TEST_IDS, 0), ("gallery", TEST_IDS, 2)):
        for person_id in ids:
            for shot in range(first, len(PLACES)):
                triple = draw_triple(person_id, PLACES[shot], shot, (32, 32))
                for kind, pixels in (("colour", triple.rgb), ("heat", triple.ti)):
                    save(pixels, root / "Mine" / split / kind / f"{person_id:04d}_{shot:02d}.jpg")


@pytest.fixture
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of docs/data.md, and its entry, as they stand there."""
    page = ROOT / "docs" / "data.md"
    reader, entry = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.setattr("datasets.sources.SOURCES", sources := dict(SOURCES))
    monkeypatch.setattr("datasets.build.SOURCES", sources)
    namespace: dict[str, Any] = {}
    exec(compile(reader, str(page), "exec"), namespace)
    exec(compile(entry, str(page), "exec"), namespace)
    with pytest.raises(ValueError, match="there is a data set 'Mine' already"):
        exec(compile(entry, str(page), "exec"), namespace)


@pytest.mark.usefixtures("_mine")
def test_the_reader_of_the_data_page(tmp_path: Path) -> None:
    draw_mine(tmp_path)
    settings = ["DATASETS.NAMES", "Mine", "OUTPUT_DIR", str(tmp_path / "run")]
    cfg = small_config("MSVR310", tmp_path, *settings)
    assert scan_data(cfg).problems == ()
    data = build_data(cfg)
    assert (*data.split.sizes, data.test.protocol) == (6, 1, 0, "none")
    assert data.split.modalities == data.test.modalities == (Modality.RGB, Modality.TI)
    for loader in (data.train_loader, data.test.loader):
        batch = next(iter(loader))
        assert [bool(batch.present.of(m).any()) for m in Modality] == [True, False, True]
        assert batch.num_images == 2 * len(batch)

    train_entry.main(arguments("MSVR310", tmp_path, *settings))
    trained = json.loads((tmp_path / "run" / "metrics.json").read_text())
    result = trained["summary"]["last epoch"]
    assert (result["pattern_3"]["queries"], result["pattern_3"]["skipped"]) == (16, 0)

    # The third modality is nowhere: not in the model, the conditions, the cost or the report.
    report, numbers = tmp_path / "report", tmp_path / "metrics.json"
    outputs = ["--any_to_any", "--missing", "all", "--report", str(report), "--metrics", str(numbers)]
    test_entry.main([*outputs, "TEST.WEIGHT", str(tmp_path / "run" / "last.pth")])
    found = json.loads(numbers.read_text())
    assert list(found["missing"]) == ["complete", "r", "t"]
    assert found["missing"]["complete"]["pattern_3"]["mAP"] == result["pattern_3"]["mAP"]
    assert found["missing_mean"]["conditions"] == 2
    assert found["cost"]["modalities"] == trained["cost"]["modalities"] == ["RGB", "TI"]
    cells = {(*cell["query"], "→", *cell["gallery"]): cell for cell in found["any_to_any"]["cells"]}
    assert len(cells) == 9
    assert cells["RGB", "TI", "→", "RGB", "TI"]["mAP"] == result["pattern_1"]["mAP"]
    assert found["any_to_any"]["cross_modality_mean"]["cells"] == 2
    summary = read_data(report, "summary")
    assert summary["any_to_any"]["chance"] == found["any_to_any"]["chance"]
    assert summary["modalities"] == ["RGB", "TI"]
    assert summary["sources"]["RGB"] == ["learned", "own: RGB", "TI"]
    assert list(read_data(report, "triples/0")["complete"]) == ["RGB", "TI"]
    with Image.open(report / "images" / "0.jpg") as strip:
        assert strip.size == (2 * 32, 32)
    cross = next(c for c in summary["any_to_any"]["cells"] if c["id"] == "r-t")
    assert len(read_data(report, f"ranking_any_{cross['ranking']}")["rows"]) == 16


def read_data(report: Path, name: str) -> Any:
    """A data file of a report."""
    text = (report / "data" / f"{name}.js").read_text()
    return json.loads(text[text.index(",") + 1 : text.rindex(")")])


def test_a_model_for_two_modalities_on_a_set_of_three(root: Path, tmp_path: Path) -> None:
    """It reads the two; a model for three takes what there is."""
    draw_mine(tmp_path)
    three = small_config("MSVR310", root)
    two = TrainingSplit(6, (0, 1), (0, 1), (Modality.RGB, Modality.TI))
    data = build_test_data(three, two)
    assert data.test.modalities == (Modality.RGB, Modality.TI)
    batch = next(iter(data.test.loader))
    assert not batch.present.ni.any()
    assert not batch.images.ni.any()
    with pytest.raises(DatasetError, match=r"has no NI image, and the model was trained on these alone"):
        build_test_data(write_list(tmp_path, root), replace(two, modalities=(Modality.NI,)))


def write_list(folder: Path, root: Path) -> CfgNode:
    """The configuration of a list of test triples; the first has RGB alone."""
    files = sorted((root / "MSVR310" / "bounding_box_test").glob("*/vis/*.jpg"))
    names = {
        kind: [str(file).replace("/vis/", f"/{kind}/") for file in files] for kind in ("vis", "ni", "th")
    }
    names["ni"][0] = names["th"][0] = ""
    rows = [
        f"{rgb},{ni},{ti},{file.name[:4]},{file.name[11]},test"
        for file, rgb, ni, ti in zip(files, names["vis"], names["ni"], names["th"], strict=True)
    ]
    (folder / "list.csv").write_text("\n".join(["rgb,ni,ti,id,camera,split", *rows]))
    return small_config("MSVR310", root, "DATASETS.NAMES", "CSV", "DATASETS.CSV", str(folder / "list.csv"))


@pytest.mark.usefixtures("_mine")
def test_the_reader_of_the_data_page_finds_problems(tmp_path: Path) -> None:
    draw_mine(tmp_path)
    (tmp_path / "Mine" / "train" / "heat" / "0002_00.jpg").unlink()
    (tmp_path / "Mine" / "query" / "heat" / "notes.txt").touch()
    cfg = small_config("MSVR310", tmp_path, "DATASETS.NAMES", "Mine")
    assert [problem.message for problem in scan_data(cfg).problems] == [
        "train/colour/0002_00.jpg has no partner in heat",
        "query/heat/notes.txt is not named like 0007_01.jpg",
    ]
    with pytest.raises(UserError, match=r"2 problems with(.|\n)*such as 0007_01.jpg \(identity 7\)"):
        build_data(cfg)
