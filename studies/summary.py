"""From the folders of finished runs to numbers: one row per variant, and its difference to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError
from structures import RETURN_PATTERNS, Modality
from studies.bootstrap import Difference, paired_bootstrap
from studies.run_folder import EPOCHS, QueryScores, read_metrics, read_record, read_scores

MODALITIES = tuple(modality.value for modality in Modality)


@dataclass(frozen=True)
class RunResult:
    """What one finished run has reached."""

    measures: dict[str, float | None]  # by the name of a column; None where it is not known
    epoch: int  # that the numbers are from
    scores: QueryScores


@dataclass(frozen=True)
class VariantSummary:
    """One variant, and its differences to the reference by measure, in percent.

    The reference has no differences, nor has a variant that shares no finished seed with it.
    """

    name: str
    results: Mapping[int, RunResult]  # of the finished runs, by seed
    differences: Mapping[str, Difference]

    def values(self, measure: str) -> list[float]:
        """A measure of the runs of which it is known."""
        found = [result.measures.get(measure) for result in self.results.values()]
        return [value for value in found if value is not None]

    @property
    def patterns(self) -> list[int]:
        """The return patterns that the numbers are of: one, unless runs differ."""
        return sorted({result.scores.pattern for result in self.results.values()})

    @property
    def epochs(self) -> list[int]:
        """The epochs that the numbers are from."""
        return sorted({result.epoch for result in self.results.values()})

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for summary.json."""
        return {
            "name": self.name,
            "patterns": self.patterns,
            "epochs": self.epochs,
            "runs": {str(seed): result.measures for seed, result in self.results.items()},
            "differences": {m: {**asdict(d), "word": d.word} for m, d in self.differences.items()},
        }


@dataclass(frozen=True)
class Summary:
    """A study, or a comparison of two runs."""

    title: str
    reference: str  # the variant that the others are compared with
    variants: list[VariantSummary]  # in the order of the study
    num_wanted: int  # runs of each variant that the study asks for
    pattern: int | None  # the return pattern that was asked for, or None for the last
    epoch: str = "last"  # what is compared, or `best`

    @property
    def pattern_words(self) -> str:
        """The return pattern in words."""
        if self.pattern is None:
            return "the last return pattern that each model has"
        return f"return pattern {self.pattern} ({RETURN_PATTERNS[self.pattern]})"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for summary.json."""
        return {
            "title": self.title,
            "reference": self.reference,
            "epoch": EPOCHS[self.epoch],
            "pattern": self.pattern_words,
            "variants": [variant.as_dict() for variant in self.variants],
        }


def read_result(folder: Path, pattern: int | None, epoch: str = "last") -> RunResult:
    """What the last or the best epoch of a finished run has reached."""
    # What training has written.
    metrics = read_metrics(folder)
    if metrics is None or "summary" not in metrics:
        raise UserError(f"{folder} does not hold a finished run (a metrics.json with a summary)")
    if EPOCHS[epoch] not in metrics["summary"]:
        raise UserError(f"{folder / 'metrics.json'} has no entry {EPOCHS[epoch]!r}; repeat the run")
    found = metrics["summary"][EPOCHS[epoch]]
    scores = read_scores(folder, pattern, epoch)
    ranking = found[f"pattern_{scores.pattern}"]
    # All measures, by the name of their column.
    kept = {name: found.get("kept_patch_precision", {}).get(name) for name in MODALITIES}
    known = [value for value in kept.values() if value is not None]
    seconds = read_record(folder).get("seconds") or [None]
    measures = {
        "mAP": ranking["mAP"],
        "R-1": ranking["rank_1"],
        "on person": float(np.mean(known)) if known else None,
        "best possible": found.get("kept_patch_precision", {}).get("best_possible"),
        "GFLOPs": metrics["cost"]["parts"]["total"]["gflops"] if "cost" in metrics else None,
        "minutes": None if None in seconds else sum(seconds) / 60,
        **kept,
    }
    return RunResult(measures, found.get("epoch", metrics["epochs"][-1]["epoch"]), scores)


def summarise(results: Mapping[str, Mapping[int, RunResult]], reference: str) -> list[VariantSummary]:
    """Compare all variants, given by name and seed, with the reference."""
    return [
        VariantSummary(name, runs, {} if name == reference else compare(runs, results[reference]))
        for name, runs in results.items()
    ]


def stack_precisions(sides: Sequence[Sequence[QueryScores]]) -> list[np.ndarray]:
    """The average precisions of S runs on each side, (S, Q) in percent; all must have the same queries."""
    names = sides[0][0].names
    if not all(np.array_equal(scores.names, names) for side in sides for scores in side):
        raise UserError("the runs have different queries; only runs with the same queries can be compared")
    return [100 * np.stack([scores.average_precisions for scores in side]) for side in sides]


def compare(runs: Mapping[int, RunResult], reference: Mapping[int, RunResult]) -> dict[str, Difference]:
    """The differences of mAP, R-1 and kept patches on the person, over the seeds that both variants have.

    All are in percent. The kept patches are compared seed by seed, and not at all with a single one.
    """
    seeds = sorted(runs.keys() & reference.keys())
    if not seeds:
        return {}
    # The scores of the queries, (S, Q) on each side.
    pairs = [[side[seed].scores for seed in seeds] for side in (runs, reference)]
    hits = [100.0 * np.stack([scores.first_hits == 1 for scores in side]) for side in pairs]
    found = {"mAP": paired_bootstrap(*stack_precisions(pairs)), "R-1": paired_bootstrap(*hits)}
    # The kept patches, (S, 1) on each side.
    kept = [[[side[seed].measures["on person"]] for seed in seeds] for side in (runs, reference)]
    on_person = [np.array(side, dtype=float) for side in kept]
    if len(seeds) > 1 and not np.isnan(on_person).any():
        found["on person"] = paired_bootstrap(*on_person)
    return found
