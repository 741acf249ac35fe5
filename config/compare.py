"""What differs between the configuration in a checkpoint and the one it is used with."""

from __future__ import annotations

import logging

from yacs.config import CfgNode

from config.schema import KEYS, TABLE, ConfigError, find_unused, flatten, show

logger = logging.getLogger(__name__)

HARMLESS = {key.name for key in TABLE if key.changes == "nothing"}
"""Settings that may change in the middle of a run without a change of its weights or scores."""


def list_differences(trained: CfgNode, cfg: CfgNode) -> list[str]:
    """The settings that differ from those of training and can change features or scores, a line for each."""
    before, now = (dict(flatten(config)) for config in (trained, cfg))
    unused = find_unused(trained).keys() & find_unused(cfg).keys()
    return [
        f"{key} is {show(now[key])}, in the checkpoint {show(before[key])}"
        for key in sorted(now.keys() - unused)
        if before[key] != now[key] and KEYS[key].changes == "scores"
    ]


def check_resumable(earlier: CfgNode, cfg: CfgNode, *, force: bool) -> None:
    """List the settings that have changed, and refuse those that alter the result unless `force` is given."""
    before, now = (dict(flatten(config)) for config in (earlier, cfg))
    changed = {key for key in now if before[key] != now[key]}
    for key in sorted(changed):
        logger.warning("since the start of the run %s changed from %r to %r", key, before[key], now[key])
    altering = sorted(changed - HARMLESS)
    if altering and not force:
        raise ConfigError(
            f"the run was started with other settings that alter its result ({', '.join(altering)}); "
            "resume it with the same ones, or add --force"
        )
