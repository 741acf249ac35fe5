"""From the folders of finished runs to rows of numbers: one per variant, and its difference to another."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from structures import RETURN_PATTERNS, Modality, UserError
from tools.ablation.bootstrap import Difference, paired_bootstrap
from tools.ablation.run_folder import read_metrics, training_seconds
from tools.ablation.scores import EPOCHS, QueryScores, read_scores

logger = logging.getLogger(__name__)

MEASURES = ("mAP", "R-1", "on person", "GFLOPs", "minutes")
"""What each run is measured by: percent, percent, percent of the kept patches, per triple, of training."""
KEPT = {modality: f"on person, {modality.value}" for modality in Modality}
"""By modality, the name of a further measure: percent of its kept patches."""
CURVES = {"loss": "training loss", "gradient_norm": "gradient norm before clipping"}
"""What is drawn over the epochs: entries of metrics.json, in words."""
TOLERANCE = 0.05  # percent of mAP by which a repeated evaluation may differ


@dataclass(frozen=True)
class RunResult:
    """What one finished run has reached.

    Attributes:
        measures: by the names of `MEASURES` and `KEPT`; None where it is not known.
        epoch: the epoch that the numbers are from.
        scores: of each query.
        curves: by the names of `CURVES`, one value for each epoch of training.
    """

    measures: dict[str, float | None]
    epoch: int
    scores: QueryScores
    curves: dict[str, list[float]]


@dataclass(frozen=True)
class VariantSummary:
    """One variant.

    Attributes:
        name: of the variant.
        results: by seed, those that are finished.
        differences: in `mAP`, `R-1` and perhaps `on person` to the reference, in percent; empty for the
            reference itself, and where no seed is finished in both.
    """

    name: str
    results: Mapping[int, RunResult]
    differences: Mapping[str, Difference]

    def values(self, measure: str) -> list[float]:
        """A measure of the runs of which it is known."""
        found = [result.measures[measure] for result in self.results.values()]
        return [value for value in found if value is not None]

    @property
    def patterns(self) -> list[int]:
        """The return patterns that the numbers are of: one, unless runs differ."""
        return sorted({result.scores.pattern for result in self.results.values()})

    @property
    def epochs(self) -> list[int]:
        """The epochs that the numbers are from."""
        return sorted({result.epoch for result in self.results.values()})


@dataclass(frozen=True)
class Summary:
    """A study, or a comparison of two runs.

    Attributes:
        title: a few words.
        reference: the variant that the others are compared with.
        variants: in the order of the study.
        num_wanted: runs of each variant that the study asks for.
        pattern: the return pattern that was asked for, or None for the last.
        epoch: what is compared: `last` or `best`.
    """

    title: str
    reference: str
    variants: Sequence[VariantSummary]
    num_wanted: int
    pattern: int | None
    epoch: str = "last"

    @property
    def pattern_words(self) -> str:
        """The return pattern in words."""
        if self.pattern is None:
            return "the last return pattern that each model has"
        return f"return pattern {self.pattern} ({RETURN_PATTERNS[self.pattern]})"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean and standard deviation (dividing by n - 1) of n values; no deviation of one, nothing of none."""
    if not values:
        return None
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def read_result(folder: Path, pattern: int | None, epoch: str = "last") -> RunResult:
    """What the last or the best epoch of a finished run whose queries are scored has reached."""
    metrics = read_metrics(folder)
    if metrics is None or "summary" not in metrics:
        raise UserError(f"{folder} does not hold a finished run (a metrics.json with a summary)")
    if EPOCHS[epoch] not in metrics["summary"]:
        raise UserError(f"{folder / 'metrics.json'} has no entry {EPOCHS[epoch]!r}; repeat the run")
    scores = read_scores(folder, pattern, epoch)
    found = metrics["summary"][EPOCHS[epoch]]
    ranking = found[f"pattern_{scores.pattern}"]
    again = 100 * float(scores.average_precisions.mean())
    if abs(again - ranking["mAP"]) > TOLERANCE:
        message = "%s: mAP was %.2f after training and %.2f when the queries were scored"
        logger.warning(message, folder, ranking["mAP"], again)
    kept = found.get("kept_patch_precision", {})
    on_person = {name: kept.get(modality.value) for modality, name in KEPT.items()}
    seconds = training_seconds(folder)
    values = (
        ranking["mAP"],
        ranking["rank_1"],
        float(np.mean(list(on_person.values()))) if kept else None,
        metrics["cost"]["parts"]["total"]["gflops"],
        None if seconds is None else seconds / 60,
    )
    number = found.get("epoch", metrics["epochs"][-1]["epoch"])  # older runs know the last epoch alone
    curves = {name: [epoch[name] for epoch in metrics["epochs"] if name in epoch] for name in CURVES}
    return RunResult(dict(zip(MEASURES, values, strict=True)) | on_person, number, scores, curves)


def summarise(
    title: str,
    results: Mapping[str, Mapping[int, RunResult]],
    *,
    reference: str,
    num_wanted: int,
    pattern: int | None,
    epoch: str = "last",
) -> Summary:
    """Compare all variants with the reference.

    Args:
        title: see `Summary`.
        results: by variant and seed.
        reference: a key of `results`.
        num_wanted: see `Summary`.
        pattern: see `Summary`.
        epoch: see `Summary`.
    """
    variants = [
        VariantSummary(name, runs, {} if name == reference else compare(runs, results[reference]))
        for name, runs in results.items()
    ]
    return Summary(title, reference, variants, num_wanted, pattern, epoch)


def compare(runs: Mapping[int, RunResult], reference: Mapping[int, RunResult]) -> dict[str, Difference]:
    """The differences of mAP, R-1 and kept patches on the person, over the seeds that both variants have.

    All are in percent. The kept patches are compared seed by seed, and not at all with a single one.
    """
    seeds = sorted(runs.keys() & reference.keys())
    if not seeds:
        return {}
    pairs = [[side[seed].scores for seed in seeds] for side in (runs, reference)]
    names = pairs[0][0].names
    for scores in (*pairs[0], *pairs[1]):
        if not np.array_equal(scores.names, names):
            raise UserError("the runs have different queries; only runs on the same test set can be compared")
    precisions = [100 * np.stack([scores.average_precisions for scores in side]) for side in pairs]
    hits = [100.0 * np.stack([scores.first_hits == 1 for scores in side]) for side in pairs]
    found = {"mAP": paired_bootstrap(*precisions), "R-1": paired_bootstrap(*hits)}
    on_person = [[side[seed].measures["on person"] for seed in seeds] for side in (runs, reference)]
    if len(seeds) > 1 and None not in (*on_person[0], *on_person[1]):
        found["on person"] = paired_bootstrap(*(np.array(side, dtype=float)[:, None] for side in on_person))
    return found


def as_dict(summary: Summary) -> dict[str, Any]:
    """Plain numbers for summary.json."""
    return {
        "title": summary.title,
        "reference": summary.reference,
        "epoch": EPOCHS[summary.epoch],
        "pattern": summary.pattern_words,
        "variants": [
            {
                "name": variant.name,
                "patterns": variant.patterns,
                "epochs": variant.epochs,
                "runs": {str(seed): result.measures for seed, result in variant.results.items()},
                "differences": {
                    measure: {
                        "estimate": found.estimate,
                        "interval_95": [found.low, found.high],
                        "seeds": found.num_seeds,
                        "queries": found.num_queries,
                        "word": found.word,
                    }
                    for measure, found in variant.differences.items()
                },
            }
            for variant in summary.variants
        ],
    }
