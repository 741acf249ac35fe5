from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import test_net as test_entry
import train_net as train_entry
from config import load_config
from conftest import ROOT, SMALL_MODEL, save_untrained
from datasets.build import make_eval_transform, read_splits
from datasets.dataset import UnreadableImageError
from errors import UserError
from inference import Predictor, Triple
from inference.predictor import triple_of
from miniatures import draw_miniature
from modeling.make_model import make_model
from structures import Modality


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """A run of one epoch, and the features that test_net.py has for it."""
    folder = tmp_path_factory.mktemp("run")
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick, "OUTPUT_DIR", str(folder)])
    weights = str(folder / "last.pth")
    test_entry.main(["--save_features", str(folder / "features.npz"), "TEST.WEIGHT", weights])
    return folder


@pytest.fixture
def predictor(run: Path) -> Predictor:
    return Predictor.load(run / "last.pth", batch_size=3)


@pytest.fixture(scope="module")
def triples(run: Path, mini_root: Path) -> list[Triple]:
    names = np.load(run / "features.npz")["names"]
    folder = mini_root / "RGBNT201" / "test"
    return [Triple(*(folder / kind / name for kind in ("RGB", "NI", "TI"))) for name in names]


@pytest.fixture(scope="module")
def expected(run: Path) -> Tensor:
    features = torch.from_numpy(np.load(run / "features.npz")["features_3"])
    return torch.nn.functional.normalize(features, dim=1)


def test_features_are_those_of_test_net(
    predictor: Predictor, triples: list[Triple], expected: Tensor
) -> None:
    features = predictor.embed(triples)
    assert features.shape == expected.shape
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)


def test_files_images_and_arrays_are_the_same(predictor: Predictor, triples: list[Triple]) -> None:
    opened = [Image.open(path).convert("RGB") for path in triples[0].images]  # type: ignore[arg-type]
    rgb, ni, ti = opened
    arrays = [np.asarray(image) for image in opened]
    paths = [str(path) for path in triples[0].images]
    blue_first = [array[..., ::-1].copy() for array in arrays]  # as OpenCV reads
    ways = (
        Triple(*(array[..., ::-1] for array in blue_first)),
        Triple(rgb, ni, ti),
        Triple(arrays[0], arrays[1], arrays[2]),
        Triple(paths[0], paths[1], paths[2]),
    )
    for way in ways:
        assert torch.equal(predictor.embed([way]), predictor.embed(triples[:1]))


