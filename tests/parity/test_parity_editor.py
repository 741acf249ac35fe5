"""EDITOR against outputs recorded from its published code, for entries filled by name.

The recordings were made of images in which the choice of windows has no ties (`clean`), since the published
code breaks ties at random. All modes share one pass of the ViT-B/16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import ROOT, load_model
from fill import fill
from modeling.branches.editor import ClassTokens, EditorBranch, bright_share, largest
from modeling.checkpoint_names import EDITOR_RULES, rename
from modeling.heads import BNNeckHead
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import LoadReport, ModelFile, fill_model, to_our_names
from solver.build import make_criterion, make_optimizer, make_schedule
from structures import ModalBatch, Modality, ModalTokens, ModelOutput, PerModality, Role

DATA = Path(__file__).parent / "data"
TOLERANCE = 1e-4  # of the mean magnitude of the recorded values
HEADS = {"editor": "fuse", "editor_class": "ori"}

Recorded = Mapping[str, Any]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return dict(np.load(DATA / "rgbnt201_editor.npz"))


@cache
def entry(name: str, shape: tuple[int, ...]) -> Tensor:
    """Both data sets share the entries of one backbone, and drawing them takes seconds."""
    return torch.from_numpy(fill(name, shape, 1))


def read_entries(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options of a recording, and a checkpoint of EDITOR's authors as it was filled for it."""
    keys = json.loads((DATA / f"{name}.keys.json").read_text())
    state = {key: entry(key, tuple(shape)) for key, (shape, _) in keys["state_dict"].items()}
    shapes = {key: keys["state_dict"][key][0] for key in keys["not_filled"]}
    state |= {key: torch.tensor(values).view(shapes[key]) for key, values in keys["not_filled"].items()}
    return keys["options"], state


def build_empty(config: str, options: Mapping[str, Any]) -> MultiModalReID:
    """The model of one of our files, without values; the loader must fill every entry."""
    cfg = load_config(ROOT / config, ["MODEL.DROP_PATH", "0.0"])
    with torch.device("meta"):
        model = make_model(cfg, options["num_classes"], options["cameras"])
    return model.to_empty(device="cpu")


def draw_batch(recorded: Recorded, size: tuple[int, int], count: int = 4) -> ModalBatch:
    """The first triples of the clean set: in ten windows of each image, one is added."""
    rows, columns = size[0] // 16, size[1] // 16
    bright = torch.zeros(4, rows * columns)
    for sample in range(4):
        bright[sample, [(11 * sample + 12 * j + 3) % 128 for j in range(10)]] = 1
    bright = bright.view(4, 1, rows, columns).repeat_interleave(16, dim=2).repeat_interleave(16, dim=3)
    images = PerModality.build(lambda m: (entry(f"input/{m.value}", (4, 3, *size)) + bright)[:count])
    labels, cameras = (torch.from_numpy(recorded[key])[:count] for key in ("label", "camera"))
    return ModalBatch(images, labels, cameras, torch.zeros_like(labels))


def assert_equal(found: Tensor, expected: np.ndarray, what: str = "") -> None:
    values = found.detach().numpy()
    assert values.shape == expected.shape, what
    error = np.abs(values - expected).max() / np.abs(expected).mean()
    assert error < TOLERANCE, f"{what} is off by {error:.1e} of the mean magnitude"


@dataclass(frozen=True)
class Encoded:
    """The model, what became of the entries of the file, and what the backbone gives."""

    model: MultiModalReID
    report: LoadReport
    batch: ModalBatch
    tokens: ModalTokens  # of the clean set

    @property
    def branch(self) -> EditorBranch:
        branch = self.model.branches["editor"]
        assert isinstance(branch, EditorBranch)
        return branch


@pytest.fixture(scope="module")
def encoded(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoded]:
    options, state = read_entries("rgbnt201_editor")
    model = build_empty("configs/RGBNT201/EDITOR.yml", options)
    path = tmp_path_factory.mktemp("editor") / "EDITORbest.pth"
    torch.save(state, path)
    report = load_model(model, path)
    path.unlink()  # 470 MB, which pytest would keep
    batch = draw_batch(recorded, (256, 128))
    with torch.no_grad():
        yield Encoded(model, report, batch, model.eval().encode(batch))
    entry.cache_clear()


@torch.no_grad()
def fuse(encoded: Encoded) -> ModelOutput:
    return encoded.model.fuse(encoded.tokens, person_ids=encoded.batch.person_ids)


def test_every_entry_of_the_authors_file_is_accounted_for(encoded: Encoded) -> None:
    report, model = encoded.report, encoded.model
    assert set(report.loaded) == set(model.state_dict())
    assert not report.missing + report.unexpected + report.resized
    reasons = [text.partition(" ") for text in report.dropped]
    assert len(reasons) == 8 + 2 + 6  # Haar filters, ImageNet's classifier, the head of single modalities
    assert {"Haar" in reason for name, _, reason in reasons if name.startswith("FREQ_INDEX.")} == {True}


