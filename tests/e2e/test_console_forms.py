"""Every form of the console: any field changed and the button pressed at once. What happens is what the fields say, or
nothing happens and the page says why.

`ACTING` lists the forms that act on a plan, with a changed value for each of their fields; `OTHERS` lists the rest. Two
tests compare both with the pages, so that neither a new form nor a new field can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa

pytest.importorskip("playwright")
from playwright.sync_api import Locator, Page, expect

from console_story import ShopAtNight
from redrive.operations.operation import Operation

PAYMENTS = "/queues/q.payments.dlq"
EDIT = "/queues/q.payments.dlq/messages/payment-901/edit"
CHANGED = "changed after the plan was made"
LATER = {"rate", "reason", "confirm"}  # do not change which messages are meant: they are taken as they are sent


@dataclass(frozen=True)
class Form:
    path: str
    act: str  # the button's text, as a pattern
    update: str
    other: dict[str, str]  # a changed value for each field
    refused: str = "nothing was done"

    def open(self, page: Page, shop: ShopAtNight) -> None:
        """Show a plan, with nothing left to do but to press."""
        page.goto(shop.address + self.path)
        if self.path == EDIT:
            page.get_by_label("Body", exact=True).fill('{"payment": 1}')
            page.get_by_role("button", name=self.update).click()  # returns while the answer is still being loaded
        expect(self.button(page)).to_be_visible()
        self.confirm(page)

    def confirm(self, page: Page) -> None:
        if self.path.endswith("/discard"):
            page.get_by_label("Type the name of the queue").fill("q.payments.dlq")

    def button(self, page: Page) -> Locator:
        return page.get_by_role("button", name=re.compile(self.act))


SELECTION = {"q": "id:payment-900", "group": "c0de00000001", "limit": "1"}
CANARY = {"canary": "", "ramp": "2,4", "stop": "20", "step_wait": "5s"}
ACTING = {
    "discard": Form(f"{PAYMENTS}/discard", r"^Discard \d+", "Update the plan", SELECTION),
    "move": Form(
        f"{PAYMENTS}/move?form=1&to=q.emails.dlq", r"^Move \d+", "Update the plan", SELECTION | {"to": "q.orders.dlq"}
    ),
    "re-drive": Form(
        f"{PAYMENTS}/re-drive",
        r"^Re-drive \d+",
        "Update the plan",
        SELECTION | CANARY | {"most_redrives": "7", "to": "q.emails"},
    ),
    "edit": Form(
        EDIT,
        "^Re-drive the changed message",
        "See what would change",
        {
            "body": '{"payment": 2}',
            "patch": '[{"op": "remove", "path": "/iban"}]',
            "force": "on",
            "set_headers": "tenant: acme",
            "remove_headers": "tenant",
            "to": "q.emails",
        },
    ),
}
FIELDS = [(form, name) for form, told in ACTING.items() for name in told.other]

# What each of the others does is tested below, or in test_console.py (signing in, colours).
OTHERS = {
    *("post /theme", "post /sign-in", "post /sign-out", "dialog "),
    *("get /operations", "get /audit", "get /queues/*/messages", "get /queues/*/re-drive"),
    *("post /queues/*/import", "post /operations/*/rate"),
    *("post /outbox/retry", "post /outbox/*/retry", "post /outbox/*/discard"),
}
SCREENS = [
    *("/sign-in", "/", "/queues/q.orders.dlq", "/queues/q.orders.dlq/messages", "/queues/q.orders.dlq/import"),
    *("/queues/q.orders.dlq/messages/order-47211", "/queues/q.audit.dlq", "/operations", "/operations/{running}"),
    *("/outbox", "/outbox/1/discard", "/topology", "/doctor", "/audit", "/queues/nobody.dlq"),
]


def field(page: Page, name: str) -> Locator:
    if name == "patch":
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    return page.locator(f"main form [name={name}]:not([type=hidden]):not([hidden])")


def change(page: Page, name: str, value: str) -> Iterator[None]:
    """Change a field; go on to change it back."""
    control = field(page, name)
    if control.get_attribute("type") == "checkbox":
        was = control.is_checked()
        control.set_checked(not was)
        yield
        control.set_checked(was)
    else:
        before = control.input_value()
        assert before != value
        control.fill(value)
        yield
        control.fill(before)
    yield


def depth(shop: ShopAtNight, queue: str = "q.payments.dlq") -> int:
    async def ask() -> int:
        return (await shop._connection.queue_info(queue)).messages

    return int(shop.run(ask))


def operations(shop: ShopAtNight, queue: str = "q.payments.dlq") -> list[Operation]:
    """The newest first."""
    return shop.context.service.store.list_operations(queue, None, 50, None)


def ended(page: Page) -> None:
    expect(page).to_have_url(re.compile(r"/operations/op_"))
    expect(page.locator("#progress .state")).to_have_text("succeeded")


# None is forgotten --------------------------------------------------------------------------------------


def test_every_form_of_every_page_is_tested(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    found = _forms(visitor.open("/sign-in"))
    visitor.sign_in("admin")
    for path in SCREENS:
        if "{running}" in path:  # begun now, since it ends some day
            path = path.format(running=busy_shop.redrive_slowly())
        found |= _forms(visitor.open(path))
    acting = {f"post {_pattern(urlsplit(form.path).path)}" for form in ACTING.values()}
    for form in ACTING.values():
        form.open(visitor.page, busy_shop)
        found |= _forms(visitor.page)
    assert found == OTHERS | acting


def _forms(page: Page) -> set[str]:
    told = page.locator("form").evaluate_all("all => all.map(one => [one.method, one.getAttribute('action') ?? ''])")
    return {f"{method} {_pattern(action)}" for method, action in told}


def _pattern(address: str) -> str:
    return re.sub(r"(?<=/)(q\.[^/]+|payment-[^/]+|op_[^/]+|\d+)", "*", address)


@pytest.mark.parametrize("name", ACTING)
def test_every_field_of_a_form_that_acts_is_tested(shop: ShopAtNight, visitors: Any, name: str) -> None:
    visitor = visitors(shop)
    visitor.sign_in("admin")
    ACTING[name].open(visitor.page, shop)
    button = ACTING[name].button(visitor.page)
    names = button.evaluate(
        "button => [...button.form.elements].filter(one => one.name && one.type !== 'hidden' && one !== button)"
        ".map(one => one.name)"
    )
    assert len(names) == len(set(names))
    assert set(names) - LATER == set(ACTING[name].other)


# Any field, and the button at once ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changed"), FIELDS)
def test_a_changed_field_disables_the_button_and_the_page_says_why(
    shop: ShopAtNight, visitors: Any, name: str, changed: str
) -> None:
    visitor, form = visitors(shop), ACTING[name]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, shop)
    expect(form.button(page)).to_be_enabled()
    changing = change(page, changed, form.other[changed])
    next(changing)
    expect(form.button(page)).to_be_disabled()
    expect(page.locator("form [role=status]")).to_contain_text(CHANGED)
    next(changing)
    expect(form.button(page)).to_be_enabled()
    expect(page.locator("form [role=status]")).to_be_empty()


@pytest.mark.parametrize(("name", "changed"), FIELDS)
def test_without_javascript_nothing_is_done_if_a_field_was_changed(
    shop: ShopAtNight, visitors: Any, name: str, changed: str
) -> None:
    before, done = depth(shop), operations(shop)
    visitor, form = visitors(shop, java_script_enabled=False), ACTING[name]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, shop)
    next(change(page, changed, form.other[changed]))
    form.button(page).click()
    told = page.locator("main > :is(.notice:not([hidden]), .panel.bad)").first
    expect(told).to_contain_text(re.compile("nothing was done", re.IGNORECASE))
    expect(page).not_to_have_url(re.compile("/operations/"))
    assert (depth(shop), operations(shop)) == (before, done)


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("name", ACTING)
def test_enter_updates_the_plan_and_never_acts(shop: ShopAtNight, visitors: Any, name: str, script: bool) -> None:
    before, done = depth(shop), operations(shop)
    visitor, form = visitors(shop, java_script_enabled=script), ACTING[name]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, shop)
    names = page.locator("main form input:not([type=hidden]):not([type=checkbox])[name]").evaluate_all(
        "all => all.map(one => one.name)"
    )
    for one in names:
        form.open(page, shop)
        with page.expect_navigation():
            field(page, one).press("Enter")
        expect(page).to_have_url(re.compile(f"/queues/.*/{urlsplit(form.path).path.rpartition('/')[2]}"))
        expect(form.button(page)).to_be_visible()
    assert (depth(shop), operations(shop)) == (before, done)
    assert names


# What the fields say ------------------------------------------------------------------------------------


def test_a_discard_takes_the_one_message_that_the_filter_on_screen_selects(
    busy_shop: ShopAtNight, visitors: Any
) -> None:
    """Type a filter, do not update the plan, type the queue's name, press the red button."""
    before = depth(busy_shop)
    assert before > 2
    visitor, form = visitors(busy_shop, java_script_enabled=False), ACTING["discard"]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, busy_shop)
    field(page, "q").fill("id:payment-900")
    form.button(page).click()
    assert depth(busy_shop) == before
    expect(form.button(page)).to_have_text("Discard 1 out of q.payments.dlq")
    form.confirm(page)
    form.button(page).click()
    ended(page)
    assert depth(busy_shop) == before - 1


