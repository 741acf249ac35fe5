"""What a weight file must be before it is decoded, and its tensors after. Every package may import this."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path

import torch
from torch import Tensor

TRUNK_FILE = "trunk"
"""In a checkpoint without what MODEL.TUNE has frozen, the entry that says which file holds it."""

BLOCK = 2**20  # bytes that are read at once


def file_fault(path: Path) -> str:
    """What keeps a file from being a checkpoint of any kind, as the end of a sentence; empty if nothing does.

    A file that does not exist or may not be read has no fault here: whoever opens it says so. A pipe is not
    opened, since that would wait forever.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "is a folder; name the file in it"
        if not stat.S_ISREG(mode):
            return "is a pipe or a device, not a file; name the file itself"
        with path.open("rb") as file:
            start = file.read(200)
    except OSError:
        return ""
    if not start:
        return "is empty; fetch it again"
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself; run `git lfs pull` where it was cloned"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not weights; the download went wrong"
    return ""


def is_whole(path: Path) -> bool:
    """Whether the checksums of a zip archive, as torch writes it, are right; torch does not look at them."""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                return True
            with zipfile.ZipFile(file) as archive:
                return archive.testzip() is None
    except FileNotFoundError:
        return True
    except Exception:  # a broken archive raises errors of many kinds
        return False


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is an array of numbers: not sparse, nested, quantised, or without content."""
    return not (tensor.is_nested or tensor.is_quantized or tensor.is_meta) and tensor.layout == torch.strided


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