def test_parameters_are_as_published_but_for_those_that_are_never_used(encoded: Encoded) -> None:
    trained = sum(p.numel() for p in encoded.model.parameters() if p.requires_grad)
    unused = (
        (768 + 1) * 1000 + 171 * 768 + 2 * 768
    )  # ImageNet's classifier; head and neck of single modalities
    assert round((trained + unused) / 1e6, 2) == 119.32
    centers = sum(encoded.branch.get_buffer(f"{m.key}_centers").numel() for m in Modality)
    assert round((trained + unused + centers) / 1e6, 2) == 119.71
    hma = sum(p.numel() for part in (encoded.branch.own, encoded.branch.joint) for p in part.parameters())
    assert round((hma + 2 * 768) / 1e6, 2) == 28.33


@pytest.mark.parametrize("drop", [False, True])
def test_decision_and_feature(drop: bool, encoded: Encoded, recorded: Recorded) -> None:
    encoded.model.eval()
    encoded.branch.drop = drop
    output = fuse(encoded)
    assert output.selection is not None
    assert np.array_equal(output.selection.masks.ni, recorded["clean_eval/mask"])
    assert output.patterns == (2,)
    assert_equal(output.embedding(2), recorded["clean_eval/feature"])


def test_windows_and_heads_choose_what_they_chose(encoded: Encoded, recorded: Recorded) -> None:

    share = bright_share(encoded.batch.images, (16, 8))
    assert np.array_equal(256 * share, recorded["clean_eval/freq_count"])
    assert np.array_equal(largest(share, 10), recorded["clean_eval/mask_freq"])
    assert encoded.tokens.rollout is not None
    for modality in Modality:
        chosen = largest(encoded.tokens.rollout.of(modality), 2).any(dim=1)
        assert np.array_equal(chosen, recorded[f"clean_eval/mask_{modality.value}"])


def test_losses_of_two_steps_and_the_memory(encoded: Encoded, recorded: Recorded) -> None:
    model, branch = encoded.model.train(), encoded.branch
    branch.drop = False
    criterion = make_criterion(load_config(ROOT / "configs/RGBNT201/EDITOR.yml"))
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        for step in ("step1", "step2"):
            output = fuse(encoded)
            losses = criterion(output, encoded.batch.person_ids)
            expected = {
                f"{head}/{kind}": recorded[f"clean_train/{step}/loss_{kind}_{theirs}"]
                for head, theirs in HEADS.items()
                for kind in ("id", "triplet")
            }
            expected |= {
                f"editor/{kind}": recorded[f"clean_train/{step}/loss_{kind}"] for kind in ("bcc", "ocfr")
            }
            assert losses.keys() == expected.keys()
            for name, loss in losses.items():
                assert_equal(loss, expected[name], f"{name} in {step}")
            total = torch.stack(list(losses.values())).sum()
            assert_equal(total, recorded[f"clean_train/{step}/loss_total"], step)
            for modality in Modality:
                centers = branch.get_buffer(f"{modality.key}_centers")[[5, 17]]
                assert_equal(centers, recorded[f"clean_train/{step}/centers_{modality.value}"], step)
        assert_equal(output.heads[0].logits, recorded["clean_train/score_fuse"])
        assert_equal(output.heads[1].logits, recorded["clean_train/score_ori"])
    finally:
        model.load_state_dict(start, strict=False)


def test_modalities_take_turns_in_one_head_without_al(recorded: Recorded) -> None:
    """AL 0, from the recorded class tokens: scores, losses and the statistics of the shared neck."""
    _, state = read_entries("rgbnt201_editor")
    state = {key: value for key, value in state.items() if not key.startswith("AL_")}
    ours, _ = to_our_names(state)
    prefix = "heads.editor_modality."
    head = BNNeckHead(768, 171, train_neck_bias=True).train()
    head.load_state_dict({k.removeprefix(prefix): v.clone() for k, v in ours.items() if k.startswith(prefix)})
    tokens = PerModality.build(lambda m: torch.from_numpy(recorded[f"eval/{m.value}_global"]))
    nothing = torch.empty(0)
    triples = ModalTokens(tokens, PerModality(nothing, nothing, nothing), tokens, (16, 8))
    criterion = make_criterion(load_config(ROOT / "configs/RGBNT100/EDITOR.yml"))
    labels = torch.from_numpy(recorded["label"])
    for step in ("step1", "step2"):
        for modality in Modality:
            branch = ClassTokens(768, (modality,), shared_head="editor_modality")
            output = head(branch(triples).features, "head", branch.role)
            assert output.role is Role.AUXILIARY
            assert_equal(output.logits, recorded[f"train_bl/score_{modality.value}"])
            losses = criterion(ModelOutput((output,)), labels)
            for kind in ("id", "triplet"):
                expected = recorded[f"train_bl/{step}/loss_{kind}_{modality.value}"]
                assert_equal(losses[f"head/{kind}"], expected, f"{modality.value} {kind}")
        for statistic in ("running_mean", "running_var"):
            expected = recorded[f"train_bl/{step}/BACKBONE_BN.{statistic}"]
            assert_equal(head.neck.get_buffer(statistic)[:64], expected, statistic)


