"""What an evaluation found: as tables for the log, and as plain numbers for metrics.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.checkpoint import Progress, describe_choice
from engine.files import save_json
from evaluation.breakdown import Breakdown
from evaluation.selection import SelectionMetrics
from structures import (
    BEST_ON,
    LAST_EPOCH,
    MISSING_SETTINGS,
    RETURN_PATTERNS,
    Modality,
    PerModality,
    RankingMetrics,
)

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


@dataclass(frozen=True)
class FinalScores:
    """What a finished run reaches on the test split.

    Attributes:
        last: the last epoch.
        breakdown: of the last epoch.
        controls: models that have learnt nothing, by name.
        best: the epoch in best.pth, as `EvaluationResult.as_dict` gives it.
        best_epoch: its number.
        chosen_on: the split on which its mAP is the highest: `validation` or `test`.
        chosen_by: this mAP, in percent.
    """

    last: EvaluationResult
    breakdown: Breakdown
    controls: Mapping[str, EvaluationResult]
    best: Mapping[str, Any]
    best_epoch: int
    chosen_on: str
    chosen_by: float

    @property
    def best_name(self) -> str:
        """`best on validation` or `best on test`."""
        return BEST_ON[self.chosen_on]

    def explain_choice(self) -> str:
        """One line for the log."""
        how = f"chosen by {self.chosen_by:.1f} mAP on the identities that DATASETS.VAL_IDS holds out"
        if self.chosen_on == "test":
            how = "chosen by this very score (DeMo's habit); DATASETS.VAL_IDS chooses without the test split"
        return f"{self.best_name}: epoch {self.best_epoch}, {how}"


def main_scores(found: Mapping[str, Any]) -> dict[str, float]:
    """The scores of the last return pattern in what `EvaluationResult.as_dict` gives."""
    scores: dict[str, float] = found[max(name for name in found if name.startswith("pattern_"))]
    return scores


def _precision(selection: SelectionMetrics) -> dict[str, float]:
    """In percent."""
    return {
        **{m.value: 100 * selection.precision.of(m) for m in Modality},
        "chance": 100 * selection.chance,
        "best_possible": 100 * selection.best,
        **{f"same_places_{m.value}": 100 * selection.same_places.of(m) for m in Modality},
    }


def _by_modality(shares: PerModality[float]) -> str:
    return ", ".join(f"{m.value} {shares.of(m):.1%}" for m in Modality)


def result_table(result: EvaluationResult, others: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """The result as text: one row per return pattern, then others by name, then the kept patches."""
    lines = [f"{'feature':<22} {'mAP':>6} {'mINP':>6} {'R-1':>6} {'R-5':>6} {'R-10':>6}"]
    own = {f"{p} {RETURN_PATTERNS[p]}": metrics.as_dict() for p, metrics in result.ranking.items()}
    for name, scores in {**own, **(others or {})}.items():
        columns = ("mAP", "mINP", "rank_1", "rank_5", "rank_10")
        lines.append(f"{name:<22} " + " ".join(f"{scores[column]:>6.1f}" for column in columns))
    how = ", re-ranked" if result.re_ranked else ""
    lines.append(f"{result.main.num_queries} queries, {result.num_samples} distinct test triples{how}")
    if result.main.num_skipped:
        lines.append(f"{result.main.num_skipped} queries have no right match in the gallery and are left out")
    found = {"kept patches": result.selection, "patches left by slimming": result.slimming}
    for what, selection in found.items():
        # Without SDTPS, what is kept is what slimming left, and one line says it.
        if selection is not None and (what != "kept patches" or selection != result.slimming):
            rest = f"(chance {selection.chance:.1%}, best possible {selection.best:.1%})"
            lines.append(f"{what} on the person: {_by_modality(selection.precision)} {rest}")
            lines.append(f"the same patches in every image: {_by_modality(selection.same_places)}")
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
    choice = describe_choice(Path(weights))
    logger.info("result of %s%s%s\n%s", weights, f" ({choice})" if choice else "", lost, result_table(result))
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
    """How a checkpoint was chosen, and the metrics.json of the run that it lies in, if there is one."""
    choice = {"choice": describe_choice(Path(weights))}
    path = Path(weights).parent / "metrics.json"
    if not path.exists():
        return choice
    try:
        content = json.loads(path.read_text()) if path.is_file() else None
        return {**choice, **_checked_history(content)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        logger.warning("%s is not the metrics.json of a finished run; training is not shown", path)
        return choice


def _checked_history(content: Any) -> dict[str, Any]:
    """`epochs` and `summary` of a metrics.json.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: they are not what `write_metrics` writes.
    """
    epochs, summary = content["epochs"], content["summary"]
    if not isinstance(epochs, list) or not isinstance(summary, dict):
        raise TypeError("epochs must be a list, and summary must have names")
    for epoch in epochs:
        _check_numbers({name: epoch[name] for name in ("epoch", "loss", "accuracy")})
        for split in BEST_ON.keys() & epoch.keys():
            _check_scores(epoch[split])
    for found in summary.values():
        _check_scores(found)
    return {"epochs": epochs, "summary": summary}


def _check_scores(found: Mapping[str, Any]) -> None:
    """Refuse anything but what `EvaluationResult.as_dict` gives."""
    scores = main_scores(found)
    _check_numbers({**scores, "mAP": scores["mAP"], "rank_1": scores["rank_1"]})


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")


def write_metrics(
    folder: Path,
    *,
    progress: Progress,
    scores: FinalScores,
    cost: Cost,
    remark: str = "",
) -> None:
    """Log the last and the best epoch and the cost, and write all to metrics.json behind the epochs.

    Args:
        folder: the run folder.
        progress: of the run, finished.
        scores: on the test split.
        cost: of the model.
        remark: what the reader of the table must know of the run, if anything.
    """
    choice = {"epoch": scores.best_epoch, f"{scores.chosen_on}_mAP": scores.chosen_by}
    summary = {
        LAST_EPOCH: {**scores.last.as_dict(), "epoch": progress.epochs[-1]["epoch"]},
        scores.best_name: {**scores.best, **choice},
        **{name: control.as_dict() for name, control in scores.controls.items()},
    }
    found = {"summary": summary, "breakdown": scores.breakdown.as_dict(), "cost": cost.as_dict()}
    save_json(folder / "metrics.json", {**progress.as_metrics(), **found})
    rows = {scores.best_name: main_scores(scores.best)}
    rows |= {f"control: {name}": control.main.as_dict() for name, control in scores.controls.items()}
    table = f"{result_table(scores.last, rows)}\n{scores.explain_choice()}"
    logger.info("%s, all files in %s\n%s", LAST_EPOCH, folder, table)
    if remark:
        logger.warning(remark)
    logger.info("cost\n%s", cost.table())
