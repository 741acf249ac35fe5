"""What a setting may be, alone and together with others."""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yacs.config import CfgNode

from config.defaults import get_cfg
from structures import UserError

logger = logging.getLogger(__name__)


class ConfigError(UserError):
    """A setting that cannot be used; the message names the key, the value and what to do."""


ALLOWED: dict[str, tuple[Any, ...]] = {
    "MODEL.DEVICE": ("auto", "cuda", "cpu"),
    "MODEL.DIRECT": (0, 1),
    "MODEL.IF_LABELSMOOTH": ("on", "off"),
    "MODEL.SDTPS_SELECT": ("score", "random", "all"),
    "MODEL.SDTPS_GUIDE": ("reduced", "class"),
    "MODEL.SLIM_SCORE": ("attention", "cosine"),
    "DATALOADER.CACHE": ("none", "ram"),
    "DATALOADER.ON_ERROR": ("stop", "skip"),
    "SOLVER.OPTIMIZER_NAME": ("Adam", "AdamW", "SGD"),
    "TEST.NECK_FEAT": ("before", "after"),
    "TEST.FEAT_NORM": ("yes", "no"),
    "TEST.RE_RANKING": ("yes", "no"),
    "TEST.UNSEEN_CAMERA": ("mean", "zero", "error"),
    "TEST.MISS": ("nothing", "r", "n", "t", "rn", "rt", "nt"),
}

NOT_IMPLEMENTED: dict[str, tuple[Any, str]] = {
    "MODEL.NECK": ("bnneck", "only the BNNeck is implemented"),
    "MODEL.ID_LOSS_TYPE": ("softmax", "only the softmax identity loss is implemented"),
    "MODEL.METRIC_LOSS_TYPE": ("triplet", "only the triplet loss is implemented"),
    "MODEL.IF_WITH_CENTER": ("no", "the centre loss is not implemented"),
    "MODEL.PROMPT": (False, "prompt tuning is not implemented"),
    "MODEL.ADAPTER": (False, "adapters are not implemented"),
    "MODEL.DIST_TRAIN": (False, "torchrun decides how many processes train, see docs/reliability.md"),
    "DATALOADER.SAMPLER": ("softmax_triplet", "only the P x K identity sampler is implemented"),
    "SOLVER.WARMUP_METHOD": ("linear", "only the linear warm-up is implemented"),
}
"""Settings of DeMo that are accepted at this value and refused at any other."""

UNUSED_WHEN: dict[tuple[str, ...], tuple[Callable[[CfgNode], bool], str]] = {
    tuple(f"MODEL.SDTPS_{name}" for name in ("GUIDE", "BETA", "USE_GUMBEL", "GUMBEL_TAU")): (
        lambda cfg: cfg.MODEL.SDTPS_SELECT != "score",
        "MODEL.SDTPS_SELECT is not score",
    ),
    ("MODEL.SDTPS_SPARSE_RATIO", "MODEL.SDTPS_AGGR_RATIO"): (
        lambda cfg: cfg.MODEL.SDTPS_SELECT == "all",
        "MODEL.SDTPS_SELECT is all",
    ),
    tuple(
        f"MODEL.SDTPS_{name}"
        for name in (
            "SELECT",
            "GUIDE",
            "SPARSE_RATIO",
            "AGGR_RATIO",
            "BETA",
            "LOSS_WEIGHT",
        )
    ): (
        lambda cfg: not cfg.MODEL.USE_SDTPS,
        "MODEL.USE_SDTPS is off",
    ),
    ("MODEL.SDTPS_USE_GUMBEL", "MODEL.SDTPS_GUMBEL_TAU"): (
        lambda cfg: cfg.MODEL.SDTPS_BETA == 0.5,
        "with MODEL.SDTPS_BETA 0.5 the score has no learned part",
    ),
    ("MODEL.SDTPS_GUMBEL_TAU",): (
        lambda cfg: not cfg.MODEL.SDTPS_USE_GUMBEL,
        "MODEL.SDTPS_USE_GUMBEL is off",
    ),
    tuple(f"MODEL.SLIM_{name}" for name in ("KEEP", "SCORE", "CROSS", "WARMUP_EPOCHS", "USE_GUMBEL")): (
        lambda cfg: not cfg.MODEL.SLIM_LAYERS,
        "MODEL.SLIM_LAYERS is empty",
    ),
    ("MODEL.SLIM_GUMBEL_TAU",): (
        lambda cfg: not cfg.MODEL.SLIM_USE_GUMBEL,
        "MODEL.SLIM_USE_GUMBEL is off",
    ),
    ("MODEL.HEAD",): (lambda cfg: not cfg.MODEL.ATM, "MODEL.ATM is off"),
    ("MODEL.SIE_COE",): (lambda cfg: not (cfg.MODEL.SIE_CAMERA or cfg.MODEL.SIE_VIEW), "there is no SIE"),
    ("MODEL.DROP_PATH",): (
        lambda cfg: cfg.MODEL.TRANSFORMER_TYPE == "ViT-B-16",
        "ViT-B-16 has none, as in DeMo",
    ),
    ("SOLVER.MARGIN",): (lambda cfg: cfg.MODEL.NO_MARGIN, "MODEL.NO_MARGIN is on"),
    ("SOLVER.MOMENTUM",): (lambda cfg: cfg.SOLVER.OPTIMIZER_NAME != "SGD", "it is for SGD"),
}
"""Settings that only matter together with another one; a change that has no effect is logged."""

