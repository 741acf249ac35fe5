"""Figures for papers: ranked lists, and maps of what the model does with the patches.

Everything is placed in inches from the upper left corner, so that the width is exactly the one that was asked
for. Nothing here uses pyplot or leaves a trace in matplotlib's parameters.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reporting.extra import import_extra
from reporting.pictures import Maps
from structures import Modality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300
PARAMETERS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # whole TrueType fonts: publishers refuse Type 3
    "image.composite_image": False,  # each image stays an object of its own in the PDF
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure everywhere
    "text.usetex": False,
}
UNDATED = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Metadata by format: the same figure gives the same file."""
ENDINGS = tuple(f".{kind}" for kind in UNDATED)
LABEL_SIZE, CAPTION_SIZE = 7.0, 5.5  # points
POSITIVE, NEGATIVE = "#009E73", "#D55E00"  # green and red that the colour-blind can tell apart
FRAME_WIDTH = 1.2  # points
FRAME = 0.015  # between an image and the middle of the line around it
PAGE_HEIGHT = 9.0  # inches of text on a page of a journal
LINE = 0.13  # height of a line of text
GAP = 0.02  # between the images of a triple
SPACE = 0.08  # between triples
EDGE = 0.03  # around everything: half of a frame
MIN_SIDE = 0.35  # of an image in a map; triples that would make it smaller go to the next line
BAR = (0.9, 0.07)  # width and height of a colour bar


class Plane:
    """A figure on which everything is placed in inches from the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self._context = import_extra("matplotlib").rc_context
        with self._context(PARAMETERS):
            self.figure: Figure = import_extra("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI)
            self._axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self._axes.set_axis_off()
        self._axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)

    def picture(self, pixels: np.ndarray, left: float, top: float, width: float, height: float) -> None:
        """Draw pixels (H, W, 3) in [0, 1]."""
        extent = (left, left + width, top + height, top)
        self._axes.imshow(pixels, extent=extent, aspect="auto", interpolation="antialiased")

    def frame(self, left: float, top: float, width: float, height: float, *, is_positive: bool) -> None:
        """Draw a frame: solid for a positive, dashed for a negative, which differ in grey print too."""
        corner, sides = (left - FRAME, top - FRAME), (width + 2 * FRAME, height + 2 * FRAME)
        colour, style = (POSITIVE, "-") if is_positive else (NEGATIVE, (0, (2.2, 1.4)))
        look = {"fill": False, "edgecolor": colour, "linestyle": style, "linewidth": FRAME_WIDTH}
        self._axes.add_patch(import_extra("matplotlib.patches").Rectangle(corner, *sides, **look))

    def text(self, text: str, x: float, y: float, size: float = LABEL_SIZE, **options: Any) -> None:
        """Write a line of text, centred at (x, y) unless the options of matplotlib's text say otherwise."""
        with self._context(PARAMETERS):
            self._axes.text(x, y, text, **{"fontsize": size, "ha": "center", "va": "center", **options})


