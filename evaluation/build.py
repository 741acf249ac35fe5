"""From the configuration to an evaluation: the only file of this package that reads cfg."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from yacs.config import CfgNode

from errors import UserError
from evaluation.loop import Evaluate, Processes, evaluate
from evaluation.result import ScoringOptions
from structures import Modality, RetrievalSet, missing_conditions


def make_scoring(cfg: CfgNode) -> ScoringOptions:
    """How samples are compared, by `cfg.TEST`."""
    return ScoringOptions(
        normalise=cfg.TEST.FEAT_NORM == "yes",
        after_neck=cfg.TEST.NECK_FEAT == "after",
        re_rank=cfg.TEST.RE_RANKING == "yes",
    )


def find_conditions(
    cfg: CfgNode,
    modalities: Sequence[Modality],
    missing: str | None = None,
    *,
    any_to_any: bool = False,
) -> list[str]:
    """The missing-modality conditions to evaluate.

    Args:
        cfg: TEST.MISS names one.
        modalities: those that the triples have; each condition leaves at least one.
        missing: evaluate all conditions.
        any_to_any: these are for the matrix, too.
    """
    possible = missing_conditions(modalities)
    condition = "complete" if cfg.TEST.MISS == "nothing" else cfg.TEST.MISS
    asked = "--missing all" if missing else "--any_to_any" if any_to_any else None
    if asked and condition != "complete":
        raise UserError(f"TEST.MISS {condition} and {asked} contradict each other; give one of them")
    if any_to_any and cfg.TEST.RE_RANKING == "yes":
        raise UserError("--any_to_any does not re-rank; leave it out, or set TEST.RE_RANKING no")
    if condition not in possible:
        there = ", ".join(modality.value for modality in modalities)
        raise UserError(
            f"TEST.MISS {condition} is not possible with the images of this data set, {there}; choose from "
            f"{', '.join(['nothing', *list(possible)[1:]])}"
        )
    return list(possible) if missing else [condition]


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
        conditions=conditions or find_conditions(cfg, triples.modalities),
        scoring=make_scoring(cfg),
        device=device,
        world=world,
    )