NO_EFFECT = (
    "SOLVER.CENTER_LR",
    "SOLVER.CENTER_LOSS_WEIGHT",
    "SOLVER.CLUSTER_MARGIN",
    "SOLVER.RANGE_K",
    "SOLVER.RANGE_MARGIN",
    "SOLVER.RANGE_ALPHA",
    "SOLVER.RANGE_BETA",
    "SOLVER.RANGE_LOSS_WEIGHT",
    "SOLVER.GAMMA",
    "SOLVER.STEPS",
    "SOLVER.WARMUP_FACTOR",
    "SOLVER.COSINE_MARGIN",
    "SOLVER.COSINE_SCALE",
)
"""Settings that DeMo's files carry for parts that are switched off there too; a change is logged."""


_abbreviate = reprlib.Repr()
_abbreviate.maxstring = _abbreviate.maxother = 80
_abbreviate.maxlevel = 2

LARGEST_SIDE = 4096
"""Pixels on the side of an image."""
MOST_PATCHES = 10_000
"""Patches of an image: what attention takes grows with their square."""

Check = tuple[Callable[[Any], bool], str]


def between(lowest: int, highest: int) -> Check:
    """A check for a range with both ends."""
    return lambda v: lowest <= v <= highest, f"between {lowest} and {highest}"


