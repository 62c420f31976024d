"""The console's pages, asked for as a browser does: what they show, what their forms do, and whom they turn away.

On the embedded broker: what differs between brokers is below the console, and has tests of its own.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Mount

from admin_api import HOST, admin_context, asking, bearing
from dead_lettering import DLQ, SOURCE, an_operation, bodies, dead_letter, operating, orders, prepare, until_depth
from redrive import App
from redrive.admin.access.roles import Principal, Role
from redrive.admin.access.settings import AccessSettings
from redrive.admin.api.application import Admin
from redrive.admin.context import AdminContext
from redrive.broker.dialect import DIALECTS
from redrive.client import Connection, Properties
from redrive.client.publisher import Publish
from redrive.database.application_tables import RowState
from redrive.database.schema import Schema
from redrive.errors import AuditUnavailable
from redrive.operations.operation import Counts, ItemOutcome, OperationItem, OperationState
from redrive.recovery.retry import Retry
from redrive.testing.broker import ThreadedBroker
from redrive.topology import Queue, Topology

HOSTILE_NAMES = [
    "a/b.dlq",
    "100%25.dlq",
    "a#b?c=d&e.dlq",
    "größe.dlq",
    "<script>alert(1)</script>.dlq",
    "a b.dlq",
    "..dlq",
]
ORIGIN = {"Origin": HOST}
QUEUE = f"/queues/{DLQ}"


class Html(HTMLParser):
    """What tests want to know of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forbidden: list[str] = []
        self.fields: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))
        if tag in ("input", "button") and told.get("name") and (told.get("type") != "checkbox" or "checked" in told):
            self.fields.setdefault(str(told["name"]), []).append(told.get("value") or "")
        inline = tag == "script" and "src" not in told
        if inline or tag == "style" or any(name == "style" or name.startswith("on") for name in told):
            self.forbidden.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def seen(response: httpx.Response, status: int = 200) -> Html:
    page = Html(response.text)
    assert response.status_code == status, page.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert page.forbidden == []
    return page


def sent_to(response: httpx.Response) -> str:
    assert response.status_code == 303, Html(response.text).text
    return str(response.headers["location"])


