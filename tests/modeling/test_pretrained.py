"""Weight files of trunks as their authors publish them: names and shapes as in their files, two blocks."""

import contextlib
import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import eva as timm_eva
from timm.models import vision_transformer as timm_vit
from torch import Tensor

from config import load_config
from errors import UserError
from modeling.backbone.trunk import Resize
from modeling.checkpoint_file import WeightsError
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import LoadReport, load_pretrained, read_any, resize_position_embedding, start_from
from weight_file import hash_file

State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=2))


def build(name: str, *settings: str) -> MultiModalReID:
    patch = 8 if "patch8" in name else 14 if "patch14" in name else 16
    size, stride = f"[{4 * patch}, {2 * patch}]", f"[{patch}, {patch}]"
    sizes = ["INPUT.SIZE_TRAIN", size, "INPUT.SIZE_TEST", size, "MODEL.STRIDE_SIZE", stride]
    torch.manual_seed(0)
    return make_model(load_config(None, ["MODEL.TRANSFORMER_TYPE", name, *sizes, *settings]), 5, 3)


def filled(shapes: dict[str, tuple[int, ...]]) -> State:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def plain_blocks(width: int, scale: str = "") -> dict[str, tuple[int, ...]]:
    """Blocks as timm, DINO, DINOv2 and DINOv3 name them, up to the scales of their layers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for start in ("blocks.0.", "blocks.1."):
        shapes |= norm(f"{start}norm1", width) | norm(f"{start}norm2", width)
        shapes |= linear(f"{start}attn.qkv", 3 * width, width) | linear(f"{start}attn.proj", width, width)
        shapes |= linear(f"{start}mlp.fc1", 4 * width, width) | linear(f"{start}mlp.fc2", width, 4 * width)
        shapes |= {start + scale.format(number): (width,) for number in (1, 2)} if scale else {}
    return shapes


def trunk(width: int, patch: int, positions: int) -> dict[str, tuple[int, ...]]:
    """What surrounds the blocks, with a table for so many positions, or none."""
    embed = {"patch_embed.proj.weight": (width, 3, patch, patch), "patch_embed.proj.bias": (width,)}
    table = {"pos_embed": (1, positions, width)} if positions else {}
    return {"cls_token": (1, 1, width), **table, **embed, **norm("norm", width)}


def dinov2(registers: int = 0) -> State:
    more = {"register_tokens": (1, registers, 384)} if registers else {}
    blocks = plain_blocks(384, "ls{}.gamma")
    return filled({**trunk(384, 14, 1 + 37 * 37), "mask_token": (1, 384), **more, **blocks})


def dinov3(biases: float = 0.0) -> State:
    more = {"storage_tokens": (1, 4, 384), "mask_token": (1, 384), "rope_embed.periods": (16,)}
    masks = {f"blocks.{block}.attn.qkv.bias_mask": (1152,) for block in (0, 1)}
    state = filled({**trunk(384, 16, 0), **more, **plain_blocks(384, "ls{}.gamma"), **masks})
    for block in (0, 1):
        state[f"blocks.{block}.attn.qkv.bias"] *= biases
    state["rope_embed.periods"] = state["rope_embed.periods"].bfloat16()
    return state


def dinov3_timm() -> State:
    shapes = {**trunk(384, 16, 0), "reg_token": (1, 4, 384), **plain_blocks(384, "gamma_{}")}
    return filled({name: shape for name, shape in shapes.items() if not name.endswith("qkv.bias")})


def eva_block(start: str, width: int, hidden: int, split: bool) -> dict[str, tuple[int, ...]]:
    shapes = norm(f"{start}norm1", width) | norm(f"{start}norm2", width)
    shapes |= {f"{start}attn.q_bias": (width,), f"{start}attn.v_bias": (width,)}
    shapes |= {f"{start}attn.rope.freqs_cos": (256, 64), f"{start}attn.rope.freqs_sin": (256, 64)}
    shapes |= linear(f"{start}attn.proj", width, width) | linear(f"{start}mlp.w3", width, hidden)
    if not split:
        return (
            shapes
            | {f"{start}attn.qkv.weight": (3 * width, width)}
            | linear(f"{start}mlp.w12", 2 * hidden, width)
        )
    shapes |= {f"{start}attn.{kind}_proj.weight": (width, width) for kind in "qkv"}
    shapes |= linear(f"{start}mlp.w1", hidden, width) | linear(f"{start}mlp.w2", hidden, width)
    return shapes | norm(f"{start}mlp.ffn_ln", hidden)


def eva02(width: int, *, split: bool, fine_tuned: bool = False) -> State:
    """Masked pre-training, or fine-tuned with a norm after the mean of all patches."""
    hidden = width * 8 // 3
    shapes = {**trunk(width, 14, 257), "rope.freqs_cos": (256, 64), "rope.freqs_sin": (256, 64)}
    for start in ("blocks.0.", "blocks.1."):
        shapes |= eva_block(start, width, hidden, split)
    if fine_tuned:
        shapes = {n: s for n, s in shapes.items() if not n.startswith("norm.")} | norm("fc_norm", width)
        return filled({**shapes, **linear("head", 1000, width)})
    return filled({**shapes, "mask_token": (1, 1, width), **linear("lm_head", 1024, width)})


def eva_clip() -> State:
    """EVA-02-CLIP B/16, with a norm inside the attention, and a projection called head."""
    shapes = {**trunk(768, 16, 197), "rope.freqs_cos": (196, 64), "rope.freqs_sin": (196, 64)}
    for start in ("blocks.0.", "blocks.1."):
        shapes |= eva_block(start, 768, 2048, split=True) | norm(f"{start}attn.inner_attn_ln", 768)
    shapes |= linear("head", 512, 768)
    text = {"logit_scale": (), "text.positional_embedding": (77, 512), "text.ln_final.weight": (512,)}
    return filled({**{f"visual.{name}": shape for name, shape in shapes.items()}, **text})


def openclip_timm() -> State:
    """open_clip's file of a model whose visual tower is one of timm, with a projection beside it."""
    shapes = {**trunk(384, 16, 197), **plain_blocks(384)}
    text = {"logit_scale": (), "text.token_embedding.weight": (9, 8), "visual.head.proj.weight": (512, 384)}
    return filled({**{f"visual.trunk.{name}": shape for name, shape in shapes.items()}, **text})


