"""Hooks of pytest: a run in which a worker died fails, wherever the worker died.

pytest-xdist reports a worker that dies in a test as a failure of that test. One that dies before, while it
imports the tests, ends the run with "no tests ran", and with status 0 or 5 as the case may be.
"""

import pytest

_DEAD: list[str] = []


@pytest.hookimpl(optionalhook=True)  # a hook of pytest-xdist, unknown with -p no:xdist
def pytest_testnodedown(error: object | None) -> None:
    """Called when a worker has ended; `error` says why, if it was not asked to."""
    if error:
        _DEAD.append(str(error))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Called at the end of the run, before its status is returned."""
    if _DEAD and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
