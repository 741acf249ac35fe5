"""The readers of RGBNT100, MSVR310 and WMVeID863, on empty files: they look at names only."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from datasets.dataset import DatasetError
from datasets.rgbnt100 import parse_name as parse_rgbnt100
from datasets.sources import SOURCES
from datasets.wmveid863 import parse_name as parse_wmveid863
from structures import PerModality

KINDS = ("vis", "ni", "th")


@dataclass(frozen=True)
class Vehicles:
    """A data set on disk.

    Attributes:
        folder: of the data set.
        splits: the folders of train, query and gallery, below it.
        write: writes a triple: folder of the split, identity, file name.
        example: the name in messages.
    """

    folder: Path
    splits: tuple[str, str, str]
    write: Callable[[Path, int, str], None]
    example: str


def write_strip(split: Path, _: int, name: str) -> None:
    split.mkdir(parents=True, exist_ok=True)
    (split / name).touch()


def write_triple(split: Path, identity: int, name: str) -> None:
    for kind in KINDS:
        folder = split / f"{identity:04d}" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


NAMES: dict[str, Callable[[int, int, int], str]] = {
    "RGBNT100": lambda person, camera, shot: f"{person:04d}_c{camera:04d}_{shot:03d}.jpg",
    "MSVR310": lambda person, camera, shot: f"{person:04d}_s{camera + 10:03d}_v{camera}_{shot:03d}.jpg",
    "WMVeID863": lambda person, camera, shot: f"{person:04d}_v{camera}_n{camera + 10}_{shot:03d}.jpg",
}
SPLITS = {
    "RGBNT100": ("rgbir/bounding_box_train", "rgbir/query", "rgbir/bounding_box_test"),
    "MSVR310": ("bounding_box_train", "query3", "bounding_box_test"),
    "WMVeID863": ("train", "query", "test"),
}
EXAMPLES = {
    "RGBNT100": "0548_c0002_000.jpg",
    "MSVR310": "0002_s002_v0_000.jpg",
    "WMVeID863": "0001_v1_n0_000.jpg",
}
SHOTS = (
    [(12, 4, 0), (3, 1, 1), (3, 1, 0), (7, 2, 0)],
    [(9, 3, 0), (2, 1, 0)],
    [(9, 4, 0), (9, 3, 1), (2, 1, 1)],
)
"""Identity, camera and shot of the triples of train, query and gallery."""

each_set = pytest.mark.parametrize("name", NAMES)
each_paired_set = pytest.mark.parametrize("name", ["MSVR310", "WMVeID863"])


@pytest.fixture
def vehicles(name: str, tmp_path: Path) -> Vehicles:
    write = write_strip if name == "RGBNT100" else write_triple
    for split, shots in zip(SPLITS[name], SHOTS, strict=True):
        for shot in shots:
            write(tmp_path / split, shot[0], NAMES[name](*shot))
    return Vehicles(tmp_path, SPLITS[name], write, EXAMPLES[name])


def error_of(name: str, vehicles: Vehicles) -> list[str]:
    """The lines of the error; its head and its last line, the layout, are checked here."""
    with pytest.raises(DatasetError) as caught:
        SOURCES[name].read(vehicles.folder)
    head, *lines, layout = str(caught.value).splitlines()
    problems = SOURCES[name].scan(vehicles.folder).problems
    assert (
        head == f"{len(problems)} problem{'s' * (len(problems) > 1)} with the data set in {vehicles.folder}:"
    )
    assert vehicles.example in layout
    assert [f"  {problem.message}" for problem in problems[:5]] == lines[:5]
    return [problem.message for problem in problems]


@each_set
def test_records_are_sorted_and_labelled(name: str, vehicles: Vehicles) -> None:
    train, query, gallery, _ = SOURCES[name].read(vehicles.folder)
    first = 1 if name == "RGBNT100" else 0  # cameras that count from 1 on disk
    for records, shots in zip((train, query, gallery), SHOTS, strict=True):
        assert [record.name for record in records] == [NAMES[name](*shot) for shot in sorted(shots)]
        assert [record.camera_id for record in records] == [shot[1] - first for shot in sorted(shots)]
        scenes = [0 if name == "RGBNT100" else shot[1] + 10 for shot in sorted(shots)]
        assert [record.scene_id for record in records] == scenes
        assert all(record.is_strip == (name == "RGBNT100") for record in records)
    assert [record.person_id for record in train] == [0, 0, 1, 2]  # 3, 3, 7, 12 on disk
    assert [record.person_id for record in query] == [2, 9]
    assert [record.person_id for record in gallery] == [2, 9, 9]


@each_set
def test_paths(name: str, vehicles: Vehicles) -> None:
    record = SOURCES[name].read(vehicles.folder).train[3]
    split = vehicles.folder / vehicles.splits[0]
    if name == "RGBNT100":
        assert record.paths == PerModality(*(3 * [split / record.name]))
        assert record.files == (split / record.name,)
    else:
        assert record.paths == PerModality(*(split / "0012" / kind / record.name for kind in KINDS))
        assert record.files == record.paths


@each_set
def test_leftovers_of_file_managers_are_ignored_and_endings_may_differ(name: str, vehicles: Vehicles) -> None:
    for folder in [path for path in vehicles.folder.rglob("*") if path.is_dir() and path.name != "rgbir"]:
        (folder / ".DS_Store").touch()
        (folder / "Thumbs.db").touch()
    right = NAMES[name](20, 1, 0).removesuffix(".jpg")
    for ending in (".JPG", ".jpeg", ".PNG"):
        vehicles.write(vehicles.folder / vehicles.splits[1], 20, f"{right}{ending}")
    assert [record.person_id for record in SOURCES[name].read(vehicles.folder).query] == [2, 9, 20, 20, 20]


HOSTILE = {
    "RGBNT100": [
        "-1_c0001_000.jpg",  # how other sets mark junk
        "0001_c0000_000.jpg",
        "0001_c-1_000.jpg",
        "0001_c_000.jpg",
        "0001c0001_000.jpg",
        "0000001_c0001_000.jpg",
        "0001_c0000001_000.jpg",
        "0001_c0001_000.bmp",
        "0001_c0001_0 0.jpg",
        "x0001_c0001_000.jpg",
        "٠٠٠١_c0001_000.jpg",
        "0001_c0001_000.jpg\n",
    ],
    "MSVR310": [
        "0012_s001_v8_000.jpg",
        "0012_s001_v-1_000.jpg",
        "0012_s001_v12_000.jpg",
        "0012_s01_v1_000.jpg",
        "0012_s0001_v1_000.jpg",
        "012_s001_v1_000.jpg",
        "0012_s001_000.jpg",
        "0012_s001_v1_000.gif",
        "0012_s٠٠١_v1_000.jpg",
        "\u202e0012_s001_v1_000.jpg",
    ],
    "WMVeID863": [
        "0012_v1_000.jpg",
        "0012_n1_000.jpg",
        "0012_cv1_n1_000.jpg",
        "0012_v1_train1_000.jpg",
        "0012_v0000001_n1.jpg",
        "0012_v١_n1_000.jpg",
        "0012_v1_n1_000.tif",
        "0012 v1 n1.jpg",
        "0012_v1_n1.jpg\n",
    ],
}


@pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, files in HOSTILE.items() for file in files]
)
def test_other_names_are_refused(name: str, file: str, vehicles: Vehicles) -> None:
    vehicles.write(vehicles.folder / vehicles.splits[0], 12, file)
    (message,) = error_of(name, vehicles)
    assert message.endswith(f" is not named like {EXAMPLES[name]}")
    assert message.isprintable()


@each_set
def test_missing_and_empty_folders(name: str, vehicles: Vehicles) -> None:
    train, query, _ = vehicles.splits
    shutil.rmtree(vehicles.folder / train)
    shutil.rmtree(vehicles.folder / query)
    (vehicles.folder / query).mkdir()
    assert error_of(name, vehicles) == [f"the folder {train} is missing", f"the folder {query} is empty"]


@each_set
def test_identities_in_training_and_test(name: str, vehicles: Vehicles) -> None:
    train, query, gallery = vehicles.splits
    vehicles.write(vehicles.folder / query, 7, NAMES[name](7, 1, 0))
    vehicles.write(vehicles.folder / gallery, 3, NAMES[name](3, 1, 0))
    assert error_of(name, vehicles) == [
        f"identity 0007 is in both {train} and {query}",
        f"identity 0003 is in both {train} and {gallery}",
    ]


@each_set
def test_what_is_no_file_is_an_error(name: str, vehicles: Vehicles) -> None:
    """A pipe would be waited for, a link may lead nowhere or to itself."""
    folder = vehicles.folder / vehicles.splits[0] / ("" if name == "RGBNT100" else "0003/vis")
    shown = folder.relative_to(vehicles.folder).as_posix()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "nowhere.jpg").symlink_to("nowhere")
    assert error_of(name, vehicles) == [
        f"{shown}/{file} is not a file" for file in ("loop.jpg", "nowhere.jpg", "pipe.jpg")
    ]


@each_paired_set
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", range(3))
def test_missing_partner(name: str, vehicles: Vehicles, kind: str, split: int) -> None:
    shot = SHOTS[split][0]
    folder = vehicles.folder / vehicles.splits[split] / f"{shot[0]:04d}"
    vehicles.write(folder.parent, shot[0], NAMES[name](shot[0], shot[1], 9))  # the folder is not left empty
    (folder / kind / NAMES[name](*shot)).unlink()
    (message,) = error_of(name, vehicles)
    assert message.endswith(f"{NAMES[name](*shot)} has no partner in {kind}")


@each_paired_set
def test_a_missing_modality_of_an_identity_is_one_problem(name: str, vehicles: Vehicles) -> None:
    shutil.rmtree(vehicles.folder / vehicles.splits[0] / "0003" / "th")
    assert error_of(name, vehicles) == [f"the folder {vehicles.splits[0]}/0003/th is missing"]


@each_paired_set
@pytest.mark.parametrize("entry", ["vis", "12a", "-1", "1234567", "٣", "line\nbreak"])
def test_what_is_no_folder_of_an_identity(name: str, vehicles: Vehicles, entry: str) -> None:
    split = vehicles.folder / vehicles.splits[0]
    (split / entry).mkdir()
    (split / "0004").touch()
    shown = entry.replace("\n", "\\n")
    assert sorted(error_of(name, vehicles)) == sorted(
        f"{vehicles.splits[0]}/{wrong} is not the folder of an identity, such as 0001"
        for wrong in ("0004", shown)
    )


def test_a_file_in_the_folder_of_another_identity(tmp_path: Path) -> None:
    for split in SPLITS["MSVR310"]:
        write_triple(tmp_path / split, 3 if "train" in split else 5, NAMES["MSVR310"](5, 1, 0))
    with pytest.raises(DatasetError) as caught:
        SOURCES["MSVR310"].read(tmp_path)
    message = "bounding_box_train/0003/vis/0005_s011_v1_000.jpg lies in the folder of identity 0003"
    assert message in str(caught.value)


def test_names_of_rgbnt100() -> None:
    assert parse_rgbnt100("0548_c0002_000.jpg") == (548, 1, 0)
    assert parse_rgbnt100("7_c1.png") == (7, 0, 0)
    assert parse_rgbnt100("0007_c3s1_000451_03.jpeg") == (7, 2, 0)


def test_names_of_wmveid863() -> None:
    """The first number after each letter, in any order; a letter within a word does not count."""
    for name, meaning in {
        "0001_v3_n12_000.jpg": (3, 12),
        "0001n2v10.jpg": (10, 2),
        "v1n0.png": (1, 0),
        "0001-v01-n002_v7_n9.JPG": (1, 2),
        "van1_v2_n3.jpg": (2, 3),
    }.items():
        assert parse_wmveid863(name, person_id=5) == (5, *meaning), name


def test_a_query_identity_need_not_be_in_the_gallery(tmp_path: Path) -> None:
    for split, identity in zip(SPLITS["WMVeID863"], (1, 2, 3), strict=True):
        write_triple(tmp_path / split, identity, NAMES["WMVeID863"](identity, 1, 0))
    splits = SOURCES["WMVeID863"].read(tmp_path)
    assert [split[0].person_id for split in splits[:3]] == [0, 2, 3]


def test_the_parent_folder_of_rgbnt100(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="the folder rgbir/bounding_box_train is missing"):
        SOURCES["RGBNT100"].read(tmp_path)
