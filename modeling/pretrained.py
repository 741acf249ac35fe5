"""Weight files of trunks as their authors publish them -> timm's names, every entry accounted for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timm.models.eva import Eva
from torch import Tensor, nn

from errors import UserError
from modeling.checkpoint_file import WeightsError
from modeling.checkpoint_names import (
    CLIP_RULES,
    DINOV2_RULES,
    DINOV3_RULES,
    EVA_RULES,
    TRANSFORMERS_RULES,
    VIT_RULES,
    rename,
)

FROM_TIMM = "timm"
"""What MODEL.PRETRAIN_PATH_T says in place of a file to fetch timm's own."""

LEFT_OUT = {
    r"(head|head_dist|fc_norm|pre_logits|fc)\..*": "classifier",
    r"mask_token|dist_token|lm_head\..*|local_cls_norm\..*": "of its pre-training",
    r"(.*\.)?rope(_embed)?\.(periods|freqs_cos|freqs_sin)": "computed from the grid",
    r".*\.bias_mask|position_ids": "a constant",
}
"""Entries that a trunk here does not have, and why."""

RULES = {
    "clip": CLIP_RULES,
    "dinov2": DINOV2_RULES,
    "dinov3": DINOV3_RULES,
    "eva": EVA_RULES,
    "vit": VIT_RULES,
}
"""By whose names the entries have."""

IN_TRANSFORMERS = re.compile(r"(?P<prefix>(.*\.)?)embeddings\.(cls_token|class_embedding)")
"""The class token in the library `transformers`."""


@dataclass
class TrunkFile:
    """The entries of a file under timm's names."""

    state: dict[str, Tensor]
    dropped: list[str] = field(default_factory=list)  # what was left out on purpose, with the reason
    unknown: list[str] = field(default_factory=list)  # names that no rule fits


def identify_trunk(state: Mapping[str, Tensor]) -> str | None:
    """Whose names the entries of a trunk have.

    Returns:
        `clip` (OpenAI, open_clip), `openclip` (with a tower of timm, or EVA-CLIP), `transformers` (the
        library), `dinov2`, `dinov3`, `eva` (EVA-02), `vit` (timm, ImageNet, DeiT, DINO), or None.
    """
    if any(IN_TRANSFORMERS.fullmatch(name) for name in state):
        return "transformers"
    if {"conv1.weight", "class_embedding"} <= {name.removeprefix("visual.") for name in state}:
        return "clip"
    if any(re.match(r"visual\.(trunk\.)?patch_embed\.", name) for name in state):
        return "openclip"
    if "patch_embed.proj.weight" not in state:
        return None
    if "storage_tokens" in state:
        return "dinov3"
    if "mask_token" in state and state["mask_token"].dim() == 2:
        return "dinov2"
    if any(re.fullmatch(r"blocks\.0\.(attn\.[qv]_bias|mlp\.w[12]+\.weight)", name) for name in state):
        return "eva"
    return "vit"


def to_timm_names(origin: str, state: dict[str, Tensor], vit: nn.Module, *, projection: bool) -> TrunkFile:
    """Bring the entries of a trunk under timm's names, and leave out what is not part of it.

    Args:
        origin: from `identify_trunk`.
        state: the entries, under their authors' names.
        vit: the trunk to fill.
        projection: whether its `head` is CLIP's projection, and so part of it.
    """
    file = TrunkFile(state)
    if origin in ("clip", "openclip"):
        origin = _visual_tower(file, origin)
    elif origin == "transformers":
        origin = _from_transformers(file)
    # Under the other names.
    is_eva = isinstance(vit, Eva)
    rules = RULES["eva"] if is_eva and origin == "vit" else RULES[origin]
    file.state, unknown = rename(file.state, rules)
    file.unknown += unknown
    # What is put together otherwise.
    if origin == "dinov3":
        _split_biases(file, vit)
    elif is_eva:
        _join_eva(file)
    _join_positions(file, origin)
    # What is not part of the trunk.
    for name in list(file.state):
        reason = next((why for pattern, why in LEFT_OUT.items() if re.fullmatch(pattern, name)), None)
        if reason and not (projection and name == "head.weight"):
            file.dropped.append(f"{name} ({reason})")
            del file.state[name]
    return file


def _visual_tower(file: TrunkFile, origin: str) -> str:
    """Keep the visual tower of a CLIP model alone; returns whose names it has."""
    prefix = "visual.trunk." if any(name.startswith("visual.trunk.") for name in file.state) else "visual."
    tower = {n.removeprefix(prefix): t for n, t in file.state.items() if n.startswith(prefix)}
    if tower:
        beside = [name for name in file.state if name.startswith("visual.") and not name.startswith(prefix)]
        file.dropped += [f"{name} (classifier)" for name in beside]
        file.dropped.append(f"{len(file.state) - len(tower) - len(beside)} entries of the text tower")
        file.state = tower
    return origin if origin == "clip" else identify_trunk(file.state) or "vit"


