"""A weight file of any known format -> tensors by name, without running code from the file."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from structures import UserError

CONTAINERS = ("state_dict", "model", "model_state_dict")
"""Entries under which training programs keep the weights."""


class WeightsError(UserError):
    """A weight file that cannot be used; the message says why and what to do."""


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file; the format is told by content, not by name.

    Understands safetensors, TorchScript archives (OpenAI's CLIP) and what `torch.save` writes, in a container
    (`state_dict`, `model`) or not, with or without the prefix `module.`. Half precision becomes float32.
    """
    path = Path(path)
    if path.is_dir():
        raise WeightsError(f"weight file {path} is a folder; name the file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise WeightsError(f"weight file {path} does not exist") from None
    except OSError as error:
        raise WeightsError(f"weight file {path} cannot be read: {error.strerror}") from None
    state = _unwrap(_decode(content, path))
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(f"weight file {path} holds no tensors by name, so it is not a checkpoint")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def _decode(content: bytes, path: Path) -> Any:
    if not content:
        raise WeightsError(f"weight file {path} is empty; fetch it again")
    if content.lstrip()[:1] == b"<":
        raise WeightsError(f"weight file {path} is a web page, not weights; the download went wrong")
    damaged = WeightsError(f"weight file {path} is truncated or damaged; fetch it again")
    try:
        if content[8:9] == b"{":
            return load_safetensors(content)
        if content[:2] == b"PK" and _is_torchscript(content):
            return torch.jit.load(io.BytesIO(content), map_location="cpu").state_dict()
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "nsupported" in str(error):  # a global, class or operand that torch does not allow in weights
            raise WeightsError(
                f"weight file {path} holds more than tensors and could run code when opened, so it is "
                "refused; if you trust it, open it yourself and save only its state dict with torch.save"
            ) from None
        raise damaged from None
    except (SafetensorError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError, KeyError, OSError):
        raise damaged from None


def _is_torchscript(content: bytes) -> bool:
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    return any(name.endswith("/constants.pkl") for name in names)


def _unwrap(content: Any) -> Mapping[Any, Any]:
    """The state dict inside a checkpoint."""
    while isinstance(content, Mapping):
        inner = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            return content
        content = inner
    return {}
