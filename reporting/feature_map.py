"""Features → points in the plane."""

from __future__ import annotations

import numpy as np

from reporting.extra import import_extra

MAX_DIMENSIONS = 50  # before t-SNE; more are cut by PCA, which hardly changes the neighbours
MAX_PERPLEXITY = 30.0


def embed_in_plane(features: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """t-SNE: similar features become near points.

    Distances between far points, and the size of clusters, mean nothing.

    Args:
        features: (S, D), as they are compared in retrieval, so normalised if that normalises.
        seed: of the initialisation; the same seed gives the same map.

    Returns:
        (S, 2), in [0, 1]. Fewer than four samples lie on a line, since there is nothing to arrange.
    """
    count = len(features)
    if count < 4:
        return np.column_stack([np.linspace(0, 1, count), np.full(count, 0.5)])

    # PCA first. Equal features have no variance to explain and no spread to start from.
    reduced = features.astype(np.float64)
    dimensions = min(MAX_DIMENSIONS, *reduced.shape)
    pca = import_extra("sklearn.decomposition").PCA(dimensions, random_state=seed)
    with np.errstate(invalid="ignore"):
        reduced = pca.fit_transform(reduced)
    start = "pca" if dimensions > 1 and reduced[:, :2].std(axis=0).min() > 0 else "random"

    # t-SNE, scaled to [0, 1].
    perplexity = min(MAX_PERPLEXITY, (count - 1) / 3)
    tsne = import_extra("sklearn.manifold").TSNE(perplexity=perplexity, init=start, random_state=seed)
    points = tsne.fit_transform(reduced)
    low, high = points.min(axis=0), points.max(axis=0)
    return np.asarray((points - low) / np.maximum(high - low, 1e-12))
