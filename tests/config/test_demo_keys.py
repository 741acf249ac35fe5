"""DeMo's keys that nothing reads here: accepted, refused or reported, and never stored."""

from pathlib import Path

import pytest

from config import ConfigError, get_cfg, load_config, stored_config, warn_about_unused
from config.demo_keys import DEMO_KEYS
from config.schema import KEYS, flatten

REFUSED = [key for key, (accepted, _) in DEMO_KEYS.items() if accepted is not None]


def test_no_key_is_in_both_tables() -> None:
    assert not DEMO_KEYS.keys() & KEYS.keys()
    assert len(REFUSED) == 9


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_that_asks_for_a_missing_part_is_refused_with_the_reason(key: str) -> None:
    accepted, reason = DEMO_KEYS[key]
    asked = "True" if accepted is False else "yes" if accepted == "no" else "something"
    with pytest.raises(ConfigError) as caught:
        load_config(None, [key, asked])
    shown = asked if asked == "True" else repr(asked)
    assert str(caught.value) == f"{key} {shown} cannot be used: {reason}; set it to {accepted!r}"
    load_config(None, [key, asked, key, str(accepted)])  # the later override holds


def test_they_are_reported_in_one_line_and_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "demo.yml"
    file.write_text("MODEL: {PROMPT: False, IF_WITH_CENTER: no}\nSOLVER: {STEPS: [30, 50]}\n")
    cfg = load_config(file, ["SOLVER.GAMMA", "anything", "MODEL.DIST_TRAIN", "off"])
    assert cfg == load_config()
    assert {key for key, _ in flatten(cfg)} == KEYS.keys()
    assert not caplog.records  # the log file is not open yet
    warn_about_unused(cfg.clone())
    assert caplog.messages == [
        "keys of DeMo that have no effect here: "
        "MODEL.PROMPT, MODEL.IF_WITH_CENTER, SOLVER.STEPS, SOLVER.GAMMA, MODEL.DIST_TRAIN"
    ]


def test_they_are_left_out_of_a_stored_configuration(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cfg = stored_config("MODEL: {SIE_COE: 1, ADAPTER: off}\nSOLVER: {STEPS: [40, 70]}\n", "last.pth")
    assert cfg == get_cfg()
    warn_about_unused(cfg)  # a file that the user names is another matter
    assert caplog.messages == [
        "last.pth has keys of DeMo that have no effect here: MODEL.ADAPTER, SOLVER.STEPS"
    ]
    with pytest.raises(ConfigError, match=r"MODEL\.ADAPTER True cannot be used"):
        stored_config("MODEL: {ADAPTER: true}", "last.pth")


@pytest.mark.parametrize("text", ["MODEL.PROMPT: 3", "MODEL: {PROMPT: }", "DATALOADER.SAMPLER: [1]"])
def test_a_value_of_another_type_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "demo.yml").write_text(text)
    with pytest.raises(ConfigError, match=r"demo\.yml: (MODEL\.PROMPT|DATALOADER\.SAMPLER) takes"):
        load_config(tmp_path / "demo.yml")
