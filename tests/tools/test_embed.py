"""The command: what it writes, that it continues, and what it refuses."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import save_untrained
from errors import UserError
from inference import Predictor, Triple
from inference.lists import open_list
from inference.shards import ShardFolder, read_description
from structures import Modality
from tools import embed

COUNT = 12  # triples in the list
BROKEN = 5  # the row of one that cannot be read


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, mini_root: Path) -> Path:
    settings = ["DATASETS.NAMES", "RGBNT201", "DATASETS.ROOT_DIR", str(mini_root)]
    return save_untrained(tmp_path_factory.mktemp("weights") / "best.pth", *settings)


@pytest.fixture(scope="module")
def images(mini_root: Path) -> list[tuple[Path, Path, Path]]:
    folder = mini_root / "RGBNT201" / "test"
    names = sorted(path.name for path in (folder / "RGB").iterdir())[:COUNT]
    return [(folder / "RGB" / name, folder / "NI" / name, folder / "TI" / name) for name in names]


@pytest.fixture
def source(tmp_path: Path, images: list[tuple[Path, Path, Path]]) -> Path:
    """A list with a missing modality in row 1 and a broken file in row 5."""
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    rows = [[*map(str, row), str(number // 3), str(number % 2)] for number, row in enumerate(images)]
    rows[1][1] = rows[1][3] = ""
    rows[BROKEN][0] = "broken.jpg"
    (tmp_path / "list.csv").write_text("\n".join(["rgb,ni,ti,id,camera", *map(",".join, rows)]))
    return tmp_path / "list.csv"


@pytest.fixture(autouse=True)
def _keep_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up its own log, which would take the place of pytest's."""
    monkeypatch.setattr("tools.embed.setup_log", lambda: logging.getLogger().setLevel(logging.INFO))