@pytest.mark.parametrize("name", ["discard", "move", "re-drive"])
def test_an_updated_plan_acts_on_exactly_what_the_fields_say(busy_shop: ShopAtNight, visitors: Any, name: str) -> None:
    before, form = depth(busy_shop), ACTING[name]
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, busy_shop)
    field(page, "q").fill("id:payment-901")
    page.get_by_role("button", name=form.update).click()
    expect(form.button(page)).to_contain_text(" 1 ")
    form.confirm(page)
    field(page, "reason").fill("INC-7")  # needs no other plan
    form.button(page).click()
    expect(page).to_have_url(re.compile(r"/operations/op_"))
    (operation,) = operations(busy_shop)
    assert (operation.order.selection.query, operation.order.reason) == ("id:payment-901", "INC-7")
    assert operation.counts.planned == 1
    if name != "re-drive":
        ended(page)
        assert depth(busy_shop) == before - 1


def test_an_edit_sends_the_body_that_is_on_screen(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor, form = visitors(busy_shop), ACTING["edit"]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, busy_shop)
    field(page, "body").fill('{"payment": 2}')
    expect(form.button(page)).to_be_disabled()
    page.get_by_role("button", name=form.update).first.click()
    expect(page.locator(".difference .plus").last).to_contain_text('"payment": 2')
    form.button(page).click()
    ended(page)

    async def body() -> bytes:
        delivery = await busy_shop._connection.get("q.payments")
        assert delivery is not None
        return delivery.body

    assert busy_shop.run(body) == b'{"payment": 2}'


