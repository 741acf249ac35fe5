"""The alignment of the modalities' globals, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from config import ConfigError, load_config
from conftest import SMALL_MODEL
from modeling.branches.original import TEMPERATURE, Original, align_loss
from modeling.make_model import make_model
from structures import ModalBatch, ModalTokens, PerModality

X, Y = [1.0, 0.0], [0.0, 1.0]
HIT, MISS = math.exp(1 / TEMPERATURE), 1.0  # of the cosines 1 and 0


def test_align_loss_by_hand() -> None:
    """Two people, two modalities of the same directions: every anchor picks its person among two."""
    parts = torch.tensor([[X, X], [Y, Y]])
    present = torch.ones(2, 2, dtype=torch.bool)
    right = align_loss(parts, present, torch.tensor([0, 1]))
    assert right.item() == pytest.approx(-math.log(HIT / (HIT + MISS)), rel=1e-5, abs=1e-7)
    swapped = align_loss(torch.tensor([[X, Y], [Y, X]]), present, torch.tensor([0, 1]))
    assert swapped.item() == pytest.approx(-math.log(MISS / (HIT + MISS)), rel=1e-5)
    # Two images of one person share the target: half of it lies on each, and both are as near.
    parts = torch.tensor([[X, X], [X, X], [Y, Y], [Y, Y]])
    both = align_loss(parts, torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 0, 1, 1]))
    assert both.item() == pytest.approx(-math.log(HIT / (2 * HIT + 2 * MISS)), rel=1e-5)


def test_what_is_absent_is_neither_anchor_nor_candidate() -> None:
    """Without the second modality of the first person, only the second person has a counterpart."""
    parts = torch.tensor([[X, Y], [Y, Y]], requires_grad=True)
    present = torch.tensor([[True, False], [True, True]])
    loss = align_loss(parts, present, torch.tensor([0, 1]))
    # The anchors: Y of the first modality, with one candidate; Y of the second, with X and Y to choose from.
    expected = (0.0 - math.log(HIT / (HIT + MISS))) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-7)
    loss.backward()
    assert parts.grad is not None
    assert not parts.grad[0, 1].any()
    nobody = align_loss(parts.detach(), torch.zeros(2, 2, dtype=torch.bool), torch.tensor([0, 1]))
    assert nobody.item() == 0.0


def test_the_branch_aligns_in_training_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    globals_ = PerModality.build(lambda _: torch.randn(4, 8, generator=generator))
    there = PerModality(*torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]], dtype=torch.bool))
    tokens = ModalTokens(globals_, globals_.map(lambda g: g.unsqueeze(1)), globals_, (1, 1)).emptied(there)
    branch, ids = Original(8, align_weight=0.5), torch.tensor([0, 0, 1, 1])
    output = branch.train()(tokens)
    assert output.rows["present"].T.tolist() == [list(map(float, row)) for row in torch.stack(there).tolist()]
    (loss,) = branch.batch_losses(output.rows, ids).values()
    expected = align_loss(torch.stack(tokens.globals_, dim=1), torch.stack(there, dim=1), ids)
    assert loss == 0.5 * expected
    assert branch.eval()(tokens).rows == {}
    assert Original(8).train()(tokens).rows == {}


def test_the_loss_of_a_model(make_batch: Callable[..., ModalBatch]) -> None:
    size = ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]", "MODEL.ALIGN", "0.5"]
    model = make_model(load_config(SMALL_MODEL, size), 3, 2)
    batch = make_batch([0, 0, 2, 2])
    losses = model.train()(batch).losses
    assert set(losses) == {"ori/align"}
    assert losses["ori/align"] > 0
    assert model.eval()(batch).losses == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["MODEL.DIRECT", "0"],
            r"MODEL\.ALIGN 0\.5 compares the modalities of one head; set MODEL\.DIRECT 1",
        ),
        (
            ["INPUT.MODALITY_DROPOUT", "0.2"],
            r"would align what stands in for missing images; set TEST\.ABSENT",
        ),
        (
            ["INPUT.MODALITY_DROPOUT", "0.2", "TEST.ABSENT", "skip", "MODEL.ABSENT_TOKEN", "True"],
            "ABSENT_TOKEN",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(options: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(SMALL_MODEL, ["MODEL.ALIGN", "0.5", *options])
    load_config(SMALL_MODEL, ["MODEL.ALIGN", "0.5", "INPUT.MODALITY_DROPOUT", "0.2", "TEST.ABSENT", "skip"])
