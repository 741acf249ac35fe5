"""A report of full size and a page that must stay quiet, as fixtures."""

import shutil
from collections.abc import Iterator

import pytest
from browser_page import no_console_errors, no_network
from made_up_report import MadeUpReport, write_full_report
from selenium import webdriver


@pytest.fixture(scope="session")
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeUpReport]:
    """A report of RGBNT201's size."""
    folder = tmp_path_factory.mktemp("report")
    yield write_full_report(folder)
    shutil.rmtree(folder)  # tens of megabytes, which pytest would keep for three sessions


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The driver; at the end of the test, nothing may be in the console and nothing have been fetched."""
    yield driver
    no_console_errors(driver)
    no_network(driver)
