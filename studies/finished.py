"""What the tools share that look at the finished runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structures import UserError
from tools.ablation.run_folder import is_trained
from tools.ablation.summary import mean_and_spread


def finished_runs(study: Path, variants: Sequence[str] | None) -> dict[str, list[Path]]:
    """The folders of the finished runs, by variant; of all variants if none is named."""
    names = variants or sorted(path.name for path in study.glob("*") if path.is_dir())
    runs = {name: sorted(filter(is_trained, (study / name).glob("seed_*"))) for name in names}
    for name in names:
        if not runs[name]:
            raise UserError(f"{study / name} holds no finished runs; is it the variant of a study?")
    return runs


def show_mean(values: Sequence[float]) -> str:
    """Mean ± standard deviation, for a table; a dash without values."""
    found = mean_and_spread(values)
    if found is None:
        return "–"
    mean, spread = found
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))
