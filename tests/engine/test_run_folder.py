import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

import engine.run_folder
from conftest import be_rank_1
from engine.run_folder import open_run_folder, reset_run_folder
from structures import UserError


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    open_run_folder(folder, overwrite=False, resume=False)
    (folder / "best.pth").write_text("precious")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds a run"):
        open_run_folder(folder, overwrite=False, resume=False)
    assert (folder / "best.pth").read_text() == "precious"


def test_overwriting_removes_the_earlier_run_and_nothing_else_once_the_new_one_is_ready(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("best.pth", "last.pth", "epoch_3.pth", "metrics.json", "notes.txt"):
        (folder / name).write_text("old")
    (folder / "tensorboard").mkdir()
    open_run_folder(folder, overwrite=True, resume=False)
    assert (folder / "best.pth").exists()
    reset_run_folder(folder, "A: 1", keep=False)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert left == ["config.yml", "log.txt", "notes.txt"]


def test_a_start_that_failed_does_not_block_the_next(tmp_path: Path) -> None:
    open_run_folder(tmp_path / "run", overwrite=False, resume=False)  # and then the data set is not found
    open_run_folder(tmp_path / "run", overwrite=False, resume=False)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another run"):
            open_run_folder(tmp_path, overwrite=True, resume=False)


def test_a_loader_process_that_is_left_does_not_hold_the_folder(tmp_path: Path) -> None:
    open_run_folder(tmp_path, overwrite=False, resume=False)
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        engine.run_folder._locks.clear()  # what the end of this process does
        open_run_folder(tmp_path, overwrite=False, resume=False)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run"):
        open_run_folder(tmp_path / "file" / "run", overwrite=False, resume=False)


def test_resuming_keeps_the_run_and_goes_on_with_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    open_run_folder(folder, overwrite=False, resume=False)
    (folder / "last.pth").write_text("precious")
    (folder / ".last.pth.123.tmp").write_text("half")
    open_run_folder(folder, overwrite=False, resume=True)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "last.pth", "log.txt"]
    assert (folder / "log.txt").read_text().count("run folder") == 2


def test_only_the_main_process_touches_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_1(monkeypatch)
    open_run_folder(tmp_path / "run", overwrite=True, resume=False)
    assert not (tmp_path / "run").exists()


def test_what_an_interrupted_report_leaves_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / ".report.tmp" / "images").mkdir(parents=True)
    (tmp_path / "run" / ".last.pth.tmp").write_text("half")
    open_run_folder(tmp_path / "run", overwrite=False, resume=False)
    assert not (tmp_path / "run" / ".last.pth.tmp").exists()
