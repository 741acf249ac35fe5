import fcntl
import logging
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from engine.arguments import train_arguments
from engine.interrupt import RunStopped
from engine.setup import (
    begin_run,
    choose_device,
    keep_freed_memory,
    resume_command,
    run_command,
    seed_everything,
    setup_log,
    start_run,
)
from structures import UserError


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start_run(folder, overwrite=False, resume=False)
    (folder / "best.pth").write_text("precious")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds a run"):
        start_run(folder, overwrite=False, resume=False)
    assert (folder / "best.pth").read_text() == "precious"


def test_overwriting_removes_the_earlier_run_and_nothing_else_once_the_new_one_is_ready(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("best.pth", "last.pth", "epoch_3.pth", "metrics.json", "notes.txt"):
        (folder / name).write_text("old")
    (folder / "tensorboard").mkdir()
    start_run(folder, overwrite=True, resume=False)
    assert (folder / "best.pth").exists()
    begin_run(folder, "A: 1", keep=False)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert left == ["config.yml", "log.txt", "notes.txt"]


def test_a_start_that_failed_does_not_block_the_next(tmp_path: Path) -> None:
    start_run(tmp_path / "run", overwrite=False, resume=False)  # and then the data set is not found
    start_run(tmp_path / "run", overwrite=False, resume=False)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another run"):
            start_run(tmp_path, overwrite=True, resume=False)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run"):
        start_run(tmp_path / "file" / "run", overwrite=False, resume=False)


def test_resuming_keeps_the_run_and_goes_on_with_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start_run(folder, overwrite=False, resume=False)
    (folder / "last.pth").write_text("precious")
    (folder / ".last.pth.123.tmp").write_text("half")
    start_run(folder, overwrite=False, resume=True)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "last.pth", "log.txt"]
    assert (folder / "log.txt").read_text().count("run folder") == 2


def test_only_the_main_process_touches_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    start_run(tmp_path / "run", overwrite=True, resume=False)
    assert not (tmp_path / "run").exists()


def test_only_the_main_process_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
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
    with pytest.raises(UserError, match="2 CUDA devices"):
        choose_device("auto", "0", local_rank=2)


RESUME_COMMANDS = {
    "--config_file 'a b.yml' --overwrite SOLVER.SEED 3": "--config_file 'a b.yml' SOLVER.SEED 3 --resume",
    "SOLVER.SEED 3 --resume": "SOLVER.SEED 3 --resume",
    "--resume other/last.pth SOLVER.SEED 3": "SOLVER.SEED 3 --resume",
    "--resume=other/last.pth SOLVER.SEED 3": "SOLVER.SEED 3 --resume",
    "--resume SOLVER.SEED 3": "SOLVER.SEED 3 --resume",
}


@pytest.mark.parametrize("words", RESUME_COMMANDS)
def test_a_stopped_run_says_how_to_go_on(
    words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def command(_: Sequence[str] | None) -> None:
        raise RunStopped("stopped by SIGTERM", 143)

    monkeypatch.setattr("sys.argv", ["train_net.py", *shlex.split(words)])
    with pytest.raises(SystemExit) as caught:
        run_command(command)
    assert caught.value.code == 143
    assert caplog.records[-1].message.endswith(f"go on with: python train_net.py {RESUME_COMMANDS[words]}")


def test_several_processes_go_on_with_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr("sys.argv", ["train_net.py"])
    assert resume_command() == "torchrun --nproc_per_node=4 train_net.py --resume"


def test_memory_that_runs_out_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    def command(_: Sequence[str] | None) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(SystemExit) as caught:
        run_command(command)
    assert caught.value.code == 2
    assert "lower SOLVER.IMS_PER_BATCH" in caplog.records[-1].message


def test_resume_does_not_take_a_key_for_its_checkpoint() -> None:
    words = ["OUTPUT_DIR", "x", "--resume", "SOLVER.LOG_PERIOD", "5"]
    args = train_arguments(words)
    assert (args.resume, args.settings) == ("", ["OUTPUT_DIR", "x", "SOLVER.LOG_PERIOD", "5"])
    assert train_arguments(["--resume", "a/last.pth"]).resume == "a/last.pth"
    assert train_arguments([]).overwrite
    assert not train_arguments(["OUTPUT_DIR", "precious"]).overwrite


def test_seed() -> None:
    seed_everything(5)
    first = torch.rand(3)
    seed_everything(5)
    assert torch.equal(first, torch.rand(3))


def test_a_user_error_ends_with_one_line_and_status_2(caplog: pytest.LogCaptureFixture) -> None:
    def command(_: Sequence[str] | None) -> None:
        raise UserError("MODEL.HEAD is wrong")

    with pytest.raises(SystemExit) as caught:
        run_command(command)
    assert caught.value.code == 2
    assert [record.message for record in caplog.records] == ["MODEL.HEAD is wrong"]


def test_a_user_error_from_a_loader_process_loses_its_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    def command(_: Sequence[str] | None) -> None:
        raise UserError(
            "Caught DatasetError in DataLoader worker process 0.\nOriginal Traceback (most recent call):\n"
            '  File "x.py", line 1\ndatasets.dataset.DatasetError: a.jpg (NI): cannot be read\n'
        )

    with pytest.raises(SystemExit):
        run_command(command)
    assert caplog.records[-1].message == "a.jpg (NI): cannot be read"


def test_what_an_interrupted_report_leaves_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / ".report.tmp" / "images").mkdir(parents=True)
    (tmp_path / "run" / ".last.pth.tmp").write_text("half")
    start_run(tmp_path / "run", overwrite=False, resume=False)
    assert not (tmp_path / "run" / ".last.pth.tmp").exists()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_kept(keep: bool) -> None:
    """In a process of its own: a second block takes the place of the first, and none of its pages are new."""
    code = f"""
import resource
import numpy as np
from engine.setup import keep_freed_memory
if {keep}:
    keep_freed_memory()
np.ones(2**26, dtype=np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**26, dtype=np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (int(found.stdout) < 10) == keep


def test_other_c_libraries_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with caplog.at_level(logging.DEBUG):
        keep_freed_memory()
    assert "left to the C library" in caplog.text
