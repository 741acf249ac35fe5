"""Features → points in the plane."""

from __future__ import annotations

import numpy as np

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
    from sklearn.decomposition import PCA  # late, since importing takes a second
    from sklearn.manifold import TSNE

    count = len(features)
    if count < 4:
        return np.column_stack([np.linspace(0, 1, count), np.full(count, 0.5)])
    reduced = features.astype(np.float64)
    dimensions = min(MAX_DIMENSIONS, *reduced.shape)
    with np.errstate(invalid="ignore"):  # equal features have no variance that could be explained
        reduced = PCA(dimensions, random_state=seed).fit_transform(reduced)
    # Equal features have no spread to start from.
    start = "pca" if dimensions > 1 and reduced[:, :2].std(axis=0).min() > 0 else "random"
    points = TSNE(
        perplexity=min(MAX_PERPLEXITY, (count - 1) / 3), init=start, random_state=seed
    ).fit_transform(reduced)
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - low) / np.maximum(high - low, 1e-12)
