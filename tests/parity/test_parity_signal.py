"""Signal against outputs recorded from its authors' code: modules, whole models, losses, rates and size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from config.load import load_config
from conftest import load_model
from fill import fill
from modeling.branches.signal import SelectedPatches, SignalBranch
from modeling.branches.signal_alignment import GlobalAlignment, LocalAlignment, PointSampler, volumes
from modeling.checkpoint_names import SIGNAL_RULES, rename
from modeling.cost import count_multiply_adds
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import LoadReport
from solver.build import make_criterion, make_optimizer
from structures import ModalBatch, Modality, ModalTokens, PerModality

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
TOLERANCE = 1e-4  # of the mean magnitude of the recorded values
PREFIX = "branches.signal."
MISSING = {"eval_feature_miss_r": [Modality.RGB], "eval_feature_miss_nt": [Modality.NI, Modality.TI]}


@cache
def entry(name: str, shape: tuple[int, ...]) -> Tensor:
    """One entry of the authors' checkpoint; the two configurations share most of them."""
    return torch.as_tensor(fill(name, shape, 1))


def read_keys(name: str) -> dict[str, dict[str, tuple[list[int], str]]]:
    keys: dict[str, dict[str, tuple[list[int], str]]] = json.loads((DATA / f"{name}.keys.json").read_text())
    return keys


def check(output: Tensor, expected: np.ndarray, what: str) -> None:
    assert output.shape == expected.shape, what
    error = np.abs(output.detach().numpy() - expected).max() / np.abs(expected).mean()
    assert error < TOLERANCE, f"{what} is off by {error:.1e} of its mean magnitude"


def check_masks(
    selected: PerModality[SelectedPatches], recorded: dict[str, np.ndarray], prefix: str = ""
) -> None:
    for modality in Modality:
        found = selected.of(modality)
        for name, ours in (
            ("mask", found.decision),
            ("intra_mask", found.intra.hard),
            ("inter_mask", found.inter.hard),
        ):
            expected = recorded[f"{prefix}{name}_{modality.key}"]
            np.testing.assert_array_equal(ours.detach().numpy(), expected, f"{prefix}{name} of {modality}")
    kept = torch.stack([found.decision.sum(dim=1) for found in selected], dim=1)
    np.testing.assert_array_equal(kept.numpy(), recorded[f"{prefix}kept"])


# The modules alone, on drawn tokens.


def filled_branch(grid: tuple[int, int], top_k: int = 80) -> SignalBranch:
    shapes = read_keys("rgbnt201_signal")["state_dict"]
    theirs = {
        name: entry(name, tuple(shape)) for name, (shape, _) in shapes.items() if name[:3] in ("SIM", "Ali")
    }
    ours, unknown = rename(theirs, SIGNAL_RULES)
    assert unknown == ["SIM.token_selection.W_v.weight", "SIM.token_selection.W_v.bias"]
    branch = SignalBranch(512, grid, top_k=top_k)
    branch.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in ours.items()})
    return branch.eval()


@pytest.fixture(scope="module")
def drawn_tokens() -> ModalTokens:
    globals_ = PerModality.build(lambda m: entry(f"input/{m.value}_global", (2, 512)))
    patches = PerModality.build(lambda m: entry(f"input/{m.value}_patches", (2, 128, 512)))
    return ModalTokens(globals_, patches, globals_, (16, 8))


@pytest.mark.parametrize(("top_k", "prefix"), [(80, "module_"), (64, "module_k64_"), (112, "module_k112_")])
def test_selection_and_interaction(top_k: int, prefix: str, drawn_tokens: ModalTokens) -> None:
    recorded = np.load(DATA / "rgbnt201_signal.npz")
    branch = filled_branch((16, 8), top_k)
    check_masks(branch.select(drawn_tokens.globals_, drawn_tokens.patches), recorded, prefix)
    check(branch(drawn_tokens).features, recorded[f"{prefix}sim_feature"], "feature")


