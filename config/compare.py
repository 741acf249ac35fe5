"""What has changed between the configuration of a run and the one it is resumed with."""

from __future__ import annotations

import logging
from typing import Any

import yaml
from yacs.config import CfgNode

from config.defaults import get_cfg
from config.strict_yaml import YamlFileError, parse_yaml
from config.validate import ConfigError, flatten

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


def check_resumable(earlier: str, cfg: CfgNode, *, force: bool) -> None:
    """List the settings that have changed, and refuse those that alter the result.

    Args:
        earlier: the configuration in the checkpoint, as YAML.
        cfg: the configuration now.
        force: go on all the same.
    """
    defaults, now = (dict(flatten(yaml.safe_load(config.dump()))) for config in (get_cfg(), cfg))
    before = defaults | _read_settings(earlier)  # a key that is younger than the run was off
    changed = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    for key in sorted(changed):
        logger.warning(
            "since the start of the run %s changed from %r to %r", key, before.get(key), now.get(key)
        )
    altering = sorted(changed - HARMLESS)
    if altering and not force:
        raise ConfigError(
            f"the run was started with other settings that alter its result ({', '.join(altering)}); "
            "resume it with the same ones, or add --force"
        )


def _read_settings(earlier: str) -> dict[str, Any]:
    try:
        content = parse_yaml(earlier)
    except YamlFileError as error:
        raise ConfigError(f"the configuration in the checkpoint {error}") from None
    if not isinstance(content, dict):
        raise ConfigError("the configuration in the checkpoint is none; use last.pth of another run")
    return dict(flatten(content))
