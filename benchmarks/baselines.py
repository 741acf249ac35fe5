"""The plain ways: what published re-ID code does, written for the comparison and for nothing else.

Each of them does the same work as the project and gives the same result; `tests/benchmarks/` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from modeling.branches.demo import HDM, SUBSETS, DeMoFusion
from modeling.reid_model import MultiModalReID
from structures import RETURN_PATTERNS, ModalBatch, ModalTokens, ModelOutput, PerModality

Scores = tuple[float, float, np.ndarray]
"""mAP, mINP and CMC."""


def euclidean(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """All squared distances at once, (Q, D) and (G, D) to (Q, G), by torch as in published code."""
    first, second = torch.from_numpy(query), torch.from_numpy(gallery)
    shape = len(query), len(gallery)
    squares = [features.pow(2).sum(dim=1, keepdim=True) for features in (first, second)]
    distances = squares[0].expand(shape) + squares[1].T.expand(shape)
    return distances.addmm_(first, second.T, beta=1, alpha=-2).numpy()


def euclidean_numpy(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """As `euclidean`, by NumPy, whose matrix product is faster than torch's on some machines."""
    squares = np.square(query).sum(axis=1)[:, None] + np.square(gallery).sum(axis=1)[None, :]
    return np.asarray(squares - 2 * query @ gallery.T)


def rank_by_loop(
    distances: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
    max_rank: int = 50,
) -> Scores:
    """Sort the whole matrix (Q, G), then score one query after the other; groups are cameras or scenes."""
    indices = np.argsort(distances, axis=1)
    matches = (gallery_ids[indices] == query_ids[:, None]).astype(np.int32)
    curves, precisions, penalties = [], [], []
    for query in range(len(query_ids)):
        order = indices[query]
        same_id, same_group = (
            gallery[order] == own
            for gallery, own in ((gallery_ids, query_ids[query]), (gallery_groups, query_groups[query]))
        )
        hits = matches[query][~(same_id & same_group)]
        if not hits.any():
            continue
        found = hits.cumsum()
        last = np.flatnonzero(hits)[-1]
        penalties.append(found[last] / (last + 1.0))
        curves.append(np.minimum(found, 1)[:max_rank])
        shares = found / np.arange(1.0, len(found) + 1) * hits
        precisions.append(shares.sum() / hits.sum())
    return float(np.mean(precisions)), float(np.mean(penalties)), np.mean(curves, axis=0)


def rerank_by_loop(
    query: np.ndarray, gallery: np.ndarray, *, k1: int = 50, k2: int = 15, weight: float = 0.3
) -> np.ndarray:
    """K-reciprocal re-ranking with dense matrices (N, N), one item after the other; N = Q + G.

    Returns:
        (Q, G) distances.
    """
    # All distances, relative to the largest of each row.
    features = np.concatenate([query, gallery])
    num_items, num_queries = len(features), len(query)
    original = euclidean(features, features)
    original = (original / original.max(axis=1, keepdims=True)).astype(np.float32)
    ranks = np.argsort(original, axis=1, kind="stable")
    # Each item as its reciprocal neighbours, and theirs where most are shared.
    weights = np.zeros_like(original, dtype=np.float16)
    for item in range(num_items):
        near = _reciprocal_neighbours(ranks, item, k1)
        expanded = near
        for candidate in near:
            its_near = _reciprocal_neighbours(ranks, candidate, round(k1 / 2))
            if len(np.intersect1d(its_near, near)) > 2 / 3 * len(its_near):
                expanded = np.append(expanded, its_near)
        expanded = np.unique(expanded)
        closeness = np.exp(-original[item, expanded])
        weights[item, expanded] = closeness / closeness.sum()
    # The mean over the nearest items.
    if k2 > 1:
        averaged = np.zeros_like(weights)
        for item in range(num_items):
            averaged[item] = np.mean(weights[ranks[item, :k2]], axis=0)
        weights = averaged
    # Jaccard distances, mixed with the original ones.
    holders = [np.flatnonzero(weights[:, item]) for item in range(num_items)]
    jaccard = np.zeros((num_queries, num_items), dtype=np.float16)
    for item in range(num_queries):
        overlap = np.zeros(num_items, dtype=np.float16)
        for shared in np.flatnonzero(weights[item]):
            others = holders[shared]
            overlap[others] += np.minimum(weights[item, shared], weights[others, shared])
        jaccard[item] = 1 - overlap / (2 - overlap)
    result: np.ndarray = jaccard * (1 - weight) + original[:num_queries] * weight
    return result[:, num_queries:]


