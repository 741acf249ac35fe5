"""A comparison as Markdown, JSON and a figure."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from engine.files import check_destination, make_folder, save_bytes, save_json, save_text
from errors import UserError
from reporting.extra import import_extra
from studies.bootstrap import WORDS
from studies.summary import MODALITIES, Summary, VariantSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = dict(zip(WORDS, ("#009E73", "#D55E00", "#666666"), strict=True))
"""By the word for a difference; the colour-blind can tell them apart."""
FILES = ("summary.md", "summary.json", "summary.png")
DIGITS = {"GFLOPs": 4, "minutes": 2}
"""After the point, where it is not 1."""
SAME = ("best possible", "GFLOPs")
"""Measures that are shown without their deviation over seeds."""

EPOCH_WORDS = {
    "last": "**last epoch** ({}), not of one chosen by its score",
    "best": "epoch that was **best on validation** ({}), chosen on identities held out of training",
}
METHOD = """\
The interval (95 %) is a paired bootstrap over seeds and queries, which are the same in both variants; the
differences between seeds are first stretched by the factor of Student's t. *Better* means that the interval
is above 0, *worse* that it is below, *not distinguishable* that it contains 0."""
ONE_SEED = """\
Where there is one pair of runs, only the queries are resampled. **The noise between seeds is not in that
interval**: *better* and *worse* hold for these two runs, and not yet for their settings."""
LEGEND = """\
`on person`: share of the kept patches that lie on the person, mean of the modalities, in percent; its
interval is over seeds alone. `GFLOPs`: multiply-adds for one triple. `minutes`: of training."""


def check_summary_folder(folder: Path) -> None:
    """Fail before the work if `write_summary` could not write its summary into the folder."""
    import_extra("matplotlib")
    for name in FILES:
        check_destination(folder / name, replaces=Path(name).suffix, makes_folder=True)


def write_summary(summary: Summary, folder: Path) -> None:
    """Write summary.md, summary.json and summary.png."""
    make_folder(folder)
    save_text(folder / FILES[0], markdown(summary))
    save_json(folder / FILES[1], summary.as_dict())
    save_figure(draw(summary), folder / FILES[2])


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all; the same figure gives the same file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    save_bytes(path, picture.getvalue())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(line)} |" for line in (header, *rows))
    return "\n".join([first, "|---" * len(header) + "|", *others])


def show_mean(values: Sequence[float], digits: int = 1, *, spread: bool = True) -> str:
    """Mean ± standard deviation (dividing by n - 1) for a table; a dash without values."""
    if not values:
        return "–"
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if spread and len(values) > 1 else mean


def show_change(before: Sequence[float], after: Sequence[float]) -> str:
    """The mean change of several runs, with its 95 % interval by Student's t if there are several."""
    changes = np.subtract(after, before)
    if len(changes) == 1:
        return f"{changes[0]:+.2f}"
    half = stats.t.ppf(0.975, len(changes) - 1) * changes.std(ddof=1) / len(changes) ** 0.5
    return f"{changes.mean():+.2f} ± {half:.2f}"


def _cells(variant: VariantSummary, *measures: str) -> list[str]:
    """The cells of some measures; those of `SAME` hardly depend on the seed."""
    return [show_mean(variant.values(m), DIGITS.get(m, 1), spread=m not in SAME) for m in measures]


def _differences(variant: VariantSummary, *measures: str) -> list[str]:
    found = [variant.differences.get(measure) for measure in measures]
    return [cell for d in found for cell in ((str(d), d.word) if d else ("–", "–"))]


def short_table(summary: Summary, *more: str) -> str:
    """The one table that a page of the documentation shows, perhaps with more measures than usual."""
    rows, measures = [], ("R-1", "on person", *more)
    for variant in summary.variants:
        mean, *others = _cells(variant, "mAP", *measures)
        difference = variant.differences.get("mAP")
        rows.append([variant.name, mean, f"{difference} {difference.word}" if difference else "–", *others])
    return markdown_table(["variant", "mAP", f"Δ mAP to {summary.reference} [95 %]", *measures], rows)


def write_block(page: Path, study: str, content: str) -> None:
    """Put `content` between `<!-- study NAME -->` and `<!-- end -->` in a page."""
    try:
        text = page.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the page {page} cannot be read: {error}") from None
    block = re.compile(rf"(<!-- study {re.escape(study)} -->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = block.subn(lambda found: f"{found[1]}{content}\n{found[2]}", text)
    if count != 1:
        raise UserError(
            f"{page} must have the lines <!-- study {study} --> and <!-- end --> once, to hold the table; "
            f"it has them {count} times"
        )
    save_text(page, changed)


def markdown(summary: Summary) -> str:
    """The summary as a page: its tables, and what the numbers mean."""
    # What was measured.
    epochs = sorted({epoch for variant in summary.variants for epoch in variant.epochs})
    of_epochs = EPOCH_WORDS[summary.epoch].format(f"epoch {', '.join(map(str, epochs))}")
    runs = "Mean ± standard deviation over seeds." if summary.num_wanted > 1 else "One run each."
    columns = ["mAP", "R-1", "on person", "GFLOPs", "minutes"]
    measured = []
    for v in summary.variants:
        seeds, patterns = f"{len(v.results)} of {summary.num_wanted}", ", ".join(map(str, v.patterns))
        measured.append([v.name, seeds, *_cells(v, *columns), patterns])
    blocks = [
        f"# {summary.title}",
        f"{runs} The numbers are those of the {of_epochs}, and of {summary.pattern_words}.",
        markdown_table(["variant", "seeds", *columns, "pattern"], measured),
        LEGEND,
    ]
    # The kept patches by modality.
    if selecting := [variant for variant in summary.variants if variant.values("on person")]:
        header = ["variant", *MODALITIES, "mean", f"Δ to {summary.reference} [95 %]", "it is"]
        kept = [
            [v.name, *_cells(v, *MODALITIES, "on person"), *_differences(v, "on person")] for v in selecting
        ]
        blocks += ["## Kept patches on the person", markdown_table(header, kept)]
    # The differences.
    if others := [variant for variant in summary.variants if variant.name != summary.reference]:
        pairs = [v.differences["mAP"].num_seeds if v.differences else 0 for v in others]
        header = ["variant", "Δ mAP [95 %]", "mAP is", "Δ R-1 [95 %]", "R-1 is", "pairs of seeds"]
        compared = [
            [v.name, *_differences(v, "mAP", "R-1"), str(count)]
            for v, count in zip(others, pairs, strict=True)
        ]
        blocks += [f"## Difference to {summary.reference}", markdown_table(header, compared)]
        blocks += [METHOD, ONE_SEED] if 1 in pairs else [METHOD]
    return "\n\n".join(blocks) + "\n"


def draw(summary: Summary) -> Figure:
    """Left mAP of every run, with mean and standard deviation; right the difference with its interval."""
    # The axes, with a row per variant.
    count = len(summary.variants)
    figure: Figure = import_extra("matplotlib.figure").Figure(
        figsize=(8.0, 1.1 + 0.34 * count), layout="constrained"
    )
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_yticks(range(count), [variant.name for variant in summary.variants])
    left.set_ylim(count - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    # The runs at the left, the differences at the right.
    for row, variant in enumerate(summary.variants):
        values = variant.values("mAP")
        left.plot(values, [row] * len(values), "o", color="#0072B2", markersize=3.5, alpha=0.6)
        if values:
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            left.errorbar(np.mean(values), row, xerr=spread, fmt="|k", markersize=12, capsize=3)
        if difference := variant.differences.get("mAP"):
            colour, middle = COLOURS[difference.word], (difference.estimate, row)
            right.plot([difference.low, difference.high], [row, row], color=colour, linewidth=2)
            right.plot(*middle, "o", color=colour, markersize=5)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            look = {"color": colour, "fontsize": 7, "ha": "center", "xytext": (0, 6), "bbox": box}
            right.annotate(difference.word, middle, textcoords="offset points", **look)
    right.axvline(0, color="black", linewidth=0.8)
    left.set_xlabel("mAP: runs, mean ± standard deviation")
    right.set_xlabel(f"difference to {summary.reference} in mAP, 95 % interval")
    return figure
