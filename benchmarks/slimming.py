"""Time a slimmed model against the whole one: `python -m benchmarks.slimming --config_file F KEY VALUE …`.

Both run by turns in one process, on the same random images and with random weights: an evaluation pass, and a
training step with losses and optimiser. The figures are medians; a triple counts as three images.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from yacs.config import CfgNode

from config import load_config
from engine.arguments import add_config_arguments
from engine.build import make_device
from engine.command import run_command
from engine.runtime import describe_software, setup_log
from modeling.cost import count_multiply_adds
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from solver.build import make_criterion, make_optimizer
from structures import ModalBatch, PerModality, UserError

logger = logging.getLogger(__name__)

NUM_CLASSES, NUM_CAMERAS = 171, 4  # those of RGBNT201


def make_batch(cfg: CfgNode, size: int, device: torch.device) -> ModalBatch:
    """Random triples of pairs of identities."""
    images = PerModality.build(lambda _: torch.randn(size, 3, *cfg.INPUT.SIZE_TRAIN, device=device))
    ids = torch.arange(size, device=device) // 2
    return ModalBatch(images, ids, torch.zeros_like(ids), torch.zeros_like(ids))


def make_steps(cfg: CfgNode, model: MultiModalReID, batch: ModalBatch) -> dict[str, Callable[[], None]]:
    """An evaluation pass and a training step."""
    optimizer, criterion = make_optimizer(cfg, model), make_criterion(cfg)

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()(batch)

    def train() -> None:
        losses = criterion(model.train()(batch), batch.person_ids)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()

    return {"evaluation": evaluate, "training": train}


def measure(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Time a slimmed model against the whole one.")
    add_config_arguments(parser, "the defaults alone")
    parser.add_argument("--batch", type=int, default=4, help="triples in a batch")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each kind")
    args = parser.parse_intermixed_args(argv)
    setup_log()
    slimmed = load_config(args.config_file, args.overrides)
    if not slimmed.MODEL.SLIM_LAYERS:
        raise UserError("there is nothing to compare without slimming; add MODEL.SLIM_LAYERS [3,6,9]")
    whole = load_config(args.config_file, [*args.overrides, "MODEL.SLIM_LAYERS", "[]"])
    device = make_device(whole)
    logger.info("%s, batch of %d triples", describe_software(), args.batch)

    steps, costs = {}, {}
    for name, cfg in {"whole": whole, "slimmed": slimmed}.items():
        model = make_model(cfg, NUM_CLASSES, NUM_CAMERAS).to(device)
        costs[name] = sum(count_multiply_adds(model).values()) / 1e9
        steps[name] = make_steps(cfg, model, make_batch(cfg, args.batch, device))
    for kind in ("evaluation", "training"):
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for repeat in range(args.repeats + 1):
            for name in steps:
                elapsed = measure(steps[name][kind], device)
                if repeat:  # the first one warms up
                    seconds[name].append(elapsed)
        speed = {name: 3 * args.batch / median(times) for name, times in seconds.items()}
        ratio = speed["slimmed"] / speed["whole"]
        logger.info("%-10s %s images/s, %.2f times as fast", kind, _pair(speed, ".1f"), ratio)
    share = costs["slimmed"] / costs["whole"]
    logger.info("%-10s %s GFLOPs, %.3f of the whole", "cost", _pair(costs, ".2f"), share)


def _pair(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


if __name__ == "__main__":
    run_command(main)
