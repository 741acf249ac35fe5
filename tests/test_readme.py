"""The code of the README, run in another folder with a model that was trained for a moment."""

import re
from pathlib import Path
from typing import Any

import pytest

import train_net as train_entry
from conftest import ROOT, SMALL_MODEL


def test_the_code_runs(tmp_path: Path, mini_settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    run = ["OUTPUT_DIR", str(tmp_path)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick, *run])
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert '"path/to/the/checkout"' in code
    assert "256, 128" in code
    code = code.replace("path/to/the/checkout", str(ROOT)).replace("256, 128", "128, 64")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["features"].shape == (2, 2 * 3 * 64)
    assert names["kept"].shape == (2, 64)