POSITIVE: Check = (lambda v: 0 < v < float("inf"), "above 0")
NOT_NEGATIVE: Check = (lambda v: 0 <= v < float("inf"), "0 or more")
RATIO: Check = (lambda v: 0 < v <= 1, "above 0 and at most 1")
PROBABILITY: Check = (lambda v: 0 <= v <= 1, "between 0 and 1")
DROPOUT: Check = (lambda v: 0 <= v < 1, "0 or more and below 1")
SIZE: Check = (
    lambda v: len(v) == 2 and all(isinstance(n, int) and 0 < n <= LARGEST_SIDE for n in v),
    f"two whole numbers between 1 and {LARGEST_SIDE}",
)
BATCH = between(1, 4096)
EPOCHS = between(1, 100_000)
PER_CHANNEL: Check = (lambda v: len(v) == 3, "three numbers, one per channel")
RANGES: dict[str, Check] = {
    "MODEL.DEVICE_ID": (lambda v: re.fullmatch("[0-9]{1,4}", v) is not None, "one number, such as 0"),
    "MODEL.STRIDE_SIZE": SIZE,
    "MODEL.DROP_PATH": DROPOUT,
    "MODEL.DROP_OUT": DROPOUT,
    "MODEL.ATT_DROP_RATE": DROPOUT,
    "MODEL.SIE_COE": NOT_NEGATIVE,
    "MODEL.HEAD": between(1, 1024),
    "MODEL.ID_LOSS_WEIGHT": NOT_NEGATIVE,
    "MODEL.TRIPLET_LOSS_WEIGHT": NOT_NEGATIVE,
    "MODEL.SDTPS_SPARSE_RATIO": RATIO,
    "MODEL.SDTPS_AGGR_RATIO": RATIO,
    "MODEL.SDTPS_BETA": (lambda v: 0 <= v <= 0.5, "between 0 and 0.5"),
    "MODEL.SDTPS_GUMBEL_TAU": POSITIVE,
    "MODEL.SDTPS_LOSS_WEIGHT": NOT_NEGATIVE,
    "MODEL.SLIM_LAYERS": (
        lambda v: all(isinstance(n, int) and n > 0 for n in v) and list(v) == sorted(set(v)),
        "ascending numbers of blocks, counted from 1, such as [3, 6, 9]",
    ),
    "MODEL.SLIM_KEEP": RATIO,
    "MODEL.SLIM_WARMUP_EPOCHS": between(0, 100_000),
    "MODEL.SLIM_GUMBEL_TAU": POSITIVE,
    "INPUT.SIZE_TRAIN": SIZE,
    "INPUT.SIZE_TEST": SIZE,
    "INPUT.PROB": PROBABILITY,
    "INPUT.RE_PROB": PROBABILITY,
    "INPUT.PADDING": NOT_NEGATIVE,
    "INPUT.PIXEL_MEAN": PER_CHANNEL,
    "INPUT.PIXEL_STD": (lambda v: len(v) == 3 and min(v) > 0, "three numbers above 0"),
    "DATASETS.VAL_IDS": (lambda v: v == 0 or v >= 2, "0, or at least 2 (one identity alone is always found)"),
    "DATALOADER.NUM_WORKERS": between(0, 256),
    "DATALOADER.NUM_INSTANCE": (lambda v: v >= 2, "2 or more (the triplet loss needs pairs)"),
    "SOLVER.MAX_EPOCHS": EPOCHS,
    "SOLVER.IMS_PER_BATCH": BATCH,
    "SOLVER.BASE_LR": POSITIVE,
    "SOLVER.BACKBONE_LR": NOT_NEGATIVE,
    "SOLVER.BIAS_LR_FACTOR": POSITIVE,
    "SOLVER.MOMENTUM": DROPOUT,
    "SOLVER.WEIGHT_DECAY": NOT_NEGATIVE,
    "SOLVER.WEIGHT_DECAY_BIAS": NOT_NEGATIVE,
    "SOLVER.MARGIN": NOT_NEGATIVE,
    "SOLVER.WARMUP_ITERS": NOT_NEGATIVE,
    "SOLVER.CLIP_GRAD": NOT_NEGATIVE,
    "SOLVER.SEED": NOT_NEGATIVE,
    "SOLVER.CHECKPOINT_PERIOD": NOT_NEGATIVE,
    "SOLVER.LOG_PERIOD": POSITIVE,
    "SOLVER.EVAL_PERIOD": POSITIVE,
    "TEST.IMS_PER_BATCH": BATCH,
}


