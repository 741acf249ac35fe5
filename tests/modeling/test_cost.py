from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from config.load import load_config
from modeling import cost
from modeling.cost import CostReport, count_multiply_adds, measure_cost
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import ModalBatch

CONFIGS = Path(__file__).parents[2] / "configs"
NORM = 5  # fvcore counts five operations for each element that a LayerNorm or GroupNorm sees
MODALITIES = 3


def build(config: str) -> MultiModalReID:
    return make_model(load_config(CONFIGS / config), num_class=171, camera_num=4)


@cache
def counted(config: str) -> dict[str, int]:
    return count_multiply_adds(build(config))


def total(config: str) -> int:
    return sum(counted(config).values())


def blocks_by_hand(tokens: int, width: int, depth: int, mlp_ratio: int) -> int:
    """Multiply-adds of the blocks of a ViT for one image."""
    projections = 3 * tokens * width**2 + tokens * width**2  # queries, keys and values; then the output
    attention = 2 * tokens**2 * width  # query times key, weights times value
    mlp = 2 * tokens * width * mlp_ratio * width
    norms = 2 * NORM * tokens * width
    return depth * (projections + attention + mlp + norms)


def test_clip_backbone_equals_the_count_by_hand() -> None:
    patches, width = 16 * 8, 768
    tokens = patches + 1
    embedding = patches * 16 * 16 * 3 * width
    outer_norms = 2 * NORM * tokens * width
    projection = tokens * width * 512
    one_image = embedding + outer_norms + blocks_by_hand(tokens, width, 12, 4) + projection
    assert counted("RGBNT201/Baseline.yml")["backbone"] == MODALITIES * one_image == 34_207_197_696


def test_small_backbone_equals_the_count_by_hand() -> None:
    pixels = [64 * 32, 32 * 16, 16 * 8]  # after each of the three convolutions of stride 2
    channels = [3, 16, 32, 64]
    stem = sum(
        p * c_out * (9 * c_in + NORM) for p, c_in, c_out in zip(pixels, channels, channels[1:], strict=False)
    )
    stem += pixels[-1] * 64 * 64
    tokens = pixels[-1] + 1
    one_image = stem + blocks_by_hand(tokens, 64, 4, 2) + NORM * tokens * 64
    assert counted("Synthetic/Baseline.yml")["backbone"] == MODALITIES * one_image


def test_sdtps_equals_the_count_by_hand() -> None:
    patches, kept, aggregated, width, hidden = 128, 64, 25, 512, 102
    scores = patches * (width * width // 4 + width // 4)
    weights = patches * (NORM * width + width * hidden + hidden * aggregated)
    sums = aggregated * patches * width + (patches - kept) * width  # aggregated tokens, extra token
    assert counted("RGBNT201/DeMo_SDTPS.yml")["SDTPS"] == MODALITIES * (scores + weights + sums)


def test_hdm_equals_the_count_by_hand() -> None:
    tokens, width, heads, subsets = 129, 512, 8, 7
    attended = 12 * tokens  # each of the three modalities is in four subsets
    logits_and_sums = 2 * attended * heads * width
    projections = 4 * width**2  # query, folded key, value and output, once for each subset
    assert counted("RGBNT201/DeMo.yml")["HDM"] == logits_and_sums + subsets * projections == 20_021_248


def hdm_the_usual_way() -> int:
    """Multiply-adds of HDM where keys and values of all tokens are computed, as DeMo does."""
    tokens, width, subsets = 129, 512, 7
    attended = 12 * tokens
    keys_and_values, attention = 2 * attended * width**2, 2 * attended * width
    return keys_and_values + attention + subsets * 2 * width**2  # query and output


def test_totals_agree_with_the_published_ones() -> None:
    assert total("RGBNT201/Baseline.yml") / 1e9 == pytest.approx(34.28, rel=0.01)
    demo = total("RGBNT201/DeMo.yml") - counted("RGBNT201/DeMo.yml")["HDM"] + hdm_the_usual_way()
    assert demo / 1e9 == pytest.approx(35.10, rel=0.01)
    assert round(demo / 1e9, 2) == 35.03  # README.md


def test_baseline_and_what_sdtps_adds() -> None:
    baseline, sdtps = total("RGBNT201/Baseline.yml"), total("RGBNT201/DeMo_SDTPS.yml")
    assert 34.2e9 < baseline < 34.3e9
    assert 0 < (sdtps - baseline) / baseline < 0.002  # SDTPS with its head, and PIFE


def test_attention_would_be_missing_without_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "count_attention", lambda inputs, outputs: Counter())
    missing = total("RGBNT201/Baseline.yml") - sum(
        count_multiply_adds(build("RGBNT201/Baseline.yml")).values()
    )
    assert missing == MODALITIES * 12 * 2 * 129**2 * 768 == 920_180_736


