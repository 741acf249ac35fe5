import random
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from errors import UserError

CPU = torch.device("cpu")


def test_checkpoints_load_without_running_code(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(tmp_path / "a.pth", model=model.state_dict(), optimizer=optimizer.state_dict(), epoch=3)
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    assert content["epoch"] == 3
    assert torch.equal(content["model"]["weight"], model.weight)


def test_random_states_come_back() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    states = random_states(CPU)
    first = draw()
    assert draw() != first
    restore_random_states(states, CPU)
    assert draw() == first


def test_random_states_survive_a_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pth", progress={}, random=[random_states(CPU)])
    first = torch.rand(3)
    restore_random_states(load_checkpoint(tmp_path / "a.pth")["random"][0], CPU)
    assert torch.equal(torch.rand(3), first)


def test_what_cannot_be_resumed_from_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.pth does not exist"):
        load_checkpoint(tmp_path / "nowhere.pth")
    (tmp_path / "half.pth").write_bytes(b"PK half a file")
    with pytest.raises(UserError, match=r"half\.pth cannot be read"):
        load_checkpoint(tmp_path / "half.pth")
    save_checkpoint(tmp_path / "best.pth", model={})
    with pytest.raises(UserError, match=r"best\.pth is not a checkpoint that training can resume from"):
        load_checkpoint(tmp_path / "best.pth")


def test_a_run_without_a_checkpoint_starts_from_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_checkpoint(None, tmp_path) is None
    assert not caplog.records
    assert find_checkpoint("", tmp_path) is None
    assert "starts from the beginning" in caplog.text
    save_checkpoint(tmp_path / "last.pth", progress={"epoch": 3})
    found = find_checkpoint("", tmp_path)
    assert found is not None
    assert found["progress"] == {"epoch": 3}


def test_a_disk_that_fills_up_inside_torch_save_is_named(tmp_path: Path) -> None:
    """torch turns a failed write into a RuntimeError; a limit on the size of files stands for a full disk."""
    save_checkpoint(tmp_path / "a.pth", epoch=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(
            UserError, match=r"a\.pth cannot be written: .*; its earlier version is untouched"
        ):
            save_checkpoint(tmp_path / "a.pth", model=torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert torch.load(tmp_path / "a.pth", weights_only=True)["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]
