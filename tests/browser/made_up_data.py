"""Made-up numbers for report folders: rankings with their scores, patch data, training curves."""

import base64
from typing import Any

import numpy as np

GRID = (16, 8)
KEPT = 64
TOKENS = 25
LISTED = 20
CMC_LENGTH = 50


def _encoded(values: np.ndarray, maximum: float) -> str:
    return base64.b64encode(np.round(values / maximum * 255).astype(np.uint8).tobytes()).decode()


def make_patches(rng: np.random.Generator, *, learned: bool = True) -> dict[str, Any]:
    """Patch data whose high scores lie around a place near the middle, with or without the learned source."""
    rows, columns = np.mgrid[: GRID[0], : GRID[1]]
    centre = rng.normal((7.5, 3.5), (1.0, 0.5))
    sources = []
    for _ in range(4):
        spread = rng.uniform((3.0, 1.2), (6.0, 2.5))
        value = np.exp(-(((rows - centre[0]) / spread[0]) ** 2) - ((columns - centre[1]) / spread[1]) ** 2)
        value = value + 0.12 * rng.random(GRID)
        sources.append(((value - value.min()) / np.ptp(value)).ravel())
    total = 0.5 * sources[0] + 0.25 * (2 * sources[1] + sources[2] + sources[3])
    kept = np.sort(np.argsort(-total, kind="stable")[:KEPT])
    logits = 1.6 * rng.standard_normal((TOKENS, KEPT))
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    scores = np.concatenate(
        [total / 1.5, *sources[0 if learned else 1 :]]
    )  # the first part is scaled by score_max = 1.5
    return {
        "kept": kept.tolist(),
        "scores": _encoded(scores, 1.0),
        "score_max": 1.5,
        "weights": _encoded(weights, float(weights.max())),
        "weight_max": float(weights.max()),
        "tokens": TOKENS,
    }


def make_ranking(
    features: np.ndarray, person: np.ndarray, camera: np.ndarray, queries: np.ndarray
) -> tuple[dict[str, Any], np.ndarray]:
    """The content of one ranking file, and positive or negative in the order of rank, (Q, N)."""
    squares = (features**2).sum(axis=1)
    products = features[queries] @ features.T
    distances = np.sqrt(np.maximum(squares[queries, None] + squares - 2 * products, 0))
    distances[(person[queries, None] == person) & (camera[queries, None] == camera)] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")
    distances = np.take_along_axis(distances, order, axis=1)
    right = (person[order] == person[queries, None]) & np.isfinite(distances)
    ranks = np.arange(1, right.shape[1] + 1)
    totals = right.sum(axis=1)
    precision = np.cumsum(right, axis=1) / ranks
    ranking: dict[str, Any] = {key: [] for key in ("ap", "inp", "first", "rows", "distances", "match")}
    for query, total in enumerate(totals):
        hits = np.flatnonzero(right[query])
        listed = int(min(LISTED, np.isfinite(distances[query]).sum()))
        first = int(hits[0]) if total else -1
        ranking["ap"].append(round(float(100 * precision[query][hits].mean()), 3) if total else None)
        ranking["inp"].append(round(float(100 * total / (hits[-1] + 1)), 3) if total else None)
        ranking["first"].append(first + 1)
        ranking["rows"].append(order[query, :listed].tolist())
        ranking["distances"].append(np.round(distances[query, :listed], 4).tolist())
        match = [first + 1, int(order[query, first]), round(float(distances[query, first]), 4)]
        ranking["match"].append(match if total else None)
    return ranking, right


def make_result(condition: str, pattern: int, ranking: dict[str, Any], right: np.ndarray) -> dict[str, Any]:
    scored = right.any(axis=1)
    cmc = 100 * np.maximum.accumulate(right[scored], axis=1).mean(axis=0)
    return {
        "condition": condition,
        "pattern": pattern,
        "mAP": float(np.mean([ap for ap in ranking["ap"] if ap is not None])),
        "mINP": float(np.mean([inp for inp in ranking["inp"] if inp is not None])),
        **{f"rank_{k}": float(cmc[min(k, len(cmc)) - 1]) for k in (1, 5, 10)},
        "queries": int(scored.sum()),
        "skipped": int((~scored).sum()),
        "cmc": cmc[:CMC_LENGTH].round(3).tolist(),
    }


def make_breakdown(ranking: dict[str, Any], person: np.ndarray, camera: np.ndarray) -> dict[str, Any]:
    ap = np.array(ranking["ap"], dtype=float)
    first = np.array(ranking["first"])

    def scores(members: np.ndarray) -> dict[str, Any]:
        return {
            "queries": int(members.sum()),
            "mAP": float(np.nanmean(ap[members])),
            "rank_1": float(100 * (first[members] == 1).mean()),
        }

    cameras = np.unique(camera)
    return {
        "identities": [{"person": int(one), **scores(person == one)} for one in np.unique(person)],
        "camera_pairs": [
            {"query": int(a), "gallery": int(b), **scores(camera == a)}
            for a in cameras
            for b in cameras
            if a != b
        ],
    }


def make_any_to_any(sides: list[tuple[str, ...]], apart: str, common: str) -> dict[str, Any]:
    """The matrix of these modalities; cells without and with a common modality share a ranking file each."""
    cells: list[dict[str, Any]] = []
    for query in sides:
        for gallery in sides:
            shared = set(query) & set(gallery)
            cells.append(
                {
                    "query": list(query),
                    "gallery": list(gallery),
                    "mAP": 21.6 + 26.0 * len(shared),
                    "rank_1": 25.6 + 24.0 * len(shared),
                    "id": "-".join("".join(m[0].lower() for m in side) for side in (query, gallery)),
                    "ranking": common if shared else apart,
                }
            )
    crossed = [cell["mAP"] for cell in cells if cell["ranking"] == apart]
    return {
        "cells": cells,
        "mean": {"mAP": float(np.mean([cell["mAP"] for cell in cells])), "cells": len(cells)},
        "cross_modality_mean": {"mAP": float(np.mean(crossed)), "cells": len(crossed)},
        "chance": {"mAP": 4.1},
        "shared_space": True,
    }


def make_training(epochs: int, final: float) -> dict[str, Any]:
    steps = np.arange(1, epochs + 1)
    scores = [
        round(final * (1 - np.exp(-3.2 * e / epochs)), 2) if e % 5 == 0 else None for e in steps.tolist()
    ]
    return {
        "epoch": steps.tolist(),
        "loss": (5.1 * np.exp(-steps / (0.3 * epochs)) + 0.6).round(4).tolist(),
        "accuracy": (1 - np.exp(-steps / (0.2 * epochs))).round(4).tolist(),
        "mAP": scores,
        "rank_1": [None if score is None else min(100.0, score + 6) for score in scores],
    }
