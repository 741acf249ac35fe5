"""The soak notices what it looks for; tests/engine/test_resume.py runs a short one."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from structures import UserError
from tools.killed import MOMENTS, _end_at_call
from tools.soak import (
    ONE_PROCESS,
    REPORTS,
    TWO_PROCESSES,
    _without_seconds,
    check_files,
    compare,
    put_foreign_files,
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_moment_is_the_call_of_something_that_exists(moment: str) -> None:
    module, kind, name = MOMENTS[moment]
    owner = importlib.import_module(module)
    assert callable(getattr(getattr(owner, kind) if kind else owner, name))


def test_the_plans_have_twenty_kills_and_every_moment() -> None:
    plans = [*ONE_PROCESS, *TWO_PROCESSES, *REPORTS]
    assert len(plans) == 20
    assert {kill.moment for kill in plans} == {"", *MOMENTS}
    assert {kill.rank for kill in TWO_PROCESSES} == {0, 1}


def test_a_moment_comes_with_its_call() -> None:
    class Owner:
        def work(self, number: int) -> int:
            return number

    _end_at_call(Owner, "work", itertools.count(1), 3, lambda *_: "killed")
    assert [Owner().work(number) for number in (5, 6, 7, 8)] == [5, 6, "killed", 8]


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": torch.tensor([1.0, 2.0000002])},
        {"summary": {"untrained": {"mAP": 3.0}}},
        {"tensorboard: loss": [(1, 0.5), (2, 0.25), (2, 0.25)]},
        {"more": 1},
    ],
)
def test_any_difference_is_an_error(changed: dict[str, Any]) -> None:
    expected: dict[str, Any] = {
        "weight": torch.tensor([1.0, 2.0]),
        "summary": {"untrained": {"mAP": 2.0}},
        "tensorboard: loss": [(1, 0.5), (2, 0.25)],
    }
    assert compare(expected, dict(expected), kills=5) == 3
    (name,) = changed
    with pytest.raises(UserError, match=f"1 of 3 entries differ after 5 kills: {name}"):
        compare(expected, {**expected, **changed}, kills=5)


def test_times_are_not_compared() -> None:
    found = _without_seconds([{"seconds": 3.0, "mAP": 1.0, "deep": {"seconds": 1.0}}])
    assert found == [{"mAP": 1.0, "deep": {}}]


@pytest.mark.parametrize("name", ["notes.txt", "report_notes/page.txt", ".x.tmp", "old_epoch.pth"])
def test_lost_files_of_somebody_else_are_an_error(tmp_path: Path, name: str) -> None:
    put_foreign_files(tmp_path)
    check_files(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"files of somebody else were removed or changed in .*: {name}"):
        check_files(tmp_path)


def test_half_written_files_are_an_error(tmp_path: Path) -> None:
    put_foreign_files(tmp_path)
    (tmp_path / ".last.pth.123.tmp").touch()
    with pytest.raises(UserError, match=r"half-written files are left over in .*: \.last\.pth\.123\.tmp"):
        check_files(tmp_path)
