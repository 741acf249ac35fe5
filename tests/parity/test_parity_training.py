"""Twelve training steps beside those of the original trainers: DeMo, its baseline, the first SDTPS.

The recordings are in float64, with the trunk cut to its first two blocks, DeMo's schedule with its noise, no
augmentation and no dropout. Every loss and the way that every weight has moved must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import make_result
from engine.train import Trainer, TrainOptions
from fill import fill
from modeling.branches.demo import QueryAttention
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import to_demo_names, to_our_names
from solver.build import make_criterion, make_optimizer, make_schedule
from structures import ModalBatch, ModelOutput, PerModality, RankingMetrics

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((Path(__file__).parent / "data" / "training.json").read_text())
AS_DEMO = ["SOLVER.LR_NOISE", "True", "SOLVER.WARMUP_PROPORTIONAL", "False"]
CONFIGURATIONS = {"demo": "DeMo.yml", "baseline": "Baseline.yml", "sdtps": "DeMo_SDTPS.yml"}
STEPS_PER_EPOCH, BATCH, NUM_IDS, NUM_CAMERAS = 4, 6, 171, 4
TOLERANCE = 1e-6
NOT_EVALUATED = make_result({1: RankingMetrics(np.zeros(1), np.zeros(1), np.ones(1))})


def draw_batch(step: int) -> ModalBatch:
    """The inputs of a step, from 1, as the recordings draw them."""
    rows = torch.arange(BATCH)
    images = PerModality.build(
        lambda m: torch.from_numpy(fill(f"input/step{step}/{m.value}", (BATCH, 3, 256, 128), 1)).double()
    )
    person_ids = (7 * step + 11 * (rows // 2)) % NUM_IDS
    return ModalBatch(images, person_ids, (step + rows) % NUM_CAMERAS, torch.zeros_like(rows))


class RecordedSteps:
    """The loader: four steps per epoch, each drawn when it is its turn."""

    def __init__(self) -> None:
        self.epoch = 1

    def set_epoch(self, epoch: int, first_batch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[ModalBatch]:
        first = STEPS_PER_EPOCH * (self.epoch - 1)
        return (draw_batch(first + step) for step in range(1, STEPS_PER_EPOCH + 1))

    def __len__(self) -> int:
        return STEPS_PER_EPOCH


def fill_model(model: MultiModalReID) -> dict[str, Tensor]:
    """Cut the trunk, fill every entry by its name in DeMo's checkpoints; returns the entries by that name."""
    model.backbone.vit.blocks = model.backbone.vit.blocks[:2]
    for module in model.modules():
        if isinstance(module, QueryAttention):
            module.dropout = 0.0
    theirs, without_a_place = to_demo_names(model.state_dict())
    assert not without_a_place
    theirs = {name: torch.from_numpy(fill(name, tuple(value.shape), 1)) for name, value in theirs.items()}
    model.load_state_dict(to_our_names(theirs)[0])
    model.double()
    return {name: value.clone() for name, value in to_demo_names(model.state_dict())[0].items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_training_follows_the_original_step_by_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.train.save_checkpoint", lambda *_, **__: None)  # 600 MB after every epoch
    recorded = RECORDED[name]
    cfg = load_config(ROOT / "configs" / "RGBNT201" / CONFIGURATIONS[name], AS_DEMO)
    model = make_model(cfg, NUM_IDS, NUM_CAMERAS)
    start = fill_model(model)
    criterion, optimizer, loader = make_criterion(cfg), make_optimizer(cfg, model), RecordedSteps()
    losses: list[float] = []
    rates: list[list[float]] = []

    def record(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        found = criterion(output, person_ids)
        losses.append(sum(loss.item() for loss in found.values()))
        rates.append(sorted({group["lr"] for group in optimizer.param_groups}))
        return found

    Trainer(
        model=model,
        criterion=record,
        optimizer=optimizer,
        schedule=make_schedule(cfg, optimizer),
        loader=loader,
        set_epoch=loader.set_epoch,
        evaluate=lambda model, check_stop: {"complete": NOT_EVALUATED},
        device=torch.device("cpu"),
        folder=tmp_path,
        options=TrainOptions(epochs=3, eval_period=3),
    ).run()

    assert losses == pytest.approx([step["loss"] for step in recorded["steps"]], rel=TOLERANCE)
    assert rates == [pytest.approx(sorted(step["learning_rates"])) for step in recorded["steps"]]
    end, _ = to_demo_names(model.state_dict())
    for entry, (norm, change) in recorded["final"].items():
        assert end[entry].double().norm().item() == pytest.approx(norm, rel=TOLERANCE), entry
        moved = (end[entry] - start[entry]).double().norm().item()
        assert moved == pytest.approx(change, rel=TOLERANCE, abs=1e-12), entry
