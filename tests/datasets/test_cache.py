import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_build_data import draw_dataset, two_epochs
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from config import get_cfg
from datasets import cache
from datasets.build import build_data
from datasets.cache import RamCache, cache_bytes, free_memory
from datasets.dataset import MultiModalDataset, SampleKey, collate
from datasets.transforms import TrainTransform
from errors import UserError
from structures import ImageRecord, ModalBatch, Modality, PerModality

SIZE = (16, 8)
TRANSFORM = TrainTransform(
    size=SIZE, flip_prob=0.5, padding=2, erase_prob=0.5, mean=[0.5] * 3, std=[0.5] * 3, shared=False
)


def random_triple(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, 3, *SIZE), dtype=torch.uint8, generator=generator)


def same(first: ModalBatch, second: ModalBatch) -> bool:
    pairs = zip(first.images, second.images, strict=True)
    return first.names == second.names and all(torch.equal(a, b) for a, b in pairs)


def test_triples_are_absent_until_they_are_put() -> None:
    images = RamCache(3, SIZE)
    images.put(1, random_triple(1))
    images.put(2, torch.zeros(3, 3, *SIZE, dtype=torch.uint8))
    assert images.get(0) is None
    for row, expected in ((1, random_triple(1)), (2, torch.zeros(3, 3, *SIZE))):
        found = images.get(row)
        assert found is not None
        assert torch.equal(found, expected.byte())


def test_a_forked_process_fills_it_for_its_parent() -> None:
    images = RamCache(2, SIZE)
    child = os.fork()
    if child == 0:
        images.put(1, random_triple(7))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = images.get(1)
    assert found is not None
    assert torch.equal(found, random_triple(7))
    assert images.get(0) is None


def test_descriptors_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        RamCache(2, SIZE).put(0, random_triple(0))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def cfg(tmp_path: Path) -> CfgNode:
    """The defaults, made small, for drawn triples with masks."""
    draw_dataset(tmp_path / "RGBNT201", masks=True)
    small = get_cfg()
    small.DATASETS.ROOT_DIR = str(tmp_path)
    small.DATALOADER.NUM_WORKERS = 0
    small.DATALOADER.NUM_INSTANCE = 2
    small.SOLVER.IMS_PER_BATCH = 4
    small.TEST.IMS_PER_BATCH = 5
    small.INPUT.SIZE_TRAIN = small.INPUT.SIZE_TEST = list(SIZE)
    small.INPUT.PADDING = 2
    return small


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_and_without(cfg: CfgNode, workers: int) -> None:
    cfg.DATALOADER.NUM_WORKERS = workers
    plain = two_epochs(build_data(cfg))
    cfg.DATALOADER.CACHE = "ram"
    cached = two_epochs(build_data(cfg))
    assert len(cached) == len(plain) > 10
    assert all(same(a, b) for a, b in zip(cached, plain, strict=True))
    assert cached[-1].person_masks is not None


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_read_once_by_all_workers_together(cfg: CfgNode, tmp_path: Path, workers: int) -> None:
    cfg.DATALOADER.NUM_WORKERS = workers
    cfg.DATALOADER.CACHE = "ram"
    data = build_data(cfg)
    first = list(data.test.loader)
    for path in tmp_path.glob("RGBNT201/test/[RNT]*/*.png"):
        path.unlink()
    # In another order, so that each worker needs what the other one has read.
    dataset = data.test.loader.dataset
    (backwards,) = DataLoader(
        dataset, batch_size=12, sampler=range(11, -1, -1), num_workers=min(workers, 1), collate_fn=collate
    )
    expected = torch.cat([batch.images.ti for batch in first]).flip(0)
    assert torch.equal(backwards.images.ti, expected)
    assert all(same(a, b) for a, b in zip(data.test.loader, first, strict=True))


@pytest.fixture
def record(tmp_path: Path) -> ImageRecord:
    """A triple of noise, larger than `SIZE`."""
    rng = np.random.default_rng(0)
    paths = PerModality.build(lambda m: tmp_path / f"{m.value}.png")
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (33, 99, 3), dtype=np.uint8)).save(path)
    return ImageRecord(PerModality[Path | None](*paths), person_id=0, camera_id=0)


def as_strip(record: ImageRecord) -> ImageRecord:
    return replace(record, paths=PerModality(*[record.paths.rgb] * 3), is_strip=True)


