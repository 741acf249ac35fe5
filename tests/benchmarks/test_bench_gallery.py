import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gallery
from benchmarks.bench import ChildRun
from errors import UserError


def in_process(prepare: Callable[[], Any], work: Callable[[Any], object]) -> ChildRun:
    """Stands for a process of its own, which takes seconds to start."""
    work(prepare())
    return ChildRun(seconds=0.5, cpu_seconds=0.4, growth=10**8, peak=10**9)


def test_all_engines_in_table_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "in_child", in_process)
    monkeypatch.setattr(gallery, "NUM_QUERIES", 20)
    path = tmp_path / "bench.json"
    gallery.main(["--size", "3000", "--dim", "16", "--recall", "0.8", "--output", str(path)])
    rows = {row["engine"]: row for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == list(gallery.ENGINES)
    assert rows["exact"]["recall"] == rows["milvus"]["recall"] == 1
    assert rows["milvus"]["equal"]
    assert 0.6 < rows["inverted"]["recall"] <= 1
    assert rows["quantised"]["searched"] < rows["quantised"]["cells"]
    lines = capsys.readouterr().out.partition("| engine |")[2].splitlines()
    assert [line.count("|") for line in lines[1:6]] == [10] * 5


def test_the_drawn_gallery_is_neither_trivial_nor_random(tmp_path: Path) -> None:
    gallery.draw(tmp_path, 5000, 128)
    features, queries = np.load(tmp_path / "gallery.npy"), np.load(tmp_path / "queries.npy")
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    ids = gallery.ids_of(0, 5000, 500)
    nearest = ids[np.argsort(-(features[:200] @ features.T), axis=1)[:, 1:11]]
    share = (nearest == ids[:200, None]).mean() / 0.9  # of 9 others
    assert 0.3 < share < 0.98
    assert len(queries) == gallery.NUM_QUERIES


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(UserError, match="no engine is called 'hnsw'; give --engines of exact, inverted"):
        gallery.main(["--engines", "hnsw"])
    with pytest.raises(UserError, match="--size 5 is too small"):
        gallery.main(["--size", "5"])