# Once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("name", ACTING)
def test_a_double_click_acts_once(busy_shop: ShopAtNight, visitors: Any, name: str, script: bool) -> None:
    visitor, form = visitors(busy_shop, java_script_enabled=script), ACTING[name]
    visitor.sign_in("admin")
    form.open(visitor.page, busy_shop)
    form.button(visitor.page).dblclick(no_wait_after=True)
    told = "Re-drive of|Discard of|Move of|Edit-and-re-drive of|An operation has this queue|carried out already"
    expect(visitor.page.locator("main")).to_contain_text(re.compile(told))
    assert len(operations(busy_shop)) == 1


@pytest.mark.parametrize("name", ACTING)
def test_a_form_that_is_sent_again_acts_once_and_leads_to_its_operation(
    busy_shop: ShopAtNight, visitors: Any, name: str
) -> None:
    """As when a browser goes back to a page that it has kept, with its old button."""
    visitor, form = visitors(busy_shop), ACTING[name]
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, busy_shop)
    sent = form.button(page).evaluate("button => [...new FormData(button.form, button)]")
    action = form.button(page).evaluate("button => button.form.action")
    form.button(page).click()
    expect(page).to_have_url(re.compile(r"/operations/op_"))
    fields = "&".join(f"{quote(one)}={quote(value)}" for one, value in sent)
    headers = {"Origin": busy_shop.origin, "Content-Type": "application/x-www-form-urlencoded"}

    answer = page.request.post(action, data=fields, headers=headers)

    assert answer.ok
    assert urlsplit(answer.url).path == urlsplit(page.url).path
    assert "was carried out already, by this operation" in answer.text()
    assert len(operations(busy_shop)) == 1