def without_ni(record: ImageRecord) -> ImageRecord:
    return replace(record, paths=record.paths._replace(ni=None))


@pytest.mark.parametrize("change", [lambda record: record, as_strip, without_ni])
def test_any_kind_of_record_is_kept(
    record: ImageRecord, change: Callable[[ImageRecord], ImageRecord]
) -> None:
    record = change(record)
    plain, cached = (
        MultiModalDataset([record], TRANSFORM, cache=images) for images in (None, RamCache(1, SIZE))
    )
    keys = [SampleKey(0, epoch) for epoch in range(3)]
    expected = collate([plain[key] for key in keys])
    cached[0]
    for path in record.files:
        path.unlink()
    assert same(collate([cached[key] for key in keys]), expected)


def test_a_spawned_worker_sees_what_is_there(record: ImageRecord) -> None:
    dataset = MultiModalDataset([record], TRANSFORM, cache=RamCache(1, SIZE))
    expected = collate([dataset[0]])
    record.files[0].unlink()
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=collate)
    (batch,) = loader
    assert same(batch, expected)


def test_what_cannot_be_read_is_not_kept(record: ImageRecord, tmp_path: Path) -> None:
    """With ON_ERROR skip the triple in its place is, and a file that is restored comes back."""
    restored = tmp_path / "restored.png"
    broken = replace(record, paths=record.paths._replace(ti=restored))
    dataset = MultiModalDataset([broken, record], TRANSFORM, replace_unreadable=True, cache=RamCache(2, SIZE))
    for _ in range(2):
        sample = dataset[0]
        assert sample.record == record
        assert sample.unreadable == (f"{restored} (TI): No such file or directory",)
    Image.new("RGB", (99, 33)).save(restored)
    assert dataset[0].record == broken
    assert dataset[0].unreadable == ()


def test_size_is_logged(cfg: CfgNode, caplog: pytest.LogCaptureFixture) -> None:
    cfg.DATALOADER.CACHE = "ram"
    with caplog.at_level(logging.INFO):
        build_data(cfg)
    assert "DATALOADER.CACHE ram takes up to 0.00 GB for 28 triples of 16 x 8 pixels" in caplog.text
    assert cache_bytes(1, (256, 128)) == 3 * 3 * 256 * 128 == 294912


def test_what_does_not_fit_is_refused(cfg: CfgNode, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = cache_bytes(28, SIZE)
    monkeypatch.setattr(cache, "free_memory", lambda: int(needed / 0.8) + 1)
    cfg.DATALOADER.CACHE = "ram"
    build_data(cfg)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="once for each of 2 processes, but may take only"):
        build_data(cfg, num_processes=2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(cache, "free_memory", lambda: int(needed / 0.8) - 1)
    with pytest.raises(UserError, match=r"needs 0\.00 GB for 28 triples .* set DATALOADER\.CACHE none"):
        build_data(cfg)
    cfg.DATALOADER.CACHE = "none"
    build_data(cfg)


def test_no_memory_is_taken_before_it_is_filled() -> None:
    """A cache of 64 GiB, in which one triple is put."""
    images = RamCache(2**36 // cache_bytes(1, (256, 128)), (256, 128))
    images.put(0, torch.ones(3, 3, 256, 128, dtype=torch.uint8))
    assert images.get(1) is None


MEMINFO = "MemTotal:       20000 kB\nMemAvailable:    9000 kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max", 9000 * 1024), ("50000000", 9000 * 1024), ("5000000", 5000000 - 3000000 + 200000 + 300000)],
)
def test_free_memory_is_that_of_the_machine_or_of_its_container(
    tmp_path: Path, limit: str, expected: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 200000\nactive_file 300000\n")
    assert free_memory(tmp_path / "meminfo", tmp_path) == expected


def test_free_memory_without_linux(tmp_path: Path) -> None:
    assert free_memory(tmp_path / "absent", tmp_path) > 1e8


def test_modalities_have_an_order_in_the_cache(record: ImageRecord) -> None:
    images = RamCache(1, SIZE)
    MultiModalDataset([record], TRANSFORM, cache=images)[0]
    kept = images.get(0)
    assert kept is not None
    for modality, image in zip(Modality, kept, strict=True):
        path = record.paths.of(modality)
        assert path is not None
        pixels = Image.open(path).resize((8, 16), Image.Resampling.BICUBIC)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(pixels))
