"""What a benchmark found: rows with their targets, as text, Markdown and JSON, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import scipy
import timm
import torch
import torchvision

from engine.runtime import git_commit

RATIO = "ratio"
HEADINGS = ("row", "plain", "project", "also", "same result", "target", "met", "ratio")


@dataclass(frozen=True)
class Figure:
    """A measured figure, and what it should be.

    Attributes:
        name: what it is; `RATIO` for how many times as fast the project is as the plain way.
        value: the figure.
        unit: `x`, `GB`, `%` or `s`.
        at_least: its target, if it should not be lower.
        at_most: its target, if it should not be higher.
    """

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is where it should be; one without a target always is."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def target(self) -> str:
        """The target as text; empty without one."""
        bounds = (("≥", self.at_least), ("≤", self.at_most))
        texts = [f"{sign} {bound:g} {self.unit}" for sign, bound in bounds if bound is not None]
        name = "" if self.name == RATIO else f"{self.name} "
        return name + ", ".join(texts) if texts else ""

    def __str__(self) -> str:
        value = f"{self.value:.2f} {self.unit}"
        return value if self.name == RATIO else f"{self.name} {value}"


@dataclass(frozen=True)
class Row:
    """What one row of the table holds.

    Attributes:
        name: short, for `--only`.
        title: what is measured, with its size.
        plain: median seconds of the plain way; None if that cannot be run.
        project: median seconds of the project's way.
        figures: the ratio first, where there is one, and what else was measured.
        difference: the largest difference between the two results; None where they are meant to differ.
        tolerance: what it may be.
        repeats: how many times each way was timed.
    """

    name: str
    title: str
    plain: float | None
    project: float
    figures: tuple[Figure, ...]
    difference: float | None = None
    tolerance: float | None = None
    repeats: int = 1

    @property
    def same(self) -> bool:
        """Whether both ways gave the same result, as far as they are meant to."""
        return self.difference is None or self.tolerance is None or self.difference <= self.tolerance

    @property
    def met(self) -> bool:
        """Whether all targets are met and the results agree."""
        return self.same and all(figure.met for figure in self.figures)

    def cells(self) -> list[str]:
        """The row as text, in the order of `HEADINGS`."""
        ratio = next((figure for figure in self.figures if figure.name == RATIO), None)
        return [
            self.title,
            "–" if self.plain is None else show_seconds(self.plain),
            show_seconds(self.project),
            ", ".join(str(figure) for figure in self.figures if figure is not ratio) or "–",
            "–" if self.difference is None else f"{self.difference:.0e} (≤ {self.tolerance:.0e})",
            ", ".join(filter(None, (figure.target() for figure in self.figures))),
            "yes" if self.met else "NO",
            "–" if ratio is None else str(ratio),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        figures = [{**asdict(figure), "met": figure.met} for figure in self.figures]
        return {**asdict(self), "figures": figures, "met": self.met}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Row:
        """The row that `as_dict` gave."""
        figures = [{k: v for k, v in figure.items() if k != "met"} for figure in values["figures"]]
        rest = {k: v for k, v in values.items() if k not in ("figures", "met")}
        return Row(figures=tuple(Figure(**figure) for figure in figures), **rest)


def show_seconds(seconds: float) -> str:
    """A time with a fitting unit."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.2f} µs"
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with columns as wide as they need."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for docs/performance.md."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def describe_machine() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "pillow": PIL.__version__,
        },
    }


def machine_line(about: dict[str, Any]) -> str:
    """The machine in one sentence."""
    machine, versions = about["machine"], about["versions"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load']} "
        f"at the start; {', '.join(f'{name} {version}' for name, version in versions.items())}; commit "
        f"{about['commit']}, {about['date']}"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