def openclip() -> State:
    """open_clip's own names, which are OpenAI's."""
    shapes: dict[str, tuple[int, ...]] = {"class_embedding": (768,), "positional_embedding": (197, 768)}
    shapes |= {"conv1.weight": (768, 3, 16, 16), "proj": (768, 512)}
    shapes |= norm("ln_pre", 768) | norm("ln_post", 768)
    for start in ("transformer.resblocks.0.", "transformer.resblocks.1."):
        shapes |= norm(f"{start}ln_1", 768) | norm(f"{start}ln_2", 768)
        shapes |= {f"{start}attn.in_proj_weight": (2304, 768), f"{start}attn.in_proj_bias": (2304,)}
        shapes |= linear(f"{start}attn.out_proj", 768, 768)
        shapes |= linear(f"{start}mlp.c_fc", 3072, 768) | linear(f"{start}mlp.c_proj", 768, 3072)
    text = {"logit_scale": (), "positional_embedding": (77, 512), "ln_final.weight": (512,)}
    return filled({**{f"visual.{name}": shape for name, shape in shapes.items()}, **text})


def deit3() -> State:
    return filled({**trunk(384, 16, 196), **plain_blocks(384, "gamma_{}"), **linear("head", 1000, 384)})


def per_block(*endings: str) -> list[str]:
    return [f"blocks.{block}.{ending}" for ending in endings for block in (0, 1)]


