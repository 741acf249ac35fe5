import errno
import shlex
import sys
from collections.abc import Sequence

import pytest
import torch

from engine.arguments import train_arguments
from engine.command import resume_command, run_command
from engine.interrupt import RunStopped
from errors import UserError

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
    assert caplog.records[-1].message.endswith(f"continue with: python train_net.py {RESUME_COMMANDS[words]}")


def test_several_processes_go_on_with_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr("sys.argv", ["train_net.py"])
    assert resume_command() == "torchrun --nproc_per_node=4 train_net.py --resume"
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert resume_command() == "torchrun --nnodes=2 … --nproc_per_node=4 train_net.py --resume"


SHORTAGES = [
    (torch.OutOfMemoryError(), "CUDA ran out of memory: lower SOLVER.IMS_PER_BATCH"),
    (MemoryError("Caught MemoryError in DataLoader worker process 0."), "memory ran out: lower SOLVER.IMS"),
    (
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
        "memory ran out: lower SOLVER.IMS_PER_BATCH",
    ),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out: lower SOLVER.IMS_PER_BATCH"),
    (OSError(errno.EMFILE, "Too many open files"), "raise the limit, for instance with ulimit -n 4096"),
    (RuntimeError("unable to open shared memory object </torch_1> : Too many open files (24)"), "ulimit -n"),
    (
        RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device"
        ),
        "with --shm-size=8g, or set DATALOADER.NUM_WORKERS 0",
    ),
    (
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that …"),
        "with --shm-size=8g, or set DATALOADER.NUM_WORKERS 0",
    ),
    (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "a loader process was killed"),
]


@pytest.mark.parametrize(("error", "remedy"), SHORTAGES, ids=lambda value: str(value)[:30])
def test_what_runs_out_is_named_with_its_remedy(
    error: Exception, remedy: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)  # is put back

    def command(_: Sequence[str] | None) -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        run_command(command)
    assert caught.value.code == 2
    assert remedy in caplog.records[-1].message


@pytest.mark.parametrize("error", [RuntimeError("a defect"), OSError(errno.EIO, "Input/output error")])
def test_a_defect_keeps_its_stack_trace(error: Exception) -> None:
    def command(_: Sequence[str] | None) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run_command(command)
    assert caught.value is error


def test_resume_does_not_take_a_key_for_its_checkpoint() -> None:
    words = ["OUTPUT_DIR", "x", "--resume", "SOLVER.LOG_PERIOD", "5"]
    args = train_arguments(words)
    assert (args.resume, args.overrides) == ("", ["OUTPUT_DIR", "x", "SOLVER.LOG_PERIOD", "5"])
    assert train_arguments(["--resume", "a/last.pth"]).resume == "a/last.pth"
    assert train_arguments([]).overwrite
    assert not train_arguments(["OUTPUT_DIR", "precious"]).overwrite


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
