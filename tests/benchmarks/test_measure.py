import pytest
import torch

from benchmarks.measure import Effort, Timing, by_turns, in_child, one_thread


def test_ways_take_turns_after_a_first_run() -> None:
    calls: list[str] = []

    def work(name: str) -> int:
        calls.append(name)
        return len(calls)

    ways = {"plain": lambda: work("plain"), "project": lambda: work("project")}
    timing = by_turns(ways, Effort(repeats=2, seconds=100))
    assert calls == ["plain", "project"] * 3
    assert timing.results == {"plain": 1, "project": 2}
    assert {way: len(times) for way, times in timing.seconds.items()} == {"plain": 2, "project": 2}
    calls.clear()
    by_turns(ways, Effort(repeats=1, seconds=100), calls=3)
    assert calls == ["plain", "project"] + ["plain"] * 3 + ["project"] * 3
    calls.clear()
    timing = by_turns(ways, Effort(repeats=2, seconds=100), warm_up=False)
    assert calls == ["plain", "project"] * 2
    assert timing.results == {"plain": 1, "project": 2}


@pytest.mark.parametrize(("least", "expected"), [(1, 1), (3, 3)])
def test_no_more_repeats_than_needed_when_time_is_over(least: int, expected: int) -> None:
    timing = by_turns({"way": lambda: None}, Effort(repeats=9, seconds=0, least=least))
    assert len(timing.seconds["way"]) == expected


def test_ratio_is_that_of_the_medians() -> None:
    timing: Timing[None] = Timing({"plain": [6.0, 9.0, 100.0], "project": [1.0, 3.0, 4.0]}, {})
    assert timing.median("plain") == 9
    assert timing.ratio("plain", "project") == 3


def test_one_thread_for_a_while() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


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


def fail(_: bytearray) -> None:
    raise ValueError("the work went wrong")


def test_a_child_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended early, with status 1"):
        in_child(bytearray, fail)
    assert "the work went wrong" in capfd.readouterr().err
