"""File + command line -> validated, frozen configuration."""

from __future__ import annotations

import ast
import difflib
import logging
import math
import re
import shlex
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from config.defaults import get_cfg
from config.strict_yaml import YamlFileError, load_yaml, parse_yaml
from config.validate import ALLOWED, ConfigError, flatten, show, validate
from structures import on_one_line

logger = logging.getLogger(__name__)

Settings = list[tuple[str, Any]]
"""(`SECTION.KEY`, value) of each setting."""

BASE = "_BASE_"
"""In a file: the file that it builds on, by its path from there."""

COMPLETE = ("nothing", "none", "no", "")
"""Spellings of TEST.MISS that mean that no modality is missing."""

LARGEST = 2**32 - 1
"""The largest whole number of a setting: the largest seed that NumPy takes, and more than any other needs."""


KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list of numbers",
    tuple: "a list of numbers",
}
"""What the types of settings are called in messages."""

SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""Spellings of a switch, in any case."""
PAIRS = (("off", "on"), ("no", "yes"))
"""How keys whose default is one of these texts spell false and true."""


def load_config(config_file: str | Path | None = None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, then the file, then the command line; validated and frozen.

    Args:
        config_file: YAML with the settings that differ from the defaults.
        overrides: `KEY VALUE KEY VALUE …`, as on the command line.
    """
    return finish_config(merge_settings(get_cfg(), config_file, overrides))


def merge_settings(cfg: CfgNode, config_file: str | Path | None, overrides: Sequence[str]) -> CfgNode:
    """Set in `cfg` what the file sets, then what the command line sets; returns it, not validated yet."""
    defaults = dict(flatten(get_cfg()))
    if config_file is not None:
        for file, settings in _read_with_bases(Path(config_file)):
            for key, value in settings:
                _set(cfg, key, value, defaults, source=str(file))
    for key, text in _pairs(overrides):
        _set(cfg, key, text, defaults, source="command line")
    return cfg


def finish_config(cfg: CfgNode) -> CfgNode:
    """Validate and freeze a configuration."""
    if cfg.TEST.MISS.lower() in COMPLETE:
        cfg.TEST.MISS = "nothing"
    validate(cfg)
    cfg.freeze()
    return cfg


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """The words of a command line as (key, value)."""
    for word in words[::2]:
        key, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key):
            right = f"{key} {shlex.quote(value)}"
            raise ConfigError(f"write {_shorten(right)}, not {_shorten(word)}: a setting is two words")
    if len(words) % 2:
        raise ConfigError(f"the command line needs KEY VALUE pairs, but {show(words[-1])} stands alone")
    return list(zip(words[::2], words[1::2], strict=True))


def _shorten(text: str) -> str:
    """A text for a message, on one line and without quotes of its own."""
    line = on_one_line(text)
    return line if len(line) <= 80 else f"{line[:79]}…"


def _read_with_bases(path: Path) -> list[tuple[Path, Settings]]:
    """The settings of a file and of those that it builds on, the most basic first."""
    files: list[tuple[Path, Settings]] = []
    seen: set[Path] = set()
    while True:
        if path.resolve() in seen:
            raise ConfigError(f"configuration file {path} is its own {BASE}; make the files a chain")
        seen.add(path.resolve())
        settings = _read_file(path)
        base = dict(settings).get(BASE)
        files.insert(0, (path, [(key, value) for key, value in settings if key != BASE]))
        if base is None:
            return files
        if not isinstance(base, str) or not base:
            raise ConfigError(f"{path}: {BASE} takes the name of a file beside it, not {show(base)}")
        path = path.parent / base


def _read_file(path: Path) -> Settings:
    """The settings of a file as (`SECTION.KEY`, value), each once."""
    try:
        content = load_yaml(path)
    except YamlFileError as fault:
        raise ConfigError(f"configuration file {path} {fault}") from None
    if content is None:
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"configuration file {path} must hold sections such as MODEL: and SOLVER:")
    settings = list(_flatten_like(get_cfg(), content))
    seen: set[str] = set()
    for key, _ in settings:
        if key in seen:  # MODEL.HEAD in one line, and HEAD in the section MODEL
            raise ConfigError(f"configuration file {path} has {show(key)} twice; make it one")
        seen.add(key)
    return settings


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
        _set(cfg, key, settings[key], known, source=f"the configuration in {path}")
    return cfg


