import numpy as np
import torch

from reporting.triples import make_strips, source_names, thumbnail_size
from structures import Modality, PerModality, Selection


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
    nothing = PerModality.build(lambda _: torch.zeros(1, 0))
    scores = torch.zeros(1, 8)

    def sources(modality: Modality) -> dict[str, torch.Tensor]:
        others = [other.key for other in Modality if other is not modality]
        return dict.fromkeys(("learned", "own", *others), scores)

    slimming = Selection(nothing, nothing, grid=(4, 2))
    sdtps = Selection(nothing, nothing, grid=(4, 2), sources=PerModality.build(sources))
    assert source_names(slimming, list(Modality)) == {"RGB": [], "NI": [], "TI": []}
    assert source_names(sdtps, list(Modality)) == {
        "RGB": ["learned", "own: RGB", "NI", "TI"],
        "NI": ["learned", "own: NI", "RGB", "TI"],
        "TI": ["learned", "own: TI", "RGB", "NI"],
    }
