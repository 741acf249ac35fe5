"""Reports that the project itself has written, of a model with SDTPS and of one with slimming alone."""

from pathlib import Path

import pytest
from browser_page import find, numbers, open_report, texts, wait_until
from report_steps import press, shown_query, shown_ranking, wait_for_overlay
from selenium import webdriver
from selenium.webdriver.support.ui import Select

import test_net as test_entry
import train_net as train_entry
from conftest import SMALL_MODEL

pytest_plugins = ("browser_driver", "report_fixtures")
pytestmark = pytest.mark.browser


def write_report(folder: Path, overrides: list[str]) -> Path:
    """Train two epochs on the miniature, evaluate all conditions, and report."""
    run, report = folder / "run", folder / "report"
    train_entry.main(["--config_file", str(SMALL_MODEL), *overrides, "OUTPUT_DIR", str(run)])
    arguments = ["--config_file", str(run / "config.yml"), "--missing", "all", "--report", str(report)]
    test_entry.main([*arguments, "TEST.WEIGHT", str(run / "last.pth")])
    return report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    return write_report(tmp_path_factory.mktemp("sdtps"), mini_settings)


def test_overview(page: webdriver.Chrome, report: Path) -> None:
    open_report(page, report)
    assert texts(page, "h1") == ["SDTPS on RGBNT201"]
    words = " ".join(texts(page, "main"))
    for word in ("original + fused", "untrained", "without NI, TI", "best possible", "backbone"):
        assert word in words
    assert not [text for text in texts(page, "td") if "undefined" in text or "NaN" in text]


def test_query_pattern_overlay_filter(page: webdriver.Chrome, report: Path) -> None:
    open_report(page, report, "#tab=ranks")
    hardest = shown_query(page)
    press(page, "j")
    wait_until(page, lambda: shown_query(page) != hardest)
    rows = numbers(page, "#query-list [role='option']", "row")
    assert len(rows) == 16
    find(page, f"#query-list [role='option'][data-row='{rows[3]}']").click()
    wait_until(page, lambda: shown_query(page) == rows[3])
    ranking = shown_ranking(page)
    assert len(ranking) == 14  # 16 triples, less the two of the query's person and camera

    rankings = set()
    for pattern in ("1", "2", "3"):
        page.execute_script("REPORT.state.set({ pattern: Number(arguments[0]) })", pattern)
        wait_until(page, lambda: len(shown_ranking(page)) == 14)
        rankings.add(tuple(shown_ranking(page)))
    assert len(rankings) > 1
    for overlay in ("kept", "scores", "tokens"):
        find(page, f"#overlay-control button[data-value='{overlay}']").click()
        wait_for_overlay(page, overlay)
    page.execute_script("REPORT.state.set({ condition: 'r' })")
    wait_until(page, lambda: len(texts(page, "#query .missing")) == 1)
    wait_for_overlay(page, "tokens")

    Select(find(page, "#filter-person")).select_by_visible_text("9")
    wait_until(page, lambda: len(numbers(page, "#query-list [role='option']", "row")) == 4)


def test_a_model_with_slimming_alone(
    page: webdriver.Chrome, tmp_path: Path, mini_settings: list[str]
) -> None:
    options = ["MODEL.USE_SDTPS", "False", "MODEL.SLIM_LAYERS", "[2, 3]"]
    report = write_report(tmp_path, [*mini_settings, *options])
    open_report(page, report, "#tab=ranks&overlay=tokens")  # there are none: the page starts without
    assert texts(page, "h1") == ["Baseline, slimmed, on RGBNT201"]
    assert texts(page, "#overlay-control button") == ["Off", "Kept", "Scores"]
    for overlay in ("kept", "scores"):
        press(page, "o")
        wait_for_overlay(page, overlay)
    assert texts(page, "#overlay-control select.source option") == ["total"]
