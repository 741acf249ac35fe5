"""The table of keys: defaults, checks, messages and docs/configuration.md are made from its rows."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from yacs.config import CfgNode

from errors import UserError


class ConfigError(UserError):
    """A setting that cannot be used; the message names the key, the value and what to do."""


class Check(NamedTuple):
    """What a key accepts: `words` follow "must be"; `choices` are all of the values, where they are few."""

    accept: Callable[[Any], bool]
    words: str
    choices: tuple[Any, ...] = ()


Condition = tuple[Callable[[CfgNode], bool], str]
"""A question to a configuration, and the words for the answer yes."""


Changes = Literal["scores", "weights", "nothing"]
"""What another value can change: what trained weights give, only how they are trained, or neither."""


@dataclass(frozen=True)
class Key:
    """A row of the table."""

    name: str  # `SECTION.NAME`; OUTPUT_DIR alone has no section
    default: Any  # decides the type as well
    help: str = ""  # what the key does, in Markdown
    check: Check | None = None  # what the key accepts; None for every value of its type
    # When the key has no effect, and why; the first condition that holds is the one that is logged.
    unused: tuple[Condition, ...] = ()
    changes: Changes = "scores"  # what another value can change
    demo: tuple[Any, str] | None = None  # DeMo's default where it differs, and why it does


TrainKey = partial(Key, changes="weights")
"""A key that does not change what trained weights give."""
FreeKey = partial(Key, changes="nothing")
"""A key that may change in the middle of a run."""

LARGEST_SIDE = 4096
"""Pixels on the side of an image."""
MOST_PATCHES = 10_000
"""Patches of an image: the cost of attention grows with their square."""


def between(lowest: float, highest: float) -> Check:
    """A range with both ends."""
    return Check(lambda v: lowest <= v <= highest, f"between {lowest} and {highest}")


def one_of(*choices: Any) -> Check:
    """A few values."""
    return Check(lambda v: v in choices, f"one of {', '.join(map(str, choices))}", choices)


ABOVE_0 = Check(lambda v: 0 < v < float("inf"), "above 0")
FROM_0 = Check(lambda v: 0 <= v < float("inf"), "0 or more")
RATIO = Check(lambda v: 0 < v <= 1, "above 0 and at most 1")
FRACTION = Check(lambda v: 0 <= v < 1, "0 or more and below 1")
SIZE = Check(
    lambda v: len(v) == 2 and all(isinstance(n, int) and 0 < n <= LARGEST_SIDE for n in v),
    f"two whole numbers between 1 and {LARGEST_SIDE}",
)
BLOCKS = Check(
    lambda v: all(isinstance(n, int) and n >= 0 for n in v) and list(v) == sorted(set(v)),
    "ascending numbers of blocks, counted from 1, such as [3, 6, 9]; 0 is before the first",
)
THREE = Check(lambda v: len(v) == 3, "three numbers, one per channel")
THREE_ABOVE_0 = Check(lambda v: len(v) == 3 and min(v) > 0, "three numbers above 0")
ONE_DEVICE = Check(lambda v: re.fullmatch("[0-9]{1,4}", v) is not None, "one number, such as 0")
HELD_OUT = Check(lambda v: v == 0 or v >= 2, "0, or at least 2 (one identity alone is always found)")
PAIRS = Check(lambda v: v >= 2, "2 or more (the triplet loss needs pairs)")

NO_SDTPS = (lambda cfg: not cfg.MODEL.USE_SDTPS, "MODEL.USE_SDTPS is off")
NO_SCORE = (lambda cfg: cfg.MODEL.SDTPS_SELECT != "score", "MODEL.SDTPS_SELECT is not score")
ALL_PATCHES = (lambda cfg: cfg.MODEL.SDTPS_SELECT == "all", "MODEL.SDTPS_SELECT is all")
NOT_LEARNED = (lambda cfg: cfg.MODEL.SDTPS_BETA == 0.5, "MODEL.SDTPS_BETA 0.5 leaves no learned part")
NO_GUMBEL = (lambda cfg: not cfg.MODEL.SDTPS_USE_GUMBEL, "MODEL.SDTPS_USE_GUMBEL is off")
NO_SLIM = (lambda cfg: not cfg.MODEL.SLIM_LAYERS, "MODEL.SLIM_LAYERS is empty")
NO_GAM = (lambda cfg: not cfg.SIGNAL.GAM_WEIGHT, "SIGNAL.GAM_WEIGHT is 0")
NO_SIGNAL = (lambda cfg: not cfg.MODEL.USE_SIGNAL, "MODEL.USE_SIGNAL is off")
NO_SMALL_PARTS = (lambda cfg: cfg.MODEL.TUNE not in ("adapter", "lora"), "MODEL.TUNE has no new weights")
NO_FROZEN = (
    lambda cfg: cfg.MODEL.TUNE == "full" and not cfg.MODEL.FROZEN,
    "MODEL.TUNE full trains the whole trunk",
)
NO_EDITOR = (lambda cfg: not cfg.MODEL.USE_EDITOR, "MODEL.USE_EDITOR is off")
IS_EDITOR = (lambda cfg: cfg.MODEL.USE_EDITOR, "MODEL.USE_EDITOR is on, so EDITOR.AL decides")
NO_ATM = (lambda cfg: not cfg.MODEL.ATM, "MODEL.ATM is off")
NO_SIE = (lambda cfg: not (cfg.MODEL.SIE_CAMERA or cfg.MODEL.SIE_VIEW), "no camera embedding is learned")
FROM_CSV = (lambda cfg: cfg.DATASETS.NAMES == "CSV", "DATASETS.NAMES is CSV")
NO_CSV = (lambda cfg: cfg.DATASETS.NAMES != "CSV", "DATASETS.NAMES is not CSV")
CLIP = (lambda cfg: cfg.MODEL.TRANSFORMER_TYPE == "ViT-B-16", "the backbone is ViT-B-16, as in DeMo")
SOFT_MARGIN = (lambda cfg: cfg.MODEL.NO_MARGIN, "MODEL.NO_MARGIN is on")
SAME_FC_LR = (lambda cfg: not cfg.SOLVER.LARGE_FC_LR, "SOLVER.LARGE_FC_LR is off")
NO_AMP = (lambda cfg: not cfg.SOLVER.AMP, "SOLVER.AMP is off")
NOT_SGD = (lambda cfg: cfg.SOLVER.OPTIMIZER_NAME != "SGD", "SOLVER.OPTIMIZER_NAME is not SGD")

FILES = "as in DeMo's files"
FILE_201 = "as in DeMo's file for RGBNT201"

# fmt: off
TABLE = (
    TrainKey("MODEL.DEVICE", "auto", "`auto` (CUDA if there is one), `cuda` or `cpu`.",
        one_of("auto", "cuda", "cpu"), demo=("cuda", "the demo runs without CUDA")),
    FreeKey("MODEL.DEVICE_ID", "0", "CUDA device; `torchrun` gives each process its own.", ONE_DEVICE),
    TrainKey("MODEL.NAME", "DeMo", "A label for logs and checkpoints."),
    Key("MODEL.TRANSFORMER_TYPE", "ViT-B-16",
        "`ViT-B-16` (CLIP), `vit_tiny_stem_patch8` (the demo), or a ViT of timm with a class token: "
        "[trunks](method.md#trunks).",
        demo=("vit_base_patch16_224", FILES)),
    TrainKey("MODEL.PRETRAIN_PATH_T", "",
        "Weights of the backbone: a file, or `timm` to fetch timm's. Empty: random initialisation.",
        demo=("a path to fill in", "files name their weights")),
    Key("MODEL.STRIDE_SIZE", [16, 16], "Step between patches. Below the patch size they overlap.", SIZE),
    TrainKey("MODEL.DROP_PATH", 0.1, "Stochastic depth.", FRACTION, unused=(CLIP,)),
    TrainKey("MODEL.DROP_OUT", 0.0, "Dropout in the backbone's projections and MLPs.", FRACTION),
    TrainKey("MODEL.ATT_DROP_RATE", 0.0, "Dropout on the backbone's attention weights.", FRACTION),
    Key("MODEL.TUNE", "full",
        "What of the trunk [learns](method.md#tuning): `full`, `frozen`, `bias`, `adapter` or `lora`.",
        one_of("full", "frozen", "adapter", "lora", "bias")),
    Key("MODEL.TUNE_RANK", 16, "Width of an adapter's bottleneck; rank of LoRA.", between(1, 4096),
        unused=(NO_SMALL_PARTS,)),
    Key("MODEL.TUNE_SCALE", 1.0, "Factor on what adapters or LoRA add.", ABOVE_0, unused=(NO_SMALL_PARTS,)),
    Key("MODEL.ADAPTER_SHARED", True,
        "All modalities share adapters or LoRA. False: each has its own.",
        unused=(NO_SMALL_PARTS,)),
    TrainKey("MODEL.FROZEN", False, "DeMo's name for `MODEL.TUNE frozen`."),
    Key("MODEL.SIE_CAMERA", False, "Learn an embedding per camera.",
        demo=(True, "off until a file says so")),
    Key("MODEL.SIE_VIEW", False, "Learn an embedding per scene; with SIE_CAMERA, one per pair."),
    Key("MODEL.SIE_COE", 1.0, "Factor on this embedding.", FROM_0, unused=(NO_SIE,), demo=(3.0, FILES)),
    Key("MODEL.GLOBAL_LOCAL", False, "PIFE: join each global feature with the mean of its patches."),
    Key("MODEL.HDM", False, "HDM: one feature for each subset of the modalities."),
    Key("MODEL.ABSENT_TOKEN", False, "Learned tokens replace those of a missing image.",
        unused=((lambda cfg: cfg.TEST.ABSENT == "zeros", "TEST.ABSENT is zeros"),)),
    TrainKey("MODEL.ALIGN", 0.0,
        "Weight of a contrastive loss between the globals of a person in different modalities.", FROM_0,
        unused=((lambda cfg: cfg.MODEL.USE_EDITOR, "MODEL.USE_EDITOR has no original features"),)),
    Key("MODEL.MODALITY_GATE", False, "Multiply the tokens of each image by a scalar computed from them."),
    Key("MODEL.ATM", False, "ATMoE: weigh these features by a mixture of experts. Needs HDM."),
    Key("MODEL.HEAD", 4, "Heads of ATMoE.", between(1, 1024), unused=(NO_ATM,), demo=(12, FILE_201)),
    Key("MODEL.DIRECT", 1, "`1`: one head on the three globals. `0`: one head per modality.", one_of(0, 1),
        unused=(IS_EDITOR,)),
    TrainKey("MODEL.ID_LOSS_WEIGHT", 0.25, "Weight of the identity loss.", FROM_0, demo=(1.0, FILES)),
    TrainKey("MODEL.IF_LABELSMOOTH", "on", "Label smoothing of 0.1.", one_of("on", "off")),
    TrainKey("MODEL.TRIPLET_LOSS_WEIGHT", 1.0, "Weight of the triplet loss.", FROM_0),
    TrainKey("MODEL.NO_MARGIN", True, "Soft-margin triplet loss. False: with the margin SOLVER.MARGIN."),
    Key("MODEL.USE_SDTPS", False, "Select and aggregate patch tokens, guided across modalities."),
    Key("MODEL.SDTPS_SELECT", "score",
        "`score` keeps the best patches. Controls: `random` keeps random ones, `all` takes the mean of all.",
        one_of("score", "random", "all"),
        unused=(NO_SDTPS,)),
    Key("MODEL.SDTPS_GUIDE", "reduced",
        "Score patches by their similarity with the globals after PIFE (`reduced`, as published), with the "
        "`class` tokens, or by the class token's `attention`.",
        one_of("reduced", "class", "attention"), unused=(NO_SDTPS, NO_SCORE)),
    Key("MODEL.SDTPS_SPARSE_RATIO", 0.5, "Share of patches kept.", RATIO, unused=(NO_SDTPS, ALL_PATCHES)),
    Key("MODEL.SDTPS_AGGR_RATIO", 0.4, "Aggregated tokens as a share of the kept patches.", RATIO,
        unused=(NO_SDTPS, ALL_PATCHES)),
    Key("MODEL.SDTPS_BETA", 0.25, "Weight β of the similarities in the score. The learned part has 1 − 2β.",
        between(0, 0.5), unused=(NO_SDTPS, NO_SCORE)),
    TrainKey("MODEL.SDTPS_USE_GUMBEL", False,
        "Straight-through Gumbel decision in training. Needs USE_SDTPS.", unused=(NO_SCORE, NOT_LEARNED)),
    TrainKey("MODEL.SDTPS_GUMBEL_TAU", 1.0, "Temperature of the Gumbel softmax.", ABOVE_0,
        unused=(NO_GUMBEL, NO_SCORE, NOT_LEARNED)),
    TrainKey("MODEL.SDTPS_LOSS_WEIGHT", 1.0, "Weight of the SDTPS losses.", FROM_0, unused=(NO_SDTPS,)),
    Key("MODEL.SLIM_LAYERS", [], "Blocks after which [similar patches are merged](method.md#slimming).",
        BLOCKS),
    Key("MODEL.SLIM_KEEP", 0.7, "Share of the tokens that each merge leaves.", RATIO, unused=(NO_SLIM,)),
    Key("MODEL.USE_EDITOR", False,
        "[EDITOR](selectors.md#editor): select patches by attention and frequency, then fuse modalities."),
    Key("MODEL.USE_SIGNAL", False,
        "[Signal](selectors.md#signal): globals attend to patches selected within and across modalities."),

    Key("EDITOR.FREQUENCY", "mean",
        "What ranks windows: bright pixels of the `mean` image, as published, or `high`, the energy of the "
        "Haar detail bands.", one_of("mean", "high"), unused=(NO_EDITOR,)),
    Key("EDITOR.FREQUENCY_KEEP", 10, "Patches kept by that rank.", between(0, MOST_PATCHES),
        unused=(NO_EDITOR,)),
    Key("EDITOR.HEAD_KEEP", 2, "Patches kept in each attention head of each modality.",
        between(1, MOST_PATCHES), unused=(NO_EDITOR,)),
    Key("EDITOR.DROP", False,
        "Fuse the kept patches alone. False: all, as published. The features are the same.",
        unused=(NO_EDITOR,)),
    Key("EDITOR.AL", 1, "Auxiliary head on the class tokens: `1` concatenated, `0` each in turn.",
        one_of(0, 1), unused=(NO_EDITOR,)),
    TrainKey("EDITOR.BCC_WEIGHT", 1.0, "Weight of BCC, which makes backgrounds alike.", FROM_0,
        unused=(NO_EDITOR,)),
    TrainKey("EDITOR.OCFR_WEIGHT", 1.0,
        "Weight of OCFR, which pulls features to identity centres.", FROM_0, unused=(NO_EDITOR,)),

    Key("SIGNAL.TOPK", 80,
        "Patches that each global picks in its own modality; twice as many in the other two together.",
        between(1, MOST_PATCHES), unused=(NO_SIGNAL,)),
    TrainKey("SIGNAL.DECISION", "published",
        "`published`: the projections that pick across modalities never learn; `straight_through`: they do.",
        one_of("published", "straight_through"), unused=(NO_SIGNAL,)),
    TrainKey("SIGNAL.GAM_WEIGHT", 0.2, "Weight of the global alignment.", FROM_0,
        unused=(NO_SIGNAL,)),
    TrainKey("SIGNAL.MIN_TEMPERATURE", 0.0,
        "Lower bound of its learned temperature, such as 0.01. 0: none, as published.",
        FROM_0, unused=(NO_SIGNAL, NO_GAM)),
    TrainKey("SIGNAL.LAM_WEIGHT", 0.2, "Weight of the local alignment.", FROM_0,
        unused=(NO_SIGNAL,)),

    Key("INPUT.SIZE_TRAIN", [256, 128], "Height and width of training images.", SIZE),
    Key("INPUT.SIZE_TEST", [256, 128], "Height and width of test images. Must equal SIZE_TRAIN.", SIZE),
    TrainKey("INPUT.PROB", 0.5, "Probability of a horizontal flip.", between(0, 1)),
    TrainKey("INPUT.PADDING", 10, "Black pixels on each side before the crop.", FROM_0),
    TrainKey("INPUT.RE_PROB", 0.5, "Probability of random erasing.", between(0, 1)),
    TrainKey("INPUT.JITTER", 0.0, "Brightness and contrast vary by this share.", between(0, 1)),
    Key("INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], "Normalisation: mean, for values in [0, 1].", THREE),
    Key("INPUT.PIXEL_STD", [0.5, 0.5, 0.5], "Normalisation: standard deviation.", THREE_ABOVE_0),
    TrainKey("INPUT.MODALITY_DROPOUT", 0.0,
        "In training, the probability that a batch lacks a modality; never all of them.", FRACTION),
    TrainKey("INPUT.SHARED_AUGMENT", False, "The same flip and crop for all modalities, but not erasing."),

    Key("DATASETS.NAMES", "RGBNT201",
        "The data set, such as `RGBNT201`, `Synthetic` or `CSV`: [all](data.md)."),
    FreeKey("DATASETS.ROOT_DIR", "./data", "The folder that holds the data set's folder.",
        unused=(FROM_CSV,)),
    FreeKey("DATASETS.CSV", "", "The file that lists the triples of `DATASETS.NAMES CSV`.", unused=(NO_CSV,)),
    TrainKey("DATASETS.VAL_IDS", 0,
        "Training identities held out to [choose the best epoch](evaluation.md#choosing-the-epoch). 0: on "
        "the test split, as in DeMo.", HELD_OUT),

    FreeKey("DATALOADER.NUM_WORKERS", 8, "Processes that load images; 0: the main one does.",
        between(0, 256), demo=(14, "the result is the same")),
    TrainKey("DATALOADER.NUM_INSTANCE", 8, "K, images per identity in a batch.", PAIRS, demo=(16, FILE_201)),
    FreeKey("DATALOADER.CACHE", "none",
        "`ram` keeps resized images in shared memory (295 kB per triple of 256 × 128) and stops if they do "
        "not fit; `none` does not.", one_of("none", "ram")),
    TrainKey("DATALOADER.ON_ERROR", "stop",
        "At an unreadable training image, `stop`, or `skip` to another triple of the identity.",
        one_of("stop", "skip")),

    TrainKey("SOLVER.OPTIMIZER_NAME", "Adam", "The optimiser.", one_of("Adam", "AdamW", "SGD"),
        demo=("SGD", FILES)),
    TrainKey("SOLVER.MAX_EPOCHS", 50, "Epochs of training.", between(1, 100_000), demo=(120, FILE_201)),
    TrainKey("SOLVER.IMS_PER_BATCH", 64, "Triples in a training batch, P × K.", between(1, 4096),
        demo=(128, FILE_201)),
    TrainKey("SOLVER.BASE_LR", 3.5e-4, "Learning rate outside the backbone.", ABOVE_0, demo=(0.009, FILES)),
    TrainKey("SOLVER.BACKBONE_LR", 0.0,
        "Learning rate of the trunk's own weights. 0: 5e-6 for `ViT-B-16`, otherwise 0.8 × BASE_LR, as DeMo; "
        "BASE_LR for `MODEL.TUNE bias`.", FROM_0),
    TrainKey("SOLVER.BIAS_LR_FACTOR", 2.0, "Factor on the rate of biases outside the backbone.", ABOVE_0),
    TrainKey("SOLVER.LARGE_FC_LR", False, "Classifiers learn at FC_LR_FACTOR × BASE_LR."),
    TrainKey("SOLVER.FC_LR_FACTOR", 2.0, "Factor of LARGE_FC_LR.", ABOVE_0, unused=(SAME_FC_LR,)),
    TrainKey("SOLVER.MOMENTUM", 0.9, "Momentum of SGD.", FRACTION, unused=(NOT_SGD,)),
    TrainKey("SOLVER.WEIGHT_DECAY", 1e-4, "Weight decay of everything but biases.", FROM_0),
    TrainKey("SOLVER.WEIGHT_DECAY_BIAS", 1e-4, "Weight decay of biases.", FROM_0),
    TrainKey("SOLVER.MARGIN", 0.3, "Margin of the triplet loss.", FROM_0, unused=(SOFT_MARGIN,)),
    TrainKey("SOLVER.WARMUP_ITERS", 10, "Epochs (not steps) of linear warm-up.", FROM_0),
    TrainKey("SOLVER.WARMUP_PROPORTIONAL", False,
        "Each group goes from 0.1 to 0.001 of its own rate. False: of BASE_LR, as in DeMo."),
    TrainKey("SOLVER.LR_PER_STEP", False,
        "The rate changes with every step. False: with every epoch, as in DeMo."),
    TrainKey("SOLVER.LR_NOISE", True, "DeMo's ±67 % noise on the learning rate."),
    TrainKey("SOLVER.CLIP_GRAD", 0.0, "Largest gradient norm. 0: no clipping.", FROM_0),
    TrainKey("SOLVER.EMA_DECAY", 0.0,
        "Decay per step of the [moving average](reliability.md#weight-averaging) of the weights, which is "
        "evaluated and kept, such as 0.99. 0: none.", FRACTION),
    TrainKey("SOLVER.AMP", True, "Mixed precision in training on CUDA; the rest uses float32."),
    TrainKey("SOLVER.AMP_DTYPE", "float16",
        "Its type; `bfloat16` does not overflow.",
        one_of("float16", "bfloat16"), unused=(NO_AMP,)),
    FreeKey("SOLVER.GRAD_CHECKPOINT", False,
        "Recompute the backbone's blocks in the backward pass: [less memory, more "
        "time](performance.md#results)."),
    TrainKey("SOLVER.SEED", 1111, "Seed of everything that is random.", FROM_0),
    FreeKey("SOLVER.CHECKPOINT_PERIOD", 0, "Also keep the weights of every n-th epoch; 0: none.", FROM_0,
        demo=(10, "the last and the best are kept")),
    FreeKey("SOLVER.SAVE_TRUNK", False,
        "Checkpoints also hold what `MODEL.TUNE` freezes. False: the SHA-256 of its file.",
        unused=(NO_FROZEN,)),
    FreeKey("SOLVER.LOG_PERIOD", 10, "Steps between two log lines.", ABOVE_0),
    FreeKey("SOLVER.EVAL_PERIOD", 1, "Epochs between evaluations. The last epoch always has one.", ABOVE_0),

    FreeKey("TEST.IMS_PER_BATCH", 128, "Triples in a test batch.", between(1, 4096), demo=(256, FILES)),
    FreeKey("TEST.WEIGHT", "", "Checkpoint that `test_net.py` evaluates, ours or DeMo's."),
    Key("TEST.NECK_FEAT", "before", "Features `before` or `after` the BNNeck.", one_of("before", "after")),
    Key("TEST.FEAT_NORM", "yes",
        "L2-normalise the features; DeMo's code does so even with `no`.", one_of("yes", "no")),
    Key("TEST.MISS", "nothing", "Missing modalities.",
        one_of("nothing", "r", "n", "t", "rn", "rt", "nt"), demo=("None", "`None` is accepted")),
    Key("TEST.ABSENT", "zeros",
        "A missing image, in training and test: encode `zeros`, as in DeMo, or `skip` it.",
        one_of("zeros", "skip")),
    Key("TEST.RE_RANKING", "no", "k-reciprocal re-ranking (k1 = 50, k2 = 15, λ = 0.3).", one_of("yes", "no")),
    Key("TEST.UNSEEN_CAMERA", "mean",
        "Embedding of a camera without training images: the `mean`, `zero`, or an `error`.",
        one_of("mean", "zero", "error"), unused=(NO_SIE,)),
    TrainKey("TEST.CONTROLS", False, "`train_net.py` also scores the untrained model and raw pixels."),

    FreeKey("OUTPUT_DIR", "./runs/default", "The run folder. One that holds a run needs `--overwrite`.",
        demo=("./test", "runs share a folder")),
)

RULES: tuple[Condition, ...] = (
    (lambda cfg: cfg.MODEL.FROZEN and cfg.MODEL.TUNE not in ("full", "frozen"),
     "MODEL.FROZEN means MODEL.TUNE frozen, but MODEL.TUNE is {MODEL.TUNE}; set MODEL.FROZEN to False"),
    (lambda cfg: cfg.MODEL.USE_EDITOR and cfg.MODEL.SLIM_LAYERS,
     "MODEL.USE_EDITOR follows the attention of every patch through all blocks; set MODEL.SLIM_LAYERS to [], "
     "or MODEL.USE_EDITOR to False"),
    (lambda cfg: cfg.MODEL.ALIGN and not cfg.MODEL.DIRECT,
     "MODEL.ALIGN {MODEL.ALIGN} compares the modalities of one head; set MODEL.DIRECT 1, or MODEL.ALIGN 0"),
    (lambda cfg: cfg.MODEL.ALIGN and cfg.INPUT.MODALITY_DROPOUT
     and (cfg.TEST.ABSENT == "zeros" or cfg.MODEL.ABSENT_TOKEN),
     "MODEL.ALIGN with INPUT.MODALITY_DROPOUT would align what stands in for missing images; set TEST.ABSENT "
     "skip and MODEL.ABSENT_TOKEN False"),
    (lambda cfg: cfg.MODEL.ATM and not cfg.MODEL.HDM,
     "MODEL.ATM weighs the features of MODEL.HDM; turn MODEL.HDM on or MODEL.ATM off"),
    (lambda cfg: cfg.MODEL.SDTPS_USE_GUMBEL and not cfg.MODEL.USE_SDTPS,
     "MODEL.SDTPS_USE_GUMBEL needs MODEL.USE_SDTPS; turn both on, or both off"),
    (lambda cfg: cfg.INPUT.SIZE_TRAIN != cfg.INPUT.SIZE_TEST,
     "INPUT.SIZE_TRAIN {INPUT.SIZE_TRAIN} and INPUT.SIZE_TEST {INPUT.SIZE_TEST} must be equal, since the "
     "position embeddings have one grid"),
    (lambda cfg: min(cfg.INPUT.SIZE_TRAIN) < (patch_size(cfg.MODEL.TRANSFORMER_TYPE) or 0),
     "INPUT.SIZE_TRAIN {INPUT.SIZE_TRAIN} is smaller than one patch of {patch} pixels; make INPUT.SIZE_TRAIN "
     "and INPUT.SIZE_TEST larger"),
    (lambda cfg: max(cfg.MODEL.STRIDE_SIZE) > (patch_size(cfg.MODEL.TRANSFORMER_TYPE) or LARGEST_SIDE),
     "MODEL.STRIDE_SIZE {MODEL.STRIDE_SIZE} is larger than the patch of {patch} pixels and would skip "
     "pixels; [{patch}, {patch}] is the largest"),
    (lambda cfg: _count_patches(cfg) > MOST_PATCHES,
     "INPUT.SIZE_TRAIN {INPUT.SIZE_TRAIN} with MODEL.STRIDE_SIZE {MODEL.STRIDE_SIZE} makes {patches} "
     f"patches; at most {MOST_PATCHES} can be used, so make the images smaller or the stride larger"),
    (lambda cfg: min(cfg.INPUT.SIZE_TRAIN) <= cfg.INPUT.PADDING,
     "INPUT.PADDING ({INPUT.PADDING}) must be smaller than both sides of INPUT.SIZE_TRAIN "
     "{INPUT.SIZE_TRAIN}, or a crop could miss the image"),
    (lambda cfg: cfg.SOLVER.IMS_PER_BATCH % cfg.DATALOADER.NUM_INSTANCE
     or cfg.SOLVER.IMS_PER_BATCH == cfg.DATALOADER.NUM_INSTANCE,
     "SOLVER.IMS_PER_BATCH ({SOLVER.IMS_PER_BATCH}) must be a multiple of DATALOADER.NUM_INSTANCE "
     "({DATALOADER.NUM_INSTANCE}), and at least twice that, since a batch holds whole identities and two or "
     "more of them"),
    (lambda cfg: cfg.SOLVER.LR_PER_STEP and cfg.SOLVER.LR_NOISE,
     "SOLVER.LR_NOISE is drawn once for each epoch, so it cannot go with SOLVER.LR_PER_STEP; set "
     "SOLVER.LR_NOISE to False"),
    (lambda cfg: cfg.SOLVER.WARMUP_ITERS >= cfg.SOLVER.MAX_EPOCHS,
     "SOLVER.WARMUP_ITERS ({SOLVER.WARMUP_ITERS} epochs) must be below SOLVER.MAX_EPOCHS "
     "({SOLVER.MAX_EPOCHS}); lower it, or set it to 0 for no warm-up"),
    (lambda cfg: cfg.DATASETS.NAMES == "CSV" and not cfg.DATASETS.CSV,
     "DATASETS.NAMES is CSV, but DATASETS.CSV names no file; add DATASETS.CSV FILE"),
    (lambda cfg: not cfg.OUTPUT_DIR.strip(), "OUTPUT_DIR is empty; name a folder for the run"),
)
"""What settings must not be together, each with its message; {SECTION.NAME} stands for a value."""
# fmt: on

KEYS = {key.name: key for key in TABLE}
"""The rows by name, with those that `register_key` adds."""
SECTIONS = tuple(dict.fromkeys(key.name.partition(".")[0] for key in TABLE if "." in key.name))


def register_key(name: str, default: Any, help: str = "", check: Check | None = None) -> None:
    """Add a key, for a part from outside the checkout; call it before the configuration is loaded.

    Args:
        name: `SECTION.NAME` of a section that exists.
        default: decides the type, and must mean that the part is off.
        help: what the key does.
        check: what it accepts besides its type, such as `between(0, 1)` or `one_of("a", "b")`.
    """
    section, _, last = name.partition(".")
    if section not in SECTIONS or not last:
        raise ValueError(f"{name!r} is no new key of {', '.join(SECTIONS)}")
    known = KEYS.get(name)
    if known is not None and (known.default, known.help) != (default, help):  # else a cell that runs twice
        raise ValueError(f"there is a key {name} already; choose another name")
    if not isinstance(default, (bool, int, float, str, list)):
        raise ValueError(f"{name} takes a switch, a number, a text or a list, not {show(default)}")
    if check and not check.accept(default):
        raise ValueError(f"the default of {name} must be {check.words}, not {show(default)}")
    KEYS[name] = Key(name, default, help, check)


def get_cfg() -> CfgNode:
    """A fresh copy of the defaults, free to be changed."""
    cfg = CfgNode()
    for key in KEYS.values():
        section, _, name = key.name.rpartition(".")
        node = cfg.setdefault(section, CfgNode()) if section else cfg
        node[name] = deepcopy(key.default)
    return cfg


def flatten(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All settings as (`SECTION.KEY`, value)."""
    for key, value in cfg.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_abbreviate = reprlib.Repr()
