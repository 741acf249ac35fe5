"""What `make test-matrix` installs; the runs themselves take hours."""

import sys
from pathlib import Path

import pytest

from matrix import LOWEST, count_tests, lower_bound, plan


@pytest.mark.parametrize(
    ("requirement", "exact"),
    [
        ("torch>=2.5", "torch==2.5"),
        ("fvcore>=0.1.5.post20221221", "fvcore==0.1.5.post20221221"),
        ("numpy>=1.26,<3", "numpy==1.26"),
        ("tomli>=2.0; python_version < '3.11'", "tomli==2.0; python_version < '3.11'"),
        ("ruff==0.17.5", "ruff==0.17.5"),
        ("types-PyYAML", "types-PyYAML"),
    ],
)
def test_lower_bound(requirement: str, exact: str) -> None:
    assert lower_bound(requirement) == exact


def test_the_oldest_python_gets_the_lower_bounds() -> None:
    this = "py{}.{}".format(*sys.version_info)
    newest, lowest = plan(["/nowhere/python3.9", sys.executable], ["torch>=2.5"])
    assert newest == (this, sys.executable, ["torch>=2.5"])
    assert lowest == (LOWEST, sys.executable, ["torch==2.5"])


def test_tests_are_counted_by_the_report_of_pytest(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    counts = 'tests="10" failures="2" errors="1" skipped="3"'
    report.write_text(f"<testsuites><testsuite {counts}/></testsuites>")
    assert count_tests(report) == (4, 3)
