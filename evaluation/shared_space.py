"""A space in which images of different modalities can be compared, fitted to the training split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from errors import UserError
from evaluation.result import EncodedSamples
from structures import Modality

RIDGE = 1e-4
"""Added to the variance of each feature, as a share of it: least squares must not live on noise."""


@dataclass(frozen=True, eq=False)
class SharedSpace:
    """For each modality a linear map of its part: which training identity does the image show?

    An image is so described by how much it resembles each of the P training identities. The answer means the
    same in every modality, also for people that training has not seen.
    """

    means: Mapping[Modality, Tensor]  # (C,) each
    maps: Mapping[Modality, Tensor]  # (C, P) each

    def __call__(self, modality: Modality, part: Tensor) -> Tensor:
        """(S, C) -> (S, P)."""
        return ((part.double() - self.means[modality]) @ self.maps[modality]).float()


def fit_shared_space(samples: EncodedSamples) -> SharedSpace:
    """Fit the maps by least squares: the features of a modality against the identities, 1 or 0.

    Args:
        samples: the training split, with the features before or after the neck, as they will be compared.
    """
    if not samples.parts:
        raise UserError("--shared_space maps the original features, and this model has none")
    ids = torch.from_numpy(np.unique(samples.person_ids, return_inverse=True)[1])
    is_id = torch.nn.functional.one_hot(ids).double()  # (S, P)
    means, maps = {}, {}
    for modality, part in zip(samples.parts, samples.features[1].chunk(len(samples.parts), 1), strict=True):
        there = torch.from_numpy(samples.present.of(modality))
        if not there.any():
            raise UserError(f"--shared_space: the training split has no {modality.value} image")
        features, wanted = part[there].double(), is_id[there]
        means[modality] = features.mean(dim=0)
        centred = features - means[modality]
        covariance = centred.T @ centred / len(centred)
        variance = covariance.diagonal().clamp(min=torch.finfo(torch.float32).tiny)
        maps[modality] = torch.linalg.solve(
            covariance + (RIDGE * variance).diag(), centred.T @ wanted / len(centred)
        )
    return SharedSpace(means, maps)