@pytest.mark.parametrize("name", ["discard", "move", "re-drive"])
def test_going_back_after_acting_shows_the_plan_of_what_is_left(
    busy_shop: ShopAtNight, visitors: Any, name: str
) -> None:
    visitor, form = visitors(busy_shop), ACTING[name]
    visitor.sign_in("admin")
    page = visitor.page
    page.goto(f"{busy_shop.address}{PAYMENTS}/{name}?form=1&to=q.emails.dlq&limit=1")
    form.confirm(page)
    form.button(page).click()
    ended(page)
    page.go_back()
    expect(form.button(page)).to_contain_text(" 1 ")
    form.confirm(page)
    expect(form.button(page)).to_be_enabled()
    form.button(page).click()
    ended(page)
    assert [one.counts.moved for one in operations(busy_shop)] == [1, 1]


@pytest.mark.parametrize("name", ACTING)
def test_an_expired_plan_does_nothing_and_is_made_again(busy_shop: ShopAtNight, visitors: Any, name: str) -> None:
    before, form = depth(busy_shop), ACTING[name]
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.page
    form.open(page, busy_shop)
    plans = busy_shop.context.plans
    with plans.database.engine.begin() as connection:
        connection.execute(sa.update(plans.table).values(expires_at=datetime.now(UTC) - timedelta(minutes=1)))
    form.button(page).click()
    expect(page.locator("main > .notice").first).to_contain_text("Nothing was done: the plan was older than 15 minutes")
    assert (operations(busy_shop), depth(busy_shop)) == ([], before)
    form.confirm(page)
    form.button(page).click()
    expect(page).to_have_url(re.compile(r"/operations/op_"))


def test_two_tabs_with_different_filters_act_each_on_its_own(busy_shop: ShopAtNight, visitors: Any) -> None:
    before, form = depth(busy_shop), ACTING["discard"]
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    one, other = visitor.page, visitor.new_page()
    one.goto(f"{busy_shop.address}{form.path}?q=id:payment-900")
    other.goto(f"{busy_shop.address}{form.path}?q=id:payment-901")
    form.confirm(one)
    form.confirm(other)
    form.button(one).click()
    ended(one)
    form.button(other).click()  # its plan was made before the queue changed
    expect(other.get_by_role("status").first).to_contain_text("Nothing was done")
    assert depth(busy_shop) == before - 1
    form.confirm(other)
    form.button(other).click()
    ended(other)
    assert [one.order.selection.query for one in operations(busy_shop)] == ["id:payment-901", "id:payment-900"]
    assert depth(busy_shop) == before - 2


# An operation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False])
def test_the_rate_that_is_set_is_the_rate_that_is_shown(busy_shop: ShopAtNight, visitors: Any, script: bool) -> None:
    visitor = visitors(busy_shop, java_script_enabled=script)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_label("At most").fill("0.5")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_label("At most")).to_have_value("0.5")
    if script:
        expect(page.get_by_text("requested, and not applied yet")).to_have_count(0)
        expect(page.locator("#order")).to_contain_text("0.5 per second")
        expect(page.get_by_label("At most")).to_have_value("0.5")
        assert operations(busy_shop, "q.emails.dlq")[0].order.rate == 0.5


@pytest.mark.parametrize(("button", "state"), [("Pause", "paused"), ("Cancel the rest", "cancelled")])
def test_a_rate_that_was_typed_goes_with_whichever_button_is_pressed(
    busy_shop: ShopAtNight, visitors: Any, button: str, state: str
) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_label("At most").fill("1")
    page.get_by_role("button", name=button).click()
    expect(page.locator("#progress .state")).to_have_text(state)
    assert operations(busy_shop, "q.emails.dlq")[0].order.rate == 1


