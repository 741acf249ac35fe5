"""The file of a gallery: a log of records, each with a checksum, to which `append` adds durably.

A record is a header of 64 bytes and its content, padded to a multiple of 64. The content is on the disk
before the header is written: a header of zeros is that of a record that was never acknowledged; anything
else that does not fit is damage.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.files import write_atomically
from errors import UserError

MAGIC = b"GAL1"
UNIT = 64
_HEADER = struct.Struct("<4s4sQQII")  # magic, kind, length, next row, checksums of the content and of this


@dataclass(frozen=True)
class Record:
    """One entry of the log."""

    kind: str  # made: the gallery itself; add: vectors; gone: removed rows; indx: an index
    next_row: int  # of the gallery after this record
    about: dict[str, Any]  # small values by name
    arrays: dict[str, np.ndarray]  # by name; after reading they are parts of the mapped file


def append(file: IO[bytes], start: int, record: Record) -> int:
    """Write a record at `start`, the end of the last one, and wait for the disk; the new end."""
    parts = list(_encode(record))
    length = sum(map(len, parts))
    file.seek(start + UNIT)
    for part in parts:
        file.write(part)
    file.flush()
    os.fsync(file.fileno())
    file.seek(start)
    file.write(_header(record, parts))
    file.flush()
    os.fsync(file.fileno())
    return start + UNIT + length


def write_file(path: Path, records: Iterable[Record]) -> None:
    """Replace the file of a gallery, whole or not at all."""
    if path.exists() and not is_gallery(path):
        raise UserError(f"{path} exists and is not a gallery; name another file or remove it")

    def write(file: IO[bytes]) -> None:
        for record in records:
            parts = list(_encode(record))
            file.write(_header(record, parts))
            for part in parts:
                file.write(part)

    write_atomically(path, write)


def is_gallery(path: Path) -> bool:
    """Whether a file starts as that of a gallery does."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_file(path: Path) -> tuple[list[Record], int]:
    """The records of a gallery, and where they end; the rest is from an `append` that never returned."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        reason = getattr(error, "strerror", None) or "it is empty"
        raise UserError(f"the gallery {path} cannot be read: {reason}") from None
    content = np.frombuffer(mapped, dtype=np.uint8)
    if content[: len(MAGIC)].tobytes() != MAGIC:
        raise UserError(f"{path} is not a gallery; name a file that Gallery.save has written")
    records, start = [], 0
    while start < len(content):
        header = content[start : start + UNIT].tobytes()
        if not header.strip(b"\0"):
            break
        record, start = _read_record(content, start, header, path)
        records.append(record)
    mapped.madvise(mmap.MADV_DONTNEED)  # what was read for its checksum need not stay in memory
    return records, start


def _read_record(content: np.ndarray, start: int, header: bytes, path: Path) -> tuple[Record, int]:
    damaged = UserError(f"the gallery {path} is damaged at byte {start}; restore it from a copy")
    if len(header) < UNIT:
        raise damaged
    magic, kind, length, next_row, checksum, own = _HEADER.unpack(header[: _HEADER.size])
    if magic != MAGIC or own != zlib.crc32(header[: _HEADER.size - 4]):
        raise damaged
    end = start + UNIT + length
    body = content[start + UNIT : end]
    if len(body) < length or zlib.crc32(body.data) != checksum:
        raise damaged
    return _decode(kind.decode().strip(), next_row, body), end


def _header(record: Record, parts: list[memoryview]) -> bytes:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    kind = record.kind.ljust(4).encode()
    fields = (MAGIC, kind, sum(map(len, parts)), record.next_row, checksum)
    front = _HEADER.pack(*fields, 0)[:-4]
    return (front + struct.pack("<I", zlib.crc32(front))).ljust(UNIT, b"\0")


def _encode(record: Record) -> Iterator[memoryview]:
    """The layout of the arrays and the small values as JSON, then the arrays, each padded."""
    arrays = {name: np.ascontiguousarray(array) for name, array in record.arrays.items()}
    layout = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    front = json.dumps({"about": record.about, "arrays": layout}).encode()
    yield _padded(struct.pack("<Q", len(front)) + front)
    for array in arrays.values():
        content = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        yield content
        yield memoryview(b"\0" * (-len(content) % UNIT))


def _padded(content: bytes) -> memoryview:
    return memoryview(content.ljust(-(-len(content) // UNIT) * UNIT, b"\0"))


def _decode(kind: str, next_row: int, body: np.ndarray) -> Record:
    (size,) = struct.unpack("<Q", body[:8].tobytes())
    front = json.loads(body[8 : 8 + size].tobytes())
    start = -(-(8 + size) // UNIT) * UNIT
    arrays = {}
    for name, dtype, shape in front["arrays"]:
        length = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        arrays[name] = body[start : start + length].view(dtype).reshape(shape)
        start += -(-length // UNIT) * UNIT
    return Record(kind, next_row, front["about"], arrays)
