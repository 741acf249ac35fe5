"""Signals: finish the step, save, and stop."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Ctrl-C, the end of a job, SLURM's early warning, a closed terminal."""
ECHO_SECONDS = 2.0
"""A signal this soon after the first one belongs to it: torchrun passes on what the whole group received."""
PR_SET_PDEATHSIG = 1
"""Parameter of Linux's `prctl`, from its sys/prctl.h."""


class StopRequested(Exception):  # noqa: N818 - not an error
    """Raised between two steps once a signal has asked to stop."""


class RunStopped(Exception):  # noqa: N818 - not an error
    """A signal has stopped the run, and everything is saved; `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def leave_children_alone() -> None:
    """Undo torch's handler that turns the death of a loader process into an error at once.

    A stop signal often reaches the loader's processes too. Their end must not interrupt the step that is
    being finished; torch still notices it when the next batch is requested.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def stop_with_launcher() -> None:
    """On Linux: have the system send SIGTERM to this process of torchrun when torchrun dies.

    A signal that torchrun does not handle, such as SIGUSR1, ends torchrun without a word to its processes.
    """
    if sys.platform == "linux" and _is_below_torchrun():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_below_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


class StopSwitch:
    """Remembers that a signal has asked to stop; the run looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._since = 0.0

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
        """Listen to `SIGNALS`; a second one, after `ECHO_SECONDS`, ends the program at once.

        A signal that the program was started to ignore, such as SIGHUP by nohup, stays ignored.
        """

        def remember(number: int, _: FrameType | None) -> None:
            if self.signal is None:
                self.signal, self._since = signal.Signals(number), time.monotonic()
            elif time.monotonic() - self._since > ECHO_SECONDS:
                raise KeyboardInterrupt

        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, remember) for number in heard}
        try:
            yield
        finally:
            # A dying torchrun sends one signal for each of its threads, and a living one repeats what the
            # group received: a late one must not end a process that is about to report what it saved.
            is_ending = self.signal is not None and _is_below_torchrun()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if is_ending else handler)
