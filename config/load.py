"""File + command line -> validated, frozen configuration."""

from __future__ import annotations

import ast
import difflib
import logging
import os
import re
import shlex
import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from config.demo_keys import DEMO_KEYS, named_demo_keys, refuse_demo_keys
from config.removed_keys import REMOVED_KEYS, leave_out_removed
from config.schema import KEYS, SECTIONS, ConfigError, find_unused, flatten, get_cfg, show, validate
from config.strict_yaml import YamlFileError, parse_yaml, read_yaml

logger = logging.getLogger(__name__)

BASE = "_BASE_"
"""In a file: the file that it builds on, by its path from there."""
COMPLETE = ("nothing", "none", "no", "")
"""Spellings of TEST.MISS that mean that no modality is missing."""
LARGEST = 2**32 - 1
"""The largest whole number of a setting: the largest seed that NumPy takes, and more than any other needs."""
NUMBERS = (int, float)
KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list of numbers",
}
"""What the types of settings are called in messages."""
SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
"""Spellings of a switch, in any case."""
PAIRS = (("off", "on"), ("no", "yes"))
"""How keys whose default is one of these texts spell false and true."""


def load_config(
    config_file: str | Path | None = None, overrides: Sequence[str] = (), start: CfgNode | None = None
) -> CfgNode:
    """The defaults, or `start`, then the file, then the overrides, `KEY VALUE …`; validated and frozen."""
    cfg = merge_settings(get_cfg() if start is None else start.clone(), config_file, overrides)
    if cfg.TEST.MISS.lower() in COMPLETE:
        cfg.TEST.MISS = "nothing"
    refuse_demo_keys(cfg)
    validate(cfg)
    cfg.freeze()
    return cfg


def merge_settings(cfg: CfgNode, config_file: str | Path | None, overrides: Sequence[str]) -> CfgNode:
    """Set in `cfg` what the file sets, then what the overrides set; returns it, not validated yet."""
    if config_file is not None:
        for file, settings in _read_with_bases(Path(config_file)):
            for key, value in leave_out_removed(settings, str(file)).items():
                _set(cfg, key, value, source=str(file))
    for key, text in _pairs(overrides):
        _set(cfg, key, text, source="command line")
    return cfg


def warn_about_unused(cfg: CfgNode) -> None:
    """Log the settings that have no effect in this configuration: DeMo's, and those not at their default."""
    if demo_keys := named_demo_keys(cfg):
        logger.warning("keys of DeMo that have no effect here: %s", ", ".join(demo_keys))
    settings = dict(flatten(cfg))
    for key, reason in find_unused(cfg).items():
        if settings[key] != KEYS[key].default:
            logger.warning("%s %s has no effect: %s", key, show(settings[key]), reason)


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """The words of a command line as (key, value)."""
    for word in words[::2]:
        key, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key):
            right, wrong = (show(text)[1:-1] for text in (f"{key} {shlex.quote(value)}", word))
            raise ConfigError(f"write {right}, not {wrong}: a setting is two words")
    if len(words) % 2:
        raise ConfigError(f"the command line needs KEY VALUE pairs, but {show(words[-1])} stands alone")
    return list(zip(words[::2], words[1::2], strict=True))


