"""A data set in a CSV file: what is read, what is refused, and that it trains and tests."""

import csv
import json
from pathlib import Path

import pytest

import test_net as test_entry
import train_net as train_entry
from config import ConfigError, load_config
from conftest import SMALL_MODEL
from datasets.build import build_data, find_training_split, scan_data
from datasets.csv_list import read_columns, read_triples
from datasets.dataset import DatasetError
from structures import Modality, PerModality
from tools.check_dataset import main as check

HEADER = ["rgb", "ni", "ti", "id", "camera", "split"]
NO_CAMERA = [*HEADER[:4], "split"]


def rows_of(mini_root: Path) -> list[list[str]]:
    """The miniature as rows: its folder, identity, camera and split, every fourth test triple without NI."""
    rows = []
    for folder, split in (("train_171", "train"), ("test", "test")):
        for number, rgb in enumerate(sorted((mini_root / "RGBNT201" / folder / "RGB").iterdir())):
            images = [str(rgb.parent.parent / kind / rgb.name) for kind in ("RGB", "NI", "TI")]
            images[1] = "" if split == "test" and number % 4 == 0 else images[1]
            rows.append([*images, rgb.name[:6], rgb.name[10], split])
    return rows


def write(path: Path, rows: list[list[str]], header: list[str] | None = None) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header or HEADER, *rows])
    return path


def settings(path: Path) -> list[str]:
    return ["DATASETS.NAMES", "CSV", "DATASETS.CSV", str(path), "DATALOADER.CACHE", "none"]