def test_msvr310(encoded: Encoded) -> None:
    """A wide grid, eight cameras, AL 0; two triples."""
    recorded = dict(np.load(DATA / "msvr310_editor.npz"))
    options, state = read_entries("msvr310_editor")
    model = build_empty("configs/MSVR310/EDITOR.yml", options)
    report = fill_model(model, ModelFile("", "editor", *to_our_names(state)))
    assert set(report.loaded) == set(model.state_dict())
    assert {"editor_rgb", "editor_ni", "editor_ti"} < set(model.branches)
    with torch.no_grad():
        output = model.eval()(draw_batch(recorded, (128, 256), 2))
    assert output.selection is not None
    assert np.array_equal(output.selection.masks.ti, recorded["clean_eval/mask"][:2])
    assert_equal(output.embedding(3), recorded["clean_eval/feature"][:2])


def test_rates_and_decays_of_the_authors(recorded: Recorded) -> None:
    """All but the biases of the backbone, which our file trains at the rate of its weights, as it says."""
    cfg = load_config(ROOT / "configs/RGBNT201/EDITOR.yml")
    with torch.device("meta"):
        model = make_model(cfg, 171, 4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(cfg, model)
    ours = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    translated, unused = rename(
        {name: torch.zeros(1) for name in recorded["optim/names"]}, EDITOR_RULES[True]
    )
    used = [name not in unused for name in recorded["optim/names"]]
    pairs = zip(recorded["optim/lr"][used], recorded["optim/weight_decay"][used], strict=True)
    theirs = dict(zip(translated, ((float(rate), float(decay)) for rate, decay in pairs), strict=True))
    other = {name for name in theirs if name.startswith("backbone.vit.") and name.endswith("bias")}
    assert {name: pair for name, pair in ours.items() if name not in other} == {
        name: pair for name, pair in theirs.items() if name not in other
    }
    assert {ours[name] for name in other} == {(0.001, 0.0001)}
    # The schedule, from the end of the warm-up on.
    schedule = make_schedule(cfg, optimizer)
    groups = sorted(optimizer.param_groups, key=lambda group: group["lr"])
    for epoch in range(10, 71):
        schedule.step(epoch)
        rates = recorded["optim/lr_by_epoch"][epoch - 1]
        assert [group["lr"] for group in groups] == pytest.approx(rates, rel=1e-6)


@pytest.mark.slow
def test_gradients(encoded: Encoded, recorded: Recorded) -> None:
    model = encoded.model
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    criterion = make_criterion(load_config(ROOT / "configs/RGBNT201/EDITOR.yml"))
    with torch.enable_grad():
        losses = criterion(model.train()(encoded.batch), encoded.batch.person_ids)
        torch.stack(list(losses.values())).sum().backward()
    model.load_state_dict(start, strict=False)
    norms = torch.from_numpy(recorded["clean_train/grad_norms"])
    theirs = dict(zip(recorded["clean_train/grad_names"], norms, strict=True))
    translated, unused = rename(theirs, EDITOR_RULES[True])
    assert all(theirs[name].isnan() for name in unused)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        expected = translated[name].item()
        if expected > 1e-5:  # smaller ones are zero in theory
            assert parameter.grad.norm().item() == pytest.approx(expected, rel=1e-3), name
    model.zero_grad()


@pytest.mark.slow
def test_missing_modalities(encoded: Encoded, recorded: Recorded) -> None:
    """Zeros make exact ties, which the published code breaks at random: features where the choices agree."""
    images = PerModality.build(lambda m: entry(f"input/{m.value}", (4, 3, 256, 128)))
    plain = ModalBatch(images, encoded.batch.person_ids, encoded.batch.camera_ids, encoded.batch.scene_ids)
    missing = {"eval_miss_r": [Modality.RGB], "eval_miss_nt": [Modality.NI, Modality.TI]}
    with torch.no_grad():
        outputs = encoded.model.eval().forward_conditions(plain, missing)
    for name, output in outputs.items():
        assert output.selection is not None
        same = (output.selection.masks.rgb.numpy() == recorded[f"{name}/mask"]).all(axis=1)
        assert same.any()
        assert_equal(output.embedding(2)[same], recorded[f"{name}/feature"][same], name)
