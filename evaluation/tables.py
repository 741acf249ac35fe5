"""Evaluation results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evaluation.any_to_any import AnyToAny
from evaluation.result import EvaluationResult
from structures import MISSING_CONDITIONS, RETURN_PATTERNS

COLUMNS = {"mAP": "mAP", "mINP": "mINP", "rank_1": "R-1", "rank_5": "R-5", "rank_10": "R-10"}


def result_table(result: EvaluationResult, others: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """One row per return pattern, then other scores by name, then the kept patches."""
    own = {f"{p} {RETURN_PATTERNS[p]}": metrics.as_dict() for p, metrics in result.ranking.items()}
    lines = [f"{'feature':<22} " + " ".join(f"{title:>6}" for title in COLUMNS.values())]
    for name, scores in {**own, **(others or {})}.items():
        lines.append(f"{name:<22} " + " ".join(f"{scores[column]:>6.1f}" for column in COLUMNS))
    how = ", re-ranked" if result.samples.scoring.re_rank else ""
    lines.append(f"{result.main.num_queries} queries, {result.num_samples} distinct test triples{how}")
    if result.main.num_skipped:
        lines.append(f"{result.main.num_skipped} queries have no positive in the gallery and are left out")
    found = {"kept patches": result.selection, "tokens left by slimming": result.slimming}
    if result.selection == result.slimming:  # without SDTPS, what is kept is what slimming left
        del found["kept patches"]
    for what, selection in found.items():
        if selection is not None:
            rest = f"(chance {selection.chance:.1%}, best possible {selection.best:.1%})"
            shares = {"on the person": selection.precision, "same": selection.same_indices}
            shown = {
                name: ", ".join(f"{m.value} {share.of(m):.1%}" for m in selection.modalities)
                for name, share in shares.items()
            }
            lines.append(f"{what} on the person: {shown['on the person']} {rest}")
            lines.append(f"the same patches in every image: {shown['same']}")
    return "\n".join(lines)


def missing_table(results: Mapping[str, EvaluationResult]) -> str:
    """One row per condition, with mAP and Rank-1 of every return pattern; the mean last."""
    patterns = list(next(iter(results.values())).ranking)
    lines = [
        " " * 12 + "".join(f"   {f'{p} {RETURN_PATTERNS[p]}':<18}" for p in patterns).rstrip(),
        (f"{'missing':<12}" + f"   {'mAP':>6} {'R-1':>6}     " * len(patterns)).rstrip(),
    ]
    scores = {
        condition: [(metrics.mean_ap, metrics.rank(1)) for metrics in result.ranking.values()]
        for condition, result in results.items()
    }
    rows = {condition_name(condition): row for condition, row in scores.items()}
    incomplete = [row for condition, row in scores.items() if MISSING_CONDITIONS[condition]]
    if len(incomplete) > 1:
        rows[f"mean of {len(incomplete)}"] = np.mean(incomplete, axis=0).tolist()
    for name, row in rows.items():
        cells = "".join(f"   {100 * mean_ap:>6.1f} {100 * first:>6.1f}     " for mean_ap, first in row)
        lines.append(f"{name:<12}{cells}".rstrip())
    return "\n".join(lines)


def condition_name(condition: str) -> str:
    """What is missing under a condition, in words."""
    return " + ".join(m.value for m in MISSING_CONDITIONS[condition]) or "nothing"


def any_to_any_table(found: AnyToAny) -> str:
    """mAP, a row per query, a column per gallery; cells that share no modality are marked; means, chance."""
    names = {side: "+".join(m.value for m in side) for side in found.sides}
    where = "" if found.project is None else ", in the space that all modalities share"
    lines = [f"any to any, mAP of the original features{where}"]
    lines += [f"{'query':<10} gallery: " + " ".join(f"{name:>9}" for name in names.values())]
    for query in found.sides:
        cells = []
        for gallery in found.sides:
            metrics, mark = found.cells[query, gallery], " " if set(query) & set(gallery) else "*"
            shown = "-" if metrics is None else f"{100 * metrics.mean_ap:.1f}"
            cells.append(f"{shown:>8}{mark}")
        lines.append(f"{names[query]:<20} {' '.join(cells)}".rstrip())
    for what, cross in (("all", False), ("the marked, which share no modality", True)):
        mean_ap, first, count = found.mean(cross_modality=cross)
        if count:
            cells_of = f"mean of {count} cell{'s' * (count > 1)} ({what})"
            lines.append(f"{cells_of}: mAP {100 * mean_ap:.1f}, R-1 {100 * first:.1f}")
    lines.append(f"chance (the whole gallery in random order): mAP {100 * found.chance:.1f}")
    return "\n".join(lines)


def results_text(weights: str, choice: str, results: Mapping[str, EvaluationResult]) -> str:
    """The tables of one or several conditions, the first in full, below the checkpoint and its epoch."""
    condition, result = next(iter(results.items()))
    without = f" without {condition_name(condition)}" if MISSING_CONDITIONS[condition] else ""
    text = f"result of {weights}{f' ({choice})' if choice else ''}{without}\n{result_table(result)}"
    return text if len(results) == 1 else f"{text}\nmissing modalities\n{missing_table(results)}"
