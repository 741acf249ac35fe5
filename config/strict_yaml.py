"""YAML files read with the safe loader, and refused where it would pass over a mistake or never end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from config.schema import show
from errors import on_one_line

MOST_BYTES = 100_000
"""A file with every key of the configuration has about 5,000."""
MOST_VALUES = 10_000
"""The values and keys of a file, those behind an alias counted as often as the alias is used."""


class YamlFileError(Exception):
    """Why a file cannot be used, as the part of a sentence that follows its name."""


def parse_yaml(text: str) -> Any:
    """The content of a text in YAML."""
    node = _compose(text)
    try:
        return None if node is None else yaml.SafeLoader("").construct_document(node)
    except Exception as error:  # for example a ValueError for the date 2024-13-01
        raise _invalid(error) from None


def compose_yaml(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, which still know the text and the line of each value; None if it is empty."""
    return _compose(read_yaml(path))


def _compose(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.SafeLoader(text).get_single_node()
        if node is not None:
            _count(node, {})
    except RecursionError:
        raise YamlFileError("is nested too deeply; a configuration has two levels") from None
    except yaml.YAMLError as error:
        raise _invalid(error) from None
    return node


def _invalid(error: Exception) -> YamlFileError:
    return YamlFileError(f"is not valid YAML: {on_one_line(' '.join(str(error).split()))}")


def read_yaml(path: Path) -> str:
    """The text of a YAML file."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise YamlFileError(
                f"has more than {MOST_BYTES} bytes, so it is not one of ours; name another file"
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {on_one_line(Path.cwd())}"
        raise YamlFileError(f"does not exist{where}") from None
    except UnicodeDecodeError as error:
        raise YamlFileError(
            f"is not text in UTF-8: byte {error.start + 1} is {error.object[error.start]:#04x}"
        ) from None
    except OSError as error:
        raise YamlFileError(f"cannot be read: {error.strerror or error}") from None


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """Values in a node, those behind an alias each time; refuses repeated keys and nodes within themselves.

    The results are kept in `counted` by the id of the node, with 0 while a node is being counted.
    """
    line = node.start_mark.line + 1
    if id(node) in counted:
        if not counted[id(node)]:
            raise YamlFileError(f"has a value that contains itself (line {line}); write it without the alias")
        return counted[id(node)]
    counted[id(node)] = 0
    parts: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node)
        parts = [part for pair in node.value for part in pair]
    number = 1
    for part in parts:
        number += _count(part, counted)
        if number > MOST_VALUES:
            raise YamlFileError(f"has more than {MOST_VALUES} values with those of its aliases; write fewer")
    counted[id(node)] = number
    return number


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    """YAML's safe loader would keep the last of them and say nothing."""
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in first_lines:
                raise YamlFileError(
                    f"has {show(key.value)} twice, in lines {first_lines[key.value]} and {line}; make it one"
                )
            first_lines[key.value] = line
