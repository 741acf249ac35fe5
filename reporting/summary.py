"""What the page of a report reads: plain data from the results of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from evaluation.any_to_any import AnyToAny, Side
from evaluation.rank_lists import RankLists
from evaluation.result import EvaluationResult, main_scores
from evaluation.selection import SelectionMetrics
from reporting.feature_map import embed_in_plane
from structures import BEST_ON, LAST_EPOCH, MISSING_CONDITIONS, RETURN_PATTERNS, RankingMetrics


def cost_data(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply-adds and parameters of each part, then of all."""

    def cost_of(name: str) -> dict[str, Any]:
        return {"gflops": parts[name]["gflops"], "params_m": parts[name]["parameters"] / 1e6}

    listed = [{"name": name, **cost_of(name)} for name in parts if name != "total"]
    return {"parts": listed, **cost_of("total")}


def control_data(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The controls that training has scored."""
    trained = (LAST_EPOCH, *BEST_ON.values())
    return [{"name": name, **main_scores(found)} for name, found in summary.items() if name not in trained]


def training_data(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Columns over the epochs, and the split that `mAP` and `rank_1` are of.

    The scores are those of the last return pattern; None between evaluations.
    """
    if not epochs:
        return None
    split = next((split for split in BEST_ON if split in epochs[-1]), "test")
    scores = [main_scores(epoch[split]) if split in epoch else {} for epoch in epochs]
    return {
        "split": split,
        **{name: [epoch.get(name) for epoch in epochs] for name in ("epoch", "loss")},
        **{name: [found.get(name) for found in scores] for name in ("mAP", "rank_1")},
    }


def result_data(ranking: Mapping[str, Mapping[int, RankingMetrics]]) -> dict[str, Any]:
    """Return patterns, conditions, and the scores of each combination."""
    first = next(iter(ranking.values()))
    return {
        "patterns": [{"id": pattern, "name": RETURN_PATTERNS[pattern]} for pattern in first],
        "conditions": [
            {"id": condition, "missing": [m.value for m in MISSING_CONDITIONS[condition]]}
            for condition in ranking
        ],
        "results": [
            {"condition": condition, "pattern": pattern, **metrics.as_dict(), "cmc": _percent(metrics.cmc)}
            for condition, by_pattern in ranking.items()
            for pattern, metrics in by_pattern.items()
        ],
    }


def selection_data(selection: SelectionMetrics) -> dict[str, Any]:
    """Kept-patch precision in percent, with what it has to be compared with."""
    return {
        **{m.value: 100 * selection.precision.of(m) for m in selection.modalities},
        "chance": 100 * selection.chance,
        "best_possible": 100 * selection.best,
        "same_patches": {m.value: 100 * selection.same_indices.of(m) for m in selection.modalities},
    }


def sample_data(
    result: EvaluationResult, camera_names: Sequence[str], scene_names: Sequence[str]
) -> dict[str, Any]:
    """The labels of the test triples, and which of them are queries."""
    samples = result.samples
    absent = {
        modality.value: np.flatnonzero(~samples.present.of(modality)).tolist()
        for modality in samples.triples.modalities
        if not samples.present.of(modality).all()
    }
    return {
        "triples": {
            **({"absent": absent} if absent else {}),  # rows without an image
            "names": list(samples.names),
            "person": samples.person_ids.tolist(),
            "camera": [camera_names[camera] for camera in samples.camera_ids.tolist()],
            "scene": [scene_names[scene] for scene in samples.scene_ids.tolist()],
        },
        "queries": samples.triples.query_rows.tolist(),
        "gallery_size": len(samples.triples.gallery_rows),
    }


def any_to_any_data(matrix: AnyToAny) -> dict[str, Any]:
    """The cells with the name of their file of ranked lists, which equal cells share, and the means."""
    content = matrix.as_dict()
    files: dict[int, str] = {}
    for (sides, metrics), cell in zip(matrix.cells.items(), content["cells"], strict=True):
        cell["id"] = cell_id(*sides)
        if metrics is not None:
            cell["ranking"] = files.setdefault(id(metrics), cell["id"])
    return content


def cell_id(query: Side, gallery: Side) -> str:
    """The name of a cell of the any-to-any matrix: r-nt for RGB against NI and TI."""
    return "-".join("".join(m.letter for m in side) for side in (query, gallery))


def breakdown_data(result: EvaluationResult, camera_names: Sequence[str]) -> dict[str, Any]:
    """Scores by identity and by pair of cameras, of the last return pattern."""
    content = result.breakdown
    pairs = [
        {**pair, "query": camera_names[pair["query"]], "gallery": camera_names[pair["gallery"]]}
        for pair in content["camera_pairs"]
    ]
    return {**content, "camera_pairs": pairs}


def ranking_data(metrics: RankingMetrics, lists: RankLists) -> dict[str, Any]:
    """One entry per query; the lists end where the gallery does."""
    rows = [[row for row in items if row >= 0] for items in lists.items.tolist()]
    distances = [
        [round(distance, 4) for distance in nearest[: len(kept)]]
        for nearest, kept in zip(lists.distances.tolist(), rows, strict=True)
    ]
    matches = zip(
        lists.positive_ranks.tolist(),
        lists.positives.tolist(),
        lists.positive_distances.tolist(),
        strict=True,
    )
    return {
        "ap": _percent(metrics.average_precisions),
        "inp": _percent(metrics.inverse_negative_penalties),
        "first": metrics.first_hits.tolist(),
        "rows": rows,
        "distances": distances,
        "match": [[rank, row, round(distance, 4)] if rank else None for rank, row, distance in matches],
    }


def feature_maps(result: EvaluationResult) -> dict[str, Any]:
    """By return pattern, one point per test triple."""
    maps = {}
    for pattern in tqdm(result.ranking, desc="feature maps", unit="map", leave=False, disable=None):
        points = np.round(embed_in_plane(result.samples.compared_features(pattern)), 4)
        maps[str(pattern)] = {"x": points[:, 0].tolist(), "y": points[:, 1].tolist()}
    return maps


def _percent(shares: np.ndarray) -> list[float]:
    return np.round(100 * shares, 2).tolist()
