"""Every configuration key, once, with its default and what it does.

Most defaults of DeMo's keys are DeMo's; `docs/configuration.md` lists those that differ, and why. It also
lists every key with its meaning. Tests compare both lists with this file.
"""

from typing import Any

from yacs.config import CfgNode

_C = CfgNode()

_C.MODEL = CfgNode()
_C.MODEL.DEVICE = "auto"  # auto (CUDA where there is one), cuda or cpu
_C.MODEL.DEVICE_ID = "0"  # which CUDA device
_C.MODEL.NAME = "DeMo"  # a label for logs and checkpoints
_C.MODEL.TRANSFORMER_TYPE = "ViT-B-16"  # ViT-B-16 (CLIP), vit_tiny_stem_patch8, or any timm ViT
_C.MODEL.PRETRAIN_PATH_T = ""  # backbone weights; empty: random initialisation
_C.MODEL.STRIDE_SIZE = [16, 16]  # step between patches; smaller than the patch size makes patches overlap
_C.MODEL.DROP_PATH = 0.1  # stochastic depth; not used by ViT-B-16, as in DeMo
_C.MODEL.DROP_OUT = 0.0  # dropout in the backbone's projections and MLPs
_C.MODEL.ATT_DROP_RATE = 0.0  # dropout on the backbone's attention weights
_C.MODEL.FROZEN = False  # keep the backbone's weights fixed
_C.MODEL.SIE_CAMERA = False  # learn an embedding per camera
_C.MODEL.SIE_VIEW = False  # learn an embedding per scene; with SIE_CAMERA, one per pair
_C.MODEL.SIE_COE = 1.0  # factor on the camera or scene embedding
_C.MODEL.GLOBAL_LOCAL = False  # PIFE: join each global feature with the mean of its patches
_C.MODEL.HDM = False  # decouple the modalities into seven features
_C.MODEL.ATM = False  # weigh the seven features by a mixture of experts; needs HDM
_C.MODEL.HEAD = 4  # heads of the mixture of experts
_C.MODEL.DIRECT = 1  # 1: one head on the three globals together; 0: one head per modality
_C.MODEL.NECK = "bnneck"  # only bnneck
_C.MODEL.ID_LOSS_TYPE = "softmax"  # only softmax
_C.MODEL.ID_LOSS_WEIGHT = 0.25  # weight of the identity loss
_C.MODEL.IF_LABELSMOOTH = "on"  # label smoothing of 0.1: on or off
_C.MODEL.METRIC_LOSS_TYPE = "triplet"  # only triplet
_C.MODEL.TRIPLET_LOSS_WEIGHT = 1.0  # weight of the triplet loss
_C.MODEL.NO_MARGIN = True  # soft-margin triplet loss; False: margin SOLVER.MARGIN
_C.MODEL.USE_SDTPS = False  # select and aggregate patch tokens across modalities
_C.MODEL.SDTPS_SELECT = "score"  # score; or, as controls, random (patches) or all (patches, none aggregated)
_C.MODEL.SDTPS_GUIDE = "reduced"  # patches are compared with: reduced (globals after PIFE) or class tokens
_C.MODEL.SDTPS_SPARSE_RATIO = 0.5  # share of the patches that is kept
_C.MODEL.SDTPS_AGGR_RATIO = 0.4  # aggregated tokens as a share of the kept patches
_C.MODEL.SDTPS_BETA = 0.25  # weight of the similarities in the score; the learned part has 1 - 2 * beta
_C.MODEL.SDTPS_USE_GUMBEL = False  # straight-through Gumbel decision in training
_C.MODEL.SDTPS_GUMBEL_TAU = 1.0  # its temperature
_C.MODEL.SDTPS_LOSS_WEIGHT = 1.0  # weight of the SDTPS head's losses
_C.MODEL.SLIM_LAYERS = []  # blocks behind which patches are dropped, counted from 1; empty: none
_C.MODEL.SLIM_KEEP = 0.7  # share of the patches that are left, which each of them keeps
_C.MODEL.SLIM_SCORE = "attention"  # what class tokens say of patches: attention or cosine
_C.MODEL.SLIM_CROSS = True  # whether the other modalities' class tokens help; False: the own alone
_C.MODEL.SLIM_WARMUP_EPOCHS = 0  # epochs in which the share falls from 1 to SLIM_KEEP, in training
_C.MODEL.SLIM_USE_GUMBEL = False  # straight-through Gumbel decision in training
_C.MODEL.SLIM_GUMBEL_TAU = 1.0  # its temperature
_C.MODEL.IF_WITH_CENTER = "no"  # centre loss: not implemented, only no
_C.MODEL.PROMPT = False  # prompt tuning: not implemented, only False
_C.MODEL.ADAPTER = False  # adapters: not implemented, only False
_C.MODEL.DIST_TRAIN = False  # only False; torchrun decides how many processes train

