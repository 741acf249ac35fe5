"""Weights of every origin that people have, and twelve files that are broken."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from config import load_config
from conftest import load_model
from modeling.checkpoint_file import WeightsError
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import (
    identify,
    load_pretrained,
    read_any,
    resize_position_embedding,
    to_demo_names,
    to_our_names,
)
from structures import ModalBatch

SMALL = ["MODEL.TRANSFORMER_TYPE", "vit_tiny_stem_patch8", "MODEL.STRIDE_SIZE", "[8, 8]", "MODEL.HEAD", "2"]
SIZE = ["INPUT.SIZE_TRAIN", "[128, 64]", "INPUT.SIZE_TEST", "[128, 64]"]
DEIT = ["MODEL.TRANSFORMER_TYPE", "deit_tiny_patch16_224", *SIZE]
POSITIONS = "backbone.vit.pos_embed"
State = dict[str, Tensor]


def build(*settings: str, ids: int = 5, seed: int = 0) -> MultiModalReID:
    torch.manual_seed(seed)
    return make_model(load_config(None, settings), ids, 3)


def small(*settings: str, ids: int = 5, seed: int = 0, sdtps: str = "True") -> MultiModalReID:
    return build(
        *SMALL, *SIZE, "MODEL.USE_SDTPS", sdtps, "MODEL.SIE_CAMERA", "True", *settings, ids=ids, seed=seed
    )


def entry(model: MultiModalReID, name: str) -> Tensor:
    return model.state_dict()[name].clone()


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def write(content: object, name: str = "weights.pth") -> Path:
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return write


WRAPPINGS: dict[str, Callable[[State], object]] = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state, "optimizer": {"lr": 1.0}},
    "module.": lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
    "module. in a container": lambda state: {"state_dict": {f"module.{n}": t for n, t in state.items()}},
    "another prefix": lambda state: {f"reid.net.{name}": tensor for name, tensor in state.items()},
    "DeMo's names": lambda state: to_demo_names(state)[0],
    "DeMo's names with module.": lambda state: {f"module.{n}": t for n, t in to_demo_names(state)[0].items()},
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_whole_models_load_from_every_wrapping(
    wrap: Callable[[State], object], save: Callable[..., Path]
) -> None:
    trained, fresh = small(seed=1), small(seed=2)
    assert not same(trained, fresh)
    report = load_model(fresh, save(wrap(trained.state_dict())))
    assert same(trained, fresh)
    assert len(report.loaded) == len(trained.state_dict())
    assert not any([report.resized, report.dropped, report.missing, report.unexpected])


def test_safetensors_is_known_by_content(tmp_path: Path) -> None:
    trained, fresh = small(seed=1), small(seed=2)
    save_file(trained.state_dict(), str(tmp_path / "weights.pth"))
    load_model(fresh, tmp_path / "weights.pth")
    assert same(trained, fresh)


def test_names_translate_both_ways_for_every_part() -> None:
    everything = small("MODEL.GLOBAL_LOCAL", "True", "MODEL.HDM", "True", "MODEL.ATM", "True").state_dict()
    theirs, unknown = to_demo_names(everything)
    assert not unknown
    assert len(theirs) == len(everything)
    assert identify(theirs) == "demo"
    back, unknown = to_our_names(theirs)
    assert not unknown
    assert back.keys() == everything.keys()
    assert all(torch.equal(back[name], everything[name]) for name in everything)


# Backbones


def clip_state(backbone: MultiModalReID, grid: int = 14) -> State:
    """What OpenAI's file holds: a visual tower under CLIP's names, and a text tower."""
    theirs, _ = to_demo_names(backbone.state_dict())
    start = "BACKBONE.base."
    state = {f"visual.{n.removeprefix(start)}": t for n, t in theirs.items() if n.startswith(start)}
    state["visual.positional_embedding"] = torch.randn(1 + grid * grid, 768)
    state["token_embedding.weight"] = torch.zeros(4, 8)
    state["transformer.resblocks.0.ln_1.weight"] = torch.zeros(8)
    return state


@pytest.fixture(scope="module")
def clip_models() -> tuple[MultiModalReID, MultiModalReID]:
    return build(*SIZE, seed=1), build(*SIZE, seed=2)


def test_openai_clip_loads_with_the_text_tower_left_out(
    clip_models: tuple[MultiModalReID, MultiModalReID], save: Callable[..., Path]
) -> None:
    source, target = clip_models
    state = clip_state(source)
    half = {name: tensor.half() for name, tensor in state.items()}
    report = load_pretrained(target, save(half))
    assert report.dropped == ["2 entries of the text tower"]
    assert report.resized == ["pos_embed (1, 197, 768) to (1, 33, 768), bilinear"]
    assert not (report.missing + report.unexpected)
    torch.testing.assert_close(target.backbone.vit.head.weight, state["visual.proj"].T, atol=1e-3, rtol=1e-3)
    resized = resize_position_embedding(half["visual.positional_embedding"].float().unsqueeze(0), (8, 4))
    assert torch.equal(entry(target, POSITIONS), resized)
    assert resized.dtype == torch.float32


class _Tower(torch.nn.Module):
    """A module whose state dict has given names, to be saved as TorchScript."""

    def __init__(self, state: State) -> None:
        super().__init__()
        for name, tensor in state.items():
            *path, last = name.split(".")
            module: torch.nn.Module = self
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            module.register_parameter(last, torch.nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_archives_load(
    clip_models: tuple[MultiModalReID, MultiModalReID], tmp_path: Path
) -> None:
    source, target = clip_models
    state = clip_state(source)
    torch.jit.save(torch.jit.trace(_Tower(state), torch.zeros(1)), tmp_path / "ViT-B-16.pt")
    load_pretrained(target, tmp_path / "ViT-B-16.pt")
    last = "backbone.vit.blocks.11.mlp.fc1.weight"
    assert torch.equal(entry(target, last), entry(source, last))


def test_timm_clip_loads_with_its_projection(
    clip_models: tuple[MultiModalReID, MultiModalReID], save: Callable[..., Path]
) -> None:
    source, target = clip_models
    state = dict(source.backbone.vit.state_dict())
    report = load_pretrained(target, save({**state, "head.bias": torch.zeros(512)}))
    assert report.dropped == ["head.bias (classifier)"]
    assert torch.equal(entry(target, "backbone.vit.head.weight"), state["head.weight"])


def test_imagenet_vit_loads_without_its_classifier(save: Callable[..., Path]) -> None:
    source, target = build(*DEIT, seed=1), build(*DEIT, seed=2)
    state = dict(source.backbone.vit.state_dict())
    state["pos_embed"] = torch.randn(1, 197, 192)
    state |= {"head.weight": torch.zeros(1000, 192), "head.bias": torch.zeros(1000)}
    report = load_pretrained(target, save({"model": state}))
    assert len(report.dropped) == 2
    assert report.resized == ["pos_embed (1, 197, 192) to (1, 33, 192), bilinear"]
    assert torch.equal(
        entry(target, "backbone.vit.blocks.0.attn.qkv.weight"), state["blocks.0.attn.qkv.weight"]
    )


def test_distilled_deit_loads_without_its_second_token(save: Callable[..., Path]) -> None:
    target = build(*DEIT)
    state = dict(build(*DEIT, seed=1).backbone.vit.state_dict())
    positions = torch.randn(1, 198, 192)
    state |= {"pos_embed": positions, "dist_token": torch.zeros(1, 1, 192)}
    load_pretrained(target, save(state))
    wanted = resize_position_embedding(torch.cat([positions[:, :1], positions[:, 2:]], dim=1), (8, 4))
    assert torch.equal(entry(target, POSITIONS), wanted)


def test_training_can_go_on_from_a_whole_model_with_other_identities(save: Callable[..., Path]) -> None:
    source, target = small(ids=7, seed=1), small(ids=5, seed=2)
    classifier = "heads.ori.classifier.weight"
    initial = entry(target, classifier)
    report = load_pretrained(target, save({"model": source.state_dict()}))
    assert len(report.dropped) == 2
    assert "for 7 ids, the model has 5" in report.dropped[0]
    assert torch.equal(entry(target, classifier), initial)
    assert torch.equal(entry(target, POSITIONS), entry(source, POSITIONS))


# Position embeddings


def test_positions_are_resized_bilinearly() -> None:
    """A 2 x 2 grid with values 0, 1 / 2, 3 doubled in width: corners kept, 1/4 and 3/4 between."""
    positions = torch.tensor([9.0, 0.0, 1.0, 2.0, 3.0]).view(1, 5, 1)
    resized = resize_position_embedding(positions, (2, 4)).flatten()
    assert resized.tolist() == [9.0, 0.0, 0.25, 0.75, 1.0, 2.0, 2.25, 2.75, 3.0]


@pytest.mark.parametrize(
    ("count", "grid", "old"),
    [(16, (2, 8), (4, 4)), (128, (24, 12), (16, 8)), (128, (24, 8), (16, 8)), (128, (12, 24), (8, 16))],
)
def test_the_old_grid_is_told_from_the_number_of_patches(
    count: int, grid: tuple[int, int], old: tuple[int, int]
) -> None:
    rows = torch.arange(old[0]).repeat_interleave(old[1]).float().view(1, -1, 1)
    resized = resize_position_embedding(torch.cat([torch.zeros(1, 1, 1), rows], dim=1), grid)
    field = resized[0, 1:, 0].view(grid)
    assert len(rows[0]) == count
    torch.testing.assert_close(field, field[:, :1].expand_as(field))  # the same row number along a row
    assert (field.diff(dim=0) >= 0).all()


def test_positions_of_register_tokens_are_kept() -> None:
    positions = torch.arange(8.0).view(1, 8, 1)
    assert resize_position_embedding(positions, (2, 2), num_prefix=4).flatten().tolist() == list(range(8))
    assert resize_position_embedding(positions[:, 4:], (2, 4), num_prefix=0).shape == (1, 8, 1)


def test_a_grid_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(WeightsError, match="35 patches"):
        resize_position_embedding(torch.zeros(1, 36, 4), (8, 4))


# Cameras that training never saw


@pytest.mark.parametrize("choice", ["mean", "zero"])
@pytest.mark.parametrize("backbone", ["clip", "tiny"])
def test_unseen_cameras(choice: str, backbone: str, make_batch: Callable[..., ModalBatch]) -> None:
    settings = ["MODEL.SIE_CAMERA", "True", "TEST.UNSEEN_CAMERA", choice]
    model = build(*(SMALL if backbone == "tiny" else DEIT), *SIZE, *settings).eval()
    if backbone == "clip":
        model.backbone.is_clip = True  # the other place of the embedding, on a small ViT
    table = model.backbone.camera_embed
    assert table is not None
    batch = make_batch([0, 1], size=(128, 64))
    with torch.no_grad():
        unseen = model.backbone(batch.images.rgb, torch.tensor([3, 17])).globals_
        table[0] = table.mean(dim=0) if choice == "mean" else 0.0
        expected = model.backbone(batch.images.rgb, torch.tensor([0, 0])).globals_
        other = model.backbone(batch.images.rgb, torch.tensor([1, 1])).globals_
    torch.testing.assert_close(unseen, expected)
    assert not torch.allclose(unseen, other)


# Twelve broken files


class _Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (os.mkdir, ("evil",))


def test_truncated_file(save: Callable[..., Path]) -> None:
    path = save(small().state_dict())
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(WeightsError, match=r"weights\.pth is truncated or damaged"):
        load_model(small(), path)


def test_truncated_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(small().state_dict(), str(path))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(WeightsError, match=r"weights\.safetensors is truncated or damaged"):
        load_model(small(), path)


def test_wrong_architecture(save: Callable[..., Path]) -> None:
    path = save(build(*DEIT, "MODEL.USE_SDTPS", "True", "MODEL.SIE_CAMERA", "True").state_dict())
    with pytest.raises(WeightsError, match="does not fit this configuration"):
        load_model(small(), path)
    foreign = save({"layer1.0.conv1.weight": torch.zeros(3), "bn1.weight": torch.zeros(3)})
    with pytest.raises(WeightsError, match=r"no weights that are known here.*layer1\.0\.conv1"):
        load_model(small(), foreign)


def test_wrong_width(save: Callable[..., Path]) -> None:
    state = small().state_dict()
    state["backbone.vit.cls_token"] = torch.zeros(1, 1, 96)
    with pytest.raises(WeightsError, match=r"the model needs \(1, 1, 64\); use the configuration that it"):
        load_model(small(), save(state))


def test_extra_keys(save: Callable[..., Path]) -> None:
    path = save({**small(seed=1).state_dict(), "backbone.vit.extra": torch.zeros(3)})
    with pytest.raises(
        WeightsError, match=r"entries unexpected: 1 \(backbone\.vit\.extra\).*--allow_partial"
    ):
        load_model(small(), path)
    target = small()
    assert load_model(target, path, allow_partial=True).unexpected == ["backbone.vit.extra"]
    assert same(target, small(seed=1))


def test_pickle_with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": _Evil()}, tmp_path / "zip.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"state_dict": _Evil()}))
    for name in ("zip.pth", "plain.pth"):
        with pytest.raises(WeightsError, match="could run code when opened, so it is refused"):
            load_model(small(), tmp_path / name)
    assert not (tmp_path / "evil").exists()


def test_web_page(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_text("\n<!DOCTYPE html><html>Quota exceeded</html>")
    with pytest.raises(WeightsError, match="is a web page"):
        load_model(small(), tmp_path / "weights.pth")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is a folder"):
        load_model(small(), tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere\.pth does not exist"):
        load_model(small(), tmp_path / "nowhere.pth")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").touch()
    with pytest.raises(WeightsError, match="is empty"):
        load_model(small(), tmp_path / "weights.pth")


def test_half_the_keys(save: Callable[..., Path]) -> None:
    state = small(seed=1).state_dict()
    half = dict(list(state.items())[::2])
    path = save(half)
    with pytest.raises(WeightsError, match=r"entries missing: \d+ \(.*and \d+ more\)"):
        load_model(small(), path)
    target = small()
    report = load_model(target, path, allow_partial=True)
    assert sorted(report.loaded) == sorted(half)
    assert sorted(report.missing) == sorted(state.keys() - half.keys())


def test_renamed_prefix(save: Callable[..., Path]) -> None:
    state = {name.replace("backbone.vit", "encoder"): t for name, t in small().state_dict().items()}
    with pytest.raises(WeightsError, match="no weights that are known here"):
        load_model(small(), save(state))


def test_other_number_of_ids(save: Callable[..., Path]) -> None:
    source, target = small(ids=9, seed=1), small(ids=5, seed=2)
    report = load_model(target, save(source.state_dict()))
    assert [entry.partition(" ")[0] for entry in report.dropped] == report.missing
    assert report.missing == ["heads.ori.classifier.weight", "heads.sdtps.classifier.weight"]
    score = "branches.sdtps.select.selectors.0.score_predictor.0.weight"
    assert torch.equal(entry(target, score), entry(source, score))


def test_other_image_size(save: Callable[..., Path]) -> None:
    path = save(small(sdtps="False", seed=1).state_dict())
    larger = small("INPUT.SIZE_TRAIN", "[192, 96]", "INPUT.SIZE_TEST", "[192, 96]", sdtps="False")
    report = load_model(larger, path)
    assert report.resized == ["backbone.vit.pos_embed (1, 129, 64) to (1, 289, 64), bilinear"]
    assert not report.missing


def test_nothing_fits(save: Callable[..., Path]) -> None:
    with pytest.raises(WeightsError, match=r"no entry of .* fits"):
        load_model(small(), save({"backbone.vit.other": torch.zeros(2)}), allow_partial=True)


def test_no_tensors(save: Callable[..., Path]) -> None:
    for content in ({"epoch": 3}, [1, 2], torch.zeros(3)):
        with pytest.raises(WeightsError, match="not a checkpoint"):
            read_any(save(content))


def test_a_backbone_is_not_a_whole_model(save: Callable[..., Path]) -> None:
    with pytest.raises(WeightsError, match=r"holds a backbone.*PRETRAIN_PATH_T"):
        load_model(small(), save(build(*DEIT).backbone.vit.state_dict()))


def test_imagenet_weights_do_not_pass_for_clip(
    clip_models: tuple[MultiModalReID, MultiModalReID], save: Callable[..., Path]
) -> None:
    state = {n: t for n, t in clip_models[0].backbone.vit.state_dict().items() if "norm_pre" not in n}
    state["head.weight"] = torch.zeros(512, 768)
    with pytest.raises(WeightsError, match=r"norm_pre\.weight"):
        load_pretrained(clip_models[1], save(state))


def test_a_container_that_holds_itself(save: Callable[..., Path]) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    with pytest.raises(WeightsError, match="not a checkpoint"):
        read_any(save(content))


def test_text_is_not_taken_for_code(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_text("hello, these are no weights")
    with pytest.raises(WeightsError, match="is truncated or damaged"):
        read_any(path)


@pytest.mark.parametrize(
    "damaged",
    [
        torch.zeros(1, 1, 64, device="meta"),
        torch.zeros(1, 1, 64).to_sparse(),
        torch.zeros(1).expand(1, 1, 64),
    ],
    ids=["meta", "sparse", "expanded"],
)
def test_tensors_that_do_not_hold_their_numbers(save: Callable[..., Path], damaged: Tensor) -> None:
    with pytest.raises(WeightsError, match="cls_token is not a plain array"):
        load_model(small(), save({**small().state_dict(), "backbone.vit.cls_token": damaged}))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64, torch.complex64])
def test_numbers_of_another_kind(save: Callable[..., Path], dtype: torch.dtype) -> None:
    state = {**small(seed=1).state_dict(), "backbone.vit.cls_token": torch.ones(1, 1, 64, dtype=dtype)}
    target = small()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(WeightsError, match=r"cls_token holds \w+ values, the model needs float32"):
        load_model(target, save(state))
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())
    assert load_model(target, save(state), allow_partial=True).missing == ["backbone.vit.cls_token"]


def test_a_refused_file_leaves_the_model_as_it_was(save: Callable[..., Path]) -> None:
    state = {name: t for name, t in small(seed=1).state_dict().items() if "sdtps" not in name}
    target = small()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(WeightsError, match="entries missing: "):
        load_model(target, save(state))
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())


def test_a_position_embedding_without_positions(save: Callable[..., Path]) -> None:
    state = {**small().state_dict(), "backbone.vit.pos_embed": torch.zeros(1, 0, 64)}
    with pytest.raises(WeightsError, match="position embedding"):
        load_model(small(), save(state))


@pytest.mark.parametrize("extra", [{}, {"pos_embed": torch.zeros(3)}])
def test_a_distilled_backbone_without_positions(save: Callable[..., Path], extra: dict[str, Tensor]) -> None:
    state = {"patch_embed.proj.weight": torch.zeros(2), "dist_token": torch.zeros(1, 1, 192), **extra}
    with pytest.raises(WeightsError, match="does not fit this configuration"):
        load_pretrained(build(*DEIT), save(state))


def test_a_classifier_that_is_one_number(save: Callable[..., Path]) -> None:
    state = {**small().state_dict(), "heads.ori.classifier.weight": torch.tensor(1.0)}
    assert "for 0 ids" in load_model(small(), save(state)).dropped[0]
