"""What a descriptor was made with: only descriptors of one origin can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from config.schema import KEYS, flatten
from errors import UserError
from inference.gallery import NO_PCA
from trained import Trained

_OF_TEST = ("TEST.NECK_FEAT", "TEST.UNSEEN_CAMERA")


@dataclass(frozen=True)
class Origin:
    """What decides a descriptor, apart from the images."""

    weights: str  # the checkpoint
    sha256: str  # of its tensors, so that a model folder exported from it has the same
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
    """One short name for what makes descriptors, from `Origin.as_dict`; a message can show it.

    `modalities` besides, such as `RGB`, are those of all triples, if they are not all that the model uses.
    """
    settings = hashlib.sha256(json.dumps(origin["settings"], sort_keys=True).encode()).hexdigest()
    pca = f"pca-{origin['pca'][:8]}" if origin["pca"] else NO_PCA
    name = f"{origin['sha256'][:16]}-pattern-{origin['pattern']}-{pca}-settings-{settings[:8]}"
    return f"{name}-{origin['modalities']}" if origin.get("modalities") else name


def find_origin(trained: Trained, weights: str | Path, pattern: int) -> Origin:
    """The origin of the descriptors of a model that was read from `weights`."""
    settings = {
        key: value
        for key, value in flatten(trained.cfg)
        if (key.startswith(("MODEL.", "INPUT.")) and KEYS[key].changes == "scores") or key in _OF_TEST
    }
    digest = hash_tensors(trained.model.state_dict())
    # As they come back from a JSON file: lists, not tuples.
    return Origin(str(weights), digest, pattern, json.loads(json.dumps(settings)))


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors by name; the order of the names does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