def error_of(path: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        build_data(load_config(SMALL_MODEL, settings(path)))
    return str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> list[list[str]]:
    """Eight rows of empty image files beside the list, in folders by modality; readers look at names only."""
    rows = []
    for number, split in enumerate(["train", "train", "train", "train", "test", "test", "query", "gallery"]):
        images = [f"{kind}/{number}.jpg" for kind in ("a", "b", "c")]
        for image in images:
            (tmp_path / image).parent.mkdir(exist_ok=True)
            (tmp_path / image).touch()
        rows.append([*images, str(number // 2), str(5 + number % 2), split])
    return rows


def test_rows_become_records(tmp_path: Path, small: list[list[str]]) -> None:
    small[1][1] = ""
    small[5][0] = f" {small[5][0]} "
    path = write(tmp_path / "list.csv", small)
    cfg = load_config(SMALL_MODEL, settings(path))
    train, query, gallery = scan_data(cfg)[2:5]
    assert [record.person_id for record in train] == [0, 0, 1, 1]
    assert [record.camera_id for record in train] == [5, 6, 5, 6]
    assert train[1].paths == PerModality(tmp_path / "a/1.jpg", None, tmp_path / "c/1.jpg")
    assert [record.name for record in query] == ["4.jpg", "5.jpg", "6.jpg"]
    assert [record.name for record in gallery] == ["4.jpg", "5.jpg", "7.jpg"]
    split = find_training_split(cfg)
    assert split is not None
    assert (split.classes, split.cameras) == (2, (5, 6))


def test_the_protocol_needs_a_column_of_cameras(tmp_path: Path, mini_root: Path) -> None:
    rows = rows_of(mini_root)
    path = write(tmp_path / "list.csv", rows)
    few = ["SOLVER.IMS_PER_BATCH", "8", "DATALOADER.NUM_INSTANCE", "2"]
    assert build_data(load_config(SMALL_MODEL, [*settings(path), *few])).test.protocol == "camera"
    write(path, [[*row[:4], row[5]] for row in rows], NO_CAMERA)
    data = build_data(load_config(SMALL_MODEL, [*settings(path), *few]))
    assert (data.test.protocol, data.split.cameras) == ("none", (0,))


def test_a_missing_modality_is_zeros(tmp_path: Path, mini_root: Path) -> None:
    path = write(tmp_path / "list.csv", rows_of(mini_root))
    few = ["SOLVER.IMS_PER_BATCH", "8", "DATALOADER.NUM_INSTANCE", "2"]
    batch = next(iter(build_data(load_config(SMALL_MODEL, [*settings(path), *few])).test.loader))
    for modality in Modality:
        shown = batch.images.of(modality).flatten(1).any(dim=1).tolist()
        assert shown == [modality is not Modality.NI or number % 4 != 0 for number in range(16)]


def test_a_modality_needs_no_column(tmp_path: Path, mini_root: Path) -> None:
    """Without its column, as with one that is empty throughout, the model is built for the other two."""
    rows = [[row[0], "", *row[2:]] for row in rows_of(mini_root)]
    few = ["SOLVER.IMS_PER_BATCH", "8", "DATALOADER.NUM_INSTANCE", "2"]
    header = [name for name in HEADER if name != "ni"]
    short = write(tmp_path / "short.csv", [[row[0], *row[2:]] for row in rows], header)
    for path in (write(tmp_path / "list.csv", rows), short):
        cfg = load_config(SMALL_MODEL, [*settings(path), *few])
        assert build_data(cfg).split.modalities == (Modality.RGB, Modality.TI)
        assert scan_data(cfg).train == scan_data(load_config(SMALL_MODEL, settings(short))).train


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (
            2,
            "ti",
            "c/nowhere.jpg",
            "list.csv, line 4: there is no file {}/c/nowhere.jpg; correct the path, or remove the row",
        ),
        (2, "id", "p7", "list.csv, line 4: id is 'p7', not a whole number from 0"),
        (2, "id", "-1", "list.csv, line 4: id is '-1', not a whole number from 0"),
        (2, "id", "", "list.csv, line 4: id is empty; give a whole number from 0"),
        (2, "id", "9" * 30, f"list.csv, line 4: id is '{'9' * 30}', not a whole number from 0"),
        (2, "camera", "", "list.csv, line 4: camera is empty; give a whole number from 0"),
        (2, "camera", "²", "list.csv, line 4: camera is '²', not a whole number from 0"),
        (2, "split", "", "list.csv, line 4: split is empty; choose from train, query, gallery, test"),
        (2, "split", "val", "list.csv, line 4: split is 'val'; choose from train, query, gallery, test"),
        (7, "id", "1", "list.csv, line 9: identity 1 is also in training, line 4"),
    ],
)
def test_a_faulty_cell_is_named(
    tmp_path: Path, small: list[list[str]], row: int, column: str, value: str, message: str
) -> None:
    small[row][HEADER.index(column)] = value
    first, *faults, layout = error_of(write(tmp_path / "list.csv", small)).splitlines()
    assert first == f"1 problem with the data set in {tmp_path}:"
    assert faults == [f"  {message.format(tmp_path)}"]
    assert layout.startswith("The file should have the columns rgb, ni, ti, id, camera and split.")


def test_faulty_rows_are_listed_together(tmp_path: Path, small: list[list[str]]) -> None:
    small[1] = small[0]
    small[3][:3] = ["", "", ""]
    small[4] = small[4][:-1]
    problems = scan_data(load_config(SMALL_MODEL, settings(write(tmp_path / "list.csv", small)))).problems
    assert [problem.message for problem in problems] == [
        "list.csv, line 3: the images are those of line 2; remove one (test: query and gallery)",
        "list.csv, line 5: rgb, ni and ti are all empty; name at least one image, or remove the row",
        "list.csv, line 6: there are 5 cells, and 6 columns; separate them by commas",
    ]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (["train"] * 8, "line 1: no row has the split query or test; add some"),
        (["train"] * 4 + ["query"] * 4, "line 1: no row has the split gallery or test; add some"),
        (["test"] * 8, "line 1: no row has the split train; add some"),
    ],
)
def test_a_split_without_rows(
    tmp_path: Path, small: list[list[str]], splits: list[str], message: str
) -> None:
    path = write(tmp_path / "list.csv", [[*row[:5], split] for row, split in zip(small, splits, strict=True)])
    assert message in error_of(path)


def test_queries_without_positives(tmp_path: Path, small: list[list[str]]) -> None:
    path = tmp_path / "list.csv"
    start = f"{path}: none of the 3 queries can be scored: the gallery has no "
    assert error_of(write(path, [[*row[:4], "5", row[5]] for row in small])) == start + (
        "image of the same identity from another camera; give other cameras, or leave out the column camera"
    )
    # Each identity has one image: no protocol helps.
    strangers = [[*row[:3], str(number), *row[4:]] for number, row in enumerate(small)]
    start += "other image of the same identity; add some"
    assert error_of(write(path, strangers)) == f"{start} from other cameras"
    strangers = [[*row[:4], row[5]] for row in strangers]
    assert error_of(write(path, strangers, NO_CAMERA)) == start