@pytest.fixture
def amqp_url(memory_broker: ThreadedBroker) -> str:
    return memory_broker.add_vhost(f"console-{secrets.token_hex(8)}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are made while the server runs: it is to see them at once."""
    monkeypatch.setattr("redrive.admin.cached_target._FRESH", 0.0)
    monkeypatch.setattr("redrive.admin.authorized_queries._DEPTHS", 0.001)


@pytest.fixture
def context(amqp_url: str, tmp_path: Path) -> AdminContext:
    return admin_context(amqp_url, tmp_path)


@pytest.fixture
async def client(context: AdminContext, connection: Connection) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - left first
    async with asking(context) as client:
        yield client


@pytest.fixture
async def browser(context: AdminContext, connection: Connection) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - left first
    """Nobody yet."""
    admin = Admin(context)
    transport = httpx.ASGITransport(app=admin)
    async with admin.lifespan(), httpx.AsyncClient(transport=transport, base_url=HOST, headers=ORIGIN) as client:
        yield client


def a_key(context: AdminContext, role: Role = Role.ADMIN, **options: Any) -> str:
    return context.gate.keys.create(f"ada-{role}", role, **options)[1]


async def is_over(client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    """The end of the operation whose page this is."""
    id = urlsplit(address).path.rpartition("/")[2]
    async with client.stream("GET", f"/admin/operations/{id}/events") as events:
        async for _ in events.aiter_lines():
            pass
    told: dict[str, Any] = (await client.get(f"/admin/operations/{id}")).json()
    return told


# Looking ------------------------------------------------------------------------------------------------


async def test_the_overview_says_what_is_dead_and_why(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 7)
    page = seen(await client.get("/"))
    assert "7 dead letters in 1 queue" in page.text
    assert "TimeoutError : no answer to 0 4 of 7, and 1 other group" in page.text
    assert f"{QUEUE}/re-drive" in page.links


async def test_an_empty_overview_reassures(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    page = seen(await client.get("/"))
    assert "All 1 dead-letter queue is empty. Nothing waits for you." in page.text
    assert "redrive dlq watch" in page.text


async def test_a_broker_without_dead_letter_queues_is_told_how_they_are_found(client: httpx.AsyncClient) -> None:
    assert "No dead-letter queues are known yet." in seen(await client.get("/")).text


async def test_a_queue_shows_its_groups_the_largest_first(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 7)
    page = seen(await client.get(QUEUE))
    assert page.text.index("4 57 %") < page.text.index("3 43 %")
    assert f"{QUEUE}/re-drive?group=77d1beef00" in page.links
    by_source = seen(await client.get(QUEUE, params={"by": "source"}))
    assert f"{QUEUE}/messages?q=source%3A%3Dorders" in by_source.links


async def test_nothing_is_looked_at_twice_unless_somebody_says_so(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 2)
    await client.get(QUEUE)
    await connection.publish_many([dead_letter(2)])
    await until_depth(connection, DLQ, 3)
    assert "2 100 %" not in seen(await client.get(QUEUE)).text  # two groups of one
    assert "fresh=1" in next(link for link in seen(await client.get(QUEUE)).links if "fresh" in link)
    again = sent_to(await client.get(QUEUE, params={"fresh": "1"}))
    assert "fresh" not in again
    page = seen(await client.get(again))
    assert "Looked again just now." in page.text
    assert "2 67 %" in page.text


async def test_messages_are_found_paged_and_selected(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 5)
    page = seen(await client.get(f"{QUEUE}/messages", params={"limit": 2, "q": "error:Timeout"}))
    following = next(link for link in page.links if "cursor=" in link)
    second = seen(await client.get(following))
    assert "2 messages, from position 1" in page.text
    assert "2 messages, from position 3" in second.text
    none = seen(await client.get(f"{QUEUE}/messages", params={"q": "error:Nothing"}))
    assert "No message matches. 5 messages were looked at." in none.text


async def test_a_query_that_makes_no_sense_is_pointed_at(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 1)
    response = await client.get(f"{QUEUE}/messages", params={"q": "eror:Timeout"})
    assert "did you mean error" in seen(response, 422).text
    assert 'value="eror:Timeout"' in response.text


async def test_a_message_tells_its_story_without_its_secrets(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    told = dead_letter(1, authorization="Bearer abc.def.ghi")
    await connection.publish_many([Publish("", DLQ, b'{"password": "hunter2"}', told.properties)])
    await until_depth(connection, DLQ, 1)

    response = await client.get(f"{QUEUE}/messages/m-1")
    page = seen(response)
    assert "parked at 2024-05-17 12:00:00 UTC after 3 attempts, because its last attempt failed" in page.text
    assert "hunter2" not in response.text
    assert "abc.def" not in response.text

    revealed = await client.get(f"{QUEUE}/messages/m-1", params={"reveal": "1"})
    assert "hunter2" in revealed.text
    assert "with secrets; this look is in the audit" in seen(revealed).text
    assert "reveal" in seen(await client.get("/audit")).text


async def test_what_hides_in_a_message_is_seen(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    evil = "</pre><script>alert(1)</script>\u202e\x1b[31m\"'>"
    headers = {**dict(dead_letter(1).properties.headers or {}), "x-redrive-message": evil, evil: evil}
    told = Properties(content_type="text/plain", message_id="m-1", type=evil, headers=headers)
    await connection.publish_many([Publish("", DLQ, evil.encode(), told)])
    await until_depth(connection, DLQ, 1)
    for path in ("/", QUEUE, f"{QUEUE}/messages", f"{QUEUE}/messages/m-1", f"{QUEUE}/re-drive"):
        response = await client.get(path)
        page = seen(response)
        assert "\u202e" not in response.text
        assert "\x1b" not in response.text
        assert "<script>alert" in page.text


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_queue_may_be_called_anything(client: httpx.AsyncClient, connection: Connection, name: str) -> None:
    await connection.declare_queue(SOURCE)
    await connection.declare_queue(name)
    await connection.publish_many([Publish("", name, b"{}", dead_letter(1).properties)])
    await until_depth(connection, name, 1)

    overview = seen(await client.get("/"))
    address = next(link for link in overview.links if link.endswith("/re-drive")).removesuffix("/re-drive")
    queue = seen(await client.get(address))
    assert name in queue.text
    message = next(link for link in seen(await client.get(f"{address}/messages")).links if "/messages/m-1" in link)
    assert "TimeoutError" in seen(await client.get(message)).text
    plan = seen(await client.get(f"{address}/re-drive"))
    begun = await client.post(f"{address}/re-drive", data={**plan.fields, "canary": []})
    if "said=plan-changed" in begun.headers["location"]:
        plan = seen(await client.get(begun.headers["location"]))
        begun = await client.post(f"{address}/re-drive", data=plan.fields)
    assert (await is_over(client, sent_to(begun)))["counts"]["moved"] == 1
    assert name in seen(await client.get("/operations")).text
    assert name in seen(await client.get("/audit")).text


async def test_looking_that_would_count_is_refused_with_the_fix(tmp_path: Path) -> None:
    with ThreadedBroker(dialect=DIALECTS["4.0"]) as broker:
        async with Connection(broker.url) as connection, asking(admin_context(broker.url, tmp_path)) as client:
            await prepare(connection, 2, "quorum")
            assert "not looked into: that would count" in seen(await client.get("/")).text
            page = seen(await client.get(QUEUE))
            assert "Not looked into" in page.text
            assert "look 21 deletes what it shows" in page.text
            assert "How to fix it" in page.text
            assert "Look all the same" in page.text
            assert "TimeoutError" not in seen(await client.get(QUEUE, params={"spend": "1"})).text
            posted = await client.post(QUEUE, data={"spend": "1"})
            assert posted.status_code == 303
            assert "TimeoutError" in seen(await client.get(posted.headers["location"])).text
            refused = seen(await client.get(f"{QUEUE}/messages/m-1"), 409)
            assert "Looking could lose messages" in refused.text
            assert "Look all the same" in refused.text
            posted = await client.post(f"{QUEUE}/messages/m-1", data={"spend": "1"})
            assert "TimeoutError" in seen(await client.get(posted.headers["location"])).text
            planned = seen(await client.post(f"{QUEUE}/re-drive", data={"spend": "1", "form": "1"}))
            assert "The plan" in planned.text


@pytest.mark.parametrize("page", ["discard", "move?form=1&to=odd.dlq", "re-drive"])
async def test_a_plan_that_would_count_offers_to_spend_a_delivery(tmp_path: Path, page: str) -> None:
    with ThreadedBroker(dialect=DIALECTS["4.0"]) as broker:
        async with Connection(broker.url) as connection, asking(admin_context(broker.url, tmp_path)) as client:
            await prepare(connection, 2, "quorum")
            await connection.declare_queue("odd.dlq")
            told = seen(await client.get(f"{QUEUE}/{page}"), 422).text
            assert "Look although each look counts towards the delivery limit" in told


async def test_a_queue_that_somebody_holds_is_told_of(
    client: httpx.AsyncClient, connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, 2)
    async with operating(amqp_url) as broker:
        await broker.lock(DLQ)
        page = seen(await client.get(QUEUE))
        assert "is held by" in page.text
        await broker.unlock(DLQ)


async def test_no_page_shows_the_secrets_that_an_error_quotes(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 0)
    card = "4111 1111 1111 1111"
    quoting = {"x-redrive-message": f"card {card} was refused", "x-redrive-stack": "Refused: password=hunter2"}
    letter = dead_letter(1, **quoting)
    await connection.publish("", DLQ, letter.body, letter.properties)
    await until_depth(connection, DLQ, 1)

    for path in (f"{QUEUE}/messages/m-1", f"{QUEUE}/messages", QUEUE, f"{QUEUE}/re-drive", f"{QUEUE}/discard", "/"):
        page = seen(await client.get(path)).text
        assert "[redacted] was refused" in page, path
        assert card not in page, path
        assert "hunter2" not in page, path
    assert f"card {card} was refused" in seen(await client.get(f"{QUEUE}/messages/m-1?reveal=true")).text


# Re-driving ---------------------------------------------------------------------------------------------


async def test_a_plan_is_carried_out_as_it_was_shown(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 6)
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"group": "3fa9", "form": "1"}))
    assert "Re-drive 3 to orders" in plan.text
    begun = await client.post(f"{QUEUE}/re-drive", data={**plan.fields, "reason": ["INC-42"], "rate": ["500"]})
    told = await is_over(client, sent_to(begun))
    assert (told["state"], told["counts"]["moved"], told["reason"], told["rate"]) == ("SUCCEEDED", 3, "INC-42", 500)
    assert await bodies(connection, SOURCE) == orders(1, 3, 5)
    operation = seen(await client.get(sent_to(begun)))
    assert "succeeded" in operation.text
    assert "3 of 3" in operation.text


async def test_a_form_that_was_changed_is_planned_again_first(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 6)
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1"}))
    answer = await client.post(f"{QUEUE}/re-drive", data={**plan.fields, "limit": ["2"]})
    again = seen(await client.get(sent_to(answer)))
    assert "Nothing was done yet: the form was changed after the plan was made" in again.text
    assert "Re-drive 2 to orders" in again.text
    assert (await connection.queue_info(DLQ)).messages == 6


async def test_a_plan_is_carried_out_once(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 4)
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1", "limit": "1"}))
    first = await client.post(f"{QUEUE}/re-drive", data=plan.fields)
    await is_over(client, sent_to(first))
    second = await client.post(f"{QUEUE}/re-drive", data=plan.fields)
    assert urlsplit(sent_to(second)).path == sent_to(first)
    assert "carried out already, by this operation" in seen(await client.get(sent_to(second))).text
    assert (await connection.queue_info(DLQ)).messages == 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"limit": "many"}, "want a whole number"),
        ({"rate": "-1"}, "want greater than 0"),
        ({"canary": "1", "ramp": "5,1"}, "want growing numbers"),
        ({"canary": "1", "stop": "100"}, "want less than 100"),
        ({"canary": "1", "step_wait": "30"}, "is not a length of time"),
        ({"to": "exchange:nowhere"}, "want exchange:NAME:KEY"),
        ({"q": "eror:x"}, "did you mean error"),
    ],
)
async def test_what_is_wrong_with_a_plan_is_said_at_its_field_and_what_was_typed_stays(
    client: httpx.AsyncClient, connection: Connection, typed: dict[str, str], said: str
) -> None:
    await prepare(connection, 1)
    response = await client.get(f"{QUEUE}/re-drive", params={"form": "1", **typed})
    page = seen(response, 422)
    name, value = list(typed.items())[-1]
    assert page.fields[name] == [value]
    assert re.search(rf'id="e-{name}">[^<]*{re.escape(said)}', response.text), page.text
    assert "token" not in page.fields


