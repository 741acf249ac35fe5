"""Descriptors on disk, in shards: `part-00000.npz` …, and `embedding.json` that says what they are.

A shard has the arrays `features` (n, D), `ids`, `cameras` and `index` (n,), and `files` (n,); `ids` and
`cameras` are -1 where the list does not say them, and `index` is the row of the list. A shard is written
whole or not at all, so one that is there is finished.
"""

from __future__ import annotations

import json
import logging
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.files import (
    TEMPORARY,
    make_folder,
    save_arrays,
    save_json,
    save_text,
    take_lock,
    write_atomically,
)
from errors import UserError
from reporting.extra import import_extra

logger = logging.getLogger(__name__)

DESCRIPTION = "embedding.json"
PCA = "pca.npz"
UNREADABLE = "unreadable.txt"
_KEYS = {"weights", "sha256", "pattern", "settings", "pca", "dim", "format", "finished"}


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards."""

    path: Path
    kind: str  # `npz` or `parquet`
    num_shards: int

    def file_of(self, shard: int) -> Path:
        """The file of a shard."""
        return self.path / f"part-{shard:05d}.{self.kind}"

    def skipped_file(self, shard: int) -> Path:
        """The list of what a shard leaves out, until all shards are there."""
        return self.path / f"part-{shard:05d}.{UNREADABLE}"

    def open(self) -> IO[bytes]:
        """Make the folder and lock it, as long as the result lives; remove what a killed process left."""
        make_folder(self.path)
        lock = take_lock(self.path / ".lock")
        if lock is None:
            raise UserError(f"another process writes to {self.path}; wait for it, or name another folder")
        for path in self.path.glob(".*.tmp"):
            if re.fullmatch(rf"\..+{TEMPORARY}", path.name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
        return lock

    def describe(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Write embedding.json, or refuse a folder whose shards were made with other options."""
        file = self.path / DESCRIPTION
        if not file.exists():
            if any(self.path.glob("part-*")):
                raise UserError(f"{self.path} has shards and no {DESCRIPTION}; name another folder")
            save_json(file, {**description, "finished": False})
        stored = read_description(self.path)
        for name, now in description.items():
            before = stored.get(name)
            if before != now and name != "weights":
                before, now = (_show(name, value, d) for value, d in ((before, stored), (now, description)))
                raise UserError(
                    f"{self.path} was started with {name} {before}, not {now}; repeat the command as it was, "
                    "or name another folder"
                )
        return stored

    def find_missing(self) -> list[int]:
        """The shards that are not there yet; the number of the others is logged."""
        missing = [shard for shard in range(self.num_shards) if not self.file_of(shard).exists()]
        if len(missing) < self.num_shards:
            there = self.num_shards - len(missing)
            logger.info("%d of %d shards are in %s already", there, self.num_shards, self.path)
        return missing

    def save(self, shard: int, arrays: Mapping[str, np.ndarray], skipped: Mapping[int, str]) -> None:
        """Write a shard, and before it the rows that it leaves out."""
        if skipped:
            save_text(self.skipped_file(shard), "".join(f"{row}\t{why}\n" for row, why in skipped.items()))
        if self.kind == "npz":
            save_arrays(self.file_of(shard), arrays)
            return
        table = _to_table(arrays)
        parquet = import_extra("pyarrow.parquet", "search")
        write_atomically(self.file_of(shard), lambda file: parquet.write_table(table, file))

    def finish(self) -> int:
        """When all shards are there: join the lists of what was skipped, and say so; returns their number."""
        description = read_description(self.path)
        if description["finished"]:
            return int(description["skipped"])
        parts = [path for shard in range(self.num_shards) if (path := self.skipped_file(shard)).exists()]
        text = "".join(path.read_text() for path in parts)
        if text:
            save_text(self.path / UNREADABLE, text)
        skipped = text.count("\n")
        save_json(self.path / DESCRIPTION, {**description, "finished": True, "skipped": skipped})
        for path in parts:
            path.unlink()
        return skipped


def _show(name: str, value: Any, description: Mapping[str, Any]) -> Any:
    """A value for a message; of weights, their file."""
    if name == "settings":
        return "of the model that differ"
    return f"{value} ({description['weights']})" if name == "sha256" else repr(value)


def read_description(folder: Path) -> dict[str, Any]:
    """The content of embedding.json."""
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.keys() >= _KEYS:
            return content
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{folder} is not a folder that tools.embed has written: it has no {DESCRIPTION}; run "
            "python -m tools.embed FOLDER|LIST.csv OUT --weights FILE, and name OUT"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        pass
    raise UserError(f"{path} was not written by tools.embed, or it is damaged; name another folder")


def find_shards(folder: Path) -> list[Path]:
    """The shards of a finished folder, in order."""
    description = read_description(folder)
    if not description["finished"]:
        raise UserError(f"the embeddings in {folder} are not finished; run the same tools.embed again")
    shards = sorted(folder.glob(f"part-*.{description['format']}"))
    if not shards:
        raise UserError(f"{folder} holds no part-*.{description['format']}; run tools.embed again")
    return shards


def read_shard(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Some arrays of a shard, by name."""
    try:
        if path.suffix == ".npz":
            with np.load(path) as stored:
                return {name: stored[name] for name in names}
        table = import_extra("pyarrow.parquet", "search").read_table(path, columns=list(names))
        arrays = {name: table[name].to_numpy() for name in names}
        rows, dim = arrays["features"].tolist(), table.schema.field("features").type.list_size
        return arrays | {"features": np.array(rows, dtype=np.float32).reshape(-1, dim)}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # pyarrow's errors are ValueErrors
        raise UserError(f"{path} cannot be read; remove it and run the same tools.embed again") from None


def read_features(folder: Path) -> Iterator[np.ndarray]:
    """The descriptors of a finished folder, shard by shard, (n, D)."""
    for path in find_shards(folder):
        yield read_shard(path, ["features"])["features"]


def _to_table(arrays: Mapping[str, np.ndarray]) -> Any:
    """A table with one row per triple; `features` is a list of fixed length."""
    arrow = import_extra("pyarrow", "search")
    features = arrays["features"]
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(features.ravel()), features.shape[1])
    return arrow.table({name: lists if name == "features" else arrow.array(a) for name, a in arrays.items()})