def figure_files(figure: Figure) -> dict[str, bytes]:
    """A figure as PDF and PNG: the content of each file, by its ending."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells every glyph that it embeds
    files = {}
    for kind, metadata in UNDATED.items():
        content = io.BytesIO()
        with import_extra("matplotlib").rc_context(PARAMETERS):
            figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        files[f".{kind}"] = content.getvalue()
    return files


class RankCell(NamedTuple):
    """One triple of a ranked list."""

    pictures: np.ndarray  # of the three modalities, (3, H, W, 3) in [0, 1]
    caption: str
    is_positive: bool | None = None  # whether the identity is that of the query; None for the query itself


class RankLayout(NamedTuple):
    """Where the parts of ranked lists go, in inches."""

    stacked: bool  # the three images of a triple are above each other, not side by side
    left: float  # of the first triple
    top: float  # of the first triple
    cell: float  # width of a triple
    width: float  # of an image
    height: float  # of an image
    row: float  # from one query to the next
    total: float  # height of the figure


def arrange_ranks(
    num_rows: int, num_columns: int, aspect: float, width: float, *, stacked: bool, count: int = 3
) -> RankLayout:
    """Fill the width of a figure with ranked lists, a row per query.

    `aspect` of an image is height / width; `count` is that of the images of a triple.
    """
    left = LINE if stacked else EDGE
    top = (LINE if stacked else 2 * LINE) + EDGE
    # One more space sets the query apart from its list.
    cell = (width - left - EDGE - num_columns * SPACE) / num_columns
    image = cell if stacked else (cell - (count - 1) * GAP) / count
    height = aspect * image
    triple = count * height + (count - 1) * GAP if stacked else height
    row = triple + LINE + SPACE
    return RankLayout(stacked, left, top, cell, image, height, row, top + num_rows * row - SPACE)


def draw_ranks(
    lists: Sequence[Sequence[RankCell]], *, width: float, modalities: Sequence[Modality] = tuple(Modality)
) -> Figure:
    """Draw one row per query: the query, then its nearest triples.

    Triples are stacked where the figure then fits on a page, and side by side otherwise. All images have one
    size; the width of the figure is in inches.
    """
    _, pixel_height, pixel_width, _ = lists[0][0].pictures.shape
    num_columns = max(map(len, lists))
    sizes = (len(lists), num_columns, pixel_height / pixel_width, width)
    layout = arrange_ranks(*sizes, stacked=True, count=len(modalities))
    if layout.total > PAGE_HEIGHT:
        layout = arrange_ranks(*sizes, stacked=False, count=len(modalities))
    plane = Plane(width, layout.total)
    lefts = [layout.left + i * (layout.cell + SPACE) + (SPACE if i else 0.0) for i in range(num_columns)]
    for column, left in enumerate(lefts):
        plane.text("query" if column == 0 else str(column), left + layout.cell / 2, LINE / 2)
    for row, cells in enumerate(lists):
        top = layout.top + row * layout.row
        if layout.stacked or row == 0:
            _name_modalities(plane, layout, top, modalities)
        for left, cell in zip(lefts, cells, strict=False):
            _draw_triple(plane, layout, cell, left, top)
    return plane.figure


def _name_modalities(plane: Plane, layout: RankLayout, top: float, modalities: Sequence[Modality]) -> None:
    for index, modality in enumerate(modalities):
        if layout.stacked:
            middle = top + index * (layout.height + GAP) + layout.height / 2
            plane.text(modality.value, LINE / 2, middle, CAPTION_SIZE, rotation=90)
        else:
            middle = layout.left + index * (layout.width + GAP) + layout.width / 2
            plane.text(modality.value, middle, top - LINE / 2 - EDGE, CAPTION_SIZE)


def _draw_triple(plane: Plane, layout: RankLayout, cell: RankCell, left: float, top: float) -> None:
    x, y = left, top
    for picture in cell.pictures:
        plane.picture(picture, x, y, layout.width, layout.height)
        bottom = y + layout.height
        x, y = (x, bottom + GAP) if layout.stacked else (x + layout.width + GAP, y)
    if cell.is_positive is not None:
        plane.frame(left, top, layout.cell, bottom - top, is_positive=cell.is_positive)
    plane.text(cell.caption, left + layout.cell / 2, bottom + EDGE + LINE / 2, CAPTION_SIZE)


class MapLayout(NamedTuple):
    """Where the parts of maps go, in inches."""

    per_line: int  # triples beside each other
    left: float  # of the first triple
    top: float  # of the first image
    width: float  # of an image
    height: float  # of an image
    block: float  # from one triple to the next
    line: float  # from one line of triples to the next
    total: float  # height of the figure


def arrange_maps(num_triples: int, num_views: int, aspect: float, width: float, count: int = 3) -> MapLayout:
    """Fill the width of a figure with maps, but not more than a page, unless there are too many triples.

    `aspect` of an image is height / width; `count` is that of the images of a triple.
    """
    left = LINE + EDGE
    text = 2 * LINE  # the name of the triple and those of the views

    def image_width(per_line: int) -> float:
        return (width - left - EDGE + SPACE) / per_line / num_views - GAP - (SPACE - GAP) / num_views

    def is_legible(image: float) -> bool:
        return image * min(1.0, aspect) >= MIN_SIDE

    # As many triples in a line as stay legible, then equally many in each line.
    most = max((n for n in range(1, num_triples + 1) if is_legible(image_width(n))), default=1)
    num_lines = math.ceil(num_triples / most)
    per_line = math.ceil(num_triples / num_lines)
    # As wide as the figure allows, or as high as the page allows.
    image = image_width(per_line)
    fitting = ((PAGE_HEIGHT - LINE - SPACE) / num_lines - text - count * GAP - SPACE) / count / aspect
    if fitting < image and is_legible(fitting):
        image = fitting
    height = aspect * image
    block = num_views * (image + GAP) - GAP + SPACE
    line = text + count * (height + GAP) + SPACE
    left += (width - left - EDGE + SPACE - per_line * block) / 2
    return MapLayout(per_line, left, text, image, height, block, line, num_lines * line + LINE + SPACE)


def draw_maps(maps: Maps, names: Sequence[str], *, width: float) -> Figure:
    """Draw the views of triples: a block for each triple, in it a row per modality and a column per view."""
    num_triples, count, num_views, pixel_height, pixel_width, _ = maps.pictures.shape
    layout = arrange_maps(num_triples, num_views, pixel_height / pixel_width, width, count)
    plane = Plane(width, layout.total)
    for index, (views_of, name) in enumerate(zip(maps.pictures, names, strict=True)):
        line, column = divmod(index, layout.per_line)
        left, top = layout.left + column * layout.block, layout.top + line * layout.line
        plane.text(name, left + (layout.block - SPACE) / 2, top - 1.5 * LINE, CAPTION_SIZE)
        for i, view in enumerate(maps.views):
            x = left + i * (layout.width + GAP)
            plane.text(view, x + layout.width / 2, top - LINE / 2, CAPTION_SIZE)
        for row, (modality, views) in enumerate(zip(maps.modalities, views_of, strict=True)):
            y = top + row * (layout.height + GAP)
            if column == 0:
                plane.text(modality.value, left - EDGE - LINE / 2, y + layout.height / 2, rotation=90)
            for i, picture in enumerate(views):
                plane.picture(picture, left + i * (layout.width + GAP), y, layout.width, layout.height)
    _draw_colour_bar(plane, maps, width - EDGE, layout.total - LINE / 2 - EDGE)
    return plane.figure


def draw_kept(rows: Mapping[str, np.ndarray], names: Sequence[str], *, width: float) -> Figure:
    """Draw the same triples in every row, a block for each triple and in it a column per modality.

    Args:
        rows: by the text at the left, pictures (T, 3, H, W, 3) in [0, 1].
        names: of the T triples.
        width: of the figure in inches.
    """
    # Images as wide as the texts at the left allow.
    num_triples, count, pixel_height, pixel_width, _ = next(iter(rows.values())).shape
    left = max(map(len, rows)) * 0.66 * LABEL_SIZE / 72 + 3 * EDGE
    space = width - left - EDGE - (num_triples - 1) * SPACE - num_triples * (count - 1) * GAP
    image = space / (num_triples * count)
    height = image * pixel_height / pixel_width
    block = count * (image + GAP) - GAP + SPACE
    top = 2 * LINE
    plane = Plane(width, top + len(rows) * (height + GAP) + EDGE)
    # The names of triples and modalities, then the rows.
    for index, name in enumerate(names):
        plane.text(name, left + index * block + (block - SPACE) / 2, LINE / 2, CAPTION_SIZE)
        for column, modality in enumerate(Modality):
            middle = left + index * block + column * (image + GAP) + image / 2
            plane.text(modality.value, middle, 1.5 * LINE, CAPTION_SIZE)
    for row, (title, triples) in enumerate(rows.items()):
        y = top + row * (height + GAP)
        plane.text(title, left - 2 * EDGE, y + height / 2, ha="right")
        for index, pictures in enumerate(triples):
            for column, picture in enumerate(pictures):
                plane.picture(picture, left + index * block + column * (image + GAP), y, image, height)
    return plane.figure


def _draw_colour_bar(plane: Plane, maps: Maps, right: float, middle: float) -> None:
    """From the right end: the upper text, the bar, the lower text and the label."""
    bar_width, bar_height = BAR
    letters = max(map(len, maps.ends)) * 0.6 * CAPTION_SIZE / 72  # about the width of the texts in inches
    left = right - letters - bar_width
    gradient = import_extra("matplotlib").colormaps[maps.colours](np.linspace(0, 1, 256))[None, :, :3]
    plane.picture(gradient, left, middle - bar_height / 2, bar_width, bar_height)
    plane.text(maps.ends[1], left + bar_width + GAP, middle, CAPTION_SIZE, ha="left")
    plane.text(f"{maps.label}  {maps.ends[0]}", left - GAP, middle, CAPTION_SIZE, ha="right")