def test_checking_finds_queries_without_positives(tmp_path: Path, mini_root: Path) -> None:
    path, report = tmp_path / "list.csv", tmp_path / "report.json"
    write(path, [[*row[:4], "1", row[5]] for row in rows_of(mini_root)])
    with pytest.raises(SystemExit) as caught:
        check(["--config_file", str(SMALL_MODEL), "--json", str(report), *settings(path)])
    assert caught.value.code == 1
    (problem,) = json.loads(report.read_text())["problems"]
    assert problem["message"].startswith("list.csv: none of the 16 queries can be scored")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the CSV file {} is empty; its first line names the columns: rgb, ni, ti"),
        (b"\n\n", "the CSV file {} is empty; its first line names the columns: rgb, ni, ti[, "),
        (b"rgb,ni,ti,id,split\na,b,\xff,1,train\n", "{}, line 2: the text is not UTF-8; save it as UTF-8"),
        (
            b"rgb,ir,ti,id,split\n",
            "{}, line 1: there is no column 'ir'; choose from rgb, ni, ti, id, camera,",
        ),
        (
            b"rgb;ni;ti\n",
            "{}, line 1: 'rgb;ni;ti' is separated by semicolons; separate the columns by commas",
        ),
        (b"rgb\tti\tid\n", r"{}, line 1: 'rgb\tti\tid' is separated by tabs; separate the columns by commas"),
        (
            b"id,split\n",
            "{}, line 1: the columns rgb, ni and ti are all missing; add at least one of them",
        ),
        (b"rgb,ni,ti,ni\n", "{}, line 1: the column ni is there twice; remove one"),
        (b"rgb,ni,ti,split\n", "{}, line 1: a data set needs the column id; add it"),
        (b"rgb,ni,ti,id\n", "{}, line 1: a data set needs the column split; add it"),
        (b'rgb,ni,ti,id,split\n"a"b,,,1,train\n', "{}, line 2: the row cannot be read ("),
    ],
)
def test_a_faulty_file_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    found = error_of(path)
    assert found.startswith(message.format(path))
    assert "\n" not in found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert error_of(tmp_path / "no.csv") == f"there is no CSV file {tmp_path}/no.csv; name another one"
    assert error_of(tmp_path) == f"there is no CSV file {tmp_path}; name another one"
    with pytest.raises(ConfigError, match=r"DATASETS\.CSV names no file; add DATASETS\.CSV FILE"):
        load_config(SMALL_MODEL, ["DATASETS.NAMES", "CSV"])
    assert find_training_split(load_config(SMALL_MODEL, settings(tmp_path / "no.csv"))) is None


def test_a_byte_order_mark_capitals_and_quoted_commas(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes('\ufeffRGB, NI ,TI\r\n"a,b.jpg",,c.jpg\r\n'.encode())
    assert read_columns(path) == ["rgb", "ni", "ti"]
    (row,) = read_triples(path, lambda line, what: pytest.fail(what))
    assert row == (2, PerModality(tmp_path / "a,b.jpg", None, tmp_path / "c.jpg"), None, None, "")


def test_training_testing_and_checking(
    tmp_path: Path, mini_root: Path, mini_settings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two steps of training; testing needs neither the training rows nor their images."""
    rows = rows_of(mini_root)
    path, run = write(tmp_path / "list.csv", rows), tmp_path / "run"
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "SOLVER.IMS_PER_BATCH", "16"]
    words = [*mini_settings, *short, *settings(path), "OUTPUT_DIR", str(run)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *words])
    trained = json.loads((run / "metrics.json").read_text())["summary"]["last epoch"]
    alone = write(tmp_path / "test.csv", [row for row in rows if row[-1] == "test"])
    arguments = ["--metrics", str(tmp_path / "test.json"), "TEST.WEIGHT", str(run / "last.pth")]
    test_entry.main([*arguments, "DATASETS.CSV", str(alone)])
    tested = json.loads((tmp_path / "test.json").read_text())["result"]
    assert tested["pattern_3"] == trained["pattern_3"]
    assert tested["pattern_3"]["queries"] == 16
    # Files outside the folder of the list are checked too.
    report = tmp_path / "report.json"
    check(["--config_file", str(SMALL_MODEL), "--json", str(report), *settings(path)])
    assert json.loads(report.read_text())["files"] == 3 * 48 - 4
    (tmp_path / "broken.jpg").write_bytes(b"")
    write(path, [["broken.jpg", *row[1:]] if number == 0 else row for number, row in enumerate(rows)])
    with pytest.raises(SystemExit):
        check(["--config_file", str(SMALL_MODEL), "--json", str(report), *settings(path)])
    assert json.loads(report.read_text())["problems"][0]["message"] == "broken.jpg is empty"