async def test_a_destination_that_is_not_there_is_told_before_anything_moves(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 1)
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1", "to": "nowhere"}))
    assert "nowhere does not exist: nothing can be moved there" in plan.text
    assert "Nothing can be moved there: say another destination." in plan.text
    assert "token" not in plan.fields

    await connection.declare_queue("elsewhere")
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1", "to": "elsewhere"}))
    await connection.delete_queue("elsewhere")
    refused = await client.post(f"{QUEUE}/re-drive", data=plan.fields)
    assert "queue elsewhere does not exist" in seen(refused, 422).text
    assert (await connection.queue_info(DLQ)).messages == 1


async def test_a_discard_takes_no_more_than_was_shown(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 3)
    shown = seen(await client.get(f"{QUEUE}/discard", params={"form": "1"}))
    assert "3 messages would leave the queue for good" in shown.text
    await connection.publish_many([dead_letter(3)])
    await until_depth(connection, DLQ, 4)
    fields = {name: values[-1] for name, values in shown.fields.items()}

    wrong = await client.post(f"{QUEUE}/discard", data={**fields, "confirm": "orders", "reason": "spam"})
    assert "Nothing was discarded. Type orders.dlq" in seen(wrong, 422).text
    assert seen(wrong, 422).fields["reason"] == ["spam"]
    begun = await client.post(f"{QUEUE}/discard", data={**fields, "confirm": DLQ})
    assert (await is_over(client, sent_to(begun)))["counts"]["moved"] == 3
    assert await bodies(connection, DLQ) == orders(3)


