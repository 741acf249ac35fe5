"""TensorBoard's writer, which must never end a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)


def open_board(folder: Path, purge_step: int) -> SummaryWriter | None:
    """A writer of TensorBoard's files; None, with a warning, where they cannot be written.

    TensorBoard hides earlier points from `purge_step` on.
    """
    try:
        # A long queue, since a full one makes the step wait for the disk.
        return _Board(str(folder), purge_step=purge_step, max_queue=1000)
    except OSError as error:
        _warn(folder, error)
        return None


class _Board(SummaryWriter):
    """A writer that gives up, with one warning, when it fails, for example because the disk is full."""

    _failed = False

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        self._attempt(super().add_scalar, *args, **kwargs)

    def add_image(self, *args: Any, **kwargs: Any) -> None:
        self._attempt(super().add_image, *args, **kwargs)

    def flush(self) -> None:
        self._attempt(super().flush)

    def close(self) -> None:
        self._attempt(super().close)

    def _attempt(self, write: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self._failed:
            return
        try:
            write(*args, **kwargs)
        except Exception as error:  # whatever it is: nobody needs a curve as much as the run
            self._failed = True
            _warn(Path(self.log_dir), error)


def _warn(folder: Path, error: Exception) -> None:
    logger.warning("%s cannot be written (%s); training goes on without TensorBoard", folder, error)
