"""`make test-matrix`: run pytest on several versions of Python and of the dependencies.

Each environment is made below `.matrix/`, used once and removed again, since it takes about 5 GB. The newest
versions of everything are tested on each Python that is found. The lower bounds of pyproject.toml, exactly,
are tested on the oldest of them. Variables of the environment:

    PYTHONS   the interpreters, names or paths with spaces between; default: 3.10 to 3.13 from PATH and pyenv
    ONLY      the environments to run, such as "lowest py3.12"; default: all
    KEEP      1 keeps the environments
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it where Python does not

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".matrix"
MINORS = (10, 11, 12, 13)
LOWEST = "lowest"
SHOWN = ("torch", "timm", "numpy")
TIME_LIMIT = 3 * 3600  # of one environment, in seconds

_ASK_VERSION = "import sys; print('{}.{}'.format(*sys.version_info))"
_ASK_PACKAGES = (
    "import json, sys; from importlib.metadata import version; "
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


class Environment(NamedTuple):
    """What one run of the tests needs.

    Attributes:
        name: of its folder.
        python: the interpreter that makes it.
        requirements: what pip installs.
    """

    name: str
    python: str
    requirements: list[str]


def requirements_of(project: Mapping[str, Any]) -> list[str]:
    """All that the tests need, as pyproject.toml's table `project` states it."""
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["report"], *extras["search"], *extras["test"]]


def lower_bound(requirement: str) -> str:
    """`torch>=2.5` → `torch==2.5`; a requirement without a lower bound stays as it is."""
    return re.sub(r">=([^,;]+)(,[^;]*)?", r"==\1", requirement)


def find_interpreters() -> Iterator[str]:
    """Python 3.10 to 3.13, on the PATH or from pyenv."""
    for minor in MINORS:
        name = f"python3.{minor}"
        in_pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
        # A shim of pyenv is on the PATH for every version and may refuse to start: ask it.
        for python in [name, *map(str, reversed(in_pyenv))]:
            if python_version(python) is not None:
                yield python
                break


def python_version(python: str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter, or None if it does not start."""
    try:
        command = [python, "-c", _ASK_VERSION]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = found.stdout.split(".")
    return int(major), int(minor)


def plan(pythons: Sequence[str], requirements: Sequence[str]) -> list[Environment]:
    """The newest versions on each interpreter, then the lower bounds on the oldest."""
    versions = {python: version for python in pythons if (version := python_version(python)) is not None}
    if not versions:
        sys.exit("no interpreter starts: set PYTHONS to the paths of some, with spaces between")
    by_age = sorted(versions, key=lambda python: versions[python])
    newest = [
        Environment("py{}.{}".format(*versions[python]), python, list(requirements)) for python in by_age
    ]
    return [*newest, Environment(LOWEST, by_age[0], [lower_bound(text) for text in requirements])]


def count_tests(report: Path) -> tuple[int, int]:
    """How many tests passed, and how many failed, by pytest's JUnit report."""
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return int(suite.attrib["tests"]) - failed - int(suite.attrib["skipped"]), failed


def run(environment: Environment) -> tuple[list[str], bool]:
    """Make the environment, run pytest in it and remove it.

    Returns:
        its row in the table, and whether every test passed.
    """
    folder, report = FOLDER / environment.name, FOLDER / f"{environment.name}.xml"
    report.unlink(missing_ok=True)
    python = str(folder / "bin" / "python")
    # The tests look for nothing in the environment, so that the project itself need not be installed.
    steps = {
        "venv": [environment.python, "-m", "venv", "--clear", str(folder)],
        "pip": [python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"],
        "install": [python, "-m", "pip", "install", "--quiet", *environment.requirements],
        "pytest": [python, "-m", "pytest", f"--junitxml={report}"],
    }
    versions = dict.fromkeys(SHOWN, "–")
    outcome = ["–", "–"]
    status = 1
    try:
        for step, command in steps.items():
            _say(f"\n{environment.name}: {step}")
            status = subprocess.run(command, cwd=ROOT, timeout=TIME_LIMIT).returncode
            if status != 0 and step != "pytest":
                outcome = ["–", f"{step} failed"]
                break
        else:
            asked = subprocess.run([python, "-c", _ASK_PACKAGES, *SHOWN], capture_output=True, check=True)
            versions = json.loads(asked.stdout)
            outcome = [*map(str, count_tests(report))] if report.exists() else ["–", "crashed"]
    except subprocess.TimeoutExpired:
        outcome = ["–", "took too long"]
    finally:
        if os.environ.get("KEEP") != "1":
            shutil.rmtree(folder, ignore_errors=True)
    version = python_version(environment.python) or ("?", "?")
    row = ["{}.{}".format(*version), *(versions[name] for name in SHOWN), *outcome]
    return row, status == 0 and outcome[1] == "0"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 the output of a command


def main() -> None:
    """Run every environment, print the table; status 1 if a test failed anywhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = os.environ.get("PYTHONS", "").split() or list(find_interpreters())
    environments = plan(pythons, requirements_of(project))
    only = os.environ.get("ONLY", "").split() or [environment.name for environment in environments]
    unknown = set(only) - {environment.name for environment in environments}
    if unknown:
        names = ", ".join(environment.name for environment in environments)
        sys.exit(f"ONLY names {', '.join(sorted(unknown))}, which is not among {names}")

    FOLDER.mkdir(exist_ok=True)
    results = [run(environment) for environment in environments if environment.name in only]
    _say("\n| Python | torch | timm | NumPy | passed | failed |\n|---|---|---|---|---|---|")
    for row, _ in results:
        _say(f"| {' | '.join(row)} |")
    sys.exit(any(not passed for _, passed in results))


if __name__ == "__main__":
    main()
