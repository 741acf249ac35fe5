"""Checkpoints of several origins -> our model. Nothing is skipped silently."""

from __future__ import annotations

import io
import json
import logging
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from modeling.checkpoint_names import CLIP_RULES, DEMO_CLIP_RULES, DEMO_VIT_RULES, Rule, rename
from modeling.reid_model import MultiModalReID
from structures import UserError

logger = logging.getLogger(__name__)

CONTAINERS = ("state_dict", "model", "model_state_dict")
"""Entries under which training programs keep the weights."""

NOT_BACKBONE = ("head.", "head_dist.", "fc_norm.", "pre_logits.", "dist_token", "fc.", "mask_token")
"""Entries of an ImageNet checkpoint that belong to its classifier or its pre-training."""


class WeightsError(UserError):
    """A weight file that cannot be used; the message says why and what to do."""


@dataclass
class LoadReport:
    """What became of each entry.

    Attributes:
        loaded: entries of the model that were filled as they are.
        resized: entries that were resized to the model's grid, with both shapes.
        dropped: entries of the file that were left out on purpose, with the reason.
        missing: entries of the model that the file does not have; they keep their initial values.
        unexpected: entries of the file that the model has no place for.
    """

    loaded: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Counts, then the entries of every list but `loaded`, the first few of each."""
        lists = {name: entries for name, entries in vars(self).items() if name != "loaded"}
        counts = ", ".join(f"{len(entries)} {name}" for name, entries in vars(self).items())
        details = [f"\n  {name}: {shorten(entries)}" for name, entries in lists.items() if entries]
        return counts + "".join(details)


def shorten(names: Sequence[str], limit: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file, whatever its format, without running code from it.

    Understands safetensors, TorchScript archives (OpenAI's CLIP), and what `torch.save` writes; in a
    container (`state_dict`, `model`) or not, with or without the prefix `module.`.
    """
    path = Path(path)
    if path.is_dir():
        raise WeightsError(f"{path} is a folder; name the weight file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise WeightsError(f"weight file {path} does not exist") from None
    except OSError as error:
        raise WeightsError(f"weight file {path} cannot be read: {error.strerror}") from None
    if not content:
        raise WeightsError(f"weight file {path} is empty; fetch it again")
    state = _unwrap(_parse(content, path))
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(f"weight file {path} holds no tensors by name; it is not a checkpoint")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def _parse(content: bytes, path: Path) -> Any:
    """Decode a file by its first bytes."""
    if content.lstrip()[:1] == b"<":
        raise WeightsError(f"weight file {path} is a web page, not weights; the download went wrong")
    if content[8:9] == b"{":
        return _parse_safetensors(content, path)
    if content[:2] == b"PK":
        try:
            names = zipfile.ZipFile(io.BytesIO(content)).namelist()
        except zipfile.BadZipFile:
            raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again") from None
        if any(name.endswith("/constants.pkl") for name in names):
            return torch.jit.load(io.BytesIO(content), map_location="cpu").state_dict()
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Weights only load failed" in str(error) and "GLOBAL" in str(error):
            raise WeightsError(
                f"weight file {path} holds more than tensors and would run code when opened; it is refused. "
                "If you trust it, open it yourself and save its state dict with torch.save"
            ) from None
        raise WeightsError(f"weight file {path} is not a checkpoint that torch can read") from None
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError, UnicodeDecodeError, OSError):
        raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again") from None


