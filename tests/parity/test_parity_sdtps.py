"""SDTPS alone against tokens and masks recorded from its first implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fill import fill
from modeling.checkpoint_names import DEMO_CLIP_RULES, rename
from modeling.seps.sdtps import MultiModalSDTPS
from structures import PerModality

DATA = Path(__file__).parent / "data"
SIZES = {"sdtps_small": (3, 20, 32), "sdtps_full": (2, 128, 512)}  # batch, patches, channels


def make_filled(name: str, dim: int, patches: int) -> MultiModalSDTPS:
    shapes = json.loads((DATA / "sdtps_seps.keys.json").read_text())[name]
    entries = {f"sdtps.{key}": torch.from_numpy(fill(key, tuple(shape), 1)) for key, shape in shapes.items()}
    renamed, unknown = rename(entries, DEMO_CLIP_RULES)
    assert not unknown
    module = MultiModalSDTPS(dim, patches)
    module.load_state_dict(
        {key.removeprefix("branches.sdtps.select."): entry for key, entry in renamed.items()}
    )
    return module.eval()


@pytest.mark.parametrize("name", SIZES)
def test_tokens_and_masks(name: str) -> None:
    batch, patches, dim = SIZES[name]

    def inputs(kind: str, shape: tuple[int, ...]) -> PerModality[Tensor]:
        return PerModality.build(lambda m: torch.from_numpy(fill(f"input/{m.value}_{kind}", shape, 1)))

    recorded = np.load(DATA / "sdtps_seps.npz")
    with torch.inference_mode():
        results = make_filled(name, dim, patches)(
            inputs("patches", (batch, patches, dim)), inputs("global", (batch, dim))
        )
    for modality, result in zip(("RGB", "NI", "TI"), results, strict=True):
        tokens, mask = recorded[f"{name}_{modality}_tokens"], recorded[f"{name}_{modality}_mask"]
        # The recording of the full size holds the mean of the tokens only.
        ours = result.tokens.mean(dim=1) if tokens.ndim == 2 else result.tokens
        np.testing.assert_allclose(ours.numpy(), tokens, atol=1e-5, rtol=0)
        np.testing.assert_array_equal(result.decision.numpy(), mask)
        assert [np.flatnonzero(row).tolist() for row in mask] == result.kept.tolist()