@pytest.mark.parametrize(("grid", "prefix"), [((16, 8), "module_"), ((8, 16), "module_8x16_")])
def test_alignment(grid: tuple[int, int], prefix: str, drawn_tokens: ModalTokens) -> None:
    recorded, patches = np.load(DATA / "rgbnt201_signal.npz"), drawn_tokens.patches
    branch = filled_branch(grid)
    assert branch.gam is not None
    assert branch.lam is not None
    directions = GlobalAlignment.directions(patches)
    check(volumes(PerModality(*directions.unbind(dim=1))), recorded[f"{prefix}gam_volume"], "volumes")
    check(branch.gam(directions), recorded[f"{prefix}gam_loss"], "GAM")
    for modality in Modality:
        y, x = cast(PointSampler, branch.lam.samplers[modality.key]).points(patches.of(modality), grid)
        check(torch.stack([x, y], dim=3), recorded[f"{prefix}lam_grid_{modality.key}"], "points")
    check(branch.lam(patches, grid).mean(), recorded[f"{prefix}lam_loss"], "LAM")
    # At its initial temperature, which `fill` does not give.
    check(GlobalAlignment()(directions), recorded[f"{prefix}gam_loss_t0.07"], "GAM")


# The whole models, from the authors' names through a file and the ordinary loader.


class Loaded(NamedTuple):
    model: MultiModalReID
    report: LoadReport
    batch: ModalBatch
    tokens: ModalTokens  # of the batch, in evaluation
    recorded: dict[str, np.ndarray]


def load_filled(name: str, folder: Path) -> Loaded:
    keys, recorded = read_keys(name), np.load(DATA / f"{name}.npz")
    options = keys["options"]
    cfg = load_config(ROOT / options["config"])  # type: ignore[operator]
    assert list(cfg.INPUT.SIZE_TEST) == options["size"]
    model = make_model(cfg, options["num_classes"], options["cameras"])  # type: ignore[arg-type]
    path = folder / "Signalbest.pth"
    torch.save({key: entry(key, tuple(shape)) for key, (shape, _) in keys["state_dict"].items()}, path)
    report = load_model(model, path)
    path.unlink()  # 360 MB, which pytest would keep
    images = PerModality.build(lambda m: entry(f"input/{m.value}", (4, 3, *cfg.INPUT.SIZE_TEST)))
    labels, cameras = torch.from_numpy(recorded["labels"]), torch.from_numpy(recorded["cameras"])
    batch = ModalBatch(images, labels, cameras, torch.zeros_like(cameras))
    with torch.no_grad():
        tokens = model.eval().encode(batch)
    return Loaded(model, report, batch, tokens, dict(recorded))


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_filled("rgbnt201_signal", tmp_path_factory.mktemp("signal"))


@pytest.fixture(scope="module")
def vehicle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    yield load_filled("msvr310_signal", tmp_path_factory.mktemp("signal"))
    entry.cache_clear()


@pytest.fixture(params=["person", "vehicle"])
def either(request: pytest.FixtureRequest) -> Loaded:
    loaded: Loaded = request.getfixturevalue(request.param)
    return loaded


def test_every_entry_of_the_file_is_loaded_or_dropped_with_a_reason(either: Loaded) -> None:
    assert set(either.report.loaded) == set(either.model.state_dict())
    assert not either.report.unexpected
    reason = "Signal's own code never uses it"
    assert either.report.dropped == [f"SIM.token_selection.W_v.{e} ({reason})" for e in ("weight", "bias")]


@torch.no_grad()
def test_masks_and_features(either: Loaded) -> None:
    model, _, _, tokens, recorded = either
    output = model.eval().fuse(tokens)
    check(output.embedding(3), recorded["eval_feature"], "feature")
    check(output.embedding(2), recorded["sim_feature"], "feature of the interaction")
    branch = model.get_submodule("branches.signal")
    assert isinstance(branch, SignalBranch)
    check_masks(branch.select(tokens.globals_, tokens.patches), recorded)
    # The selection that report and studies read is the same.
    assert output.selection is not None
    for modality in Modality:
        expected = recorded[f"mask_{modality.key}"].astype(bool)
        np.testing.assert_array_equal(output.selection.masks.of(modality).numpy(), expected)
        np.testing.assert_array_equal(output.selection.scores.of(modality).numpy() > 0.5, expected)


@torch.no_grad()
def test_missing_modalities(person: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person.model, "encode", lambda batch: person.tokens)  # which takes seconds
    outputs = person.model.eval().forward_conditions(person.batch, MISSING)
    for name, output in outputs.items():
        check(output.embedding(3), person.recorded[name], name)


