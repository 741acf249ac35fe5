"""Report folders with made-up data, in the format that reporting/ writes, for the tests of the page."""

import json
import os
import shutil
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from made_up_data import (
    GRID,
    make_any_to_any,
    make_breakdown,
    make_patches,
    make_ranking,
    make_result,
    make_training,
)
from PIL import Image, ImageDraw

PAGE = Path(__file__).parents[2] / "reporting" / "page"
MODALITIES = ("RGB", "NI", "TI")
PATTERNS = {1: "original", 2: "fused", 3: "original + fused"}
CONDITIONS: dict[str, tuple[str, ...]] = {
    "complete": (),
    **{"".join(m[0].lower() for m in lost): lost for n in (1, 2) for lost in combinations(MODALITIES, n)},
}
SIDES = [side for n in (1, 2, 3) for side in combinations(MODALITIES, n)]
"""What the query or the gallery of a cell of the any-to-any matrix may have."""
WIDTH, HEIGHT = 64, 128
LOOKS = 4
"""Different images of one identity."""
PATCH_VARIANTS = 6
"""Different patch data; the triples share them by turns."""
HOSTILE_NAMES = (
    "<img src=x onerror=alert(1)>.jpg",
    "a & b \"c\" 'd'.jpg",
    "</script><b>bold</b>.jpg",
    "ünï☃.jpg",
)


FACTS: dict[str, Any] = {
    "created": "2026-11-16 05:00",
    "modalities": list(MODALITIES),
    "image": {"width": WIDTH, "height": HEIGHT},
}
FULL_FACTS: dict[str, Any] = {
    **FACTS,
    "title": "DeMo_SDTPS on RGBNT201",
    "weights": "/home/somebody/a/rather/long/path/to/runs/RGBNT201/DeMo_SDTPS/best.pth",
    "commit": "626156c",
    "config": "MODEL:\n  NAME: DeMo_SDTPS\n  USE_SDTPS: true\nTEST:\n  MISS: none\n",
    "dataset": "RGBNT201",
    "protocol": "camera",
    "re_ranking": False,
    "grid": list(GRID),
    "sources": {m: ["learned", f"own: {m}", *(o for o in MODALITIES if o != m)] for m in MODALITIES},
    "patterns": [{"id": number, "name": name} for number, name in PATTERNS.items()],
    "conditions": [{"id": name, "missing": list(lost)} for name, lost in CONDITIONS.items()],
    "controls": [
        {"name": "untrained", "mAP": 9.4, "mINP": 3.1, "rank_1": 7.9, "rank_5": 21.3, "rank_10": 33.0},
        {"name": "mean colour", "mAP": 21.7, "rank_1": 25.4, "rank_5": 44.6, "rank_10": 55.1},
    ],
    "selection": {
        **{"RGB": 68.1, "NI": 64.9, "TI": 74.4},
        "chance": 40.9,
        "best_possible": 81.7,
        "same_patches": {"RGB": 66.3, "NI": 65.2, "TI": 61.8},
    },
    "cost": {
        "parts": [
            {"name": "backbone", "gflops": 33.71, "params_m": 86.19},
            {"name": "PIFE", "gflops": 0.0016, "params_m": 1.58},
            {"name": "SDTPS", "gflops": 0.0512, "params_m": 0.41},
            {"name": "heads", "gflops": 0.0005, "params_m": 0.53},
        ],
        "gflops": 33.763,
        "params_m": 88.71,
    },
}
MINIMAL_FACTS: dict[str, Any] = {
    **FACTS,
    "title": "Baseline on <b>Mini & Co</b>",
    "weights": "best.pth",
    "commit": "0000000",
    "config": "A: <script>alert(1)</script>",
    "dataset": "Mini",
    "protocol": "scene",
    "re_ranking": True,
    "grid": None,
    "sources": None,
    "patterns": [{"id": 1, "name": "original"}],
    "conditions": [{"id": "complete", "missing": []}],
    "controls": [],
    "selection": None,
    "training": None,
    "breakdown": {"identities": [], "camera_pairs": []},
    "feature_map": {},
    "cost": {"parts": [], "gflops": 0, "params_m": 0},
}