ROPE = per_block(
    "attn.rope.freqs_cos (computed from the grid)", "attn.rope.freqs_sin (computed from the grid)"
)
ROPE += ["rope.freqs_cos (computed from the grid)", "rope.freqs_sin (computed from the grid)"]
HEAD = ["head.weight (classifier)", "head.bias (classifier)"]
PRETRAINING = "mask_token (of its pre-training)"
DINOV3 = [
    PRETRAINING,
    "rope_embed.periods (computed from the grid)",
    *per_block("attn.qkv.bias_mask (a constant)"),
]
MIM = [PRETRAINING, "lm_head.weight (of its pre-training)", "lm_head.bias (of its pre-training)", *ROPE]

# By what it is: the trunk, the file, its origin, what is left out of it.
FILES: dict[str, tuple[str, Callable[[], State], str, list[str]]] = {
    "DINO": (
        "vit_small_patch8_224.dino",
        lambda: filled({**trunk(384, 8, 785), **plain_blocks(384)}),
        "vit",
        [],
    ),
    "DINOv2": ("vit_small_patch14_dinov2", dinov2, "dinov2", [PRETRAINING]),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", lambda: dinov2(4), "dinov2", [PRETRAINING]),
    "DINOv3": (
        "vit_small_patch16_dinov3",
        dinov3,
        "dinov3",
        [*DINOV3, *per_block("attn.qkv.bias (zeros)")],
    ),
    "DINOv3 with biases": (
        "vit_small_patch16_dinov3_qkvb",
        lambda: dinov3(1.0),
        "dinov3",
        [*DINOV3, *per_block("attn.qkv.bias (its part for keys, which is masked)")],
    ),
    "DINOv3 of timm": ("vit_small_patch16_dinov3", dinov3_timm, "vit", []),
    "EVA-02": ("eva02_base_patch14_224", lambda: eva02(768, split=True), "eva", MIM),
    "EVA-02, small": ("eva02_tiny_patch14_224", lambda: eva02(192, split=False), "eva", MIM),
    "EVA-02, fine-tuned": (
        "eva02_tiny_patch14_224",
        lambda: eva02(192, split=False, fine_tuned=True),
        "eva",
        [*HEAD, *ROPE],
    ),
    "EVA-CLIP": (
        "eva02_base_patch16_clip_224",
        eva_clip,
        "openclip",
        ["3 entries of the text tower", *HEAD, *ROPE],
    ),
    "OpenCLIP": ("ViT-B-16", openclip, "clip", ["3 entries of the text tower"]),
    "OpenCLIP, trained with GELU": (
        "vit_base_patch16_clip_224",
        openclip,
        "clip",
        ["3 entries of the text tower", "head.weight (classifier)"],
    ),
    "OpenCLIP, timm's tower": (
        "vit_small_patch16_224",
        openclip_timm,
        "openclip",
        ["visual.head.proj.weight (classifier)", "2 entries of the text tower"],
    ),
    "DeiT III": ("deit3_small_patch16_224", deit3, "vit", HEAD),
}


def timm_conversion(state: State, model: MultiModalReID) -> State:
    """What timm itself makes of a file."""
    vit: Any = model.backbone.vit
    with contextlib.redirect_stdout(io.StringIO()):
        if isinstance(vit, timm_eva.Eva):
            converted = timm_eva.checkpoint_filter_fn(dict(state), vit)
        else:
            converted = timm_vit.checkpoint_filter_fn(dict(state), vit, adapt_layer_scale=True)
    # For a class token, the norm after the blocks is the one that timm puts after the mean.
    return {name.replace("fc_norm", "norm"): tensor for name, tensor in converted.items()}


