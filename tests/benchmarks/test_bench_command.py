import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import rows_ranking
from benchmarks.bench import FULL, QUICK, ChildRun
from errors import UserError


def in_process(prepare: Callable[[], Any], work: Callable[[Any], object]) -> ChildRun:
    """Stands for a process of its own, which takes seconds to start."""
    work(prepare())
    return ChildRun(seconds=0.5, cpu_seconds=0.4, growth=10**8, peak=10**9)


@pytest.fixture(autouse=True)
def no_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rows_ranking, "in_child", in_process)
    level = logging.getLogger("modeling").level
    yield
    logging.getLogger("modeling").setLevel(level)


def test_all_rows_in_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    command.main(["--tiny", "--output", str(path)])
    content = json.loads(path.read_text())
    rows = content["rows"]
    assert list(rows) == [name for name in command.ROWS if not name.startswith("onnx_")]
    assert {"date", "commit", "cpu", "cores", "threads", "torch", "numpy", "timm"} <= content[
        "machine"
    ].keys()
    assert {name for name, row in rows.items() if row["plain"] is None} == {"million"}
    by_design = {"slimming", "slimmed_latency", "slimmed_throughput", "step_memory", "million", "tuning"}
    assert {name for name, row in rows.items() if row["difference"] is None} == by_design
    for name, row in rows.items():
        assert name in by_design or row["difference"] <= row["tolerance"], name

    lines = capsys.readouterr().out.partition("| row |")[2].splitlines()  # after the log
    assert [line.count("|") for line in lines[1 : len(rows) + 2]] == [9] * (len(rows) + 1)
    assert all(row["title"] in line for row, line in zip(rows.values(), lines[2:], strict=False))
    assert content["machine"]["commit"] in lines[-1]


def test_only_some_rows(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    command.main(["--tiny", "--only", "reranking", "ranking_large", "--output", str(path)])
    assert list(json.loads(path.read_text())["rows"]) == ["ranking_large", "reranking"]


def test_list_names_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(command.ROWS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "data", "speed"], "no such rows: speed; choose from ranking_rgbnt201, ranking_msvr310"),
        (["--quick", "--only", "million"], "no such rows: million; choose from"),
        (["--output", "absent/bench.json"], "there is no folder absent"),
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
    assert (QUICK.share, QUICK.evaluated, QUICK.batch) == (1, 836, FULL.batch)
