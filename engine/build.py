"""From the configuration to the options of a run: the only file of this package that reads cfg."""

from __future__ import annotations

from typing import Any

import torch
from yacs.config import CfgNode

from engine.distributed import World
from engine.runtime import choose_device
from engine.train import TrainOptions


def make_device(cfg: CfgNode, world: World | None = None) -> torch.device:
    """The device that this process computes on; CUDA then uses no other one."""
    local_rank = world.local_rank if world is not None and world.size > 1 else None
    device = choose_device(cfg.MODEL.DEVICE, cfg.MODEL.DEVICE_ID, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def make_train_options(cfg: CfgNode, data: dict[str, Any] | None = None) -> TrainOptions:
    """The options of training; for `data` see `TrainOptions`."""
    return TrainOptions(
        epochs=cfg.SOLVER.MAX_EPOCHS,
        lr_per_step=cfg.SOLVER.LR_PER_STEP,
        clip_grad=cfg.SOLVER.CLIP_GRAD,
        ema_decay=cfg.SOLVER.EMA_DECAY,
        mixed_precision=cfg.SOLVER.AMP,
        half=getattr(torch, cfg.SOLVER.AMP_DTYPE),
        log_period=cfg.SOLVER.LOG_PERIOD,
        eval_period=cfg.SOLVER.EVAL_PERIOD,
        eval_split="validation" if cfg.DATASETS.VAL_IDS else "test",
        checkpoint_period=cfg.SOLVER.CHECKPOINT_PERIOD,
        config=cfg.dump(),
        data=data or {},
    )
