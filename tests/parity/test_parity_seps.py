"""SEPS, both versions, against similarities, masks and losses recorded from the reference modules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fill import fill
from modeling.seps import SEPSLoss, create_seps_model

DATA = Path(__file__).parent / "data"


def filled(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(fill(name, shape, 1))


@pytest.mark.parametrize("text_chunk", [1, 2, 8])
@pytest.mark.parametrize("version", ["code", "paper"])
@pytest.mark.parametrize("use_gumbel", [False, True])
def test_similarities_masks_and_losses(version: str, use_gumbel: bool, text_chunk: int) -> None:
    model = create_seps_model(
        embed_size=32,
        num_patches=16,
        sparse_ratio=0.5,
        aggr_ratio=0.5,
        use_paper_version=version == "paper",
        use_gumbel_softmax=use_gumbel,  # changes gradients, not values
        text_chunk=text_chunk,
    ).train()
    shapes = json.loads((DATA / "sdtps_seps.keys.json").read_text())[f"seps_{version}"]
    model.load_state_dict({name: filled(name, *shape) for name, shape in shapes.items()})

    similarities, masks = model(
        filled("input/image", 3, 17, 32),
        filled("input/caption", 3, 5, 32),
        [5, 3, 4],
        filled("input/long_caption", 3, 8, 32),
        [8, 6, 7],
    )
    losses = SEPSLoss(margin=0.2, target_ratio=0.5, ratio_weight=2.0, max_violation=True)(similarities, masks)

    recorded = np.load(DATA / "sdtps_seps.npz")
    pair = masks if version == "paper" else (masks,)
    assert f"seps_{version}_mask{len(pair)}" not in recorded
    for index, mask in enumerate(pair):
        assert np.array_equal(mask.detach(), recorded[f"seps_{version}_mask{index}"])
    np.testing.assert_allclose(
        similarities.detach(), recorded[f"seps_{version}_similarity"], atol=1e-5, rtol=0
    )
    np.testing.assert_allclose(
        [loss.item() for loss in losses], recorded[f"seps_{version}_loss"], atol=1e-5, rtol=0
    )
