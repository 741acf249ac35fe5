"""A run of the tests ends, and fails, when a test crashes its process or waits for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TIME_LIMIT = 60
CRASH = "os.kill(os.getpid(), signal.SIGILL)"
HEAD = "import os, signal, subprocess, time\n"
PASSES = "def test_passes(): pass\n"


def run_tests(config: pytest.Config, folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    """Run pytest on made-up test files with the options that pyproject.toml sets for all runs.

    Returns:
        the status and what was printed.
    """
    lines = [f"{name} = {config.getini(name)}" for name in ("timeout_method", "faulthandler_exit_on_timeout")]
    markers = "markers =\n    browser\n    slow\n    soak"
    (folder / "pytest.ini").write_text("\n".join(["[pytest]", markers, *lines]))
    tests = Path(__file__).parent
    hooks = "from dead_workers import pytest_sessionfinish, pytest_testnodedown\n"
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(tests)!r})\n{hooks}")
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(HEAD + content)
    command = [sys.executable, "-m", "pytest", *config.getini("addopts"), *options]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=folder, env=outside, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_ends_and_fails_when_a_worker_dies(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    crash = f"def test_crash(): {CRASH}\n{PASSES}"  # the test after it is lost with its worker
    files = {"crash": crash, **{f"well_{place}": PASSES for place in range(3)}}
    status, output = run_tests(pytestconfig, tmp_path, files)
    assert status == 1, output
    assert "crashed while running 'test_crash.py::test_crash'" in output


def test_a_run_fails_when_a_worker_dies_while_it_imports_the_tests(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    files = {"crash": f"if os.environ.get('PYTEST_XDIST_WORKER') == 'gw0': {CRASH}\n{PASSES}"}
    status, output = run_tests(pytestconfig, tmp_path, files)
    assert status == 1, output
    assert "node down" in output


def test_a_test_that_waits_for_ever_fails(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    waits = f"def test_waits(): subprocess.run(['sleep', '600'])\n{PASSES}"
    status, output = run_tests(pytestconfig, tmp_path, {"waits": waits}, "--timeout=1")
    assert status == 1, output
    assert "FAILED test_waits.py::test_waits" in output
    assert "1 failed, 1 passed" in output


def test_a_test_that_is_stuck_outside_python_ends_the_run(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    stuck = "def test_is_stuck(): sum(range(10**13))\n"  # no signal is handled before the sum is known
    limits = ("--timeout=1", "-o", "faulthandler_timeout=2")
    status, output = run_tests(pytestconfig, tmp_path, {"stuck": stuck}, *limits)
    assert status == 1, output
    assert "crashed while running 'test_stuck.py::test_is_stuck'" in output


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    first, last = float(pytestconfig.getini("timeout")), float(pytestconfig.getini("faulthandler_timeout"))
    assert 0 < first < last
