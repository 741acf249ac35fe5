import logging
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import be_rank_1
from engine.runtime import (
    choose_device,
    describe_software,
    git_commit,
    keep_freed_memory,
    seed_everything,
    setup_log,
)
from structures import UserError


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_kept(keep: bool) -> None:
    """In a process of its own: a second block takes the place of the first, and none of its pages are new."""
    code = f"""
import resource
import numpy as np
from engine.runtime import keep_freed_memory
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