@pytest.fixture
def run(source: Path, weights: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(*options: str, out: str = "out", list_: Path = source, file: Path = weights) -> Path:
        fixed = ["--shard_size", "4", "--batch_size", "3", "--weights", str(file)]
        embed.main([str(list_), str(tmp_path / out), *fixed, *options])
        return tmp_path / out

    return run


def read(folder: Path) -> dict[str, np.ndarray]:
    parts = [np.load(path) for path in sorted(folder.glob("part-*.npz"))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0].files}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written(
    run: Callable[..., Path],
    images: list[tuple[Path, Path, Path]],
    weights: Path,
    source: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = run()
    assert sorted(content(out)) == [
        ".lock",
        "embedding.json",
        *(f"part-0000{shard}.npz" for shard in range(3)),
        "unreadable.txt",
    ]
    arrays = read(out)
    kept = [row for row in range(COUNT) if row != BROKEN]
    assert {name: array.dtype.kind for name, array in arrays.items()} == {
        "features": "f",
        "ids": "i",
        "cameras": "i",
        "files": "U",
        "index": "i",
    }
    assert arrays["features"].dtype == np.float32
    assert arrays["index"].tolist() == kept
    assert arrays["ids"].tolist() == [-1 if row == 1 else row // 3 for row in kept]
    assert arrays["cameras"].tolist() == [row % 2 for row in kept]
    assert arrays["files"].tolist() == [str(images[row][0]) for row in kept]
    # The descriptors are those of the predictor.
    triples = [Triple(*images[row]) for row in kept]
    triples[1] = Triple(rgb=images[1][0], ti=images[1][2])
    expected = Predictor.load(weights).embed(triples)
    torch.testing.assert_close(torch.from_numpy(arrays["features"]), expected, atol=1e-6, rtol=0)
    # What was skipped is named by its row.
    (line,) = (out / "unreadable.txt").read_text().splitlines()
    assert line.startswith(f"{BROKEN}\tcannot read the RGB image {source.parent / 'broken.jpg'}")
    assert f"triple {BROKEN} is skipped" in caplog.text
    assert "1 of 12 triples were skipped" in caplog.text
    described = json.loads((out / "embedding.json").read_text())
    assert described["finished"] is True
    assert {name: described[name] for name in ("dim", "pattern", "triples", "shard_size", "skipped")} == {
        "dim": 384,
        "pattern": 3,
        "triples": COUNT,
        "shard_size": 4,
        "skipped": 1,
    }
    assert described["weights"] == str(weights)
    assert len(described["sha256"]) == 64


def test_a_killed_command_continues_with_equal_output(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(run(out="whole"))
    save, most = ShardFolder.save, 2
    saved: list[int] = []

    def save_some(folder: ShardFolder, shard: int, arrays: Any, skipped: Any) -> None:
        if len(saved) == most:
            raise KeyboardInterrupt
        saved.append(shard)
        save(folder, shard, arrays, skipped)

    monkeypatch.setattr(ShardFolder, "save", save_some)
    with pytest.raises(KeyboardInterrupt):
        run()
    saved.clear()
    folder = run()
    assert saved == [2]
    assert content(folder) == whole
    saved.clear()
    run()
    assert saved == []
    assert content(folder) == whole


def test_what_a_killed_process_leaves_is_removed(run: Callable[..., Path], tmp_path: Path) -> None:
    half = tmp_path / "out" / ".part-00001.npz.123-ab12cd34.tmp"
    half.parent.mkdir()
    half.write_bytes(b"half")
    run()
    assert not half.exists()


def test_processes_share_the_shards(run: Callable[..., Path], source: Path, weights: Path) -> None:
    """The shards of two processes, made by each alone, are those of one process."""
    one = run(out="one")
    predictor, listed = Predictor.load(weights, batch_size=3), open_list(source)
    for rank, own in ((1, [1]), (0, [0, 2])):
        folder = ShardFolder(one.parent / "two", "npz", 3)
        folder.path.mkdir(exist_ok=True)
        embed.embed_shards(predictor, listed, folder, own, 4, embed.World(rank, 2))
    for path in one.glob("part-*.npz"):
        assert path.read_bytes() == (one.parent / "two" / path.name).read_bytes()


def test_other_options_are_refused(
    run: Callable[..., Path], tmp_path: Path, source: Path, weights: Path
) -> None:
    out = run()
    other = tmp_path / "other.pth"
    checkpoint = torch.load(weights, weights_only=True)
    next(iter(checkpoint["model"].values())).add_(1)
    torch.save(checkpoint, other)

    def refused(message: str, *options: str, **changed: Path) -> None:
        before = content(out)
        with pytest.raises(UserError, match=message):
            run(*options, **changed)
        assert content(out) == before

    refused(r"out was started with shard_size 4, not 5; repeat the command as it was", "--shard_size", "5")
    refused(r"started with pattern 3, not 1", "--pattern", "1")
    refused(r"started with format 'npz', not 'parquet'", "--format", "parquet")
    refused(r"started with sha256 \w+ \(.*best\.pth\), not \w+ \(.*other\.pth\)", file=other)
    refused(r"settings of the model that differ", "TEST.NECK_FEAT", "after")
    refused(r"was started without --dim", "--dim", "8")
    source.write_text(source.read_text() + "\n")
    refused(r"started with list_sha256")
    (out / "embedding.json").write_text("{}")
    refused(r"embedding\.json was not written by tools\.embed")
    (out / "embedding.json").unlink()
    refused(r"has shards and no embedding\.json; name another folder")


def test_a_shard_without_a_readable_triple(run: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"")
    (tmp_path / "bad.csv").write_text("rgb,ni,ti\n" + "broken.jpg,,\n" * 5)
    out = run(list_=tmp_path / "bad.csv")
    assert read(out)["features"].shape == (0, 384)
    assert len((out / "unreadable.txt").read_text().splitlines()) == 5


def test_parquet_holds_the_same(run: Callable[..., Path]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrays, out = read(run()), run("--format", "parquet", out="parquet")
    tables = [parquet.read_table(path).to_pydict() for path in sorted(out.glob("part-*.parquet"))]
    for name, expected in arrays.items():
        found = [value for table in tables for value in table[name]]
        assert np.array_equal(np.array(found, expected.dtype), expected)
    short = run("--dim", "4", "--fit_on", str(out), "--format", "parquet", out="short")
    assert json.loads((short / "embedding.json").read_text())["dim"] == 4


def test_parquet_needs_the_extra(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r'Parquet files need pyarrow.*pip install -e "\.\[search\]"'):
        run("--format", "parquet")


def test_short_descriptors(
    run: Callable[..., Path],
    images: list[tuple[Path, Path, Path]],
    weights: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = run("--dim", "8")
    assert "learning a PCA on the 32 training triples" in caplog.text
    arrays = read(out)
    assert arrays["features"].shape == (COUNT - 1, 8)
    np.testing.assert_allclose(np.linalg.norm(arrays["features"], axis=1), 1, rtol=1e-5)
    # The predictor uses the same file.
    predictor = Predictor.load(weights, pca=out / "pca.npz")
    assert predictor.dim == 8
    expected = predictor.embed([Triple(*images[0])])
    torch.testing.assert_close(torch.from_numpy(arrays["features"][:1]), expected, atol=1e-4, rtol=0)
    # So does another list, with fewer numbers; the same command does not learn again.
    again = run("--pca", str(out / "pca.npz"), "--dim", "3", out="again")
    assert np.load(again / "pca.npz")["components"].shape == (3, 384)
    caplog.clear()
    run("--dim", "8")
    assert "learning" not in caplog.text
    with pytest.raises(UserError, match="has 8 numbers, not --dim 5"):
        run("--dim", "5")
    with pytest.raises(UserError, match=r"pca\.npz was made with return pattern 3, not 1"):
        run("--pca", str(out / "pca.npz"), "--pattern", "1", out="third")
    with pytest.raises(UserError, match=r"embedding\.json was made with the PCA .*, not no PCA"):
        run("--dim", "4", "--fit_on", str(out), out="fourth")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard_size", "0"], "--shard_size must be 1 or more, not 0"),
        (["--dim", "0"], "--dim must be 1 or more, not 0"),
        (["--dim", "385"], "--dim is 385, but descriptors of this model have 384 numbers; choose fewer"),
        (["--fit_on", "x"], "--fit_on learns a new PCA; add --dim N"),
        (["--whiten", "1"], "--whiten shapes a new PCA; add --dim N"),
        (["--dim", "4", "--fit_on", "x"], r"x is not a folder that tools\.embed has written"),
        (
            ["--dim", "4", "DATASETS.NAMES", "Synthetic", "DATASETS.ROOT_DIR", "nowhere"],
            r"training split, but there is no folder .*nowhere/Synthetic.*; --fit_on learns it on",
        ),
        (["--dim", "4", "DATASETS.ROOT_DIR", "/nowhere"], "there is no folder /nowhere"),
        (["--pattern", "5"], "there is no return pattern 5"),
    ],
)
def test_mistakes(run: Callable[..., Path], options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*options)


def test_a_triple_without_an_image_that_the_model_uses(
    run: Callable[..., Path], images: list[tuple[Path, Path, Path]], tmp_path: Path
) -> None:
    """It is named before anything is written, and in one sentence."""
    two = save_untrained(tmp_path / "two.pth", modalities=(Modality.RGB, Modality.TI))
    list_ = tmp_path / "two.csv"
    list_.write_text(f"rgb,ni,ti\n{images[0][0]},,\n,{images[1][1]},\n")
    with pytest.raises(
        UserError, match=r"the triple of .*jpg has only images of NI, and the model uses RGB, TI"
    ):
        run(list_=list_, file=two)
    assert not (tmp_path / "out").exists()


def test_some_modalities_alone(run: Callable[..., Path], source: Path, tmp_path: Path) -> None:
    """As a list without the others; the name of the model in a gallery says so."""
    alone = run("--modalities", "rgb", out="alone")
    list_ = tmp_path / "rgb.csv"
    rows = [line.split(",")[0] for line in source.read_text().splitlines()[1:]]
    list_.write_text("\n".join(["rgb,ni,ti", *(f"{rgb},," for rgb in rows)]))
    features = [read(folder)["features"] for folder in (alone, run(out="listed", list_=list_), run())]
    assert np.array_equal(features[0], features[1])
    assert not np.allclose(features[0], features[2], atol=1e-3)
    found = [read_description(tmp_path / name)["modalities"] for name in ("alone", "listed", "out")]
    assert found == ["RGB", "RGB", ""]
    with pytest.raises(SystemExit):
        run("--modalities", "RGB+IR")
    two = save_untrained(tmp_path / "two.pth", modalities=(Modality.RGB, Modality.TI))
    with pytest.raises(UserError, match=r"--modalities RGB\+NI: the model uses RGB\+TI alone"):
        run("--modalities", "RGB+NI", out="third", file=two)


def test_a_source_that_is_not_there_and_a_locked_folder(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder or CSV file nowhere"):
        run(list_=Path("nowhere"))
    lock = ShardFolder(tmp_path / "out", "npz", 1).open()
    with pytest.raises(UserError, match="another process writes to"):
        run()
    lock.close()
