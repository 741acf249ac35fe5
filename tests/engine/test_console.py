"""A log that cannot be shown or written does not end a run."""

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.runtime import setup_log

logger = logging.getLogger("test")


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("broken", [closed_pipe, full_disk])
def test_the_log_goes_on_in_its_file(
    broken: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", os.fdopen(broken(), "w"))
    setup_log(tmp_path / "log.txt")
    for number in range(3):
        logger.info("step %d", number)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("WARNING the console cannot be written") == 1
    assert all(f"step {number}" in log for number in range(3))


FULL = "the output cannot be written ([Errno 28] No space left on device)\n"


@pytest.mark.parametrize(("broken", "status", "message"), [(closed_pipe, 141, ""), (full_disk, 2, FULL)])
def test_a_command_without_a_log_file_ends(
    broken: Callable[[], int],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdout", os.fdopen(broken(), "w"))
    setup_log()
    with pytest.raises(SystemExit) as ended:
        logger.info("a line")
    assert (ended.value.code, capsys.readouterr().err) == (status, message)


def test_letters_that_cannot_be_shown_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    setup_log(tmp_path / "log.txt")
    logger.info("h\xf6he \udcff.jpg")
    assert shown.getvalue().endswith(b"h\\xf6he \\udcff.jpg\n")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").endswith("h\xf6he \\udcff.jpg\n")


def test_a_log_file_on_a_full_disk_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    setup_log(Path("/dev/full"))
    for number in range(3):
        logger.info("step %d", number)
    shown = capsys.readouterr()
    assert shown.out.count("/dev/full cannot be written") == 1
    assert "step 2" in shown.out
    assert shown.err == ""


def test_a_console_that_is_closed_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    setup_log(tmp_path / "log.txt")
    logger.info("a line")
    assert "a line" in (tmp_path / "log.txt").read_text()