async def test_a_discard_takes_nothing_urgent_that_was_not_shown(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 3, **{"x-max-priority": 10})
    shown = seen(await client.get(f"{QUEUE}/discard", params={"form": "1"}))
    urgent = dead_letter(3, **{"x-redrive-parked-at": datetime.now(UTC).isoformat()})
    assert isinstance(urgent.properties, Properties)
    await connection.publish("", DLQ, urgent.body, replace(urgent.properties, priority=9))
    await until_depth(connection, DLQ, 4)
    fields = {name: values[-1] for name, values in shown.fields.items()}

    begun = await client.post(f"{QUEUE}/discard", data={**fields, "confirm": DLQ})

    assert (await is_over(client, sent_to(begun)))["counts"]["moved"] == 3
    assert await bodies(connection, DLQ) == orders(3)


async def test_who_has_less_than_the_least_role_does_not_sign_in(amqp_url: str, tmp_path: Path) -> None:
    context = admin_context(amqp_url, tmp_path, least_role="admin")
    admin = Admin(context)
    transport = httpx.ASGITransport(app=admin)
    async with admin.lifespan(), httpx.AsyncClient(transport=transport, base_url=HOST, headers=ORIGIN) as browser:
        refused = await browser.post("/sign-in", data={"key": a_key(context, Role.OPERATOR)})
        let_in = await browser.post("/sign-in", data={"key": a_key(context)})

    assert "ada-operator has the role operator, and this server needs the role admin" in seen(refused, 403).text
    assert "set-cookie" not in refused.headers
    assert sent_to(let_in) == "/"
    entries = [(entry.by, entry.allowed) for _, entry in context.service.audit.list_entries(action="sign in")]
    assert entries == [("ada-admin", True), ("ada-operator", False)]


async def test_the_form_of_a_re_drive_has_the_default_destination_of_its_queue(
    amqp_url: str, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 2)
    await connection.declare_exchange("retry.orders", "direct")
    await connection.declare_queue("orders.retry")
    await connection.bind_queue("orders.retry", "retry.orders", "retry")
    topology = Topology(queues=[Queue(SOURCE, retry=Retry(), redrive_to="retry")])
    async with asking(admin_context(amqp_url, tmp_path, editing=True, topology=topology)) as client:
        plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1"}))
        edit = seen(await client.get(f"{QUEUE}/messages/m-0/edit"))
        changed = {**edit.fields, "body": ['{"order": 9}']}
        difference = seen(await client.post(f"{QUEUE}/messages/m-0/edit", data=changed))
        move = seen(await client.get(f"{QUEUE}/move"))
        begun = await client.post(f"{QUEUE}/re-drive", data={**plan.fields, "to": [""]})  # nothing: the default
        over = await is_over(client, sent_to(begun))

    assert (plan.fields["to"], edit.fields["to"], move.fields["to"]) == (["retry"], ["retry"], [""])
    assert "Re-drive 2 to retry.orders (retry)" in plan.text
    assert "Default of this queue: retry" in plan.text
    assert "Re-drive the changed message to its retry exchange" in difference.text
    assert over["counts"]["moved"] == 2
    assert await bodies(connection, "orders.retry") == orders(0, 1)


@pytest.mark.parametrize("page", ["discard", "move", "re-drive"])
async def test_messages_that_arrive_in_place_of_planned_ones_are_not_touched(
    client: httpx.AsyncClient, connection: Connection, page: str
) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("odd.dlq")
    asked = {"form": "1", "to": "odd.dlq"}
    shown = seen(await client.get(f"{QUEUE}/{page}", params=asked))
    one = seen(await client.get(f"{QUEUE}/discard", params={"ids": "m-0"}))
    begun = await client.post(f"{QUEUE}/discard", data={**one.fields, "confirm": DLQ})
    await is_over(client, sent_to(begun))
    await connection.publish_many([dead_letter(3)])
    await until_depth(connection, DLQ, 3)

    refused = await client.post(f"{QUEUE}/{page}", data={**shown.fields, "confirm": DLQ})

    again = seen(await client.get(sent_to(refused)))
    assert "Nothing was done yet: another operation worked on this queue" in again.text
    assert (await connection.queue_info(DLQ)).messages == 3


@pytest.mark.parametrize("page", ["discard", "move", "re-drive"])
async def test_the_token_of_one_form_is_worth_nothing_in_another(
    client: httpx.AsyncClient, connection: Connection, page: str
) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("odd.dlq")
    asked = {"form": "1", "to": "odd.dlq"}
    for other in {"discard", "move", "re-drive"} - {page}:
        shown = seen(await client.get(f"{QUEUE}/{other}", params=asked))
        refused = await client.post(f"{QUEUE}/{page}", data={**shown.fields, "to": "odd.dlq", "confirm": DLQ})
        assert "said=plan-changed" in sent_to(refused)
    assert (await client.get("/admin/operations")).json()["items"] == []


