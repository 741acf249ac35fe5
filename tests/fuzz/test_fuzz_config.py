"""2,000 random overrides: accepted with the right meaning, or refused in one line."""

import ast
import contextlib
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yacs.config import CfgNode

from config import ConfigError, get_cfg, load_config
from config.demo_keys import DEMO_KEYS
from config.schema import KEYS as ROWS
from config.schema import flatten, validate

DEFAULTS = dict(flatten(get_cfg()))
KEYS = sorted(DEFAULTS)
CHOICES = {name: row.check.choices for name, row in ROWS.items() if row.check and row.check.choices}
LONGEST_MESSAGE = 600

# The same examples in every run: a failure must not depend on the day.
fuzz = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def misspelt(draw: st.DrawFn) -> str:
    """A real key with one letter more, less or changed, or in another section or case."""
    key = draw(st.sampled_from(KEYS))
    place = draw(st.integers(0, len(key)))
    letter = draw(st.text(max_size=1))
    section = draw(st.sampled_from(["MODEL", "SOLVER", "TEST", "", "MODEL.MODEL"]))
    return draw(
        st.sampled_from(
            [
                key[:place] + letter + key[place:],
                key[:place] + letter + key[place + 1 :],
                key.lower(),
                f" {key}",
                f"{key}.{letter}",
                key.partition(".")[0],
                f"{section}.{key.rpartition('.')[2]}",
                key.replace("E", "Е"),  # the Cyrillic letter
            ]
        )
    )


keys = st.one_of(
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
    st.sampled_from(sorted(DEMO_KEYS)),
    misspelt(),
    st.text(max_size=30),
)
numbers = st.one_of(
    st.integers(),
    st.integers(-3, 300),
    st.floats(),
    st.floats(0, 1),
    st.sampled_from([2**31, 2**32 - 1, 2**32, 2**64, 10**400, -(10**400), 1e308, 5e-324, -0.0]),
)
literals = st.recursive(
    st.one_of(numbers, st.booleans(), st.none(), st.text(max_size=8), st.binary(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)
ODD_TEXTS = (
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1e999",
    "[nan, 1, 1]",
    "[1e999, 0.5, 0.5]",
    "0x" + "f" * 20_000,
    "[0x" + "f" * 20_000 + "]",
    "9" * 10_000,
    "1_000",
    "007",
    "0o17",
    "1+2j",
    "True",
    "true",
    "yes",
    "OFF",
    " on",
    "0",
    "0.0",
    "MODEL.HDM=True",
    "MODEL.HDM=",
    "1is 2",
    '"\\d"',
    "{[]: 1}",
    "{{}}",
    "{1: 2}",
    "set()",
    "...",
    "b'x'",
    "__import__('os').system('true')",
    "f'{1}'",
    "(" * 5_000,
    "[" * 150 + "]" * 150,
    "-" * 20_000 + "1",
    "1 " * 5_000,
    "[1, " * 60 + "]" * 60,
    "('RGBNT201')",
    "('a', 'b')",
    '("it\'s")',
    "('')",
    "\0",
    "a\0b",
    "line\nbreak",
    "\ud800",
    "\udcff",
    "١٢٣",
    "²",
    "½",
    "1,5",
    "１６",
    "[８, ８]",
    "256,128",
    "patch" + "9" * 5_000,
    "ViT-B-" + "9" * 5_000,
    "vit_patch٣",
    "ViT-B-0",
    "../../etc",
    "~/data",
    "a" * 100_000,
    "r",
    "nothing",
    "None",
    "NONE",
    "İ",
)
odd_texts = st.sampled_from(ODD_TEXTS)
choices = st.sampled_from([str(choice) for allowed in CHOICES.values() for choice in allowed])
defaults = st.sampled_from([str(default) for default in DEFAULTS.values()])
values = st.one_of(literals.map(repr), numbers.map(repr), odd_texts, choices, defaults, st.text(max_size=20))


@st.composite
def plausible(draw: st.DrawFn) -> list[str]:
    """A real key and a value of its type, which may be in its range or not."""
    key = draw(st.sampled_from(KEYS))
    default = DEFAULTS[key]
    by_type: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(0, 300).map(lambda number: 8 * number if key.endswith("PER_BATCH") else number),
        float: st.floats(0, 1) | st.integers(0, 3),
        str: st.sampled_from(CHOICES.get(key, (default,))) | st.text(max_size=10),
        list: st.lists(st.floats(0.1, 1), min_size=3, max_size=3) | st.lists(st.integers(1, 64), max_size=3),
    }
    return [key, str(draw(by_type[type(default)]))]


any_pair = st.tuples(keys, values).map(list)
pairs = st.one_of(
    plausible(),
    plausible(),
    any_pair,
    st.tuples(plausible(), any_pair | plausible()).map(lambda two: two[0] + two[1]),
    st.lists(st.one_of(keys, values), max_size=3),
)


SPELLINGS = dict.fromkeys(("true", "yes", "on", "1"), "on") | dict.fromkeys(
    ("false", "no", "off", "0"), "off"
)


def meaning(key: str, text: str) -> Any:
    """What a text means as the value of a key, told apart from the code: by the type of the default."""
    default = DEFAULTS[key]
    if key == "TEST.MISS" and text.lower() in ("nothing", "none", "no", ""):
        return "nothing"
    word = text.strip().lower()
    if word in SPELLINGS and (isinstance(default, bool) or default in ("yes", "no", "on", "off")):
        is_on = SPELLINGS[word] == "on"
        if isinstance(default, bool):
            return is_on
        return ("on" if is_on else "off") if default.startswith("o") else ("yes" if is_on else "no")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(text)
        except Exception:
            value = text
    if isinstance(default, str):
        brackets = text.startswith("(") and text.endswith(")") and text.count("'") + text.count('"') == 2
        return value if brackets and isinstance(value, str) else text
    return type(default)(value) if isinstance(default, (float, list)) else value


def is_one_line(text: str) -> bool:
    return not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text)


