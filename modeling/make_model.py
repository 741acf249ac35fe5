"""Configuration -> model. The only file of this room that reads cfg."""

from __future__ import annotations

import logging

from yacs.config import CfgNode

from modeling.atmoe import ATMoE
from modeling.backbone import CLIP_VIT_B16, TINY_STEM, Backbone
from modeling.evidence import LocalEvidence
from modeling.hdm import HDM, SUBSETS
from modeling.heads import BNNeckHead
from modeling.pife import PIFE
from modeling.reid_model import MultiModalReID
from modeling.sdtps import AllPatches, MultiModalSDTPS
from modeling.slimming import Slimming
from structures import Modality, UserError

logger = logging.getLogger(__name__)


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> MultiModalReID:
    """Build the network that `cfg` describes, with random weights.

    Args:
        cfg: a configuration, see config/defaults.py.
        num_class: number of training identities.
        camera_num: number of cameras, for MODEL.SIE_CAMERA.
        view_num: number of views (scenes), for MODEL.SIE_VIEW.
    """
    options = cfg.MODEL
    if options.SIE_VIEW and not view_num:
        raise UserError(f"MODEL.SIE_VIEW is on, but {cfg.DATASETS.NAMES} has one scene only; set it to False")
    cameras = camera_num if options.SIE_CAMERA else 0
    views = view_num if options.SIE_VIEW else 0
    backbone = Backbone(
        options.TRANSFORMER_TYPE,
        img_size=tuple(cfg.INPUT.SIZE_TRAIN),
        stride=tuple(options.STRIDE_SIZE),
        drop_path=options.DROP_PATH,
        dropout=options.DROP_OUT,
        attention_dropout=options.ATT_DROP_RATE,
        num_embeddings=max(cameras, 1) * max(views, 1) if cameras or views else 0,
        embedding_factor=options.SIE_COE,
        unseen_camera=cfg.TEST.UNSEEN_CAMERA,
        slimming=Slimming(
            options.SLIM_KEEP,
            score=options.SLIM_SCORE,
            cross_modal=options.SLIM_CROSS,
            use_gumbel=options.SLIM_USE_GUMBEL,
            gumbel_tau=options.SLIM_GUMBEL_TAU,
            warmup_epochs=options.SLIM_WARMUP_EPOCHS,
        )
        if options.SLIM_LAYERS
        else None,
        slim_layers=options.SLIM_LAYERS,
    )
    if options.FROZEN:
        backbone.vit.requires_grad_(False)

    dim, embedding_dim = backbone.dim, backbone.vit.embed_dim
    rows, columns = backbone.grid
    original = {"ori": dim * len(Modality)} if options.DIRECT else {f"ori_{m.key}": dim for m in Modality}
    heads = {name: BNNeckHead(name, width, num_class, fused=False) for name, width in original.items()}
    if options.USE_SDTPS:
        heads["sdtps"] = BNNeckHead("sdtps", dim * len(Modality), num_class, fused=True)
    if options.HDM:
        heads["moe"] = BNNeckHead("moe", dim * len(SUBSETS), num_class, fused=True)
    looks = options.USE_SDTPS and options.SDTPS_SELECT == "score" and options.SDTPS_GUIDE == "evidence"
    if looks:
        heads["evidence"] = BNNeckHead("evidence", embedding_dim * len(Modality), num_class, fused=False)

    model = MultiModalReID(
        backbone=backbone,
        heads=heads,
        pife=PIFE(dim) if options.GLOBAL_LOCAL else None,
        sdtps=_make_sdtps(options, dim, rows * columns) if options.USE_SDTPS else None,
        guide=options.SDTPS_GUIDE,
        evidence=LocalEvidence(embedding_dim, backbone.grid) if looks else None,
        hdm=HDM(dim) if options.HDM else None,
        atmoe=ATMoE(dim, num_features=len(SUBSETS), num_heads=options.HEAD) if options.ATM else None,
        num_views=views,
        use_cameras=options.SIE_CAMERA,
    )
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    logger.info(
        "model %s: %s, %d x %d patches, heads %s, %.2f M trainable parameters",
        options.NAME,
        options.TRANSFORMER_TYPE,
        rows,
        columns,
        ", ".join(heads),
        trainable / 1e6,
    )
    return model


def warn_random_start(cfg: CfgNode, initial_weights: str) -> str:
    """Log that a run starts from random weights, unless its backbone is made for it; returns the remark.

    Args:
        cfg: a configuration.
        initial_weights: what the run starts from: `random`, or a file.
    """
    name = cfg.MODEL.TRANSFORMER_TYPE
    if initial_weights != "random" or name == TINY_STEM:
        return ""
    remedy = "name a file with its pre-trained weights in MODEL.PRETRAIN_PATH_T"
    if name == CLIP_VIT_B16:
        remedy = (
            "add MODEL.PRETRAIN_PATH_T pretrained/ViT-B-16.pt, CLIP's file from OpenAI's release (DeMo's own "
            "files do not name it, since DeMo's code does)"
        )
    remark = (
        f"this run trains {name} from random weights, while published results start from pre-trained ones; "
        f"{remedy}"
    )
    logger.warning(remark)
    return remark


def _make_sdtps(options: CfgNode, dim: int, num_patches: int) -> MultiModalSDTPS | AllPatches:
    """Token selection, or a control in its place.

    Args:
        options: `cfg.MODEL`.
        dim: width of the tokens.
        num_patches: of an image; also with slimming, so that the number of aggregated tokens, and with it the
            weights, stay the same.
    """
    if options.SDTPS_SELECT == "all":
        return AllPatches()
    return MultiModalSDTPS(
        dim,
        num_patches,
        sparse_ratio=options.SDTPS_SPARSE_RATIO,
        aggr_ratio=options.SDTPS_AGGR_RATIO,
        beta=options.SDTPS_BETA,
        use_gumbel=options.SDTPS_USE_GUMBEL,
        gumbel_tau=options.SDTPS_GUMBEL_TAU,
        at_random=options.SDTPS_SELECT == "random",
    )
