"""A weight file of any known format -> tensors by name, without running code from the file."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from errors import UserError, on_one_line
from weight_file import file_fault, is_plain, is_whole

CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
"""Entries under which training programs keep the weights."""


RECORD = "demo_sdtps"
"""In the metadata of a safetensors file, what a checkpoint says beside its weights, as JSON."""


class WeightsError(UserError):
    """A weight file that cannot be used; the message says why and what to do."""


REMEDIES = {
    "TEST.WEIGHT": "name a checkpoint of a run, such as runs/…/best.pth",
    "MODEL.PRETRAIN_PATH_T": (
        "put the file there or name another; for ViT-B-16 it is CLIP's ViT-B-16.pt from OpenAI's release "
        "(its address is in docs/data.md)"
    ),
}
"""By the setting that names a weight file, what to do if it does not exist."""


def read_content(path: str | Path, *, key: str = "") -> Any:
    """Read a weight file, which the setting `key` names; the format is told by content, not by name.

    Understands safetensors, TorchScript archives (OpenAI's CLIP) and what `torch.save` writes.
    """
    path = Path(path)
    if fault := file_fault(path):
        raise WeightsError(f"weight file {path} {fault}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        who, what_to_do = (f"{key}: ", f"; {REMEDIES[key]}") if key else ("", "")
        raise WeightsError(f"{who}weight file {path} does not exist{what_to_do}") from None
    except OSError as error:
        raise WeightsError(f"weight file {path} cannot be read: {error.strerror}") from None
    if not is_whole(path):
        raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again")
    return _decode(content, path)


def find_tensors(content: Any, path: str | Path) -> dict[str, Tensor]:
    """The tensors in the content of a weight file, by name.

    They may be in a container (`state_dict`, `model`), with or without the prefix `module.`. Half and double
    precision become float32.
    """
    state = _unwrap(content)
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(f"weight file {path} holds no tensors by name, so it is not a checkpoint")
    for name, tensor in tensors.items():
        # One that is expanded claims memory that the file does not have.
        if not is_plain(tensor) or tensor.untyped_storage().nbytes() < tensor.nbytes:
            raise WeightsError(
                f"weight file {path} is damaged: {on_one_line(name)} is not a plain array of numbers"
            )
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def _decode(content: bytes, path: Path) -> Any:
    try:
        if content[8:9] == b"{":
            return _with_record(load_safetensors(content), content)
        if content[:2] == b"PK" and _is_torchscript(content):
            return torch.jit.load(io.BytesIO(content), map_location="cpu").state_dict()
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # A global or class that torch does not allow in weights; or an instruction that it does not know,
        # in what begins as a pickle or an archive of one.
        is_pickle = content[:1] == b"\x80" or content[:2] == b"PK"
        reason = str(error)
        if "nsupported" in reason and (is_pickle or "Unsupported operand" not in reason):
            raise WeightsError(
                f"weight file {path} holds more than tensors and could run code when opened, so it is "
                "refused; if you trust it, open it yourself and save only its state dict with torch.save"
            ) from None
        raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again") from None
    except Exception:  # what a broken file raises differs from decoder to decoder
        raise WeightsError(f"weight file {path} is truncated or damaged; fetch it again") from None


def _with_record(state: dict[str, Tensor], content: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file; with what `tools.export` says beside them, as in a checkpoint."""
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return {"model": state, **json.loads(metadata[RECORD])} if RECORD in metadata else state


def _is_torchscript(content: bytes) -> bool:
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    return any(name.endswith("/constants.pkl") for name in names)


def _unwrap(content: Any) -> Mapping[Any, Any]:
    """The state dict inside a checkpoint."""
    seen: set[int] = set()  # a container may hold itself
    while isinstance(content, Mapping) and id(content) not in seen:
        seen.add(id(content))
        inner = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            return content
        content = inner
    return {}
