"""A figure as a plane measured in inches, and its files.

Everything is placed from the upper left corner, so that the width is exactly the one that was asked for.
Nothing here uses pyplot or leaves a trace in matplotlib's settings.
"""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

DPI = 300
SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # whole TrueType fonts: publishers refuse Type 3
    "image.composite_image": False,  # each image stays an object of its own in the PDF
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure everywhere
    "text.usetex": False,
}
UNDATED = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Metadata by format: the same figure gives the same file."""
ENDINGS = tuple(f".{kind}" for kind in UNDATED)
LABEL_SIZE, CAPTION_SIZE = 7.0, 5.5  # points
RIGHT, WRONG = "#009E73", "#D55E00"  # green and red that the colour-blind can tell apart
FRAME_WIDTH = 1.2  # points
FRAME = 0.015  # between an image and the middle of the line around it


class Plane:
    """A figure on which everything is placed in inches from the upper left corner.

    Args:
        width: of the figure.
        height: of the figure.
    """

    def __init__(self, width: float, height: float) -> None:
        with matplotlib.rc_context(SETTINGS):
            self.figure = Figure(figsize=(width, height), dpi=DPI)
            self._axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self._axes.set_axis_off()
        self._axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)

    def picture(self, pixels: np.ndarray, left: float, top: float, width: float, height: float) -> None:
        """Draw pixels (H, W, 3) in [0, 1]."""
        extent = (left, left + width, top + height, top)
        self._axes.imshow(pixels, extent=extent, aspect="auto", interpolation="antialiased")

    def frame(self, left: float, top: float, width: float, height: float, *, is_right: bool) -> None:
        """Draw a frame: solid for right, dashed for wrong, so that they differ in grey print too."""
        corner, sides = (left - FRAME, top - FRAME), (width + 2 * FRAME, height + 2 * FRAME)
        colour, style = (RIGHT, "-") if is_right else (WRONG, (0, (2.2, 1.4)))
        self._axes.add_patch(
            Rectangle(corner, *sides, fill=False, edgecolor=colour, linestyle=style, linewidth=FRAME_WIDTH)
        )

    def text(
        self,
        text: str,
        x: float,
        y: float,
        *,
        size: float = LABEL_SIZE,
        align: str = "center",
        turn: float = 0,
    ) -> None:
        """Write a line of text whose middle is at height y."""
        with matplotlib.rc_context(SETTINGS):
            self._axes.text(x, y, text, fontsize=size, ha=align, va="center", rotation=turn)


def figure_files(figure: Figure) -> dict[str, bytes]:
    """A figure as PDF and PNG: the content of each file, by its ending."""
    files = {}
    for kind, metadata in UNDATED.items():
        content = io.BytesIO()
        with matplotlib.rc_context(SETTINGS):
            figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        files[f".{kind}"] = content.getvalue()
    return files
