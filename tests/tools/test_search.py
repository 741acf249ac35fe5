"""tools.search: a gallery from shards of tools.embed, and a query with image files."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conftest import save_untrained
from engine.files import save_arrays
from errors import UserError
from inference import Gallery, Predictor, Triple
from inference.gallery import Matches
from inference.origin import Origin, name_model
from reporting.extra import import_extra
from structures import Modality
from tools import search
from weight_file import hash_file

FEATURES = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)


def arrays_of(rows: slice) -> dict[str, np.ndarray]:
    index = np.arange(7)[rows]
    return {
        "features": FEATURES[rows],
        "ids": index // 2,
        "cameras": np.where(index == 6, -1, index % 3),
        "files": np.array([f"{row}.jpg" for row in index], dtype=np.str_),
        "index": index,
    }


def save_table(path: Path, arrays: dict[str, np.ndarray]) -> None:
    arrow = import_extra("pyarrow", "search")
    columns = {name: arrow.array(values) for name, values in arrays.items() if name != "features"}
    columns["features"] = arrow.FixedSizeListArray.from_arrays(arrow.array(arrays["features"].ravel()), 4)
    import_extra("pyarrow.parquet", "search").write_table(arrow.table(columns), path)


ORIGIN = Origin("best.pth", "abc", 3, {"TEST.NECK_FEAT": "before"}).as_dict()


def describe(folder: Path, *, format: str = "npz", finished: bool = True) -> None:
    description = {**ORIGIN, "dim": 4, "format": format, "finished": finished}
    (folder / "embedding.json").write_text(json.dumps(description))


@pytest.fixture(params=["npz", "parquet"])
def embeddings(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three shards; the last is empty, as if none of its images could be read."""
    folder = tmp_path / "embeddings"
    folder.mkdir()
    for shard, rows in enumerate((slice(0, 4), slice(4, 7), slice(7, 7))):
        path = folder / f"part-{shard:05d}.{request.param}"
        if request.param == "npz":
            save_arrays(path, arrays_of(rows))
        else:
            save_table(path, arrays_of(rows))
    describe(folder, format=request.param)
    return folder