def _from_transformers(file: TrunkFile) -> str:
    """Bring entries of the library `transformers` near to timm's names; returns whose trunk they are."""
    # The trunk with its classifier or projection, without the text tower.
    prefix = next(found["prefix"] for name in file.state if (found := IN_TRANSFORMERS.fullmatch(name)))
    text = [name for name in file.state if name.startswith("text_") or name == "logit_scale"]
    state = {n.removeprefix(prefix): tensor for n, tensor in file.state.items() if n not in text}
    if text:
        file.dropped.append(f"{len(text)} entries of the text tower")
    # Under the other names.
    is_dinov3 = "embeddings.patch_embeddings.weight" in state
    is_gated = any(".mlp.gate_proj." in name for name in state)
    file.state, file.unknown = rename(state, TRANSFORMERS_RULES[is_gated])
    _join_projections(file.state, key_bias=not is_dinov3)
    return "dinov3" if is_dinov3 else identify_trunk(file.state) or "vit"


def _join_projections(state: dict[str, Tensor], *, key_bias: bool) -> None:
    """Make one projection of those of queries, keys and values, in this order; in part there, they stay.

    Args:
        state: changed in place.
        key_bias: whether keys have a bias; if not, zeros take its place.
    """
    for name in [name for name in state if re.search(r"\.attn\.q_proj\.(weight|bias)$", name)]:
        without_key = name.endswith("bias") and not key_bias
        names = [name.replace("q_proj", f"{part}_proj") for part in ("qv" if without_key else "qkv")]
        if not state.keys() >= set(names):
            continue
        parts = [state.pop(part) for part in names]
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            shapes = ", ".join(f"{part} {tuple(t.shape)}" for part, t in zip(names, parts, strict=True))
            raise WeightsError(
                f"the file of MODEL.PRETRAIN_PATH_T is damaged: {shapes} should have one shape and type; "
                "fetch it again"
            )
        if without_key:
            parts.insert(1, torch.zeros_like(parts[0]))
        state[name.replace("q_proj", "qkv")] = torch.cat([torch.atleast_1d(part) for part in parts])


def _split_biases(file: TrunkFile, vit: nn.Module) -> None:
    """DINOv3's biases of queries, keys and values; those of keys are masked, and most trunks have zeros."""
    own = vit.state_dict()
    biases = [n for n, t in file.state.items() if n.endswith(".attn.qkv.bias") and t.dim() == 1]
    for name in biases:
        query, key, value = file.state.pop(name).tensor_split(3)
        start = name.removesuffix("qkv.bias")
        if f"{start}q_bias" in own:
            file.state |= {f"{start}q_bias": query, f"{start}v_bias": value}
            if key.any():  # `transformers` has none
                file.dropped.append(f"{name} (its part for keys, which is masked)")
        elif query.any() or value.any():
            raise WeightsError(
                f"{name} is not zero, and this trunk has no biases there; use the MODEL.TRANSFORMER_TYPE of "
                "the same name that ends in _qkvb"
            )
        else:
            file.dropped.append(f"{name} (zeros)")


def _join_eva(file: TrunkFile) -> None:
    """EVA-02's biases, which timm keeps in the projections where there are three, and its last norm."""
    state = file.state
    if "blocks.0.attn.q_proj.weight" in state:
        file.state = {re.sub(r"attn\.([qv])_bias$", r"attn.\1_proj.bias", n): t for n, t in state.items()}
    if "norm.weight" not in state:  # trained with the norm after the mean of all patches
        file.state = {re.sub("^fc_norm", "norm", name): tensor for name, tensor in file.state.items()}


def _join_positions(file: TrunkFile, origin: str) -> None:
    """Positions of prefix tokens that timm keeps elsewhere or does not have."""
    state, positions = file.state, file.state.get("pos_embed")
    if positions is None or positions.dim() != 3:
        return
    first, rest = positions[:, :1], positions[:, 1:]
    if "dist_token" in state:
        # A distilled DeiT has a second token after the class token, which a trunk here does not have.
        state["pos_embed"] = torch.cat([first, rest[:, 1:]], dim=1)
    class_token = state.get("cls_token")
    if (
        origin == "dinov2"
        and "reg_token" in state
        and class_token is not None
        and class_token.shape == first.shape
    ):
        # With registers, timm has no position of the class token, since it can be added once and for all.
        state |= {"cls_token": class_token + first, "pos_embed": rest}


def fetch(vit: nn.Module) -> tuple[str, Path]:
    """Fetch the file that timm publishes for a trunk, or find it where it was fetched before.

    Returns:
        Its name and where it is now.
    """
    source: dict[str, Any] = getattr(vit, "pretrained_cfg", {})
    repository, file = source.get("hf_hub_id"), source.get("hf_hub_filename") or "model.safetensors"
    if not repository:
        raise UserError(
            f"MODEL.PRETRAIN_PATH_T {FROM_TIMM}: timm has no weights for this MODEL.TRANSFORMER_TYPE; name a "
            "file, or leave the key empty"
        )
    import huggingface_hub as hub  # late: only a start from timm needs it

    try:
        try:
            path = hub.hf_hub_download(repository, file, local_files_only=True)
        except hub.errors.LocalEntryNotFoundError:  # not fetched before
            # Asks once. The download by itself asks six times, with longer and longer waits.
            hub.get_hf_file_metadata(hub.hf_hub_url(repository, file))
            path = hub.hf_hub_download(repository, file)
    except Exception as error:  # what a missing network raises differs from version to version
        raise UserError(
            f"MODEL.PRETRAIN_PATH_T {FROM_TIMM}: {file} of {repository} cannot be fetched from Hugging Face "
            f"({type(error).__name__}); where there is no network, fetch it elsewhere and name the file"
        ) from None
    return f"{FROM_TIMM}: {repository}", Path(path)
