"""Signal's selection, interaction and branch; tests/parity has its authors' recorded outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import train_net
from config import load_config
from conftest import ROOT
from errors import UserError
from modeling.branches.signal import Interaction, SignalBranch, TokenSelection, pick
from modeling.branches.signal_alignment import GlobalAlignment
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from solver.build import make_criterion
from structures import MISSING_CONDITIONS, ModalBatch, Modality, PerModality

MakeBatch = Callable[..., ModalBatch]
SIGNAL = ROOT / "configs" / "Synthetic" / "Signal.yml"
SIZE = (128, 64)
REPAIRED = ("SIGNAL.DECISION", "straight_through")


def build(*settings: str) -> MultiModalReID:
    """The small model with Signal, with the same weights each time."""
    torch.manual_seed(0)
    return make_model(load_config(SIGNAL, settings), 5, 2)


def train_step(model: MultiModalReID, batch: ModalBatch, *settings: str) -> dict[str, Tensor]:
    """Gradients of the whole loss; returns the losses."""
    losses = make_criterion(load_config(SIGNAL, settings))(model.train()(batch), batch.person_ids)
    torch.stack(list(losses.values())).sum().backward()
    return losses


def test_pick_by_hand() -> None:
    logits = torch.tensor([[1.0, 4, 2, 3]], requires_grad=True)
    hard, soft = pick(logits, 2)
    assert hard.tolist() == [[0, 1, 0, 1]]
    # The cut is 2.5, between 3 and 2.
    torch.testing.assert_close(soft, torch.sigmoid(torch.tensor([[-1.5, 1.5, -0.5, 0.5]])))
    # Of equal logits the earlier; all if there are fewer.
    assert pick(torch.zeros(1, 4), 2).hard.tolist() == [[1, 1, 0, 0]]
    assert [part.tolist() for part in pick(torch.zeros(1, 2), 3)] == [[[1, 1]]] * 2


def test_a_pick_has_the_gradient_of_its_sigmoid_around_the_cut() -> None:
    logits = torch.tensor([0.0, 5, 1, 3], dtype=torch.float64, requires_grad=True)
    picked = pick(logits, 2)
    assert torch.equal(picked.straight_through, picked.hard)
    (gradient,) = torch.autograd.grad(picked.straight_through[1], logits)
    slope = math.exp(-3) / (1 + math.exp(-3)) ** 2  # 5 is 3 above the cut of 2
    # Its own logit raises it; the two at the cut, 3 and 1, lower it by half each.
    assert gradient.tolist() == pytest.approx([0, slope, -slope / 2, -slope / 2], abs=1e-6)
    assert gradient.sum().item() == pytest.approx(0)


def selection_by_hand(straight_through: bool = False) -> TokenSelection:
    """C = 1 and unit projections: the logits are products of numbers."""
    select = TokenSelection(1, 1, straight_through=straight_through)
    for layer in (select.to_query, select.to_key):
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    return select


def numbers(*values: list[float]) -> PerModality[Tensor]:
    return PerModality(*(torch.tensor([row], dtype=torch.float32).unsqueeze(2) for row in values))


GLOBALS = PerModality(torch.tensor([[1.0]]), torch.tensor([[1.0]]), torch.tensor([[-1.0]]))
PATCHES = numbers([5, 1, 0, -4], [9, 8, 7, 2], [3, -1, -2, -3])


def test_selection_by_hand() -> None:
    rgb, ni, ti = selection_by_hand()(GLOBALS, PATCHES)
    # Each global picks one patch of its own modality, and two of the six or so of the others, jointly.
    assert [part.intra.hard.tolist() for part in (rgb, ni, ti)] == [
        [[1, 0, 0, 0]],
        [[1, 0, 0, 0]],
        [[0, 0, 0, 1]],
    ]
    # RGB picks 9 and 8 in NI. NI picks 5 in RGB and 3 in TI. TI, the lowest: -4 in RGB, then 0.
    assert rgb.inter.hard.tolist() == [[1, 0, 1, 1]]
    assert ni.inter.hard.tolist() == [[1, 1, 0, 0]]
    assert ti.inter.hard.tolist() == [[1, 0, 0, 0]]
    # The number that is kept varies.
    assert rgb.decision.tolist() == [[1, 0, 1, 1]]
    assert ni.decision.tolist() == [[1, 1, 0, 0]]
    assert ti.decision.tolist() == [[1, 0, 0, 1]]


def test_only_a_choice_that_decides_has_a_gradient() -> None:
    select = selection_by_hand(straight_through=True)
    patches = PATCHES.map(lambda tokens: tokens.clone().requires_grad_())
    decision = select(GLOBALS, patches).rgb.decision
    assert decision.tolist() == [[1, 0, 1, 1]]
    weight = select.to_key.weight
    # RGB's own global keeps 5: what the others pick does not change that.
    (unmoved,) = torch.autograd.grad(decision[0, 0], weight, retain_graph=True)
    assert unmoved.item() == 0
    # Nobody has picked 1: the gradient says what would have made NI or TI pick it.
    (missed,) = torch.autograd.grad(decision[0, 1], weight, retain_graph=True)
    assert missed.item() != 0
    # 0 is picked by TI, and its gradient comes from there: d(logit - cut)/dw, with the cut between 0 and 1 at
    # -0.5, and the logits -w * patch.
    (kept,) = torch.autograd.grad(decision[0, 2], weight)
    assert kept.item() == pytest.approx(0.5 * math.exp(-0.5) / (1 + math.exp(-0.5)) ** 2)


def test_published_projections_get_no_gradient_and_repaired_ones_a_finite_one(make_batch: MakeBatch) -> None:
    batch = make_batch([0, 0, 1, 1], SIZE)
    published, repaired = build(), build(*REPAIRED)
    outputs = [model.train()(batch) for model in (published, repaired)]
    assert torch.equal(outputs[0].embedding(3), outputs[1].embedding(3))  # the value is the same, bit for bit
    train_step(published, batch)
    train_step(repaired, batch, *REPAIRED)
    names = [f"branches.signal.select.{part}.weight" for part in ("to_query", "to_key")]
    assert [published.get_parameter(name).grad for name in names] == [None, None]
    trunk = repaired.backbone.vit.get_parameter("blocks.3.attn.qkv.weight").grad
    assert trunk is not None
    for name in names:
        gradient = repaired.get_parameter(name).grad
        assert gradient is not None
        assert gradient.isfinite().all()
        # Neither lost nor blown up: within three orders of magnitude of the trunk's.
        assert 1e-3 < gradient.norm() / trunk.norm() < 1e3
    # Everything that trains gets a gradient: a parameter without one would stop several processes.
    for model in (published, repaired):
        assert not [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_alignment_runs_in_training_alone(make_batch: MakeBatch) -> None:
    model, batch = build(), make_batch([0, 0, 1, 1], SIZE)
    losses = train_step(model, batch)
    assert {"signal/id", "signal/triplet", "signal/gam", "signal/lam"} <= set(losses)
    assert not model.eval()(batch).losses
    without = build("SIGNAL.GAM_WEIGHT", "0.0", "SIGNAL.LAM_WEIGHT", "0.0")
    names = [name for name, _ in without.named_parameters()]
    assert not [name for name in names if name.startswith(("branches.signal.gam", "branches.signal.lam"))]
    assert not without.train()(batch).losses


def test_losses_do_not_depend_on_the_number_of_processes(make_batch: MakeBatch) -> None:
    model, batch = build().train(), make_batch([0, 0, 1, 1], SIZE)
    tokens = model.encode(batch)
    whole = model.fuse(tokens, person_ids=batch.person_ids)
    branch = model.get_submodule("branches.signal")
    assert isinstance(branch, SignalBranch)
    halves = zip(*(each.chunk(2) for each in tokens.patches), strict=True)
    parts = [PerModality(*half) for half in halves]
    assert branch.lam is not None
    joined = {
        "directions": torch.cat([GlobalAlignment.directions(part) for part in parts]),
        "lam": torch.cat([branch.lam(part, tokens.grid) for part in parts]),
    }
    found = branch.batch_losses(joined, batch.person_ids)
    assert set(found) == {"gam", "lam"}
    for name, loss in found.items():
        torch.testing.assert_close(loss, whole.losses[f"signal/{name}"])


@torch.no_grad()
def test_selection_for_reports(make_batch: MakeBatch) -> None:
    output = build().eval()(make_batch([0, 1], SIZE))
    selection = output.selection
    assert selection is not None
    assert list(selection.sources.rgb) == ["intra", "inter"]
    for modality in Modality:
        mask, scores = selection.masks.of(modality), selection.scores.of(modality)
        assert torch.equal(mask, scores > 0.5)
        assert (mask.sum(dim=1) >= 80).all()


@torch.no_grad()
def test_missing_modalities_are_zeros(make_batch: MakeBatch) -> None:
    model, batch = build().eval(), make_batch([0, 1, 2], SIZE)
    found = model.forward_conditions(batch, MISSING_CONDITIONS)
    for name, missing in MISSING_CONDITIONS.items():
        alone = model(batch.without(missing))
        torch.testing.assert_close(found[name].embedding(3), alone.embedding(3), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("missing", [[Modality.TI], [Modality.NI, Modality.TI]], ids=["t", "nt"])
def test_trains_without_a_modality(missing: list[Modality], make_batch: MakeBatch) -> None:
    # Two missing images are the same image: their directions span no volume.
    model = build(*REPAIRED)
    losses = train_step(model, make_batch([0, 0, 1, 1], SIZE).without(missing), *REPAIRED)
    assert torch.stack(list(losses.values())).isfinite().all()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_slimming_leaves_it_all_patches(make_batch: MakeBatch) -> None:
    batch, slim = make_batch([0, 0, 1, 1], SIZE), ("MODEL.SLIM_LAYERS", "[2]")
    with torch.no_grad():
        output = build(*slim).eval()(batch)
    assert output.slimming is not None
    rows, columns = output.selections["signal"].grid
    assert output.selections["signal"].scores.rgb.shape == (4, rows * columns)
    assert {"signal/gam", "signal/lam"} <= train_step(build(*slim), batch, *slim).keys()


def test_a_width_that_is_no_multiple_of_the_heads_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of 8, but that of this backbone is 20"):
        Interaction(20)


def test_a_small_grid_is_refused_before_training() -> None:
    with pytest.raises(UserError, match="have 4 x 2 patches"):
        build("INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]")


def test_trains_on_the_drawn_set_and_is_tested_without_a_modality(
    mini_settings: list[str], tmp_path: Path
) -> None:
    options = ["TEST.CONTROLS", "False", "TEST.MISS", "t", "OUTPUT_DIR", str(tmp_path / "run"), *REPAIRED]
    train_net.main(["--config_file", str(SIGNAL), *mini_settings, *options])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    first, last = metrics["epochs"][0], metrics["epochs"][-1]
    assert {"signal/gam", "signal/lam", "signal/id", "signal/triplet"} <= set(first)
    assert last["loss"] < first["loss"]
    kept = set(metrics["summary"]["last epoch"]["kept_patch_precision"])
    assert kept & {"RGB", "NI", "TI"} == {"RGB", "NI"}
    assert "Signal" in metrics["cost"]["parts"]
