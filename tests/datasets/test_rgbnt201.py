import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from datasets.dataset import DatasetError, Splits
from datasets.sources import SOURCES
from structures import PerModality

TRAIN = ["000012_cam4_0_00.jpg", "000003_cam1_1_02.jpg", "000007_cam2_0_00.jpg", "000003_cam1_0_01.jpg"]
TEST = ["000009_cam3_1_00.jpg", "000002_cam1_0_00.jpg"]


def write_split(folder: Path, names: Iterable[str], folders: Iterable[str] = ("RGB", "NI", "TI")) -> None:
    for name in folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in names:
            (folder / name / file).touch()  # the reader looks at names only


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "train_171", TRAIN)
    write_split(tmp_path / "test", TEST)
    return tmp_path


def error_of(root: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        SOURCES["RGBNT201"].read(root)
    return str(caught.value)


def test_records_are_sorted_relabelled_and_paired(root: Path) -> None:
    train, query, gallery, _ = SOURCES["RGBNT201"].read(root)

    assert [record.name for record in train] == sorted(TRAIN)
    assert [record.person_id for record in train] == [0, 0, 1, 2]  # 3, 3, 7, 12 on disk
    assert [record.camera_id for record in train] == [0, 0, 1, 3]
    assert {record.scene_id for record in train} == {0}
    assert [record.person_id for record in query] == [2, 9]
    assert [record.camera_id for record in query] == [0, 2]
    assert query == gallery
    folder = root / "train_171"
    assert train[3].paths == PerModality(*(folder / m / "000012_cam4_0_00.jpg" for m in ("RGB", "NI", "TI")))
    assert train[3].mask_path is None


def test_leftovers_of_file_managers_are_ignored_and_endings_may_differ(root: Path) -> None:
    for name in (".DS_Store", "Thumbs.db"):
        (root / "train_171" / "NI" / name).touch()
    write_split(root / "test", ["000004_cam1_0_00.JPG", "000005_cam1_0_00.jpeg", "000006_cam1_0_00.PNG"])

    splits = SOURCES["RGBNT201"].read(root)

    assert len(splits.train) == len(TRAIN)
    assert [record.person_id for record in splits.query] == [2, 4, 5, 6, 9]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "000001_cam1_0_00.bmp",
        "00001_cam1_0_00.jpg",
        "0000001_cam1_0_00.jpg",
        "000001_cam0_0_00.jpg",
        "000001_cam12_0_00.jpg",
        "000001_c1_0_00.jpg",
        "x000001_cam1_0_00.jpg",
        "000001_cam1_0_00.jpg.bak",
        "٠٠٠٠٠١_cam1_0_00.jpg",
    ],
)
def test_unparsable_name_is_an_error(root: Path, name: str) -> None:
    write_split(root / "train_171", [name])
    message = error_of(root)
    assert message.startswith("1 problem with")
    assert f"train_171/RGB/{name}" in message


@pytest.mark.parametrize("split", ["train_171", "test"])
@pytest.mark.parametrize("modality", ["RGB", "NI", "TI"])
def test_missing_partner_is_an_error(root: Path, split: str, modality: str) -> None:
    name = (TRAIN if split == "train_171" else TEST)[0]
    (root / split / modality / name).unlink()
    message = error_of(root)
    assert message.startswith("1 problem with")
    assert f"{name} has no partner in {modality}\n" in message
    assert "000001_cam1_0_00.jpg" in message, "the message says what the folder should look like"


def test_one_error_lists_the_first_offenders_and_counts_all(root: Path) -> None:
    names = [f"{i:06d}_cam1_0_00.jpg" for i in range(100, 107)]
    write_split(root / "train_171", names, folders=["TI"])
    (root / "test" / "NI" / TEST[0]).unlink()

    message = error_of(root)

    assert message.startswith("8 problems with")
    assert str(root) in message
    assert [name in message for name in names] == [True] * 5 + [False] * 2
    assert "000100_cam1_0_00.jpg has no partner in RGB and NI" in message
    assert "and 3 more" in message


