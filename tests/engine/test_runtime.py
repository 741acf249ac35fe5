import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import be_rank_1
from engine.runtime import (
    choose_device,
    describe_software,
    git_commit,
    seed_everything,
    setup_log,
)
from errors import UserError

logger = logging.getLogger("test")


def test_only_the_main_process_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_1(monkeypatch)
    setup_log(tmp_path / "log.txt")
    assert not (tmp_path / "log.txt").exists()
    assert not logging.getLogger("modeling").isEnabledFor(logging.WARNING)


def test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu", "0") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", "0") == torch.device("cpu")
    with pytest.raises(UserError, match=r"MODEL\.DEVICE is cuda"):
        choose_device("cuda", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", "1") == torch.device("cuda", 1)
    for wrong in ("2", "0,1", "x"):
        with pytest.raises(UserError, match=r"MODEL\.DEVICE_ID"):
            choose_device("cuda", wrong)


def test_each_of_several_processes_takes_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", "0", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="this machine has 2; set torchrun's --nproc_per_node to 2"):
        choose_device("auto", "0", local_rank=2)


def test_seed() -> None:
    seed_everything(5)
    first = torch.rand(3)
    seed_everything(5)
    assert torch.equal(first, torch.rand(3))


def test_the_commit_is_unknown_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() == "unknown"
    assert "commit unknown" in describe_software()
    (tmp_path / "git").write_text("not a program")  # and no permission to run it
    assert git_commit() == "unknown"


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
