"""Loader processes outlive a stop signal, and nothing else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT, is_running

PROGRAM = """
import os, signal, sys, time
import datasets.build
from config import get_cfg
from engine.command import run_command

datasets.build.collate = list
cfg = get_cfg()
cfg.DATALOADER.NUM_WORKERS = 2
loader = datasets.build._make_loader(cfg, range(1000), batch_size=1)

def main(_):
    batches = iter(loader)
    print(*(process.pid for process in batches._workers), flush=True)
    next(batches), next(batches)  # one of each process
    {action}

run_command(main)
"""
ERROR = """
    for process in batches._workers:
        for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
            os.kill(process.pid, signal.Signals[name])
    assert len(list(batches)) == 998
    raise TypeError("a defect")
"""
DEAD_LOADER = """
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    list(batches)
"""
KILLED = """
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("action", "status", "message"),
    [
        (ERROR, 1, "TypeError: a defect"),
        (DEAD_LOADER, 2, "a loader process was killed, probably because memory ran out: lower DATALOADER"),
        (KILLED, -signal.SIGKILL, ""),
    ],
    ids=["an error after all signals", "a dead loader process", "a killed main process"],
)
def test_loader_processes_end_with_the_main_process(action: str, status: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(action=action)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,  # until the last loader process has closed the pipe, too
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert message in done.stdout
    deadline = time.monotonic() + 20
    pids = [int(word) for word in done.stdout.split()[:2]]
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, pids))
