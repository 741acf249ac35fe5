"""Losses and learning rates against numbers recorded from the published DeMo code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fill import fill
from solver.losses import ReIDLoss, batch_hard_triplet
from solver.schedule import build_schedule
from structures import HeadOutput, ModelOutput, Role

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "expected.json").read_text())


@pytest.fixture
def logits() -> Tensor:
    return torch.from_numpy(fill("input/logits", (16, 171), 1))


@pytest.fixture
def features() -> Tensor:
    return torch.from_numpy(fill("input/features", (16, 1536), 1))


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor(EXPECTED["loss"]["labels"])


def test_triplet(features: Tensor, labels: Tensor) -> None:
    recorded = EXPECTED["loss"]
    soft, hard = batch_hard_triplet(features, labels, None), batch_hard_triplet(features, labels, 0.3)
    assert soft.item() == pytest.approx(recorded["triplet_soft_margin"], abs=1e-5)
    assert hard.item() == pytest.approx(recorded["triplet_margin_0.3"], abs=1e-5)


def test_head_losses_and_their_sum(logits: Tensor, features: Tensor, labels: Tensor) -> None:
    recorded = EXPECTED["loss"]
    output = ModelOutput((HeadOutput("ori", logits, features, features, Role.ORIGINAL),))
    criterion = ReIDLoss(id_weight=0.25, triplet_weight=1.0, label_smoothing=0.1, margin=None)
    losses = criterion(output, labels)
    assert losses["ori/id"].item() == pytest.approx(0.25 * recorded["cross_entropy_smooth_0.1"], abs=1e-5)
    assert sum(loss.item() for loss in losses.values()) == pytest.approx(recorded["total_0.25_1.0"], abs=1e-5)


def test_learning_rate_of_every_epoch_and_group() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (3.5e-4, 7e-4, 5e-6), strict=True)]
    optimizer = torch.optim.Adam(groups)
    schedule = build_schedule(
        optimizer, epochs=50, base_lr=3.5e-4, warmup_epochs=10, noise=True, proportional_warmup=False
    )
    recorded = EXPECTED["lr_schedule"]["epochs_1_to_50"]
    assert len(recorded) == 50
    for epoch, rates in enumerate(recorded, start=1):
        schedule.step(epoch)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates, rel=1e-6, abs=0)
