"""What tests ask of a page in a browser: find, wait, and check that all is quiet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")
LOCAL_SCHEMES = ("file:", "data:", "blob:", "about:")
PATIENCE_S = 30
"""Far more than any step takes; only a failing test waits that long."""


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    """Give the page this size in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def no_console_errors(driver: webdriver.Chrome, allowed: str = "") -> None:
    """Fail on console warnings and errors since the last call, but for those that contain `allowed`."""
    entries = [entry for entry in driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
    messages = [entry["message"] for entry in entries]
    unexpected = [message for message in messages if not (allowed and allowed in message)]
    assert not unexpected, "\n".join(unexpected)


def requested_urls(driver: webdriver.Chrome) -> list[str]:
    """What the page has asked for since the last call, by the performance log."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def no_network(driver: webdriver.Chrome) -> None:
    """Fail if the page has asked for anything that is not on this disk."""
    foreign = [url for url in requested_urls(driver) if not url.startswith(LOCAL_SCHEMES)]
    assert not foreign, "\n".join(foreign)


def open_report(driver: webdriver.Chrome, folder: Path, state: str = "") -> None:
    """Open a report from disk, at a state as in its address, and wait until it is ready."""
    driver.get("about:blank")  # otherwise only the hash would change
    driver.get(f"{folder.as_uri()}/index.html{state}")
    wait_until(driver, lambda: driver.execute_script("return document.body.dataset.ready === 'true'"))


def wait_until(driver: webdriver.Chrome, condition: Callable[[], T]) -> T:
    """Wait until the condition holds; a failing element lookup counts as not yet."""
    return WebDriverWait(driver, PATIENCE_S, poll_frequency=0.03, ignored_exceptions=(IndexError,)).until(
        lambda _: condition(), message="the page did not get there"
    )


def find(driver: webdriver.Chrome, selector: str) -> WebElement:
    """The only element that matches the CSS selector."""
    (element,) = driver.find_elements(By.CSS_SELECTOR, selector)
    return element


def texts(driver: webdriver.Chrome, selector: str) -> list[str]:
    """The text of all elements that match, in one call."""
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
    return list(driver.execute_script(script, selector))


def numbers(driver: webdriver.Chrome, selector: str, attribute: str) -> list[int]:
    """A numeric data attribute of all elements that match, in one call."""
    nodes = "return [...document.querySelectorAll(arguments[0])]"
    script = f"{nodes}.map((node) => Number(node.dataset[arguments[1]]))"
    return list(driver.execute_script(script, selector, attribute))


def state_of(driver: webdriver.Chrome) -> dict[str, Any]:
    """What the page thinks it shows."""
    return dict(driver.execute_script("return {...REPORT.state.values}"))


def map_point(driver: webdriver.Chrome, row: int) -> dict[str, float]:
    """Where a triple is on the feature map, in the window."""
    script = """
        const { scatter } = REPORT.featureMap;
        const box = scatter.canvas.getBoundingClientRect();
        const [x, y] = scatter.position(arguments[0]);
        return { x: box.left + x, y: box.top + y };
    """
    return dict(driver.execute_script(script, row))


def point_at(driver: webdriver.Chrome, at: dict[str, float], *, click: bool = False) -> None:
    """Move the mouse to a place in the window, and click there if wanted."""
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
    for kind in ("mousePressed", "mouseReleased") if click else ():
        event = {"type": kind, **at, "button": "left", "clickCount": 1}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