def test_a_rate_that_makes_no_sense_keeps_the_other_buttons_from_acting(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_label("At most").fill("fast")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done.")
    expect(page.locator("#e-rate")).to_have_text("want a number")
    expect(page.locator("#progress .state")).to_have_text("running")


def test_enter_sets_the_rate_and_neither_pauses_nor_cancels(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_label("At most").fill("2")
    with page.expect_navigation():
        page.get_by_label("At most").press("Enter")
    expect(page.locator("#order")).to_contain_text("2 per second")
    expect(page.locator("#progress .state")).to_have_text("running")


def test_progress_does_not_overwrite_a_rate_that_was_typed(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("operator")
    page = visitor.open(f"/operations/{busy_shop.redrive_slowly()}")
    page.get_by_label("At most").fill("3")
    page.get_by_role("button", name="Set").focus()
    moved = page.locator("#progress dd b").first
    before = int(moved.inner_text())
    for count in (1, 2):  # the page has been refreshed twice since
        expect(moved).not_to_have_text(re.compile(f"^({'|'.join(str(before + n) for n in range(count))})$"))
    expect(page.get_by_label("At most")).to_have_value("3")
    page.get_by_role("button", name="Set").press("Enter")
    expect(page.locator("#order")).to_contain_text("3 per second")


# The others ---------------------------------------------------------------------------------------------


def test_an_import_puts_the_chosen_file_into_the_queue_once(
    busy_shop: ShopAtNight, visitors: Any, tmp_path: Path
) -> None:
    before = depth(busy_shop)
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.page
    exported = tmp_path / "one.ndjson"
    export = f"{busy_shop.address}/admin/dlq{PAYMENTS}/export?q=id:payment-900&reveal=1"
    exported.write_bytes(page.request.get(export).body())
    page = visitor.open(f"{PAYMENTS}/import")
    page.get_by_role("button", name="Import into").click()
    expect(page.locator("#e-file")).to_have_text("choose a file first")
    assert depth(busy_shop) == before

    page.locator("[name=file]").set_input_files(exported)
    page.get_by_role("button", name="Import into").dblclick(no_wait_after=True)
    expect(page.locator("main > .notice").first).to_contain_text(re.compile("in the queue|imported once"))
    assert depth(busy_shop) == before + 1


def test_an_outbox_row_is_discarded_once_and_only_that_one(busy_shop: ShopAtNight, visitors: Any) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    one, other = visitor.page, visitor.new_page()
    for page in (one, other):
        page.goto(f"{busy_shop.address}/outbox/1/discard")
    one.get_by_role("button", name="Delete row 1 for good").click()
    expect(one.locator("main > .notice").first).to_contain_text("The row is deleted")
    expect(one.locator("tbody tr")).to_have_count(2)
    other.get_by_role("button", name="Delete row 1 for good").click()
    expect(other.locator("main > .notice").first).to_contain_text("not parked any more")
    expect(other.locator("tbody tr")).to_have_count(2)


@pytest.mark.parametrize(
    ("button", "left", "said"), [("Publish again row 1", 2, "It will be"), ("Publish all parked rows", 0, "All parked")]
)
def test_outbox_rows_are_published_again_as_the_button_says(
    busy_shop: ShopAtNight, visitors: Any, button: str, left: int, said: str
) -> None:
    visitor = visitors(busy_shop)
    visitor.sign_in("admin")
    page = visitor.open("/outbox")
    page.get_by_role("button", name=button).click()
    expect(page.locator("main > .notice").first).to_contain_text(said)
    expect(page.locator("tbody tr")).to_have_count(left)


@pytest.mark.parametrize(
    ("path", "typed", "asked"),
    [
        ("/operations", {"queue": "q.emails.dlq"}, "queue=q.emails.dlq"),
        ("/audit", {"queue": "q.emails.dlq", "by": "grace", "action": "re-drive"}, "by=grace"),
        (f"{PAYMENTS}/messages", {"q": "id:payment-900"}, "q=id%3Apayment-900"),
    ],
)
def test_a_filter_shows_what_was_typed(
    shop: ShopAtNight, visitors: Any, path: str, typed: dict[str, str], asked: str
) -> None:
    visitor = visitors(shop)
    visitor.sign_in("admin")
    page = visitor.open(path)
    for name, value in typed.items():
        field(page, name).fill(value)
    field(page, next(iter(typed))).press("Enter")
    expect(page).to_have_url(re.compile(re.escape(asked)))
    for name, value in typed.items():
        expect(field(page, name)).to_have_value(value)


def test_messages_that_are_selected_are_those_that_are_planned(shop: ShopAtNight, visitors: Any) -> None:
    """Also if another search was typed meanwhile, and not made."""
    visitor = visitors(shop)
    visitor.sign_in("operator")
    page = visitor.open(f"{PAYMENTS}/messages")
    page.get_by_role("checkbox", name=re.compile("Select payment-902")).check()
    field(page, "q").fill("id:payment-900")
    page.get_by_role("button", name="Re-drive 1 selected").click()
    expect(page.locator("header.head")).to_contain_text("1 message that you selected")
    page.get_by_text("This one").click()
    expect(page.locator(".sample li")).to_have_count(1)
    expect(page.locator(".sample")).to_contain_text("payment-902")
