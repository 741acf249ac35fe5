"""Time `--missing all` against one evaluation: `python -m benchmarks.missing --config_file F KEY VALUE …`.

Both run by turns in one process, over the same test triples with random weights: images are loaded, encoded
and ranked, as in test_net.py. The figures are medians; the ratio comes last.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from statistics import median

from config import load_config
from datasets.build import build_data
from engine.arguments import add_config_arguments
from engine.build import make_device
from engine.command import run_command
from engine.runtime import describe_software, setup_log
from evaluation.build import make_evaluate
from modeling.make_model import make_model
from structures import MISSING_CONDITIONS

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Time --missing all against one evaluation.")
    add_config_arguments(parser, "the defaults alone")
    parser.add_argument("--repeats", type=int, default=5, help="evaluations of each kind")
    args = parser.parse_intermixed_args(argv)
    setup_log()
    cfg = load_config(args.config_file, args.overrides)
    device = make_device(cfg)
    data = build_data(cfg)
    model = make_model(cfg, data.num_classes, data.num_cameras, data.num_views).to(device)

    ways = {"one evaluation": ["complete"], "--missing all": list(MISSING_CONDITIONS)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.repeats):
        for way, conditions in ways.items():
            start = time.perf_counter()
            make_evaluate(cfg, data.test, device, conditions=conditions)(model)
            seconds[way].append(time.perf_counter() - start)
    one, every = (median(times) for times in seconds.values())
    logger.info(
        "%d test triples, %s: one evaluation %.2f s, --missing all %.2f s, ratio %.2f",
        len(data.test.loader.dataset),  # type: ignore[arg-type]
        describe_software(),
        one,
        every,
        every / one,
    )


if __name__ == "__main__":
    run_command(main)
