"""modeling/seps as a package of its own: torch is all that it needs, and pip installs it as `seps_sdtps`."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, run_away_from_the_project

FOLDER = ROOT / "modeling" / "seps"
PROGRAM = """
import torch, seps_sdtps
select = seps_sdtps.MultiModalSDTPS(16, 20)
results = select([torch.randn(2, 20, 16)] * 3, [torch.randn(2, 16)] * 3)
assert [result.tokens.shape for result in results] == [(2, 5, 16)] * 3
match = seps_sdtps.create_seps_model(16, 16, use_paper_version=True).eval()
assert match(torch.randn(2, 17, 16), torch.randn(3, 4, 16), [4, 2, 1]).shape == (2, 3)
"""


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_imports_only_torch_and_its_own_files(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, "from outside the folder"
            assert (FOLDER / f"{node.module}.py").is_file()
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            tops = {str(module).partition(".")[0] for module in modules}
            assert tops <= {"torch", *sys.stdlib_module_names}


@pytest.mark.parametrize("whole_project", [False, True], ids=["alone", "with the project"])
def test_pip_installs_it(whole_project: bool, tmp_path: Path) -> None:
    """In a copy, since pip builds inside the folder that it installs."""
    source = tmp_path / "source"
    if whole_project:
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / "modeling", source / "modeling", ignore=ignored)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, source)
    else:
        shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    target = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in target.iterdir() if path.suffix != ".dist-info"] == ["seps_sdtps"]
    run_away_from_the_project(PROGRAM, target)