_C.INPUT = CfgNode()
_C.INPUT.SIZE_TRAIN = [256, 128]  # height and width of training images
_C.INPUT.SIZE_TEST = [256, 128]  # height and width of test images; must equal SIZE_TRAIN
_C.INPUT.PROB = 0.5  # probability of a horizontal flip
_C.INPUT.PADDING = 10  # pixels of padding before the random crop
_C.INPUT.RE_PROB = 0.5  # probability of random erasing
_C.INPUT.PIXEL_MEAN = [0.5, 0.5, 0.5]  # normalisation: mean of each channel
_C.INPUT.PIXEL_STD = [0.5, 0.5, 0.5]  # normalisation: standard deviation of each channel
_C.INPUT.SHARED_AUGMENT = False  # the same flip and crop for the three modalities; erasing stays separate

_C.DATASETS = CfgNode()
_C.DATASETS.NAMES = "RGBNT201"  # RGBNT201, RGBNT100, MSVR310, WMVeID863, Synthetic, SyntheticHard
_C.DATASETS.ROOT_DIR = "./data"  # the folder that holds the data set's folder
_C.DATASETS.VAL_IDS = 0  # training identities held out to choose the best epoch; 0: it is chosen on test

_C.DATALOADER = CfgNode()
_C.DATALOADER.NUM_WORKERS = 8  # processes that load images; 0 loads in the main process
_C.DATALOADER.SAMPLER = "softmax_triplet"  # only softmax_triplet: P identities x K images
_C.DATALOADER.NUM_INSTANCE = 8  # K, images per identity in a batch
_C.DATALOADER.CACHE = "none"  # ram: keep resized images in memory that the loading processes share; or none
_C.DATALOADER.ON_ERROR = "stop"  # at an unreadable training image: stop, or skip to another of the identity

