"""The command: status, report, and what it does not stop at."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import SMALL_MODEL
from errors import UserError
from tools.check_dataset import main as check


@pytest.fixture
def root(mini_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(mini_root, tmp_path / "data")
    return tmp_path / "data"


def run(root: Path, *arguments: str) -> None:
    overrides = ["DATASETS.NAMES", "RGBNT201", "DATASETS.ROOT_DIR", str(root)]
    check(["--config_file", str(SMALL_MODEL), *arguments, *overrides])


@pytest.fixture(autouse=True)
def _keep_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up its own log, which would take the place of pytest's."""
    monkeypatch.setattr("tools.check_dataset.setup_log", lambda: logging.getLogger().setLevel(logging.INFO))


def test_a_clean_data_set_ends_with_status_0(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(root)
    assert "192 files of 48 triples opened, problems: 0" in caplog.text


def test_the_splits_are_counted(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(root)
    for split, folder in (("train", "train_171"), ("query", "test"), ("gallery", "test")):
        names = [path.name for path in (root / "RGBNT201" / folder / "RGB").iterdir()]
        counts = len({name[:6] for name in names}), len(names), len({name[7:11] for name in names})
        assert [split, *map(str, counts)] in [line.split() for line in caplog.text.splitlines()]


def test_a_csv_file_is_named(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["rgb,id,camera,split"]
    for folder, split in (("train_171", "train"), ("test", "test")):
        for path in sorted((root / "RGBNT201" / folder / "RGB").iterdir()):
            lines.append(f"{path},{int(path.name[:6])},{path.name[10]},{split}")
    listed = tmp_path / "mine.csv"
    listed.write_text("\n".join(lines))
    check(["--config_file", str(SMALL_MODEL), "DATASETS.NAMES", "CSV", "DATASETS.CSV", str(listed)])
    assert f"data set CSV in {listed}" in caplog.text


def test_pixel_formats_and_turned_files_are_counted(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "RGBNT201" / "train_171" / "TI" / "000001_cam1_0_00.jpg"
    exif = Image.Exif()
    exif[0x0112] = 3
    with Image.open(path) as image:
        deep = np.asarray(image.convert("L")).astype(np.uint16) * 257
    Image.fromarray(deep).save(path, format="PNG", exif=exif)
    run(root, "--json", str(tmp_path / "report.json"))
    assert "TI: 47 8-bit colour, 1 16-bit grey" in caplog.text
    assert "1 file(s) with an EXIF flag, turned upright" in caplog.text
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pixel_formats"]["TI"] == {"8-bit colour": 47, "16-bit grey": 1}
    assert report["turned"] == 1


def test_16_bit_files_of_a_14_bit_camera_are_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = root / "RGBNT201" / "train_171" / "TI" / "000001_cam1_0_00.jpg"
    with Image.open(path) as image:
        values = np.asarray(image.convert("L")).astype(np.uint16)
    Image.fromarray(values // 8 + 8000).save(path, format="PNG")
    run(root)
    highest = int(values.max()) // 8 + 8000
    assert f"the 16-bit TI images reach {highest} of 65535 and will be nearly black" in caplog.text


def test_all_that_is_wrong_is_reported_and_ends_with_status_1(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = root / "RGBNT201" / "train_171"
    (folder / "RGB" / "000001_cam1_0_00.jpg").write_bytes(b"")
    (folder / "NI" / "000002_cam1_0_00.jpg").unlink()
    (folder / "TI" / "line\nbreak.jpg").touch()
    copy = folder / "TI" / "000003_cam1_0_00.jpg"
    copy.write_bytes((folder / "TI" / "000004_cam1_0_00.jpg").read_bytes())
    with pytest.raises(SystemExit) as caught:
        run(root, "--workers", "2", "--json", str(tmp_path / "report.json"))
    assert caught.value.code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["files"] == 191
    counts = {kind: count for kind, count in report["counts"].items() if count}
    assert counts == {"unparsable": 1, "unpaired": 1, "empty": 1, "duplicated": 1}
    assert [problem["path"] for problem in report["problems"]] == [
        "train_171/TI/line\\nbreak.jpg",
        "train_171/RGB/000002_cam1_0_00.jpg",
        "train_171/RGB/000001_cam1_0_00.jpg",
        "train_171/TI/000003_cam1_0_00.jpg",
    ]
    for problem in report["problems"]:
        assert f"{problem['kind']}: {problem['message']}\n" in caplog.text


def test_some_problems_of_each_kind_are_listed_and_the_others_counted(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, report = root / "RGBNT201" / "train_171" / "RGB", tmp_path / "report.json"
    for path in sorted(folder.iterdir())[:8]:
        path.write_bytes(b"")
    (folder / "notes.txt").touch()
    for more, where in (((), "--json FILE"), (("--json", str(report)), str(report))):
        caplog.clear()
        with pytest.raises(SystemExit):
            run(root, *more)
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [line.partition(":")[0] for line in lines] == ["unparsable"] + ["empty"] * 6
        assert lines[-1] == f"empty: and 3 more; {where} lists all"
    assert len(json.loads(report.read_text())["problems"]) == 9


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        (["--workers", "0"], "--workers must be 1 or more, not 0"),
        (["--json", "nowhere/report.json"], "there is no folder nowhere"),
        (["MODEL.HEADS", "2"], "unknown key 'MODEL.HEADS'"),
    ],
)
def test_user_errors(root: Path, arguments: list[str], mention: str) -> None:
    with pytest.raises(UserError, match=mention):
        run(root, *arguments)


def test_an_impossible_report_is_refused_before_the_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.check_dataset.scan_data", lambda cfg: pytest.fail("the data were read"))
    (tmp_path / "best.pth").write_text("precious")
    (tmp_path / "link.json").symlink_to(tmp_path / "best.pth")
    with pytest.raises(UserError, match=r"exists and is not a \.json file"):
        run(tmp_path, "--json", str(tmp_path / "best.pth"))
    with pytest.raises(UserError, match="symbolic link"):
        run(tmp_path, "--json", str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").read_text() == "precious"


def test_report_into_a_folder_of_its_name(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        run(root, "--json", str(tmp_path))
    assert list(tmp_path.glob(".*")) == []


def test_missing_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        run(tmp_path)