def test_missing_and_empty_folders_are_one_problem_each(root: Path) -> None:
    for file in (root / "train_171" / "NI").iterdir():
        file.unlink()
    for file in (root / "test" / "TI").iterdir():
        file.unlink()
    (root / "test" / "TI").rmdir()

    message = error_of(root)

    assert message.startswith("2 problems with")
    assert "train_171/NI is empty" in message
    assert "test/TI is missing" in message


def test_what_is_no_file_is_an_error(root: Path) -> None:
    """A pipe would be waited for, a link may lead nowhere, a folder is no image."""
    folder = root / "train_171" / "NI"
    for name in TRAIN[:2]:
        (folder / name).unlink()
    os.mkfifo(folder / TRAIN[0])
    (folder / TRAIN[1]).symlink_to("nowhere")
    (folder / "more").mkdir()
    message = error_of(root)
    for name in (*TRAIN[:2], "more"):
        assert f"train_171/NI/{name} is not a file" in message


def test_links_to_files_are_followed(root: Path, tmp_path: Path) -> None:
    original = root / "test" / "NI" / TEST[0]
    original.rename(tmp_path / "elsewhere.jpg")
    original.symlink_to(tmp_path / "elsewhere.jpg")
    assert len(SOURCES["RGBNT201"].read(root).query) == len(TEST)


def test_a_folder_that_cannot_be_read_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_scan = os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder).name == "TI":
            raise PermissionError(13, "Permission denied")
        return really_scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    message = error_of(root)
    assert message.startswith("2 problems with")
    assert "the folder train_171/TI cannot be read (Permission denied)" in message


def test_names_are_shown_on_one_line(root: Path) -> None:
    write_split(root / "test", ["line\nbreak.jpg", os.fsdecode(b"\xff.jpg"), "\u202eright to left.jpg"])
    lines = error_of(root).splitlines()
    assert lines[0].startswith("3 problems with")
    assert lines[1:4] == [
        f"  test/RGB/{name} is not named like 000001_cam1_0_00.jpg"
        for name in ("line\\nbreak.jpg", "\\u202eright to left.jpg", "\\udcff.jpg")
    ]


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    assert "train_171/RGB is missing" in error_of(tmp_path / "nowhere")


def test_identity_in_both_splits_is_an_error(root: Path) -> None:
    write_split(root / "test", ["000007_cam1_0_00.jpg"])
    message = error_of(root)
    assert message.startswith("1 problem with")
    assert "identity 000007 is in both" in message


def test_masks_are_found_by_stem(root: Path) -> None:
    write_split(root / "test", [Path(name).stem + ".png" for name in TEST], folders=["MASK"])
    splits = SOURCES["RGBNT201"].read(root)
    assert splits.query[1].mask_path == root / "test" / "MASK" / "000009_cam3_1_00.png"
    assert all(record.mask_path is None for record in splits.train)


def test_incomplete_or_foreign_masks_are_errors(root: Path) -> None:
    write_split(root / "test", ["000009_cam3_1_00.png", "000044_cam1_0_00.png"], folders=["MASK"])
    message = error_of(root)
    assert message.startswith("2 problems with")
    assert "test/MASK/000002_cam1_0_00.png is missing" in message
    assert "test/MASK/000044_cam1_0_00.png belongs to no image" in message


def test_empty_mask_folder_is_one_problem(root: Path) -> None:
    (root / "test" / "MASK").mkdir()
    message = error_of(root)
    assert message.startswith("1 problem with")
    assert "the folder test/MASK is empty" in message


def test_describe_counts_ids_triples_and_cameras(root: Path) -> None:
    splits = SOURCES["RGBNT201"].read(root)
    rows = [
        line.split() for line in Splits(splits.train, splits.query, splits.query[:1]).describe().splitlines()
    ]
    assert rows == [
        ["split", "ids", "triples", "cameras"],
        ["train", "3", "4", "3"],
        ["query", "2", "2", "2"],
        ["gallery", "1", "1", "1"],
    ]
