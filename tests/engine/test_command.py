import shlex
from collections.abc import Sequence

import pytest
import torch

from engine.arguments import train_arguments
from engine.command import resume_command, run_command
from engine.interrupt import RunStopped
from structures import UserError

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
