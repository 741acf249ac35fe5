"""What a descriptor was made with: only descriptors of one origin can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from config.schema import KEYS, flatten
from errors import UserError

_OF_TEST = ("TEST.NECK_FEAT", "TEST.UNSEEN_CAMERA")
_BLOCK = 2**20  # bytes


@dataclass(frozen=True)
class Origin:
    """What decides a descriptor, apart from the images."""

    weights: str  # the checkpoint
    sha256: str  # of that file
    pattern: int  # the return pattern
    settings: Mapping[str, Any]  # those that can change the features of trained weights
    pca: str = ""  # the SHA-256 of the file that shortens descriptors; empty without one

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "settings": dict(self.settings)}

    def check(self, stored: Mapping[str, Any], path: Path) -> None:
        """Refuse a file with another origin, which says `stored`."""
        found = _find_difference(self.as_dict(), stored)
        if found is not None:
            raise UserError(f"{path} was made with {found}; make it again, or name another file")


def _find_difference(now: Mapping[str, Any], stored: Mapping[str, Any]) -> str | None:
    """What the file was made with, and what is asked for; None if both are the same."""
    if stored["sha256"] != now["sha256"]:
        return f"the weights {stored['weights']}, which are not those of {now['weights']}"
    if stored["pattern"] != now["pattern"]:
        return f"return pattern {stored['pattern']}, not {now['pattern']}"
    if stored["pca"] != now["pca"]:
        before, wanted = (f"the PCA {o['pca'][:8]}…" if o["pca"] else "no PCA" for o in (stored, now))
        return f"{before}, not {wanted}"
    settings, before = now["settings"], stored["settings"]
    for key in sorted({*settings, *before}):
        if settings.get(key) != before.get(key):
            return f"{key} {before.get(key)}, not {settings.get(key)}"
    return None


def name_model(origin: Mapping[str, Any]) -> str:
    """One name for what makes descriptors: weights, return pattern and PCA, from `Origin.as_dict`."""
    return "-".join([origin["sha256"], f"pattern{origin['pattern']}", *filter(None, [origin["pca"]])])


def find_origin(weights: str | Path, cfg: CfgNode, pattern: int) -> Origin:
    """The origin of the descriptors of a checkpoint, or a model folder, under a configuration."""
    settings = {
        key: value
        for key, value in flatten(cfg)
        if (key.startswith(("MODEL.", "INPUT.")) and KEYS[key].changes == "scores") or key in _OF_TEST
    }
    file = Path(weights)
    digest = hash_file(file / "model.safetensors" if file.is_dir() else file)
    # As they come back from a JSON file: lists, not tuples.
    return Origin(str(weights), digest, pattern, json.loads(json.dumps(settings)))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
