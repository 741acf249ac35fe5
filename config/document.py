"""`python -m config.document` writes the tables of docs/configuration.md, after its hand-written head."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from config.demo_keys import DEMO_KEYS
from config.schema import FROM_0, SECTIONS, TABLE, Key

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
MARK = "<!-- From here on, `python -m config.document` writes this page. -->\n"


def make_page(page: str) -> str:
    """A page with its head, up to the mark, and the tables as the rows make them."""
    parts = [page.partition(MARK)[0] + MARK]
    # The keys, section by section.
    for section in (*SECTIONS, "OUTPUT_DIR"):
        keys = [key for key in TABLE if key.name.partition(".")[0] == section]
        rows = (f"`{key.name}` | `{key.default!r}` | {_describe(key)}" for key in keys)
        parts += [f"## {section}\n", "key | default | meaning", "---|---|---", *rows, ""]
    # What has no effect.
    parts += ["## Keys of DeMo that have no effect\n", "Refused at any other value than this one:\n"]
    parts += [", ".join(f"`{name} {value}`" for name, (value, _) in DEMO_KEYS.items() if value is not None)]
    parts += ["\nAccepted at any value:\n"]
    parts += _list_by_reason((reason, name) for name, (value, reason) in DEMO_KEYS.items() if value is None)
    # What differs from DeMo.
    demo = [(key.demo[1], f"{key.name} {key.demo[0]}") for key in TABLE if key.demo]
    parts += ["\n## Defaults that differ from DeMo's\n"]
    parts += [f"DeMo's values of these {len(demo)} keys, by the reason for ours. Its own files set all"]
    parts += ["but `MODEL.DEVICE` and `SOLVER.CHECKPOINT_PERIOD`.\n"]
    parts += _list_by_reason(demo)
    return "\n".join(parts) + "\n"


def _describe(key: Key) -> str:
    """What a key does and takes; neither 0 or more nor choices that the text names are repeated."""
    if (
        key.check is None
        or key.check is FROM_0
        or {f"`{choice}`" in key.help for choice in key.check.choices} == {True}
    ):
        return key.help
    words = ", ".join(f"`{choice}`" for choice in key.check.choices) or key.check.words
    return f"{key.help} {words[0].upper()}{words[1:]}."


def _list_by_reason(pairs: Iterable[tuple[str, str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for reason, name in pairs:
        names.setdefault(reason, []).append(f"`{name}`")
    return [f"- {reason}: {', '.join(keys)}" for reason, keys in names.items()]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(make_page(PAGE.read_text()))
