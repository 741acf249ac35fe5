"""`python -m config.document` writes the tables of docs/configuration.md, after its hand-written head."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from config.demo_keys import DEMO_KEYS
from config.schema import SECTIONS, TABLE, Key

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
    parts += ["## When a key has no effect\n"]
    parts += _list_by_reason((reason, key.name) for key in TABLE for _, reason in key.unused)
    parts += ["\n## Keys of DeMo that have no effect\n", "Refused at any other value than this one:\n"]
    parts += [f"- `{name} {value}`" for name, (value, _) in DEMO_KEYS.items() if value is not None]
    parts += ["\nAccepted at any value:\n"]
    parts += _list_by_reason((reason, name) for name, (value, reason) in DEMO_KEYS.items() if value is None)
    # What differs from DeMo.
    demo = [(key, *key.demo) for key in TABLE if key.demo]
    parts += ["\n## Defaults that differ from DeMo's\n"]
    parts += [f"These {len(demo)} matter for a file that does not set them. DeMo's own files set all but"]
    parts += ["`MODEL.DEVICE` and `SOLVER.CHECKPOINT_PERIOD`. Its defaults are those of two public copies.\n"]
    parts += ["key | DeMo | here | from, or because", "---|---|---|---"]
    parts += [f"`{key.name}` | `{value!r}` | `{key.default!r}` | {why}" for key, value, why in demo]
    return "\n".join(parts) + "\n"


def _describe(key: Key) -> str:
    """What a key does and takes; choices that the text names are not repeated."""
    if key.check is None or {f"`{choice}`" in key.help for choice in key.check.choices} == {True}:
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
