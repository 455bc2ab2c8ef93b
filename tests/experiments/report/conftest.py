"""A browser, and reports opened in it."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from undrift.experiments.report import Summary, summarise, write_report

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,900"
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    opened = webdriver.Chrome(options, service)
    yield opened
    opened.quit()


@pytest.fixture
def report(tmp_path: Path, browser: Any) -> Iterator[Any]:
    """Opens a page made of some methods; in the end nothing may have been complained of."""

    def opened(paths: Sequence[Path], **words: Any) -> Summary:
        page = write_report(paths, tmp_path / "out", **words)
        browser.get(page.as_uri())
        return summarise(paths, **words)

    browser.get_log("browser")
    yield opened
    assert browser.get_log("browser") == []
