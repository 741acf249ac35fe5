"""From the configuration to the settings of a run: the only file of this room that reads cfg."""

from __future__ import annotations

import torch
from yacs.config import CfgNode

from engine.distributed import World
from engine.run_state import TrainSettings
from engine.setup import choose_device
from structures import Modality


def make_device(cfg: CfgNode, world: World | None = None) -> torch.device:
    """The device that this process computes on."""
    local_rank = world.local_rank if world is not None and world.size > 1 else None
    return choose_device(cfg.MODEL.DEVICE, cfg.MODEL.DEVICE_ID, local_rank)


def missing_modalities(cfg: CfgNode) -> tuple[Modality, ...]:
    """The modalities that TEST.MISS takes away in evaluation."""
    letters = "" if cfg.TEST.MISS == "nothing" else cfg.TEST.MISS
    return tuple(modality for modality in Modality if modality.letter in letters)


def make_train_settings(cfg: CfgNode) -> TrainSettings:
    """How to train."""
    return TrainSettings(
        epochs=cfg.SOLVER.MAX_EPOCHS,
        clip_grad=cfg.SOLVER.CLIP_GRAD,
        mixed_precision=cfg.SOLVER.AMP,
        log_period=cfg.SOLVER.LOG_PERIOD,
        eval_period=cfg.SOLVER.EVAL_PERIOD,
        checkpoint_period=cfg.SOLVER.CHECKPOINT_PERIOD,
        config=cfg.dump(),
    )