_C.SOLVER = CfgNode()
_C.SOLVER.OPTIMIZER_NAME = "Adam"  # Adam, AdamW or SGD
_C.SOLVER.MAX_EPOCHS = 50  # epochs of training
_C.SOLVER.IMS_PER_BATCH = 64  # triples in a training batch, P x K
_C.SOLVER.BASE_LR = 3.5e-4  # learning rate of everything but the backbone
_C.SOLVER.BACKBONE_LR = 0.0  # learning rate of the backbone; 0: 5e-6 for ViT-B-16, 0.8 * BASE_LR otherwise
_C.SOLVER.BIAS_LR_FACTOR = 2.0  # factor on the rate of biases outside the backbone
_C.SOLVER.LARGE_FC_LR = False  # twice the rate for classifiers
_C.SOLVER.MOMENTUM = 0.9  # for SGD
_C.SOLVER.WEIGHT_DECAY = 1e-4  # weight decay of weights
_C.SOLVER.WEIGHT_DECAY_BIAS = 1e-4  # weight decay of biases
_C.SOLVER.MARGIN = 0.3  # triplet margin when NO_MARGIN is False
_C.SOLVER.WARMUP_ITERS = 10  # epochs of warm-up
_C.SOLVER.WARMUP_METHOD = "linear"  # only linear
_C.SOLVER.WARMUP_PROPORTIONAL = False  # each group warms up from 0.1 of its own rate, not of BASE_LR
_C.SOLVER.LR_NOISE = True  # the +-67 % noise on the learning rate that DeMo trains with
_C.SOLVER.CLIP_GRAD = 0.0  # largest gradient norm; 0: no clipping
_C.SOLVER.AMP = True  # mixed precision on CUDA; the CPU always computes in float32
_C.SOLVER.SEED = 1111  # seed of everything that is random
_C.SOLVER.CHECKPOINT_PERIOD = 0  # also keep the weights of every n-th epoch; 0: only the last and the best
_C.SOLVER.LOG_PERIOD = 10  # steps between two log lines
_C.SOLVER.EVAL_PERIOD = 1  # epochs between two evaluations
_C.SOLVER.CENTER_LR = 0.5  # of DeMo's centre loss: no effect here
_C.SOLVER.CENTER_LOSS_WEIGHT = 0.0005  # of DeMo's centre loss: no effect here
_C.SOLVER.CLUSTER_MARGIN = 0.3  # of DeMo's cluster loss: no effect here
_C.SOLVER.RANGE_K = 2  # of DeMo's range loss: no effect here
_C.SOLVER.RANGE_MARGIN = 0.3  # of DeMo's range loss: no effect here
_C.SOLVER.RANGE_ALPHA = 0.0  # of DeMo's range loss: no effect here
_C.SOLVER.RANGE_BETA = 1.0  # of DeMo's range loss: no effect here
_C.SOLVER.RANGE_LOSS_WEIGHT = 1.0  # of DeMo's range loss: no effect here
_C.SOLVER.GAMMA = 0.1  # of a step schedule: no effect on the cosine schedule
_C.SOLVER.STEPS = (40, 70)  # of a step schedule: no effect on the cosine schedule
_C.SOLVER.WARMUP_FACTOR = 0.01  # of a step schedule: no effect on the cosine schedule
_C.SOLVER.COSINE_MARGIN = 0.5  # of a cosine classifier: no effect on the softmax one
_C.SOLVER.COSINE_SCALE = 30.0  # of a cosine classifier: no effect on the softmax one

_C.TEST = CfgNode()
_C.TEST.IMS_PER_BATCH = 128  # triples in a test batch
_C.TEST.WEIGHT = ""  # checkpoint that test_net.py evaluates
_C.TEST.NECK_FEAT = "before"  # features before or after the BNNeck
_C.TEST.FEAT_NORM = "yes"  # L2-normalise the features: yes or no
_C.TEST.MISS = "nothing"  # missing modalities: r, n, t, rn, rt, nt, or nothing
_C.TEST.RE_RANKING = "no"  # rank by k-reciprocal re-ranking (k1 50, k2 15, weight 0.3): yes or no
_C.TEST.UNSEEN_CAMERA = "mean"  # embedding of a camera that training never saw: mean, zero or error
_C.TEST.CONTROLS = False  # train_net.py also scores the untrained model and raw pixels

_C.OUTPUT_DIR = "./runs/default"  # the run folder: config, log, metrics, checkpoints


def register_key(key: str, default: Any) -> None:
    """Add a key, for a part from outside the checkout; call it before the configuration is loaded.

    Args:
        key: `SECTION.NAME` of a section that exists.
        default: decides the type, and must mean that the part is off.
    """
    section, _, name = key.partition(".")
    if section not in _C or not name or name in _C[section]:
        raise ValueError(f"{key!r} is no new key of {', '.join(s for s in _C if s != 'OUTPUT_DIR')}")
    _C[section][name] = default


def get_cfg() -> CfgNode:
    """A fresh copy of the defaults, free to be changed."""
    return _C.clone()
