"""Figures for papers: ranked lists, and maps of what the model does with the patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from reporting.pictures import Maps
from reporting.plane import CAPTION_SIZE, Plane
from structures import Modality

PAGE_HEIGHT = 9.0  # inches of text on a page of a journal
LINE = 0.13  # height of a line of text
GAP = 0.02  # between the images of a triple
SPACE = 0.08  # between triples
EDGE = 0.03  # around everything: half of a frame
MIN_SIDE = 0.35  # of an image in a map; triples that would make it smaller go to the next line
BAR = (0.9, 0.07)  # width and height of a colour bar


class RankCell(NamedTuple):
    """One triple of a ranked list.

    Attributes:
        pictures: of the three modalities, (3, H, W, 3) in [0, 1].
        caption: a few letters.
        is_right: whether the identity is that of the query; None for the query itself.
    """

    pictures: np.ndarray
    caption: str
    is_right: bool | None = None


class RankLayout(NamedTuple):
    """Where the parts of ranked lists go, in inches.

    Attributes:
        stacked: the three images of a triple are above each other, not side by side.
        left: of the first triple.
        top: of the first triple.
        cell: width of a triple.
        width: of an image.
        height: of an image.
        row: from one query to the next.
        total: height of the figure.
    """

    stacked: bool
    left: float
    top: float
    cell: float
    width: float
    height: float
    row: float
    total: float


def arrange_ranks(
    num_rows: int, num_columns: int, aspect: float, width: float, *, stacked: bool
) -> RankLayout:
    """Fill the width of a figure with ranked lists.

    Args:
        num_rows: queries.
        num_columns: the query and its nearest triples.
        aspect: height of an image divided by its width.
        width: of the figure.
        stacked: see `RankLayout`.
    """
    left = LINE if stacked else EDGE
    top = (LINE if stacked else 2 * LINE) + EDGE
    # One more space sets the query apart from its list.
    cell = (width - left - EDGE - num_columns * SPACE) / num_columns
    count = len(Modality)
    image = cell if stacked else (cell - (count - 1) * GAP) / count
    height = aspect * image
    triple = count * height + (count - 1) * GAP if stacked else height
    row = triple + LINE + SPACE
    return RankLayout(stacked, left, top, cell, image, height, row, top + num_rows * row - SPACE)


def draw_ranks(lists: Sequence[Sequence[RankCell]], *, width: float) -> Figure:
    """Draw one row per query: the query, then its nearest triples.

    Triples are stacked where the figure then fits on a page, and side by side otherwise.

    Args:
        lists: of each query, the query first; all images of one size.
        width: of the figure in inches.
    """
    _, pixel_height, pixel_width, _ = lists[0][0].pictures.shape
    sizes = (len(lists), max(map(len, lists)), pixel_height / pixel_width, width)
    layout = arrange_ranks(*sizes, stacked=True)
    if layout.total > PAGE_HEIGHT:
        layout = arrange_ranks(*sizes, stacked=False)
    plane = Plane(width, layout.total)
    for column in range(max(map(len, lists))):
        middle = _column(layout, column) + layout.cell / 2
        plane.text("query" if column == 0 else str(column), middle, LINE / 2)
    for row, cells in enumerate(lists):
        top = layout.top + row * layout.row
        if layout.stacked or row == 0:
            _name_modalities(plane, layout, top)
        for column, cell in enumerate(cells):
            _draw_triple(plane, layout, cell, _column(layout, column), top)
    return plane.figure


def _column(layout: RankLayout, column: int) -> float:
    return layout.left + column * (layout.cell + SPACE) + (SPACE if column else 0.0)


def _name_modalities(plane: Plane, layout: RankLayout, top: float) -> None:
    for place, modality in enumerate(Modality):
        if layout.stacked:
            middle = top + place * (layout.height + GAP) + layout.height / 2
            plane.text(modality.value, LINE / 2, middle, size=CAPTION_SIZE, turn=90)
        else:
            middle = layout.left + place * (layout.width + GAP) + layout.width / 2
            plane.text(modality.value, middle, top - LINE / 2 - EDGE, size=CAPTION_SIZE)


def _draw_triple(plane: Plane, layout: RankLayout, cell: RankCell, left: float, top: float) -> None:
    right_step = 0.0 if layout.stacked else layout.width + GAP
    down_step = layout.height + GAP if layout.stacked else 0.0
    for place, picture in enumerate(cell.pictures):
        plane.picture(
            picture, left + place * right_step, top + place * down_step, layout.width, layout.height
        )
    bottom = top + (len(Modality) - 1) * down_step + layout.height
    if cell.is_right is not None:
        plane.frame(left, top, layout.cell, bottom - top, is_right=cell.is_right)
    plane.text(cell.caption, left + layout.cell / 2, bottom + EDGE + LINE / 2, size=CAPTION_SIZE)


class MapLayout(NamedTuple):
    """Where the parts of maps go, in inches.

    Attributes:
        per_line: triples beside each other.
        left: of the first triple.
        top: of the first image.
        width: of an image.
        height: of an image.
        block: from one triple to the next.
        line: from one line of triples to the next.
        total: height of the figure.
    """

    per_line: int
    left: float
    top: float
    width: float
    height: float
    block: float
    line: float
    total: float


def arrange_maps(num_triples: int, num_views: int, aspect: float, width: float) -> MapLayout:
    """Fill the width of a figure with maps, but not more than a page, unless there are too many triples.

    Args:
        num_triples: T.
        num_views: V.
        aspect: height of an image divided by its width.
        width: of the figure.
    """
    left = LINE + EDGE

    def image_width(per_line: int) -> float:
        return (width - left - EDGE + SPACE) / per_line / num_views - GAP - (SPACE - GAP) / num_views

    def is_legible(image: float) -> bool:
        return image * min(1.0, aspect) >= MIN_SIDE

    most = max((n for n in range(1, num_triples + 1) if is_legible(image_width(n))), default=1)
    num_lines = math.ceil(num_triples / most)
    per_line = math.ceil(num_triples / num_lines)
    count = len(Modality)
    text = 2 * LINE  # the name of the triple and those of the views
    image = image_width(per_line)
    fitting = ((PAGE_HEIGHT - LINE - SPACE) / num_lines - text - count * GAP - SPACE) / count / aspect
    if fitting < image and is_legible(fitting):
        image = fitting
    block = num_views * (image + GAP) - GAP + SPACE
    line = text + count * (aspect * image + GAP) + SPACE
    left += (width - left - EDGE + SPACE - per_line * block) / 2
    return MapLayout(
        per_line, left, text, image, aspect * image, block, line, num_lines * line + LINE + SPACE
    )


def draw_maps(maps: Maps, names: Sequence[str], *, width: float) -> Figure:
    """Draw the views of triples: a block for each triple, in it a row per modality and a column per view.

    Args:
        maps: of T triples.
        names: of the triples.
        width: of the figure in inches.
    """
    num_triples, _, num_views, pixel_height, pixel_width, _ = maps.pictures.shape
    layout = arrange_maps(num_triples, num_views, pixel_height / pixel_width, width)
    plane = Plane(width, layout.total)
    for index, (views_of, name) in enumerate(zip(maps.pictures, names, strict=True)):
        line, place = divmod(index, layout.per_line)
        left, top = layout.left + place * layout.block, layout.top + line * layout.line
        plane.text(name, left + (layout.block - SPACE) / 2, top - 1.5 * LINE, size=CAPTION_SIZE)
        for row, (modality, views) in enumerate(zip(Modality, views_of, strict=True)):
            y = top + row * (layout.height + GAP)
            if place == 0:
                plane.text(modality.value, left - EDGE - LINE / 2, y + layout.height / 2, turn=90)
            for column, picture in enumerate(views):
                x = left + column * (layout.width + GAP)
                plane.picture(picture, x, y, layout.width, layout.height)
                if row == 0:
                    plane.text(maps.views[column], x + layout.width / 2, y - LINE / 2, size=CAPTION_SIZE)
    _draw_colour_bar(plane, maps, width - EDGE, layout.total - LINE / 2 - EDGE)
    return plane.figure


def _draw_colour_bar(plane: Plane, maps: Maps, right: float, middle: float) -> None:
    """From the right end: the upper text, the bar, the lower text and the label."""
    bar_width, bar_height = BAR
    letters = max(map(len, maps.ends)) * 0.6 * CAPTION_SIZE / 72  # about the width of the texts in inches
    left = right - letters - bar_width
    gradient = colormaps[maps.colours](np.linspace(0, 1, 256))[None, :, :3]
    plane.picture(gradient, left, middle - bar_height / 2, bar_width, bar_height)
    plane.text(maps.ends[1], left + bar_width + GAP, middle, size=CAPTION_SIZE, align="left")
    plane.text(f"{maps.label}  {maps.ends[0]}", left - GAP, middle, size=CAPTION_SIZE, align="right")
