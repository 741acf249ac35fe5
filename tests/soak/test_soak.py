"""Killed and resumed runs end as undisturbed ones, and the soak notices what it looks for."""

import importlib
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from killed import MOMENTS, _end_at_call
from soaking import (
    ONE_PROCESS,
    REPORTS,
    TWO_PROCESSES,
    _without_seconds,
    check_files,
    compare,
    put_foreign_files,
    soak,
    soak_reports,
)

logger = logging.getLogger(__name__)


def test_a_run_killed_twice_ends_with_the_same_weights(tmp_path: Path) -> None:
    """The short version: one kill at a random moment, one inside the write of a checkpoint."""
    assert soak(tmp_path, kills=2, epochs=3, seed=1) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """`make soak`, or with fewer kills `make soak SOAK="--kills 4"`."""
    kills = request.config.getoption("--kills")
    reports, two = kills * 3 // 20, kills * 7 // 20
    one = kills - two - reports
    compared = soak(tmp_path, kills=one, epochs=12, seed=0)
    logger.info("one process: %d kills, %d entries compared, all equal bit for bit", one, compared)
    if two:
        compared = soak(tmp_path, kills=two, epochs=12, seed=0, processes=2)
        logger.info("two processes: %d kills, %d entries compared, all equal bit for bit", two, compared)
    if reports:
        compared = soak_reports(tmp_path, kills=reports, epochs=12, seed=0)
        logger.info("reports: %d kills, %d files of the earlier report whole", reports, compared)


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
    with pytest.raises(AssertionError, match=f"1 of 3 entries differ after 5 kills: {name}"):
        compare(expected, {**expected, **changed}, kills=5)


def test_times_are_not_compared() -> None:
    found = _without_seconds([{"seconds": 3.0, "mAP": 1.0, "deep": {"seconds": 1.0}}])
    assert found == [{"mAP": 1.0, "deep": {}}]


@pytest.mark.parametrize("name", ["notes.txt", "report_notes/page.txt", ".x.tmp", "old_epoch.pth"])
def test_lost_files_of_somebody_else_are_an_error(tmp_path: Path, name: str) -> None:
    put_foreign_files(tmp_path)
    check_files(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(AssertionError, match=f"files of somebody else were removed or changed in .*: {name}"):
        check_files(tmp_path)


def test_half_written_files_are_an_error(tmp_path: Path) -> None:
    put_foreign_files(tmp_path)
    (tmp_path / ".last.pth.123.tmp").touch()
    with pytest.raises(
        AssertionError, match=r"half-written files are left over in .*: \.last\.pth\.123\.tmp"
    ):
        check_files(tmp_path)
