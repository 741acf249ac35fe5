from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from yacs.config import CfgNode

from config import get_cfg
from solver.build import make_criterion, make_optimizer, make_schedule


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"vit": nn.Linear(2, 2)})
        self.reduce = nn.Linear(2, 2)


def configured(*changes: Any) -> CfgNode:
    cfg = get_cfg()
    cfg.merge_from_list(list(changes))
    return cfg


def rates(cfg: CfgNode) -> dict[str, float]:
    return {group["name"]: group["lr"] for group in make_optimizer(cfg, ToyModel()).param_groups}


def test_criterion_follows_the_configuration() -> None:
    default = make_criterion(get_cfg())
    assert (default.id_weight, default.triplet_weight) == (0.25, 1.0)
    assert (default.label_smoothing, default.margin, default.head_weights) == (0.1, None, {})
    changed = make_criterion(
        configured(
            *("MODEL.ID_LOSS_WEIGHT", 0.5, "MODEL.TRIPLET_LOSS_WEIGHT", 2.0, "MODEL.IF_LABELSMOOTH", "off"),
            *("MODEL.NO_MARGIN", False, "SOLVER.MARGIN", 0.7),
            *("MODEL.USE_SDTPS", True, "MODEL.SDTPS_LOSS_WEIGHT", 0.4),
        )
    )
    assert (changed.id_weight, changed.triplet_weight) == (0.5, 2.0)
    assert (changed.label_smoothing, changed.margin, changed.head_weights) == (0.0, 0.7, {"sdtps": 0.4})


@pytest.mark.parametrize(
    ("backbone", "backbone_lr", "expected"),
    [("ViT-B-16", 0.0, 5e-6), ("vit_base_patch16_224", 0.0, 2.8e-4), ("ViT-B-16", 1e-4, 1e-4)],
)
def test_backbone_rate(backbone: str, backbone_lr: float, expected: float) -> None:
    cfg = configured("MODEL.TRANSFORMER_TYPE", backbone, "SOLVER.BACKBONE_LR", backbone_lr)
    assert rates(cfg) == pytest.approx({"backbone": expected, "heads": 3.5e-4, "heads bias": 7e-4})


def test_optimizer_settings_reach_the_groups() -> None:
    cfg = configured(
        *("SOLVER.OPTIMIZER_NAME", "SGD", "SOLVER.MOMENTUM", 0.5, "SOLVER.BIAS_LR_FACTOR", 3.0),
        *("SOLVER.WEIGHT_DECAY", 0.1, "SOLVER.WEIGHT_DECAY_BIAS", 0.2, "SOLVER.BASE_LR", 1e-3),
    )
    optimizer = make_optimizer(cfg, ToyModel())
    assert isinstance(optimizer, torch.optim.SGD)
    found = {g["name"]: (g["lr"], g["weight_decay"], g["momentum"]) for g in optimizer.param_groups}
    assert found == {
        "backbone": (5e-6, 0.1, 0.5),
        "backbone bias": (5e-6, 0.2, 0.5),
        "heads": (1e-3, 0.1, 0.5),
        "heads bias": (pytest.approx(3e-3), 0.2, 0.5),
    }


def test_schedule_follows_the_configuration() -> None:
    cfg = configured(
        *("SOLVER.MAX_EPOCHS", 8, "SOLVER.WARMUP_ITERS", 2, "SOLVER.BASE_LR", 1e-3),
        *("SOLVER.LR_NOISE", False, "SOLVER.WARMUP_PROPORTIONAL", True),
    )
    optimizer = make_optimizer(cfg, ToyModel())
    schedule = make_schedule(cfg, optimizer)
    schedule.step(1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
        [0.55 * 5e-6, 0.55 * 1e-3, 0.55 * 2e-3]
    )
    schedule.step(8)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001 * 5e-6)