@pytest.mark.parametrize(("name", "make", "origin", "dropped"), FILES.values(), ids=FILES)
def test_files_of_their_authors_load_and_every_entry_is_accounted_for(
    name: str, make: Callable[[], State], origin: str, dropped: list[str], tmp_path: Path
) -> None:
    model, state, path = build(name), make(), tmp_path / "weights.pth"
    torch.save({"module": state} if origin == "eva" else state, path)
    assert read_any(path)[0] == origin
    report = load_pretrained(model, path)
    own = model.backbone.vit.state_dict()
    assert sorted(report.dropped) == sorted(dropped)
    assert not report.missing + report.unexpected
    assert len(report.loaded) + len(report.resized) == len(own)
    assert [entry.partition(" ")[0] for entry in report.resized] == (
        ["pos_embed"] if "pos_embed" in own else []
    )
    # Every value is where timm would put it.
    theirs = timm_conversion(state, model)
    for entry, tensor in own.items():
        if entry != "pos_embed":
            assert torch.equal(tensor, theirs[entry]), entry


def load(name: str, state: State, tmp_path: Path) -> tuple[MultiModalReID, LoadReport]:
    model = build(name)
    torch.save(state, tmp_path / "weights.pth")
    return model, load_pretrained(model, tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("kind", "how", "words"),
    [
        ("DINO", Resize("bicubic"), "bicubic"),
        ("DINOv2", Resize("bicubic"), "bicubic"),
        ("DINOv2 with registers", Resize("bicubic", antialias=True), "bicubic, antialiased"),
        ("EVA-02, small", Resize("bicubic"), "bicubic"),
        ("OpenCLIP", Resize("bilinear"), "bilinear"),
        ("DeiT III", Resize("bilinear"), "bilinear"),
    ],
)
def test_positions_are_resized_as_the_authors_of_the_trunk_do_it(
    kind: str, how: Resize, words: str, tmp_path: Path
) -> None:
    name, make, *_ = FILES[kind]
    state = make()
    model, report = load(name, state, tmp_path)
    table = state.get("pos_embed", state.get("visual.positional_embedding"))
    assert table is not None
    table = table.view(1, -1, table.shape[-1])
    own = dict(model.backbone.vit.named_parameters())["pos_embed"]
    num_prefix = own.shape[1] - 8  # a grid of 4 x 2
    if kind == "DINOv2 with registers":
        table = table[:, 1:]  # the class token has it now
    expected = resize_position_embedding(table, (4, 2), num_prefix=num_prefix, how=how)
    assert torch.equal(own, expected)
    other = Resize("bicubic", antialias=not how.antialias)
    assert not torch.allclose(own, resize_position_embedding(table, (4, 2), num_prefix=num_prefix, how=other))
    assert report.resized == [f"pos_embed {tuple(table.shape)} to {tuple(own.shape)}, {words}"]


def test_bicubic_positions_by_hand() -> None:
    """From 4 to 2 positions, the weights of the cubic at distances 1/2 and 3/2 are 0.59375 and -0.09375."""
    rows = torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat_interleave(4).view(1, 16, 1)
    resized = resize_position_embedding(rows, (2, 2), num_prefix=0, how=Resize("bicubic"))
    first = 0.59375 * (1 + 2) - 0.09375 * (1 + 4)  # the edge is repeated
    second = 0.59375 * (4 + 8) - 0.09375 * (2 + 8)
    torch.testing.assert_close(resized.flatten(), torch.tensor([first, first, second, second]))


