# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that looks at Horizon as one user does."""

import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

DRIVER = "/usr/bin/chromedriver"
OPTIONS = ("--headless", "--no-sandbox",  # root in a namespace has no other choice
           "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1440,1000")
LIMIT = 120
"""Seconds until a page shows what is expected."""

COLORS = 256

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Browser:
    """:ivar base: URL of Horizon, without a slash at its end
    :ivar pictures: directory of the screenshots
    """

    driver: webdriver.Chrome
    base: str
    pictures: Path

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def log_in(self, user: str, password: str) -> None:
        """Log in with Horizon's own form, which shows an error where it refuses."""
        self.open("/auth/login/")
        self.type("#id_username", user)
        self.type("#id_password", password)
        self.click("#loginBtn")
        self.await_that(lambda: "/auth/login" not in self.driver.current_url)

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def click(self, selector: str) -> None:
        """Click an element by script, whatever of the page lies over it."""
        self.driver.execute_script("arguments[0].click()", self.find(selector))

    def find(self, selector: str) -> WebElement:
        """Return the first element that is shown, when it is; an XPath begins with ``/``.

        :raises selenium.common.exceptions.TimeoutException: there is none within :data:`LIMIT` seconds
        """
        kind = By.XPATH if selector.startswith("/") else By.CSS_SELECTOR
        return self.await_that(lambda: next(
            (found for found in self.driver.find_elements(kind, selector) if found.is_displayed()), None), selector)

    def await_that(self, ask: Callable[[], Value], expected: str = "") -> Value:
        """Ask until the answer is true, and return it."""
        wait = WebDriverWait(self.driver, LIMIT, 0.5, (NoSuchElementException, StaleElementReferenceException))
        return wait.until(lambda _driver: ask(), f"{expected} is not on {self.driver.current_url}")

    def take_picture(self, name: str) -> Path:
        """Save what the window shows, in as few colors as Horizon's pages need."""
        path = self.pictures / f"{name}.png"
        shown = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        shown.quantize(COLORS).save(path, optimize=True)
        return path


@contextlib.contextmanager
def browser(base: str, pictures: Path) -> Iterator[Browser]:
    """Start a Chromium with an empty profile, and end it."""
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        driver = webdriver.Chrome(options, Service(DRIVER))
        window = Browser(driver, base, pictures)
        try:
            yield window
        except WebDriverException:
            window.take_picture("failed")
            raise
        finally:
            driver.quit()
