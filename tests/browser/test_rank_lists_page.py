"""Rank lists: choosing, filtering, switching, keys and the address."""

from pathlib import Path

import pytest
from browser_page import find, no_console_errors, numbers, open_report, state_of, texts, wait_until
from made_up_report import MadeUpReport
from report_steps import expected_ranking, press, shown_query, shown_ranking, wait_for_overlay
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytest_plugins = ("browser_driver", "report_fixtures")
pytestmark = pytest.mark.browser

MOST_LIST_ROWS = 40
"""Rows of the query list in the document, of 836."""


def test_click_on_a_query_shows_its_ranking(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks")
    order = full_report.hardest_first("complete", 3)
    assert numbers(page, ".query-row", "row")[:8] == order[:8]
    assert shown_query(page) == order[0]
    query = order[3]
    find(page, f"#query-{query}").click()
    assert shown_query(page) == query
    ranking = full_report.rankings["complete", 3]
    about = find(page, "#query .about").text
    assert f"id {full_report.summary['triples']['person'][query]}" in about
    assert f"{ranking['ap'][query]:.1f}" in about
    assert f"rank {ranking['first'][query]}" in about
    assert shown_ranking(page) == expected_ranking(full_report, "complete", 3, query)
    distances = texts(page, "#hits .distance")[: len(ranking["rows"][query])]
    assert distances == [f"{distance:.3f}" for distance in ranking["distances"][query]]


def test_positives_and_negatives_have_a_sign(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    query = full_report.hardest_first("complete", 3)[400]
    open_report(page, full_report.folder, f"#tab=ranks&query={query}")
    person = full_report.summary["triples"]["person"]
    rows = shown_ranking(page)
    expected = ["✓" if person[row] == person[query] else "✗" for row in rows]
    assert texts(page, "#hits .sign") == expected
    assert {"✓", "✗"} == set(expected)


def test_first_positive_beyond_the_list_follows_a_gap(
    page: webdriver.Chrome, full_report: MadeUpReport
) -> None:
    ranking = full_report.rankings["complete", 3]
    query = next(q for q, match in enumerate(ranking["match"]) if match and match[0] > 22)
    open_report(page, full_report.folder, f"#tab=ranks&query={query}")
    rank = ranking["match"][query][0]
    assert numbers(page, "#hits .hit", "rank") == [*range(1, 21), rank]
    assert f"{rank - 21} more negative" in find(page, "#hits .gap").text


def test_pattern_and_condition_switch_the_ranking(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    query = 77
    open_report(page, full_report.folder, f"#tab=ranks&query={query}")
    seen = [shown_ranking(page)]
    find(page, "#pattern-switch button[data-value='1']").click()
    wait_until(page, lambda: shown_ranking(page) == expected_ranking(full_report, "complete", 1, query))
    seen.append(shown_ranking(page))
    Select(find(page, "#condition-switch")).select_by_value("n")
    wait_until(page, lambda: shown_ranking(page) == expected_ranking(full_report, "n", 1, query))
    seen.append(shown_ranking(page))
    assert seen[0] != seen[1] != seen[2]
    assert f"{full_report.rankings['n', 1]['ap'][query]:.1f}" in find(page, "#query .about").text
    missing = page.find_elements(By.CSS_SELECTOR, "#pane-body .modality.missing")
    assert {node.get_attribute("data-modality") for node in missing} == {"NI"}
    assert len(missing) == len(page.find_elements(By.CSS_SELECTOR, "#pane-body .triple"))
    find(page, "#filter-wrong").click()
    wrong = [
        row for row in full_report.hardest_first("n", 1) if full_report.rankings["n", 1]["first"][row] > 1
    ]
    assert find(page, "#query-count").text == f"{len(wrong)} of 836 queries"


def test_filters_and_sorting(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks")
    triples, order = full_report.summary["triples"], full_report.hardest_first("complete", 3)

    def listed(expected: list[int]) -> None:
        assert find(page, "#query-count").text.startswith(f"{len(expected)} of 836")
        indices, rows = (numbers(page, ".query-row", name) for name in ("index", "row"))
        assert [row for _, row in sorted(zip(indices, rows, strict=True))][:5] == expected[:5]

    Select(find(page, "#filter-camera")).select_by_value("1")
    listed([row for row in order if triples["camera"][row] == 1])
    Select(find(page, "#filter-person")).select_by_value("260")
    both = [row for row in order if triples["camera"][row] == 1 and triples["person"][row] == 260]
    listed(both)
    Select(find(page, "#sort")).select_by_value("name")
    listed(sorted(both, key=lambda row: triples["names"][row]))
    find(page, "#filter-reset").click()
    Select(find(page, "#sort")).select_by_value("ap")
    assert find(page, "#query-count").text == "836 queries"
    find(page, "#filter-text").send_keys("#123")
    listed([123])
    press(page, Keys.ENTER)
    assert shown_query(page) == 123
    find(page, "#filter-text").clear()
    find(page, "#filter-text").send_keys("266")
    listed([row for row in order if triples["person"][row] == 266])
    find(page, "#filter-text").send_keys("no such name")
    assert find(page, "#query-count").text == "0 of 836 queries"


def test_list_of_836_keeps_the_document_small(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks")
    order = full_report.hardest_first("complete", 3)
    assert 0 < len(numbers(page, ".query-row", "row")) < MOST_LIST_ROWS
    page.execute_script("document.getElementById('query-list').scrollTop = 1e6")
    wait_until(page, lambda: order[-1] in numbers(page, ".query-row", "row"))
    assert len(numbers(page, ".query-row", "row")) < MOST_LIST_ROWS
    assert find(page, f"#query-{order[-1]}").get_attribute("aria-posinset") == "836"


def test_keyboard(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    order = full_report.hardest_first("complete", 3)
    press(page, "2", "j", "j", Keys.ARROW_DOWN, "k")
    assert state_of(page)["query"] == shown_query(page) == order[2]
    assert find(page, ".query-row[aria-selected='true']").get_attribute("data-row") == str(order[2])
    press(page, "p")
    assert state_of(page)["pattern"] == 1
    press(page, "m", "o")
    assert {"condition": "r", "overlay": "kept", "tab": "ranks"}.items() <= state_of(page).items()
    press(page, "o", "]")
    assert {"overlay": "scores", "source": 1}.items() <= state_of(page).items()
    press(page, "/", "j", "p")  # typed, not obeyed
    assert find(page, "#filter-text").get_attribute("value") == "jp"
    assert {"text": "jp", "pattern": 1, "query": order[2]}.items() <= state_of(page).items()
    press(page, Keys.ESCAPE, "?")
    wait_until(page, find(page, "#help").is_displayed)
    press(page, "3")  # the help is open: keys wait
    assert state_of(page)["tab"] == "ranks"
    press(page, Keys.ESCAPE)
    wait_until(page, lambda: not find(page, "#help").is_displayed())
    press(page, "3")
    assert state_of(page)["tab"] == "map"
    press(page, "1")
    assert find(page, "#panel-overview").is_displayed()


def test_address_restores_the_state(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=ranks&query=200")
    Select(find(page, "#filter-camera")).select_by_value("2")
    find(page, "#filter-text").send_keys("cam2")
    find(page, "#pattern-switch button[data-value='2']").click()
    Select(find(page, "#condition-switch")).select_by_value("t")
    find(page, "#overlay-control button[data-value='tokens']").click()
    wait_for_overlay(page, "tokens")
    press(page, "]", "]", "]")
    before = state_of(page)
    assert before["token"] == 3
    wait_until(page, lambda: "token=3" in page.current_url)
    page.refresh()
    wait_until(page, lambda: page.execute_script("return document.body.dataset.ready === 'true'"))
    assert state_of(page) == before
    assert find(page, "#filter-text").get_attribute("value") == "cam2"
    assert shown_ranking(page) == expected_ranking(full_report, "t", 2, 200)


def test_nonsense_in_the_address_is_ignored(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(
        page,
        full_report.folder,
        "#tab=x&query=99999&pattern=7&condition=zzz&overlay=<b>&token=-1&camera=9&sort=",
    )
    defaults = {
        "tab": "overview",
        "pattern": 3,
        "condition": "complete",
        "overlay": "off",
        "token": 0,
        "camera": "",
    }
    assert defaults.items() <= state_of(page).items()


def test_back_returns_to_the_earlier_view(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder)
    find(page, "#tab-ranks").click()
    page.back()
    wait_until(page, find(page, "#panel-overview").is_displayed)


def test_missing_ranking_is_said(driver: webdriver.Chrome, full_report: MadeUpReport) -> None:
    lost = full_report.folder / "data" / "ranking_nt_2.js"
    hidden = Path(lost.rename(lost.with_suffix(".away")))
    try:
        open_report(driver, full_report.folder, "#tab=ranks&condition=nt&pattern=2")
        assert "data/ranking_nt_2.js is missing" in find(driver, "#pane-body").text
        press(driver, "p")
        wait_until(driver, lambda: len(shown_ranking(driver)) >= 20)
        no_console_errors(driver, allowed="ERR_FILE_NOT_FOUND")
    finally:
        hidden.rename(lost)
