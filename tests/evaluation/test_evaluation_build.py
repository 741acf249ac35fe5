from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from config.load import load_config
from conftest import ToyModel, make_triples
from errors import UserError
from evaluation.build import find_conditions, make_evaluate, make_scoring
from evaluation.result import ScoringOptions
from structures import ModalBatch, Modality


def test_scoring_follows_the_configuration() -> None:
    assert make_scoring(load_config(None)) == ScoringOptions(normalise=True, after_neck=False, re_rank=False)
    changes = ["TEST.FEAT_NORM", "no", "TEST.NECK_FEAT", "after", "TEST.RE_RANKING", "yes"]
    changed = ScoringOptions(normalise=False, after_neck=True, re_rank=True)
    assert make_scoring(load_config(None, changes)) == changed


def test_conditions_are_that_of_the_configuration_or_all() -> None:
    cfg, three = load_config(None), tuple(Modality)
    assert find_conditions(cfg, three) == find_conditions(cfg, three, any_to_any=True) == ["complete"]
    assert find_conditions(cfg, three, "all") == ["complete", "r", "n", "t", "rn", "rt", "nt"]
    cfg = load_config(None, ["TEST.MISS", "nt"])
    assert find_conditions(cfg, three) == ["nt"]
    with pytest.raises(UserError, match=r"TEST\.MISS nt and --missing all contradict each other"):
        find_conditions(cfg, three, "all")
    with pytest.raises(UserError, match=r"TEST\.MISS nt and --any_to_any contradict each other"):
        find_conditions(cfg, three, any_to_any=True)


def test_conditions_leave_an_image_of_the_data_set() -> None:
    cfg, two = load_config(None), (Modality.RGB, Modality.TI)
    assert find_conditions(cfg, two, "all") == ["complete", "r", "t"]
    assert find_conditions(cfg, (Modality.NI,), "all") == ["complete"]
    assert find_conditions(load_config(None, ["TEST.MISS", "t"]), two) == ["t"]
    for impossible in ("n", "rt"):
        with pytest.raises(
            UserError, match=f"MISS {impossible} is not possible .* RGB, TI; .* nothing, r, t$"
        ):
            find_conditions(load_config(None, ["TEST.MISS", impossible]), two)


def test_an_evaluation_has_the_condition_of_the_configuration_unless_others_are_given(
    make_batch: Callable[..., ModalBatch], toy_model: ToyModel
) -> None:
    cfg, triples = load_config(None, ["TEST.MISS", "nt"]), make_triples([make_batch([0, 0, 1, 1])])
    cpu = torch.device("cpu")
    assert list(make_evaluate(cfg, triples, cpu)(toy_model)) == ["nt"]
    assert list(make_evaluate(cfg, triples, cpu, conditions=["r", "t"])(toy_model)) == ["r", "t"]