def test_a_turned_image_is_upright_as_from_its_file(
    predictor: Predictor, triples: list[Triple], tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    with Image.open(triples[0].rgb) as image:  # type: ignore[arg-type]
        image.save(tmp_path / "turned.png", exif=exif)
    from_file = predictor.embed([Triple(rgb=tmp_path / "turned.png")])
    with Image.open(tmp_path / "turned.png") as image:
        assert torch.equal(predictor.embed([Triple(rgb=image)]), from_file)
    assert not torch.allclose(predictor.embed([Triple(rgb=triples[0].rgb)]), from_file)


def test_a_file_that_holds_a_whole_triple(tmp_path: Path) -> None:
    draw_miniature("RGBNT100", tmp_path)
    cfg = load_config(SMALL_MODEL, ["DATASETS.NAMES", "RGBNT100", "DATASETS.ROOT_DIR", str(tmp_path)])
    splits, protocol = read_splits(cfg, test_only=True)
    record = splits.query[0]
    images = triple_of(record).images
    pixels = np.concatenate([np.asarray(image) for image in images], axis=1)
    assert np.array_equal(pixels, np.asarray(Image.open(record.files[0])))
    assert (protocol, splits.train) == ("camera", ())


def test_grey_arrays_of_8_and_16_bits(predictor: Predictor) -> None:
    grey = np.linspace(0, 255, 64 * 32).reshape(64, 32).astype(np.uint8)
    features = predictor.embed([Triple(ti=grey), Triple(ti=grey.astype(np.uint16) * 257)])
    torch.testing.assert_close(features[0], features[1])


def test_a_missing_modality_is_as_in_evaluation(
    predictor: Predictor, triples: list[Triple], run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "features.npz"
    test_entry.main(["--save_features", str(file), "TEST.WEIGHT", str(run / "last.pth"), "TEST.MISS", "n"])
    expected = torch.nn.functional.normalize(torch.from_numpy(np.load(file)["features_3"]), dim=1)
    features = predictor.embed([Triple(rgb=triple.rgb, ti=triple.ti) for triple in triples])
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)


def test_images_that_the_model_does_not_use(
    triples: list[Triple], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model of two modalities refuses a triple that has the third alone, and ignores it beside others."""
    weights = save_untrained(tmp_path / "two.pth", modalities=(Modality.NI, Modality.TI))
    predictor = Predictor.load(weights, device="cpu")
    message = "a triple has only images of RGB, and the model uses NI, TI; give at least one of these"
    with pytest.raises(UserError, match=message):
        predictor.embed([Triple(ni=triples[0].ni), Triple(rgb=triples[0].rgb)], on_error="skip")
    with pytest.raises(UserError, match="a triple has no image, and the model uses NI, TI"):
        predictor.explain(Triple())
    caplog.clear()
    pairs = [Triple(ni=triple.ni, ti=triple.ti) for triple in triples[:3]]
    features = predictor.embed(pairs)
    assert features.shape == (3, predictor.dim)
    assert caplog.text == ""
    unread = [replace(pair, rgb=tmp_path / "absent.jpg") for pair in pairs]
    assert torch.equal(predictor.embed(unread), features)
    assert caplog.text.count("images of other modalities than NI, TI are left out") == 1


def test_an_unreadable_file_is_named_or_skipped(
    predictor: Predictor, triples: list[Triple], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    mixed = [triples[0], Triple(rgb=broken), *triples[1:4], Triple(rgb=tmp_path / "absent.jpg")]
    with pytest.raises(UserError, match=r"cannot read the RGB image .*broken\.jpg"):
        predictor.embed(mixed)
    with caplog.at_level(logging.WARNING):
        features = predictor.embed(mixed, on_error="skip")
    assert features.isnan().all(dim=1).tolist() == [False, True, False, False, False, True]
    torch.testing.assert_close(features[[0, 2, 3, 4]], predictor.embed(triples[:4]))
    assert "triple 1 is skipped" in caplog.text
    assert "triple 5 is skipped" in caplog.text
    parts = list(predictor.stream(iter(mixed), on_error="skip"))
    assert [part.indices for part in parts] == [(0, 2), (3, 4)]
    assert [list(part.unreadable) for part in parts] == [[1], [5]]
    # Nothing that can be read, and nothing at all, have as many rows as everything else.
    alone = predictor.embed(mixed[1:2], on_error="skip")
    assert alone.shape == (1, predictor.dim)
    assert alone.isnan().all()
    assert predictor.embed([]).shape == (0, predictor.dim)


def test_an_image_that_cannot_be_decoded_is_named_or_skipped(
    predictor: Predictor, triples: list[Triple], tmp_path: Path
) -> None:
    """Opened by the caller: truncated, closed, and of formats that are not read."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "short.png")
    (tmp_path / "short.png").write_bytes((tmp_path / "short.png").read_bytes()[:2000])
    closed = Image.open(triples[0].rgb)  # type: ignore[arg-type]
    closed.close()
    for image, message in (
        (Image.open(tmp_path / "short.png"), r"cannot read the TI image .*short\.png \(.*truncated"),
        (closed, "cannot read the TI image "),
        *((Image.new(mode, (8, 8)), f"in memory .*pixel format {mode} is") for mode in ("F", "HSV", "YCbCr")),
    ):
        with pytest.raises(UnreadableImageError, match=message):
            predictor.embed([Triple(ti=image)])
        features = predictor.embed([triples[0], Triple(ti=image)], on_error="skip")
        assert features.isnan().all(dim=1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Triple("a.jpg"), r"a list of triples, not a Triple; give \[triple\]"),
        (iter([Triple("a.jpg")]), "not a list_iterator; .*stream"),
        (["a.jpg"], r"a triple is a str; give Triple\(rgb="),
        ([("a.jpg", "b.jpg", None)], r"a triple is a tuple; give Triple\(rgb="),
        ([Triple(ni=5)], "the NI image is a int; give a file, a PIL image or an array"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_triple_is_refused(predictor: Predictor, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        predictor.embed(given)


def test_a_stream_reads_only_one_batch_in_advance(predictor: Predictor, triples: list[Triple]) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield triples[0]

    parts = predictor.stream(endless())  # type: ignore[arg-type]
    next(parts)
    assert taken == 6  # two batches of 3
    next(parts)
    assert taken == 9
    parts.close()  # type: ignore[attr-defined]


def test_threads_share_a_predictor(predictor: Predictor, triples: list[Triple], expected: Tensor) -> None:
    found: dict[int, Tensor] = {}

    def embed(number: int) -> None:
        found[number] = predictor.embed(triples[number : number + 4])

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, features in found.items():
        torch.testing.assert_close(features, expected[number : number + 4], atol=1e-6, rtol=0)
    assert len(found) == 4


def test_explanation(predictor: Predictor, triples: list[Triple]) -> None:
    explained = predictor.explain(Triple(rgb=triples[0].rgb, ti=triples[0].ti))
    assert explained.kept.rgb.shape == (64,)
    assert explained.scores.ti.shape == (16, 8)
    assert set(explained.sources.rgb) == {"learned", "own", "ni", "ti"}
    best = explained.scores.rgb.flatten().topk(64).indices
    assert set(best.tolist()) == set(explained.kept.rgb.tolist())
    picture = np.asarray(explained.draw())
    assert picture.shape == (128, 2 * 64, 3)  # NI is missing, and not shown
    image = (explained.images.rgb * 255).round().byte().permute(1, 2, 0).numpy()
    row, column = divmod(int(explained.kept.rgb[0]), 8)
    patch = slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)
    assert (picture[patch] == image[patch]).all()
    dropped = next(index for index in range(128) if index not in explained.kept.rgb.tolist())
    row, column = divmod(dropped, 8)
    patch = slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)
    assert picture[patch].max() <= 64


def test_mistakes_are_refused(predictor: Predictor, triples: list[Triple], run: Path) -> None:
    with pytest.raises(UserError, match="a triple has no image"):
        predictor.embed([Triple()])
    with pytest.raises(UserError, match=r"trained with 2 cameras, counted from 0, and camera 5 is not"):
        predictor.embed([Triple(rgb=triples[0].rgb, camera=5)])
    with pytest.raises(UserError, match=r"array for NI has shape \(4, 4\) and type float64"):
        predictor.embed([Triple(ni=np.zeros((4, 4)))])
    with pytest.raises(UserError, match=r"array for RGB has shape \(0, 64, 3\) and type uint8"):
        predictor.embed([Triple(np.zeros((0, 64, 3), np.uint8))])
    with pytest.raises(UserError, match=r"stream takes several triples, not one; give \[triple\]"):
        next(predictor.stream(triples[0]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="on_error is 'ignore'; choose from raise, skip"):
        predictor.embed(triples, on_error="ignore")
    with pytest.raises(UserError, match="there is no return pattern 4"):
        Predictor.load(run / "last.pth", pattern=4)
    with pytest.raises(UserError, match="there is no device 'tpu'; choose from auto, cpu, cuda and cuda:N"):
        Predictor.load(run / "last.pth", device="tpu")
    cfg = load_config(ROOT / "configs" / "Synthetic" / "Baseline.yml")
    whole = Predictor(make_model(cfg, 4, 2), make_eval_transform(cfg), device=torch.device("cpu"))
    with pytest.raises(UserError, match="keeps every patch"):
        whole.explain(triples[0])


def test_a_device_of_torch(run: Path) -> None:
    assert Predictor.load(run / "last.pth", device=torch.device("cpu")).device == torch.device("cpu")
    with pytest.raises(UserError, match="there is no device 'meta'"):
        Predictor.load(run / "last.pth", device=torch.device("meta"))


def test_from_anywhere_through_torch_hub(run: Path, triples: list[Triple], predictor: Predictor) -> None:
    found = torch.hub.load(str(ROOT), "predictor", str(run / "last.pth"), source="local", device="cpu")
    torch.testing.assert_close(found.embed(triples[:2]), predictor.embed(triples[:2]))
