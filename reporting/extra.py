"""Packages that only reports and figures need: they are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from errors import UserError


def import_extra(name: str) -> Any:
    """Import a module of the extra `report`; a missing package is an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UserError(
            f'reports and figures need {package}, which is not installed: pip install -e ".[report]"'
        ) from None
