"""File + command line -> validated, frozen configuration."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from config.defaults import get_cfg
from config.validate import ConfigError, flatten, validate

COMPLETE = ("nothing", "none", "no", "")
"""Spellings of TEST.MISS that mean that no modality is missing."""


def load_config(config_file: str | Path | None = None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, then the file, then the command line; validated and frozen.

    Args:
        config_file: YAML with the settings that differ from the defaults.
        overrides: `KEY VALUE KEY VALUE …`, as on the command line.
    """
    cfg = get_cfg()
    if config_file is not None:
        for key, value in _read_yaml(Path(config_file)):
            _set(cfg, key, value, source=str(config_file))
    if len(overrides) % 2:
        raise ConfigError(f"the command line needs KEY VALUE pairs, but {overrides[-1]!r} stands alone")
    for key, text in zip(overrides[::2], overrides[1::2], strict=True):
        _set(cfg, key, text, source="command line")
    if cfg.TEST.MISS.lower() in COMPLETE:
        cfg.TEST.MISS = "nothing"
    validate(cfg)
    cfg.freeze()
    return cfg


def save_config(cfg: CfgNode, path: Path) -> None:
    """Write every setting, so that `--config_file PATH` repeats the run."""
    path.write_text(cfg.dump())


def _read_yaml(path: Path) -> list[tuple[str, Any]]:
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise ConfigError(f"configuration file {path} is not valid YAML: {where}") from None
    if content is None:
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"configuration file {path} must hold sections such as MODEL: and SOLVER:")
    return list(flatten(content))


def _set(cfg: CfgNode, key: str, value: Any, *, source: str) -> None:
    """Set one existing key to a value of its type."""
    known = dict(flatten(cfg))
    if key not in known:
        raise ConfigError(f"{source}: unknown key {key!r}; {_nearest(key, known)}")
    section, _, name = key.rpartition(".")
    node = cfg
    for part in filter(None, section.split(".")):
        node = node[part]
    node[name] = _coerce(key, value, known[key], source)


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    """A hint for a misspelt key: the nearest keys by whole name, then by last part."""
    by_name = {name.rpartition(".")[2]: name for name in known}
    last = key.upper().rpartition(".")[2]
    matches = difflib.get_close_matches(key.upper(), list(known), n=3, cutoff=0.7)
    matches += [by_name[name] for name in difflib.get_close_matches(last, list(by_name), n=3, cutoff=0.6)]
    if not matches:
        return f"the sections are {', '.join(sorted({name.partition('.')[0] for name in known}))}"
    return f"did you mean {' or '.join(list(dict.fromkeys(matches))[:3])}?"


def _coerce(key: str, value: Any, default: Any, source: str) -> Any:
    """Bring a value to the type of the default, where that loses nothing.

    Args:
        key: for the message.
        value: a YAML value, or a text from the command line.
        default: sets the type.
        source: for the message.
    """
    wanted = type(default)
    if isinstance(value, str) and wanted is not str:
        value = _parse_literal(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is str and isinstance(value, str):
        # DeMo writes NAMES: ('RGBNT201'), which YAML reads as a text with brackets and quotes.
        return re.sub(r"""^\(\s*(['"])(.*)\1\s*,?\s*\)$""", r"\2", value)
    if wanted is str and isinstance(value, bool) and default in ("yes", "no", "on", "off"):
        # YAML reads an unquoted yes, no, on and off as true and false.
        return ("off", "on")[value] if default in ("on", "off") else ("no", "yes")[value]
    if wanted is str and is_number:
        return str(value)
    if wanted is float and is_number:
        return float(value)
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value):
            return wanted(value)
    elif type(value) is wanted:
        return value
    raise ConfigError(
        f"{source}: {key} takes a {wanted.__name__} such as {default!r}, not {type(value).__name__} {value!r}"
    )


def _parse_literal(text: str) -> Any:
    """The Python value that a text spells, such as 5e-6 or [8, 8], or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
