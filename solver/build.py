"""From the configuration to losses, optimiser and schedule: the only file of this package that reads cfg."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer
from yacs.config import CfgNode

from errors import is_redefined
from solver.losses import HeadLoss, ReIDLoss
from solver.optimizer import build_optimizer, parameter_groups
from solver.schedule import WarmCosine, build_schedule

_more_losses: dict[str, Callable[[CfgNode], HeadLoss | None]] = {}


def register_loss(name: str, build: Callable[[CfgNode], HeadLoss | None]) -> None:
    """Add a loss `<head>/<name>` to every head; `build` returns None where cfg leaves it out."""
    known = _more_losses.get(name)
    if name in ("id", "triplet") or (known is not None and not is_redefined(known, build)):
        raise ValueError(f"there is a loss {name!r} already; choose another name")
    _more_losses[name] = build


def make_criterion(cfg: CfgNode) -> ReIDLoss:
    """The losses of every head."""
    return ReIDLoss(
        id_weight=cfg.MODEL.ID_LOSS_WEIGHT,
        triplet_weight=cfg.MODEL.TRIPLET_LOSS_WEIGHT,
        label_smoothing=0.1 if cfg.MODEL.IF_LABELSMOOTH == "on" else 0.0,
        margin=None if cfg.MODEL.NO_MARGIN else cfg.SOLVER.MARGIN,
        head_weights={"sdtps": cfg.MODEL.SDTPS_LOSS_WEIGHT} if cfg.MODEL.USE_SDTPS else {},
        more={name: loss for name, build in _more_losses.items() if (loss := build(cfg)) is not None},
    )


def make_optimizer(cfg: CfgNode, model: nn.Module) -> Optimizer:
    """The optimiser over the model's trainable parameters."""
    groups = parameter_groups(
        model,
        base_lr=cfg.SOLVER.BASE_LR,
        backbone_lr=_backbone_lr(cfg),
        bias_lr_factor=cfg.SOLVER.BIAS_LR_FACTOR,
        weight_decay=cfg.SOLVER.WEIGHT_DECAY,
        weight_decay_bias=cfg.SOLVER.WEIGHT_DECAY_BIAS,
        large_fc_lr=cfg.SOLVER.LARGE_FC_LR,
        fc_lr_factor=cfg.SOLVER.FC_LR_FACTOR,
    )
    return build_optimizer(cfg.SOLVER.OPTIMIZER_NAME, groups, momentum=cfg.SOLVER.MOMENTUM)


def make_schedule(cfg: CfgNode, optimizer: Optimizer) -> WarmCosine:
    """The learning-rate schedule; step it with the epoch, from 1, at the start of every epoch."""
    return build_schedule(
        optimizer,
        epochs=cfg.SOLVER.MAX_EPOCHS,
        base_lr=cfg.SOLVER.BASE_LR,
        warmup_epochs=cfg.SOLVER.WARMUP_ITERS,
        noise=cfg.SOLVER.LR_NOISE,
        proportional_warmup=cfg.SOLVER.WARMUP_PROPORTIONAL,
    )


def _backbone_lr(cfg: CfgNode) -> float:
    """The configured rate or, at 0, DeMo's rate for the kind of backbone; biases alone need a larger one."""
    if cfg.SOLVER.BACKBONE_LR or cfg.MODEL.TUNE == "bias":
        return float(cfg.SOLVER.BACKBONE_LR or cfg.SOLVER.BASE_LR)
    return 5e-6 if cfg.MODEL.TRANSFORMER_TYPE == "ViT-B-16" else 0.8 * cfg.SOLVER.BASE_LR