def parse_stored(text: Any, path: str | Path) -> dict[str, Any]:
    """The text of a configuration in a checkpoint as sections."""
    try:
        content = parse_yaml(text) if isinstance(text, str) else None
    except YamlFileError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"checkpoint {path} is damaged: its configuration cannot be read")
    return content


def _flatten_like(known: CfgNode, content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a file as (`SECTION.KEY`, value); only known sections are entered."""
    for key, value in content.items():
        is_section = isinstance(known.get(key), CfgNode)
        if is_section and isinstance(value, Mapping):
            yield from _flatten_like(known[key], value, f"{prefix}{key}.")
        elif not (is_section and value is None):  # a section whose settings are all comments
            yield f"{prefix}{key}", value


def _set(cfg: CfgNode, key: str, value: Any, defaults: Mapping[str, Any], *, source: str) -> None:
    """Set one existing key to a value of its type."""
    if isinstance(cfg.get(key), CfgNode):
        raise ConfigError(
            f"{source}: {key} is a section; name one of its keys, such as {_first_of(key, defaults)}"
        )
    if key not in defaults:
        raise ConfigError(f"{source}: unknown key {show(key)}; {_nearest(key, defaults)}")
    section, _, name = key.rpartition(".")
    node = cfg
    for part in filter(None, section.split(".")):
        node = node[part]
    node[name] = _coerce(key, value, defaults[key], source)


def _first_of(section: str, known: Mapping[str, Any]) -> str:
    return next(key for key in known if key.startswith(f"{section}."))


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    """A hint for a misspelt key: the nearest keys by whole name, then by last part."""
    by_name = {name.rpartition(".")[2]: name for name in known}
    last = key.upper().rpartition(".")[2]
    matches = difflib.get_close_matches(key.upper(), list(known), n=3, cutoff=0.7)
    matches += [by_name[name] for name in difflib.get_close_matches(last, list(by_name), n=3, cutoff=0.6)]
    if not matches:
        sections = sorted({name.partition(".")[0] for name in known if "." in name})
        return f"the sections are {', '.join(sections)}, and docs/configuration.md lists their keys"
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
    if isinstance(value, str) and wanted not in (str, bool):
        value = _parse_literal(value)
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if _is_number(number) and not _fits(number):
            raise ConfigError(
                f"{source}: {key} takes finite numbers, whole ones up to {LARGEST}, not {show(number)}"
            )
    if wanted is str and isinstance(value, (str, bool, int, float)):
        return _coerce_text(key, value, default, source)
    if wanted is bool and (meant := _switch(value)) is not None:
        return meant
    if wanted is float and _is_number(value):
        return float(value)
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        if all(_is_number(number) for number in value):
            return wanted(value)
    elif type(value) is wanted:
        return value
    raise ConfigError(f"{source}: {key} takes {_wanted(key, default)}, not {show(value)}")


def _coerce_text(key: str, value: str | float, default: str, source: str) -> str:
    """The text that a value stands for as the setting of a key that holds a text."""
    spellings = next((pair for pair in PAIRS if default in pair), None)
    if spellings and (meant := _switch(value)) is not None:
        return spellings[meant]
    if isinstance(value, bool):
        raise ConfigError(
            f"{source}: {key} takes {_wanted(key, default)}, not {value}; put a text that YAML reads as a "
            "switch in quotes"
        )
    if not isinstance(value, str):
        return str(value)
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
        raise ConfigError(f"{source}: {key} must be one line of printable text, not {show(value)}")
    # DeMo writes NAMES: ('RGBNT201'), which YAML reads as a text with brackets and quotes.
    quoted = re.fullmatch(r"""\(\s*(?:'([^']*)'|"([^"]*)")\s*,?\s*\)""", value)
    return (quoted[1] or quoted[2] or "") if quoted else value


def _switch(value: Any) -> bool | None:
    """What a value means as a switch; None if it is no spelling of one."""
    return SWITCHES.get(str(value).strip().lower()) if isinstance(value, (str, bool, int)) else None


def _wanted(key: str, default: Any) -> str:
    """What a key takes, for a message."""
    if key in ALLOWED:
        return f"one of {', '.join(map(str, ALLOWED[key]))}"
    example = list(default) if isinstance(default, tuple) else default
    has_example = not isinstance(default, bool) and default not in ("", [])
    return KINDS[type(default)] + (f" such as {example!r}" if has_example else "")


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
