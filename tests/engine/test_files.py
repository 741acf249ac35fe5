import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch

from engine.files import (
    check_destination,
    make_folder,
    save_arrays,
    save_json,
    save_text,
    take_lock,
    write_atomically,
)
from errors import UserError


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


class Failing:
    """A file whose second write fails, as torch and NumPy see it."""

    def __init__(self, file: IO[bytes], error: BaseException) -> None:
        self.file, self.error, self.writes = file, error, 0

    def write(self, content: bytes) -> int:
        self.writes += 1
        if self.writes > 1:
            raise self.error
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def torch_save(file: IO[bytes], error: BaseException) -> None:
    torch.save({"weights": torch.zeros(10_000)}, Failing(file, error))


def numpy_save(file: IO[bytes], error: BaseException) -> None:
    np.savez(Failing(file, error), weights=np.zeros(10_000))


SAVES = [torch_save, numpy_save]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_save_stays_an_interrupt(
    save: Callable[[IO[bytes], BaseException], None], error: type[BaseException], tmp_path: Path
) -> None:
    (tmp_path / "a.pth").write_text("old")
    with pytest.raises(error):
        write_atomically(tmp_path / "a.pth", lambda file: save(file, error()))
    assert (tmp_path / "a.pth").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.pth"]


@pytest.mark.parametrize("save", SAVES)
def test_an_error_of_the_disk_is_named_wherever_it_is_hidden(
    save: Callable[[IO[bytes], BaseException], None], tmp_path: Path
) -> None:
    full = OSError(errno.EDQUOT, "Disk quota exceeded")
    with pytest.raises(UserError, match=r"a\.pth cannot be written: Disk quota exceeded; its earlier"):
        write_atomically(tmp_path / "a.pth", lambda file: save(file, full))
    assert os.listdir(tmp_path) == []


def test_what_was_handled_before_a_save_is_not_its_failure(tmp_path: Path) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(UserError, match="Disk quota"):
            write_atomically(
                tmp_path / "a", lambda file: torch_save(file, OSError(errno.EDQUOT, "Disk quota exceeded"))
            )


def test_another_error_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def fail(_: IO[bytes]) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        write_atomically(tmp_path / "a", fail)
    assert os.listdir(tmp_path) == []


def refused_places(folder: Path) -> dict[Path, str]:
    """Where nothing may be written, and why."""
    (folder / "file").write_text("precious")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(folder / "file")
    (folder / "dangling").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(folder / "socket"))  # an absolute path may be too long for a socket
    return {
        folder / "link": "it is a symbolic link, which is left alone",
        folder / "dangling": "it is a symbolic link, which is left alone",
        folder / "empty": "it is a folder; name a file in it",
        folder / "fifo": "it is not a regular file",
        folder / "socket": "it is not a regular file",
        Path("/dev/null"): "it is not a regular file",
        folder / "file" / "below.json": "Not a directory",
        folder / ("x" * 300): "File name too long",
        folder / "a\0b": "null",
        Path(): "it is a folder",
    }


def test_links_devices_and_impossible_places_are_refused_before_and_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = refused_places(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for path, reason in places.items():
        for write in (
            lambda path: check_destination(path, replaces=path.suffix),
            lambda path: save_text(path, "new"),
        ):
            with pytest.raises(UserError) as caught:
                write(path)
            assert "cannot be written: " in str(caught.value)
            assert reason in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "precious"
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_refuses_new_files_is_found_out_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, whom no permission stops: the system's answer is made up."""

    def fail(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UserError, match=r"a\.json cannot be written: Permission denied"):
        check_destination(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"a\.json cannot be written: Permission denied"):
        save_json(tmp_path / "a.json", {})
    with pytest.raises(UserError, match=r"there is no folder .*/nowhere"):
        check_destination(tmp_path / "nowhere" / "a.json")


def test_a_destination_may_replace_its_own_kind_alone(tmp_path: Path) -> None:
    for name in ("best.pth", "a.json", "b.JSON", "c.npz"):
        (tmp_path / name).write_text("precious")
    for name in ("new.txt", "a.json", "b.JSON"):
        check_destination(tmp_path / name, replaces=".json")
    for name in ("best.pth", "c.npz"):
        with pytest.raises(UserError, match=rf"{name} exists and is not a \.json file; name another"):
            check_destination(tmp_path / name, replaces=".json")
        with pytest.raises(UserError, match=r"is not a \.json file"):
            save_json(tmp_path / name, {})
    with pytest.raises(UserError, match=r"is not a \.npz file"):
        save_arrays(tmp_path / "best.pth", {})
    check_destination(tmp_path / "new" / "folder" / "a.json", makes_folder=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"there is no folder .*/dangling"):
        check_destination(tmp_path / "dangling" / "a.json", makes_folder=True)
    (tmp_path / "dangling").unlink()
    with pytest.raises(UserError, match=r"a\.json exists; name another output file or remove it"):
        check_destination(tmp_path / "a.json")
    assert {path.read_text() for path in tmp_path.iterdir()} == {"precious"}
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "new" / "folder")
    make_folder(tmp_path / "new" / "folder")
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"the folder .*file.* cannot be made"):
            make_folder(path)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_lock_leaves_the_file_as_it_is_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("precious")
    with take_lock(tmp_path / "lock") as held:  # type: ignore[union-attr]
        assert held is not None
        assert take_lock(tmp_path / "lock") is None
    with take_lock(tmp_path / "lock"):  # type: ignore[union-attr]
        pass
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with pytest.raises(UserError, match="symbolic link"):
        take_lock(tmp_path / "link")
    assert (tmp_path / "lock").read_text() == "precious"
