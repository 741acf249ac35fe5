import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from config import get_cfg
from datasets import build, sources
from datasets.build import DataBundle, build_data
from datasets.dataset import DatasetError, Scan, Splits
from datasets.synthetic import DrawnSpec
from structures import ImageRecord, ModalBatch, Modality, PerModality

TRAIN_IDS, TEST_IDS = (3, 5, 8, 13), (1, 2, 4)


def draw_dataset(folder: Path, *, masks: bool = False) -> Path:
    """4 training and 3 test identities with 2 cameras × 2 triples of noise each, in RGBNT201's layout."""
    rng = np.random.default_rng(0)
    for split, ids in (("train_171", TRAIN_IDS), ("test", TEST_IDS)):
        for name in [m.value for m in Modality] + ["MASK"] * masks:
            (folder / split / name).mkdir(parents=True)
            for stem in (f"{i:06d}_cam{camera}_0_{n:02d}" for i in ids for camera in (1, 2) for n in (0, 1)):
                pixels = rng.integers(0, 256, (16, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{stem}.png")
    return folder


@pytest.fixture
def cfg(tmp_path: Path) -> CfgNode:
    """The defaults, made small."""
    small = get_cfg()
    small.DATASETS.ROOT_DIR = str(tmp_path)
    small.DATALOADER.NUM_WORKERS = 0
    small.DATALOADER.NUM_INSTANCE = 3  # of 4 images: one is left out, so that epochs differ
    small.SOLVER.IMS_PER_BATCH = 6
    small.TEST.IMS_PER_BATCH = 5
    small.INPUT.SIZE_TRAIN = [16, 8]
    small.INPUT.SIZE_TEST = [16, 8]
    small.INPUT.PADDING = 2
    return small


@pytest.fixture
def rgbnt201(tmp_path: Path) -> Path:
    return draw_dataset(tmp_path / "RGBNT201", masks=True)


def read_instead(monkeypatch: pytest.MonkeyPatch, splits: Splits) -> None:
    """Let the reader of RGBNT201 yield these."""

    def scan(folder: Path, *, test_only: bool = False) -> Scan:
        return Scan(folder, "", splits.train, splits.query, splits.gallery, problems=())

    source = replace(build.SOURCES["RGBNT201"], scan=scan)
    monkeypatch.setitem(build.SOURCES, "RGBNT201", source)


def records_of(loader: DataLoader[Any]) -> tuple[ImageRecord, ...]:
    records: tuple[ImageRecord, ...] = loader.dataset.records  # type: ignore[attr-defined]
    return records


def two_epochs(data: DataBundle) -> list[ModalBatch]:
    batches = []
    for epoch in range(2):
        data.sampler.set_epoch(epoch)
        batches += list(data.train_loader)
        batches += list(data.test.loader)
    return batches


@pytest.mark.usefixtures("rgbnt201")
def test_bundle_of_rgbnt201(cfg: CfgNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        data = build_data(cfg)

    assert data.split.sizes == (4, 2, 0)
    table = [line.split() for line in caplog.text.splitlines()]
    assert ["train", "4", "16", "2"] in table
    assert ["gallery", "3", "12", "2"] in table

    train = list(data.train_loader)
    assert len(train) == len(data.train_loader) == len(data.sampler) / 6 == 2
    for batch in train:
        assert {images.shape for images in batch.images} == {(6, 3, 16, 8)}
        ids, counts = batch.person_ids.unique(return_counts=True)
        assert counts.tolist() == [3, 3]
        assert set(ids.tolist()) <= {0, 1, 2, 3}
        assert [TRAIN_IDS[i] for i in batch.person_ids] == [int(name[:6]) for name in batch.names]
        assert batch.person_masks is None

    test = list(data.test.loader)
    assert [len(batch) for batch in test] == [5, 5, 2]
    names = [name for batch in test for name in batch.names]
    assert names == sorted(names)
    assert len(set(names)) == 12
    assert torch.cat([batch.person_ids for batch in test]).tolist() == [1] * 4 + [2] * 4 + [4] * 4
    assert torch.cat([batch.camera_ids for batch in test]).tolist() == [0, 0, 1, 1] * 3
    assert data.test.query_rows.tolist() == data.test.gallery_rows.tolist() == list(range(12))
    assert test[2].person_masks is not None
    assert test[2].person_masks.shape == (2, 16, 8)


@pytest.mark.usefixtures("rgbnt201")
def test_workers_change_neither_batches_nor_the_global_random_state(cfg: CfgNode) -> None:
    state = torch.get_rng_state()
    reference = two_epochs(build_data(cfg))
    assert torch.equal(torch.get_rng_state(), state)

    cfg.DATALOADER.NUM_WORKERS = 2
    torch.manual_seed(4321)
    state = torch.get_rng_state()
    batches = two_epochs(build_data(cfg))
    assert torch.equal(torch.get_rng_state(), state)

    assert len(batches) == len(reference) == 2 * (2 + 3)
    for batch, other in zip(batches, reference, strict=True):
        assert batch.names == other.names
        assert all(torch.equal(a, b) for a, b in zip(batch.images, other.images, strict=True))
        assert torch.equal(batch.person_ids, other.person_ids)
    assert reference[0].names != reference[5].names, "epochs differ"
    assert torch.equal(reference[2].images.ti, reference[7].images.ti), "test images do not"


@pytest.mark.usefixtures("rgbnt201")
def test_the_seed_of_the_configuration_decides_order_and_augmentation(cfg: CfgNode) -> None:
    first = build_data(cfg)
    cfg.SOLVER.SEED += 1
    second = build_data(cfg)
    assert [key.index for key in first.sampler] != [key.index for key in second.sampler]
    assert not torch.equal(
        first.train_loader.dataset[0].images.rgb, second.train_loader.dataset[0].images.rgb
    )


@pytest.mark.usefixtures("rgbnt201")
def test_input_keys_reach_the_transforms(cfg: CfgNode) -> None:
    cfg.INPUT.PROB = 1.0
    cfg.INPUT.PADDING = 0
    cfg.INPUT.RE_PROB = 0.0
    cfg.INPUT.PIXEL_MEAN = [0.0, 0.0, 0.0]
    cfg.INPUT.PIXEL_STD = [1.0, 0.5, 1.0]
    cfg.INPUT.SIZE_TEST = [32, 4]
    data = build_data(cfg)
    sample = data.train_loader.dataset[0]
    pixels = np.asarray(Image.open(sample.record.files[1]), dtype=np.float32)[:, ::-1] / 255
    torch.testing.assert_close(sample.images.ni[0], torch.from_numpy(pixels[..., 0].copy()))
    torch.testing.assert_close(sample.images.ni[1], torch.from_numpy(2 * pixels[..., 1]))
    assert data.test.loader.dataset[0].images.rgb.shape == (3, 32, 4)


def test_unreadable_training_image_stops_or_is_replaced(cfg: CfgNode, rgbnt201: Path) -> None:
    broken = rgbnt201 / "train_171" / "TI" / "000005_cam1_0_00.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DatasetError, match=f"cannot read the TI image {broken}"):
        two_epochs(build_data(cfg))
    cfg.DATALOADER.ON_ERROR = "skip"
    batches = two_epochs(build_data(cfg))
    unreadable = {text for batch in batches for text in batch.unreadable}
    assert len(unreadable) == 1
    assert unreadable.pop().startswith(f"{broken} (TI): ")
    assert not any(broken.name in batch.names for batch in batches)
    for batch in batches[:2]:
        assert sorted(batch.person_ids.bincount().tolist()) in ([0, 0, 3, 3], [0, 3, 3], [3, 3])


def test_unreadable_test_image_always_stops(cfg: CfgNode, rgbnt201: Path) -> None:
    (rgbnt201 / "test" / "NI" / "000002_cam1_0_00.png").write_bytes(b"")
    cfg.DATALOADER.ON_ERROR = "skip"
    with pytest.raises(DatasetError, match=r"cannot read the NI image .*000002_cam1_0_00\.png"):
        list(build_data(cfg).test.loader)


@pytest.mark.usefixtures("rgbnt201")
@pytest.mark.parametrize("shared", [True, False])
def test_shared_augment_reaches_the_transform(cfg: CfgNode, rgbnt201: Path, shared: bool) -> None:
    for path in rgbnt201.glob("train_171/*/*.png"):
        Image.new("RGB", (8, 16), "white").save(path)
    cfg.INPUT.SHARED_AUGMENT = shared
    cfg.INPUT.RE_PROB = 0.0
    (batch, _) = build_data(cfg).train_loader
    assert torch.equal(batch.images.rgb, batch.images.ti) is shared


def test_each_distinct_test_image_is_encoded_once(
    cfg: CfgNode, rgbnt201: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = build.SOURCES["RGBNT201"].read(rgbnt201)
    query, gallery = splits.query[4:7], splits.gallery[::-1][2:10]  # rows 4, 5, 6 and rows 9 down to 2
    read_instead(monkeypatch, Splits(splits.train, query, gallery))
    data = build_data(cfg)
    names = [name for batch in data.test.loader for name in batch.names]
    assert len(names) == len(set(names)) == 8
    assert [names[row] for row in data.test.query_rows] == [record.name for record in query]
    assert [names[row] for row in data.test.gallery_rows] == [record.name for record in gallery]


def test_scenes_and_cameras_are_counted_in_the_training_split(
    cfg: CfgNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(person: int, camera: int, scene: int) -> ImageRecord:
        return ImageRecord(
            PerModality(*(Path(f"{person}_{camera}_{m.value}") for m in Modality)), person, camera, scene
        )

    train = tuple(record(person, camera, scene) for person in range(3) for camera, scene in ((0, 2), (4, 1)))
    test = (record(7, 8, 9), record(7, 0, 9))
    read_instead(monkeypatch, Splits(train, test, test))
    (tmp_path / "RGBNT201").mkdir()
    data = build_data(cfg)
    assert data.split.sizes == (3, 2, 2)
    assert data.camera_names == ("cam1", "cam5", "cam9")
    # Cameras 0 and 4 were seen in training and become 0 and 1; camera 8 was not and comes behind them. So
    # do the scenes 1 and 2, and 9.
    trained, tested = records_of(data.train_loader), records_of(data.test.loader)
    assert [record.camera_id for record in trained] == [0, 1] * 3
    assert [record.camera_id for record in tested] == [2, 0]
    assert [record.scene_id for record in trained] == [1, 0] * 3
    assert [record.scene_id for record in tested] == [2, 2]


def splits_with_a_new_test_camera(cfg: CfgNode) -> Splits:
    splits = build.SOURCES["RGBNT201"].read(draw_dataset(Path(cfg.DATASETS.ROOT_DIR) / "RGBNT201"))
    query = tuple(replace(record, camera_id=record.camera_id or 5) for record in splits.query)
    return splits._replace(query=query, gallery=query)


@pytest.mark.parametrize("choice", ["mean", "zero"])
def test_cameras_without_training_images_are_logged(
    cfg: CfgNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, choice: str
) -> None:
    splits = splits_with_a_new_test_camera(cfg)
    read_instead(monkeypatch, splits)
    build_data(cfg)
    assert "no training images" not in caplog.text  # without SIE the camera does not matter
    cfg.merge_from_list(["MODEL.SIE_CAMERA", True, "TEST.UNSEEN_CAMERA", choice])
    build_data(cfg)
    assert (
        f"no training images of the test cameras 5 (counted from 0); their embedding is {choice}"
        in caplog.text
    )


def test_cameras_without_training_images_can_be_refused(
    cfg: CfgNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = splits_with_a_new_test_camera(cfg)
    read_instead(monkeypatch, splits)
    cfg.merge_from_list(["MODEL.SIE_CAMERA", True, "TEST.UNSEEN_CAMERA", "error"])
    with pytest.raises(DatasetError, match=r"test cameras 5 .*; set TEST\.UNSEEN_CAMERA to mean or zero"):
        build_data(cfg)


def test_scenes_without_training_images_can_be_refused(
    cfg: CfgNode, rgbnt201: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = build.SOURCES["RGBNT201"].read(rgbnt201)
    read_instead(monkeypatch, splits._replace(query=tuple(replace(r, scene_id=3) for r in splits.query)))
    cfg.merge_from_list(["MODEL.SIE_VIEW", True, "TEST.UNSEEN_CAMERA", "error"])
    with pytest.raises(DatasetError, match=r"test scenes 3 .*; set TEST\.UNSEEN_CAMERA to mean or zero"):
        build_data(cfg)


def test_a_source_with_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown evaluation protocol 'time'; choose from"):
        replace(build.SOURCES["RGBNT201"], protocol="time")


@pytest.mark.parametrize(
    "name", sorted(name for name, source in build.SOURCES.items() if source.folder and source.draw is None)
)
def test_missing_data_says_where_to_put_it(cfg: CfgNode, tmp_path: Path, name: str) -> None:
    cfg.DATASETS.NAMES = name
    folder = tmp_path / ("WMVEID863" if name == "WMVeID863" else name)
    with pytest.raises(
        DatasetError, match=f"no folder {folder}: put the {name} data set there.* DATASETS.ROOT_DIR"
    ):
        build_data(cfg)


@pytest.mark.parametrize(("name", "spec"), sources.DRAWN_SETS.items())
def test_synthetic_is_drawn_with_a_fixed_seed_and_read(
    name: str, spec: DrawnSpec, cfg: CfgNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def draw(root: Path, **how: object) -> Path:
        calls.append((root, how))
        return draw_dataset(root / "drawn")

    monkeypatch.setattr(sources, "ensure_synthetic", draw)
    cfg.DATASETS.NAMES = name
    data = build_data(cfg)
    seed = 1 if name == "SyntheticTrunk" else 0  # other people than in the sets that its trunk is used on
    assert calls == [(tmp_path, {"name": name, "seed": seed, "spec": spec})]
    assert data.split.classes == 4
    assert next(iter(data.test.loader)).person_masks is None


def test_unknown_data_set_names_the_choices(cfg: CfgNode) -> None:
    cfg.DATASETS.NAMES = "Market1501"
    with pytest.raises(
        ValueError, match=r"unknown data set 'Market1501'.* choose from CSV, MSVR310, .*, WMVeID863$"
    ):
        build_data(cfg)


def test_a_root_that_cannot_exist_is_refused(cfg: CfgNode) -> None:
    cfg.DATASETS.ROOT_DIR = "x" * 5000
    with pytest.raises(DatasetError, match="there is no folder"):
        build_data(cfg)


def test_synthetic_data_that_cannot_be_drawn_is_refused(cfg: CfgNode, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cfg.merge_from_list(["DATASETS.NAMES", "Synthetic", "DATASETS.ROOT_DIR", str(tmp_path / "file")])
    with pytest.raises(DatasetError, match=r"cannot be drawn in .*file \(File exists\)"):
        build_data(cfg)
