from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from config.load import load_config
from evaluation.build import make_evaluator
from structures import RetrievalSet


def test_the_evaluator_follows_the_configuration() -> None:
    query, gallery = np.arange(3), np.arange(1, 3)
    triples = RetrievalSet(DataLoader(TensorDataset(torch.zeros(3))), query, gallery, "none")
    default = make_evaluator(load_config(None), triples)
    assert (default.query_rows.tolist(), default.gallery_rows.tolist()) == ([0, 1, 2], [1, 2])
    assert default.protocol == "none"
    assert (default.normalise, default.after_neck, default.re_rank) == (True, False, False)
    changes = ["TEST.FEAT_NORM", "no", "TEST.NECK_FEAT", "after", "TEST.RE_RANKING", "yes"]
    changed = make_evaluator(load_config(None, changes), triples)
    assert (changed.normalise, changed.after_neck, changed.re_rank) == (False, True, True)
