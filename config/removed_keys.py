"""Keys that an earlier version had. Files of that time name them all, whether they had an effect or not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from config.schema import ConfigError

logger = logging.getLogger(__name__)

REMOVED_KEYS = {
    f"MODEL.SLIM_{name}" for name in ("SCORE", "CROSS", "WARMUP_EPOCHS", "USE_GUMBEL", "GUMBEL_TAU")
}
"""Of slimming that dropped patches, in place of merging them."""


def leave_out_removed(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings of a file without those of removed keys, which are logged.

    A file that names them and slims is of the time when slimming dropped patches. The same settings now give
    another result, so that it is refused.
    """
    removed = sorted(settings.keys() & REMOVED_KEYS)
    if removed and settings.get("MODEL.SLIM_LAYERS"):
        raise ConfigError(
            f"{source} slims by dropping patches ({removed[0]}), which this version does not do: it merges "
            "them; use the version that the file comes from, or train anew without these keys"
        )
    if removed:
        logger.info("%s has keys that are no longer there and had no effect: %s", source, ", ".join(removed))
    return {key: value for key, value in settings.items() if key not in REMOVED_KEYS}