def test_a_gallery_is_built_from_shards(embeddings: Path, tmp_path: Path) -> None:
    path = tmp_path / "people.gallery"
    search.main(["build", str(embeddings), str(path)])
    gallery = Gallery.load(path)
    assert len(gallery) == 7
    found = gallery.search(FEATURES, 1)
    assert found.rows[:, 0].tolist() == list(range(7))
    assert found.ids[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert found.cameras[:, 0].tolist() == [0, 1, 2, 0, 1, 2, -1]
    assert found.files[:, 0].tolist() == [f"{row}.jpg" for row in range(7)]
    with pytest.raises(
        UserError, match=r"features of the model abc-pattern-3-no-pca-settings-[0-9a-f]{8}, not of def;"
    ):
        Gallery.open(path, model="def")
    with pytest.raises(UserError, match="holds 7 entries; name another, or remove it"):
        search.main(["build", str(embeddings), str(path)])


@pytest.mark.parametrize("name", ["people.gallery", "people.db"])
@pytest.mark.parametrize("embeddings", ["npz"], indirect=True)
def test_a_build_that_was_interrupted_is_not_searched(name: str, embeddings: Path, tmp_path: Path) -> None:
    shard = embeddings / "part-00001.npz"
    shard.write_bytes(shard.read_bytes()[:200])
    command = ["build", str(embeddings), str(tmp_path / name)]
    with pytest.raises(UserError, match=r"part-00001\.npz cannot be read"):
        search.main(command)
    save_arrays(shard, arrays_of(slice(4, 7)))
    with pytest.raises(UserError, match=f"{name} is not complete, because filling it was interrupted"):
        search.main(command)


@pytest.mark.parametrize("embeddings", ["npz"], indirect=True)
def test_embeddings_that_cannot_be_used(embeddings: Path, tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            search.main(["build", str(embeddings), str(tmp_path / "people.gallery")])

    shard = embeddings / "part-00001.npz"
    shard.write_bytes(shard.read_bytes()[:200])
    refused(r"part-00001\.npz cannot be read")
    (tmp_path / "people.gallery").unlink()
    describe(embeddings, finished=False)
    refused("are not finished")
    (embeddings / "embedding.json").write_text("[]")
    refused(r"embedding\.json was not written by tools\.embed")
    describe(embeddings)
    for path in embeddings.glob("part-*"):
        path.unlink()
    refused(r"holds no part-\*\.npz")
    assert not (tmp_path / "people.gallery").exists()


def test_a_folder_of_images_is_not_one_of_embeddings(tmp_path: Path) -> None:
    (tmp_path / "RGB").mkdir()
    (tmp_path / "a.jpg").touch()
    for source in (tmp_path, tmp_path / "nowhere", tmp_path / "a.jpg"):
        with pytest.raises(UserError) as caught:
            search.main(["build", str(source), str(tmp_path / "people.gallery")])
        assert str(caught.value) == (
            f"{source} is not a folder that tools.embed has written: it has no embedding.json; run "
            "python -m tools.embed FOLDER|LIST.csv OUT --weights FILE, and name OUT"
        )


class Embeds:
    """Stands for a predictor: the descriptor is the number in the name of the RGB file."""

    def __init__(
        self,
        weights: str,
        overrides: Sequence[str] = (),
        *,
        pattern: int,
        pca: Path | None = None,
        config_file: str | None = None,
    ) -> None:
        assert config_file in (None, "settings.yml")
        digest, settings = hash_file(Path(weights)), dict(zip(overrides[::2], overrides[1::2], strict=True))
        self.modalities = tuple(Modality) if weights.endswith("three.pth") else (Modality.RGB,)
        self.origin = Origin(weights, digest, pattern, settings, "" if pca is None else hash_file(pca))

    def embed(self, triples: list[Triple]) -> np.ndarray:
        return np.stack([FEATURES[int(Path(str(triple.rgb)).stem)] for triple in triples])


def test_a_query_prints_its_nearest_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Predictor, "load", Embeds)
    level = logging.getLogger("modeling").level
    weights, path = tmp_path / "best.pth", tmp_path / "people.gallery"
    weights.write_bytes(b"weights")
    command = ["query", str(path), "--weights", str(weights), "--rgb", "6.jpg"]
    with pytest.raises(UserError, match=r"there is no gallery .*people\.gallery; make it with tools\.search"):
        search.main(command)
    with Gallery.open(path, model=name_model(Embeds(str(weights), pattern=3).origin.as_dict())) as gallery:
        arrays = arrays_of(slice(0, 7))
        gallery.add(FEATURES, ids=arrays["ids"], cameras=arrays["cameras"], files=arrays["files"].tolist())
        cosine = gallery.search(FEATURES[6], 1, camera=1).similarities[0, 0]
    search.main([*command, "-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "cosine", "id", "camera", "file"]
    assert lines[1].split() == ["1", "1.0000", "3", "–", "6.jpg"]
    assert len(lines) == 4
    search.main([*command, "--camera", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["1", "1"], "there are two of camera 1"
    assert lines[1].split()[1] == f"{cosine:.4f}"
    search.main([*command, "--camera", "7"])
    assert "none that --camera and --without allow" in "".join(capsys.readouterr())
    with pytest.raises(UserError, match=r"has features of the model .*-pattern-3-.*, not of .*-pattern-1-"):
        search.main([*command, "--pattern", "1"])
    with pytest.raises(UserError, match="has features of the model"):
        search.main([*command, "TEST.NECK_FEAT", "after"])
    with pytest.raises(SystemExit):
        search.main([*command, "--modle", "x"])
    with pytest.raises(SystemExit):
        search.main(["build", str(tmp_path), str(path), "TEST.NECK_FEAT", "after"])
    weights.write_bytes(b"others")
    with pytest.raises(UserError, match="has features of the model"):
        search.main(command)
    logging.getLogger("modeling").setLevel(level)


def test_a_query_of_some_modalities_wants_a_gallery_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Predictor, "load", Embeds)
    weights, path = tmp_path / "three.pth", tmp_path / "people.gallery"
    weights.write_bytes(b"weights")
    origin = Embeds(str(weights), pattern=3).origin.as_dict()
    command = ["query", str(path), "--weights", str(weights), "--rgb", "6.jpg"]
    for modalities, warned in (("RGB", False), ("", True)):
        with Gallery.open(path, model=name_model({**origin, "modalities": modalities})) as gallery:
            gallery.add(FEATURES)
        search.main(command)
        shown = "".join(capsys.readouterr())
        assert ("the query has RGB alone, and finds little among triples that have more" in shown) == warned
        assert ("made with tools.embed --modalities RGB" in shown) == warned
        if warned:
            search.main([*command, "--ni", "6.jpg", "--ti", "6.jpg"])
            assert "the query has" not in "".join(capsys.readouterr())
        path.unlink()
    with Gallery.open(path, model=name_model({**origin, "modalities": "TI"})) as gallery:
        gallery.add(FEATURES)
    with pytest.raises(UserError, match=r"has features of the model .*-TI, not of"):
        search.main(command)


def test_a_query_without_an_image_that_the_model_uses(tmp_path: Path) -> None:
    weights = save_untrained(tmp_path / "two.pth", modalities=(Modality.RGB, Modality.TI))
    Gallery.open(tmp_path / "people.gallery").close()
    with pytest.raises(UserError, match="a triple has only images of NI, and the model uses RGB, TI"):
        search.main(["query", str(tmp_path / "people.gallery"), "--weights", str(weights), "--ni", "a.jpg"])


def test_a_model_is_named_by_all_that_changes_its_features() -> None:
    changes = {"sha256": "abd", "pattern": 1, "pca": "12", "settings": {"TEST.NECK_FEAT": "after"}}
    names = {name_model({**ORIGIN, key: value}) for key, value in changes.items()}
    assert len(names | {name_model(ORIGIN)}) == 5
    assert name_model({**ORIGIN, "weights": "copy.pth"}) == name_model(ORIGIN), "the same file elsewhere"


def test_the_table_leaves_out_what_was_not_found() -> None:
    unknown = np.array([[5, -1]])
    similarities = np.array([[0.5, -np.inf]], dtype=np.float32)
    matches = Matches(similarities, unknown, unknown, unknown, np.array([["a", ""]], dtype=object))
    assert len(list(search.table_of(matches))) == 2