def test_biases_that_are_not_zero_need_the_trunk_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"blocks\.0\.attn\.qkv\.bias is not zero.* ends in _qkvb"):
        load("vit_small_patch16_dinov3", dinov3(1.0), tmp_path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("vit_small_patch14_dinov2", lambda: dinov2(4)),
        ("vit_small_patch14_reg4_dinov2", dinov2),
        ("vit_small_patch16_dinov3", dinov2),
        ("vit_small_patch14_dinov2", dinov3),
        ("vit_small_patch16_224", dinov3),
    ],
)
def test_a_file_of_another_trunk_is_refused(name: str, make: Callable[[], State], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not fit this configuration"):
        load(name, make(), tmp_path)


@pytest.mark.parametrize("damaged", ["cls_token", "pos_embed", "register_tokens", "blocks.0.attn.qkv.bias"])
@pytest.mark.parametrize("make", [lambda: dinov2(4), dinov3])
def test_damaged_entries_are_refused(damaged: str, make: Callable[[], State], tmp_path: Path) -> None:
    name = "vit_small_patch14_reg4_dinov2" if "register_tokens" in make() else "vit_small_patch16_dinov3"
    for tensor in (torch.tensor(1.0), torch.ones(1, 2, 3)):
        with pytest.raises(WeightsError, match="does not fit"):
            load(name, {**make(), damaged: tensor}, tmp_path)


# Under the names of the library `transformers`

IN_CLIP = {
    r"^positional_embedding": "text_model.embeddings.position_embedding.weight",
    r"^ln_final": "text_model.final_layer_norm",
    r"^visual\.proj": "visual_projection.weight",
    r"^visual\.": "vision_model.",
    "class_embedding": "embeddings.class_embedding",
    r"model\.positional_embedding": "model.embeddings.position_embedding.weight",
    "conv1": "embeddings.patch_embedding",
    "ln_pre": "pre_layrnorm",
    "ln_post": "post_layernorm",
    r"transformer\.resblocks": "encoder.layers",
    r"ln_(\d)": r"layer_norm\1",
    "attn.in_proj_": "self_attn.qkv_proj.",
    "attn.out_proj": "self_attn.out_proj",
    "c_fc": "fc1",
    "c_proj": "fc2",
}
IN_DINOV2 = {
    "^(cls_token|mask_token|register_tokens)": r"embeddings.\1",
    "^pos_embed": "embeddings.position_embeddings",
    r"^patch_embed\.proj": "embeddings.patch_embeddings.projection",
    "^norm": "layernorm",
    "^blocks": "encoder.layer",
    r"ls(\d)\.gamma": r"layer_scale\1.lambda1",
    r"attn\.qkv": "attention.attention.qkv",
    r"attn\.proj": "attention.output.dense",
}
IN_VIT = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
    **IN_DINOV2,
    r"^(?=embeddings|encoder|layernorm\.)": "vit.",
    "^head": "classifier",
}
IN_DINOV3 = {
    "^(cls_token|mask_token)": r"embeddings.\1",
    "^storage_tokens": "embeddings.register_tokens",
    r"^patch_embed\.proj": "embeddings.patch_embeddings",
    "^blocks": "layer",
    r"ls(\d)\.gamma": r"layer_scale\1.lambda1",
    r"attn\.qkv": "attention.qkv_proj",
    r"attn\.proj": "attention.o_proj",
    r"mlp\.w1": "mlp.gate_proj",
    r"mlp\.(fc1|w2)": "mlp.up_proj",
    r"mlp\.(fc2|w3)": "mlp.down_proj",
}
"""Patterns of the authors' names, and what `transformers` has in their place, one after the other."""


def in_transformers(state: State, names: dict[str, str]) -> State:
    """The entries of a file of the authors as a file of `transformers` holds them."""
    renamed: State = {}
    for name, tensor in state.items():
        for pattern, theirs in names.items():
            name = re.sub(pattern, theirs, name)
        if "qkv" not in name:
            renamed[name] = tensor
            continue
        parts = ("query", "key", "value") if names in (IN_DINOV2, IN_VIT) else "qkv"
        for part, third in zip(parts, tensor.chunk(3), strict=True):
            renamed[name.replace("qkv", part)] = third.contiguous()
    if names is IN_DINOV3:  # no biases of keys, no constants
        no_place = ("k_proj.bias", "bias_mask", "periods")
        return {name: tensor for name, tensor in renamed.items() if not name.endswith(no_place)}
    if names is IN_CLIP:
        renamed["visual_projection.weight"] = renamed["visual_projection.weight"].T.contiguous()
        # Files of 2021 hold these as well.
        renamed |= {f"{n}_model.embeddings.position_ids": torch.arange(197)[None] for n in ("text", "vision")}
    return renamed


def dinov3_gated() -> State:
    state = dinov3()
    for start in per_block("mlp."):
        for kind in ("weight", "bias"):
            fc1, fc2 = (state.pop(f"{start}{layer}.{kind}") for layer in ("fc1", "fc2"))
            state |= {f"{start}w1.{kind}": fc1, f"{start}w2.{kind}": fc1 + 1, f"{start}w3.{kind}": fc2}
    return state


