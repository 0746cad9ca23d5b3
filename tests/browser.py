"""Chromium without a window, as tests of the page drive it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "headless=new no-sandbox disable-gpu no-first-run hide-scrollbars"
    " disable-background-networking force-prefers-reduced-motion"
)
IN_CHROMIUM = [
    pytest.mark.campaign,
    pytest.mark.skipif(None in (CHROMIUM, CHROMEDRIVER), reason="no chromium with chromedriver"),
]
DESK, PHONE = (1280, 900), (390, 800)
WAIT_S = 600


class Browser:
    """Chromium without a window."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = str(CHROMIUM)
        for flag in FLAGS.split():
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(str(CHROMEDRIVER)))
        # On a busy host a script takes longer than Selenium waits for it, or for any answer.
        self.driver.set_script_timeout(WAIT_S)
        self.driver.command_executor.client_config.timeout = WAIT_S

    def open(
        self,
        page: Path,
        place: str = "",
        size: tuple[int, int] = DESK,
        theme: str = "light",
        media: str = "",
    ) -> None:
        """Load the page anew, in CSS pixels, light or dark, for screen or print."""
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"media": media, "features": [{"name": "prefers-color-scheme", "value": theme}]},
        )
        self.driver.get("about:blank")  # a change of the address's end alone would load nothing
        self.driver.get(page.as_uri() + place)

    def settle(self) -> None:
        """Wait for two frames: what a scroll or a new address sets off is done by then."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        )

    def js(self, script: str, *given: Any) -> Any:
        """Run a script and return its value."""
        return self.driver.execute_script(script, *given)

    def one(self, selector: str) -> WebElement:
        """The first element, which must be there."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def tick(self, axis: str, value: str) -> None:
        """Choose or drop one value of the filter, as a pointer does."""
        box = self.one(f'#filter input[name="{axis}"][value="{value}"]')
        facet = self.js("return arguments[0].closest('details')", box)
        if not facet.get_property("open"):
            facet.find_element(By.CSS_SELECTOR, "summary").click()
        box.click()

    def said(self) -> list[str]:
        """Return what was written to the console since the last call."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def asked_for(self) -> set[str]:
        """Return the addresses requested since the last call, without data within the page."""
        messages = [
            json.loads(line["message"])["message"] for line in self.driver.get_log("performance")
        ]
        urls = {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }
        return {url.split("#")[0] for url in urls if not url.startswith("data:")} - {"about:blank"}


def rows(browser: Browser, table: str) -> list[list[str]]:
    """The visible rows of a table: what their cells sort by, None for a missing one."""
    found: list[list[str]] = browser.js(
        """return Array.from(document.querySelectorAll(`#${arguments[0]} tbody tr`))
            .filter((row) => row.offsetParent !== null)
            .map((row) => Array.from(row.cells, (cell) => cell.classList.contains("missing")
                ? null : cell.dataset.sort ?? cell.textContent.trim()))""",
        table,
    )
    return found
