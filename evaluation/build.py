"""From the configuration to an evaluator: the only file of this room that reads cfg."""

from __future__ import annotations

import numpy as np
from yacs.config import CfgNode

from evaluation.evaluator import RetrievalEvaluator


def make_evaluator(
    cfg: CfgNode, query_rows: np.ndarray, gallery_rows: np.ndarray, protocol: str
) -> RetrievalEvaluator:
    """An evaluator by the rules of `cfg.TEST`, for the given rows of the distinct test samples."""
    return RetrievalEvaluator(
        query_rows,
        gallery_rows,
        protocol=protocol,
        normalise=cfg.TEST.FEAT_NORM == "yes",
        after_neck=cfg.TEST.NECK_FEAT == "after",
        re_rank=cfg.TEST.RE_RANKING == "yes",
    )
