"""The gallery, in memory, in a file (FAISS) and in Milvus Lite: the same calls, the same results."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ROOT
from errors import UserError
from inference import Gallery, Matches
from inference.gallery import MOST_CANDIDATES, SPARE
from inference.gallery_faiss import FaissEngine
from inference.gallery_milvus import MODEL, MilvusEngine

PEOPLE, VIEWS, CAMERAS, DIM = 60, 10, 5, 16
ENGINES = ("memory", "file", "milvus")

OpenGallery = Callable[[str], Gallery]


def draw(
    people: int = PEOPLE, dim: int = DIM, noise: float = 1.2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features around the centres of identities, identities, and cameras."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(people), VIEWS)
    features = rng.standard_normal((people, dim))[ids] + noise * rng.standard_normal((len(ids), dim))
    return features.astype(np.float32), ids, np.tile(np.arange(VIEWS) % CAMERAS, people)


FEATURES, IDS, CAMERA_IDS = draw()
FILES = [f"é {row}.jpg" for row in range(len(IDS))]


def fill(gallery: Gallery) -> Gallery:
    half = len(FEATURES) // 2
    for part in (slice(0, half), slice(half, None)):
        gallery.add(FEATURES[part], ids=IDS[part], cameras=CAMERA_IDS[part], files=FILES[part])
    return gallery


@pytest.fixture
def open_gallery(tmp_path: Path) -> Iterator[OpenGallery]:
    opened: list[Gallery] = []

    def open_(engine: str) -> Gallery:
        names = {"file": "people.gallery", "milvus": "people.db"}
        opened.append(Gallery() if engine == "memory" else Gallery.open(tmp_path / names[engine]))
        return opened[-1]

    yield open_
    for gallery in opened:
        gallery.close()


def assert_equal(first: Matches, second: Matches) -> None:
    for name in ("similarities", "rows", "ids", "cameras", "files"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def nearest_by_sorting(queries: np.ndarray, allowed: np.ndarray, k: int) -> np.ndarray:
    """The plain way: all cosines in double precision, sorted; -1 where there are no more."""
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, FEATURES)]
    cosines = np.where(allowed, units[0].astype(float) @ units[1].astype(float).T, -np.inf)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(cosines, order, 1) == -np.inf, -1, order)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gallery_worked_by_hand(engine: str, open_gallery: OpenGallery) -> None:
    gallery = open_gallery(engine)
    assert len(gallery) == 0
    assert gallery.search([1.0, 0.0], 2).rows.tolist() == [[-1, -1]]
    rows = gallery.add(
        torch.tensor([[2.0, 0.0], [0.0, 3.0], [3.0, 4.0]]),
        ids=[7, 8, 9],
        cameras=[0, 1, 0],
        files=["a", "b", "c"],
    )
    assert rows.tolist() == [0, 1, 2]
    found = gallery.search([[5.0, 0.0], [0.0, 1.0]], 2)
    assert found.similarities.tolist() == [[1.0, pytest.approx(0.6)], [1.0, pytest.approx(0.8)]]
    assert found.rows.tolist() == [[0, 2], [1, 2]]
    assert found.ids.tolist() == [[7, 9], [8, 9]]
    assert found.cameras.tolist() == [[0, 0], [1, 0]]
    assert found.files.tolist() == [["a", "c"], ["b", "c"]]
    few = gallery.search([1.0, 0.0], 4, camera=1)
    assert few.rows.tolist() == [[1, -1, -1, -1]]
    assert few.similarities[0, 1:].tolist() == [-np.inf] * 3
    assert few.files.tolist() == [["b", "", "", ""]]
    assert gallery.search([1.0, 0.0], 2, camera=5).rows.tolist() == [[-1, -1]]
    assert gallery.remove(rows=rows) == 3
    assert gallery.search([1.0, 0.0], 2).rows.tolist() == [[-1, -1]]


@pytest.mark.parametrize("engine", ["memory", "milvus"])
def test_equal_entries_are_in_the_order_of_their_rows(engine: str, open_gallery: OpenGallery) -> None:
    """More of them than a first look brings: the k-th is tied with hundreds."""
    rng = np.random.default_rng(1)
    features = np.repeat(rng.standard_normal((3, 64)), 200, axis=0)[rng.permutation(600)]
    gallery = open_gallery(engine)
    gallery.add(features)
    expected = np.flatnonzero((features == features[5]).all(axis=1))[:30]
    assert gallery.search(features[5], 30).rows[0].tolist() == expected.tolist()


def test_1000_queries_have_identical_results_in_faiss_and_milvus(open_gallery: OpenGallery) -> None:
    rng = np.random.default_rng(2)
    queries = FEATURES[rng.integers(0, len(FEATURES), 1000)] + 0.5 * rng.standard_normal((1000, DIM))
    results = [fill(open_gallery(engine)).search(queries, 10) for engine in ENGINES]
    everything = np.ones((1000, len(FEATURES)), dtype=bool)
    np.testing.assert_array_equal(results[0].rows, nearest_by_sorting(queries, everything, 10))
    assert_equal(results[0], results[1])
    assert_equal(results[0], results[2])


@pytest.mark.parametrize("engine", ["memory", "milvus"])
def test_cameras_that_may_be_found(engine: str, open_gallery: OpenGallery) -> None:
    gallery = fill(open_gallery(engine))
    queries, own_ids = FEATURES[::60] + 0.1, IDS[::60]
    own_cameras = np.array([0, 1, 2, 3, 4, 0, 1, 2, -1, -1])
    same_camera = own_cameras[:, None] == CAMERA_IDS
    for allowed, options in (
        (np.isin(CAMERA_IDS, [1, 3]), {"camera": [1, 3]}),
        (CAMERA_IDS == 2, {"camera": 2}),
        (CAMERA_IDS != 2, {"without": 2}),
        (np.isin(CAMERA_IDS, [1]), {"camera": {1, 3}, "without": np.array([3])}),
        (~same_camera, {"query_cameras": own_cameras}),
        (~same_camera & (CAMERA_IDS < 4), {"query_cameras": own_cameras, "without": [4]}),
        (~(same_camera & (own_ids[:, None] == IDS)), {"query_cameras": own_cameras, "query_ids": own_ids}),
    ):
        shown = np.broadcast_to(allowed, (len(queries), len(FEATURES)))
        found = gallery.search(queries, 130, **options)
        np.testing.assert_array_equal(
            found.rows, nearest_by_sorting(queries, shown, 130), err_msg=str(options)
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_removed_entries_are_not_found(engine: str, open_gallery: OpenGallery) -> None:
    gallery = fill(open_gallery(engine))
    assert gallery.remove(rows=[0, 1, 599, 600, 10**6]) == 3
    assert gallery.remove(rows=[0]) == 0
    assert gallery.remove(ids=[5, 6, 1000]) == 2 * VIEWS
    assert len(gallery) == len(FEATURES) - 3 - 2 * VIEWS
    gone = np.isin(IDS, [5, 6])
    gone[[0, 1, 599]] = True
    found = gallery.search(FEATURES[:70:10], 20)
    expected = nearest_by_sorting(FEATURES[:70:10], np.broadcast_to(~gone, (7, len(FEATURES))), 20)
    np.testing.assert_array_equal(found.rows, expected)
    assert gallery.add(FEATURES[:1]).tolist() == [600]
    assert gallery.search(FEATURES[0], 1).rows.tolist() == [[600]]


@pytest.mark.parametrize("engine", ["file", "milvus"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_reopened_gallery_is_the_same(engine: str, saved: bool, open_gallery: OpenGallery) -> None:
    gallery = fill(open_gallery(engine))
    gallery.remove(ids=[3])
    if saved:
        gallery.save()
    gallery.remove(rows=[7])
    gallery.add(FEATURES[:2] + 1, files=["new", "newer"])
    before = gallery.search(FEATURES[:20], 12)
    gallery.close()
    again = open_gallery(engine)
    assert len(again) == len(FEATURES) - VIEWS - 1 + 2
    assert_equal(again.search(FEATURES[:20], 12), before)
    assert again.add(FEATURES[:1]).tolist() == [602]


def test_a_gallery_of_shortened_descriptors_asks_for_their_pca(tmp_path: Path) -> None:
    path = tmp_path / "people.gallery"
    Gallery.open(path, model="abc-pca-1234").close()
    with pytest.raises(UserError, match=r"not of abc-no-pca; give the PCA that shortened them, with --pca"):
        Gallery.open(path, model="abc-no-pca")
    with pytest.raises(UserError, match=r"not of abc-pca-5678; take that model, or another gallery"):
        Gallery.open(path, model="abc-pca-5678")


@pytest.mark.parametrize("name", ["people.gallery", "people.db"])
def test_a_reopened_gallery_remembers_what_was_removed(name: str, tmp_path: Path) -> None:
    """The rows of removed entries stay theirs, and an emptied gallery is that of its model, and searched."""
    path = tmp_path / name
    with Gallery.open(path, model="abc") as gallery:
        gallery.add(FEATURES[:3])
        assert gallery.remove(rows=[2]) == 1
    with Gallery.open(path) as gallery:
        assert gallery.add(FEATURES[:1]).tolist() == [3]
        assert gallery.remove(rows=range(4)) == 3
    with pytest.raises(UserError, match="features of the model abc, not of def;"):
        Gallery.open(path, model="def")
    with Gallery.open(path, model="abc") as gallery:
        assert gallery.search(FEATURES[0], 2).rows.tolist() == [[-1, -1]]
        assert gallery.add(FEATURES[:1]).tolist() == [4]
        assert gallery.search(FEATURES[0], 2).rows.tolist() == [[4, -1]]


def test_a_milvus_collection_of_an_earlier_version(tmp_path: Path) -> None:
    """Without properties, its entries name their model; it gets them with the next removal."""
    path = tmp_path / "people.db"
    with Gallery.open(path, model="abc") as gallery:
        gallery.add(FEATURES[:3])
        assert isinstance(gallery.engine, MilvusEngine)
        gallery.engine._client.drop_collection_properties("gallery", [MODEL])
    with pytest.raises(UserError, match="features of the model abc, not of def;"):
        Gallery.open(path, model="def")
    with Gallery.open(path) as gallery:
        gallery.remove(rows=range(3))
    with pytest.raises(UserError, match="features of the model abc, not of def;"):
        Gallery.open(path, model="def")


def test_a_saved_gallery_is_loaded_as_it_was(tmp_path: Path) -> None:
    gallery = fill(Gallery())
    gallery.remove(rows=[4, 599])
    path = tmp_path / "people.gallery"
    gallery.save(path)
    loaded = Gallery.load(path)
    assert_equal(loaded.search(FEATURES[:20], 12), gallery.search(FEATURES[:20], 12))
    for change in (
        lambda: loaded.add(FEATURES[:1]),
        lambda: loaded.remove(rows=[1]),
        lambda: loaded.save(path),
    ):
        with pytest.raises(UserError, match=r"was loaded to be searched; use Gallery\.open to change it"):
            change()
    loaded.save(tmp_path / "copy.gallery")
    with Gallery.open(tmp_path / "copy.gallery") as copy:
        assert copy.add(FEATURES[:1]).tolist() == [600], "the row of a removed entry is not used again"
        assert len(copy) == len(loaded) + 1 == len(Gallery.load(path)) + 1


def test_what_another_process_removes_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "people.gallery"
    fill(Gallery()).save(path)
    loaded = Gallery.load(path)
    with Gallery.open(path) as gallery:
        gallery.remove(rows=[0])
    assert loaded.search(FEATURES[0], 1).rows[0, 0] not in (0, -1)


@pytest.mark.parametrize("name", ["people.gallery", "people.db"])
def test_a_gallery_that_was_not_filled_to_the_end_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    def fail_halfway(gallery: Gallery) -> None:
        with gallery.filling():
            gallery.add(FEATURES)
            gallery.add(FEATURES[:, :3])

    with Gallery.open(path) as gallery, pytest.raises(UserError, match="have 3 numbers"):
        fail_halfway(gallery)
    refused = f"{name} is not complete, because filling it was interrupted"
    with pytest.raises(UserError, match=refused):
        Gallery.open(path)
    if not name.endswith(".db"):
        with pytest.raises(UserError, match=refused):
            Gallery.load(path)
    with Gallery.open(tmp_path / f"other-{name}") as gallery, gallery.filling():
        gallery.add(FEATURES)
    with Gallery.open(tmp_path / f"other-{name}") as gallery:
        assert len(gallery) == len(FEATURES)


WRITER = """
import sys, numpy as np
from inference import Gallery
gallery = Gallery.open(sys.argv[1])
features = np.random.default_rng(0).standard_normal((300, 32))
while True:
    rows = gallery.add(features, ids=np.arange(300), files=[f"{row}.jpg" for row in range(300)])
    print(rows[-1] + 1, flush=True)