@pytest.mark.parametrize("training", [True, False])
def test_counting_and_timing_leave_the_model_as_it_was(training: bool) -> None:
    model = build("Synthetic/DeMo_SDTPS.yml").train(training)
    before = {name: entry.clone() for name, entry in model.state_dict().items()}
    count_multiply_adds(model)
    cost.measure_speed(model, 1, min_seconds=0.0)
    random = torch.get_rng_state()
    cost.measure_step_memory(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert {module.training for module in model.modules()} == {training}
    assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items())


@pytest.fixture(scope="module")
def model_and_report() -> tuple[MultiModalReID, CostReport]:
    cfg = load_config(CONFIGS / "Synthetic" / "DeMo_SDTPS.yml", ["MODEL.HDM", "True", "MODEL.ATM", "True"])
    model = make_model(cfg, num_class=64, camera_num=4)
    return model, measure_cost(model)


def test_report_has_every_part(model_and_report: tuple[MultiModalReID, CostReport]) -> None:
    model, report = model_and_report
    names = ["backbone", "PIFE", "SDTPS", "HDM", "ATMoE", "heads"]
    assert [part.name for part in report.parts] == names
    assert report.total.multiply_adds == sum(count_multiply_adds(model).values())
    assert report.total.parameters == sum(p.numel() for p in model.parameters())
    assert report.total.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert all(part.multiply_adds > 0 and part.parameters > 0 for part in report.parts)
    assert report.images_per_second > 0

    rows = {line.split()[0]: line.split() for line in report.table().splitlines()}
    for part in (*report.parts, report.total):
        assert rows[part.name][1:] == [
            f"{part.trainable / 1e6:.3f}",
            "M",
            f"{part.frozen / 1e6:.3f}",
            "M",
            f"{part.multiply_adds / 1e9:.4f}",
            f"{part.multiply_adds / report.total.multiply_adds:.2%}",
        ]
    assert report.as_dict()["parts"]["SDTPS"]["gflops"] == report.parts[2].multiply_adds / 1e9


def test_absent_parts_are_left_out() -> None:
    assert list(counted("RGBNT201/Baseline.yml")) == ["backbone", "heads"]
    assert list(counted("RGBNT201/DeMo.yml")) == ["backbone", "PIFE", "HDM", "ATMoE", "heads"]


def test_memory_of_a_step_by_hand() -> None:
    """Two linear layers of 4 x 4 without bias, x -> ReLU(W x) -> V: full, and with W frozen.

    W keeps its input for its gradient; ReLU keeps its output, which is also the input of V; V itself is one
    of the weights. Each is (2, 3, 4) in float32, 96 bytes for two triples, 48 for one.
    """
    weight = 4 * 4 * 4
    for frozen, activations in ((False, 2 * 48), (True, 48)):
        model = Two()
        model.first.requires_grad_(not frozen)
        memory = cost.measure_step_memory(model)  # type: ignore[arg-type]
        trained = weight if frozen else 2 * weight
        assert memory == cost.StepMemory(2 * weight, trained, 2 * trained, activations)
        assert memory.total(5) == 2 * weight + 3 * trained + 5 * activations


class Two(nn.Module):
    """A model of two layers on (B, 3, 1, 4) images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.backbone = SimpleNamespace(img_size=(1, 4))

    def forward(self, batch: ModalBatch) -> torch.Tensor:
        """(B, 3, 1, 4) -> (B, 3, 4)."""
        hidden: torch.Tensor = self.second(self.first(batch.images.rgb.squeeze(2)).relu())
        return hidden


def test_a_model_that_cannot_be_measured_has_a_reason_in_place_of_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> dict[str, int]:
        raise RuntimeError("cannot trace\na compiled module")

    model = build("Synthetic/Baseline.yml")
    numbers, text = cost.describe_cost(model, model.modalities)
    assert numbers is not None
    assert text.startswith("cost ")
    monkeypatch.setattr(cost, "count_multiply_adds", fail)
    wanted = "not measured (RuntimeError: cannot trace\\na compiled module)"
    assert cost.describe_cost(model, model.modalities) == (None, wanted)
