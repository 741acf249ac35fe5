import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from datasets.dataset import DatasetError, MultiModalDataset, Sample, SampleKey, collate, keep_some
from structures import ImageRecord, Modality, PerModality

SIZE = (12, 8)


class ToFloat:
    """Stands for a transform that changes neither sizes nor values."""

    def __init__(self, size: tuple[int, int] = SIZE) -> None:
        self.size = size

    def resize(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return images.float()


class AddNoise(ToFloat):
    """Stands for an augmentation: draws from torch's global generator."""

    def __call__(self, images: Tensor) -> Tensor:
        return images + torch.randn(images.shape)


to_float, add_noise = ToFloat(), AddNoise()


def to_mask(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).float() / 255


@pytest.fixture
def records(tmp_path: Path) -> list[ImageRecord]:
    """Four triples of one colour each; image i of modality m has the value 10 i + m."""
    result = []
    for i in range(4):
        paths = PerModality[Path | None](*(tmp_path / f"{m.value}_{i}.png" for m in Modality))
        for m, path in enumerate(filter(None, paths)):
            Image.new("RGB", SIZE[::-1], (10 * i + m,) * 3).save(path)
        mask_path = tmp_path / f"mask_{i}.png"
        Image.new("L", SIZE[::-1], 51 * i).save(mask_path)
        result.append(ImageRecord(paths, person_id=i // 2, camera_id=i % 2, scene_id=i, mask_path=mask_path))
    return result


def same(first: Sample, second: Sample) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.images, second.images, strict=True))


def test_augmentation_depends_on_seed_and_key_alone(records: list[ImageRecord]) -> None:
    dataset = MultiModalDataset(records, add_noise, seed=5)
    key = SampleKey(index=1, epoch=2, draw=0)
    sample = dataset[key]
    torch.manual_seed(99)
    dataset[0]
    assert same(dataset[key], sample)
    assert same(MultiModalDataset(records, add_noise, seed=5)[key], sample)
    assert not same(MultiModalDataset(records, add_noise, seed=6)[key], sample)
    assert not same(dataset[replace(key, epoch=3)], sample)
    assert not same(dataset[replace(key, draw=1)], sample)


def test_noise_differs_between_images_and_between_modalities(records: list[ImageRecord]) -> None:
    dataset = MultiModalDataset([records[0], records[0]], add_noise)
    first, second = dataset[SampleKey(0, epoch=1)], dataset[SampleKey(1, epoch=0)]
    assert not same(first, second)
    assert not torch.equal(first.images.rgb.round(), first.images.ni.round() - 1)


def test_plain_index_is_the_first_draw_of_epoch_0(records: list[ImageRecord]) -> None:
    dataset = MultiModalDataset(records, add_noise)
    assert len(dataset) == 4
    assert same(dataset[3], dataset[SampleKey(3, epoch=0, draw=0)])


def test_global_random_states_stay_as_they_were(
    records: list[ImageRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise AssertionError("the generators of the GPU were reseeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    MultiModalDataset(records, add_noise)[SampleKey(0, epoch=4)]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert np.random.rand() == expected


def test_failing_augmentation_restores_the_random_state_too(records: list[ImageRecord]) -> None:
    class Fail(ToFloat):
        def __call__(self, images: Tensor) -> Tensor:
            torch.rand(1)
            raise RuntimeError

    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        MultiModalDataset(records, Fail())[0]
    assert torch.equal(torch.get_rng_state(), state)


def test_images_reach_their_modality_as_rgb(records: list[ImageRecord]) -> None:
    Image.new("L", SIZE[::-1], 200).save(records[2].files[2])  # grey on disk
    sample = MultiModalDataset(records, to_float)[2]
    assert [tensor.unique().tolist() for tensor in sample.images] == [[20], [21], [200]]
    assert {tensor.shape for tensor in sample.images} == {(3, *SIZE)}


def test_masks_are_read_on_demand(records: list[ImageRecord]) -> None:
    without = MultiModalDataset(records, add_noise)[1]
    with_mask = MultiModalDataset(records, add_noise, mask_transform=to_mask)[1]
    assert without.person_mask is None
    assert with_mask.person_mask is not None
    assert torch.equal(with_mask.person_mask, torch.full(SIZE, 0.2))
    bare = MultiModalDataset([replace(records[1], mask_path=None)], add_noise, mask_transform=to_mask)
    assert bare[0].person_mask is None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The image files that are opened from now on."""
    noted: list[Path] = []
    really_open = Image.open

    def open_and_note(path: Path, formats: tuple[str, ...]) -> Image.Image:
        noted.append(path)
        return really_open(path, formats=formats)

    monkeypatch.setattr(Image, "open", open_and_note)
    return noted


@pytest.mark.parametrize("damage", ["truncated", "text", "absent"])
@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize("modality", list(Modality))
def test_unreadable_image_is_one_error_that_names_it(
    records: list[ImageRecord], damage: str, ending: str, modality: Modality, opened: list[Path]
) -> None:
    record = records[0]
    broken = record.files[list(Modality).index(modality)].with_suffix(f".{ending}")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(broken)
    if damage == "truncated":
        broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    elif damage == "text":
        broken.write_text("not an image")
    else:
        broken.unlink()
    paths = PerModality.build(lambda m: broken if m is modality else record.paths.of(m))
    with pytest.raises(DatasetError) as caught:
        MultiModalDataset([replace(record, paths=paths)], add_noise)[0]

    assert f"the {modality.value} image {broken}" in str(caught.value)
    assert opened.count(broken) == 1, "it must not be tried again"


def test_unreadable_mask_is_an_error(records: list[ImageRecord], tmp_path: Path) -> None:
    record = replace(records[0], mask_path=tmp_path / "absent.png")
    with pytest.raises(DatasetError, match=r"mask image .*absent\.png"):
        MultiModalDataset([record], add_noise, mask_transform=to_mask)[0]


def test_error_in_a_worker_keeps_its_type_and_message(records: list[ImageRecord]) -> None:
    records[3].files[1].write_text("not an image")
    loader = DataLoader(MultiModalDataset(records, add_noise), num_workers=1, collate_fn=collate)
    with pytest.raises(DatasetError, match=r"NI_3\.png"):
        list(loader)


def test_other_formats_are_refused_whatever_the_name(records: list[ImageRecord]) -> None:
    """Pillow starts Ghostscript for the content of an EPS file, even if its name ends in .png."""
    Image.new("RGB", SIZE[::-1]).save(records[0].files[2], format="EPS")
    with pytest.raises(DatasetError, match=r"TI image .*TI_0\.png \(it is no JPEG or PNG image\)"):
        MultiModalDataset(records, add_noise)[0]


@pytest.fixture
def many_records(records: list[ImageRecord]) -> list[ImageRecord]:
    """Two identities with eight triples each; a triple is known by its place."""
    return [replace(records[0], person_id=i % 2, camera_id=i) for i in range(16)]


def spoil(records: list[ImageRecord], rows: set[int], folder: Path) -> list[ImageRecord]:
    """Let the records at `rows` name an NI image that does not exist."""
    return [
        replace(record, paths=record.paths._replace(ni=folder / f"spoiled_{i}.png")) if i in rows else record
        for i, record in enumerate(records)
    ]


def test_unreadable_triple_is_replaced_by_one_of_its_identity(
    many_records: list[ImageRecord], tmp_path: Path
) -> None:
    spoiled = spoil(many_records, {3, 5}, tmp_path)
    dataset = MultiModalDataset(spoiled, add_noise, seed=1, replace_unreadable=True)
    chosen = set()
    for epoch in range(40):
        key = SampleKey(3, epoch)
        sample = dataset[key]
        assert sample.record.person_id == 1
        assert sample.record.camera_id not in (3, 5)
        expected = {f"{tmp_path}/spoiled_3.png (NI): No such file or directory"}
        assert set(sample.unreadable) - {item.replace("_3", "_5") for item in expected} == expected
        assert same(sample, dataset[key])
        assert dataset[key].record == sample.record
        chosen.add(sample.record.camera_id)
    assert chosen == {1, 7, 9, 11, 13, 15}, "any other readable triple of the identity may come"
    assert {dataset[SampleKey(3, 0, draw)].record.camera_id for draw in range(20)} > {1}
    other_seed = MultiModalDataset(spoiled, add_noise, seed=2, replace_unreadable=True)
    places = [[d[SampleKey(3, e)].record.camera_id for e in range(10)] for d in (dataset, other_seed)]
    assert places[0] != places[1]


def test_readable_triples_do_not_change(many_records: list[ImageRecord], tmp_path: Path) -> None:
    strict = MultiModalDataset(many_records, add_noise)
    lenient = MultiModalDataset(spoil(many_records, {3}, tmp_path), add_noise, replace_unreadable=True)
    assert same(strict[1], lenient[1])
    assert lenient[1].unreadable == ()


def test_identity_without_any_readable_triple_is_an_error(
    many_records: list[ImageRecord], tmp_path: Path
) -> None:
    spoiled = spoil(many_records, set(range(1, 16, 2)), tmp_path)
    dataset = MultiModalDataset(spoiled, add_noise, replace_unreadable=True)
    with pytest.raises(DatasetError, match=r"none of the 8 triples .* cannot read the NI image .*spoiled_3"):
        dataset[3]


def test_replaced_files_reach_the_batch_and_the_workers_change_nothing(
    many_records: list[ImageRecord], tmp_path: Path
) -> None:
    spoiled = spoil(many_records, {3, 4}, tmp_path)
    dataset = MultiModalDataset(spoiled, add_noise, replace_unreadable=True)
    options = {"batch_size": 6, "collate_fn": collate, "shuffle": False}
    alone, helped = (list(DataLoader(dataset, num_workers=n, **options)) for n in (0, 2))  # type: ignore[arg-type]
    reasons = [f"{tmp_path}/spoiled_{i}.png (NI): No such file or directory" for i in (3, 4)]
    assert [batch.unreadable for batch in alone] == [tuple(reasons), (), ()]
    assert alone[0].to(torch.device("cpu")).unreadable == tuple(reasons)
    for batch, other in zip(alone, helped, strict=True):
        assert batch.unreadable == other.unreadable
        assert torch.equal(batch.camera_ids, other.camera_ids)
        assert torch.equal(batch.images.ni, other.images.ni)


@pytest.fixture
def strip(tmp_path: Path) -> ImageRecord:
    """Three images of 24 x 36 pixels side by side: red, green, blue."""
    pixels = np.zeros((24, 108, 3), dtype=np.uint8)
    for channel in range(3):
        pixels[:, 36 * channel : 36 * (channel + 1), channel] = 255
    path = tmp_path / "strip.png"
    Image.fromarray(pixels).save(path)
    return ImageRecord(PerModality(path, path, path), person_id=0, camera_id=0, is_strip=True)


def test_a_strip_is_cut_in_order_and_decoded_once(strip: ImageRecord, opened: list[Path]) -> None:
    images = MultiModalDataset([strip], ToFloat((24, 36)))[0].images
    for channel, tensor in enumerate(images):
        assert tensor.shape == (3, 24, 36)
        expected = torch.zeros(3)
        expected[channel] = 255
        assert torch.equal(tensor, expected.view(3, 1, 1).expand(3, 24, 36))
    assert opened == [strip.files[0]]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((100, 20), "its width of 100 pixels is no multiple of 3"),
        ((99, 34), "its height of 34 pixels is more than a third of its width of 99"),
    ],
)
def test_what_is_no_strip_is_refused_or_replaced(
    strip: ImageRecord, tmp_path: Path, size: tuple[int, int], reason: str
) -> None:
    path = tmp_path / "bad\nstrip.png"
    Image.new("RGB", size).save(path)
    bad = replace(strip, paths=PerModality(path, path, path))
    with pytest.raises(
        DatasetError, match=rf"cannot cut .*bad\\nstrip.png into RGB, NI, TI images \({reason}"
    ):
        MultiModalDataset([bad], add_noise)[0]
    lenient = MultiModalDataset([bad, strip], ToFloat((24, 36)), replace_unreadable=True)
    assert lenient[0].record == strip
    (summary,) = lenient[0].unreadable
    assert summary == f"{tmp_path}/bad\\nstrip.png (RGB, NI, TI): {reason}"


def test_a_strip_as_square_as_can_be(strip: ImageRecord) -> None:
    Image.new("RGB", (99, 33)).save(strip.files[0])
    assert MultiModalDataset([strip], ToFloat((33, 33)))[0].images.ti.shape == (3, 33, 33)


def test_a_strip_that_cannot_be_read_is_named(strip: ImageRecord) -> None:
    strip.files[0].write_text("no image")
    with pytest.raises(DatasetError, match=r"cannot read the RGB, NI, TI image .*strip\.png \(it is no JPEG"):
        MultiModalDataset([strip], add_noise)[0]


@pytest.mark.parametrize("absent", list(Modality))
def test_a_modality_that_the_set_does_not_have_is_zeros(records: list[ImageRecord], absent: Modality) -> None:
    paths = PerModality.build(lambda m: None if m is absent else records[1].paths.of(m))
    record = replace(records[1], paths=paths)
    whole, part = (MultiModalDataset([r], add_noise)[0] for r in (records[1], record))
    for modality in Modality:
        if modality is absent:
            assert not part.images.of(modality).any()
        else:
            assert torch.equal(part.images.of(modality), whole.images.of(modality)), "its noise is the same"
    assert len(record.files) == 2
    assert record.name == ("NI_1.png" if absent is Modality.RGB else "RGB_1.png")
    batch = collate([part, whole])
    assert batch.images.of(absent)[1].any()
    assert [batch.present.of(m).tolist() for m in Modality] == [[m is not absent, True] for m in Modality]
    assert batch.num_images == 5


def test_what_modality_dropout_leaves_by_hand() -> None:
    complete, without_ni = PerModality(True, True, True), PerModality(True, False, True)
    draws = PerModality(0.1, 0.9, 0.3)
    assert keep_some(complete, draws, 0.2) == (False, True, True)
    assert keep_some(complete, draws, 0.5) == (False, True, False)
    assert keep_some(complete, draws, 0.95) == (False, True, False), "never all: the largest draw stays"
    assert keep_some(without_ni, draws, 0.5) == (False, False, True), "of those that are there"
    assert keep_some(without_ni, draws, 0.05) == without_ni


def test_a_batch_loses_the_same_modalities_by_seed_and_epoch_alone(records: list[ImageRecord]) -> None:
    whole = MultiModalDataset(records, add_noise)
    dropped, again = (MultiModalDataset(records, add_noise, modality_dropout=0.5) for _ in range(2))
    keys = [SampleKey(2, epoch, batch=batch) for epoch in (1, 2, 3) for batch in range(4)]
    kept = [dropped[key].present for key in keys]
    assert [dropped[SampleKey(0, key.epoch, 1, key.batch)].present for key in keys] == kept
    assert [again[key].present for key in reversed(keys)] == kept[::-1]
    assert len(set(kept)) > 3, "epochs and batches differ"
    assert all(any(present) for present in kept)
    for key, present in zip(keys, kept, strict=True):
        for m in Modality:  # what is left looks as it does without dropout
            expected = whole[key].images.of(m) if present.of(m) else torch.zeros(3, *SIZE)
            assert torch.equal(dropped[key].images.of(m), expected)
    share = np.mean([dropped[SampleKey(0, epoch)].present for epoch in range(300)])
    assert share == pytest.approx(0.5 + 0.125 / 3, abs=0.05)  # all three go in 1 of 8, and one stays


def test_a_record_without_any_file_is_refused() -> None:
    with pytest.raises(ValueError, match="identity 3 has no image file"):
        ImageRecord(PerModality(None, None, None), person_id=3, camera_id=0)


def test_collate_stacks_in_order(records: list[ImageRecord]) -> None:
    dataset = MultiModalDataset(records, to_float, mask_transform=to_mask)
    batch = collate([dataset[i] for i in (3, 0, 2)])
    assert len(batch) == 3
    assert batch.images.map(lambda t: t[:, 0, 0, 0].tolist()) == ([30, 0, 20], [31, 1, 21], [32, 2, 22])
    assert {images.shape for images in batch.images} == {(3, 3, *SIZE)}
    assert batch.person_ids.tolist() == [1, 0, 1]
    assert batch.camera_ids.tolist() == [1, 0, 0]
    assert batch.scene_ids.tolist() == [3, 0, 2]
    assert batch.person_ids.dtype == batch.camera_ids.dtype == batch.scene_ids.dtype == torch.int64
    assert batch.names == ("RGB_3.png", "RGB_0.png", "RGB_2.png")
    assert batch.person_masks is not None
    torch.testing.assert_close(batch.person_masks[:, 5, 5], torch.tensor([0.6, 0.0, 0.4]))


def test_collate_without_masks(records: list[ImageRecord]) -> None:
    dataset = MultiModalDataset(records, add_noise)
    assert collate([dataset[0], dataset[1]]).person_masks is None


def test_keys_reach_the_data_set_through_a_loader(records: list[ImageRecord]) -> None:
    class Keys(torch.utils.data.Sampler[SampleKey]):
        def __iter__(self) -> Iterator[SampleKey]:
            return iter([SampleKey(2, epoch=7, draw=1), SampleKey(0, epoch=7)])

    dataset = MultiModalDataset(records, add_noise)
    (batch,) = DataLoader(dataset, batch_size=2, sampler=Keys(), collate_fn=collate)
    assert torch.equal(batch.images.ti[0], dataset[SampleKey(2, 7, 1)].images.ti)
    assert torch.equal(batch.images.ti[1], dataset[SampleKey(0, 7, 0)].images.ti)