@dataclass
class MadeUpReport:
    """A report folder and what is in it.

    Attributes:
        folder: holds index.html.
        summary: the content of data/summary.js.
        rankings: the content of the ranking files, by condition and pattern; ("any", name) for the matrix.
        patches: the content of the patch files; triple r has entry r modulo their number.
    """

    folder: Path
    summary: dict[str, Any]
    rankings: dict[tuple[str, int | str], dict[str, Any]] = field(default_factory=dict)
    patches: list[dict[str, Any]] = field(default_factory=list)

    def triple(self, row: int) -> dict[str, Any]:
        """The patch data of one triple, by condition and modality."""
        return self.patches[row % len(self.patches)]

    def hardest_first(self, condition: str, pattern: int) -> list[int]:
        """The rows of the queries by ascending AP, skipped ones last."""
        ap = self.rankings[condition, pattern]["ap"]
        order = sorted(range(len(ap)), key=lambda index: (ap[index] is None, ap[index] or 0.0, index))
        return [self.summary["queries"][index] for index in order]


def _strip(identity: int, look: int) -> Image.Image:
    """A figure in three modalities, side by side; the identity sets the colours."""
    rng = np.random.default_rng((identity, 7))
    coat, legs = rng.integers(40, 230, 3), rng.integers(30, 160, 3)
    strip = Image.new("RGB", (WIDTH * len(MODALITIES), HEIGHT))
    pen = ImageDraw.Draw(strip)
    for index, modality in enumerate(MODALITIES):
        left = index * WIDTH
        shift = left + WIDTH // 2 + 3 * look - 5

        def shade(colour: np.ndarray, heat: int, modality: str = modality) -> tuple[int, ...]:
            grey = int(colour.mean())
            return {"RGB": tuple(map(int, colour)), "NI": (grey,) * 3, "TI": (heat, heat // 2, 90)}[modality]

        pen.rectangle(
            (left, 0, left + WIDTH - 1, HEIGHT), fill=shade(np.array([120, 130, 120 + 20 * look]), 30)
        )
        pen.ellipse((shift - 8, 10, shift + 8, 30), fill=shade(np.array([205, 160, 130]), 250))
        pen.rectangle((shift - 15, 31, shift + 15, 74), fill=shade(coat, 190))
        pen.rectangle((shift - 12, 75, shift - 2, 118), fill=shade(legs, 160))
        pen.rectangle((shift + 2, 75, shift + 12, 118), fill=shade(legs, 160))
    return strip


def _write_images(folder: Path, person: np.ndarray) -> None:
    folder.mkdir()
    drawn: dict[tuple[int, int], Path] = {}
    for row, identity in enumerate(person):
        look = (int(identity), row % LOOKS)
        path = folder / f"{row}.jpg"
        if look in drawn:
            os.link(drawn[look], path)
        else:
            _strip(*look).save(path, quality=85)
            drawn[look] = path


def _write_data(path: Path, name: str, content: str) -> None:
    path.write_text(f'REPORT.receive("{name}", {content});\n', encoding="utf-8")


def _finish(report: MadeUpReport, person: np.ndarray) -> MadeUpReport:
    """Write the folder."""
    shutil.copytree(PAGE, report.folder, dirs_exist_ok=True)
    data = report.folder / "data"
    data.mkdir()
    _write_data(data / "summary.js", "summary", json.dumps(report.summary))
    for (condition, pattern), ranking in report.rankings.items():
        name = f"ranking_{condition}_{pattern}"
        _write_data(data / f"{name}.js", name, json.dumps(ranking))
    _write_images(report.folder / "images", person)
    if report.patches:
        (data / "triples").mkdir()
        texts = [json.dumps(patches) for patches in report.patches]
        for row in range(len(person)):
            _write_data(data / "triples" / f"{row}.js", f"triples/{row}", texts[row % len(texts)])
    return report


def _columns(
    names: list[str], person: np.ndarray, camera: np.ndarray, scene: np.ndarray
) -> dict[str, list[Any]]:
    columns = {"person": person, "camera": camera, "scene": scene}
    return {"names": names, **{key: column.tolist() for key, column in columns.items()}}


def _noise(condition: str, pattern: int) -> float:
    return {1: 0.62, 2: 0.55, 3: 0.5}[pattern] + 0.14 * len(CONDITIONS[condition])


def write_full_report(
    folder: Path, *, triples: int = 836, identities: int = 30, seed: int = 0, learned: bool = True
) -> MadeUpReport:
    """A report of RGBNT201's size: 3 patterns, 7 conditions, any to any, patch data for every triple.

    Without `learned`, as with a beta of 0.5, the learned source has no weight and is left out.
    """
    rng = np.random.default_rng(seed)
    person = np.sort(rng.integers(0, identities, triples)) + 258
    camera = np.where(rng.random(triples) < 365 / 836, 1, 2)
    centres = rng.standard_normal((identities, 12))[person - 258]
    queries = np.arange(triples)
    rankings: dict[tuple[str, int | str], dict[str, Any]] = {}
    results = []
    for condition in CONDITIONS:
        for pattern in PATTERNS:
            noise = _noise(condition, pattern) * (1 + rng.random((triples, 1)))
            features = centres + 0.4 * camera[:, None] + noise * rng.standard_normal(centres.shape)
            rankings[condition, pattern], right = make_ranking(features, person, camera, queries)
            results.append(make_result(condition, pattern, rankings[condition, pattern], right))
    rankings["any", "r-n"], rankings["any", "r-r"] = rankings["rn", 1], rankings["complete", 1]
    maps = {}
    for pattern in PATTERNS:
        plane = 30 * rng.standard_normal((identities, 2))[person - 258] + 3 * rng.standard_normal(
            (triples, 2)
        )
        maps[str(pattern)] = {axis: plane[:, i].round(2).tolist() for i, axis in enumerate("xy")}
    names = [
        f"{p:06d}_cam{c}_0_{i % 90:02d}.jpg" for i, (p, c) in enumerate(zip(person, camera, strict=True))
    ]
    summary = {
        **FULL_FACTS,
        "sources": {m: names[0 if learned else 1 :] for m, names in FULL_FACTS["sources"].items()},
        "results": results,
        "any_to_any": make_any_to_any(SIDES, apart="r-n", common="r-r"),
        "triples": _columns(names, person, camera, np.zeros_like(camera)),
        "queries": queries.tolist(),
        "gallery_size": triples,
        "training": make_training(50, results[2]["mAP"]),
        "breakdown": make_breakdown(rankings["complete", 3], person, camera),
        "feature_map": maps,
    }
    patches = [
        {name: {m: make_patches(rng, learned=learned) for m in MODALITIES} for name in CONDITIONS}
        for _ in range(PATCH_VARIANTS)
    ]
    return _finish(MadeUpReport(folder, summary, rankings, patches), person)


def write_minimal_report(folder: Path) -> MadeUpReport:
    """What a report may lack: selection, training, controls, map; one pattern and condition; a skipped query.

    Query and gallery differ: rows 0 to 3 are queries, and the names are hostile to careless pages.
    """
    rng = np.random.default_rng(3)
    person = np.array([7, 7, 8, 9, 7, 7, 8, 8, 10, 10])  # 9 has no match: skipped
    camera = np.array([1, 2, 1, 1, 2, 1, 2, 2, 1, 2])
    queries = np.arange(4)
    features = person[:, None] + 0.8 * rng.standard_normal((len(person), 3))
    ranking, right = make_ranking(features, person, camera, queries)
    names = [HOSTILE_NAMES[row % len(HOSTILE_NAMES)] for row in range(len(person))]
    summary = {
        **MINIMAL_FACTS,
        "results": [make_result("complete", 1, ranking, right)],
        "triples": _columns(names, person, camera, camera + 10),
        "queries": queries.tolist(),
        "gallery_size": len(person),
    }
    return _finish(MadeUpReport(folder, summary, {("complete", 1): ranking}), person)
