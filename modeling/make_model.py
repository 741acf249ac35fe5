"""Configuration -> model: one builder per part. The only file of this package that reads cfg."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from errors import UserError, is_redefined
from modeling.absence import AbsentTokens
from modeling.backbone import CLIP_VIT_B16, TINY_STEM, Backbone
from modeling.backbone.slimming import Slimming
from modeling.branches import Branch
from modeling.branches.controls import AllPatches, RandomSparse
from modeling.branches.demo import HDM, ATMoE, DeMoFusion
from modeling.branches.editor import ClassTokens, EditorBranch
from modeling.branches.original import Original
from modeling.branches.sdtps import SDTPSBranch
from modeling.branches.signal import SignalBranch
from modeling.gate import ModalityGate
from modeling.pife import PIFE
from modeling.reid_model import MultiModalReID
from modeling.seps.sdtps import MultiModalSDTPS
from modeling.weights import check_start, describe_trunk_file, find_trunk_file, start_from
from structures import Modality
from weight_file import TRUNK_FILE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenSizes:
    """What a branch has to know of what it will get."""

    dim: int  # C, their width
    grid: tuple[int, int]  # rows and columns of an image's patches
    num_ids: int  # training identities
    modalities: tuple[Modality, ...] = tuple(Modality)  # the tokens of others are zeros

    @property
    def num_patches(self) -> int:
        """N."""
        return self.grid[0] * self.grid[1]


BranchBuilder = Callable[[CfgNode, TokenSizes], dict[str, Branch]]
"""From the configuration and the sizes to the branches that it switches on, by name; often one or none."""

_builders: dict[str, BranchBuilder] = {}

RESERVED = {"slimming", *dir(nn.ModuleDict)}
"""Names that no branch may have: that of the backbone's own selection, and those that torch uses."""


def register_branch(name: str, build: BranchBuilder) -> None:
    """Add a way from tokens to a descriptor; `docs/extending.md` walks through it.

    A function of the same module and name takes the place of the earlier one, as in a notebook.
    """
    if name in _builders and not is_redefined(_builders[name], build):
        raise ValueError(f"there is a branch {name!r} already; choose another name")
    _builders[name] = build


def make_model(
    cfg: CfgNode,
    num_class: int,
    camera_num: int,
    view_num: int = 0,
    modalities: Sequence[Modality] = tuple(Modality),
) -> MultiModalReID:
    """Build the network that `cfg` describes, with random weights, for so many identities, cameras and views.

    A view is a scene. Only MODEL.SIE_CAMERA and MODEL.SIE_VIEW need cameras and views. A model for two
    modalities encodes two images and has no weights for the third.
    """
    # The backbone, with a row of its camera embedding for each camera, view, or pair of both.
    options = cfg.MODEL
    if options.SIE_VIEW and not view_num:
        raise UserError(f"MODEL.SIE_VIEW is on, but {cfg.DATASETS.NAMES} has one scene only; set it to False")
    cameras = camera_num if options.SIE_CAMERA else 0
    views = view_num if options.SIE_VIEW else 0
    backbone = _make_backbone(cfg, max(cameras, 1) * max(views, 1) if cameras or views else 0)
    _tell_normalisation(cfg, backbone)
    rows, columns = backbone.grid
    sizes = TokenSizes(backbone.dim, backbone.grid, num_class, tuple(modalities))
    # PIFE, and the branches that the configuration switches on.
    pife = PIFE(backbone.dim, modalities) if options.GLOBAL_LOCAL else None
    branches: dict[str, Branch] = {}
    for build in _builders.values():
        for name, branch in build(cfg, sizes).items():
            if name in branches or name in RESERVED or not re.fullmatch("[a-z][a-z0-9_]*", name):
                raise ValueError(f"a branch cannot be called {name!r}; choose another name, such as gated")
            branches[name] = branch
            _check_absence(cfg, sizes, name, branch)
    model = MultiModalReID(
        backbone=backbone,
        branches=branches,
        num_classes=num_class,
        pife=pife,
        num_views=views,
        use_cameras=options.SIE_CAMERA,
        modalities=modalities,
        absent=cfg.TEST.ABSENT,
        absent_tokens=_make_absent_tokens(cfg, sizes),
        gate=ModalityGate(sizes.dim, sizes.modalities) if options.MODALITY_GATE else None,
    )
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
    seen, size = backbone.trunk.seen_size, backbone.img_size
    part = ""
    if seen != size:
        part = (
            f" of the upper left {seen[0]} x {seen[1]} pixels (train with INPUT.SIZE_TRAIN and "
            f"INPUT.SIZE_TEST {list(seen)} to have whole images scaled to them)"
        )
    logger.info(
        f"model {options.NAME}: {options.TRANSFORMER_TYPE}, {rows} x {columns} patches{part}, "
        f"heads {', '.join(branches)}, {trainable:.2f} M trainable parameters"
    )
    return model