def check_accepted(cfg: CfgNode, overrides: list[str]) -> None:
    assert cfg.is_frozen()
    validate(cfg)
    expected = DEFAULTS | {
        key: meaning(key, text)
        for key, text in zip(overrides[::2], overrides[1::2], strict=True)
        if key not in DEMO_KEYS
    }
    found = dict(flatten(cfg))
    assert found.keys() == DEFAULTS.keys()
    for key, default in DEFAULTS.items():
        assert type(found[key]) is type(default), key
        assert found[key] == expected[key], key
        for number in found[key] if isinstance(default, list) else [found[key]]:
            assert is_one_line(number) if isinstance(number, str) else math.isfinite(number)


def refusal(overrides: list[str], file: Path | None = None) -> str:
    """The message, which must be one short line; empty if the settings are accepted."""
    try:
        load_config(file, overrides)
    except ConfigError as error:
        message = str(error)
    else:
        return ""
    assert message.isprintable(), "one line, and no control characters"
    assert 0 < len(message) < LONGEST_MESSAGE
    return message


@settings(fuzz, max_examples=2000)
@given(pairs)
def test_random_overrides(overrides: list[str]) -> None:
    if not refusal(overrides):
        check_accepted(load_config(None, overrides), overrides)


@pytest.mark.parametrize("key", sorted(DEMO_KEYS))
def test_every_key_of_demo_survives_odd_values(key: str) -> None:
    for text in ODD_TEXTS:
        message = refusal([key, text])
        takes_any, is_off = DEMO_KEYS[key][0] is None, SPELLINGS.get(text.strip().lower()) == "off"
        assert key in message if message else takes_any or is_off


@pytest.mark.parametrize("key", KEYS)
def test_every_key_takes_its_default_and_survives_odd_values(key: str) -> None:
    """Random keys meet random values seldom; here each key meets one value of every kind."""
    check_accepted(load_config(None, [key, str(DEFAULTS[key])]), [key, str(DEFAULTS[key])])
    for text in (*ODD_TEXTS[:12], "{[]: 1}", "\0", "\ud800", "a\nb", "('x')", "('x', 'y')", "-1"):
        message = refusal([key, text])
        if message:
            assert key in message
        else:
            check_accepted(load_config(None, [key, text]), [key, text])


free_texts = [k for k, v in DEFAULTS.items() if isinstance(v, str) and k not in CHOICES]


@settings(fuzz, max_examples=60)
@given(st.sampled_from(free_texts), st.one_of(st.text(max_size=20), odd_texts))
def test_what_is_accepted_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, key: str, text: str
) -> None:
    """`config.yml` beside a run repeats it, whatever the texts in it."""
    file = tmp_path_factory.getbasetemp() / "saved.yml"
    with contextlib.suppress(ConfigError):
        cfg = load_config(None, [key, text])
        (file).write_text(cfg.dump())
        assert load_config(file) == cfg


yaml_texts = st.one_of(
    st.text(max_size=40),
    st.tuples(st.sampled_from(KEYS), st.one_of(literals.map(repr), odd_texts, st.text(max_size=20))).map(
        lambda pair: "\n".join(
            [f"{pair[0].partition('.')[0]}:", f"  {pair[0].rpartition('.')[2]}: {pair[1]}"]
        )
    ),
    st.sampled_from(
        [
            "MODEL: &a\n  HEAD: *a",
            "MODEL: &a\n  MODEL: *a",
            "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nMODEL:\n  HEAD: [*c, *c]",
            "MODEL:\n  HEAD: 2\nMODEL:\n  HEAD: 4",
            "MODEL:\n  HEAD: 2\n  HEAD: 4",
            "MODEL.HEAD: 2\nMODEL: {HEAD: 4}",
            "MODEL:\n  " + "x" * 5_000 + ": 2\n  " + "x" * 5_000 + ": 4",
            "a: &a {<<: [*a]}",
            "a0: &a0 {x: 1}\n"
            + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 99)),
            "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 12)),
            "MODEL: {HEAD: [&a [x, x], &b [*a, *a], &c [*b, *b], &d [*c, *c], &e [*d, *d], [*e, *e]]}",
            "MODEL: {<<: {HEAD: 2}, HEAD: 4}",
            "MODEL:\n  NAME: 2024-13-45",
            "MODEL:\n  NAME: !!timestamp x",
            "MODEL:\n  HDM: !!bool x",
            "MODEL:\n  HEAD: !!int ''",
            "MODEL:\n  NAME: !!python/object/apply:os.system ['true']",
            "MODEL:\n  SIE_COE: .nan",
            "MODEL:\n  SIE_COE: .inf",
            "MODEL:\n  1: 2",
            "MODEL:\n  ? [1, 2]\n  : 3",
            "MODEL:",
            "[" * 1_000,
            "MODEL: " + "{" * 1_000,
            "SOLVER:\n  SEED: 0x" + "f" * 20_000,
            "MODEL:\n  DEVICE_ID: 0x" + "f" * 20_000,
            "SOLVER:\n  SEED: " + "9" * 10_000,
            "%YAML 9.9\n---\n",
            "--- 1\n--- 2",
            "\ufeffMODEL:\n  HEAD: 2",
        ]
    ),
)


@settings(fuzz, max_examples=200)
@given(yaml_texts)
def test_random_files(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "random.yml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    message = refusal([], file)
    assert not message or "random.yml" in message or any(key in message for key in KEYS)
