"""Chromium as a fixture: test files take it by `pytest_plugins = ("browser_driver",)`."""

import shutil
from collections.abc import Iterator

import pytest
from browser_page import resize
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
DRIVERS = ("chromedriver", "chromium-driver", "chromium.chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",
    "--force-device-scale-factor=1",
)
LAPTOP = (1440, 900)


def find_program(names: tuple[str, ...], package: str) -> str:
    """The path of the first of the programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            f"none of {', '.join(names)} is installed; on Debian: apt-get install {package}", pytrace=False
        )
    return found


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One Chromium for the whole session."""
    options = webdriver.ChromeOptions()
    options.binary_location = find_program(BROWSERS, "chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(find_program(DRIVERS, "chromium-driver")))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def driver(browser: webdriver.Chrome) -> webdriver.Chrome:
    """The browser with a blank page of laptop size and empty logs."""
    browser.get("about:blank")
    resize(browser, *LAPTOP)
    for log in ("browser", "performance"):
        browser.get_log(log)
    return browser
