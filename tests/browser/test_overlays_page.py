"""Overlays: kept patches, scores, tokens, the patch under the pointer, the enlarged view."""

import base64
from pathlib import Path

import numpy as np
import pytest
from browser_page import (
    find,
    no_console_errors,
    numbers,
    open_report,
    requested_urls,
    state_of,
    texts,
    wait_until,
)
from made_up_data import GRID
from made_up_report import MadeUpReport, write_full_report
from report_steps import canvas_alpha, press, shown_ranking, wait_for_overlay
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytest_plugins = ("browser_driver", "report_fixtures")
pytestmark = pytest.mark.browser


def test_overlay_of_kept_patches(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    query = 50
    open_report(page, full_report.folder, f"#tab=ranks&query={query}")
    assert not [url for url in requested_urls(page) if "/triples/" in url], "patch data is loaded on demand"
    find(page, "#overlay-control button[data-value='kept']").click()
    wait_for_overlay(page, "kept")
    for modality in ("RGB", "NI", "TI"):
        alpha = canvas_alpha(page, f"#query [data-modality='{modality}'] canvas")
        assert [patch for patch, value in enumerate(alpha) if value == 0] == full_report.triple(query)[
            "complete"
        ][modality]["kept"]
    row = shown_ranking(page)[0]
    alpha = canvas_alpha(page, "#hits .hit [data-modality='NI'] canvas")
    assert [p for p, value in enumerate(alpha) if value == 0] == full_report.triple(row)["complete"]["NI"][
        "kept"
    ]
    page.execute_script("REPORT.state.set({ condition: 't' })")
    wait_until(page, lambda: page.find_elements(By.CSS_SELECTOR, "#query .missing"))
    wait_for_overlay(page, "kept")
    assert not page.find_elements(By.CSS_SELECTOR, "#query [data-modality='TI'] canvas")
    alpha = canvas_alpha(page, "#query [data-modality='NI'] canvas")
    assert [p for p, value in enumerate(alpha) if value == 0] == full_report.triple(query)["t"]["NI"]["kept"]
    find(page, "#overlay-control button[data-value='off']").click()
    assert not page.find_elements(By.CSS_SELECTOR, "#pane-body canvas")


def total_scores(report: MadeUpReport, row: int) -> np.ndarray:
    """The total scores of all patches of a triple, as the file holds them, (modalities, patches)."""
    parts = report.triple(row)["complete"].values()
    raw = [np.frombuffer(base64.b64decode(part["scores"]), np.uint8)[: GRID[0] * GRID[1]] for part in parts]
    return np.stack(raw) / 255 * 1.5


def test_overlay_of_scores_and_tokens(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&query=50&overlay=scores")
    wait_for_overlay(page, "scores")
    pixels = "return document.querySelector('#query canvas').toDataURL()"
    total = page.execute_script(pixels)
    shown = [50, *shown_ranking(page)]
    scores = np.concatenate([total_scores(full_report, row) for row in shown])
    assert texts(page, "#overlay-control .scale-end") == [f"{scores.min():.2f}", f"{scores.max():.2f}"]
    source = Select(find(page, "#overlay-control .source"))
    assert [option.text for option in source.options] == [
        "total",
        "learned",
        "own",
        "NI | RGB | RGB",
        "TI | TI | NI",
    ]
    source.select_by_value("3")
    assert texts(page, "#query .modality-name") == ["RGB · NI", "NI · RGB", "TI · RGB"]
    source.select_by_value("1")
    assert texts(page, "#overlay-control .scale-end") == ["0.00", "1.00"]
    learned = page.execute_script(pixels)
    find(page, "#overlay-control button[data-value='tokens']").click()
    wait_for_overlay(page, "tokens")
    by_colour = page.execute_script(pixels)
    press(page, "]", "]")
    assert find(page, "#overlay-control .token-name").text == "2 of 25"
    one_token = page.execute_script(pixels)
    press(page, "[", "[", "[")
    assert state_of(page)["token"] == "extra"
    extra = page.execute_script(pixels)
    assert len({total, learned, by_colour, one_token, extra}) == 5


def test_decoded_weights_and_extra_token(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&query=50&overlay=tokens")
    wait_for_overlay(page, "tokens")
    first, extra = page.execute_script("""
        const { data } = REPORT.data.peek("triple", 50);
        const view = REPORT.patches.view(data.complete.TI);
        return [1, "extra"].map((token) => REPORT.patches.tokenWeights(view, token));
    """)
    part = full_report.triple(50)["complete"]["TI"]
    weights = np.frombuffer(base64.b64decode(part["weights"]), np.uint8)[: len(part["kept"])]
    expected = np.zeros(GRID[0] * GRID[1])
    expected[part["kept"]] = weights / 255 * part["weight_max"]
    assert first == pytest.approx(expected)
    discarded = np.setdiff1d(np.arange(len(expected)), part["kept"])
    shares = np.exp(total_scores(full_report, 50)[2][discarded])
    expected = np.zeros(len(expected))
    expected[discarded] = shares / shares.sum()
    assert extra == pytest.approx(expected)


def test_tooltip_of_a_patch(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&query=50&overlay=kept")
    wait_for_overlay(page, "kept")
    image = find(page, "#query [data-modality='NI']")
    ActionChains(page).move_to_element(image).perform()
    tip = wait_until(page, lambda: find(page, "#patch-tip").text)
    kept = full_report.triple(50)["complete"]["NI"]["kept"]
    row, column = (int(word) - 1 for word in tip.replace(",", " ").split() if word.isdigit())
    assert (row, column) in {(r, c) for r in (7, 8) for c in (3, 4)}
    assert ("kept" in tip) == (row * 8 + column in kept)
    for word in ("total", "learned", "own: NI", "RGB", "TI", "token"):
        assert word in tip
    assert len(page.find_elements(By.CSS_SELECTOR, ".patch-cursor")) == 3


def test_sources_without_weight_are_not_shown(page: webdriver.Chrome, tmp_path: Path) -> None:
    report = write_full_report(tmp_path, triples=30, identities=4, learned=False)
    open_report(page, report.folder, "#tab=ranks&query=5&overlay=scores&source=4")
    wait_for_overlay(page, "scores")
    assert state_of(page)["source"] == 0, "there are three sources and the total"
    options = Select(find(page, "#overlay-control .source")).options
    assert [option.text for option in options] == ["total", "own", "NI | RGB | RGB", "TI | TI | NI"]
    ActionChains(page).move_to_element(find(page, "#query [data-modality='NI']")).perform()
    wait_until(page, lambda: find(page, "#patch-tip").text)
    assert texts(page, "#patch-tip .tip-score span") == ["total", "own: NI", "RGB", "TI"]


def test_patches_by_keyboard(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&query=50&overlay=kept")
    wait_for_overlay(page, "kept")
    find(page, "#overlay-control button[data-value='kept']").click()
    press(page, Keys.TAB)  # to the first image of the query
    wait_until(page, lambda: "row 9, column 5" in find(page, "#patch-tip").text)
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert "row 8, column 6" in find(page, "#patch-tip").text
    assert state_of(page)["query"] == 50


def test_dialog_compares_query_and_gallery(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    query = full_report.hardest_first("complete", 3)[500]
    open_report(page, full_report.folder, f"#tab=ranks&query={query}&overlay=kept")
    rows = shown_ranking(page)
    find(page, "#hits .hit[data-rank='3']").click()
    wait_until(page, find(page, "#compare").is_displayed)
    assert numbers(page, "#compare .compare-side", "row") == [query, rows[2]]
    wait_for_overlay(page, "kept", "#compare")
    press(page, Keys.ARROW_RIGHT)
    assert numbers(page, "#compare .compare-side", "row") == [query, rows[3]]
    press(page, "o")
    wait_for_overlay(page, "scores", "#compare")
    press(page, Keys.ESCAPE)
    wait_until(page, lambda: not find(page, "#compare").is_displayed())
    wait_for_overlay(page, "scores")


def test_old_patch_data_is_let_go(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&overlay=kept")
    page.execute_script("REPORT.data.CAPACITY.triple = 30")
    for query in (100, 400, 700):
        page.execute_script("REPORT.state.set({ query: arguments[0] })", query)
        wait_for_overlay(page, "kept")
    assert page.execute_script("return REPORT.data.kept.triple.size") <= 30
    assert page.execute_script("return document.querySelectorAll('head script').length") == 0


def test_missing_patch_data_is_said(driver: webdriver.Chrome, full_report: MadeUpReport) -> None:
    lost = full_report.folder / "data" / "triples" / "60.js"
    hidden = lost.rename(lost.with_suffix(".away"))
    try:
        open_report(driver, full_report.folder, "#tab=ranks&query=60&overlay=kept")
        notes = wait_until(driver, lambda: texts(driver, "#query .data-note"))
        assert notes == ["data/triples/60.js is missing"]
        no_console_errors(driver, allowed="ERR_FILE_NOT_FOUND")
    finally:
        hidden.rename(lost)
