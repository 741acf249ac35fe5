"""From the configuration to the settings of a run: the only file of this room that reads cfg."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from yacs.config import CfgNode

from engine.distributed import World
from engine.evaluate import evaluate
from engine.results import EvaluationResult
from engine.run_state import TrainSettings
from engine.setup import choose_device, keep_freed_memory
from evaluation.evaluator import RetrievalEvaluator
from structures import MISSING_SETTINGS, ModalBatch, Modality, UserError


def make_device(cfg: CfgNode, world: World | None = None) -> torch.device:
    """The device that this process computes on; if it is the CPU, the process keeps the memory it frees."""
    local_rank = world.local_rank if world is not None and world.size > 1 else None
    device = choose_device(cfg.MODEL.DEVICE, cfg.MODEL.DEVICE_ID, local_rank)
    if device.type == "cpu":
        keep_freed_memory()
    return device


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
    cfg: CfgNode,
    loader: Iterable[ModalBatch],
    evaluator: RetrievalEvaluator,
    device: torch.device,
    world: World | None = None,
) -> Callable[..., EvaluationResult]:
    """`evaluate`, short of the model, without the modalities that TEST.MISS takes away."""
    missing = missing_modalities(cfg)
    return partial(evaluate, loader=loader, evaluator=evaluator, device=device, missing=missing, world=world)


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