def vit() -> State:
    return filled({**trunk(384, 16, 197), **plain_blocks(384), **linear("head", 1000, 384)})


TOWER = ["4 entries of the text tower", "position_ids (a constant)"]
ZEROS = per_block("attn.qkv.bias (zeros)")

# By what it is: the trunk, the file of its authors, the names in `transformers`, what is left out of it.
IN_TRANSFORMERS: dict[str, tuple[str, Callable[[], State], dict[str, str], list[str]]] = {
    "CLIP": ("ViT-B-16", openclip, IN_CLIP, TOWER),
    "CLIP, trained with GELU": (
        "vit_base_patch16_clip_224",
        openclip,
        IN_CLIP,
        [*TOWER, "head.weight (classifier)"],
    ),
    "DINOv2": ("vit_small_patch14_dinov2", dinov2, IN_DINOV2, [PRETRAINING]),
    "DINOv2 with registers": (
        "vit_small_patch14_reg4_dinov2",
        lambda: dinov2(4),
        IN_DINOV2,
        [PRETRAINING],
    ),
    "DINOv3": ("vit_small_patch16_dinov3", dinov3, IN_DINOV3, [PRETRAINING, *ZEROS]),
    "DINOv3 with biases": (
        "vit_small_patch16_dinov3_qkvb",
        lambda: dinov3(1.0),
        IN_DINOV3,
        [PRETRAINING],
    ),
    "DINOv3, gated": ("vit_small_plus_patch16_dinov3", dinov3_gated, IN_DINOV3, [PRETRAINING, *ZEROS]),
    "ViT": ("vit_small_patch16_224", vit, IN_VIT, HEAD),
}


@pytest.mark.parametrize(("name", "make", "names", "dropped"), IN_TRANSFORMERS.values(), ids=IN_TRANSFORMERS)
def test_a_file_of_transformers_gives_the_trunk_of_its_authors(
    name: str, make: Callable[[], State], names: dict[str, str], dropped: list[str], tmp_path: Path
) -> None:
    expected = load(name, make(), tmp_path)[0].backbone.vit.state_dict()
    model, path = build(name), tmp_path / "model.safetensors"
    save_file(in_transformers(make(), names), str(path))
    assert read_any(path)[0] == "transformers"
    report = load_pretrained(model, path)
    assert sorted(report.dropped) == sorted(dropped)
    assert not report.missing + report.unexpected
    for entry, tensor in model.backbone.vit.state_dict().items():
        assert torch.equal(tensor, expected[entry]), entry


def test_queries_keys_and_values_are_joined_in_this_order(tmp_path: Path) -> None:
    """And the class token of DINOv2 with registers gets its position."""
    state = in_transformers(dinov2(4), IN_DINOV2)
    for number, part in enumerate(("query", "key", "value")):
        for kind in ("weight", "bias"):
            state[f"encoder.layer.1.attention.attention.{part}.{kind}"].fill_(number)
    state["embeddings.cls_token"].fill_(3.0)
    state["embeddings.position_embeddings"].fill_(4.0)
    own = load("vit_small_patch14_reg4_dinov2", state, tmp_path)[0].backbone.vit.state_dict()
    for kind in ("weight", "bias"):
        thirds = own[f"blocks.1.attn.qkv.{kind}"].view(3, 384, -1)
        assert [third.unique().tolist() for third in thirds] == [[0.0], [1.0], [2.0]]
    assert own["cls_token"].unique().tolist() == [7.0]


