"""Learning rate and weight decay of every one of DeMo's parameters, by name."""

import json
from pathlib import Path

import torch

from config import load_config
from modeling.checkpoint_names import DEMO_CLIP_RULES, rename
from modeling.make_model import make_model
from solver.build import make_optimizer

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]


def test_every_parameter_has_demos_rate_and_decay() -> None:
    recorded = json.loads((DATA / "expected.json").read_text())["optimizer_groups_rgbnt201_demo"]
    cfg = load_config(ROOT / "configs/RGBNT201/DeMo.yml")
    with torch.device("meta"):
        model = make_model(cfg, 171, 4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ours = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in make_optimizer(cfg, model).param_groups
        for parameter in group["params"]
    }
    # The values do not matter here, only that the translated names are ours.
    translated, unknown = rename({name: torch.zeros(2, 2) for name in recorded}, DEMO_CLIP_RULES)
    assert not unknown
    expected = dict(zip(translated, (tuple(values) for values in recorded.values()), strict=True))
    assert ours == expected
