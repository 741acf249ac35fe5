import base64

import numpy as np
import torch

from reporting.triples import describe_selections, make_strips, source_names, thumbnail_size
from structures import ModelOutput, PerModality, Selection


def test_thumbnails_keep_the_aspect_and_are_never_enlarged() -> None:
    assert thumbnail_size(256, 128) == (192, 96)
    assert thumbnail_size(128, 256) == (96, 192)
    assert thumbnail_size(128, 64) == (128, 64)


def test_strips_are_the_images_side_by_side() -> None:
    colours = PerModality(
        torch.tensor([1.0, -1.0, -1.0]), torch.tensor([-1.0, 1.0, -1.0]), torch.tensor([0.0, 0.0, 0.0])
    )
    images = colours.map(lambda colour: colour.view(1, 3, 1, 1).expand(2, 3, 16, 8))
    half = [0.5, 0.5, 0.5]
    strips = make_strips(images, half, half)
    assert [strip.size for strip in strips] == [(24, 16)] * 2
    pixels = np.asarray(strips[1])
    assert pixels[8, 3].tolist() == [255, 0, 0]
    assert pixels[8, 12].tolist() == [0, 255, 0]
    assert pixels[8, 20].tolist() == [128, 128, 128]


def test_sources_are_named_in_the_order_of_the_model() -> None:
    def selection(num_sources: int) -> Selection:
        nothing = PerModality.build(lambda _: torch.zeros(1, 0))
        sources = PerModality.build(lambda _: torch.zeros(1, num_sources, 8))
        return Selection(nothing, nothing, sources, nothing, grid=(4, 2))

    assert source_names(selection(0), 0.25) == {"RGB": [], "NI": [], "TI": []}  # slimming
    assert source_names(selection(2), 0.25)["NI"] == ["learned", "evidence"]
    assert source_names(selection(4), 0.25) == {
        "RGB": ["learned", "own: RGB", "NI", "TI"],
        "NI": ["learned", "own: NI", "RGB", "TI"],
        "TI": ["learned", "own: TI", "RGB", "NI"],
    }
    assert source_names(selection(4), 0.5)["NI"] == ["own: NI", "RGB", "TI"]
    assert source_names(selection(2), 0.5)["NI"] == ["evidence"]
    assert source_names(selection(2), 0.0)["NI"] == ["learned"]


def test_sources_that_do_not_count_are_left_out_of_the_data() -> None:
    sources = torch.tensor([[[0.0, 1.0], [0.2, 0.4]]])  # (1, 2, 2): learned, evidence
    scores = PerModality.build(lambda _: sources[:, 1])
    kept = PerModality.build(lambda _: torch.tensor([[1]]))
    weights = PerModality.build(lambda _: torch.zeros(1, 0, 1))
    selection = Selection(kept, scores, PerModality.build(lambda _: sources), weights, grid=(2, 1))
    outputs = {"complete": ModelOutput(heads=(), selection=selection)}
    for beta, expected in ((0.5, [51, 102]), (0.25, [0, 255, 51, 102]), (0.0, [0, 255])):
        (content,) = describe_selections(outputs, 1, beta)
        _, *described = np.frombuffer(
            base64.b64decode(content["complete"]["NI"]["scores"]), np.uint8
        ).reshape(-1, 2)
        assert np.concatenate(described).tolist() == expected
