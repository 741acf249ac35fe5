"""A summary as Markdown, CSV, JSON and a figure."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from engine.files import check_destination, make_folder, save_bytes, save_json, save_text
from tools.ablation.bootstrap import WORDS, Difference
from tools.ablation.finished import markdown_table
from tools.ablation.summary import CURVES, KEPT, MEASURES, Summary, as_dict, mean_and_spread

COLOURS = dict(zip(WORDS, ("#009E73", "#D55E00", "#666666"), strict=True))
"""By the word for a difference; the colour-blind can tell them apart."""
COMPARED = ("mAP", "R-1", "on person")
"""The measures whose differences have an interval."""
DIGITS = {"GFLOPs": 4, "minutes": 2}
"""Behind the point, where it is not 1."""

EPOCH_WORDS = {
    "last": "**last epoch** ({}), not of one chosen by its score",
    "best": "epoch that was **best on validation** ({}), chosen on identities held out of training",
}
WORDS_EXPLAINED = """\
*Better* means that the interval is above 0, *worse* that it is below, *not distinguishable* that it
contains 0."""
METHOD = f"""\
The interval (95 %) is a paired bootstrap: each of 10,000 resamples draws the seeds with replacement (the
same seed in both variants) and then the queries with replacement (the same queries in both). Since few seeds
tell little of the noise between seeds, their differences are first stretched by the factor of Student's t.
{WORDS_EXPLAINED}"""
METHOD_OF_ONE_SEED = f"""\
Where there is one pair of runs, the interval (95 %) is a paired bootstrap over queries: each of 10,000
resamples draws the queries with replacement, the same in both runs. **The noise between seeds is not in that
interval**: *better* and *worse* hold for these two runs, and not yet for their settings.
{WORDS_EXPLAINED}"""
LEGEND = """\
`on person`: share of the kept patches that lie on the person, mean of the modalities, in percent. `GFLOPs`:
multiply-adds for one triple. `minutes`: of training, from the start of the process to its end."""


KEPT_LEGEND = """\
In percent of the kept patches. The difference is that of the means; its interval is over seeds alone."""


FILES = ("summary.md", "summary.csv", "summary.json", "summary.png", "summary_curves.png")


def check_summary_folder(folder: Path) -> None:
    """Refuse a folder that `write_summary` cannot write into, before the work whose summary it is."""
    for name in FILES:
        check_destination(folder / name, replaces=Path(name).suffix, makes_folder=True)


def write_summary(summary: Summary, folder: Path) -> list[Path]:
    """Write summary.md, .csv, .json and .png, and summary_curves.png; returns the paths."""
    make_folder(folder)
    paths = [folder / name for name in FILES]
    save_text(paths[0], markdown(summary))
    save_text(paths[1], table_csv(summary))
    save_json(paths[2], as_dict(summary))
    save_figure(draw(summary), paths[3])
    save_figure(draw_curves(summary), paths[4])
    return paths


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all; the same figure gives the same file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    save_bytes(path, picture.getvalue())


def _number(value: float, measure: str) -> str:
    return f"{value:.{DIGITS.get(measure, 1)}f}"


def _cell(values: list[float], measure: str) -> str:
    found = mean_and_spread(values)
    if found is None:
        return "–"
    mean, spread = found
    # The cost does not depend on the seed.
    if spread is None or measure == "GFLOPs":
        return _number(mean, measure)
    return f"{_number(mean, measure)} ± {_number(spread, measure)}"


def _interval(difference: Difference | None) -> list[str]:
    if difference is None:
        return ["–", "–"]
    interval = f"{difference.estimate:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"
    return [interval, difference.word]


def markdown(summary: Summary) -> str:
    """The summary as a page: its tables, and what the numbers mean."""
    measured = [
        [
            variant.name,
            f"{len(variant.results)} of {summary.num_wanted}",
            *(_cell(variant.values(measure), measure) for measure in MEASURES),
            ", ".join(map(str, variant.patterns)) or "–",
        ]
        for variant in summary.variants
    ]
    compared = [
        [
            variant.name,
            *_interval(variant.differences.get("mAP")),
            *_interval(variant.differences.get("R-1")),
            str(variant.differences["mAP"].num_seeds) if variant.differences else "0",
        ]
        for variant in summary.variants
        if variant.name != summary.reference
    ]
    epochs = sorted({epoch for variant in summary.variants for epoch in variant.epochs})
    of_epochs = f"epoch {', '.join(map(str, epochs))}" if epochs else "no run is finished"
    runs = "Mean ± standard deviation over seeds." if summary.num_wanted > 1 else "One run each."
    blocks = [
        f"# {summary.title}",
        f"{runs} The numbers are those of the {EPOCH_WORDS[summary.epoch].format(of_epochs)}, and of "
        f"{summary.pattern_words}.",
        markdown_table(["variant", "seeds", *MEASURES, "pattern"], measured),
        LEGEND,
    ]
    if any(variant.values("on person") for variant in summary.variants):
        blocks += ["## Kept patches on the person", _kept_table(summary), KEPT_LEGEND]
    if compared:
        pairs = {d.num_seeds for variant in summary.variants for d in variant.differences.values()}
        header = ["variant", "Δ mAP [95 %]", "mAP is", "Δ R-1 [95 %]", "R-1 is", "pairs of seeds"]
        blocks += [f"## Difference to {summary.reference}", markdown_table(header, compared)]
        blocks += [METHOD_OF_ONE_SEED] if 1 in pairs else []
        blocks += [METHOD] if pairs - {1} else []
    return "\n\n".join(blocks) + "\n"


def _kept_table(summary: Summary) -> str:
    """By modality, of the variants that select patches."""
    names = [*KEPT.values(), "on person"]
    rows = [
        [
            variant.name,
            *(_cell(variant.values(name), name) for name in names),
            *_interval(variant.differences.get("on person")),
        ]
        for variant in summary.variants
        if variant.values("on person")
    ]
    header = ["variant", *(modality.value for modality in KEPT), "mean"]
    return markdown_table([*header, f"Δ to {summary.reference} [95 %]", "it is"], rows)


def table_csv(summary: Summary) -> str:
    """One row per variant, numbers in full."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [*MEASURES, *KEPT.values()]
    of_measures = [f"{measure} {what}" for measure in names for what in ("mean", "std")]
    of_differences = [
        f"{measure} {what}" for measure in COMPARED for what in ("difference", "low", "high", "word")
    ]
    writer.writerow(["variant", "seeds", "pattern", "epoch", *of_measures, *of_differences, "pairs of seeds"])
    for variant in summary.variants:
        measures = [mean_and_spread(variant.values(measure)) or (None, None) for measure in names]
        differences = [variant.differences.get(measure) for measure in COMPARED]
        writer.writerow(
            [
                variant.name,
                len(variant.results),
                " ".join(map(str, variant.patterns)),
                " ".join(map(str, variant.epochs)),
                *(value for pair in measures for value in pair),
                *(v for d in differences for v in ((d.estimate, d.low, d.high, d.word) if d else [None] * 4)),
                differences[0].num_seeds if differences[0] else None,
            ]
        )
    return file.getvalue()


