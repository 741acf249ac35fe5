"""Small drawn data sets in the exact layout and naming of the real ones.

Every identity is seen by two cameras in two scenes. All four places are in the gallery; each query is drawn
at one of them again. So both protocols drop something for each query, and leave something.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from structures import Modality, PerModality

TRAIN_IDS = (2, 3, 5, 8, 13, 21)
TEST_IDS = (1, 7, 20, 34)
PLACES = tuple(product((1, 2), (1, 2)))
"""Camera and scene of each training and gallery triple of an identity."""
QUERY_PLACES = PLACES[:2]

Triple = PerModality[np.ndarray]


def draw_triple(person_id: int, place: tuple[int, int], shot: int, size: tuple[int, int]) -> Triple:
    """Stripes and levels that the identity decides, brightness by the camera, and noise; each (H, W, 3)."""
    height, width = size

    def draw(modality: Modality) -> np.ndarray:
        order = list(Modality).index(modality)
        own = np.random.default_rng([person_id, order])
        stripes = own.uniform(40, 200, (1, 8, 3)).repeat(-(-width // 8), axis=1)[:, :width]
        noise = np.random.default_rng([person_id, order, *place, shot]).normal(0, 12, (height, width, 3))
        return np.clip(stripes + 10 * place[0] + noise, 0, 255).astype(np.uint8)

    return PerModality.build(draw)


def save(pixels: np.ndarray, path: Path) -> None:
    """Write a JPEG, and its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="JPEG", quality=90)


def _rgbnt201(split: str, person_id: int, camera: int, scene: int, shot: int) -> PerModality[str]:
    folder = "train_171" if split == "train" else "test"
    name = f"{person_id:06d}_cam{camera}_{scene}_{shot:02d}.jpg"
    return PerModality.build(lambda m: f"RGBNT201/{folder}/{m.value}/{name}")


def _rgbnt100(split: str, person_id: int, camera: int, scene: int, shot: int) -> PerModality[str]:
    folder = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}[split]
    name = f"{person_id:04d}_c{camera:04d}_{10 * scene + shot:03d}.jpg"
    return PerModality.build(lambda _: f"RGBNT100/rgbir/{folder}/{name}")


def _msvr310(split: str, person_id: int, camera: int, scene: int, shot: int) -> PerModality[str]:
    folder = {"train": "bounding_box_train", "query": "query3", "gallery": "bounding_box_test"}[split]
    name = f"{person_id:04d}_s{scene:03d}_v{camera}_{shot:03d}.jpg"
    return PerModality(*(f"MSVR310/{folder}/{person_id:04d}/{kind}/{name}" for kind in ("vis", "ni", "th")))


def _wmveid863(split: str, person_id: int, camera: int, scene: int, shot: int) -> PerModality[str]:
    folder = {"train": "train", "query": "query", "gallery": "test"}[split]
    name = f"{person_id:04d}_v{camera}_n{scene}_{shot:03d}.jpg"
    return PerModality(*(f"WMVEID863/{folder}/{person_id:04d}/{kind}/{name}" for kind in ("vis", "ni", "th")))


MINIATURES: dict[str, Callable[[str, int, int, int, int], PerModality[str]]] = {
    "RGBNT201": _rgbnt201,
    "RGBNT100": _rgbnt100,
    "MSVR310": _msvr310,
    "WMVeID863": _wmveid863,
}
"""By data set: split, identity, camera, scene and shot → the files of a triple below the root."""


def _shots(name: str) -> Iterator[tuple[str, int, tuple[int, int], int]]:
    """Split, identity, place and shot of each triple."""
    yield from (("train", person_id, place, 0) for person_id in TRAIN_IDS for place in PLACES)
    yield from (("gallery", person_id, place, 0) for person_id in TEST_IDS for place in PLACES)
    if name != "RGBNT201":  # there, query and gallery are the same
        yield from (("query", person_id, place, 1) for person_id in TEST_IDS for place in QUERY_PLACES)


def draw_miniature(name: str, root: Path, *, size: tuple[int, int] = (32, 32)) -> Path:
    """Draw the miniature of a data set: 6 training identities × 4 triples, 4 test identities.

    Args:
        name: one of `MINIATURES`.
        root: the folder for DATASETS.ROOT_DIR.
        size: height and width of one image; a strip is three times as wide.

    Returns:
        the folder of the data set.
    """
    for split, person_id, place, shot in _shots(name):
        files = MINIATURES[name](split, person_id, *place, shot)
        triple = draw_triple(person_id, place, shot, size)
        if len(set(files)) == 1:
            save(np.concatenate(triple, axis=1), root / files.rgb)
        else:
            for file, pixels in zip(files, triple, strict=True):
                save(pixels, root / file)
    return root / Path(files.rgb).parts[0]
