"""The report's page with little, strange or broken data."""

import json
import shutil
from pathlib import Path

import pytest
from browser_page import (
    find,
    map_point,
    no_console_errors,
    no_network,
    numbers,
    open_report,
    point_at,
    texts,
    wait_until,
)
from made_up_report import HOSTILE_NAMES, MadeUpReport, write_minimal_report
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

pytest_plugins = ("browser_driver",)
pytestmark = pytest.mark.browser


@pytest.fixture
def report(tmp_path: Path) -> MadeUpReport:
    return write_minimal_report(tmp_path / "a report & more")


def rewrite_summary(report: MadeUpReport, **changes: object) -> None:
    report.summary.update(changes)
    text = f'REPORT.receive("summary", {json.dumps(report.summary)});'
    (report.folder / "data" / "summary.js").write_text(text)


def test_model_without_selection_and_training(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    open_report(driver, report.folder)
    assert texts(driver, ".card h2") == ["Results", "CMC", "How it was made"]
    assert (
        "gallery images of the same person and scene as the query are left out"
        in find(driver, ".masthead").text
    )
    assert "re-ranking" in find(driver, ".masthead").text
    assert not driver.find_elements(By.ID, "condition-switch")
    assert not driver.find_elements(By.CSS_SELECTOR, "#switches button")
    ActionChains(driver).send_keys("2omp[]?").perform()
    assert find(driver, "#help").is_displayed()
    assert not find(driver, "#overlay-control").is_displayed()
    hardest = report.hardest_first("complete", 1)[0]
    assert numbers(driver, "#hits .hit", "row") == report.rankings["complete", 1]["rows"][hardest]
    no_console_errors(driver)
    no_network(driver)


def test_one_epoch_of_training_is_a_dot_in_each_chart(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    rewrite_summary(report, training={"epoch": [1], "loss": [5.2], "mAP": [21.6], "rank_1": [25.6]})
    open_report(driver, report.folder)
    script = """
        const charts = [...document.querySelectorAll("#card-training .chart > svg")];
        return charts.map((chart) => chart.querySelectorAll("circle").length);
    """
    assert driver.execute_script(script) == [1, 2]
    no_console_errors(driver)


def test_axes_of_perfect_scores_after_two_epochs(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    perfect = {**report.summary["results"][0], "cmc": [100.0] * 8}
    training = {"epoch": [1, 2], "loss": [2.4, 2.3], "mAP": [None, 100.0], "rank_1": [None, 100.0]}
    rewrite_summary(report, results=[perfect], training=training)
    open_report(driver, report.folder)
    script = """
        const texts = (chart, anchor) =>
            [...chart.querySelectorAll(`text[text-anchor=${anchor}]`)].map((node) => node.textContent);
        const charts = [...document.querySelectorAll(".chart > svg")];
        return charts.map((chart) => [texts(chart, "end"), texts(chart, "middle")]);
    """
    cmc, loss, scores = driver.execute_script(script)
    for y_axis in (cmc[0], scores[0]):  # 100 % is at the top
        assert len(y_axis) > 1
        assert y_axis[-1] == "100"
    assert loss[1] == ["1", "2", "epoch"]
    no_console_errors(driver)


def test_cost_that_could_not_be_measured(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    rewrite_summary(report, cost=None)
    for tab in ("overview", "ranks", "map"):
        open_report(driver, report.folder, f"#tab={tab}")
        assert find(driver, f"#panel-{tab}").is_displayed()
    assert not driver.find_elements(By.ID, "card-cost")
    no_console_errors(driver)


def test_names_are_text_never_markup(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    open_report(driver, report.folder, "#tab=ranks&query=0")
    assert find(driver, "h1").text == report.summary["title"]
    assert texts(driver, "#query .name")[0].startswith(HOSTILE_NAMES[0])
    assert texts(driver, "#card-origin pre") == [report.summary["config"]]
    assert not driver.find_elements(By.CSS_SELECTOR, "main b b, main img[src='x'], pre script")
    no_console_errors(driver)
    no_network(driver)


def test_skipped_query_is_listed_last_and_said(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    open_report(driver, report.folder, "#tab=ranks&query=3")
    assert numbers(driver, ".query-row", "row")[-1] == 3
    assert "not scored" in find(driver, "#query").text
    assert "skipped" in find(driver, "#query-3").text
    assert "1 without a positive skipped" in texts(driver, "#card-results .note")[0]
    no_console_errors(driver)


def test_gallery_triple_on_the_map_is_no_query(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    coordinates = {"x": list(range(10)), "y": [0.0] * 10}
    rewrite_summary(report, feature_map={"1": coordinates})
    open_report(driver, report.folder, "#tab=map&query=1")
    for row, tab in ((9, "map"), (2, "ranks")):
        point_at(driver, map_point(driver, row), click=True)
        wait_until(driver, find(driver, f"#panel-{tab}").is_displayed)
    assert numbers(driver, "#query", "row") == [2]
    no_console_errors(driver)


def test_wide_images_are_stacked(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    rewrite_summary(report, image={"width": 128, "height": 64})
    open_report(driver, report.folder, "#tab=ranks")
    boxes = [node.rect for node in driver.find_elements(By.CSS_SELECTOR, "#query .modality")]
    assert len({box["x"] for box in boxes}) == 1
    assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})
    assert boxes[0]["width"] == pytest.approx(2 * boxes[0]["height"], rel=0.02)


def test_ten_thousand_triples(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    size = 10_000
    triples = {
        "names": [f"{row:05d}.jpg" for row in range(size)],
        "person": [row // 10 for row in range(size)],
        "camera": [1 + row % 8 for row in range(size)],
        "scene": [0] * size,
    }
    ranking = {
        "ap": [row % 101 for row in range(size)],
        "inp": [1.0] * size,
        "first": [1 + row % 3 for row in range(size)],
        "rows": [[row % 10] for row in range(size)],
        "distances": [[0.5]] * size,
        "match": [[1, 1, 0.5]] * size,
    }
    coordinates = {"x": [row % 100 for row in range(size)], "y": [row // 100 for row in range(size)]}
    rewrite_summary(
        report, triples=triples, queries=list(range(size)), protocol="camera", feature_map={"1": coordinates}
    )
    text = f'REPORT.receive("ranking_complete_1", {json.dumps(ranking)});'
    (report.folder / "data" / "ranking_complete_1.js").write_text(text)
    open_report(driver, report.folder, "#tab=ranks&query=1")
    assert find(driver, "#query-count").text == "10,000 queries"
    assert len(numbers(driver, ".query-row", "row")) < 40
    ActionChains(driver).send_keys("j").perform()
    assert driver.execute_script("return REPORT.state.values.query") == 102
    driver.execute_script("document.getElementById('tab-map').click()")
    assert find(driver, "#map-canvas").is_displayed()
    no_network(driver)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "data/summary.js is missing or broken"),
        ("REPORT.receive('summary', {", "data/summary.js is missing or broken"),
        ("REPORT.receive('summary', {title: 'x'});", "data/summary.js lacks: modalities"),
    ],
)
def test_broken_summary_is_said(
    driver: webdriver.Chrome, report: MadeUpReport, content: str | None, message: str
) -> None:
    path = report.folder / "data" / "summary.js"
    path.unlink() if content is None else path.write_text(content)
    driver.get(f"{report.folder.as_uri()}/index.html")
    assert message in wait_until(driver, lambda: find(driver, "#fatal").text)
    driver.get_log("browser")


def test_missing_image_is_marked(driver: webdriver.Chrome, report: MadeUpReport) -> None:
    (report.folder / "images" / "0.jpg").unlink()
    shutil.rmtree(report.folder / "data" / "triples", ignore_errors=True)
    open_report(driver, report.folder, "#tab=ranks&query=0")
    wait_until(driver, lambda: len(driver.find_elements(By.CSS_SELECTOR, "#query .unreadable")) == 3)
    no_console_errors(driver, allowed="ERR_FILE_NOT_FOUND")