_abbreviate.maxstring = _abbreviate.maxother = 80
_abbreviate.maxlevel = 2


def show(value: Any) -> str:
    """A value for a message, on one line and shortened."""
    try:
        return _abbreviate.repr(value)
    except ValueError:  # Python refuses to write a whole number of thousands of digits
        return "a very large number"


def patch_size(backbone: str) -> int | None:
    """Pixels on the side of a patch, where the name of a ViT says it."""
    found = re.search(r"^(?:vit|deit|eva).*patch([0-9]{1,4})|ViT-\w+-([0-9]{1,4})", backbone)
    return int(found.group(1) or found.group(2)) if found else None


def _count_patches(cfg: CfgNode) -> int:
    """Patches of an image. Without a patch size in the backbone's name they are taken not to overlap."""
    patch = patch_size(cfg.MODEL.TRANSFORMER_TYPE)
    (height, width), (down, right) = cfg.INPUT.SIZE_TRAIN, cfg.MODEL.STRIDE_SIZE
    return ((height - (patch or down)) // down + 1) * ((width - (patch or right)) // right + 1)


def validate(cfg: CfgNode) -> None:
    """Refuse settings that cannot work, alone or together, before any work is done."""
    for name, value in flatten(cfg):
        check = KEYS[name].check
        if check and not check.accept(value):
            raise ConfigError(f"{name} must be {check.words}, not {show(value)}")
    for is_wrong, message in RULES:
        if is_wrong(cfg):
            patch = patch_size(cfg.MODEL.TRANSFORMER_TYPE)
            raise ConfigError(message.format(**cfg, patch=patch, patches=_count_patches(cfg)))


def find_unused(cfg: CfgNode) -> dict[str, str]:
    """The keys that have no effect in this configuration, whatever their value, each with the reason."""
    return {
        name: reasons[0]
        for name, key in KEYS.items()
        if (reasons := [reason for is_unused, reason in key.unused if is_unused(cfg)])
    }
