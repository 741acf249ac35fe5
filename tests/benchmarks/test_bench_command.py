import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import rows_ranking, scaling
from benchmarks.measure import ChildRun
from benchmarks.report import RATIO, Figure, Row, show_seconds, text_table
from benchmarks.sizes import FULL, QUICK
from structures import UserError

ROWS = [
    "ranking",
    "scene",
    "reranking",
    "million",
    "evaluation",
    "hdm",
    "optimizer",
    "training",
    "slimming",
    "data",
]


def in_process(prepare: Callable[[], Any], work: Callable[[Any], object]) -> ChildRun:
    """Stands for a process of its own, which takes seconds to start."""
    work(prepare())
    return ChildRun(seconds=0.5, growth=10**8, peak=10**9)


@pytest.fixture(autouse=True)
def no_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rows_ranking, "in_child", in_process)
    monkeypatch.setattr(scaling, "in_child", in_process)
    level = logging.getLogger("modeling").level
    yield
    logging.getLogger("modeling").setLevel(level)


def test_all_rows_in_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    command.main(["--tiny", "--output", str(path)])
    content = json.loads(path.read_text())
    assert [row["name"] for row in content["rows"]] == list(command.ROWS) == ROWS
    assert {"date", "commit", "machine", "versions"} <= content.keys()
    assert {"cpu", "cores", "threads"} <= content["machine"].keys()
    assert {"torch", "numpy", "timm", "python"} <= content["versions"].keys()
    rows = {row["name"]: Row.from_dict(row) for row in content["rows"]}
    assert all(row.same for row in rows.values())
    assert {name for name, row in rows.items() if row.difference is None} == {"slimming", "million"}
    assert {name for name, row in rows.items() if row.plain is None} == {"million"}

    targets = {
        (name, figure.name): figure.at_least or figure.at_most
        for name, row in rows.items()
        for figure in row.figures
        if figure.target()
    }
    assert targets == {
        ("evaluation", RATIO): 5.5,
        ("ranking", RATIO): 6,
        ("ranking", "memory"): 1.5,
        ("scene", RATIO): 5,
        ("reranking", RATIO): 5,
        ("hdm", RATIO): 5,
        ("optimizer", RATIO): 3,
        ("training", RATIO): 1.03,
        ("training", "share of ceiling"): 80,
        ("slimming", RATIO): 1.4,
        ("data", RATIO): 1.3,
        ("data", "with cache"): 2.5,
        ("million", "memory with features"): 8,
    }
    printed = capsys.readouterr().out
    assert all(row.title in printed for row in rows.values())

    command.main(["--markdown", "--output", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines[: len(ROWS) + 2]] == [9] * (len(ROWS) + 2)
    assert content["commit"] in lines[-1]


def test_only_some_rows(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    command.main(["--tiny", "--only", "scene", "hdm", "--output", str(path)])
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["scene", "hdm"]


def test_list_names_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ROWS


def test_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scaling.json"
    command.main(["--tiny", "--scaling", "--output", str(path)])
    points = json.loads(path.read_text())["scaling"]
    assert [point["curve"] for point in points] == ["ranking", "ranking", "re-ranking", "batch", "image"]
    assert points[1]["cells"] == ["ranking", "100 x 100", "500.00 ms", "5.00 ms", "1.00 GB"]
    command.main(["--markdown", "--output", str(path)])
    assert "| image | 128 x 64 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "hdm", "speed"], "no such rows: speed; choose from ranking, scene"),
        (["--quick", "--only", "million"], "--quick leaves out the row million"),
        (["--output", "absent/bench.json"], "there is no folder absent"),
        (
            ["--markdown", "--output", "absent.json"],
            "absent.json holds no figures .* run python -m benchmarks",
        ),
    ],
)
def test_bad_arguments(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        command.main(words)


def test_quick_has_the_same_sizes_but_for_the_largest() -> None:
    assert QUICK.million is None
    assert FULL.million == (1000, 1_000_000)
    assert (QUICK.ranking, QUICK.scene, QUICK.batch) == (FULL.ranking, FULL.scene, FULL.batch)
    assert (sum(FULL.reranking), FULL.evaluated, FULL.hdm_batch) == (5000, 200, 8)


def test_a_target_is_met_or_not() -> None:
    assert Figure(RATIO, 6.0, "x", at_least=6).met
    assert not Figure(RATIO, 5.9, "x", at_least=6).met
    assert Figure("memory", 1.5, "GB", at_most=1.5).met
    assert not Figure("memory", 1.6, "GB", at_most=1.5).met
    assert Figure("rate", 3.0, "GFLOP/s").met
    assert Figure("memory", 1.6, "GB", at_most=1.5).target() == "memory ≤ 1.5 GB"


def test_a_row_with_another_result_is_not_met() -> None:
    row = Row("x", "a row", 6.0, 1.0, (Figure(RATIO, 6.0, "x", at_least=6),), difference=1e-3, tolerance=1e-4)
    assert not row.met
    assert row.cells()[-2:] == ["NO", "6.00 x"]
    assert row.cells()[1:3] == ["6.00 s", "1.00 s"]
    assert Row.from_dict(json.loads(json.dumps(row.as_dict()))) == row


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.50 s"), (0.25, "250.00 ms"), (2e-6, "2.00 µs")])
def test_times_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_columns_are_as_wide_as_they_need() -> None:
    assert text_table(["a", "b"], [["long", "x"], ["c", "d"]]) == "a     b\nlong  x\nc     d"
