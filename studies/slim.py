"""`python -m studies slim`: score slimmed models at several layers and keep ratios.

Slimming has no weights, so that a trained model can be slimmed as it is. For every choice of layers and every
keep ratio, the command evaluates each of the given checkpoints, and draws mAP against multiply-adds. Controls
drop patches in place of merging them.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from config import load_config
from datasets.build import EvaluationData, build_test_data
from engine.build import make_device
from engine.files import check_destination, make_folder, save_json
from errors import UserError
from evaluation.build import make_evaluate
from modeling.cost import count_multiply_adds
from reporting.extra import import_extra
from studies.controls.dropping import Dropping
from studies.pages import markdown_table, save_figure, show_change, show_mean
from trained import load_trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

MERGE = "merge"
CONTROLS = {"random": True, "fixed": False}
"""The controls, and whether what they drop is drawn at random."""
NAMES = {"random": "drop at random", "fixed": "drop the same patches in every image"}
"""What the figure calls methods."""


@dataclass
class SweepPoint:
    """One way of slimming, with the scores of each checkpoint in percent."""

    method: str  # `merge`, one of `CONTROLS`, or what another file calls it
    layers: tuple[int, ...]  # MODEL.SLIM_LAYERS; empty for the whole model
    keep: float  # MODEL.SLIM_KEEP
    gflops: float = 0.0  # multiply-adds of the whole model for one triple
    mean_ap: list[float] = field(default_factory=list)  # of the last return pattern
    rank_1: list[float] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)  # share of the tokens on the person, if known

    @property
    def overrides(self) -> list[str]:
        """What sets this way of slimming."""
        return ["MODEL.SLIM_LAYERS", str(list(self.layers)), "MODEL.SLIM_KEEP", str(self.keep)]


def main(args: argparse.Namespace) -> None:
    """Measure all combinations, log a table, write JSON and a figure."""
    import_extra("matplotlib")
    # A mistake in the last combination must not cost the others.
    ways = [(parse_layers(layers), keep) for layers in args.layers for keep in args.keep]
    methods = [MERGE, *args.controls]
    points = [SweepPoint(MERGE, (), 1.0), *(SweepPoint(method, *way) for method in methods for way in ways)]
    beside = [point for file in args.beside for point in read_points(file)]
    for point in points:
        load_config(args.config_file, [*args.overrides, *point.overrides])
    numbers, figure = (args.output.with_name(args.output.name + ending) for ending in (".json", ".png"))
    for path in (numbers, figure):
        check_destination(path, replaces=path.suffix, makes_folder=True)
    # Evaluate, without the log lines of each model and checkpoint.
    first = load_trained(args.weights[0], args.overrides, config_file=args.config_file)
    data = build_test_data(first.cfg, first.split)
    for name in ("modeling", "trained"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for point in tqdm(points, desc="sweep", disable=None):
        measure(point, args, data)
    for name in ("modeling", "trained"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    # Show and write.
    logger.info("%d checkpoints, mean ± standard deviation\n\n%s", len(args.weights), table(points))
    make_folder(args.output.parent)
    save_json(numbers, {"weights": args.weights, "points": [asdict(point) for point in points]})
    save_figure(draw([*points, *beside]), figure)
    logger.info("wrote %s and %s", numbers, figure)


def measure(point: SweepPoint, args: argparse.Namespace, data: EvaluationData) -> None:
    """Evaluate every checkpoint with one way of slimming."""
    for weights in args.weights:
        trained = load_trained(weights, [*args.overrides, *point.overrides], config_file=args.config_file)
        if point.method in CONTROLS:
            trained.model.backbone.slimming = Dropping(point.keep, at_random=CONTROLS[point.method])
        if not point.gflops:
            point.gflops = sum(count_multiply_adds(trained.model).values()) / 1e9
        device = make_device(trained.cfg)
        (result,) = make_evaluate(trained.cfg, data.test, device)(trained.model.to(device)).values()
        point.mean_ap.append(100 * result.main.mean_ap)
        point.rank_1.append(100 * result.main.rank(1))
        if result.slimming is not None:
            point.precision.append(100 * float(np.mean(result.slimming.precision)))


def table(points: Sequence[SweepPoint]) -> str:
    """One row per way of slimming, in Markdown; means and standard deviations over the checkpoints."""
    rows = [
        [
            f"{point.method}, {list(point.layers)}, {point.keep:g}" if point.layers else "none",
            f"{point.gflops:.4f}",
            f"{point.gflops / points[0].gflops:.2f}",
            *(show_mean(values) for values in (point.mean_ap, point.rank_1, point.precision)),
            show_change(points[0].mean_ap, point.mean_ap) if point.layers else "–",
        ]
        for point in points
    ]
    header = ["method, layers, keep", "GFLOPs", "share", "mAP", "R-1", "on person", "mAP against none"]
    return markdown_table(header, rows)


def read_points(file: Path) -> list[SweepPoint]:
    """The points of an earlier sweep that slim, as `main` has written them."""
    try:
        points = [SweepPoint(**{**point, "layers": tuple(point["layers"])}) for point in _read_json(file)]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--beside {file} is no file that `studies slim` has written") from None
    return [point for point in points if point.layers]


def _read_json(file: Path) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads(file.read_text())["points"]
    return points


def draw(points: Sequence[SweepPoint]) -> Figure:
    """MAP against multiply-adds: one line per method and choice of layers, the whole model as a star."""
    figure: Figure = import_extra("matplotlib.figure").Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    lines: dict[str, list[SweepPoint]] = {}
    for point in sorted(points, key=lambda point: point.gflops):
        lines.setdefault(_label(point), []).append(point)
    for number, (label, line) in enumerate(lines.items()):
        means = [float(np.mean(point.mean_ap)) for point in line]
        spreads = [float(np.std(point.mean_ap, ddof=min(1, len(point.mean_ap) - 1))) for point in line]
        style = f"C{number}o-" if line[0].layers else "k*"
        costs = [point.gflops for point in line]
        axes.errorbar(costs, means, yerr=spreads, fmt=style, linewidth=1, label=label, capsize=2)
        for point, mean in zip(line, means, strict=True):
            at, text = (point.gflops, mean), f"{point.keep:g}"
            axes.annotate(text, at, xytext=(4, 4), textcoords="offset points", fontsize=6)
    axes.set(xlabel="GFLOPs (multiply-adds for one triple)", ylabel="mAP")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _label(point: SweepPoint) -> str:
    """What the legend of the figure calls a line."""
    if not point.layers:
        return "whole model"
    words = {0: "before the first block"}
    where = words.get(point.layers[0]) if len(point.layers) == 1 else None
    return f"{NAMES.get(point.method, point.method)}, {where or f'after {point.layers}'}"


def parse_layers(text: str) -> tuple[int, ...]:
    """A list of blocks such as [2,3]."""
    try:
        layers = tuple(int(layer) for layer in ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        layers = ()
    if not layers:
        raise UserError(f"--layers takes lists of blocks such as [2,3] [1,2,3], not {text!r}")
    return layers