async def test_the_api_re_drives_nothing_by_the_plan_of_a_discard(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 1)
    token = seen(await client.get(f"{QUEUE}/discard")).fields["token"][0]
    refused = await client.post(f"/admin/dlq{QUEUE}/re-drive", json={"plan_token": token})
    assert refused.json()["type"].endswith("plan-expired")
    assert (await connection.queue_info(DLQ)).messages == 1


async def test_a_move_is_planned_and_carried_out(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("odd.dlq")
    assert f"{QUEUE}/move" in seen(await client.get(QUEUE)).links

    asked = seen(await client.get(f"{QUEUE}/move"))
    assert "would be moved" not in asked.text
    shown = seen(await client.get(f"{QUEUE}/move", params={"form": "1", "to": "odd.dlq", "group": "77d1"}))
    assert "2 messages would be moved to odd.dlq" in shown.text
    fields = {name: values[-1] for name, values in shown.fields.items()}
    begun = await client.post(f"{QUEUE}/move", data=fields)

    over = await is_over(client, sent_to(begun))
    assert (over["kind"], over["counts"]["moved"]) == ("move", 2)
    assert await bodies(connection, "odd.dlq") == orders(0, 2)


@pytest.mark.parametrize(("to", "told"), [(DLQ, "another dead-letter queue"), (SOURCE, "is not a dead-letter queue")])
async def test_a_move_to_what_is_no_other_dead_letter_queue_is_not_planned(
    client: httpx.AsyncClient, connection: Connection, to: str, told: str
) -> None:
    await prepare(connection, 3)
    page = seen(await client.get(f"{QUEUE}/move", params={"form": "1", "to": to}), 422)
    assert told in page.text


async def test_a_message_is_changed_only_where_that_is_switched_on(
    client: httpx.AsyncClient, connection: Connection, amqp_url: str, tmp_path: Path
) -> None:
    await prepare(connection, 1)
    edit = f"{QUEUE}/messages/m-0/edit"
    assert not [link for link in seen(await client.get(f"{QUEUE}/messages/m-0")).links if link.endswith("/edit")]
    assert "switched off" in seen(await client.get(edit), 403).text

    async with asking(admin_context(amqp_url, tmp_path, editing=True)) as editor:
        assert [link for link in seen(await editor.get(f"{QUEUE}/messages/m-0")).links if link.endswith("/edit")]
        assert "Edit and re-drive" in seen(await editor.get(edit)).text
        same = await editor.post(edit, data={"body": '{"order": 0}'})
        assert "nothing would change" in seen(same, 422).text
        change = {"body": '{"order": 42}', "set_headers": "tenant: beta"}
        preview = seen(await editor.post(edit, data=change))
        assert '"order": 42' in preview.text
        token = preview.fields["token"][0]
        other = seen(await editor.post(edit, data={**change, "body": '{"order": 43}', "token": token}))
        assert "Nothing was done yet: the form was changed" in other.text
        assert '"order": 43' in other.text
        assert (await connection.queue_info(DLQ)).messages == 1
        begun = await editor.post(edit, data={**change, "token": token})
        assert (await is_over(editor, sent_to(begun)))["state"] == "SUCCEEDED"
    assert await bodies(connection, SOURCE) == orders(42)


async def test_an_operation_shows_how_many_of_its_messages_are_possibly_duplicated(
    client: httpx.AsyncClient, context: AdminContext
) -> None:
    counts = Counts(planned=5, moved=5, possibly_duplicated=2)
    over = replace(an_operation(id="op_1"), state=OperationState.SUCCEEDED, counts=counts)
    doubtful = [
        OperationItem(f"m-{number}", ItemOutcome.POSSIBLY_DUPLICATED, over.created_at, why="reset")
        for number in range(2)
    ]
    context.service.store.add(over)
    context.service.store.add_items("op_1", doubtful)

    assert (await client.get("/admin/operations/op_1")).json()["counts"] == counts.as_dict()
    page = seen(await client.get("/operations/op_1", params={"outcome": "possibly_duplicated"}))
    assert "moved 5 of 5" in page.text
    assert "possibly duplicated 2" in page.text
    assert "m-0" in page.text


async def test_an_operation_is_steered(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 50)
    plan = seen(await client.get(f"{QUEUE}/re-drive", params={"form": "1", "rate": "1"}))
    address = sent_to(await client.post(f"{QUEUE}/re-drive", data=plan.fields))
    assert "Cancel never reverts" in seen(await client.get(address)).text
    wrong = await client.post(f"{address}/rate", data={"rate": "fast"})
    assert "want a number" in seen(wrong, 422).text
    assert seen(wrong, 422).fields["rate"] == ["fast"]
    assert seen(wrong, 422).fields["next"] == [address]  # where the colours lead back to

    requested = sent_to(await client.post(f"{address}/rate", data={"rate": "2"}))
    page = seen(await client.get(requested))
    assert page.fields["rate"] == ["2"]
    assert "Your wish is written down" in seen(await client.get(sent_to(await client.post(f"{address}/cancel")))).text
    assert (await is_over(client, address))["state"] == "CANCELLED"
    assert "An operation has this queue" not in seen(await client.get(QUEUE)).text
    assert "has ended: CANCELLED" in seen(await client.post(f"{address}/pause"), 409).text


# Who comes in -------------------------------------------------------------------------------------------


async def test_nobody_is_sent_to_the_door_and_on_to_where_they_were_going(
    browser: httpx.AsyncClient, context: AdminContext
) -> None:
    door = sent_to(await browser.get(f"{QUEUE}/messages", params={"q": "error:Timeout"}))
    assert parse_qs(urlsplit(door).query) == {"next": [f"{QUEUE}/messages?q=error%3ATimeout"]}
    fields = {**seen(await browser.get(door)).fields, "key": [a_key(context)]}
    response = await browser.post("/sign-in", data=fields)
    assert sent_to(response) == f"{QUEUE}/messages?q=error%3ATimeout"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "ada-admin" in seen(await browser.get("/")).text
    await browser.post("/sign-out")
    assert sent_to(await browser.get("/")) == "/sign-in"


@pytest.mark.parametrize(
    "next",
    [
        *("https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "/\t/evil.example"),
        *("javascript:alert(1)", "/%0a/evil", "evil", "/../../evil//x", "/a\r\nSet-Cookie: a=b", "///evil.example"),
    ],
)
async def test_nobody_is_sent_elsewhere(browser: httpx.AsyncClient, context: AdminContext, next: str) -> None:
    response = await browser.post("/sign-in", data={"key": a_key(context), "next": next})
    place = urlsplit(sent_to(response))
    assert (place.scheme, place.netloc) == ("", "")
    assert sent_to(response) in ("/", "/%0a/evil")
    assert next not in seen(await browser.get("/sign-in", params={"next": next})).fields["next"] or next == "/%0a/evil"


async def test_a_wrong_key_is_told_and_after_some_of_them_one_waits(browser: httpx.AsyncClient) -> None:
    for _ in range(5):
        wrong = await browser.post("/sign-in", data={"key": "rdk_nobody_nothing"})
        assert "not valid" in seen(wrong, 401).text
    assert seen(await browser.post("/sign-in", data={"key": "rdk_nobody_nothing"}), 429)


async def test_who_signs_in_and_who_could_not_is_in_the_audit(
    browser: httpx.AsyncClient, context: AdminContext
) -> None:
    await browser.post("/sign-in", data={"key": "rdk_nobody_nothing"})
    await browser.post("/sign-in", data={"key": a_key(context)})
    await browser.post(f"/sign-in/link/{context.gate.sessions.invite(Principal('grace', Role.VIEWER))}")
    told = [(entry.by, entry.allowed) for _, entry in context.service.audit.list_entries(action="sign in")]
    assert told == [("grace", True), ("ada-admin", True), ("somebody at 127.0.0.1", False)]


async def test_who_cannot_be_recorded_does_not_come_in(
    browser: httpx.AsyncClient, context: AdminContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AuditUnavailable("the disk is full")

    key = a_key(context)
    monkeypatch.setattr(context.service.audit, "write", refuse)
    response = await browser.post("/sign-in", data={"key": key})
    assert "The audit cannot be written" in seen(response, 503).text
    assert "set-cookie" not in response.headers


async def test_where_nobody_can_sign_in_the_door_says_how_keys_are_made(amqp_url: str, tmp_path: Path) -> None:
    context = admin_context(amqp_url, tmp_path)
    context.gate.tokens = None
    admin = Admin(context)
    async with admin.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app=admin), base_url=HOST) as client:
        assert "redrive admin keys create" in seen(await client.get("/sign-in")).text


async def test_a_link_signs_in_once_and_not_by_being_looked_at(
    browser: httpx.AsyncClient, context: AdminContext
) -> None:
    token = context.gate.sessions.invite(Principal("ada", Role.OPERATOR))
    address = f"/sign-in/link/{token}"
    for _ in range(3):
        assert "This link signs you in, once." in seen(await browser.get(address)).text
    assert sent_to(await browser.post(address)) == "/"
    assert "ada operator" in seen(await browser.get("/")).text
    assert "was used already" in seen(await browser.post(address), 401).text


async def test_another_site_can_make_nobody_do_anything(
    browser: httpx.AsyncClient, context: AdminContext, connection: Connection
) -> None:
    await prepare(connection, 1)
    await browser.post("/sign-in", data={"key": a_key(context)})
    plan = seen(await browser.get(f"{QUEUE}/re-drive", params={"form": "1"}))
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        for path, data in ((f"{QUEUE}/re-drive", plan.fields), ("/sign-in", {"key": "x"}), ("/sign-out", {})):
            refused = await browser.post(path, data=data, headers=headers)
            assert "That came from another site" in seen(refused, 403).text
    assert (await connection.queue_info(DLQ)).messages == 1
    assert (await browser.get("/")).status_code == 200


async def test_a_session_that_is_over_says_so_when_a_form_is_sent(browser: httpx.AsyncClient) -> None:
    assert "Sign in first" in seen(await browser.post("/operations/op_1/cancel"), 401).text


async def test_a_viewer_is_offered_nothing_and_refused_everything(
    context: AdminContext, connection: Connection
) -> None:
    await prepare(connection, 2)
    async with asking(context, "viewer") as viewer:
        for path in ("/", QUEUE, f"{QUEUE}/messages", f"{QUEUE}/messages/m-0"):
            page = seen(await viewer.get(path))
            assert not [link for link in page.links if re.search("re-drive|discard|edit|reveal|export|audit", link)]
        for path in (f"{QUEUE}/re-drive", f"{QUEUE}/discard", "/audit", f"{QUEUE}/messages/m-0?reveal=1"):
            assert "You may not do that" in seen(await viewer.get(path), 403).text
        for path in (f"{QUEUE}/re-drive", f"{QUEUE}/discard"):
            assert "You may not do that" in seen(await viewer.post(path, data={"confirm": DLQ}), 403).text
    assert (await connection.queue_info(DLQ)).messages == 2


async def test_who_sees_some_queues_sees_nothing_of_the_others(context: AdminContext, connection: Connection) -> None:
    await prepare(connection, 2)
    async with asking(context, "operator", queues=["payments.*"]) as client:
        page = seen(await client.get("/"))
        assert DLQ not in page.text
        assert not {"/outbox", "/topology", "/doctor"} & set(page.links)
        assert DLQ in seen(await client.get(QUEUE), 403).text
        assert "You may not do that" in seen(await client.get("/topology"), 403).text


# The rest -----------------------------------------------------------------------------------------------


@pytest.fixture
def app(amqp_url: str, tmp_path: Path) -> App:
    app = App("shop", broker=amqp_url, data=tmp_path)
    Schema().upgrade(app.database)
    with app.database.engine.begin() as connection:
        for number in range(3):
            row = {"message_id": f"invoice-{number}", "exchange": "events", "routing_key": "invoice", "body": b"{}"}
            row |= {"state": int(RowState.PARKED), "last_error": "312 NO_ROUTE", "attempts": 8}
            connection.execute(sa.insert(app.outbox.table).values(**row))
    return app


async def test_parked_rows_are_published_again_or_deleted(app: App) -> None:
    async with asking(AdminContext.of(app, access=an_access(), apart=False)) as client:
        assert "3 parked in the outbox" in seen(await client.get("/")).text
        page = seen(await client.get("/outbox"))
        assert "312 NO_ROUTE" in page.text
        retried = seen(await client.get(sent_to(await client.post("/outbox/1/retry"))))
        assert "published again within seconds" in retried.text
        assert "invoice-1" in seen(await client.get("/outbox/2/discard")).text
        assert "The row is deleted" in seen(await client.get(sent_to(await client.post("/outbox/2/discard")))).text
        assert "not parked any more" in seen(await client.get(sent_to(await client.post("/outbox/2/discard")))).text
        await client.post("/outbox/retry")
        assert "Nothing is parked." in seen(await client.get("/outbox")).text


def an_access() -> AccessSettings:
    from admin_api import SECRET
    from redrive.admin.access.tokens import TokenPolicy

    return AccessSettings(tokens=TokenPolicy(secret=SECRET))


async def test_without_an_application_there_is_no_outbox(client: httpx.AsyncClient) -> None:
    assert "/outbox" not in seen(await client.get("/")).links
    assert "there is no outbox here" in seen(await client.get("/outbox"), 404).text


async def test_the_topology_is_a_picture_and_a_table(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 3)
    assert f"{DLQ} classic 3" in seen(await client.get("/topology")).text
    client.cookies.set("redrive_theme", "dark")
    picture = await client.get("/topology.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "· 3 dead" in picture.text
    assert "@media all" in picture.text
    assert "amq.direct" not in picture.text


async def test_the_topology_is_that_of_the_application_unless_everything_is_asked_for(
    amqp_url: str, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("somebody.elses")
    topology = Topology(queues=[Queue(SOURCE, existing=True), Queue("absent", existing=True)])
    office = admin_context(amqp_url, tmp_path, topology=topology)
    async with asking(office) as client:
        own, everything = seen(await client.get("/topology")), seen(await client.get("/topology?all=1"))
        assert "somebody.elses" not in (await client.get("/topology.svg")).text
        assert "somebody.elses" in (await client.get("/topology.svg?all=1")).text
    assert "somebody.elses" not in own.text
    assert "missing queue absent" in own.text
    assert f"queue {SOURCE} is taken as it is: " in own.text
    assert "1 queue of other applications is not shown" in own.text
    assert "/topology?all=1" in own.links
    assert "somebody.elses" in everything.text
    assert "/topology" in everything.links


async def test_the_doctor_and_the_audit_are_read(client: httpx.AsyncClient, connection: Connection) -> None:
    await connection.declare_queue("work", arguments={"x-dead-letter-exchange": "nowhere"})
    assert "dead-letter exchange does not exist" in seen(await client.get("/doctor")).text
    assert "Its dead-letter exchange does not exist" in seen(await client.get("/")).text
    assert "Nobody did anything yet." in seen(await client.get("/audit")).text
    assert "No entry like that." in seen(await client.get("/audit", params={"by": "nobody"})).text


async def test_a_broker_that_is_away_is_told_and_the_page_comes_back_by_itself(tmp_path: Path) -> None:
    broker = ThreadedBroker().start()
    async with asking(admin_context(broker.url, tmp_path)) as client:
        assert seen(await client.get("/"))
        await asyncio.to_thread(broker.stop)
        response = await client.get(QUEUE)
        page = seen(response, 503)
        assert "The broker is away" in page.text
        assert "Dead letters are safe where they are" in page.text
        assert '<meta http-equiv="refresh" content="5">' in response.text
        assert "/operations" in page.links
        assert seen(await client.get("/operations"))
        assert seen(await client.get("/audit"))


async def test_a_database_that_is_away_is_told_without_its_statements(
    client: httpx.AsyncClient, context: AdminContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(**_: object) -> None:
        raise sa.exc.OperationalError("SELECT secret", {}, Exception("connection refused"))

    monkeypatch.setattr(context.gate, "authenticate", away)
    response = await client.get("/")
    page = seen(response, 503)
    assert "The database is away" in page.text
    assert "Dead letters are safe in the broker" in page.text
    assert "SELECT" not in page.text
    assert 'http-equiv="refresh"' in response.text
    assert 'http-equiv="refresh"' not in (await client.post("/operations/op_1/cancel")).text


async def test_exported_messages_are_imported_from_a_file(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 2)
    exported = await client.get(f"/admin/dlq/queues/{DLQ}/export", params={"reveal": "1"})
    assert await bodies(connection, DLQ) == orders(0, 1)
    assert "Import into orders.dlq" in seen(await client.get(f"{QUEUE}/import")).text
    none = await client.post(f"{QUEUE}/import", files={"file": ("", b"")})
    assert "choose a file first" in seen(none, 422).text
    broken = await client.post(f"{QUEUE}/import", files={"file": ("x.ndjson", exported.content + b"{")})
    assert "line 3" in seen(broken, 422).text
    await until_depth(connection, DLQ, 0)
    done = await client.post(f"{QUEUE}/import", files={"file": ("x.ndjson", exported.content)})
    assert "The messages of the file are in the queue." in seen(await client.get(sent_to(done))).text
    assert await bodies(connection, DLQ) == orders(0, 1)


async def test_an_import_that_is_sent_twice_is_done_once(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 2)
    exported = (await client.get(f"/admin/dlq/queues/{DLQ}/export", params={"reveal": "1"})).content
    once = seen(await client.get(f"{QUEUE}/import")).fields["once"][0]
    file = {"file": ("x.ndjson", exported)}
    broken = {"file": ("x.ndjson", exported + b"{")}
    assert seen(await client.post(f"{QUEUE}/import", data={"once": once}, files=broken), 422)

    first, second = await asyncio.gather(
        *(client.post(f"{QUEUE}/import", data={"once": once}, files=file) for _ in range(2))
    )

    said = {parse_qs(urlsplit(sent_to(one)).query)["said"][0] for one in (first, second)}
    assert said == {"imported", "imported-once"}
    assert await bodies(connection, DLQ) == orders(0, 1, 0, 1)
    another = seen(await client.get(f"{QUEUE}/import")).fields["once"][0]
    assert "said=imported" in sent_to(await client.post(f"{QUEUE}/import", data={"once": another}, files=file))
    assert await bodies(connection, DLQ) == orders(0, 1)


async def test_mounted_in_another_application_pages_and_api_lead_to_each_other(
    context: AdminContext, connection: Connection
) -> None:
    await prepare(connection, 2)
    admin = Admin(context)
    outer = Starlette(routes=[Mount("/ops/redrive", admin)], lifespan=admin.lifespan)
    transport = httpx.ASGITransport(app=outer)
    async with admin.lifespan(), httpx.AsyncClient(transport=transport, base_url=HOST, headers=bearing()) as client:
        page = seen(await client.get("/ops/redrive/"))
        assert [link for link in page.links if not link.startswith(("/ops/redrive/", "#"))] == []
        begun = await client.post(f"/ops/redrive/admin/dlq/queues/{DLQ}/re-drive", json={"limit": 1})
        assert begun.headers["location"] == f"/ops/redrive/admin/operations/{begun.json()['id']}"
        assert begun.json()["id"] in seen(await client.get(f"/ops/redrive/operations/{begun.json()['id']}")).text
        client.headers.pop("authorization")
        assert sent_to(await client.get("/ops/redrive/audit")) == "/ops/redrive/sign-in?next=%2Fops%2Fredrive%2Faudit"
        assert "There is no such thing" in seen(await client.get("/ops/redrive/nowhere"), 404).text


async def test_what_is_not_there_is_told_as_a_page(client: httpx.AsyncClient) -> None:
    for path in ("/nowhere", "/operations/op_nobody", "/queues/nobody.dlq", "/queues/nobody.dlq/messages/1"):
        assert "There is no such thing" in seen(await client.get(path), 404).text
    problem = await client.get("/admin/nowhere")
    assert problem.headers["content-type"] == "application/problem+json"


async def test_styles_and_scripts_are_kept_by_browsers_and_nothing_else_is_served(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.headers["cache-control"] == "no-store"
    for address in re.findall(r'(?:href|src)="([^"]*/static/[^"]+)"', page.text):
        response = await client.get(address)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
    for path in ("/static/..%2fpages.py", "/static/%2e%2e/pages.py", "/static/nothing.css"):
        assert (await client.get(path)).status_code == 404


async def test_a_link_from_somebody_else_cannot_make_a_page_say_anything(client: httpx.AsyncClient) -> None:
    assert "call 0900" not in seen(await client.get("/", params={"said": "call 0900"})).text


async def test_light_and_dark_are_remembered(client: httpx.AsyncClient) -> None:
    chosen = await client.post("/theme", data={"theme": "dark", "next": "/operations"})
    assert sent_to(chosen) == "/operations"
    assert "redrive_theme=dark" in chosen.headers["set-cookie"]
    assert 'data-theme="dark"' in (await client.get("/operations")).text
    client.cookies.clear()
    client.cookies.set("redrive_theme", "<b>")
    assert 'data-theme="auto"' in (await client.get("/operations")).text
