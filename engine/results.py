"""What an evaluation found: as tables for the log, and as plain numbers for metrics.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.checkpoint import save_json
from evaluation.breakdown import Breakdown
from evaluation.selection import SelectionMetrics
from structures import MISSING_SETTINGS, RETURN_PATTERNS, Modality, RankingMetrics

logger = logging.getLogger(__name__)


class Cost(Protocol):
    """What a model costs."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers."""

    def table(self) -> str:
        """Text."""


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation found.

    Attributes:
        ranking: metrics by return pattern.
        selection: kept-patch precision, where the model selects and the data set has masks.
        num_samples: distinct test triples, each encoded once.
        seconds: time to load, encode and rank them.
        re_ranked: whether the metrics are those of re-ranked distances.
        slimming: kept-patch precision of the patches that slimming leaves.
    """

    ranking: dict[int, RankingMetrics]
    selection: SelectionMetrics | None
    num_samples: int
    seconds: float
    re_ranked: bool = False
    slimming: SelectionMetrics | None = None

    @property
    def main(self) -> RankingMetrics:
        """The metrics by which epochs are compared: those of the last return pattern."""
        return self.ranking[max(self.ranking)]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json."""
        patterns = {f"pattern_{p}": metrics.as_dict() for p, metrics in self.ranking.items()}
        counts = {"samples": self.num_samples, "seconds": self.seconds, "re_ranked": self.re_ranked}
        content: dict[str, Any] = {**patterns, **counts}
        if self.selection is not None:
            content["kept_patch_precision"] = _precision(self.selection)
        if self.slimming is not None:
            content["slimmed_patch_precision"] = _precision(self.slimming)
        return content


def _precision(selection: SelectionMetrics) -> dict[str, float]:
    """In percent."""
    return {
        **{m.value: 100 * selection.precision.of(m) for m in Modality},
        "chance": 100 * selection.chance,
        "best_possible": 100 * selection.best,
    }


def result_table(result: EvaluationResult, controls: Mapping[str, EvaluationResult] | None = None) -> str:
    """The result as text: one row per return pattern, then controls, then the kept patches."""
    lines = [f"{'feature':<22} {'mAP':>6} {'mINP':>6} {'R-1':>6} {'R-5':>6} {'R-10':>6}"]
    rows = {f"{p} {RETURN_PATTERNS[p]}": metrics for p, metrics in result.ranking.items()}
    rows |= {f"control: {name}": control.main for name, control in (controls or {}).items()}
    for name, metrics in rows.items():
        scores = (metrics.mean_ap, metrics.mean_inp, *(metrics.rank(k) for k in (1, 5, 10)))
        lines.append(f"{name:<22} " + " ".join(f"{100 * score:>6.1f}" for score in scores))
    how = ", re-ranked" if result.re_ranked else ""
    lines.append(f"{result.main.num_queries} queries, {result.num_samples} distinct test triples{how}")
    if result.main.num_skipped:
        lines.append(f"{result.main.num_skipped} queries have no right match in the gallery and are left out")
    found = {"kept patches": result.selection, "patches left by slimming": result.slimming}
    for what, selection in found.items():
        # Without SDTPS, what is kept is what slimming left, and one line says it.
        if selection is not None and (what != "kept patches" or selection != result.slimming):
            precision = ", ".join(f"{m.value} {selection.precision.of(m):.1%}" for m in Modality)
            rest = f"(chance {selection.chance:.1%}, best possible {selection.best:.1%})"
            lines.append(f"{what} on the person: {precision} {rest}")
    return "\n".join(lines)


def missing_table(results: Mapping[str, EvaluationResult]) -> str:
    """One row per missing-modality setting, with mAP and Rank-1 of every return pattern; the mean last."""
    patterns = list(next(iter(results.values())).ranking)
    lines = [
        " " * 12 + "".join(f"   {f'{p} {RETURN_PATTERNS[p]}':<18}" for p in patterns).rstrip(),
        (f"{'missing':<12}" + f"   {'mAP':>6} {'R-1':>6}     " * len(patterns)).rstrip(),
    ]
    scores = {
        setting: [(metrics.mean_ap, metrics.rank(1)) for metrics in result.ranking.values()]
        for setting, result in results.items()
    }
    rows = {setting_name(setting): row for setting, row in scores.items()}
    incomplete = [row for setting, row in scores.items() if MISSING_SETTINGS[setting]]
    if len(incomplete) > 1:
        rows[f"mean of {len(incomplete)}"] = np.mean(incomplete, axis=0).tolist()
    for name, row in rows.items():
        cells = "".join(f"   {100 * mean_ap:>6.1f} {100 * first:>6.1f}     " for mean_ap, first in row)
        lines.append(f"{name:<12}{cells}".rstrip())
    return "\n".join(lines)


def setting_name(setting: str) -> str:
    """What is missing in a setting, in words."""
    return " + ".join(m.value for m in MISSING_SETTINGS[setting]) or "nothing"


def log_results(weights: str, results: Mapping[str, EvaluationResult], cost: Cost) -> None:
    """Log the result of the first setting, a table of all where there are several, and the cost."""
    setting, result = next(iter(results.items()))
    lost = f" without {setting_name(setting)}" if MISSING_SETTINGS[setting] else ""
    logger.info("result of %s%s\n%s", weights, lost, result_table(result))
    if len(results) > 1:
        logger.info("missing modalities\n%s", missing_table(results))
    logger.info("cost\n%s", cost.table())


def save_results(
    path: Path, results: Mapping[str, EvaluationResult], breakdown: Breakdown, cost: Cost
) -> None:
    """Write the numbers as JSON: the result of the first setting, its breakdown, all settings, the cost."""
    by_setting = {setting: result.as_dict() for setting, result in results.items()}
    content = {"result": next(iter(by_setting.values())), "breakdown": breakdown.as_dict()}
    save_json(path, {**content, "missing": by_setting, "cost": cost.as_dict()})
    logger.info("wrote the numbers to %s", path)


def read_history(weights: str) -> dict[str, Any]:
    """The metrics.json of the training run that a checkpoint lies in; empty if there is none."""
    path = Path(weights).parent / "metrics.json"
    try:
        content = json.loads(path.read_text())
        return {"epochs": content["epochs"], "summary": content["summary"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        logger.warning("%s is not the metrics.json of a finished run; training is not shown", path)
        return {}


def write_metrics(
    folder: Path,
    *,
    epochs: Sequence[Mapping[str, Any]],
    result: EvaluationResult,
    breakdown: Breakdown,
    controls: Mapping[str, EvaluationResult],
    cost: Cost,
) -> None:
    """Log the result of the last epoch and the cost, and write both to metrics.json behind the epochs."""
    summary = {name: found.as_dict() for name, found in {"last epoch": result, **controls}.items()}
    content = {"epochs": epochs, "summary": summary, "breakdown": breakdown.as_dict()}
    save_json(folder / "metrics.json", {**content, "cost": cost.as_dict()})
    logger.info("last epoch, all files in %s\n%s", folder, result_table(result, controls))
    logger.info("cost\n%s", cost.table())
