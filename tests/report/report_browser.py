"""A real headless Chromium for tests of pages, and the gestures of a user."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

MISSING = "chromium and chromedriver are not installed: apt-get install chromium chromium-driver"


def programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver; None if one is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window.

    Parameters
    ----------
    browser, driver
        Paths of the programs.
    """

    def __init__(self, browser: str, driver: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--lang=en-US",
            "--window-size=1440,1000",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def close(self) -> None:
        self.driver.quit()

    def open(self, page: Path) -> float:
        """Open a page from its file, with nothing remembered, and return the seconds until it can be used."""
        self.driver.get(page.as_uri())
        self.driver.execute_script("localStorage.clear()")
        self.driver.get_log("browser")
        begin = time.monotonic()
        self.driver.get(page.as_uri())
        self.until(lambda: self.run("return document.documentElement.dataset.ready") == "true")
        return time.monotonic() - begin

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for something to become true, and return it."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, f"not within {seconds} s; console: {self.console()}"
            time.sleep(0.02)
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def console(self) -> list[str]:
        """Return what the page has written to the console since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def press(self, *keys: str) -> None:
        """Press keys where the focus is; names such as ``ARROW_DOWN`` or characters."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def selected(self) -> str:
        """Return the name of the selected record, once its details are shown."""
        row = self.until(lambda: self.all('#list .row[aria-selected="true"] .record'))
        name = str(row[0].text).split(" ↔ ")[0]
        self.until(lambda: self.text("#detail h2 code") == name)
        return name

    def shown(self) -> list[str]:
        """Return the names of the records in the window of the list, from top to bottom; a pixel may be missing."""
        return list(
            self.run(
                """const list = document.getElementById('list'), box = list.getBoundingClientRect();
                return [...list.querySelectorAll('.space .row')]
                    .map((row) => [row.getBoundingClientRect(), row.querySelector('.record').textContent])
                    .filter(([place]) => place.top >= box.top - 1 && place.bottom <= box.bottom + 1)
                    .sort((a, b) => a[0].top - b[0].top).map(([, name]) => name);"""
            )
        )
