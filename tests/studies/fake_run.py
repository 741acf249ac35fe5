"""Pretends to train a run of a study: `fake_run.py KIND FOLDER CONFIG SEED SHIFT HOW EPOCH`.

KIND `train` writes what train_net.py writes, `fail` complains, `nothing` ends well without a result, `wait`
trains until SIGTERM comes, then saves. It imports nothing of the project, to be quick.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

kind, folder, config, seed, shift, how, epoch = sys.argv[1:]
run = Path(folder)
with (run.parent.parent / "calls.txt").open("a") as calls:
    device, threads = os.environ.get("CUDA_VISIBLE_DEVICES", "-"), os.environ["OMP_NUM_THREADS"]
    calls.write(f"{kind} {run.parent.name}/{run.name} {how} {device} {threads}\n")

rng = np.random.default_rng(int(seed))
precisions = np.clip(rng.uniform(0.2, 0.8, 50) + float(shift) * (2 if epoch == "best" else 1), 0, 1)
hits = np.where(precisions > 0.5, 1, 2)
precisions = np.append(precisions, np.nan)  # a query without a positive
hits = np.append(hits, 0)


def write(name: str, content: str) -> None:
    """Whole or not at all, as train_net.py does: the study reads while runs write."""
    scratch = run / f".{name}.tmp"
    scratch.write_text(content)
    scratch.replace(run / name)


if kind == "fail":
    sys.stderr.write("first line\nthe disk is on fire\n")
    raise SystemExit(3)
write("config.yml", Path(config).read_text())
if kind == "wait" and how == "--overwrite":

    def save(*_: object) -> None:
        write("last.pth", "half")
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, save)
    write("metrics.json", json.dumps({"epochs": [{"epoch": 1}]}))
    (run / "waits").touch()
    while True:
        time.sleep(0.01)
if kind in ("train", "wait"):
    scores = {"mAP": 100 * float(np.nanmean(precisions)), "rank_1": 100 * float(np.mean(hits[:-1] == 1))}
    found: dict[str, object] = {
        "pattern_1": scores,
        "kept_patch_precision": {"RGB": 60.0, "NI": 50.0, "TI": 40.0, "chance": 9.0, "best_possible": 80.0},
    }
    summary: dict[str, object] = {"last epoch": found, "untrained": {}}
    if epoch == "best":
        summary = {"last epoch": {}, "best on validation": {**found, "epoch": int(seed)}}
    cost = {"parts": {"total": {"gflops": 0.25}}}
    epochs = [{"epoch": 1}, {"epoch": 2}]
    write("last.pth", "whole")
    environments = [{"threads": int(threads)}]
    content = {"epochs": epochs, "summary": summary, "cost": cost, "environments": environments}
    np.savez(
        run / ("query_scores_best.npz" if epoch == "best" else "query_scores.npz"),
        names=np.array([f"{number}.jpg" for number in range(51)]),
        patterns=np.array([1]),
        average_precisions_1=precisions,
        first_hits_1=hits,
    )
    write("metrics.json", json.dumps(content))
