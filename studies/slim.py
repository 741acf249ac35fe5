"""Score slimmed models at several layers and keep ratios: `python -m tools.slim_sweep --help`.

Slimming has no weights, so that a trained model can be slimmed as it is. For every choice of layers and every
keep ratio, the command evaluates each of the given checkpoints, and draws mAP against multiply-adds.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import slim_sweep_arguments

if __name__ == "__main__":
    answer_early(slim_sweep_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import ast
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from config import load_config
from datasets.build import EvaluationData, build_test_data
from engine.build import make_device, make_evaluation
from engine.command import run_command
from engine.files import check_destination, make_folder, save_json
from engine.runtime import setup_log
from modeling.cost import count_multiply_adds
from structures import UserError
from tools.ablation.finished import show_mean
from tools.ablation.pages import save_figure
from trained import load_trained

logger = logging.getLogger(__name__)

FULL = "all patches"


@dataclass(frozen=True)
class SweepPoint:
    """One way of slimming.

    Attributes:
        layers: see MODEL.SLIM_LAYERS; empty for the whole model.
        keep: see MODEL.SLIM_KEEP.
        gflops: multiply-adds of the whole model for one triple.
        mean_ap: of each checkpoint, last return pattern, in percent.
        rank_1: likewise.
        precision: share of the patches left that lie on the person, mean over modalities, of each
            checkpoint, in percent; empty where it is not known.
    """

    layers: tuple[int, ...]
    keep: float
    gflops: float
    mean_ap: list[float]
    rank_1: list[float]
    precision: list[float]


def measure(
    args: argparse.Namespace, layers: tuple[int, ...], keep: float, data: EvaluationData
) -> SweepPoint:
    """Evaluate every checkpoint with one way of slimming."""
    settings = [*args.settings, *slim_settings(layers, keep)]
    point = SweepPoint(layers, keep, 0.0, [], [], [])
    for weights in args.weights:
        trained = load_trained(weights, settings, config_file=args.config_file)
        gflops = sum(count_multiply_adds(trained.model).values()) / 1e9
        point = replace(point, gflops=gflops)
        device = make_device(trained.cfg)
        result = make_evaluation(trained.cfg, data.test, device)(trained.model.to(device))
        point.mean_ap.append(100 * result.main.mean_ap)
        point.rank_1.append(100 * result.main.rank(1))
        if result.slimming is not None:
            point.precision.append(100 * float(np.mean(result.slimming.precision)))
    return point


def slim_settings(layers: tuple[int, ...], keep: float) -> list[str]:
    """The overrides of one way of slimming."""
    return ["MODEL.SLIM_LAYERS", str(list(layers)), "MODEL.SLIM_KEEP", str(keep)]


def table(points: Sequence[SweepPoint]) -> str:
    """One row per way of slimming; means and standard deviations over the checkpoints."""
    full = points[0]
    lines = [
        f"{'layers':<12} {'keep':>5} {'GFLOPs':>8} {'share':>6} {'mAP':>13} {'R-1':>13} {'on person':>13}"
    ]
    for point in points:
        columns = [show_mean(v) for v in (point.mean_ap, point.rank_1, point.precision)]
        name = str(list(point.layers)) if point.layers else FULL
        keep = f"{point.keep:.2f}" if point.layers else ""
        share = point.gflops / full.gflops
        lines.append(
            f"{name:<12} {keep:>5} {point.gflops:>8.4f} {share:>6.2f} "
            + " ".join(f"{c:>13}" for c in columns)
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def draw(points: Sequence[SweepPoint]) -> Figure:
    """MAP against multiply-adds: one line per choice of layers, the whole model as a star."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    full, *slimmed = points
    markers = cycle("osD^vPX<>")
    for layers in dict.fromkeys(point.layers for point in slimmed):
        line = sorted((p for p in slimmed if p.layers == layers), key=lambda p: p.gflops)
        axes.errorbar(
            [p.gflops for p in line],
            [np.mean(p.mean_ap) for p in line],
            yerr=[_spread(p.mean_ap) for p in line],
            marker=next(markers),
            markersize=4,
            linewidth=1,
            label=f"after {', '.join(map(str, layers))}",
            capsize=2,
            elinewidth=0.8,
        )
        for point in line:
            axes.annotate(
                f"{point.keep:g}", (point.gflops, float(np.mean(point.mean_ap))), fontsize=6,
                textcoords="offset points", xytext=(3, 3),
            )  # fmt: skip
    axes.errorbar(
        full.gflops,
        np.mean(full.mean_ap),
        yerr=_spread(full.mean_ap),
        marker="*",
        markersize=11,
        color="black",
        linestyle="none",
        label=FULL,
        capsize=2,
        elinewidth=0.8,
    )
    axes.set_xlabel("GFLOPs (multiply-adds for one triple)")
    axes.set_ylabel("mAP")
    axes.grid(alpha=0.3)
    axes.legend(title="slimmed", frameon=False, fontsize=8)
    return figure


def parse_layers(text: str) -> tuple[int, ...]:
    """A list of blocks such as [2,3]."""
    try:
        layers = tuple(int(layer) for layer in ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        layers = ()
    if not layers:
        raise UserError(f"--layers takes lists of blocks such as [2,3] [1,2,3], not {text!r}")
    return layers


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all combinations, log a table, write JSON and a figure."""
    args = slim_sweep_arguments(argv)
    ways = [((), 1.0), *((parse_layers(layers), keep) for layers in args.layers for keep in args.keep)]
    for way in ways:  # a mistake in the last one must not cost the others
        load_config(args.config_file, [*args.settings, *slim_settings(*way)])
    numbers, figure = (args.output.with_name(args.output.name + ending) for ending in (".json", ".png"))
    for path in (numbers, figure):
        check_destination(path, replaces=path.suffix, makes_folder=True)
    setup_log()
    first = load_trained(args.weights[0], args.settings, config_file=args.config_file)
    data = build_test_data(first.cfg, first.split)
    loggers = [logging.getLogger(name) for name in ("modeling", "trained")]
    for chatty in loggers:  # each model and each checkpoint would be told
        chatty.setLevel(logging.ERROR)
    points = [measure(args, layers, keep, data) for layers, keep in tqdm(ways, desc="sweep", unit="way")]
    for chatty in loggers:
        chatty.setLevel(logging.NOTSET)

    logger.info("%d checkpoints, mean ± standard deviation\n%s", len(args.weights), table(points))
    content = {"weights": args.weights, "points": [asdict(point) for point in points]}
    make_folder(args.output.parent)
    save_json(numbers, content)
    save_figure(draw(points), figure)
    logger.info("wrote %s and %s", numbers, figure)


if __name__ == "__main__":
    run_command(main)
