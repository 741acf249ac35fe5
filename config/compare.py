"""What differs between the configuration in a checkpoint and the one it is used with."""

from __future__ import annotations

import logging
from typing import Any

from yacs.config import CfgNode

from config.validate import ConfigError, find_unused, flatten, show

logger = logging.getLogger(__name__)

HARMLESS = {
    "OUTPUT_DIR",
    "DATASETS.ROOT_DIR",
    "DATALOADER.CACHE",
    "DATALOADER.NUM_WORKERS",
    "MODEL.DEVICE_ID",
    "SOLVER.CHECKPOINT_PERIOD",
    "SOLVER.EVAL_PERIOD",
    "SOLVER.LOG_PERIOD",
    "TEST.IMS_PER_BATCH",
    "TEST.WEIGHT",
}
"""Settings that may change in the middle of a run without a change of its weights or scores."""

TRAINING_ONLY = {
    *(f"INPUT.{name}" for name in ("PROB", "PADDING", "RE_PROB", "SHARED_AUGMENT")),
    *(
        f"MODEL.{name}"
        for name in (
            "DEVICE",
            "NAME",
            "PRETRAIN_PATH_T",
            "DROP_PATH",
            "DROP_OUT",
            "ATT_DROP_RATE",
            "FROZEN",
            "ID_LOSS_WEIGHT",
            "IF_LABELSMOOTH",
            "TRIPLET_LOSS_WEIGHT",
            "NO_MARGIN",
            "SDTPS_USE_GUMBEL",
            "SDTPS_GUMBEL_TAU",
            "SDTPS_LOSS_WEIGHT",
            "SLIM_WARMUP_EPOCHS",
            "SLIM_USE_GUMBEL",
            "SLIM_GUMBEL_TAU",
        )
    ),
    "DATASETS.VAL_IDS",
    "TEST.CONTROLS",
}
"""With SOLVER.* and DATALOADER.*, the settings that do not change what trained weights give in evaluation."""


def list_differences(trained: CfgNode, cfg: CfgNode) -> list[str]:
    """The settings that differ from those of training and can change features or scores, a line for each."""
    before, now = (dict(flatten(config)) for config in (trained, cfg))
    harmless = HARMLESS | TRAINING_ONLY | (find_unused(trained).keys() & find_unused(cfg).keys())
    return [
        f"{key} is {show(now[key])}, in the checkpoint {show(before[key])}"
        for key in sorted(now)
        if _plain(before[key]) != _plain(now[key])
        and key not in harmless
        and not key.startswith(("SOLVER.", "DATALOADER."))
    ]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def check_resumable(earlier: CfgNode, cfg: CfgNode, *, force: bool) -> None:
    """List the settings that have changed, and refuse those that alter the result.

    Args:
        earlier: the configuration in the checkpoint.
        cfg: the configuration now.
        force: go on all the same.
    """
    before, now = (dict(flatten(config)) for config in (earlier, cfg))
    changed = {key for key in now if _plain(before[key]) != _plain(now[key])}
    for key in sorted(changed):
        logger.warning("since the start of the run %s changed from %r to %r", key, before[key], now[key])
    altering = sorted(changed - HARMLESS)
    if altering and not force:
        raise ConfigError(
            f"the run was started with other settings that alter its result ({', '.join(altering)}); "
            "resume it with the same ones, or add --force"
        )
