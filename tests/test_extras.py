"""Extras of pyproject.toml: what training does without, and what a command says that needs them."""

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, SMALL_MODEL
from matrix import requirements_of, tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HIDDEN = (
    *("matplotlib", "sklearn"),
    *("faiss", "pymilvus", "milvus_lite", "pyarrow"),
    *("onnx", "onnxscript", "onnxruntime"),
)
"""None in `sys.modules` lets an import fail as if the library were not installed."""


def run_without_extras(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))\n"
    command = [sys.executable, "-c", hide + program, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def test_training_and_testing_do_without_the_extras(tmp_path: Path, mini_settings: list[str]) -> None:
    program = """
import train_net, test_net
train_net.main(sys.argv[2:] + ["OUTPUT_DIR", sys.argv[1]])
test_net.main(["TEST.WEIGHT", sys.argv[1] + "/last.pth"])
"""
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0"]
    words = [str(tmp_path / "run"), "--config_file", str(SMALL_MODEL), *mini_settings, *short]
    done = run_without_extras(program, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_an_export_says_which_extra_it_needs(tmp_path: Path) -> None:
    program = "from tools.export import main\nmain(sys.argv[1:])"
    done = run_without_extras(program, "last.pth", str(tmp_path / "model.onnx"))
    assert 'ONNX files need onnx, which is not installed: pip install -e ".[export]"' in done.stderr


def test_the_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"report", "search", "export", "test", "dev"}
    # make .venv installs dev, and has to have all
    assert "demo-sdtps[report,search,export,test]" in extras["dev"]
    core = " ".join(PROJECT["dependencies"])
    assert "PyYAML" in core
    assert "matplotlib" not in core
    assert "scikit-learn" not in core
    assert not [name for name in ("faiss", "milvus", "pyarrow") if name in core]
    tested = " ".join(requirements_of(PROJECT))
    assert all(
        name in tested
        for name in ("torch", "matplotlib", "scikit-learn", "faiss-cpu", "pymilvus", "pytest", "setuptools")
    )
    assert "demo-sdtps" not in tested, "the matrix installs requirements, not the project"
