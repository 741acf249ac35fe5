"""Who may import whom, and what no package may do."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = ("structures", "errors", "weight_file")
PACKAGES: dict[str, set[str]] = {
    "structures": set(),
    "errors": set(),
    "weight_file": set(),
    "config": {*SHARED},
    "datasets": {*SHARED},
    "modeling": {*SHARED},
    "solver": {*SHARED},
    "evaluation": {*SHARED},
    "engine": {*SHARED, "evaluation"},
    "reporting": {*SHARED, "evaluation"},
}
ENTRY_POINTS = {"train_net", "test_net", "trained", "hubconf", "inference", "tools", "studies", "benchmarks"}
"""What no package may import."""
FORBIDDEN_CALLS = {"print", "eval", "exec", "compile", "__import__"}
RUNS_CODE = {
    *(
        f"{module}.{name}"
        for module in ("pickle", "marshal", "shelve", "dill", "joblib")
        for name in ("load", "loads", "open", "Unpickler")
    ),
    "pandas.read_pickle",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
}
"""Calls that may run what a foreign file holds."""
PROGRAM = {
    path
    for path in (*ROOT.glob("*.py"), *ROOT.glob("[a-z]*/**/*.py"))
    if not {"tests", "build"} & set(path.relative_to(ROOT).parts)  # pip builds in modeling/seps/build
}


def files_of(package: str) -> list[Path]:
    files = sorted(path for path in PROGRAM if path.relative_to(ROOT).with_suffix("").parts[0] == package)
    assert files, f"no files in {package}"
    return files


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            # modeling/seps can be installed under another name; its own test looks at what it imports.
            assert path.parent.name == "seps", f"{path}: relative import"
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    for path in files_of(package):
        for module in imported_modules(path):
            top = module.partition(".")[0]
            if top in PACKAGES or top in ENTRY_POINTS:
                assert top == package or top in PACKAGES[package], (
                    f"{path.relative_to(ROOT)} imports {module}"
                )


@pytest.mark.parametrize("package", [*PACKAGES, "tools", "inference"])
def test_packages_neither_print_nor_move_to_cuda(package: str) -> None:
    for path in files_of(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert not (isinstance(node.func, ast.Name) and name in FORBIDDEN_CALLS), f"{where}: {name}("
                assert name != "cuda", f"{where}: .cuda("


def calls_in(code: str) -> Iterator[tuple[str, dict[str | None, ast.expr], int]]:
    """Each call as its full name, its keywords and its line; imported names are traced to their module."""
    tree = ast.parse(code)
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield (
                f"{origin.get(first, first)}{dot}{rest}",
                {k.arg: k.value for k in node.keywords},
                node.lineno,
            )


def may_run_foreign_code(code: str) -> list[str]:
    """The calls that could run code from a file, as "line: name"."""

    def is_constant(value: ast.expr | None, wanted: bool) -> bool:
        return isinstance(value, ast.Constant) and value.value is wanted

    found = []
    for name, keywords, line in calls_in(code):
        unsafe = name in RUNS_CODE or name in {"eval", "exec"}
        unsafe |= name == "torch.load" and not is_constant(keywords.get("weights_only"), True)
        unsafe |= name == "numpy.load" and not is_constant(
            keywords.get("allow_pickle", ast.Constant(False)), False
        )
        unsafe |= name.startswith("subprocess.") and "shell" in keywords
        if unsafe:
            found.append(f"{line}: {name}")
    return found


@pytest.mark.parametrize("path", sorted(PROGRAM), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_runs_code_from_a_file(path: Path) -> None:
    """Weights and data may come from strangers: no pickle, no eval, no shell."""
    assert may_run_foreign_code(path.read_text()) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch\ntorch.load(f)", ["2: torch.load"]),
        ("from torch import load as read\nread(f, weights_only=False)", ["2: torch.load"]),
        ("import torch\ntorch.load(f, weights_only=True)", []),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", ["2: numpy.load"]),
        ("import numpy as np\nnp.load(f, allow_pickle=option)", ["2: numpy.load"]),
        ("import numpy as np\nnp.load(f)", []),
        ("import pickle\npickle.Unpickler(f).load()", ["2: pickle.Unpickler"]),
        ("from pickle import loads\nloads(text)", ["2: pickle.loads"]),
        ("import yaml\nyaml.load(text)\nyaml.safe_load(text)", ["2: yaml.load"]),
        ("import subprocess\nsubprocess.run('ls', shell=True)", ["2: subprocess.run"]),
        ("eval('1')", ["1: eval"]),
    ],
)
def test_the_search_for_such_calls_finds_them(code: str, found: list[str]) -> None:
    assert may_run_foreign_code(code) == found


@pytest.mark.parametrize("name", ["train_net.py", "test_net.py"])
def test_entry_points_are_wiring_only(name: str) -> None:
    functions = [
        node for node in ast.parse((ROOT / name).read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert [function.name for function in functions] == ["main"]
    assert (functions[0].end_lineno or 0) - functions[0].lineno < 60


def test_progress_bars_are_hidden_where_there_is_no_terminal() -> None:
    bars = [
        (path, keywords)
        for path in PROGRAM
        for name, keywords, _ in calls_in(path.read_text())
        if name == "tqdm.tqdm"
    ]
    assert len(bars) > 5
    assert [path for path, keywords in bars if "disable" not in keywords] == []


def test_only_the_builders_read_the_configuration() -> None:
    allowed = {"make_model.py", "build.py"}
    for package in PACKAGES:
        if package != "config":
            for path in files_of(package):
                if path.name not in allowed:
                    assert "yacs" not in {m.partition(".")[0] for m in imported_modules(path)}, path
