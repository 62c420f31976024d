"""Fixtures of the browser tests: Chromium, the shop at night, and visitors with a browser of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from console_story import ShopAtNight

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopAtNight]:
    """One for all that only look."""
    with ShopAtNight(tmp_path_factory.mktemp("shop"), small=True) as shop:
        yield shop


@pytest.fixture
def busy_shop(tmp_path: Path) -> Iterator[ShopAtNight]:
    """One of the test's own, in which things are done."""
    with ShopAtNight(tmp_path, small=True) as shop:
        yield shop


class Visitor:
    """Somebody with a browser of their own. Nothing may go wrong in it."""

    def __init__(self, browser: Browser, shop: ShopAtNight, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**options)
        self.shop = shop
        self.wrong: list[str] = []
        self.page: Page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.set_default_timeout(15_000)
        return page

    def _heard(self, message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:
            self.wrong.append(message.text)

    def sign_in(self, role: str = "admin", path: str = "/") -> Page:
        self.page.goto(self.shop.address + path)
        self.page.get_by_label("API key").fill(self.shop.keys[role])
        self.page.get_by_role("button", name="Sign in").click()
        return self.page

    def open(self, path: str) -> Page:
        self.page.goto(self.shop.address + path)
        return self.page


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Any]:
    made: list[Visitor] = []

    def visit(shop: ShopAtNight, **options: Any) -> Visitor:
        made.append(Visitor(browser, shop, **options))
        return made[-1]

    yield visit
    for one in made:
        one.context.close()
    assert [wrong for one in made for wrong in one.wrong] == []
