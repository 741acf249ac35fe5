import fcntl
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

import engine.run_folder
from conftest import be_rank_1
from engine.run_folder import (
    LIST,
    MAIN_FILES,
    _locks,
    check_outputs,
    list_new_events,
    list_run_files,
    open_run_folder,
    reset_run_folder,
)
from errors import UserError


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    open_run_folder(folder, overwrite=False, resume=False)
    (folder / "best.pth").write_text("precious")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds a run"):
        open_run_folder(folder, overwrite=False, resume=False)
    assert (folder / "best.pth").read_text() == "precious"


def contents(folder: Path) -> dict[str, str]:
    """What the files and links of a folder hold, but for those that every start writes."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return {str(name): (folder / name).read_text() for name in names if name.name not in (".lock", "log.txt")}


FOREIGN = (
    "notes.txt",
    "epoch_99.pth",
    ".mine.tmp",
    ".notes.txt.123.tmp",
    "report/data/summary.js",
    "tensorboard/events.out.tfevents.of_mine",
    "tensorboard/notes.txt",
)
OURS = ("best.pth", "last.pth", "epoch_3.pth", "metrics.json", "tensorboard/events.out.tfevents.1")


def write_all(folder: Path, names: tuple[str, ...], content: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run, with files of the user."""
    folder = tmp_path / "run"
    open_run_folder(folder, overwrite=False, resume=False)
    reset_run_folder(folder, "A: 0", keep=False)
    list_run_files(folder, OURS)
    write_all(folder, OURS, "old")
    write_all(folder, FOREIGN, "precious")
    return folder


def test_overwriting_removes_the_earlier_run_and_nothing_else_once_the_new_one_is_ready(
    finished: Path,
) -> None:
    open_run_folder(finished, overwrite=True, resume=False)
    assert set(contents(finished)) == {*OURS, *FOREIGN, "config.yml", LIST}
    reset_run_folder(finished, "A: 1", keep=False)
    left = contents(finished)
    assert json.loads(left.pop(LIST)) == {"files": sorted(MAIN_FILES)}
    assert left == {**dict.fromkeys(FOREIGN, "precious"), "config.yml": "A: 1"}


@pytest.mark.parametrize("name", ["metrics.json", "epoch_3.pth", "config.yml", LIST, "log.txt", ".lock"])
@pytest.mark.parametrize("how", ["overwrite", "resume"])
def test_a_link_in_the_place_of_a_file_is_refused_before_anything_is_removed(
    finished: Path, name: str, how: str
) -> None:
    original = finished.parent / "elsewhere"
    (finished / name).rename(original)
    (finished / name).symlink_to(original)
    _locks.clear()
    before, linked = contents(finished), original.read_bytes()
    with pytest.raises(UserError, match=rf"{re.escape(name)} cannot be written: it is a symbolic link"):
        open_run_folder(finished, overwrite=how == "overwrite", resume=how == "resume")
    assert contents(finished) == before
    assert original.read_bytes() == linked


def test_a_board_elsewhere_is_refused(finished: Path) -> None:
    (finished / "tensorboard").rename(finished.parent / "board")
    (finished / "tensorboard").symlink_to(finished.parent / "board")
    before = contents(finished.parent)
    with pytest.raises(UserError, match="tensorboard is a file or a link, not a folder"):
        open_run_folder(finished, overwrite=True, resume=False)
    assert contents(finished.parent) == before


@pytest.mark.parametrize("content", [None, "{", "[]", '{"files": 3}', "[" * 100_000])
def test_a_run_without_a_list_can_be_resumed_and_is_not_overwritten(
    finished: Path, content: str | None
) -> None:
    (finished / LIST).unlink()
    if content is not None:
        (finished / LIST).write_text(content)
    before = contents(finished)
    with pytest.raises(UserError, match=r"best\.pth is not in \.run_files\.json.* and is left alone"):
        open_run_folder(finished, overwrite=True, resume=False)
    assert contents(finished) == before
    open_run_folder(finished, overwrite=False, resume=True)
    reset_run_folder(finished, "A: 0", keep=True)
    after = contents(finished)
    assert json.loads(after.pop(LIST)) == {"files": sorted(MAIN_FILES)}
    assert after.items() <= before.items()


def test_a_list_cannot_name_other_files(finished: Path) -> None:
    write_all(finished.parent, ("thesis.txt",), "precious")
    names = ["../thesis.txt", str(finished.parent / "thesis.txt"), "notes.txt", "tensorboard/../notes.txt"]
    (finished / LIST).write_text(json.dumps({"files": [*names, *OURS, "config.yml", 7, None]}))
    open_run_folder(finished, overwrite=True, resume=False)
    reset_run_folder(finished, "A: 1", keep=False)
    assert dict.fromkeys(FOREIGN, "precious").items() <= contents(finished).items()
    assert (finished.parent / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["config.yml", "epoch_2.pth"])
def test_a_foreign_file_in_the_way_is_refused(tmp_path: Path, name: str) -> None:
    write_all(tmp_path, (name,), "precious")
    with pytest.raises(UserError, match=f"{name} is not in"):
        reset_run_folder(tmp_path, "A: 1", keep=False, checkpoints=["epoch_2.pth"])
    assert contents(tmp_path) == {name: "precious"}


def test_new_event_files_are_listed(tmp_path: Path) -> None:
    write_all(tmp_path, ("tensorboard/events.out.tfevents.of_mine",), "precious")
    with list_new_events(tmp_path):
        write_all(tmp_path, ("tensorboard/events.out.tfevents.1",), "new")
    assert json.loads((tmp_path / LIST).read_text()) == {"files": ["tensorboard/events.out.tfevents.1"]}


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
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"I am there")
        time.sleep(60)
        os._exit(0)
    os.read(reader, 1)
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
    for name in (".last.pth.123.tmp", ".epoch_7.pth.123-0a1b2c3d.tmp"):
        (folder / name).write_text("half")
    write_all(folder, FOREIGN, "precious")
    open_run_folder(folder, overwrite=False, resume=True)
    assert contents(folder) == dict.fromkeys((*FOREIGN, "last.pth"), "precious")
    assert (folder / "log.txt").read_text().count("run folder") == 2


def test_outputs_do_not_replace_files_of_a_run_or_of_another_kind(finished: Path) -> None:
    write_all(finished, ("mine.json",), "{}")
    check_outputs((None, ".npz"), (finished / "mine.json", ".json"))
    before = contents(finished)
    with pytest.raises(UserError, match=r"metrics\.json belongs to the run in that folder"):
        check_outputs((finished / "metrics.json", ".json"))
    for name in ("best.pth", "mine.json"):
        with pytest.raises(UserError, match=r"exists and is not a \.npz file"):
            check_outputs((finished / name, ".npz"))
    with pytest.raises(UserError, match="named for two outputs"):
        check_outputs((finished / "new", ".json"), (finished / "new", ".npz"))
    assert contents(finished) == before


def test_only_the_main_process_touches_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_1(monkeypatch)
    open_run_folder(tmp_path / "run", overwrite=True, resume=False)
    assert not (tmp_path / "run").exists()


def test_what_an_interrupted_report_leaves_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / ".report.tmp" / "images").mkdir(parents=True)
    (tmp_path / "run" / ".last.pth.12.tmp").write_text("half")
    open_run_folder(tmp_path / "run", overwrite=False, resume=False)
    assert not (tmp_path / "run" / ".last.pth.12.tmp").exists()