def _read_with_bases(path: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The settings of a file and of those that it builds on, the most basic first; `above` build on it."""
    if path.resolve() in above:
        raise ConfigError(f"configuration file {path} is its own {BASE}; make the files a chain")
    settings = _read_file(path)
    base = settings.pop(BASE, None)
    if base is not None:
        if not isinstance(base, str) or not base:
            raise ConfigError(f"{path}: {BASE} takes the name of a file beside it, not {show(base)}")
        yield from _read_with_bases(path.parent / base, (*above, path.resolve()))
    yield path, settings


def _read_file(path: Path) -> dict[str, Any]:
    """The settings of a file by `SECTION.KEY`."""
    try:
        content = parse_yaml(read_yaml(path))
    except YamlFileError as fault:
        raise ConfigError(f"configuration file {path} {fault}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"configuration file {path} must hold sections such as MODEL: and SOLVER:")
    settings = list(_flatten_sections(content))
    for key, times in Counter(key for key, _ in settings).items():
        if times > 1:  # MODEL.HEAD in one line, and HEAD in the section MODEL
            raise ConfigError(f"configuration file {path} has {show(key)} twice; make it one")
    return dict(settings)


def stored_config(text: Any, path: str | Path) -> CfgNode:
    """The configuration in the entry `config` of a checkpoint, free to be changed.

    Keys that it lacks have their defaults. Those that nothing here reads are logged and left out.
    """
    # Read the sections.
    try:
        content = parse_yaml(text) if isinstance(text, str) else None
    except YamlFileError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"checkpoint {path} is damaged: its configuration cannot be read")
    # Set what is known.
    cfg = get_cfg()
    settings = leave_out_removed(dict(_flatten_sections(content)), f"checkpoint {path}")
    known = KEYS.keys() | DEMO_KEYS.keys()
    for key in sorted(settings.keys() & known):
        _set(cfg, key, settings[key], source=f"the configuration in {path}")
    refuse_demo_keys(cfg)
    # Report what is left out.
    if unknown := sorted(settings.keys() - known):
        logger.warning("%s has settings that this version does not know: %s", path, ", ".join(unknown))
    if demo_keys := named_demo_keys(cfg):
        logger.info("%s has keys of DeMo that have no effect here: %s", path, ", ".join(demo_keys))
        demo_keys.clear()
    return cfg


def _flatten_sections(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a file as (`SECTION.KEY`, value); only known sections are entered."""
    for key, value in content.items():
        if key in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", setting) for name, setting in value.items())
        elif key not in SECTIONS or value is not None:  # a section whose settings are all comments is None
            yield key, value


def _set(cfg: CfgNode, key: str, value: Any, *, source: str) -> None:
    """Set one existing key to a value of its type; a key of DeMo that has no effect is only noted."""
    if key in SECTIONS:
        first = next(name for name in KEYS if name.startswith(f"{key}."))
        raise ConfigError(f"{source}: {key} is a section; name one of its keys, such as {first}")
    if key in DEMO_KEYS:
        accepted, _ = DEMO_KEYS[key]
        named_demo_keys(cfg)[key] = value if accepted is None else _coerce(key, value, accepted, source)
    elif key in KEYS:
        section, _, name = key.rpartition(".")
        node = cfg[section] if section else cfg
        node[name] = _coerce(key, value, KEYS[key].default, source)
    elif key in REMOVED_KEYS:
        raise ConfigError(f"{source}: {key} is no longer there, since slimming merges patches; leave it out")
    else:
        raise ConfigError(f"{source}: unknown key {show(key)}; {_nearest(key)}")


def _nearest(key: str) -> str:
    """A hint for a misspelt key: the nearest keys by whole name, then by last part."""
    by_name = {name.rpartition(".")[2]: name for name in KEYS}
    last = key.upper().rpartition(".")[2]
    if typo := difflib.get_close_matches(key.upper(), list(KEYS), n=1, cutoff=0.95):
        return f"did you mean {typo[0]}?"
    matches = difflib.get_close_matches(key.upper(), list(KEYS), n=3, cutoff=0.7)
    matches += [by_name[name] for name in difflib.get_close_matches(last, list(by_name), n=3, cutoff=0.6)]
    if not matches:
        return f"the sections are {', '.join(SECTIONS)}, and docs/configuration.md lists their keys"
    own = "" if last in by_name else ", or does a script of yours register it (docs/extending.md)"
    return f"did you mean {' or '.join(list(dict.fromkeys(matches))[:3])}{own}?"


def _coerce(key: str, value: Any, default: Any, source: str) -> Any:
    """A YAML value, or a text from the command line, in the type of the default, where that loses nothing."""
    wanted = type(default)
    if isinstance(value, str) and wanted not in (str, bool):
        value = _parse_literal(value)
    for number in value if isinstance(value, (list, tuple)) else [value]:
        limit = LARGEST if type(number) is int else sys.float_info.max
        if type(number) in NUMBERS and not -limit <= number <= limit:  # which a NaN is not, either
            raise ConfigError(
                f"{source}: {key} takes finite numbers, whole ones up to {LARGEST}, not {show(number)}"
            )
    if wanted is str and isinstance(value, (str, bool, int, float)):
        return _coerce_text(key, value, default, source)
    if wanted is bool and (meant := _switch(value)) is not None:
        return meant
    if wanted is float and type(value) in NUMBERS:
        return float(value)
    if wanted is list and isinstance(value, (list, tuple)) and all(type(item) in NUMBERS for item in value):
        return list(value)
    if wanted is int and type(value) is int:
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
    text = (quoted[1] or quoted[2] or "") if quoted else value
    return os.path.expanduser(text) if text.startswith("~/") else text  # in a file, no shell does it


def _switch(value: Any) -> bool | None:
    """What a value means as a switch; None if it is no spelling of one."""
    return SWITCHES.get(str(value).strip().lower()) if isinstance(value, (str, bool, int)) else None


def _wanted(key: str, default: Any) -> str:
    """What a key takes, for a message."""
    check = KEYS[key].check if key in KEYS else None
    if check and check.choices:
        return check.words
    has_example = not isinstance(default, bool) and default not in ("", [])
    return KINDS[type(default)] + (f" such as {default!r}" if has_example else "")


def _parse_literal(text: str) -> Any:
    """The Python value that a text spells, such as 5e-6 or [8, 8], or else the text itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on style, such as on the text '1is 2'
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
