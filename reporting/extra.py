"""Packages that only some commands need: they are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from errors import UserError

NEEDED_FOR = {
    "report": "reports and figures need",
    "search": "galleries and Parquet files need",
    "export": "ONNX files need",
}
"""By extra of pyproject.toml, the start of the message if a package is missing."""


def import_extra(name: str, extra: str = "report") -> Any:
    """Import a module of an extra; a missing package is an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UserError(
            f'{NEEDED_FOR[extra]} {package}, which is not installed: pip install -e ".[{extra}]"'
        ) from None
