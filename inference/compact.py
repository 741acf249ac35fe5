"""Short descriptors: a PCA, learned once and kept in a file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.files import save_arrays
from errors import UserError
from inference.origin import Origin

ARRAYS = ("mean", "components", "scale", "whiten")
"""Of the file."""

_SMALLEST = 1e-9  # variance of a direction that counts, as a share of the largest


@dataclass(frozen=True, eq=False)
class Pca:
    """Turns descriptors of D numbers into descriptors of N, of which the first matter most."""

    mean: np.ndarray  # (D,)
    components: np.ndarray  # (N, D), of length 1, by falling variance
    scale: np.ndarray  # (N,) factor of each: the standard deviation along it to the power of −`whiten`
    whiten: float  # 0 keeps the distances as far as N numbers can; 1 makes all directions count the same
    origin: Mapping[str, Any]  # of the long descriptors, see `Origin.as_dict`

    @property
    def dim(self) -> int:
        """N."""
        return len(self.scale)

    def apply(self, features: Tensor) -> Tensor:
        """Descriptors (n, D), each of length 1, → (n, N), each of length 1."""
        mean, components, scale = map(torch.from_numpy, (self.mean, self.components, self.scale))
        return F.normalize((features - mean) @ components.T * scale, dim=1)

    def shortened(self, dim: int) -> Pca:
        """The first `dim` numbers alone; they are those of a PCA that was learned with `dim`."""
        if not 1 <= dim <= self.dim:
            raise UserError(
                f"--dim is {dim}, but the PCA has {self.dim} numbers; choose from 1 to {self.dim}"
            )
        return replace(self, components=self.components[:dim], scale=self.scale[:dim])

    def save(self, path: Path) -> None:
        """Write an .npz file; the same PCA gives the same bytes."""
        arrays = {name: np.asarray(getattr(self, name)) for name in ARRAYS}
        save_arrays(path, {**arrays, "origin": np.array(json.dumps(self.origin, sort_keys=True))})


def load_pca(path: Path, origin: Origin) -> Pca:
    """Read the file; it is refused unless it was learned from descriptors of this origin, without a PCA."""
    try:
        with np.load(path) as file:
            mean, components, scale, whiten = (file[name].astype(np.float32) for name in ARRAYS)
            stored = json.loads(str(file["origin"]))
        origin.check(stored, path)
        fits = scale.ndim == 1 and components.shape == (len(scale), *mean.shape) and mean.ndim == 1
        if not fits or not all(np.isfinite(array).all() for array in (mean, components, scale, whiten)):
            raise KeyError
    except OSError as error:
        raise UserError(f"the PCA {path} cannot be read: {error.strerror or error}") from None
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile):
        raise UserError(f"{path} is not a PCA of tools.embed, or it is damaged; make it again") from None
    return Pca(mean, components, scale, float(whiten), stored)


def fit_pca(parts: Iterable[np.ndarray], dim: int, origin: Origin, whiten: float = 0.0) -> Pca:
    """Learn a PCA from descriptors in parts, (n, D) each; memory does not grow with their number."""
    if not 0 <= whiten <= 1:
        raise UserError(f"--whiten is {whiten:g}; choose a number from 0 (not at all) to 1 (fully)")
    # Count, sum and products of all descriptors.
    count, total, products = 0, np.zeros(0), np.zeros((0, 0))
    for part in parts:
        part = part.astype(np.float64)
        if not count:
            total, products = np.zeros(part.shape[1]), np.zeros((part.shape[1], part.shape[1]))
        count += len(part)
        total += part.sum(axis=0)
        products += part.T @ part
    if count < 2:
        raise UserError(f"a PCA is learned from 2 descriptors or more, and there are {count}; add images")
    # The directions of the largest variance, largest first.
    mean = total / count
    covariance = (products - count * np.outer(mean, mean)) / (count - 1)
    first = max(0, len(mean) - dim)
    variances, vectors = scipy.linalg.eigh(covariance, subset_by_index=[first, len(mean) - 1])
    variances, components = variances[::-1], vectors.T[::-1]
    varying = int((variances > _SMALLEST * variances[0]).sum())
    if varying < dim:
        raise UserError(
            f"--dim is {dim}, but {count} descriptors of {len(mean)} numbers vary in {varying} directions; "
            f"choose {varying} or fewer, or learn the PCA from more images"
        )
    # Their sign is arbitrary, and fixed here.
    components *= np.sign(components[np.arange(dim), np.abs(components).argmax(axis=1)])[:, None]
    return Pca(
        mean=mean.astype(np.float32),
        components=components.astype(np.float32),
        scale=(variances ** (-whiten / 2)).astype(np.float32),
        whiten=whiten,
        origin=origin.as_dict(),
    )
