"""The code of the README and of docs/getting_started.md, run elsewhere with a briefly trained model."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import train_net as train_entry
from conftest import ROOT, SMALL_MODEL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """A run folder of one epoch, with three images beside its checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick, "OUTPUT_DIR", str(folder)])
    for name in ("rgb", "ni", "ti"):
        Image.new("RGB", (50, 100), "grey").save(folder / f"{name}.jpg")
    return folder


def read_code(page: str) -> str:
    """The one Python block of a page."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return str(code)


def test_the_code_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = read_code("README.md")
    assert '"path/to/the/checkout"' in code
    assert "256, 128" in code
    code = code.replace("path/to/the/checkout", str(ROOT)).replace("256, 128", "128, 64")
    monkeypatch.chdir(run)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["features"].shape == (2, 2 * 3 * 64)
    assert names["kept"].shape == (2, 64)


def test_image_files_are_encoded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    names: dict[str, Any] = {}
    exec(compile(read_code("docs/getting_started.md"), "getting_started.md", "exec"), names)
    assert names["features"].shape == (1, 2 * 3 * 64)
    assert names["features"].norm().item() == pytest.approx(1)
    assert names["batch"].images.rgb.shape == (1, 3, 128, 64)