def check_model(cfg: CfgNode, *, from_file: bool) -> None:
    """Refuse what no model can be built from, before the data set is read or drawn; takes no memory.

    With `from_file`, the file that training starts from must be there.
    """
    if from_file:
        check_start(cfg.MODEL.PRETRAIN_PATH_T)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with torch.device("meta"):
            make_model(cfg, num_class=2, camera_num=1, view_num=2)
    except UserError:
        raise
    except Exception:  # a branch from outside may need numbers; what is wrong with it shows when it is built
        pass
    finally:
        logger.disabled = was_disabled


def fill_start(
    cfg: CfgNode, model: MultiModalReID, earlier: Mapping[str, Any] | None, *, allow_partial: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Fill a model with what its run starts from, as far as the checkpoint to resume from does not hold it.

    Args:
        cfg: MODEL.PRETRAIN_PATH_T names the file. The controls (TEST.CONTROLS) need it in any case.
        model: as it was built.
        earlier: the content of the checkpoint to resume from; None to start.
        allow_partial: load what fits.

    Returns:
        What the run keeps of its start, and the file that its checkpoints need; both may be empty.
    """
    path: str = cfg.MODEL.PRETRAIN_PATH_T
    tuned = None if earlier is None else earlier.get(TRUNK_FILE)
    if earlier is not None and tuned is None:  # its checkpoints hold everything, and will do so
        return (start_from(model, path, allow_partial=allow_partial) if cfg.TEST.CONTROLS else {}), {}
    if tuned is not None:
        find_trunk_file(model, "the checkpoint", tuned, path)
    start = start_from(model, path or (tuned or {}).get("path", ""), allow_partial=allow_partial)
    trunk_file = describe_trunk_file(model, start, allow_partial=allow_partial)
    return start, {} if cfg.SOLVER.SAVE_TRUNK else trunk_file


def warn_random_start(cfg: CfgNode, initial_weights: str) -> None:
    """Log that a model has started from `random` weights, unless its backbone is made for it."""
    name = cfg.MODEL.TRANSFORMER_TYPE
    if initial_weights != "random" or name == TINY_STEM:
        return
    remedy = (
        "name a file with its pre-trained weights in MODEL.PRETRAIN_PATH_T, or write timm there to fetch them"
    )
    if name == CLIP_VIT_B16:
        remedy = (
            "add MODEL.PRETRAIN_PATH_T pretrained/ViT-B-16.pt, CLIP's file from OpenAI's release (DeMo's own "
            "files do not name it, since DeMo's code does)"
        )
    logger.warning(
        f"this model trains {name} from random weights, while published results start from pre-trained ones; "
        f"{remedy}"
    )


def _tell_normalisation(cfg: CfgNode, backbone: Backbone) -> None:
    """Log that images are normalised otherwise than for timm's weights, as DeMo does on purpose for CLIP."""
    source = getattr(backbone.vit, "pretrained_cfg", {})
    trained = [list(source.get(name, ())) for name in ("mean", "std")]
    if all(trained) and not backbone.is_clip and trained != [cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD]:
        logger.info(
            f"timm's weights of {cfg.MODEL.TRANSFORMER_TYPE} were trained with INPUT.PIXEL_MEAN {trained[0]} "
            f"and PIXEL_STD {trained[1]}; here they are {cfg.INPUT.PIXEL_MEAN} and {cfg.INPUT.PIXEL_STD}"
        )


def _make_backbone(cfg: CfgNode, num_embeddings: int) -> Backbone:
    options = cfg.MODEL
    backbone = Backbone(
        options.TRANSFORMER_TYPE,
        img_size=tuple(cfg.INPUT.SIZE_TRAIN),
        stride=tuple(options.STRIDE_SIZE),
        drop_path=options.DROP_PATH,
        dropout=options.DROP_OUT,
        attention_dropout=options.ATT_DROP_RATE,
        num_embeddings=num_embeddings,
        embedding_factor=options.SIE_COE,
        unseen_camera=cfg.TEST.UNSEEN_CAMERA,
        slimming=Slimming(options.SLIM_KEEP) if options.SLIM_LAYERS else None,
        slim_layers=options.SLIM_LAYERS,
        recompute=cfg.SOLVER.GRAD_CHECKPOINT,
    )
    backbone.tune(
        "frozen" if options.FROZEN else options.TUNE,
        rank=options.TUNE_RANK,
        scale=options.TUNE_SCALE,
        shared=options.ADAPTER_SHARED,
    )
    return backbone


def _check_absence(cfg: CfgNode, sizes: TokenSizes, name: str, branch: Branch) -> None:
    """Refuse a branch that compares all modalities where one would be left out."""
    if not branch.needs_all:
        return
    if len(sizes.modalities) < len(Modality):
        there = ", ".join(modality.value for modality in sizes.modalities)
        raise UserError(
            f"the branch {name} compares three modalities, and the training images are {there}; switch it off"
        )
    if cfg.TEST.ABSENT == "skip" and not cfg.MODEL.ABSENT_TOKEN:
        raise UserError(
            f"the branch {name} compares three modalities; with TEST.ABSENT skip, set MODEL.ABSENT_TOKEN True"
        )


def _make_absent_tokens(cfg: CfgNode, sizes: TokenSizes) -> AbsentTokens | None:
    if cfg.TEST.ABSENT == "skip" and cfg.MODEL.ABSENT_TOKEN:
        return AbsentTokens(sizes.dim, sizes.modalities)
    return None


def _make_original(cfg: CfgNode, sizes: TokenSizes) -> dict[str, Branch]:
    if cfg.MODEL.USE_EDITOR:  # which trains the class tokens in its own way, and does not evaluate them
        return {}
    if cfg.MODEL.DIRECT:
        return {"ori": Original(sizes.dim, sizes.modalities, align_weight=cfg.MODEL.ALIGN)}
    return {f"ori_{m.key}": Original(sizes.dim, [m]) for m in sizes.modalities}


def _make_sdtps(cfg: CfgNode, sizes: TokenSizes) -> dict[str, Branch]:
    """Token selection, or a control in its place."""
    options = cfg.MODEL
    if not options.USE_SDTPS:
        return {}
    if options.SDTPS_SELECT == "all":
        return {"sdtps": SDTPSBranch(AllPatches(), sizes.dim, sizes.modalities)}
    ratio, selectors = options.SDTPS_SPARSE_RATIO, None
    if options.SDTPS_SELECT == "random":
        selectors = [RandomSparse(ratio, seed=index) for index in range(len(sizes.modalities))]
    select = MultiModalSDTPS(
        sizes.dim,
        sizes.num_patches,
        num_modalities=len(sizes.modalities),
        sparse_ratio=ratio,
        aggr_ratio=options.SDTPS_AGGR_RATIO,
        beta=options.SDTPS_BETA,
        use_gumbel=options.SDTPS_USE_GUMBEL,
        gumbel_tau=options.SDTPS_GUMBEL_TAU,
        selectors=selectors,
    )
    branch = SDTPSBranch(
        select, sizes.dim, sizes.modalities, beta=options.SDTPS_BETA, guide=options.SDTPS_GUIDE
    )
    return {"sdtps": branch}


def _make_demo(cfg: CfgNode, sizes: TokenSizes) -> dict[str, Branch]:
    options = cfg.MODEL
    if not options.HDM:
        return {}
    hdm = HDM(sizes.dim, sizes.modalities)
    count = len(hdm.subsets)
    atmoe = ATMoE(sizes.dim, num_features=count, num_heads=options.HEAD) if options.ATM else None
    return {"moe": DeMoFusion(hdm, atmoe, sizes.dim)}


def _make_signal(cfg: CfgNode, sizes: TokenSizes) -> dict[str, Branch]:
    if not cfg.MODEL.USE_SIGNAL:
        return {}
    options = cfg.SIGNAL
    branch = SignalBranch(
        sizes.dim,
        sizes.grid,
        top_k=options.TOPK,
        straight_through=options.DECISION == "straight_through",
        gam_weight=options.GAM_WEIGHT,
        min_temperature=options.MIN_TEMPERATURE,
        lam_weight=options.LAM_WEIGHT,
    )
    return {"signal": branch}


def _make_editor(cfg: CfgNode, sizes: TokenSizes) -> dict[str, Branch]:
    if not cfg.MODEL.USE_EDITOR:
        return {}
    options = cfg.EDITOR
    editor = EditorBranch(
        sizes.dim,
        sizes.num_patches,
        sizes.num_ids,
        frequency=options.FREQUENCY,
        frequency_keep=options.FREQUENCY_KEEP,
        head_keep=options.HEAD_KEEP,
        drop=options.DROP,
        bcc_weight=options.BCC_WEIGHT,
        ocfr_weight=options.OCFR_WEIGHT,
    )
    if options.AL:
        return {"editor": editor, "editor_class": ClassTokens(sizes.dim)}
    one_each = {
        f"editor_{m.key}": ClassTokens(sizes.dim, (m,), shared_head="editor_modality") for m in Modality
    }
    return {"editor": editor, **one_each}


register_branch("original", _make_original)
register_branch("sdtps", _make_sdtps)
register_branch("demo", _make_demo)
register_branch("signal", _make_signal)
register_branch("editor", _make_editor)
