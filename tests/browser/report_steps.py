"""Steps that several tests of the report's page share."""

from browser_page import numbers, wait_until
from made_up_report import MadeUpReport
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains


def press(page: webdriver.Chrome, *keys: str) -> None:
    for key in keys:
        ActionChains(page).send_keys(key).perform()


def shown_query(page: webdriver.Chrome) -> int:
    return numbers(page, "#query", "row")[0]


def shown_ranking(page: webdriver.Chrome) -> list[int]:
    return numbers(page, "#hits .hit", "row")


def expected_ranking(report: MadeUpReport, condition: str, pattern: int, query: int) -> list[int]:
    """The rows that the page must show: the listed ones, and the first positive if it lies beyond."""
    ranking = report.rankings[condition, pattern]
    match = ranking["match"][query]
    beyond = [match[1]] if match and match[0] > len(ranking["rows"][query]) else []
    return ranking["rows"][query] + beyond


def canvas_alpha(page: webdriver.Chrome, selector: str) -> list[int]:
    """The opacity in the middle of each patch of the first canvas that matches, row by row."""
    script = """
        const canvas = document.querySelector(arguments[0]);
        const [rows, columns] = REPORT.summary.grid;
        const { width, height } = canvas;
        const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        const middle = (index, count, size) => Math.floor((index + 0.5) * size / count);
        return Array.from({ length: rows * columns }, (_, patch) => {
            const y = middle(Math.floor(patch / columns), rows, height);
            return pixels[4 * (y * width + middle(patch % columns, columns, width)) + 3];
        });
    """
    return list(page.execute_script(script, selector))


def wait_for_overlay(page: webdriver.Chrome, overlay: str, root: str = "#pane-body") -> None:
    """Wait until every image below `root` has been painted with the overlay."""
    script = """
        const images = [...document.querySelectorAll(`${arguments[0]} .modality:not(.missing)`)];
        const painted = (node) => node.querySelector("canvas")?.dataset.overlay === arguments[1];
        return images.length > 0 && images.every(painted);
    """
    wait_until(page, lambda: page.execute_script(script, root, overlay))
