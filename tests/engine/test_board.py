import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from engine.board import open_board


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_ends_the_curves_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = open_board(tmp_path, 1)
    assert board is not None

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", fail)
    file_writer: Any = board.file_writer
    writer = file_writer.event_writer._async_writer._worker
    board.add_scalar("train/loss", 1.0, 1)
    writer.join(timeout=30)  # it fails in a thread of its own
    for step in range(2, 5):
        board.add_scalar("train/loss", 1.0, step)
    board.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device); training goes on without TensorBoard" in caplog.text


def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert open_board(tmp_path / "file" / "tensorboard", 1) is None
    assert "training goes on without TensorBoard" in caplog.text
