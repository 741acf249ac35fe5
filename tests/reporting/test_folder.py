"""The folder of a report: what it replaces, what it leaves alone, and what is left after a kill."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import ROOT
from errors import UserError
from reporting import folder as module
from reporting.folder import LIST, ReportFolder

FOREIGN = ("notes.txt", "images/mine.jpg", "data/triples/notes/a.txt", "images/99.jpg")


def write_report(path: Path, text: str, rows: int = 3) -> None:
    report = ReportFolder(path)
    for row in range(rows):
        report.write_image(row, Image.new("RGB", (4, 4)))
        report.write_data(f"triples/{row}", {})
    report.write_data("summary", {"text": text})
    assert report.publish() == path / "index.html"


def text_of(path: Path) -> str:
    text: str = json.loads((path / "data" / "summary.js").read_text()[len('REPORT.receive("summary",') : -3])[
        "text"
    ]
    return text


def add_foreign_files(path: Path) -> None:
    for name in FOREIGN:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("precious")


def assert_foreign_files(path: Path) -> None:
    assert {(path / name).read_text() for name in FOREIGN} == {"precious"}


def test_a_report_lists_its_files(tmp_path: Path) -> None:
    write_report(tmp_path / "new" / "report", "first")
    report = tmp_path / "new" / "report"
    files = {path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}
    assert set(json.loads((report / LIST).read_text())["files"]) == files
    assert {LIST, "index.html", "images/0.jpg", "data/triples/2.js"} <= files
    assert os.listdir(tmp_path / "new") == ["report"]


def test_an_earlier_report_is_replaced_and_the_users_files_in_it_stay(tmp_path: Path) -> None:
    report = tmp_path / "report"
    write_report(report, "first", rows=5)
    add_foreign_files(report)
    (report / "link").symlink_to(tmp_path / "nowhere")
    write_report(report, "second", rows=2)
    assert text_of(report) == "second"
    assert_foreign_files(report)
    assert (report / "link").is_symlink()
    assert sorted(os.listdir(report / "images")) == ["0.jpg", "1.jpg", "99.jpg", "mine.jpg"]
    assert os.listdir(tmp_path) == ["report"]


def test_a_folder_of_links_is_not_followed(tmp_path: Path) -> None:
    report, elsewhere = tmp_path / "report", tmp_path / "elsewhere"
    write_report(report, "first")
    (report / "images").rename(elsewhere)
    (report / "images").symlink_to(elsewhere)
    before = sorted(os.listdir(elsewhere))
    write_report(report, "second")
    assert sorted(os.listdir(elsewhere)) == before
    assert text_of(report) == "second"


def test_a_file_whose_place_is_taken_is_kept_beside_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = tmp_path / "report"
    write_report(report, "first", rows=1)
    (report / "images" / "1.jpg").write_text("precious")
    for text in ("second", "third"):
        write_report(report, text, rows=2)
        assert text_of(report) == text
        (kept,) = tmp_path.glob(".report.*/images/1.jpg")
        assert kept.read_text() == "precious"
        assert str(kept) in caplog.text


def make_thesis(path: Path) -> None:
    (path / "data").mkdir(parents=True)
    (path / "data" / "summary.js").write_text("precious")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": "demo-sdtps-report-1", "files": [3]}'])
def test_a_folder_without_a_list_is_refused(tmp_path: Path, content: str | None) -> None:
    make_thesis(tmp_path / "thesis")
    if content is not None:
        (tmp_path / "thesis" / LIST).write_text(content)
    with pytest.raises(UserError, match="thesis exists and is not a report"):
        ReportFolder(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "data" / "summary.js").read_text() == "precious"
    assert os.listdir(tmp_path) == ["thesis"]


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    write_report(tmp_path / "report", "first")
    (tmp_path / "link").symlink_to(tmp_path / "report")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    for name, message in {
        "link": "is a symbolic link",
        "dangling": "is a symbolic link",
        "file": "exists and is not a report",
        "fifo": "exists and is not a report",
        "file/below": "cannot be written",
        "x" * 300: "cannot be written: File name too long",
    }.items():
        with pytest.raises(UserError, match=message):
            ReportFolder(tmp_path / name)
    assert text_of(tmp_path / "report") == "first"
    assert (tmp_path / "file").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "fifo", "file", "link", "report"]


def test_an_empty_folder_is_filled_and_the_folder_of_another_report_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    foreign = [tmp_path / name for name in (".report.tmp", ".report.old", ".report.x.tmp")]
    for path in foreign:
        path.mkdir()
        (path / "notes.txt").write_text("precious")
    write_report(tmp_path / "report", "first")
    assert text_of(tmp_path / "report") == "first"
    assert {(path / "notes.txt").read_text() for path in foreign} == {"precious"}


def test_a_disk_that_is_full_at_the_end_keeps_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report"
    write_report(report, "first")
    add_foreign_files(report)
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if source.suffix == ".tmp":
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        write_report(report, "second")
    assert text_of(report) == "first"
    assert_foreign_files(report)
    assert os.listdir(tmp_path) == ["report"]


def test_a_kill_at_any_moment_of_the_replacement_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the folders is the last one in turn; then a start recovers."""

    class Killed(BaseException):
        pass

    left = 0

    def until_killed(call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*args, **kwargs)

        return counted

    seen = set()
    for moment in range(100):
        report = tmp_path / str(moment) / "report"
        write_report(report, "first", rows=1)
        add_foreign_files(report)
        left = moment
        with monkeypatch.context() as patch:
            for name in ("rename", "rmdir"):
                patch.setattr(os, name, until_killed(getattr(os, name)))
            patch.setattr(Path, "unlink", until_killed(Path.unlink))
            patch.setattr(module, "_discard", lambda scratch, lock, pid: os.close(lock))
            try:
                write_report(report, "second", rows=1)
                break
            except Killed:
                pass
        visible = [path for path in report.parent.glob("*report*") if (path / "index.html").is_file()]
        assert visible, moment
        ReportFolder(report)  # the next start
        seen.add(text_of(report))
        assert_foreign_files(report)
        assert os.listdir(report.parent) == ["report"], moment
    else:
        raise AssertionError("the replacement never ended")
    assert seen == {"first", "second"}
    assert moment > 10


