from dataclasses import replace

import pytest

from benchmarks.bench import TINY, Row, compare, in_child, show_seconds, table_of


def test_ways_take_turns_after_a_first_run() -> None:
    calls: list[str] = []

    def work(name: str) -> int:
        calls.append(name)
        return len(calls)

    ways = {"plain": lambda: work("plain"), "project": lambda: work("project")}
    often = replace(TINY, repeats=2, seconds=100)
    row = compare("a row", ways, often, at_least=1, difference=lambda a, b: abs(a - b), tolerance=0.5)
    assert calls == ["plain", "project"] * 3
    assert row.repeats == 2
    assert row.difference == 1, "of the first runs"
    assert not row.met
    calls.clear()
    compare("a row", ways, often, at_least=1, warm_up=False)
    assert calls == ["plain", "project"] * 2


@pytest.mark.parametrize(("least", "expected"), [(1, 1), (3, 3)])
def test_no_more_repeats_than_needed_when_time_is_over(least: int, expected: int) -> None:
    ways = {"plain": lambda: None, "project": lambda: None}
    row = compare("a row", ways, replace(TINY, repeats=9, least=least), at_least=1)
    assert row.repeats == expected
    assert row.difference is None


def test_a_target_is_met_or_not() -> None:
    assert Row("x", 6.0, 1.0, at_least=6).met
    assert not Row("x", 5.9, 1.0, at_least=6).met
    assert Row("x", None, 1.0).met
    assert Row("x", 6.0, 1.0, 6, difference=1e-4, tolerance=1e-4).met
    assert not Row("x", 6.0, 1.0, 6, difference=1e-3, tolerance=1e-4).met


def test_the_table() -> None:
    row = Row("a row", 6.0, 0.5, 13, difference=1e-3, tolerance=1e-4, notes={"memory": "2 GB"})
    assert table_of([row]).splitlines()[-1] == (
        "| a row | 500.00 ms | 6.00 s | 12.00 x | ≥ 13 x | NO | 1e-03 (≤ 1e-04) | memory 2 GB |"
    )
    assert row.as_dict()["ratio"] == 12
    assert show_seconds(0.0025) == "2.50 ms"


MEGABYTE = 2**20


def hold_forty() -> bytearray:
    return bytearray(b"x" * 40 * MEGABYTE)


def take_hundred(_: bytearray) -> None:
    bytearray(b"x" * 50 * MEGABYTE)


def test_memory_of_a_child_grows_by_what_the_work_takes() -> None:
    """Fifty for the bytes, and fifty more for the array that is made of them; the inputs do not count."""
    run = in_child(hold_forty, take_hundred)
    assert 90 * MEGABYTE < run.growth < 130 * MEGABYTE
    assert run.peak > run.growth + 40 * MEGABYTE
    assert run.seconds > 0
    assert run.cpu_seconds > 0


def fail(_: bytearray) -> None:
    raise ValueError("the work went wrong")


def test_a_child_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended early, with status 1"):
        in_child(bytearray, fail)
    assert "the work went wrong" in capfd.readouterr().err
