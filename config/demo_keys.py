"""DeMo's keys that nothing reads here: accepted while a configuration is read, and never stored in it."""

from __future__ import annotations

from typing import Any

from yacs.config import CfgNode

from config.schema import ConfigError, show

DEMO_KEYS: dict[str, tuple[Any, str]] = {
    "MODEL.NECK": ("bnneck", "only the BNNeck is implemented"),
    "MODEL.ID_LOSS_TYPE": ("softmax", "only the softmax identity loss is implemented"),
    "MODEL.METRIC_LOSS_TYPE": ("triplet", "only the triplet loss is implemented"),
    "MODEL.IF_WITH_CENTER": ("no", "the centre loss is not implemented"),
    "MODEL.PROMPT": (False, "prompts are not implemented; MODEL.TUNE adapter or lora learns as little"),
    "MODEL.ADAPTER": (False, "adapters are MODEL.TUNE adapter here"),
    "MODEL.DIST_TRAIN": (False, "torchrun decides how many processes train, see docs/reliability.md"),
    "DATALOADER.SAMPLER": ("softmax_triplet", "only the P x K identity sampler is implemented"),
    "SOLVER.WARMUP_METHOD": ("linear", "only the linear warm-up is implemented"),
    "SOLVER.CENTER_LR": (None, "of a centre loss"),
    "SOLVER.CENTER_LOSS_WEIGHT": (None, "of a centre loss"),
    "SOLVER.CLUSTER_MARGIN": (None, "of a cluster loss"),
    "SOLVER.RANGE_K": (None, "of a range loss"),
    "SOLVER.RANGE_MARGIN": (None, "of a range loss"),
    "SOLVER.RANGE_ALPHA": (None, "of a range loss"),
    "SOLVER.RANGE_BETA": (None, "of a range loss"),
    "SOLVER.RANGE_LOSS_WEIGHT": (None, "of a range loss"),
    "SOLVER.GAMMA": (None, "of a step schedule"),
    "SOLVER.STEPS": (None, "of a step schedule"),
    "SOLVER.WARMUP_FACTOR": (None, "of a step schedule"),
    "SOLVER.COSINE_MARGIN": (None, "of a cosine classifier"),
    "SOLVER.COSINE_SCALE": (None, "of a cosine classifier"),
}
"""The one value that is accepted, with the reason; or None, with the part of DeMo that reads the key."""


def named_demo_keys(cfg: CfgNode) -> dict[str, Any]:
    """Those of the keys that a configuration was given, with their values; to be filled by the reader.

    yacs keeps its own flags in the same place: they are copied with a configuration, and never written.
    """
    named: dict[str, Any] = cfg.__dict__.setdefault("__demo_keys__", {})
    return named


def refuse_demo_keys(cfg: CfgNode) -> None:
    """Refuse a value that asks for a part of DeMo that does not exist here."""
    for key, value in named_demo_keys(cfg).items():
        accepted, reason = DEMO_KEYS[key]
        if accepted is not None and value != accepted:
            raise ConfigError(f"{key} {show(value)} cannot be used: {reason}; set it to {accepted!r}")
