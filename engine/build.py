"""From the configuration to the options of a run: the only file of this package that reads cfg."""

from __future__ import annotations

from typing import Any

import torch
from yacs.config import CfgNode

from engine.distributed import World
from engine.evaluate import Evaluation
from engine.runtime import choose_device
from engine.train import TrainOptions
from evaluation.build import make_evaluator
from structures import MISSING_SETTINGS, Modality, RetrievalSet, UserError


def make_device(cfg: CfgNode, world: World | None = None) -> torch.device:
    """The device that this process computes on."""
    local_rank = world.local_rank if world is not None and world.size > 1 else None
    return choose_device(cfg.MODEL.DEVICE, cfg.MODEL.DEVICE_ID, local_rank)


def missing_modalities(cfg: CfgNode) -> tuple[Modality, ...]:
    """The modalities that TEST.MISS takes away in evaluation."""
    return MISSING_SETTINGS[_missing_setting(cfg)]


def missing_settings(cfg: CfgNode, wanted: str | None) -> list[str]:
    """The settings of missing modalities to evaluate: the one that TEST.MISS names, or all.

    Args:
        cfg: a configuration.
        wanted: `all`, or None.
    """
    if wanted is None:
        return [_missing_setting(cfg)]
    if cfg.TEST.MISS != "nothing":
        raise UserError(
            f"TEST.MISS {cfg.TEST.MISS} and --missing all contradict each other; give one of them"
        )
    return list(MISSING_SETTINGS)


def _missing_setting(cfg: CfgNode) -> str:
    """A key of `MISSING_SETTINGS`."""
    return "complete" if cfg.TEST.MISS == "nothing" else cfg.TEST.MISS


def make_evaluation(
    cfg: CfgNode, triples: RetrievalSet, device: torch.device, world: World | None = None
) -> Evaluation:
    """The evaluation of models on a set, without the modalities that TEST.MISS takes away."""
    return Evaluation(
        triples.loader, make_evaluator(cfg, triples), device, missing_modalities(cfg), world or World()
    )


def make_train_options(cfg: CfgNode, data: dict[str, Any] | None = None) -> TrainOptions:
    """The options of training; for `data` see `TrainOptions`."""
    return TrainOptions(
        epochs=cfg.SOLVER.MAX_EPOCHS,
        clip_grad=cfg.SOLVER.CLIP_GRAD,
        mixed_precision=cfg.SOLVER.AMP,
        log_period=cfg.SOLVER.LOG_PERIOD,
        eval_period=cfg.SOLVER.EVAL_PERIOD,
        eval_split="validation" if cfg.DATASETS.VAL_IDS else "test",
        checkpoint_period=cfg.SOLVER.CHECKPOINT_PERIOD,
        config=cfg.dump(),
        data=data or {},
    )
