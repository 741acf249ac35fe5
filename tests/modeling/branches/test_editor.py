"""EDITOR's parts by hand, and the branch in a small model. Its outputs are compared in tests/parity."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import test_net as test_entry
import train_net as train_entry
from config import load_config
from config.schema import ConfigError
from conftest import ROOT, load_model
from engine.distributed import World
from errors import UserError
from modeling.branches.editor import (
    EditorBranch,
    HMABlock,
    background_loss,
    bright_share,
    center_loss,
    detail_energy,
    largest,
)
from modeling.checkpoint_names import EDITOR_RULES, rename
from modeling.cost import count_multiply_adds
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import identify
from solver.build import make_criterion
from structures import ModalBatch, Modality, PerModality

MakeBatch = Callable[..., ModalBatch]
CONFIG = ROOT / "configs" / "Synthetic" / "EDITOR.yml"
SIZE = (64, 32)
SMALL = ["INPUT.SIZE_TRAIN", str(list(SIZE)), "INPUT.SIZE_TEST", str(list(SIZE)), "INPUT.PADDING", "2"]
SMALL += ["EDITOR.FREQUENCY_KEEP", "3", "EDITOR.HEAD_KEEP", "1"]


def build(*settings: str, classes: int = 5) -> MultiModalReID:
    """EDITOR on the small backbone of 8 x 4 patches, with the same weights each time."""
    torch.manual_seed(0)
    return make_model(load_config(CONFIG, [*SMALL, *settings]), classes, 2)


def only_rgb(image: list[list[float]]) -> PerModality[Tensor]:
    """One grey image as RGB; the other modalities are missing."""
    rgb = torch.tensor(image).expand(1, 3, -1, -1)
    return PerModality(rgb, torch.zeros_like(rgb), torch.zeros_like(rgb))


def test_bright_pixels_of_the_mean_image_are_counted() -> None:
    one = torch.tensor([[1.0, -1.0, 3.0, 0.0], [1.0, -1.0, -3.0, 0.0]]).expand(1, 3, 2, 4)
    two = torch.tensor([[-2.0, 2.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0]]).expand(1, 3, 2, 4)
    # The sum has -1, 1 and 2, -2 on the left, 3, 0 and -3, 0 on the right; exactly 0 is not bright.
    images = PerModality(one, two, torch.zeros_like(one))
    assert bright_share(images, (1, 2)).tolist() == [[0.5, 0.25]]


def test_haar_details_by_hand() -> None:
    checks = [[1.0, -1.0] * 2, [-1.0, 1.0] * 2] * 2
    stripes = [[1.0] * 4] * 2 + [[-1.0] * 4] * 2  # seen by the second level alone
    flat = [[5.0] * 4] * 4
    for image, energy in ((checks, 1.0), (stripes, 1.0), (flat, 0.0)):
        # Each coefficient is spread over its pixels: 4 in a block of 4 pixels, or 16 in one of 16.
        found = detail_energy(only_rgb(image), (1, 1))
        assert found.item() == pytest.approx(energy / 3)  # one of three modalities
    slow = [[1.0] * 4] * 4 + [[-1.0] * 4] * 4  # a step between windows lies in a coarser band
    assert detail_energy(only_rgb(slow), (2, 1)).tolist() == [[0.0, 0.0]]


def test_all_details_of_a_window_are_its_variance() -> None:
    images = PerModality(*torch.randn(3, 2, 1, 4, 8, generator=torch.Generator().manual_seed(0)))
    images = images.map(lambda image: image.expand(-1, 3, -1, -1))
    windows = torch.stack(list(images))[:, :, 0].unflatten(3, (2, 4)).transpose(2, 3)  # (3, 2, 2, 4, 4)
    expected = windows.flatten(3).var(dim=3, correction=0).mean(dim=0)
    torch.testing.assert_close(detail_energy(images, (1, 2)), expected)


def test_of_equal_scores_the_first_are_kept() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert largest(scores, 2).int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert not largest(scores, 0).any()


def test_an_absent_modality_leads_to_no_patch(make_batch: MakeBatch) -> None:
    """Its attention is all zeros, of which the first patches would be the largest."""
    model = build("TEST.ABSENT", "skip", "MODEL.ABSENT_TOKEN", "True", "EDITOR.FREQUENCY_KEEP", "0").eval()
    batch = make_batch([0, 1, 2], SIZE)
    with torch.no_grad():
        alone = model(batch.without([Modality.NI, Modality.TI])).selection
        tokens = model.encode(batch)
    assert alone is not None
    assert tokens.rollout is not None
    assert torch.equal(alone.masks.rgb, largest(tokens.rollout.rgb, 1).any(dim=1))


def test_discarded_tokens_change_nothing() -> None:
    torch.manual_seed(0)
    block = HMABlock(128).double()
    tokens = torch.randn(2, 5, 128, dtype=torch.float64)
    kept = torch.tensor([[True, True, False, True, False], [True, False, False, True, True]])
    found = block(tokens, kept)
    other = block(torch.where(kept.unsqueeze(2), tokens, 9.0), kept)
    torch.testing.assert_close(found[kept], other[kept])
    for sample in range(2):  # as if they were not there
        alone = block(tokens[sample : sample + 1, kept[sample]], torch.ones(1, 3, dtype=torch.bool))
        torch.testing.assert_close(found[sample, kept[sample]], alone[0])


def test_background_loss_by_hand() -> None:
    patches = PerModality(*(torch.full((1, 2, 2), value) for value in (0.0, 1.0, 3.0)))
    discarded = torch.tensor([[True, False]])
    # (1 + 9 + 4) on the half that is discarded.
    assert background_loss(patches, discarded).item() == 7.0
    assert background_loss(patches, ~discarded & False).item() == 0.0


def test_centers_move_by_label_before_the_loss() -> None:
    centers = torch.tensor([[1.0, 1.0], [5.0, 5.0], [0.0, 0.0]])
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = center_loss(centers, features, torch.tensor([0, 2, 0]))  # not in order, not of equal number
    # 0.8 times the mean (2, 2) and 0.2 times (1, 1); identity 1 is not in the batch.
    torch.testing.assert_close(centers, torch.tensor([[1.8, 1.8], [5.0, 5.0], [0.0, 1.6]]))
    assert loss.item() == pytest.approx((0.64 + 3.24 + 0.16 + 1.44 + 4.84) / 6)
    loss.backward()
    assert features.grad is not None
    torch.testing.assert_close(features.grad[1], torch.tensor([0.0, 2 * 0.4 / 6]))


@pytest.mark.parametrize("frequency", ["mean", "high"])
def test_one_choice_for_all_modalities(frequency: str, make_batch: MakeBatch) -> None:
    model = build("EDITOR.FREQUENCY", frequency).eval()
    batch = make_batch([*range(8)], SIZE)
    with torch.no_grad():
        output, tokens = model(batch), model.encode(batch)
    selection = output.selection
    assert selection is not None
    assert tokens.rollout is not None
    score = {"mean": bright_share, "high": detail_energy}[frequency]
    chosen = largest(score(batch.images, (8, 4)), 3)
    for shares in tokens.rollout:
        chosen = chosen | largest(shares, 1).any(dim=1)
    for kept in selection.masks:
        assert torch.equal(kept, chosen)
    counts = chosen.sum(dim=1)
    assert counts.min() >= 3
    assert counts.max() <= 3 + 3 * 2  # three modalities, two heads
    assert len(set(counts.tolist())) > 1  # the samples differ in number
    assert list(selection.sources.ni) == ["rollout", "frequency"]
    assert all(values.min() >= 0 and values.max() <= 1 for values in selection.sources.ni.values())
    torch.testing.assert_close(selection.scores.ti, tokens.rollout.ti.sum(dim=1))


def test_dropped_tokens_save_products_and_keep_the_features(make_batch: MakeBatch) -> None:
    carried, dropped = build().eval(), build("EDITOR.DROP", "True").eval()
    batch = make_batch([0, 1, 2], SIZE)
    with torch.no_grad():
        torch.testing.assert_close(dropped(batch).embedding(2), carried(batch).embedding(2))
    costs = [count_multiply_adds(model) for model in (carried, dropped)]
    assert costs[0]["backbone"] == costs[1]["backbone"]
    # At most 3 + 6 of 32 patches; the class token and the pooling stay.
    assert costs[1]["EDITOR"] < 0.5 * costs[0]["EDITOR"]


def test_an_exported_graph_carries_all_tokens(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, lengths = build("EDITOR.DROP", "True").eval(), make_batch([0, 1], SIZE), []
    joint = model.get_submodule("branches.editor.joint")
    joint.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    with torch.no_grad():
        model(batch)
        monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
        model.fuse(model.encode(batch))
    assert lengths[0] < lengths[1] == 3 * (1 + 32)


@pytest.mark.parametrize("al", ["0", "1"])
def test_everything_learns(al: str, make_batch: MakeBatch) -> None:
    # A parameter without gradient would stop training with several processes.
    settings = ["EDITOR.AL", al]
    model, batch = build(*settings).train(), make_batch([0, 0, 1, 1], SIZE)
    losses = make_criterion(load_config(CONFIG, [*SMALL, *settings]))(model(batch), batch.person_ids)
    heads = ["editor", "editor_class"] if al == "1" else ["editor", "editor_rgb", "editor_ni", "editor_ti"]
    names = {f"{head}/{kind}" for head in heads for kind in ("id", "triplet")}
    assert losses.keys() == names | {"editor/bcc", "editor/ocfr"}
    torch.stack(list(losses.values())).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert set(model.heads) == ({"editor", "editor_class"} if al == "1" else {"editor", "editor_modality"})


def test_losses_of_weight_0_are_left_out(make_batch: MakeBatch) -> None:
    model = build("EDITOR.BCC_WEIGHT", "0", "EDITOR.OCFR_WEIGHT", "0").train()
    assert model(make_batch([0, 0, 1, 1], SIZE)).losses == {}
    assert not model.get_buffer("branches.editor.rgb_centers").any()


def test_a_missing_modality_is_encoded_once_and_changes_the_choice(make_batch: MakeBatch) -> None:
    model, batch = build().eval(), make_batch([0, 1, 2], SIZE)
    with torch.no_grad():
        outputs = model.forward_conditions(batch, {"complete": [], "r": [Modality.RGB]})
        alone = model(batch.without([Modality.RGB]))
    torch.testing.assert_close(outputs["r"].embedding(2), alone.embedding(2))
    assert alone.selection is not None
    assert outputs["complete"].selection is not None
    assert not torch.equal(outputs["complete"].selection.masks.rgb, alone.selection.masks.rgb)


def test_clips_trunk_and_its_width_fit() -> None:
    settings = ["MODEL.TRANSFORMER_TYPE", "ViT-B-16", "SOLVER.BACKBONE_LR", "5e-6"]
    with torch.device("meta"):
        model = make_model(load_config(ROOT / "configs/RGBNT201/EDITOR.yml", settings), 5, 2)
    branch = model.branches["editor"]
    assert isinstance(branch, EditorBranch)
    assert (branch.joint.num_heads, branch.out_dim) == (8, 3 * 512)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"MODEL.USE_EDITOR follows the attention of every patch .*SLIM_LAYERS to \[\]"
    ):
        load_config(CONFIG, ["MODEL.SLIM_LAYERS", "[2]"])
    with pytest.raises(
        UserError, match=r"EDITOR.FREQUENCY_KEEP \(33\) and EDITOR.HEAD_KEEP \(1\) are limited .* \(32\)"
    ):
        build("EDITOR.FREQUENCY_KEEP", "33")
    with pytest.raises(UserError, match=r"multiple of 64, but that of this backbone is 100"):
        EditorBranch(100, 32, 5)


@pytest.mark.parametrize("al", ["0", "1"])
def test_files_of_the_authors_load(al: str, tmp_path: Path) -> None:
    model = build("EDITOR.AL", al)
    theirs, unknown = rename(model.state_dict(), EDITOR_RULES[al == "1"], to_ours=False)
    assert not unknown
    assert identify(theirs) == "editor"
    assert ("AL_HEAD.weight" in theirs, "BACKBONE_BN.bias" in theirs) == (al == "1", al == "0")
    theirs["FREQ_INDEX.DWT.h0_col"] = torch.full((1, 1, 2, 1), 0.5**0.5)
    torch.save(theirs, tmp_path / "EDITORbest.pth")
    # Another number of identities: classifiers and centres stay as they are.
    other = build("EDITOR.AL", al, "SOLVER.SEED", "1", classes=7)
    report = load_model(other, tmp_path / "EDITORbest.pth")
    assert len(report.dropped) == 1 + 3 + 2
    assert "FREQ_INDEX.DWT.h0_col (Haar filters, which are constant)" in report.dropped
    assert "branches.editor.ti_centers (for 5 ids, the model has 7)" in report.dropped
    assert not report.unexpected
    own = model.state_dict()
    assert all(torch.equal(other.state_dict()[name], own[name]) for name in report.loaded)


def train_steps(rank: int, size: int, folder: Path, batch: ModalBatch, al: str) -> None:
    """Two steps of SGD in one of `size` processes; leaves its losses and its weights in a file.

    In float64, since distances between the features of untrained weights are small differences.
    """
    world = World(rank, size)
    model = build("EDITOR.AL", al).double().train()
    parallel: torch.nn.Module = model
    if size > 1:
        meeting, limit = f"file://{folder}/meeting", timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=limit)
        parallel = DistributedDataParallel(model)
    rows = slice(rank * len(batch) // size, (rank + 1) * len(batch) // size)
    labels = (batch.person_ids[rows], batch.camera_ids[rows], batch.scene_ids[rows])
    own = ModalBatch(batch.images.map(lambda images: images[rows].double()), *labels)
    criterion = make_criterion(load_config(CONFIG, SMALL))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps = []
    for _ in range(2):
        losses = criterion(parallel(own, world.gather_batch), batch.person_ids)
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        steps.append({name: loss.detach() for name, loss in losses.items()})
    torch.save({"losses": steps, "model": model.state_dict()}, folder / f"{size}_{rank}.pth")
    if size > 1:
        dist.destroy_process_group()


@pytest.mark.parametrize("al", ["0", "1"])
def test_two_processes_train_the_same_model(al: str, make_batch: MakeBatch, tmp_path: Path) -> None:
    batch = make_batch([0, 0, 2, 1], SIZE)
    mp.start_processes(train_steps, (2, tmp_path, batch, al), nprocs=2, start_method="spawn")
    train_steps(0, 1, tmp_path, batch, al)
    one, two, other = (
        torch.load(tmp_path / f"{name}.pth", weights_only=True) for name in ("1_0", "2_0", "2_1")
    )
    for found in (two, other):
        for ours, theirs in zip(found["losses"], one["losses"], strict=True):
            torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(found["model"], one["model"])
    assert min(step["editor/ocfr"] for step in one["losses"]) > 0
    assert one["model"]["branches.editor.ni_centers"].any(dim=1).tolist() == [True, True, True, False, False]


def test_training_and_a_report_without_each_modality(tmp_path: Path, mini_settings: list[str]) -> None:
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    words = ["--config_file", str(CONFIG), *mini_settings, *short, "DATALOADER.CACHE", "none"]
    train_entry.main([*words, "OUTPUT_DIR", str(tmp_path / "run")])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"editor/id", "editor/triplet", "editor/bcc", "editor/ocfr", "editor_class/id"} <= set(
        metrics["epochs"][0]
    )
    summary = metrics["summary"]["last epoch"]
    assert "pattern_2" in summary
    assert "pattern_1" not in summary
    assert "kept_patch_precision" in summary
    assert "EDITOR" in metrics["cost"]["parts"]
    # Evaluation and report, from the checkpoint alone.
    where = ["TEST.WEIGHT", str(tmp_path / "run" / "last.pth")]
    test_entry.main(["--missing", "all", "--report", str(tmp_path / "report"), *where])
    data = tmp_path / "report" / "data"
    assert "EDITOR on RGBNT201" in (data / "summary.js").read_text()
    assert '"kept"' in (data / "triples" / "0.js").read_text()
