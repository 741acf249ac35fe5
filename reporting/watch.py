"""A few triples that stay the same while the model changes: what TensorBoard shows of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from reporting.pictures import denormalise, veil_discarded, whiten_absent
from structures import ModalBatch, Modality, ModelOutput, Selection

PICTURE_NAME = "selection/kept_patches"
MAX_HEIGHT = 128  # of one image; an event file holds one picture per evaluation
GAP = 4  # pixels between two images


def spread_evenly(available: int, wanted: int) -> list[int]:
    """Up to `wanted` different rows in [0, available), from the first to the last."""
    return np.unique(np.linspace(0, available - 1, min(wanted, available)).astype(int)).tolist()


def read_triples(loader: DataLoader[Any], rows: Sequence[int]) -> ModalBatch:
    """The triples at some rows of the data set of a loader."""
    batch: ModalBatch = loader.collate_fn([loader.dataset[row] for row in rows])
    return batch


class SelectionWatch:
    """Draws which patches of a fixed batch, on the model's device, the model keeps.

    The model stays as it is, and nothing is random. `mean` and `std` are those of the normalisation.
    """

    def __init__(self, batch: ModalBatch, *, mean: Sequence[float], std: Sequence[float]) -> None:
        self._batch = batch
        self._images = batch.images.map(lambda images: denormalise(images, mean, std))

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, Tensor]:
        """The picture by its name, (3, H, W) in [0, 1]; nothing of a model that keeps every patch."""
        if not getattr(model, "selects", True):
            return {}
        was_training = model.training
        model.eval()
        try:
            output: ModelOutput = model(self._batch)
        finally:
            model.train(was_training)
        assert output.selection is not None
        return {PICTURE_NAME: self._draw(output.selection)}

    def _draw(self, selection: Selection) -> Tensor:
        """One row per modality that any of the triples has, one column per triple; white without image."""
        rows = []
        for modality in (m for m in Modality if self._batch.present.of(m).any()):
            images = veil_discarded(self._images.of(modality), selection.masks.of(modality), selection.grid)
            images = whiten_absent(images, self._batch.present.of(modality))
            shrink = -(-images.shape[-2] // MAX_HEIGHT)
            images = F.avg_pool2d(images, shrink) if shrink > 1 else images
            images = F.pad(images, (0, GAP, 0, GAP), value=1.0)
            rows.append(torch.cat(list(images), dim=2))  # (3, H', B * W')
        return torch.cat(rows, dim=1)[:, :-GAP, :-GAP]
