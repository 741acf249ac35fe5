"""Figures: where things go, what is drawn, and the files."""

import io
import re
from itertools import product

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reporting.figures import (
    EDGE,
    ENDINGS,
    MIN_SIDE,
    NEGATIVE,
    PAGE_HEIGHT,
    POSITIVE,
    SPACE,
    RankCell,
    arrange_maps,
    arrange_ranks,
    draw_maps,
    draw_ranks,
    figure_files,
)
from reporting.pictures import Maps
from structures import Modality

PERSON, VEHICLE = (8, 4), (4, 8)  # height and width of images


def cell(is_positive: bool | None, caption: str = "", size: tuple[int, int] = PERSON) -> RankCell:
    return RankCell(np.full((3, *size, 3), 0.5), caption, is_positive)


def maps_of(num_triples: int, size: tuple[int, int] = PERSON) -> Maps:
    pictures = np.full((num_triples, 3, 2, *size, 3), 0.5)
    return Maps(pictures, tuple(Modality), ("image", "attention"), "inferno", "attention", ("least", "most"))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def frames(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("stacked", [True, False])
def test_ranked_lists_fill_the_width(stacked: bool) -> None:
    for rows, columns, aspect, width in product((1, 4), (2, 6, 11), (0.5, 2.0), (3.3, 7.0)):
        layout = arrange_ranks(rows, columns, aspect, width, stacked=stacked)
        right = layout.left + columns * (layout.cell + SPACE)  # the query has one more space after it
        assert right + EDGE == pytest.approx(width)
        assert layout.height == pytest.approx(aspect * layout.width)
        assert layout.width > 0


def test_triples_are_stacked_where_that_fits_on_a_page() -> None:
    for count, size in product((1, 2, 4), (PERSON, VEHICLE)):
        lists = [[cell(None, size=size), *[cell(True, size=size)] * 10] for _ in range(count)]
        height = draw_ranks(lists, width=7.0).get_size_inches()[1]
        stacked = arrange_ranks(count, 11, size[0] / size[1], 7.0, stacked=True).total
        assert height == pytest.approx(stacked) if stacked <= PAGE_HEIGHT else height < stacked
        assert height <= PAGE_HEIGHT


def test_positives_and_negatives_differ_in_colour_and_in_line() -> None:
    lists = [
        [cell(None, "id 1"), cell(True, "id 1 · 0.20"), cell(False, "id 2 · 0.30")],
        [cell(None, "id 2"), cell(False, "id 1 · 0.10")],  # a gallery that ended early
    ]
    figure = draw_ranks(lists, width=7.0)
    drawn = [(to_hex(frame.get_edgecolor()).upper(), frame.get_linestyle()) for frame in frames(figure)]
    assert [colour for colour, _ in drawn] == [POSITIVE, NEGATIVE, NEGATIVE]
    assert drawn[0][1] != drawn[1][1] == drawn[2][1]
    assert len(figure.axes[0].images) == 3 * 5
    assert {"query", "1", "2", "RGB", "NI", "TI", "id 1 · 0.20", "id 2 · 0.30"} <= set(texts(figure))
    assert "3" not in texts(figure)


def test_maps_stay_inside_the_figure_and_legible() -> None:
    for triples, views, aspect, width in product((1, 3, 4, 9), (2, 4), (0.5, 2.0), (3.3, 7.0)):
        layout = arrange_maps(triples, views, aspect, width)
        right = layout.left + layout.per_line * layout.block - SPACE
        assert layout.left >= EDGE
        assert right <= width - EDGE + 1e-9
        assert layout.total <= PAGE_HEIGHT + 1e-9 or triples == 9
        assert min(layout.width, layout.height) >= MIN_SIDE
    assert arrange_maps(4, 4, 2.0, 7.0).per_line == 4  # the figure that is drawn without arguments


def test_maps_name_triples_modalities_views_and_colours() -> None:
    figure = draw_maps(maps_of(3), ["first", "second", "third"], width=7.0)
    assert figure.get_size_inches()[0] == 7.0
    assert len(figure.axes[0].images) == 3 * 3 * 2 + 1  # and the colour bar
    found = texts(figure)
    assert {"first", "second", "third", "RGB", "NI", "TI", "most", "attention  least"} <= set(found)
    assert found.count("image") == found.count("attention") == 3


def test_files_are_as_wide_as_asked_with_fonts_that_publishers_take() -> None:
    figure = draw_maps(maps_of(2), ["first", "second"], width=3.5)
    files = figure_files(figure)
    assert tuple(files) == ENDINGS == (".pdf", ".png")
    pdf = files[".pdf"]
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf)
    assert box is not None
    assert float(box[1]) == 3.5 * 72
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert matplotlib.image.imread(io.BytesIO(files[".png"])).shape[1] == 3.5 * 300


def test_a_figure_drawn_twice_gives_the_same_files() -> None:
    contents = []
    for _ in range(2):
        figure = draw_ranks([[cell(None, "id 1"), cell(True, "id 1")]], width=3.0)
        contents.append(figure_files(figure))
    assert contents[0] == contents[1]


def test_drawing_leaves_no_trace_in_matplotlib() -> None:
    before = dict(matplotlib.rcParams)
    figure_files(draw_maps(maps_of(1), ["only"], width=7.0))
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []
