"""From the configuration to an evaluation: the only file of this package that reads cfg."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from yacs.config import CfgNode

from errors import UserError
from evaluation.loop import Evaluate, Processes, evaluate
from evaluation.result import ScoringOptions
from structures import MISSING_CONDITIONS, RetrievalSet


def make_scoring(cfg: CfgNode) -> ScoringOptions:
    """How samples are compared, by `cfg.TEST`."""
    return ScoringOptions(
        normalise=cfg.TEST.FEAT_NORM == "yes",
        after_neck=cfg.TEST.NECK_FEAT == "after",
        re_rank=cfg.TEST.RE_RANKING == "yes",
    )


def find_conditions(cfg: CfgNode, missing: str | None = None) -> list[str]:
    """The missing-modality conditions to evaluate: the one that TEST.MISS names, or with `missing` all."""
    if missing is None:
        return ["complete" if cfg.TEST.MISS == "nothing" else cfg.TEST.MISS]
    if cfg.TEST.MISS != "nothing":
        raise UserError(
            f"TEST.MISS {cfg.TEST.MISS} and --missing all contradict each other; give one of them"
        )
    return list(MISSING_CONDITIONS)


def make_evaluate(
    cfg: CfgNode,
    triples: RetrievalSet,
    device: torch.device,
    world: Processes | None = None,
    conditions: Sequence[str] | None = None,
) -> Evaluate:
    """`evaluate` on these triples, by the rules of `cfg.TEST`; without `conditions`, that of TEST.MISS."""
    return partial(
        evaluate,
        triples=triples,
        conditions=conditions or find_conditions(cfg),
        scoring=make_scoring(cfg),
        device=device,
        world=world,
    )
