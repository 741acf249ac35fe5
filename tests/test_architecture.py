"""Who may import whom, and what no room may do."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {
    "structures": set(),
    "config": {"structures"},
    "datasets": {"structures"},
    "modeling": {"structures"},
    "solver": {"structures"},
    "evaluation": {"structures"},
    "engine": {"structures", "evaluation"},
}
FORBIDDEN_CALLS = {"print", "eval", "exec"}


def files_of(room: str) -> list[Path]:
    files = [ROOT / f"{room}.py"] if room == "structures" else sorted((ROOT / room).rglob("*.py"))
    assert files, f"no files in {room}"
    return files


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room: str) -> None:
    for path in files_of(room):
        for module in imported_modules(path):
            top = module.partition(".")[0]
            if top in ROOMS or top in {"train_net", "test_net", "tools", "reporting"}:
                assert top == room or top in ROOMS[room], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_neither_print_nor_move_to_cuda(room: str) -> None:
    for path in files_of(room):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert not (isinstance(node.func, ast.Name) and name in FORBIDDEN_CALLS), f"{where}: {name}("
                assert name != "cuda", f"{where}: .cuda("


def test_sdtps_needs_only_torch() -> None:
    modules = {module.partition(".")[0] for module in imported_modules(ROOT / "modeling" / "sdtps.py")}
    assert modules <= {"__future__", "collections", "math", "typing", "torch"}


@pytest.mark.parametrize("name", ["train_net.py", "test_net.py"])
def test_entry_points_are_wiring_only(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) < 80


def test_only_the_builders_read_the_configuration() -> None:
    allowed = {"make_model.py", "build.py"}
    for room in ROOMS:
        if room != "config":
            for path in files_of(room):
                if path.name not in allowed:
                    assert "yacs" not in {m.partition(".")[0] for m in imported_modules(path)}, path