@torch.no_grad()
def test_losses(either: Loaded) -> None:
    # Training differs from evaluation after the trunk alone, which has neither dropout nor batch statistics.
    model, _, batch, tokens, recorded = either
    model.train()
    cfg = load_config(
        ROOT / f"configs/{'RGBNT201' if either.tokens.grid == (16, 8) else 'MSVR310'}/Signal.yml"
    )
    losses = make_criterion(cfg)(model.fuse(tokens, person_ids=batch.person_ids), batch.person_ids)
    names = {"ori": "ori", "ori_rgb": "rgb", "ori_ni": "ni", "ori_ti": "ti", "signal": "sim"}
    for head, theirs in names.items():
        if f"{head}/id" in losses:
            check(losses[f"{head}/id"] / 0.25, recorded[f"loss_id_{theirs}"], f"{head}/id")
            check(losses[f"{head}/triplet"], recorded[f"loss_tri_{theirs}"], f"{head}/triplet")
    check(losses["signal/gam"] / cfg.SIGNAL.GAM_WEIGHT, recorded["loss_gam"], "GAM")
    check(losses["signal/lam"] / cfg.SIGNAL.LAM_WEIGHT, recorded["loss_lam"], "LAM")
    check(torch.stack(list(losses.values())).sum(), recorded["loss_total"], "total")


@pytest.mark.slow
def test_gradients(person: Loaded) -> None:
    model, _, batch, _, recorded = person
    model.train().zero_grad()
    cfg = load_config(ROOT / "configs/RGBNT201/Signal.yml")
    losses = make_criterion(cfg)(model(batch), batch.person_ids)
    torch.stack(list(losses.values())).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for theirs, norm in zip(recorded["grad_names"], recorded["grad_norm"], strict=True):
        # Any tensor stands for the entry: only the name is translated.
        ours = next(iter(rename({theirs: torch.zeros(2, 2)}, SIGNAL_RULES)[0]), None)
        found = None if ours is None else gradients[ours]
        if np.isnan(norm):
            assert found is None, theirs
        elif norm > 1e-6:  # smaller ones are rounding
            assert found is not None, theirs
            assert found.norm().item() == pytest.approx(norm, rel=1e-3), theirs
    model.zero_grad()


# What it costs, and how it learns.


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_size_and_cost(person: Loaded) -> None:
    model = person.model.eval()
    unused = 512 * 512 + 512  # W_v, which is not here
    assert round((count(model) + unused) / 1e6, 3) == 91.169
    branch = model.get_submodule("branches.signal")
    assert isinstance(branch, SignalBranch)
    sim = count(branch.select) + count(branch.interact) + unused
    assert (round(count(model.backbone) / 1e6, 3), round(sim / 1e6, 3)) == (86.143, 2.891)
    alignment = [
        part for part in (branch.gam, branch.lam) if isinstance(part, GlobalAlignment | LocalAlignment)
    ]
    assert round(sum(map(count, alignment)) / 1e6, 3) == 1.604
    # Frozen as published: W_q, W_k and the biases of the two necks.
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    select = [f"{PREFIX}select.{part}.{e}" for part in ("to_query", "to_key") for e in ("weight", "bias")]
    assert frozen == [*select, "heads.ori.neck.bias", "heads.signal.neck.bias"]
    # Multiply-adds of one triple, with attention; LAM and GAM do not run.
    multiply_adds = count_multiply_adds(model)
    assert multiply_adds["Signal"] / 1e9 == pytest.approx(0.31, abs=0.005)
    assert sum(multiply_adds.values()) / 1e9 == pytest.approx(34.55, abs=0.05)


def test_every_parameter_has_the_authors_rate_and_decay() -> None:
    recorded = read_keys("rgbnt201_signal")["optimizer_groups"]
    cfg = load_config(ROOT / "configs/RGBNT201/Signal.yml", ["SIGNAL.DECISION", "straight_through"])
    with torch.device("meta"):
        model = make_model(cfg, 171, 4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ours = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in make_optimizer(cfg, model).param_groups
        for parameter in group["params"]
    }
    # The values do not matter here, only that the translated names are ours; W_v has none.
    used = {name: rate for name, rate in recorded.items() if ".W_v." not in name}
    translated, unknown = rename({name: torch.zeros(2, 2) for name in used}, SIGNAL_RULES)
    assert not unknown
    assert ours == dict(zip(translated, (tuple(values) for values in used.values()), strict=True))


def test_names_go_back() -> None:
    shapes = read_keys("msvr310_signal")["state_dict"]
    theirs = {name: torch.zeros(2, 2) for name in shapes if ".W_v." not in name}
    ours, unknown = rename(theirs, SIGNAL_RULES)
    back, lost = rename(ours, SIGNAL_RULES, to_ours=False)
    assert (list(back), unknown, lost) == (list(theirs), [], [])
