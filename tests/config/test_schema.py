"""The table of keys, and the page that is made from it."""

import re
from collections.abc import Iterator

import pytest

from config import ConfigError, between, get_cfg, load_config, one_of, register_key, schema
from config.document import MARK, PAGE, make_page
from config.schema import KEYS, TABLE, Key, find_unused, flatten


@pytest.fixture
def own_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keys that a test registers are gone after it."""
    before = dict(KEYS)
    yield
    KEYS.clear()
    KEYS.update(before)


def test_each_key_has_one_row_and_a_help_text() -> None:
    assert len(TABLE) == len({key.name for key in TABLE}) == len(dict(flatten(get_cfg())))
    assert all(key.help.endswith(".") for key in TABLE)


@pytest.mark.parametrize("key", TABLE, ids=lambda key: key.name)
def test_defaults_pass_their_own_checks(key: Key) -> None:
    assert type(key.default) in (bool, int, float, str, list)
    assert key.check is None or key.check.accept(key.default)
    assert key.default == dict(flatten(get_cfg()))[key.name]


def test_the_page_is_what_the_command_writes() -> None:
    text = PAGE.read_text()
    assert text.count(MARK) == 1
    assert make_page(text) == text, "run python -m config.document"
    assert len(text.split()) <= 2150


def test_the_page_has_every_key_with_its_default_and_its_choices() -> None:
    tables = PAGE.read_text().partition(MARK)[2].partition("## Keys of DeMo")[0]
    rows = {row[1]: row for row in re.finditer(r"^`([\w.]+)` \| `(.*?)` \| (.+)$", tables, re.MULTILINE)}
    assert list(rows) == [key.name for key in TABLE]
    for key in TABLE:
        assert rows[key.name][2] == repr(key.default)
        for choice in key.check.choices if key.check else ():
            assert f"`{choice}`" in rows[key.name][3], key.name


def test_a_later_condition_counts_too() -> None:
    on = ["MODEL.USE_SDTPS", "True", "MODEL.SDTPS_USE_GUMBEL", "True"]
    assert "MODEL.SDTPS_GUMBEL_TAU" not in find_unused(load_config(None, on))
    reasons = find_unused(load_config(None, [*on, "MODEL.SDTPS_BETA", "0.5"]))
    assert reasons["MODEL.SDTPS_GUMBEL_TAU"] == "MODEL.SDTPS_BETA 0.5 leaves no learned part"


@pytest.mark.usefixtures("own_keys")
def test_a_registered_key_has_a_check_as_well() -> None:
    register_key("MODEL.GATE", 0.5, "How far the gate opens.", between(0, 1))
    register_key("MODEL.KIND", "soft", check=one_of("soft", "hard"))
    assert KEYS["MODEL.GATE"].help == "How far the gate opens."
    assert load_config(None, ["MODEL.GATE", "1"]).MODEL.GATE == 1.0
    with pytest.raises(ConfigError, match=r"MODEL\.GATE must be between 0 and 1, not 2\.0"):
        load_config(None, ["MODEL.GATE", "2"])
    with pytest.raises(ConfigError, match=r"MODEL\.KIND must be one of soft, hard, not 'wet'"):
        load_config(None, ["MODEL.KIND", "wet"])
    with pytest.raises(ConfigError, match=r"did you mean MODEL\.GATE"):
        load_config(None, ["MODEL.GATES", "1"])


@pytest.mark.usefixtures("own_keys")
def test_a_registered_key_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the default of MODEL\.GATE must be between 0 and 1, not 3"):
        register_key("MODEL.GATE", 3, check=between(0, 1))
    with pytest.raises(ValueError, match=r"MODEL\.GATE takes a switch, a number, a text or a list"):
        register_key("MODEL.GATE", (1, 2))
    assert "MODEL.GATE" not in schema.KEYS


@pytest.mark.usefixtures("own_keys")
def test_a_cell_that_registers_a_key_may_run_twice() -> None:
    for _ in range(2):
        register_key("MODEL.GATE", 0.5, "How far the gate opens.", between(0, 1))
    with pytest.raises(ValueError, match=r"there is a key MODEL\.GATE already; choose another name"):
        register_key("MODEL.GATE", 0.7, "How far the gate opens.", between(0, 1))
