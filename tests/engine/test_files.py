import errno
import json
from pathlib import Path
from typing import IO

import pytest

from engine.files import save_json, write_atomically
from structures import UserError


def test_a_failing_write_keeps_the_old_file_and_leaves_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way(file: IO[bytes]) -> None:
        file.write(b"half of the new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"file cannot be written: No space left on device"):
        write_atomically(path, fail_half_way)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_content_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    seen = []

    def write(file: IO[bytes]) -> None:
        file.write(b"new")
        file.flush()
        seen.append(path.read_text())

    write_atomically(path, write)
    assert (seen, path.read_text()) == (["old"], "new")


def test_json(tmp_path: Path) -> None:
    save_json(tmp_path / "a.json", {"mAP": 1.5})
    assert json.loads((tmp_path / "a.json").read_text()) == {"mAP": 1.5}
