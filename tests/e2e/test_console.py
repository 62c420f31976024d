"""The console in a browser: what an operator does at three in the morning, and what must not happen meanwhile.

axe-core finds what people with a screen reader, a keyboard or a phone would stumble over. It comes from npm, into
`.cache/axe`, when it is first needed; without npm on the machine that test is skipped.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Page, expect

from console_story import HOSTILE, ShopAtNight

AXE, AXE_VERSION = Path(__file__).parents[2] / ".cache" / "axe", "axe-core@4.14.0"
SCREENS = [
    "/",
    "/queues/q.orders.dlq",
    "/queues/q.orders.dlq?by=source",
    "/queues/q.orders.dlq/messages",
    "/queues/q.orders.dlq/messages?q=wrong:%22",
    "/queues/q.orders.dlq/messages/order-47211",
    "/queues/q.orders.dlq/messages/hostile-1",
    "/queues/q.orders.dlq/messages/order-47211/edit",
    "/queues/q.orders.dlq/re-drive",
    "/queues/q.orders.dlq/re-drive?form=1&limit=many",
    "/queues/q.payments.dlq/discard",
    "/queues/q.payments.dlq/move?form=1&to=q.emails.dlq&said=plan-changed",
    "/queues/q.payments.dlq/import",
    "/queues/q.audit.dlq",
    "/operations",
    "/operations/{canary}",
    "/outbox",
    "/outbox/1/discard",
    "/topology",
    "/doctor",
    "/audit",
    "/queues/nobody.dlq",
]

# A night ------------------------------------------------------------------------------------------------


def test_an_operator_finds_a_failure_reads_its_story_and_sends_it_back(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    page = visitor.sign_in("operator")
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
    expect(page.locator(".row.queue").first).to_contain_text("TimeoutError: no answer from api.payments.example")

    page.get_by_role("link", name="q.orders.dlq", exact=True).first.click()
    group = page.locator(".row.group").first
    expect(group).to_contain_text("TimeoutError")
    group.get_by_role("link", name="Look").click()
    expect(page.get_by_label("Which messages")).to_have_value("group:3fa9c0ffee21")
    page.get_by_label("Which messages").fill("id:order-47211")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=re.compile("order-47211")).click()

    story = page.locator(".timeline li")
    expect(story.first).to_contain_text("published to exchange shop.events")
    expect(story.filter(has_text="re-driven from q.orders.dlq by grace")).to_have_count(1)
    expect(page.locator("#body")).to_contain_text('"password": "[redacted]"')
    expect(page.locator("#command")).to_contain_text("redrive dlq redrive q.orders.dlq --id order-47211")

    page.get_by_role("link", name="q.orders.dlq", exact=True).click()
    page.locator(".row.group").first.get_by_role("link", name="Re-drive").click()
    expect(page.get_by_label("Canary")).to_be_checked()
    page.get_by_label("Steps").fill("1,5")
    page.get_by_label("Wait after a step").fill("200ms")
    page.get_by_role("button", name="Update the plan").click()
    press = page.get_by_role("button", name=re.compile(r"^Re-drive \d+ to q\.orders$"))
    expect(press).to_be_enabled()
    page.get_by_label("Reason").fill("INC-2041")
    press.click()

    expect(page).to_have_url(re.compile(r"/operations/op_"))
    expect(page.locator("#progress .state")).to_have_text("succeeded")
    expect(page.locator("#progress")).to_contain_text("61 of 61")
    expect(page).to_have_title(re.compile("^Succeeded"))

    page.get_by_role("link", name="Audit").click()
    expect(page.locator("tbody tr").first).to_contain_text("re-drive ended")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("INC-2041")


def test_the_same_without_javascript(busy_shop: ShopAtNight, visitors: Any) -> None:
    page = visitors(busy_shop, java_script_enabled=False).sign_in(
        "operator", "/queues/q.orders.dlq/messages?q=group:b81d"
    )
    for box in page.get_by_role("checkbox", name=re.compile("Select order")).all():
        box.check()
    page.get_by_role("button", name="Re-drive selected").click()
    expect(page.get_by_role("button", name="Re-drive 4 to q.orders")).to_be_visible()

    page.get_by_label("At most", exact=True).fill("2")
    page.get_by_role("button", name="Re-drive 4 to q.orders").click()
    expect(page.get_by_role("status")).to_contain_text(
        "Nothing was done yet: the form was changed after the plan was made"
    )
    page.get_by_role("button", name="Re-drive 2 to q.orders").click()

    expect(page.locator("#progress .state")).to_have_text("succeeded")
    expect(page.locator("#progress")).to_contain_text("2 of 2")


def test_a_canary_that_finds_that_messages_still_fail_stops_by_itself(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open("/queues/q.orders.dlq/re-drive?group=e11e77&form=1&canary=1&ramp=1,2&step_wait=200ms&stop=10")
    page.get_by_role("button", name="Re-drive 3 to q.orders").click()
    expect(page.locator("#progress .state")).to_have_text("stopped by guard")
    expect(page.locator("#progress")).to_contain_text("1 of 1 came back, more than 10 %")
    page.get_by_role("link", name="Those that came back").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_an_operation_is_paused_and_cancelled_while_somebody_watches(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#progress .state")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#progress .state")).to_have_text("running")
    page.get_by_role("button", name="Cancel the rest").click()
    expect(page.locator("#progress .state")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)


def test_a_discard_wants_the_name_of_the_queue(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.open("/queues/q.payments.dlq/discard?q=id:payment-900")
    button = page.get_by_role("button", name="Discard 1 out of q.payments.dlq")
    expect(button).to_be_disabled()
    page.get_by_label("Type the name of the queue").fill("q.payments.dlq")
    button.click()
    expect(page.locator("#progress .state")).to_have_text("succeeded")


def test_a_message_is_edited_and_the_difference_is_seen_first(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.open("/queues/q.orders.dlq/messages/order-47211/edit")
    body = page.get_by_label("Body", exact=True)
    body.fill(body.input_value().replace("129.9", "99.9"))
    page.get_by_role("button", name="See what would change").click()
    expect(page.locator(".difference .minus")).to_contain_text("129.9")
    expect(page.locator(".difference .plus")).to_contain_text("99.9")
    page.get_by_role("button", name="Re-drive the changed message to q.orders").click()
    expect(page.locator("#progress .state")).to_have_text("succeeded")


# Who may what -------------------------------------------------------------------------------------------


def test_a_viewer_sees_everything_and_is_offered_nothing(shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(shop)
    visitor.sign_in("viewer")
    for path in ("/", "/queues/q.orders.dlq", "/queues/q.orders.dlq/messages", "/outbox"):
        page = visitor.open(path)
        for words in ("Re-drive", "Discard", "Publish", "Export", "Audit"):
            expect(page.locator("main, .main-nav").get_by_role("link", name=re.compile(words))).to_have_count(0)
            expect(page.locator("main").get_by_role("button", name=re.compile(words))).to_have_count(0)
    page = visitor.open("/queues/q.orders.dlq/messages/order-47211")
    expect(page.get_by_role("link", name="reveal secrets")).to_have_count(0)
    page = visitor.open("/queues/q.orders.dlq/re-drive")
    expect(page.get_by_role("heading", name="You may not do that")).to_be_visible()


def test_whoever_was_going_somewhere_gets_there_after_signing_in(shop: ShopAtNight, visitors: Any) -> None:
    page = visitors(shop).sign_in("viewer", "/queues/q.orders.dlq/messages?q=group:b81d")
    expect(page).to_have_url(re.compile(r"/queues/q\.orders\.dlq/messages\?q=group:b81d"))
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_contain_text("signed out")


def test_a_wrong_key_is_told_where_it_was_typed(shop: ShopAtNight, visitors: Any) -> None:
    page = visitors(shop).open("/sign-in")
    page.get_by_label("API key").fill("rdk_nobody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")


# What must not happen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "/messages", "/messages/hostile-1", "/messages/hostile-1/edit", "/re-drive?q=id:hostile"]
)
def test_a_hostile_message_is_shown_as_text(shop: ShopAtNight, visitors: Any, path: str) -> None:
    visitor = visitors(shop)
    visitor.page.add_init_script(
        "document.addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective))"
    )
    visitor.sign_in("admin")
    page = visitor.open(f"/queues/q.orders.dlq{path}")
    assert page.title() != "owned"
    assert page.locator("main script, main img, main [style], main [onerror]").count() == 0
    if path == "/messages/hostile-1":
        expect(page.locator("#body")).to_contain_text(HOSTILE)
        expect(page.locator("#body")).to_contain_text(r"\u202e\x1b[31m\x00")
        expect(page.locator(".headers dt").first).to_have_text(HOSTILE)


def test_it_works_under_a_path(tmp_path: Path, visitors: Any) -> None:
    with ShopAtNight(tmp_path, small=True, root="/ops/redrive") as shop:
        visitor = visitors(shop)
        page = visitor.sign_in("operator")
        expect(page).to_have_url(f"{shop.address}/")
        page.locator(".row.queue").first.get_by_role("link", name="q.orders.dlq").first.click()
        expect(page).to_have_url(f"{shop.address}/queues/q.orders.dlq")
        page = visitor.open("/queues/q.orders.dlq/re-drive?q=id:order-47211&form=1")
        page.get_by_role("button", name="Re-drive 1 to q.orders").click()
        expect(page.locator("#progress .state")).to_have_text("succeeded")
        addresses = page.locator("a, form, link, script, img").evaluate_all(
            "all => all.map(e => e.href || e.action || e.src).filter(Boolean)"
        )
        assert [one for one in addresses if not one.startswith(f"{shop.address}/")] == []


def test_a_page_that_is_left_open_looks_at_no_message(shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(shop)
    page = visitor.sign_in("viewer")
    looked: list[str] = []
    look = shop.context.service.groups
    shop.context.service.groups = lambda *a, **k: (looked.append(a[0]), look(*a, **k))[1]  # type: ignore[method-assign]
    try:
        shop.context.snapshots.invalidate("q.orders.dlq")
        with page.expect_response(re.compile(r"calm=1")):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    finally:
        del shop.context.service.groups
    assert looked == []


# For everybody ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def canary(shop: ShopAtNight) -> str:
    return shop.redrive_as_canary()


@pytest.fixture(scope="module")
def axe() -> Path:
    """The script, installed once for all runs and all workers."""
    script = AXE / "node_modules" / "axe-core" / "axe.min.js"
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine: install node and npm")
    AXE.mkdir(parents=True, exist_ok=True)
    with (AXE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
            done = subprocess.run(
                [*command, "--prefix", str(AXE), AXE_VERSION], capture_output=True, text=True, timeout=180, check=False
            )
            if done.returncode:
                (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"npm: {done.stderr[-1000:]}")
    return script


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_stumbles(shop: ShopAtNight, canary: str, visitors: Any, axe: Path, theme: str) -> None:
    visitor = visitors(shop, color_scheme=theme)
    found = _stumbled(visitor.open("/sign-in"), axe)
    visitor.sign_in("admin")
    for path in SCREENS:
        found += _stumbled(visitor.open(path.format(canary=canary)), axe)
    assert found == []


def _stumbled(page: Page, axe: Path) -> list[str]:
    page.evaluate(axe.read_text())
    told = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{page.url}: {one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
        for one in told["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_a_phone_never_scrolls_sideways(shop: ShopAtNight, canary: str, visitors: Any) -> None:
    visitor = visitors(shop, viewport={"width": 360, "height": 740})
    visitor.sign_in("admin")
    wide = []
    for path in SCREENS:
        page = visitor.open(path.format(canary=canary))
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path)
    assert wide == []


def test_the_keyboard_suffices(shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(shop)
    page = visitor.sign_in("operator")
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/queues/"))
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page).to_have_url(re.compile(r"/operations$"))
    page.keyboard.press("/")
    expect(page.get_by_label("Queue")).to_be_focused()


def test_light_and_dark_can_be_chosen_without_javascript(shop: ShopAtNight, visitors: Any) -> None:
    page = visitors(shop, java_script_enabled=False).sign_in("viewer", "/operations")
    page.get_by_role("button", name="Switch to light").click()
    page.get_by_role("button", name="Switch to dark").click()
    expect(page).to_have_url(re.compile(r"/operations$"))
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
