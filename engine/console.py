"""The log on the console and in its file; neither of them may end a training run."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

logger = logging.getLogger(__name__)

CLOSED_PIPE = 141
"""Exit status of a command whose output nobody reads any more: 128 + SIGPIPE, as for other programs."""


class Console(logging.Handler):
    """Writes log lines above the progress bar instead of through it.

    Args:
        may_fail: the log goes to a file too, or does not matter. Then a console that cannot be written any
            more is given up with a warning. Otherwise it ends the command: a closed pipe without a word,
            anything else with a sentence.
    """

    def __init__(self, *, may_fail: bool) -> None:
        super().__init__()
        self.may_fail = may_fail

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, at once."""
        try:
            tqdm.write(self.format(record))
            sys.stdout.flush()
        except OSError as error:
            _discard_output()
            if self.may_fail:
                logger.warning("the console cannot be written (%s); the log goes on in its file", error)
                return
            if isinstance(error, BrokenPipeError):
                raise SystemExit(CLOSED_PIPE) from None
            with suppress(OSError):
                sys.stderr.write(f"the output cannot be written ({error})\n")
            raise SystemExit(2) from None


class LogFile(logging.FileHandler):
    """A log file that may become unwritable: the first time the console says so, and that is all."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Called by `emit` after an error."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._warned:
            self._warned = True
            message = "%s cannot be written (%s); the log goes on on the console"
            logger.warning(message, self.baseFilename, error)


def prepare_streams() -> None:
    """Show letters that a stream cannot encode by their codes; replace a stream that is closed already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed with >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Send the standard output nowhere from now on, with what its buffer holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