LAYER = "encoder.layer.0.attention.attention."


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (
            IN_DINOV2,
            {f"{LAYER}key.bias": None},
            r"entries missing: 1 \(blocks\.0\.attn\.qkv\.bias\), unexpected: 2 \(",
        ),
        (
            IN_DINOV2,
            {f"{LAYER}query.weight": None},
            r"missing: 1 \(blocks\.0\.attn\.qkv\.weight\), unexpected: 2",
        ),
        (
            IN_DINOV2,
            {f"{LAYER}key.bias": torch.ones(383)},
            r"attn\.k_proj\.bias \(383,\), .* should have one shape and type; fetch it again",
        ),
        (
            IN_DINOV2,
            {f"{LAYER}key.bias": torch.ones(384, dtype=torch.int64)},
            "should have one shape and type",
        ),
        (
            IN_DINOV2,
            {"layernorm.weight": torch.ones(5)},
            r"norm\.weight has shape \(5,\), the model needs \(384,",
        ),
        (
            IN_DINOV2,
            {f"{LAYER}{part}.bias": torch.tensor(1.0) for part in ("query", "key", "value")},
            r"qkv\.bias has shape \(3,\), the model needs \(1152,\)",
        ),
        (IN_DINOV2, {"decoder.0.weight": torch.ones(5)}, r"entries unexpected: 1 \(decoder\.0\.weight\)"),
        (
            IN_DINOV3,
            {"layer.0.attention.k_proj.bias": torch.ones(384)},
            r"unexpected: \d+ \(blocks.*k_proj\.bias\)",
        ),
        (IN_DINOV3, {"layer.0.attention.v_proj.bias": torch.ones(384)}, "is not zero.* ends in _qkvb"),
    ],
)
def test_entries_of_transformers_that_do_not_fit_are_refused(
    names: dict[str, str], change: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    is_dinov2 = names is IN_DINOV2
    state = in_transformers(dinov2() if is_dinov2 else dinov3(), names)
    changed = {name: tensor for name, tensor in {**state, **change}.items() if tensor is not None}
    with pytest.raises(WeightsError, match=message):
        load("vit_small_patch14_dinov2" if is_dinov2 else "vit_small_patch16_dinov3", changed, tmp_path)


# Fetched by timm


def test_a_start_from_timm_records_the_repository_and_the_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state, file = dinov3_timm(), tmp_path / "model.safetensors"
    save_file(state, str(file))
    asked: list[tuple[str, str]] = []

    def download(repository: str, name: str, *, local_files_only: bool = False) -> str:
        if local_files_only and not asked:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not fetched before")
        asked.append((repository, name))
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda _: None)
    model = build("vit_small_patch16_dinov3")
    start = start_from(model, "timm")
    assert asked == [("timm/vit_small_patch16_dinov3.lvd1689m", "model.safetensors")]
    assert start == {
        "initial_weights": "timm: timm/vit_small_patch16_dinov3.lvd1689m",
        "initial_sha256": hash_file(file),
    }
    assert torch.equal(model.backbone.vit.state_dict()["reg_token"], state["reg_token"])
    json.dumps(start)
    # Once it is there, no network is needed.
    monkeypatch.delattr(huggingface_hub, "get_hf_file_metadata")
    assert start_from(build("vit_small_patch16_dinov3"), "timm") == start


def test_without_a_network_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is asked once: hf_hub_download would ask again for 23 seconds, and log each time."""
    asked = []

    def fail(url: str) -> None:
        asked.append(url)
        raise ConnectionError("[Errno -3] Temporary failure in name resolution\nfor a long time")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)
    with pytest.raises(UserError) as refusal:
        start_from(build("deit_small_patch16_224"), "timm")
    assert len(asked) == 1
    assert str(refusal.value) == (
        "MODEL.PRETRAIN_PATH_T timm: model.safetensors of timm/deit_small_patch16_224.fb_in1k cannot be "
        "fetched from Hugging Face (ConnectionError); where there is no network, fetch it elsewhere and name "
        "the file"
    )


def test_a_trunk_that_timm_does_not_have() -> None:
    with pytest.raises(UserError, match=r"timm has no weights for this MODEL\.TRANSFORMER_TYPE"):
        start_from(build("vit_tiny_stem_patch8", "MODEL.HEAD", "2"), "timm")