"""


@pytest.mark.parametrize(("name", "acknowledged"), [("people.gallery", 12), ("people.db", 4)])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    name: str, acknowledged: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    try:
        lines = [writer.stdout.readline() for _ in range(acknowledged)]
    finally:
        writer.send_signal(signal.SIGKILL)  # in the middle of the next add
    lines += writer.stdout.read().split()
    assert writer.wait(20) == -signal.SIGKILL
    durable = int(lines[-1])
    if name.endswith(".gallery"):
        assert len(Gallery.load(path)) >= durable
    with Gallery.open(path) as gallery:
        features = np.random.default_rng(0).standard_normal((300, 32))
        assert len(gallery) >= durable
        found = gallery.search(features[[0, 299]], durable // 300)
        assert found.rows[:, : durable // 300].tolist() == [
            [copy * 300 + row for copy in range(durable // 300)] for row in (0, 299)
        ]
        assert set(found.files[1]) == {"299.jpg"}
        assert gallery.add(features[:1]).tolist() == [len(gallery) - 1]


@pytest.mark.parametrize("size", [50, 70_000, -70_000])
def test_a_file_that_ends_early_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "people.gallery"
    fill(Gallery()).save(path)
    content = path.read_bytes()[:size]
    path.write_bytes(content)
    for read in (Gallery.load, Gallery.open):
        with pytest.raises(UserError, match=r"people\.gallery (cannot be read or written|is not a gallery)"):
            read(path)
    assert path.read_bytes() == content


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "empty").touch()
    (tmp_path / "old.db").write_text("SQLite format 3")
    gallery = fill(Gallery())
    for call, message in (
        (lambda: Gallery.load(tmp_path / "none"), "cannot be read: there is no such file"),
        (lambda: Gallery.load(tmp_path / "notes.txt"), "is not a gallery"),
        (lambda: Gallery.open(tmp_path / "notes.txt"), "is not a gallery"),
        (lambda: Gallery.load(tmp_path / "empty"), "is not a gallery"),
        (lambda: Gallery.open(tmp_path / "none" / "x"), "there is no folder"),
        (lambda: Gallery.open(tmp_path / "none" / "x.db"), "there is no folder"),
        (lambda: Gallery.open(tmp_path / "old.db"), "is not a database of Milvus Lite 3"),
        (lambda: Gallery.load(tmp_path / "x.db"), "use Gallery.open"),
        (lambda: gallery.save(tmp_path / "notes.txt"), "exists and is not a gallery"),
        (lambda: gallery.save(), "has no file of its own; give save a path"),
        (lambda: Gallery.open("http://127.0.0.1:9"), "http://127.0.0.1:9 cannot be opened: "),
    ):
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "notes.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["people.gallery", "people.db"])
def test_a_gallery_is_opened_once_and_for_one_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with Gallery.open(path, model="abc") as gallery:
        gallery.add(FEATURES)
        with pytest.raises(UserError, match=f"{name} is open already, here or in another process"):
            Gallery.open(path)
        assert len(gallery) == len(FEATURES)
    with pytest.raises(UserError, match="features of the model abc, not of def;"):
        Gallery.open(path, model="def")
    with Gallery.open(path) as gallery:
        assert len(gallery) == len(FEATURES)


@pytest.mark.parametrize(("name", "package"), [("a.gallery", "faiss"), ("a.db", "pymilvus")])
def test_without_the_extra_a_sentence_says_so(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=rf'need {package}, which is not installed: pip install -e "\.\[search\]"'
    ):
        Gallery.open(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_added_or_searched() -> None:
    gallery = fill(Gallery())
    spoilt = FEATURES[:3].copy()
    spoilt[1] = np.nan
    for call, message in (
        (lambda: gallery.add(spoilt), "row 1 of the features is zero or not finite"),
        (lambda: gallery.add(np.zeros((2, DIM))), r"row 0 of the features is zero .* \(2 such rows\)"),
        (lambda: gallery.add(FEATURES[:, :3]), "have 3 numbers, and those of this gallery have 16"),
        (lambda: gallery.add(FEATURES[0]), "have the shape"),
        (lambda: gallery.add(FEATURES[:2], ids=[1]), r"ids have the shape \(1,\) .* give 2 integers"),
        (lambda: gallery.add(FEATURES[:2], cameras=np.array([0.5, 1])), "cameras have .* give 2 integers"),
        (lambda: gallery.add(FEATURES[:2], ids=[None, 0.5]), "ids have .* give 2 integers"),  # type: ignore[list-item]
        (lambda: gallery.add(FEATURES[:2], files=["a"]), "2 features and 1 files"),
        (lambda: gallery.search(FEATURES[0], 0), "k is 0"),
        (lambda: gallery.search(FEATURES[0], MOST_CANDIDATES - SPARE + 1), "k is 16369"),
        (lambda: gallery.search(FEATURES[0], query_ids=[1]), "give both"),
        (lambda: gallery.remove(), "either by rows or by ids"),
        (lambda: Gallery.open(None, target_recall=1.5), "target_recall is 1.5"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    assert len(gallery) == len(FEATURES)


def test_unknown_labels_one_by_one() -> None:
    gallery = Gallery()
    gallery.add(np.eye(2), ids=[None, 1], cameras=[4, None])
    found = gallery.search(np.eye(2), 1, query_cameras=[None, 5], query_ids=[None, None])
    assert found.ids.tolist() == [[-1], [1]]
    assert found.cameras.tolist() == [[4], [-1]]


def test_tensors_as_a_model_gives_them() -> None:
    """In half precision, and part of a graph."""
    gallery = Gallery()
    gallery.add(torch.eye(3, dtype=torch.bfloat16, requires_grad=True))
    found = gallery.search(torch.eye(3, requires_grad=True)[1], 1)
    assert (found.rows.tolist(), found.similarities.tolist()) == ([[1]], [[1.0]])


def engine_of(gallery: Gallery) -> FaissEngine:
    assert isinstance(gallery.engine, FaissEngine)
    return gallery.engine


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """So many that an index is worth it, in a test."""
    return draw(people=1000, dim=24, noise=0.4)


@pytest.mark.parametrize("kind", ["quantised", "inverted"])
def test_an_index_reaches_the_recall_that_it_promises(
    kind: str, large: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    features, ids, cameras = large
    exact, gallery = Gallery(), Gallery.open(None, exact_below=2000, target_recall=0.98)
    for each in (exact, gallery):
        each.add(features, ids=ids, cameras=cameras)
    engine_of(gallery).build_index([kind])
    about = engine_of(gallery).index
    assert about is not None
    assert about.kind == kind
    assert about.recall >= 0.98
    assert about.searched <= about.cells // 4
    queries = features[::20] + 0.2 * np.random.default_rng(3).standard_normal((500, 24))
    for options in ({}, {"without": 1}, {"camera": [2, 3]}):
        truth, found = (each.search(queries, 10, **options) for each in (exact, gallery))
        shared = np.mean(
            [len(np.intersect1d(*rows)) / 10 for rows in zip(truth.rows, found.rows, strict=True)]
        )
        assert shared > 0.95, options
    # Those that are found have their exact similarity.
    both = truth.rows == found.rows
    np.testing.assert_array_equal(truth.similarities[both], found.similarities[both])


def test_a_large_gallery_gets_an_index_when_it_is_saved(
    large: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features, ids, _ = large
    path = tmp_path / "people.gallery"
    caplog.set_level("INFO")
    with Gallery.open(path, exact_below=5000, target_recall=0.95) as gallery:
        gallery.add(features[:4999], ids=ids[:4999])
        gallery.save()
        assert gallery.engine.exact
        gallery.add(features[4999:], ids=ids[4999:])
        gallery.save()
        assert "quantised index of 10,000 entries: recall@10 0." in caplog.text
        gallery.remove(rows=np.arange(100))
        gallery.save()
        gallery.add(features[:50] + 0.01, ids=ids[:50])
        before = gallery.search(features[:300], 10)
    loaded = Gallery.load(path)
    assert not loaded.engine.exact
    assert_equal(loaded.search(features[:300], 10), before)
    assert before.rows.min() == 100, "removed rows are in no cell"
    assert before.rows[:50, 0].tolist() == list(range(10_000, 10_050)), "new ones are"


def test_without_structure_search_stays_exact_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gallery = Gallery.open(None, exact_below=1000)
    gallery.add(np.random.default_rng(4).standard_normal((3000, 64)))
    engine_of(gallery).build_index()
    assert gallery.engine.exact
    assert "no index reaches the target recall, and search stays exact" in caplog.text
    assert "inverted index of 3,000 entries: recall@10 0." in caplog.text


def test_equal_entries_do_not_lower_the_measured_recall() -> None:
    """100 copies of each: which 10 of them are found does not matter."""
    gallery = Gallery.open(None, exact_below=1000)
    gallery.add(np.repeat(np.random.default_rng(5).standard_normal((50, 16)), 100, axis=0))
    engine_of(gallery).build_index()
    about = engine_of(gallery).index
    assert about is not None
    assert about.recall == 1


def test_milvus_writes_no_log_and_ends(tmp_path: Path) -> None:
    """Nothing but our own lines on both streams, no port open to others, and an end without close."""
    program = """
import logging, sys, numpy as np
logging.basicConfig(level=logging.INFO)
from inference import Gallery
gallery = Gallery.open(sys.argv[1])
gallery.add(np.eye(4), ids=[1, 2, 3, 4])
gallery.remove(ids=[2]); gallery.search(np.eye(4), 2); gallery.save()
import os
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
own = {os.readlink(link) for link in links if os.path.islink(link)}
sockets = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
hosts = [words[1].split(":")[0] for words in sockets if words[3] == "0A" and f"socket:[{words[9]}]" in own]
assert "torch" not in sys.modules
print(*hosts)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "people.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    (host,) = done.stdout.split()
    assert host in ("0100007F", "0000000000000000FFFF00000100007F"), "127.0.0.1, as IPv4 or within IPv6"