def draw(summary: Summary) -> Figure:
    """Left mAP of every run, with mean and standard deviation; right the difference with its interval."""
    count = len(summary.variants)
    figure = Figure(figsize=(8.0, 1.1 + 0.34 * count), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_yticks(range(count), [variant.name for variant in summary.variants])
    left.set_ylim(count - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_scores(left, summary)
    _draw_differences(right, summary)
    return figure


def draw_curves(summary: Summary) -> Figure:
    """Over the epochs, the training loss and the gradient norm of every run: a colour for each variant."""
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    for axes, (name, words) in zip(figure.subplots(1, 2), CURVES.items(), strict=True):
        for number, variant in enumerate(summary.variants):
            for count, result in enumerate(variant.results.values()):
                values = result.curves[name]
                label = variant.name if count == 0 else None
                style = "-" if number < 10 else "--"  # there are ten colours
                axes.plot(
                    range(1, len(values) + 1), values, style, color=f"C{number % 10}", lw=1, label=label
                )
        axes.set_yscale("log")
        axes.set(xlabel="epoch", title=words)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    return figure


def _draw_scores(axes: Axes, summary: Summary) -> None:
    for row, variant in enumerate(summary.variants):
        values = variant.values("mAP")
        axes.plot(values, [row] * len(values), "o", color="#0072B2", markersize=3.5, alpha=0.6)
        if found := mean_and_spread(values):
            mean, spread = found
            axes.errorbar(mean, row, xerr=spread, fmt="|", color="black", markersize=12, capsize=3)
    axes.set_xlabel("mAP: runs, mean ± standard deviation")


def _draw_differences(axes: Axes, summary: Summary) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for row, variant in enumerate(summary.variants):
        if difference := variant.differences.get("mAP"):
            colour = COLOURS[difference.word]
            axes.plot([difference.low, difference.high], [row, row], color=colour, linewidth=2)
            axes.plot(difference.estimate, row, "o", color=colour, markersize=5)
            axes.annotate(
                difference.word, (difference.estimate, row), color=colour, fontsize=7, ha="center",
                textcoords="offset points", xytext=(0, 6),
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
    axes.set_xlabel(f"difference to {summary.reference} in mAP, 95 % interval")
