"""What differs between the configuration in a checkpoint and the one it is used with."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from config.schema import KEYS, TABLE, ConfigError, find_unused, flatten, show
from errors import on_one_line

logger = logging.getLogger(__name__)

HARMLESS = {key.name for key in TABLE if key.changes == "nothing"}
"""Settings that may change in the middle of a run without a change of its weights or scores."""


def list_differences(trained: CfgNode, cfg: CfgNode) -> list[str]:
    """The settings that differ from those of training and can change features or scores, a line for each."""
    unused = find_unused(trained).keys() & find_unused(cfg).keys()
    return [
        f"{key} is {show(now)}, in the checkpoint {show(before)}"
        for key, (before, now) in _changed(trained, cfg).items()
        if key not in unused and KEYS[key].changes == "scores"
    ]


def _changed(earlier: CfgNode, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """The values before and now of the keys that differ, sorted by key."""
    before, now = (dict(flatten(config)) for config in (earlier, cfg))
    return {key: (before[key], now[key]) for key in sorted(now) if before[key] != now[key]}


def check_resumable(
    earlier: CfgNode, cfg: CfgNode, *, force: bool, harmless: Collection[str] = (), run: Path | None = None
) -> None:
    """List the settings that have changed, and refuse those that alter the result unless `force` is given.

    `harmless` are more keys that do not alter it. The message names the config.yml in the folder `run` of the
    checkpoint, if there is one.
    """
    changed = _changed(earlier, cfg)
    for key, values in changed.items():
        logger.warning("since the start of the run %s changed from %r to %r", key, *values)
    altering = [key for key in changed if key not in HARMLESS and key not in harmless]
    if altering and not force:
        is_there = run is not None and (run / "config.yml").is_file()
        option = f" (--config_file {on_one_line(run)}/config.yml)" if is_there else ""
        raise ConfigError(
            f"the run was started with other settings that alter its result ({', '.join(altering)}); "
            f"resume it with the same ones{option}, or add --force"
        )
