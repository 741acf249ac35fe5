from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from solver.optimizer import build_optimizer, parameter_groups


class ToyBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.ModuleDict({"norm1": nn.LayerNorm(2), "attn": nn.MultiheadAttention(2, 1)})
        self.vit = nn.ModuleDict({"blocks": nn.ModuleList([block])})
        self.camera_embed = nn.Parameter(torch.zeros(2))


class ToyModel(nn.Module):
    """Parameter names as in the real model."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ToyBackbone()
        self.reduce = nn.ModuleList([nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2))])
        head = nn.ModuleDict({"neck": nn.BatchNorm1d(2), "classifier": nn.Linear(2, 3, bias=False)})
        head["neck"].bias.requires_grad_(False)
        self.heads = nn.ModuleDict({"ori": head})


RULES: dict[str, Any] = {
    "base_lr": 1e-3,
    "backbone_lr": 1e-5,
    "bias_lr_factor": 2.0,
    "weight_decay": 0.1,
    "weight_decay_bias": 0.2,
    "large_fc_lr": False,
}


def settings_by_name(model: nn.Module, **changes: Any) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in parameter_groups(model, **(RULES | changes))
        for parameter in group["params"]
    }


def test_rules_by_name() -> None:
    assert settings_by_name(ToyModel()) == {
        "backbone.camera_embed": (1e-3, 0.1),
        "backbone.vit.blocks.0.norm1.weight": (1e-5, 0.1),
        "backbone.vit.blocks.0.norm1.bias": (1e-5, 0.2),
        "backbone.vit.blocks.0.attn.in_proj_weight": (1e-5, 0.1),
        "backbone.vit.blocks.0.attn.in_proj_bias": (1e-5, 0.2),
        "backbone.vit.blocks.0.attn.out_proj.weight": (1e-5, 0.1),
        "backbone.vit.blocks.0.attn.out_proj.bias": (1e-5, 0.2),
        "reduce.0.0.weight": (1e-3, 0.1),
        "reduce.0.0.bias": (2e-3, 0.2),
        "reduce.0.1.weight": (1e-3, 0.1),
        "reduce.0.1.bias": (2e-3, 0.2),
        "heads.ori.neck.weight": (1e-3, 0.1),
        "heads.ori.classifier.weight": (1e-3, 0.1),
    }


def test_large_fc_lr_doubles_the_rate_of_classifiers_only() -> None:
    before, after = settings_by_name(ToyModel()), settings_by_name(ToyModel(), large_fc_lr=True)
    changed = {name: after[name] for name in before if before[name] != after[name]}
    assert changed == {"heads.ori.classifier.weight": (2e-3, 0.1)}
    factor = settings_by_name(ToyModel(), large_fc_lr=True, fc_lr_factor=100.0)
    assert factor == {**before, "heads.ori.classifier.weight": (0.1, 0.1)}


@pytest.mark.parametrize("large_fc_lr", [False, True])
def test_every_trainable_parameter_is_in_exactly_one_group(large_fc_lr: bool) -> None:
    model = ToyModel()
    for parameter in model.backbone.vit.parameters():
        parameter.requires_grad_(False)
    groups = parameter_groups(model, **(RULES | {"large_fc_lr": large_fc_lr}))
    counts = Counter(id(parameter) for group in groups for parameter in group["params"])
    assert counts == {id(p): 1 for p in model.parameters() if p.requires_grad}


def test_groups_of_equal_settings_are_merged_and_named() -> None:
    def names(**changes: Any) -> list[str]:
        return [group["name"] for group in parameter_groups(ToyModel(), **(RULES | changes))]

    assert names() == ["heads", "backbone", "backbone bias", "heads bias"]
    assert names(weight_decay_bias=0.1) == ["heads", "backbone", "heads bias"]
    merged = names(weight_decay_bias=0.1, large_fc_lr=True)
    assert merged == ["heads", "backbone", "heads bias + classifiers"]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_optimizers_keep_the_settings_of_the_groups(name: str) -> None:
    groups = parameter_groups(ToyModel(), **RULES)
    wanted = [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
    optimizer = build_optimizer(name, groups, momentum=0.8)
    assert type(optimizer).__name__ == name
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == wanted
    if name == "SGD":
        assert {group["momentum"] for group in optimizer.param_groups} == {0.8}


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_fused_steps_equal_those_of_plain_optimizers_with_one_group_per_tensor(name: str) -> None:
    """Plain as in DeMo: a group for each tensor, and torch's loop over tensors."""
    fast_model, plain_model = ToyModel(), ToyModel()
    plain_model.load_state_dict(fast_model.state_dict())
    fast = build_optimizer(name, parameter_groups(fast_model, **RULES), momentum=0.8)
    assert all(group["fused"] for group in fast.param_groups)
    settings = settings_by_name(plain_model)
    options = {"momentum": 0.8} if name == "SGD" else {}
    plain = getattr(torch.optim, name)(
        [
            {"params": [parameter], "lr": settings[key][0], "weight_decay": settings[key][1]}
            for key, parameter in plain_model.named_parameters()
            if key in settings
        ],
        foreach=False,
        **options,
    )
    before = [parameter.detach().clone() for parameter in fast_model.parameters()]
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        for ours, theirs in zip(fast_model.parameters(), plain_model.parameters(), strict=True):
            ours.grad = torch.randn(ours.shape, generator=generator) if ours.requires_grad else None
            theirs.grad = None if ours.grad is None else ours.grad.clone()
        fast.step()
        plain.step()
    for ours, theirs, start in zip(fast_model.parameters(), plain_model.parameters(), before, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(ours, start) != ours.requires_grad


def test_a_device_without_fused_kernels_gets_the_plain_optimizer() -> None:
    with torch.device("meta"):
        model = ToyModel()
    optimizer = build_optimizer("Adam", parameter_groups(model, **RULES), momentum=0.9)
    assert not any(group["fused"] for group in optimizer.param_groups)


def test_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown optimizer 'Lion'; choose from \['Adam', 'AdamW', 'SGD'\]"):
        build_optimizer("Lion", parameter_groups(ToyModel(), **RULES), momentum=0.9)
