"""Our defaults beside DeMo's."""

from collections import defaultdict
from typing import Any

import yaml
from test_config import DEMO_FILE

from config import get_cfg
from config.demo_keys import DEMO_KEYS
from config.schema import KEYS, flatten

DEFAULTS = dict(flatten(get_cfg()))
DEMO_DEFAULTS: dict[str, Any] = {
    "MODEL.DEVICE": "cuda",
    "MODEL.DEVICE_ID": "0",
    "MODEL.NAME": "DeMo",
    "MODEL.PRETRAIN_PATH_T": "/path/to/your/vitb_16_224_21k.pth",
    "MODEL.NECK": "bnneck",
    "MODEL.IF_WITH_CENTER": "no",
    "MODEL.ID_LOSS_TYPE": "softmax",
    "MODEL.ID_LOSS_WEIGHT": 1.0,
    "MODEL.TRIPLET_LOSS_WEIGHT": 1.0,
    "MODEL.METRIC_LOSS_TYPE": "triplet",
    "MODEL.DIST_TRAIN": False,
    "MODEL.PROMPT": False,
    "MODEL.ADAPTER": False,
    "MODEL.FROZEN": False,
    "MODEL.HDM": False,
    "MODEL.ATM": False,
    "MODEL.IF_LABELSMOOTH": "on",
    "MODEL.DIRECT": 1,
    "MODEL.DROP_PATH": 0.1,
    "MODEL.DROP_OUT": 0.0,
    "MODEL.ATT_DROP_RATE": 0.0,
    "MODEL.TRANSFORMER_TYPE": "vit_base_patch16_224",
    "MODEL.STRIDE_SIZE": [16, 16],
    "MODEL.GLOBAL_LOCAL": False,
    "MODEL.HEAD": 12,
    "MODEL.SIE_COE": 3.0,
    "MODEL.SIE_CAMERA": True,
    "MODEL.SIE_VIEW": False,
    "MODEL.NO_MARGIN": True,
    "INPUT.SIZE_TRAIN": [256, 128],
    "INPUT.SIZE_TEST": [256, 128],
    "INPUT.PROB": 0.5,
    "INPUT.RE_PROB": 0.5,
    "INPUT.PIXEL_MEAN": [0.5, 0.5, 0.5],
    "INPUT.PIXEL_STD": [0.5, 0.5, 0.5],
    "INPUT.PADDING": 10,
    "DATASETS.NAMES": "RGBNT201",
    "DATASETS.ROOT_DIR": "./data",
    "DATALOADER.NUM_WORKERS": 14,
    "DATALOADER.SAMPLER": "softmax_triplet",
    "DATALOADER.NUM_INSTANCE": 16,
    "SOLVER.OPTIMIZER_NAME": "SGD",
    "SOLVER.MAX_EPOCHS": 120,
    "SOLVER.BASE_LR": 0.009,
    "SOLVER.LARGE_FC_LR": False,
    "SOLVER.BIAS_LR_FACTOR": 2,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.MARGIN": 0.3,
    "SOLVER.CLUSTER_MARGIN": 0.3,
    "SOLVER.CENTER_LR": 0.5,
    "SOLVER.CENTER_LOSS_WEIGHT": 0.0005,
    "SOLVER.RANGE_K": 2,
    "SOLVER.RANGE_MARGIN": 0.3,
    "SOLVER.RANGE_ALPHA": 0,
    "SOLVER.RANGE_BETA": 1,
    "SOLVER.RANGE_LOSS_WEIGHT": 1,
    "SOLVER.WEIGHT_DECAY": 0.0001,
    "SOLVER.WEIGHT_DECAY_BIAS": 0.0001,
    "SOLVER.GAMMA": 0.1,
    "SOLVER.STEPS": (40, 70),
    "SOLVER.WARMUP_FACTOR": 0.01,
    "SOLVER.WARMUP_ITERS": 10,
    "SOLVER.WARMUP_METHOD": "linear",
    "SOLVER.COSINE_MARGIN": 0.5,
    "SOLVER.COSINE_SCALE": 30,
    "SOLVER.SEED": 1111,
    "SOLVER.CHECKPOINT_PERIOD": 10,
    "SOLVER.LOG_PERIOD": 10,
    "SOLVER.EVAL_PERIOD": 1,
    "SOLVER.IMS_PER_BATCH": 128,
    "TEST.IMS_PER_BATCH": 256,
    "TEST.RE_RANKING": "no",
    "TEST.WEIGHT": "",
    "TEST.NECK_FEAT": "before",
    "TEST.FEAT_NORM": "yes",
    "TEST.MISS": "None",
    "OUTPUT_DIR": "./test",
}
"""DeMo's defaults, as two public copies of its `config/defaults.py` both have them."""


def test_the_rows_know_which_defaults_differ_from_demos() -> None:
    demo = {key: value for key, value in DEMO_DEFAULTS.items() if key not in DEMO_KEYS}
    assert demo.keys() <= KEYS.keys()
    assert {row.name for row in KEYS.values() if row.demo} == {k for k, v in demo.items() if DEFAULTS[k] != v}
    for row in KEYS.values():
        if row.demo and row.name != "MODEL.PRETRAIN_PATH_T":  # a path to fill in
            assert row.demo[0] == demo[row.name]


def test_demos_dead_keys_are_accepted_at_its_defaults() -> None:
    assert DEMO_KEYS.keys() <= DEMO_DEFAULTS.keys()
    for key, (accepted, _) in DEMO_KEYS.items():
        assert accepted in (None, DEMO_DEFAULTS[key])


def test_demos_files_set_the_keys_whose_defaults_differ() -> None:
    """What the page says of them: only two of these keys are left to the defaults."""
    placeholders = defaultdict(str, size="[256, 128]", name="RGBNT201")
    named = {key for key, _ in flatten(yaml.safe_load(DEMO_FILE.format_map(placeholders)))}
    unnamed = {row.name for row in KEYS.values() if row.demo} - named
    assert unnamed == {"MODEL.DEVICE", "SOLVER.CHECKPOINT_PERIOD"}