def _reciprocal_neighbours(ranks: np.ndarray, item: int, k: int) -> np.ndarray:
    forward = ranks[item, : k + 1]
    backward = ranks[forward, : k + 1]
    return forward[np.where(backward == item)[0]]


class PlainHDM(nn.Module):
    """HDM with torch's attention, once for each of the seven queries; the weights are those of `hdm`."""

    def __init__(self, hdm: HDM) -> None:
        super().__init__()
        self.queries = nn.ParameterDict()
        self.attentions = nn.ModuleDict()
        for name in SUBSETS:
            part: Any = hdm.attentions[name]
            state = {key.replace("in_proj.", "in_proj_"): value for key, value in part.state_dict().items()}
            self.queries[name] = nn.Parameter(state.pop("query").clone())
            self.attentions[name] = nn.MultiheadAttention(
                self.queries[name].shape[-1], part.num_heads, dropout=part.dropout, batch_first=True
            )
            self.attentions[name].load_state_dict(state)

    def forward(
        self, globals_: PerModality[Tensor], patches: PerModality[Tensor], _present: None = None
    ) -> Tensor:
        """Globals (B, C) and patches (B, N, C) -> (B, 7, C); nothing is absent."""
        features = []
        for name, subset in SUBSETS.items():
            parts = [part for m in subset for part in (globals_.of(m).unsqueeze(1), patches.of(m))]
            tokens = torch.cat(parts, dim=1)
            query = self.queries[name].expand(len(tokens), -1, -1)
            features.append(self.attentions[name](query, tokens, tokens, need_weights=False)[0].squeeze(1))
        return torch.stack(features, dim=1)


class PlainModel(nn.Module):
    """A model without slimming, whose backbone is called once for each modality, and with `PlainHDM`.

    It takes over the parts of `model`, which must not be used any more.
    """

    def __init__(self, model: MultiModalReID) -> None:
        super().__init__()
        if "moe" in model.branches:
            demo = cast(DeMoFusion, model.branches["moe"])
            demo.hdm = PlainHDM(demo.hdm)  # type: ignore[assignment]
        self.model = model

    def forward(self, batch: ModalBatch) -> ModelOutput:
        """Encode B triples."""
        encoded = batch.images.map(lambda images: self.model.backbone(images, batch.camera_ids))
        globals_, patches = encoded.map(lambda e: e.globals_), encoded.map(lambda e: e.patches)
        return self.model.fuse(ModalTokens(globals_, patches, globals_, self.model.backbone.grid))


def plain_adam(groups: Sequence[Mapping[str, Any]]) -> Optimizer:
    """Adam with a group for each tensor, updated one after the other.

    Args:
        groups: `params`, `lr` and `weight_decay`, as `solver.optimizer.parameter_groups` makes them.
    """
    single = [
        {"params": [tensor], "lr": group["lr"], "weight_decay": group["weight_decay"]}
        for group in groups
        for tensor in group["params"]
    ]
    return Adam(single, foreach=False, fused=False)


@torch.no_grad()
def evaluate_by_passes(
    model: Callable[[ModalBatch], ModelOutput], batches: Sequence[ModalBatch]
) -> dict[int, Scores]:
    """Score each return pattern by its own pass over the query and then the gallery, which are the same."""
    ids = torch.cat([batch.person_ids for batch in batches]).numpy()
    cameras = torch.cat([batch.camera_ids for batch in batches]).numpy()
    scores = {}
    for pattern in RETURN_PATTERNS:
        features = torch.cat([model(batch).embedding(pattern) for batch in (*batches, *batches)])
        # Random weights give features that are nearly equal: float32 distances would have ties.
        normalised = nn.functional.normalize(features.double(), dim=1).numpy()
        query, gallery = normalised[: len(ids)], normalised[len(ids) :]
        scores[pattern] = rank_by_loop(euclidean(query, gallery), ids, ids, cameras, cameras)
    return scores