def test_a_report_of_another_process_is_not_disturbed(tmp_path: Path) -> None:
    """Two writers at once: neither sees files of the other, and the last one wins whole."""
    report = tmp_path / "report"
    first, second = ReportFolder(report), ReportFolder(report)
    for row, (writer, text) in enumerate([(first, "first"), (second, "second")]):
        writer.write_image(row, Image.new("RGB", (4, 4)))
        writer.write_data("summary", {"text": text})
    first.publish()
    assert text_of(report) == "first"
    assert os.listdir(report / "images") == ["0.jpg"]
    second.publish()
    assert text_of(report) == "second"
    assert os.listdir(report / "images") == ["1.jpg"]
    assert os.listdir(tmp_path) == ["report"]


def test_a_writer_that_is_overtaken_in_the_middle_wins_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report"
    write_report(report, "old")
    add_foreign_files(report)
    rename = os.rename
    published: list[Path] = []

    def overtaken(source: Path, target: Path) -> None:
        if source.suffix == ".tmp" and not published:
            published.append(source)
            write_report(report, "quicker")
        rename(source, target)

    monkeypatch.setattr(os, "rename", overtaken)
    write_report(report, "slower")
    assert text_of(report) == "slower"
    assert_foreign_files(report)
    assert os.listdir(tmp_path) == ["report"]


def test_the_scratch_folder_goes_with_its_writer_or_with_the_next_start(tmp_path: Path) -> None:
    report = ReportFolder(tmp_path / "report")
    assert report.scratch.is_dir()
    del report
    assert os.listdir(tmp_path) == []
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom reporting.folder import ReportFolder\n"
        f"report = ReportFolder(Path({str(tmp_path / 'report')!r}))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    write_report(tmp_path / "report", "first")
    assert os.listdir(tmp_path) == ["report"]


def test_the_recovery_says_what_it_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = tmp_path / "report"
    write_report(report, "first")
    report.rename(tmp_path / ".report.0123456789abcdef.old")
    with caplog.at_level(logging.WARNING):
        ReportFolder(report)
    assert "back in its place" in caplog.text
    assert text_of(report) == "first"
