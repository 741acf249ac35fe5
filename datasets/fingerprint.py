"""The records of a split → a short text that changes when they do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from structures import ImageRecord


def fingerprint(records: Iterable[ImageRecord], folder: Path) -> str:
    """A hash over the files of each record (path below `folder` and size), its identity, camera and scene.

    No file is opened. The size tells two images that have changed places under their names. The folder
    itself may move.

    Args:
        records: of a split, in their order.
        folder: of the data set.
    """
    digest = hashlib.sha256()
    for record in records:
        files = [(os.path.relpath(path, folder), _size(path)) for path in record.files]
        digest.update(repr((files, record.person_id, record.camera_id, record.scene_id)).encode())
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the loader will name the file
        return -1
