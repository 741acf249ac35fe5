"""Mixed precision, as far as the CPU's autocast shows it: the losses, the gradients, no weight left out."""

from __future__ import annotations

import pytest
import torch

from config import load_config
from conftest import ROOT
from modeling.make_model import make_model
from solver.build import make_criterion
from structures import ModalBatch, PerModality

IDS = torch.arange(4).repeat_interleave(2)
SKIP = ["TEST.ABSENT", "skip"]
SLIM = ["MODEL.SLIM_LAYERS", "[0, 2]", "MODEL.SLIM_KEEP", "0.6"]
CASES = {
    "one head": ("Baseline", ["MODEL.ALIGN", "0.5"]),
    "SDTPS": ("DeMo_SDTPS", ["MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.SIE_CAMERA", "True"]),
    "SDTPS by attention": (
        "DeMo_SDTPS",
        ["MODEL.SDTPS_GUIDE", "attention", "SOLVER.GRAD_CHECKPOINT", "True"],
    ),
    "DeMo, absent images": ("DeMo", SKIP),
    "learned tokens": ("DeMo", [*SKIP, "MODEL.ABSENT_TOKEN", "True", "MODEL.MODALITY_GATE", "True"]),
    "slimming": ("DeMo_SDTPS", [*SLIM, *SKIP]),
    "adapters": ("DeMo", ["MODEL.TUNE", "adapter", "MODEL.ADAPTER_SHARED", "False", *SKIP]),
    "LoRA": ("DeMo_SDTPS", ["MODEL.TUNE", "lora", "MODEL.ADAPTER_SHARED", "False", *SKIP]),
    "Signal": ("Signal", ["SIGNAL.DECISION", "straight_through"]),
    "EDITOR": ("EDITOR", []),
}


def make_batch(*, absent: bool) -> ModalBatch:
    """Eight triples of four identities; `absent`: no TI image at all, and some without RGB."""
    generator = torch.Generator().manual_seed(1)
    images = PerModality.build(lambda _: torch.randn(8, 3, 128, 64, generator=generator))
    there = torch.ones(8, dtype=torch.bool)
    present = PerModality(torch.arange(8) % 3 > 0, there, ~there) if absent else PerModality(*[there] * 3)
    return ModalBatch(images, IDS, IDS % 2, torch.zeros_like(IDS), present=present)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_float32(name: str, dtype: torch.dtype) -> None:
    config, overrides = CASES[name]
    cfg = load_config(ROOT / "configs" / "Synthetic" / f"{config}.yml", overrides)
    torch.manual_seed(0)
    model, criterion = make_model(cfg, num_class=4, camera_num=2).train(), make_criterion(cfg)
    batch = make_batch(absent="skip" in overrides)
    found = []
    for enabled in (False, True):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(5)  # dropout and Gumbel noise
        with torch.autocast("cpu", dtype, enabled=enabled):
            losses = criterion(model(batch), IDS)
        torch.stack(list(losses.values())).sum().backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        # DistributedDataParallel waits for the gradient of every weight.
        assert [name for name, gradient in gradients.items() if gradient is None] == []
        norm = torch.stack([g.norm() for g in gradients.values() if g is not None]).norm()
        found.append({**{loss: value.item() for loss, value in losses.items()}, "gradient": norm.item()})
    assert found[1] == pytest.approx(found[0], rel=0.05, abs=0.05)
    assert found[1] != found[0]  # autocast was on