def flatten(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All settings as (`SECTION.KEY`, value)."""
    for key, value in cfg.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def show(value: Any) -> str:
    """A value for a message, on one line and shortened."""
    try:
        return _abbreviate.repr(value)
    except ValueError:  # Python refuses to write a whole number of thousands of digits
        return "a very large number"


def patch_size(backbone: str) -> int | None:
    """Pixels on the side of a patch, where the name of the backbone says it."""
    found = re.search(r"patch([0-9]{1,4})|ViT-\w+-([0-9]{1,4})", backbone)
    return int(found.group(1) or found.group(2)) if found else None


def validate(cfg: CfgNode) -> None:
    """Refuse settings that cannot work, before any work is done."""
    settings = dict(flatten(cfg))
    for key, choices in ALLOWED.items():
        if settings[key] not in choices:
            raise ConfigError(
                f"{key} must be one of {', '.join(map(str, choices))}, not {show(settings[key])}"
            )
    for key, (value, reason) in NOT_IMPLEMENTED.items():
        if settings[key] != value:
            raise ConfigError(f"{key} {show(settings[key])} cannot be used: {reason}; set it to {value!r}")
    for key, (accept, requirement) in RANGES.items():
        if not accept(settings[key]):
            raise ConfigError(f"{key} must be {requirement}, not {show(settings[key])}")
    _validate_combinations(cfg)


def find_unused(cfg: CfgNode) -> dict[str, str]:
    """The keys that have no effect in this configuration, whatever their value, each with the reason."""
    reasons = dict.fromkeys(NO_EFFECT, "see docs/configuration.md")
    for keys, (is_unused, reason) in UNUSED_WHEN.items():
        if is_unused(cfg):
            reasons |= dict.fromkeys(keys, reason)
    return reasons


def warn_about_unused(cfg: CfgNode) -> None:
    """Log the settings that differ from the defaults and have no effect in this configuration."""
    settings, defaults = dict(flatten(cfg)), dict(flatten(get_cfg()))
    for key, reason in find_unused(cfg).items():
        if settings[key] != defaults[key]:
            logger.warning("%s %s has no effect: %s", key, show(settings[key]), reason)
    slims_aligned = cfg.MODEL.SLIM_LAYERS and cfg.MODEL.SLIM_CROSS and cfg.MODEL.SLIM_SCORE == "attention"
    if slims_aligned and not cfg.INPUT.SHARED_AUGMENT:
        logger.warning(
            "MODEL.SLIM_CROSS compares patches of the same index in the three images, which separate "
            "augmentation moves apart; set INPUT.SHARED_AUGMENT True"
        )


def _validate_combinations(cfg: CfgNode) -> None:
    """Refuse settings that are fine by themselves but not together."""
    if cfg.MODEL.ATM and not cfg.MODEL.HDM:
        raise ConfigError("MODEL.ATM weighs the features of MODEL.HDM; turn MODEL.HDM on or MODEL.ATM off")
    if cfg.MODEL.SDTPS_USE_GUMBEL and not cfg.MODEL.USE_SDTPS:
        raise ConfigError("MODEL.SDTPS_USE_GUMBEL needs MODEL.USE_SDTPS; turn both on, or both off")
    _validate_sizes(cfg)
    batch, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if batch % instances or batch == instances:
        raise ConfigError(
            f"SOLVER.IMS_PER_BATCH ({batch}) must be a multiple of DATALOADER.NUM_INSTANCE ({instances}), "
            "and at least twice that, since a batch holds whole identities and two or more of them"
        )
    if cfg.SOLVER.WARMUP_ITERS >= cfg.SOLVER.MAX_EPOCHS:
        raise ConfigError(
            f"SOLVER.WARMUP_ITERS ({cfg.SOLVER.WARMUP_ITERS} epochs) must be below SOLVER.MAX_EPOCHS "
            f"({cfg.SOLVER.MAX_EPOCHS}); lower it, or set it to 0 for no warm-up"
        )
    if not cfg.OUTPUT_DIR.strip():
        raise ConfigError("OUTPUT_DIR is empty; name a folder for the run")


def _validate_sizes(cfg: CfgNode) -> None:
    """Refuse images, patches and strides that do not fit one another."""
    size, stride = cfg.INPUT.SIZE_TRAIN, cfg.MODEL.STRIDE_SIZE
    if list(size) != list(cfg.INPUT.SIZE_TEST):
        raise ConfigError(
            f"INPUT.SIZE_TRAIN {size} and INPUT.SIZE_TEST {cfg.INPUT.SIZE_TEST} must be equal, since the "
            "position embeddings have one grid"
        )
    patch = patch_size(cfg.MODEL.TRANSFORMER_TYPE)
    if patch and min(size) < patch:
        raise ConfigError(
            f"INPUT.SIZE_TRAIN {size} is smaller than one patch of {patch} pixels; make INPUT.SIZE_TRAIN and "
            "INPUT.SIZE_TEST larger"
        )
    if patch and max(stride) > patch:
        raise ConfigError(
            f"MODEL.STRIDE_SIZE {stride} is larger than the patch of {patch} pixels and would skip pixels; "
            f"[{patch}, {patch}] is the largest"
        )
    # Without a patch size in the name, patches are taken not to overlap.
    rows, columns = ((side - (patch or step)) // step + 1 for side, step in zip(size, stride, strict=True))
    if rows * columns > MOST_PATCHES:
        raise ConfigError(
            f"INPUT.SIZE_TRAIN {size} with MODEL.STRIDE_SIZE {stride} makes {rows * columns} patches; at "
            f"most {MOST_PATCHES} can be used, so make the images smaller or the stride larger"
        )
    padding = cfg.INPUT.PADDING
    if padding >= min(size):
        raise ConfigError(
            f"INPUT.PADDING ({padding}) must be smaller than both sides of INPUT.SIZE_TRAIN {size}, or a "
            "crop could miss the image"
        )
