"""Pictures of every screen of the console, in light and dark, for the docs: `make screenshots`.

A real server on the embedded broker, with the story of `console_story`, in a real browser.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import BrowserContext, Page, sync_playwright

from console_story import ShopAtNight

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
]
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
_COLOURS = 128


def screens(canary: str, running: str) -> Mapping[str, str]:
    return {
        "overview": "/",
        "queue": "/queues/q.orders.dlq",
        "messages": "/queues/q.orders.dlq/messages?q=error%3ATimeout+since%3A3h",
        "message": "/queues/q.orders.dlq/messages/order-47211",
        "re-drive": "/queues/q.orders.dlq/re-drive?group=3fa9c0ffee21",
        "discard": "/queues/q.payments.dlq/discard",
        "edit": "/queues/q.orders.dlq/messages/order-47211/edit",
        "operations": "/operations",
        "operation": f"/operations/{running}",
        "canary": f"/operations/{canary}",
        "outbox": "/outbox",
        "topology": "/topology",
        "doctor": "/doctor",
        "audit": "/audit",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("docs/screenshots"))
    folder: Path = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, ShopAtNight(Path(data)) as shop, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for theme in ("light", "dark"):
            door = browser.new_context(viewport=SIZE, color_scheme=theme)
            _take(_opened(door, shop, "/sign-in"), folder / f"sign-in-{theme}.png")
        _sign_in(door, shop)
        canary = shop.redrive_as_canary()
        while shop.run(lambda: shop.context.service.operation(canary)).ended_at is None:
            time.sleep(0.1)
        shown = screens(canary, shop.redrive_slowly())
        signed_in = door.storage_state()
        for theme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=theme, storage_state=signed_in)
            for name, path in shown.items():
                _take(_opened(context, shop, path), folder / f"{name}-{theme}.png")
            context.close()
        phone = browser.new_context(viewport=PHONE, storage_state=signed_in)
        for name in ("overview", "re-drive", "operation"):
            _take(_opened(phone, shop, shown[name]), folder / f"{name}-phone.png")
        browser.close()
    size = sum(path.stat().st_size for path in folder.glob("*.png"))
    print(f"{len(list(folder.glob('*.png')))} pictures, {size / 1e6:.1f} MB, in {folder}")


def _sign_in(context: BrowserContext, shop: ShopAtNight) -> None:
    page = _opened(context, shop, "/sign-in")
    page.get_by_label("API key").fill(shop.keys["admin"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Dead letters").wait_for()
    page.close()


def _opened(context: BrowserContext, shop: ShopAtNight, path: str) -> Page:
    page = context.new_page()
    page.goto(shop.address + path)
    page.wait_for_timeout(200)
    return page


def _take(page: Page, path: Path) -> None:
    """With as many colours as such a picture has: a third of the bytes."""
    taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    taken.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    page.close()


if __name__ == "__main__":
    main()
