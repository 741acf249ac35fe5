from __future__ import annotations

import numpy as np

from config.load import load_config
from evaluation.build import make_evaluator


def test_the_evaluator_follows_the_configuration() -> None:
    rows = np.arange(3)
    default = make_evaluator(load_config(None), rows, rows, "camera")
    assert (default.normalise, default.after_neck, default.re_rank) == (True, False, False)
    changes = ["TEST.FEAT_NORM", "no", "TEST.NECK_FEAT", "after", "TEST.RE_RANKING", "yes"]
    changed = make_evaluator(load_config(None, changes), rows, rows, "none")
    assert (changed.normalise, changed.after_neck, changed.re_rank) == (False, True, True)
    assert changed.protocol == "none"
