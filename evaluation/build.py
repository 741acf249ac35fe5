"""From the configuration to an evaluator: the only file of this package that reads cfg."""

from __future__ import annotations

from yacs.config import CfgNode

from evaluation.evaluator import RetrievalEvaluator
from structures import RetrievalSet


def make_evaluator(cfg: CfgNode, triples: RetrievalSet) -> RetrievalEvaluator:
    """An evaluator by the rules of `cfg.TEST` and the protocol of the set."""
    return RetrievalEvaluator(
        triples.query_rows,
        triples.gallery_rows,
        protocol=triples.protocol,
        normalise=cfg.TEST.FEAT_NORM == "yes",
        after_neck=cfg.TEST.NECK_FEAT == "after",
        re_rank=cfg.TEST.RE_RANKING == "yes",
    )
