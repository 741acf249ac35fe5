"""Packages that only some commands need: they are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from errors import UserError, on_one_line

NEEDED_FOR = {
    "report": "reports and figures need",
    "search": "galleries and Parquet files need",
    "export": "ONNX files need",
}
"""By extra of pyproject.toml, the start of the message if a package is missing."""


def import_extra(name: str, extra: str = "report") -> Any:
    """Import a module of an extra; an error says how to install the package."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        is_absent = isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == package
        why = "is not installed" if is_absent else f"cannot be imported ({on_one_line(error)})"
        raise UserError(f'{NEEDED_FOR[extra]} {package}, which {why}: pip install -e ".[{extra}]"') from None
