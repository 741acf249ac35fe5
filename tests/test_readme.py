"""The code of the README and of docs/getting_started.md, run elsewhere with a briefly trained model."""

import re
import subprocess
import sys
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
    for name in (
        "rgb.jpg",
        "ni.jpg",
        "ti.jpg",
        *(f"{kind}/{n}.jpg" for kind in ("RGB", "NI", "TI") for n in "ab"),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.effect_noise((50, 100), 60).save(folder / name)
    return folder


def read_code(page: str) -> str:
    """The one Python block of a page."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return str(code)


def test_the_code_of_the_readme_runs(run: Path) -> None:
    """In a process and a folder of its own, where only torch.hub finds the checkout; at most 8 lines."""
    code = read_code("README.md")
    assert '"path/to/the/checkout"' in code
    assert len([line for line in code.splitlines() if line]) <= 8
    code = code.replace("path/to/the/checkout", str(ROOT))
    show = "print(tuple(features.shape), ranked.tolist())"
    # -I: isolated, so that the current folder is not on the path.
    command = [sys.executable, "-I", "-c", f"{code}{show}"]
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"(2, {2 * 3 * 64}) [0, 1]"
    assert Image.open(run / "kept.png").size == (3 * 64, 128)


def test_image_files_are_ranked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    names: dict[str, Any] = {}
    exec(compile(read_code("docs/getting_started.md"), "getting_started.md", "exec"), names)
    assert names["features"].shape == (2, 2 * 3 * 64)
    assert names["ranked"].tolist() == [0, 1]
    assert names["explained"].scores.rgb.shape == (16, 8)
