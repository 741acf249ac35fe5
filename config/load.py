"""File + command line -> validated, frozen configuration."""

from __future__ import annotations

import ast
import difflib
import logging
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from config.defaults import get_cfg
from config.validate import ConfigError, flatten, show, validate
from structures import on_one_line

logger = logging.getLogger(__name__)

COMPLETE = ("nothing", "none", "no", "")
"""Spellings of TEST.MISS that mean that no modality is missing."""

LARGEST = 2**32 - 1
"""The largest whole number of a setting: the largest seed that NumPy takes, and more than any other needs."""


KINDS = {
    bool: "a switch",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    tuple: "a list",
}
"""What the types of settings are called in messages."""


def load_config(config_file: str | Path | None = None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, then the file, then the command line; validated and frozen.

    Args:
        config_file: YAML with the settings that differ from the defaults.
        overrides: `KEY VALUE KEY VALUE …`, as on the command line.
    """
    return finish_config(merge_settings(get_cfg(), config_file, overrides))


def merge_settings(cfg: CfgNode, config_file: str | Path | None, overrides: Sequence[str]) -> CfgNode:
    """Set in `cfg` what the file sets, then what the command line sets; returns it, not validated yet."""
    if config_file is not None:
        for key, value in _read_yaml(Path(config_file)):
            _set(cfg, key, value, source=str(config_file))
    if len(overrides) % 2:
        raise ConfigError(f"the command line needs KEY VALUE pairs, but {show(overrides[-1])} stands alone")
    for key, text in zip(overrides[::2], overrides[1::2], strict=True):
        _set(cfg, key, text, source="command line")
    return cfg


def finish_config(cfg: CfgNode) -> CfgNode:
    """Validate and freeze a configuration."""
    if cfg.TEST.MISS.lower() in COMPLETE:
        cfg.TEST.MISS = "nothing"
    validate(cfg)
    cfg.freeze()
    return cfg


def _read_yaml(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from None
    try:
        content = yaml.safe_load(text)
    except Exception as error:  # for example a ValueError for the date 2024-13-01, a RecursionError for [[[[…
        where = on_one_line(" ".join(str(error).split()))
        raise ConfigError(f"configuration file {path} is not valid YAML: {where}") from None
    if content is None:
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"configuration file {path} must hold sections such as MODEL: and SOLVER:")
    return list(_flatten_like(get_cfg(), content))


def stored_config(text: Any, path: str | Path) -> CfgNode:
    """The configuration in a checkpoint, free to be changed; keys that the text lacks have their defaults.

    Keys that this version does not know are logged and left out.

    Args:
        text: what the checkpoint holds under `config`.
        path: of the checkpoint, for messages.
    """
    content = parse_stored(text, path)
    cfg = get_cfg()
    known = dict(flatten(cfg))
    settings = dict(_flatten_like(cfg, content))
    if unknown := sorted(settings.keys() - known.keys()):
        logger.warning("%s has settings that this version does not know: %s", path, ", ".join(unknown))
    for key in settings.keys() & known.keys():
        _set(cfg, key, settings[key], source=f"the configuration in {path}")
    return cfg


def parse_stored(text: Any, path: str | Path) -> dict[str, Any]:
    """The text of a configuration in a checkpoint as sections."""
    try:
        content = yaml.safe_load(text) if isinstance(text, str) else None
    except Exception:  # as in `_read_yaml`
        content = None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"checkpoint {path} is damaged: its configuration cannot be read")
    return content


def _flatten_like(known: CfgNode, content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a file as (`SECTION.KEY`, value); only known sections are entered.

    With aliases, a short YAML file can spell sections that are nested without end.
    """
    for key, value in content.items():
        if isinstance(value, Mapping) and isinstance(known.get(key), CfgNode):
            yield from _flatten_like(known[key], value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _set(cfg: CfgNode, key: str, value: Any, *, source: str) -> None:
    """Set one existing key to a value of its type."""
    known = dict(flatten(cfg))
    if key not in known:
        raise ConfigError(f"{source}: unknown key {show(key)}; {_nearest(key, known)}")
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
    is_number = _is_number(value)
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if _is_number(number) and not _fits(number):
            raise ConfigError(
                f"{source}: {key} takes finite numbers, whole ones up to {LARGEST}, not {show(number)}"
            )
    if wanted is str and isinstance(value, str):
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
            raise ConfigError(f"{source}: {key} must be one line of printable text, not {show(value)}")
        # DeMo writes NAMES: ('RGBNT201'), which YAML reads as a text with brackets and quotes.
        quoted = re.fullmatch(r"""\(\s*(?:'([^']*)'|"([^"]*)")\s*,?\s*\)""", value)
        return (quoted[1] or quoted[2] or "") if quoted else value
    if wanted is str and isinstance(value, bool) and default in ("yes", "no", "on", "off"):
        # YAML reads an unquoted yes, no, on and off as true and false.
        return ("off", "on")[value] if default in ("on", "off") else ("no", "yes")[value]
    if wanted is str and is_number:
        return str(value)
    if wanted is float and is_number:
        return float(value)
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        if all(_is_number(number) for number in value):
            return wanted(value)
    elif type(value) is wanted:
        return value
    raise ConfigError(f"{source}: {key} takes {KINDS[wanted]} such as {default!r}, not {show(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fits(number: float) -> bool:
    return -LARGEST <= number <= LARGEST if isinstance(number, int) else math.isfinite(number)


def _parse_literal(text: str) -> Any:
    """The Python value that a text spells, such as 5e-6 or [8, 8], or else the text itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on style, such as on the text '1is 2'
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
