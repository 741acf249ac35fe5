"""The command: the table of a drawn miniature, and what it refuses."""

import logging
from pathlib import Path

import pytest
from PIL import Image

from errors import UserError
from tools.describe_images import main as describe


@pytest.fixture(autouse=True)
def _keep_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up its own log, which would take the place of pytest's."""
    monkeypatch.setattr("tools.describe_images.setup_log", lambda: logging.getLogger().setLevel(logging.INFO))


def test_the_table(mini_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    describe([str(mini_root / "RGBNT201"), "--triples", "6"])
    assert "6 of 48 triples" in caplog.messages[0]
    lines = {line.split("  ")[0] for line in caplog.messages}
    assert {"RGB", "NI", "TI", "brightness", "sharpness cam1", "sharpness cam2", "power to 0.5"} <= lines
    assert "by chance" in caplog.messages[-1]
    row = next(line for line in caplog.messages if line.startswith("brightness"))
    low, middle, high, real = (float(text) for text in row.split()[1:5])
    assert 0.0 < low <= middle <= high < 1.0
    assert real == 0.24


def test_the_sheet_has_a_row_for_each_identity(mini_root: Path, tmp_path: Path) -> None:
    """Four test identities, two cameras, two views, three modalities of 192 x 96 pixels."""
    describe([str(mini_root / "RGBNT201"), "--triples", "1", "--sheet", str(tmp_path / "sheet.png")])
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (2 * 2 * 3 * 96, 4 * 196)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere holds no images"),
        ([".", "--layout", "Market"], "unknown data set 'Market'.*RGBNT201"),
        ([".", "--triples", "-1"], "--triples must be 0 or more, not -1"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe(arguments)
