"""Stop a run in an orderly way when the system or the user asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of an allocation, and the early warning that SLURM can be told to send."""


class StopRequested(Exception):  # noqa: N818 - not an error
    """Raised between two steps once a signal has asked to stop."""


class RunStopped(Exception):  # noqa: N818 - not an error
    """A signal has ended the run in an orderly way; everything is saved.

    Attributes:
        status: exit status of the program, 128 + number of the signal.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def leave_children_alone() -> None:
    """Take back the signal by which torch turns the death of a loader process into an error at any place.

    A stop signal often reaches the loader's processes too. Their end must not interrupt the step that is
    being finished; torch notices it all the same when the next batch is asked for.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class StopSwitch:
    """Remembers that a signal has asked to stop; the run looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @contextmanager
    def excuse_loader(self) -> Iterator[None]:
        """If a stop signal has also ended the processes of a loader, that is a stop and not an error."""
        try:
            yield
        except RuntimeError:
            if self.signal is None:
                raise
            raise StopRequested from None

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Listen to `SIGNALS`; a second one of them ends the program at once."""

        def remember(number: int, _: FrameType | None) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = signal.Signals(number)

        before = {number: signal.signal(number, remember) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
