"""The feature map."""

import pytest
from browser_page import find, map_point, numbers, open_report, point_at, state_of, wait_until
from made_up_report import MadeUpReport
from report_steps import press, shown_query
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

pytest_plugins = ("browser_driver", "report_fixtures")
pytestmark = pytest.mark.browser


def test_feature_map(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=map&query=5")
    points = full_report.summary["feature_map"]["3"]
    lonely = max(range(836), key=lambda row: points["x"][row])  # nothing lies over the outermost point
    at = wait_until(page, lambda: map_point(page, lonely))
    point_at(page, at)
    wait_until(page, lambda: numbers(page, "#map-canvas", "hovered") == [lonely])
    assert f"id {full_report.summary['triples']['person'][lonely]}" in find(page, "#point-tip").text
    colours = set()
    for colour in ("person", "camera", "ap"):
        find(page, f"#map-colour button[data-value='{colour}']").click()
        page.execute_script("REPORT.featureMap.scatter.draw()")
        colours.add(page.execute_script("return document.getElementById('map-canvas').toDataURL()"))
    assert len(colours) == 3
    press(page, "p")
    moved = map_point(page, lonely)
    assert moved != at, "each pattern has its own map"
    press(page, "p", "p")
    point_at(page, at, click=True)
    wait_until(page, lambda: state_of(page)["tab"] == "ranks")
    assert shown_query(page) == lonely


def test_arrows_of_the_map_follow_the_list(page: webdriver.Chrome, full_report: MadeUpReport) -> None:
    open_report(page, full_report.folder, "#tab=map")
    press(page, Keys.ARROW_DOWN)
    query = full_report.hardest_first("complete", 3)[1]
    assert f"query #{query}," in find(page, "#panel-map .legend").text