def _parse_safetensors(content: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return load_safetensors(content)
    except (SafetensorError, json.JSONDecodeError):
        raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again") from None


def _unwrap(content: Any) -> Mapping[str, Any]:
    """The state dict inside a checkpoint."""
    while isinstance(content, Mapping):
        inner = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            return content
        content = inner
    return {}


def load_backbone(model: MultiModalReID, path: str | Path) -> LoadReport:
    """Fill the ViT with pretrained weights (MODEL.PRETRAIN_PATH_T).

    Reads OpenAI's and open_clip's CLIP, and ViT or DeiT checkpoints with timm's names; text tower and
    classifier are left out, position embeddings resized to the model's grid.
    """
    state = read_checkpoint(path)
    report = LoadReport()
    vision = {n.removeprefix("visual."): t for n, t in state.items() if n.startswith("visual.")}
    if vision:
        report.dropped = [f"{len(state) - len(vision)} entries of the text tower"]
        state = vision
    if "conv1.weight" in state and "class_embedding" in state:
        state, report.unexpected = rename(state, CLIP_RULES)
    elif "patch_embed.proj.weight" not in state:
        raise WeightsError(
            f"{path} holds neither a CLIP visual tower nor a timm ViT (it starts with "
            f"{shorten(list(state), 3)}); set MODEL.PRETRAIN_PATH_T to one of those"
        )
    if not model.backbone.is_clip:
        classifier = [name for name in state if name.startswith(NOT_BACKBONE)]
        report.dropped += [f"{name} (classifier)" for name in classifier]
        state = {name: tensor for name, tensor in state.items() if name not in classifier}
    _fill(model.backbone.vit, state, report, grid=model.backbone.grid, path=path)
    if report.missing:
        raise WeightsError(f"{path} does not fit MODEL.TRANSFORMER_TYPE: it lacks {shorten(report.missing)}")
    logger.info("backbone weights from %s: %s", path, report.summary())
    return report


def load_model(model: MultiModalReID, path: str | Path) -> LoadReport:
    """Fill the whole model for testing (TEST.WEIGHT), from our checkpoints or DeMo's.

    Classifiers of another number of identities are left out: testing does not use them. Any other missing
    or unexpected entry is an error.
    """
    state = read_checkpoint(path)
    report = LoadReport()
    if any(name.startswith("BACKBONE.") for name in state):
        state, report.unexpected = rename(state, _demo_rules(model))
    own = model.state_dict()
    for name in [n for n in state if n.endswith("classifier.weight") and n in own]:
        if state[name].shape != own[name].shape:
            report.dropped.append(f"{name} ({len(state[name])} ids, the model has {len(own[name])})")
            del state[name]
    _fill(model, state, report, grid=model.backbone.grid, path=path)
    missing = [name for name in report.missing if not name.endswith("classifier.weight")]
    if missing or report.unexpected:
        raise WeightsError(
            f"{path} does not fit this configuration: missing {shorten(missing) or 'nothing'}; "
            f"unexpected {shorten(report.unexpected) or 'nothing'}. Use the config.yml of its run"
        )
    logger.info("model weights from %s: %s", path, report.summary())
    return report


def _demo_rules(model: MultiModalReID) -> tuple[Rule, ...]:
    return DEMO_CLIP_RULES if model.backbone.is_clip else DEMO_VIT_RULES


def _fill(
    module: nn.Module,
    state: Mapping[str, Tensor],
    report: LoadReport,
    *,
    grid: tuple[int, int],
    path: str | Path,
) -> None:
    """Copy the entries that the module has, resizing position embeddings; a wrong shape is an error."""
    own = module.state_dict()
    accepted = {}
    for name, tensor in state.items():
        if name not in own:
            report.unexpected.append(name)
            continue
        if name.endswith("pos_embed") and tensor.shape != own[name].shape and tensor.dim() == 3:
            resized = resize_position_embedding(tensor, grid)
            report.resized.append(f"{name} {tuple(tensor.shape)} -> {tuple(resized.shape)}")
            tensor = resized
        else:
            report.loaded.append(name)
        if tensor.shape != own[name].shape:
            raise WeightsError(
                f"{path} does not fit: {name} has shape {tuple(tensor.shape)}, the model needs "
                f"{tuple(own[name].shape)}"
            )
        accepted[name] = tensor
    report.missing += [name for name in own if name not in state]
    module.load_state_dict(accepted, strict=False)


def resize_position_embedding(embedding: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resize the position embedding of a square grid to another grid, bilinearly, as DeMo does.

    Args:
        embedding: class token first, (1, 1 + S * S, C).
        grid: rows and columns wanted.

    Returns:
        (1, 1 + rows * columns, C).
    """
    side = round((embedding.shape[1] - 1) ** 0.5)
    if side * side != embedding.shape[1] - 1:
        raise WeightsError(
            f"the position embedding {tuple(embedding.shape)} does not come from a square grid"
        )
    patches = embedding[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, size=grid, mode="bilinear", align_corners=False)
    return torch.cat([embedding[:, :1], patches.flatten(2).transpose(1, 2)], dim=1)
