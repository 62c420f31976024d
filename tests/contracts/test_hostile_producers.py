"""A hostile producer writes every header it likes: none of them chooses where a dead letter goes.

The producer publishes to `orders.work`, whose dead letters go to `orders.dlq`. It wants its message in `payments.work`,
where it may not publish. An operator who is restricted to `orders*` re-drives `orders.dlq`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from admin_api import admin_context, asking
from dead_lettering import a_service, eventually, until_depth
from redrive import App, Message, Retry
from redrive.admin.context import AdminContext
from redrive.admin.service import Service
from redrive.client import Connection, Delivery, Properties
from redrive.operations.operation import (
    Destination,
    ItemOutcome,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
)
from redrive.recovery.retry import RetryRoute
from redrive.testing import Endpoint
from redrive.topology import Exchange, Queue, Topology
from working import working

DLQ, WORK, TARGET = "orders.dlq", "orders.work", "payments.work"
TYPES = ["classic", "quorum"]
MINE = ["orders*"]

FORGED_DEATH = {"queue": TARGET, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": [TARGET]}
FORGED: Mapping[str, Any] = {
    "x-redrive-queue": TARGET,
    "x-redrive-exchange": "payments",
    "x-redrive-routing-key": "pay",
    "x-redrive-reason": "exhausted",
    "x-redrive-attempts": 99,
}
FORGED_DEATHS: Mapping[str, Any] = {
    "x-death": [FORGED_DEATH],
    "x-first-death-queue": TARGET,
    "x-first-death-reason": "rejected",
    "x-first-death-exchange": "payments",
    "x-last-death-queue": TARGET,
}


@asynccontextmanager
async def taken(connection: Connection, queue: str) -> AsyncIterator[Delivery]:
    async with asyncio.timeout(20):
        while (delivery := await connection.get(queue)) is None:  # noqa: ASYNC110 - a message tells nobody
            await asyncio.sleep(0.02)
    delivery.properties  # noqa: B018 - decoded while it is here
    yield delivery


async def declare(connection: Connection, queue_type: str = "classic", dlq: str = DLQ) -> None:
    kind = {"x-queue-type": queue_type}
    unlimited = {"x-delivery-limit": -1} if queue_type == "quorum" and connection.server_version >= (4,) else {}
    await connection.declare_queue(dlq, arguments=kind | unlimited)
    await connection.declare_queue(TARGET, arguments=kind)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq}
    await connection.declare_queue(WORK, arguments=kind | dying)


async def die(connection: Connection, headers: Mapping[str, Any], body: bytes = b"pay me", dlq: str = DLQ) -> None:
    """Publish to the queue for work, whose consumer rejects it."""
    before = (await connection.queue_info(dlq)).messages
    await connection.publish("", WORK, body, Properties(message_id="m-1", headers=dict(headers)))
    async with taken(connection, WORK) as delivery:
        delivery.reject(requeue=False)
    await until_depth(connection, dlq, before + 1)


# Which parts of the broker's record a producer can write ----------------------------------------------


@pytest.mark.parametrize("queue_type", TYPES)
async def test_a_producer_writes_all_but_the_newest_death_before_rabbitmq_4(
    connection: Connection, queue_type: str
) -> None:
    await declare(connection, queue_type)

    await die(connection, FORGED_DEATHS)

    async with taken(connection, DLQ) as delivery:
        headers = dict(delivery.properties.headers or {})
        delivery.ack()
    queues = [death["queue"] for death in headers["x-death"]]
    if connection.server_version < (4,):
        assert (queues, headers["x-first-death-queue"]) == ([WORK, TARGET], TARGET)
    else:
        assert (queues, headers["x-first-death-queue"]) == ([WORK], WORK)


# The restricted operator --------------------------------------------------------------------------------


@pytest.fixture
def context(amqp_url: str, management_url: str | None, tmp_path: Path) -> AdminContext:
    return admin_context(amqp_url, tmp_path, editing=True, management=management_url)


async def redriven(client: httpx.AsyncClient, queue: str = DLQ, **said: Any) -> dict[str, Any]:
    answer = await client.post(f"/admin/dlq/queues/{queue}/re-drive", json=said, headers={"Prefer": "wait=10"})
    assert answer.status_code in (200, 202), answer.text
    operation: dict[str, Any] = answer.json()
    return operation


async def depths(connection: Connection) -> tuple[int, int]:
    """Of the queue that it failed in, and of the one that the producer wants."""
    return (await connection.queue_info(WORK)).messages, (await connection.queue_info(TARGET)).messages


@pytest.mark.parametrize("queue_type", TYPES)
@pytest.mark.parametrize("forged", [FORGED, FORGED | FORGED_DEATHS, {**FORGED, "x-redrive-reason": "no reason"}])
async def test_a_forged_origin_does_not_move_a_message_that_the_broker_dead_lettered(
    connection: Connection, context: AdminContext, queue_type: str, forged: Mapping[str, Any]
) -> None:
    await declare(connection, queue_type)
    await die(connection, forged)

    async with asking(context, "operator", queues=MINE) as client:
        seen = (await client.get(f"/admin/dlq/queues/{DLQ}/messages")).json()["items"][0]
        await redriven(client)

    assert seen["source"] == WORK
    assert await depths(connection) == (1, 0)


@pytest.mark.parametrize("queue_type", TYPES)
@pytest.mark.parametrize("forged", [FORGED, FORGED_DEATHS, FORGED | FORGED_DEATHS])
async def test_a_message_that_was_published_to_the_dead_letter_queue_stays_there_and_the_reason_is_given(
    connection: Connection, context: AdminContext, queue_type: str, forged: Mapping[str, Any]
) -> None:
    await declare(connection, queue_type)
    await connection.publish("", DLQ, b"pay me", Properties(headers=dict(forged)))
    await until_depth(connection, DLQ, 1)

    async with asking(context, "operator", queues=MINE) as client:
        plan = (await client.post(f"/admin/dlq/queues/{DLQ}/re-drive/plan", json={})).json()
        operation = await redriven(client)
        items = (await client.get(f"/admin/operations/{operation['id']}/items")).json()["items"]

    record = "x-death" if forged is FORGED_DEATHS else "header"
    why = f"its {record} names {TARGET}, which does not dead-letter to this queue; name it with --to to send it there"
    assert plan["ineligible"] == [{"reason": why, "count": 1}]
    assert [item["why"] for item in items] == [why]
    assert await depths(connection) == (0, 0)


async def test_an_unrestricted_operator_does_not_send_it_by_accident_and_can_by_name(
    connection: Connection, context: AdminContext
) -> None:
    await declare(connection)
    await connection.publish("", DLQ, b"pay me", Properties(headers=dict(FORGED)))
    await until_depth(connection, DLQ, 1)

    async with asking(context, "operator") as client:
        await redriven(client)
        assert await depths(connection) == (0, 0)
        await redriven(client, to=TARGET)

    assert await depths(connection) == (0, 1)


@pytest.mark.parametrize("to", ["retry", "original", TARGET, f"exchange:amq.direct:{TARGET}"])
async def test_no_destination_leads_a_restricted_operator_out_of_its_queues(
    connection: Connection, context: AdminContext, to: str
) -> None:
    await declare(connection)
    await connection.bind_queue(TARGET, "amq.direct", TARGET)
    await connection.publish("", DLQ, b"pay me", Properties(headers={**FORGED, "x-redrive-exchange": "amq.direct"}))
    await until_depth(connection, DLQ, 1)

    async with asking(context, "operator", queues=MINE) as client:
        answer = await client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"to": to}, headers={"Prefer": "wait=10"})

    assert answer.status_code == (200 if to == "retry" else 403)
    assert await depths(connection) == (0, 0)


# `original` --------------------------------------------------------------------------------------------


async def declare_exchanges(connection: Connection) -> None:
    """`orders` feeds the queue for work, at once or after a wait; `payments` feeds the one that the producer wants."""
    for exchange, queue, key in (("orders", WORK, "new"), ("payments", TARGET, "pay")):
        await connection.declare_exchange(exchange, "direct")
        await connection.bind_queue(queue, exchange, key)
    waiting = {"x-message-ttl": 10, "x-dead-letter-exchange": "orders", "x-dead-letter-routing-key": "new"}
    await connection.declare_queue("orders.wait", arguments=waiting)
    await connection.bind_queue("orders.wait", "orders", "later")


async def reject(connection: Connection) -> None:
    async with taken(connection, WORK) as delivery:
        delivery.reject(requeue=False)
    await until_depth(connection, DLQ, 1)


@pytest.mark.parametrize("forged", [FORGED, FORGED | FORGED_DEATHS])
async def test_a_forged_exchange_does_not_move_a_message(
    connection: Connection, context: AdminContext, forged: Mapping[str, Any]
) -> None:
    await declare(connection)
    await declare_exchanges(connection)
    await die(connection, forged)

    async with asking(context, "operator") as client:
        plan = (await client.post(f"/admin/dlq/queues/{DLQ}/re-drive/plan", json={"to": "original"})).json()
        operation = await redriven(client, to="original")
        items = (await client.get(f"/admin/operations/{operation['id']}/items")).json()["items"]
        assert await depths(connection) == (0, 0)
        await redriven(client, to="exchange:payments:pay")

    why = (
        f"it names exchange payments with key pay, which does not lead to {WORK}, where it failed; name a queue or an "
        "exchange with --to to send it there"
    )
    assert plan["ineligible"] == [{"reason": why, "count": 1}]
    assert [item["why"] for item in items] == [why]
    assert await depths(connection) == (0, 1)


async def test_a_forged_exchange_is_not_the_default_of_a_queue_that_is_re_driven_to_its_origin(
    connection: Connection, amqp_url: str, management_url: str | None, tmp_path: Path
) -> None:
    events = Exchange("orders", "direct")
    queue = Queue(WORK, bind=events.on("new"), dlq=DLQ, redrive_to="original")
    topology = Topology(exchanges=[events], queues=[queue])
    await declare(connection)
    await declare_exchanges(connection)
    await die(connection, FORGED)

    for management in {management_url, None}:  # the application alone knows it as well
        context = admin_context(amqp_url, tmp_path, management=management, topology=topology)
        async with asking(context, "operator") as client:
            operation = await redriven(client)
        assert operation["to"] == "original"
        assert await depths(connection) == (0, 0)


@pytest.mark.parametrize("key", ["new", "later"])
async def test_a_message_goes_to_the_exchange_that_leads_to_its_queue(
    connection: Connection, context: AdminContext, key: str
) -> None:
    await declare(connection)
    await declare_exchanges(connection)
    await connection.publish("orders", key, b"order")
    await reject(connection)

    async with asking(context, "operator") as client:
        operation = await redriven(client, to="original")

    assert operation["counts"]["moved"] == 1
    await until_depth(connection, WORK, 1)


async def test_over_plain_amqp_an_exchange_that_a_message_names_is_used_with_a_warning(
    request: pytest.FixtureRequest, connection: Connection, amqp_url: str, tmp_path: Path
) -> None:
    only_on_rabbitmq(request)
    await declare(connection)
    await declare_exchanges(connection)
    await connection.publish("orders", "new", b"order")
    await reject(connection)
    service = a_service(amqp_url, tmp_path)

    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ, to=Destination.parse("original")))
    over = await service.run(await service.begin(plan.order))

    assert any(warning.startswith("only the messages name orders (new)") for warning in plan.warnings), plan.warnings
    assert over.counts.moved == 1


async def test_a_dead_letter_queue_that_two_queues_share_gives_each_its_own(
    connection: Connection, context: AdminContext
) -> None:
    """Both feed it, so only the broker's record keeps them apart; and the operator may use one of them."""
    shared = "orders.shared"
    await declare(connection, dlq=shared)
    await connection.delete_queue(TARGET)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": shared}
    await connection.declare_queue(TARGET, arguments=dying)
    await die(connection, FORGED | FORGED_DEATHS, b"forged", shared)
    await die(connection, {**FORGED, "x-death": "hidden"}, b"hidden", shared)
    await connection.publish("", TARGET, b"theirs")
    async with taken(connection, TARGET) as delivery:
        delivery.reject(requeue=False)
    await until_depth(connection, shared, 3)

    async with asking(context, "operator", queues=MINE) as client:
        plan = (await client.post(f"/admin/dlq/queues/{shared}/re-drive/plan", json={})).json()
        await redriven(client, shared)
        assert await depths(connection) == (plan["eligible"], 0)

    assert f"the operator may not send to {TARGET}" in [each["reason"] for each in plan["ineligible"]]
    assert plan["eligible"] == 2


async def test_an_edit_goes_where_the_message_belongs_and_nowhere_else(
    connection: Connection, context: AdminContext
) -> None:
    await declare(connection)
    await die(connection, FORGED)

    async with asking(context, "admin", queues=MINE) as client:
        seen = (await client.get(f"/admin/dlq/queues/{DLQ}/messages")).json()["items"][0]
        answer = await client.post(
            f"/admin/dlq/queues/{DLQ}/messages/{seen['id']}/edit-and-re-drive",
            json={"body": "changed", "set_headers": {"tenant": "acme"}, "force": True},
            headers={"Prefer": "wait=10"},
        )
        refused = await client.post(
            f"/admin/dlq/queues/{DLQ}/messages/{seen['id']}/edit-and-re-drive", json={"body": "changed", "to": TARGET}
        )

    assert (answer.status_code, answer.json()["state"]) == (200, "SUCCEEDED")
    assert refused.status_code in (403, 404)
    assert await depths(connection) == (1, 0)


async def test_a_move_does_not_lead_a_restricted_operator_out_of_its_queues(
    connection: Connection, context: AdminContext
) -> None:
    await declare(connection)
    await connection.declare_queue("payments.dlq")
    await die(connection, FORGED)

    async with asking(context, "operator", queues=MINE) as client:
        answers = [
            await client.post(f"/admin/dlq/queues/{DLQ}/move", json={"to": to, "dry_run": dry_run})
            for to in (TARGET, "payments.dlq")
            for dry_run in (True, False)
        ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert (await connection.queue_info("payments.dlq")).messages == 0
    assert await depths(connection) == (0, 0)


async def test_an_import_of_a_restricted_principal_says_where_it_is_and_not_what_the_file_says(
    connection: Connection, context: AdminContext
) -> None:
    await declare(connection)
    await connection.publish(
        "", DLQ, b"pay me", Properties(headers={**FORGED, **FORGED_DEATHS, "x-redrive-error": "TimeoutError"})
    )
    await until_depth(connection, DLQ, 1)
    async with asking(context, "admin") as client:
        lines = (await client.get(f"/admin/dlq/queues/{DLQ}/export?reveal=true")).content
    async with taken(connection, DLQ) as delivery:
        delivery.ack()

    async with asking(context, "admin", queues=MINE) as client:
        answer = await client.post(f"/admin/dlq/queues/{DLQ}/import", content=lines)
        assert answer.json() == {"lines": 1}
        async with taken(connection, DLQ) as delivery:
            headers = dict(delivery.properties.headers or {})
            delivery.nack(requeue=True)
        await redriven(client)

    assert {name: headers.get(name) for name in (*FORGED, *FORGED_DEATHS, "x-redrive-error")} == {
        **dict.fromkeys((*FORGED, *FORGED_DEATHS)),
        "x-redrive-queue": WORK,
        "x-redrive-reason": "exhausted",
        "x-redrive-error": "TimeoutError",
    }
    assert await depths(connection) == (1, 0)


async def test_an_import_of_an_unrestricted_principal_keeps_every_header(
    connection: Connection, context: AdminContext
) -> None:
    await declare(connection)
    await connection.publish("", DLQ, b"pay me", Properties(headers=dict(FORGED)))
    await until_depth(connection, DLQ, 1)

    async with asking(context, "admin") as client:
        lines = (await client.get(f"/admin/dlq/queues/{DLQ}/export?reveal=true")).content
        await client.post(f"/admin/dlq/queues/{DLQ}/import", content=lines)

    await until_depth(connection, DLQ, 2)
    for _ in range(2):
        async with taken(connection, DLQ) as delivery:
            assert delivery.properties.headers == FORGED
            delivery.ack()


async def test_an_operation_that_another_server_resumes_keeps_to_the_queues_of_its_principal(
    connection: Connection, amqp_url: str, management_url: str | None, tmp_path: Path
) -> None:
    shared = "orders.shared"
    await declare(connection, dlq=shared)
    await connection.delete_queue(TARGET)
    await connection.declare_queue(
        TARGET, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": shared}
    )
    await connection.publish("", TARGET, b"theirs")
    async with taken(connection, TARGET) as delivery:
        delivery.reject(requeue=False)
    await until_depth(connection, shared, 1)
    order = replace(OperationRequest(OperationKind.REDRIVE, shared, by="ada"), allowed=tuple(MINE))
    begun = await a_service(amqp_url, tmp_path, management=management_url).begin(order)

    another: Service = a_service(amqp_url, tmp_path, by="a server", management=management_url)
    await another.leave(begun)
    over: Operation = await another.resume(begun.id)

    [(_, item)] = await another.items(over.id)
    assert (item.outcome, item.why) == (ItemOutcome.SKIPPED, f"the operator may not send to {TARGET}")
    assert await depths(connection) == (0, 0)


@pytest.mark.parametrize(("to", "may"), [(TARGET, False), ("own", False), ("original", False), (WORK, True)])
async def test_a_restricted_operator_does_not_resume_what_leads_out_of_its_queues(
    connection: Connection,
    context: AdminContext,
    amqp_url: str,
    management_url: str | None,
    tmp_path: Path,
    to: str,
    may: bool,
) -> None:
    """Somebody who may send anywhere began it, and their process is gone."""
    await declare(connection)
    await die(connection, FORGED)
    service = a_service(amqp_url, tmp_path, management=management_url)
    begun = await service.begin(OperationRequest(OperationKind.REDRIVE, DLQ, to=Destination.parse(to), by="grace"))
    await service.leave(begun)

    async with asking(context, "operator", queues=MINE) as client:
        answer = await client.post(f"/admin/operations/{begun.id}/resume", headers={"Prefer": "wait=10"})
        cancelled = await client.post(f"/admin/operations/{begun.id}/cancel")

    assert answer.status_code == (200 if may else 403)
    assert may or cancelled.status_code == 200
    assert (await depths(connection))[1] == 0


@pytest.mark.parametrize("to", [TARGET, "original", f"exchange:amq.direct:{TARGET}"])
async def test_a_stored_operation_is_checked_again_when_it_runs(
    connection: Connection, amqp_url: str, management_url: str | None, tmp_path: Path, to: str
) -> None:
    await declare(connection)
    await connection.bind_queue(TARGET, "amq.direct", TARGET)
    await die(connection, {**FORGED, "x-redrive-exchange": "amq.direct", "x-redrive-routing-key": TARGET})
    order = OperationRequest(OperationKind.REDRIVE, DLQ, to=Destination.parse(to), by="ada", allowed=tuple(MINE))
    service = a_service(amqp_url, tmp_path, management=management_url)

    over = await service.run(await service.begin(order))

    assert (over.state, over.counts.skipped) == (OperationState.SUCCEEDED, 1)
    assert await depths(connection) == (0, 0)


# What a producer cannot break ---------------------------------------------------------------------------

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
JUNK: list[Any] = [
    *(None, True, -1, 2**62, 1.5, "", "x" * 3000, "payments.work\x00", "päy\u202ements", "\ud7ff", b"\xff\xfe", b""),
    *(
        [],
        [1, "x"],
        {},
        {"queue": TARGET},
        [{"queue": 7, "reason": [], "count": "many"}],
        datetime(2024, 1, 1, tzinfo=UTC),
    ),
]
OURS = (
    *("x-redrive-queue", "x-redrive-exchange", "x-redrive-routing-key", "x-redrive-reason", "x-redrive-attempts"),
    *("x-redrive-attempts-dropped", "x-redrive-history", "x-redrive-snoozes", "x-redrive-crashes"),
    *("x-redrive-quarantine", "x-redrive-first-failed-at", "x-redrive-not-before", "x-redrive-error"),
    *("x-redrive-message", "x-redrive-stack", "x-redrive-fingerprint", "x-redrive-host", "x-redrive-app"),
    *("x-redrive-parked-at", "x-redriven-count", "x-redriven-op", "x-redriven-deaths", "x-first-death-queue"),
    *("x-first-death-reason", "x-opt-delivery-time"),
)


@pytest.mark.parametrize("queue_type", TYPES)
async def test_whatever_a_producer_writes_into_our_headers_the_message_goes_back_or_stays(
    connection: Connection, context: AdminContext, queue_type: str
) -> None:
    await declare(connection, queue_type)
    for value in JUNK:
        await die(connection, dict.fromkeys(OURS, value))

    async with asking(context, "operator", queues=MINE) as client:
        operation = await redriven(client)

    assert operation["state"] == "SUCCEEDED"
    assert operation["counts"]["failed"] == 0
    await until_depth(connection, TARGET, 0)
    back, left = (await connection.queue_info(WORK)).messages, (await connection.queue_info(DLQ)).messages
    assert back + left == len(JUNK)
    assert left <= 3  # "re-driven too often already": a number that a producer may write


@pytest.mark.parametrize("via", [RetryRoute.REPUBLISH, RetryRoute.REJECT, RetryRoute.QUORUM])
async def test_forged_counters_do_not_take_attempts_away(
    connection: Connection, amqp_url: str, tmp_path: Path, via: RetryRoute
) -> None:
    if via is RetryRoute.QUORUM and connection.server_version < (4, 3):
        pytest.skip("quorum queues retry by themselves from 4.3 on")
    app = App("shop", broker=amqp_url, data=tmp_path)
    delay = "1s" if via is RetryRoute.QUORUM else "50ms"
    seen: list[int] = []

    @app.consumer(
        "orders",
        retry=Retry(attempts=2, delay=delay, via=via, max_age="1h"),
        type="quorum" if via is RetryRoute.QUORUM else None,
    )
    async def handle(message: Message) -> None:
        seen.append(message.attempt)
        raise OSError("busy")

    forged = {
        "x-redrive-attempts": 99,
        "x-redrive-first-failed-at": "2001-01-01T00:00:00Z",
        "x-redrive-crashes": 99,
        "x-delivery-count": 99,
    }
    async with working(app) as (running, _):
        await running.publishing.publish("", "orders", b"{}", Properties(headers=forged))
        await until_depth(running.publishing, "orders.dlq", 1)

    assert seen == [1, 2]


# What can be seen of the broker ---------------------------------------------------------------------------


def only_on_rabbitmq(request: pytest.FixtureRequest) -> Endpoint:
    if request.node.callspec.params["amqp_url"] != "rabbitmq":
        pytest.skip("the embedded broker shows everything, and has no policies")
    node: Endpoint = request.getfixturevalue("rabbitmq")
    return node


async def test_over_plain_amqp_the_broker_is_believed_with_a_warning_unless_the_operator_is_restricted(
    request: pytest.FixtureRequest, connection: Connection, amqp_url: str, tmp_path: Path
) -> None:
    only_on_rabbitmq(request)
    await declare(connection)
    await die(connection, FORGED)
    context = admin_context(amqp_url, tmp_path)

    async with asking(context, "operator", queues=MINE) as client:
        await redriven(client)
        assert await depths(connection) == (0, 0)
        await redriven(client, to=WORK)
        assert await depths(connection) == (1, 0)
    await die(connection, FORGED | FORGED_DEATHS)
    service = a_service(amqp_url, tmp_path)
    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ))
    await service.run(await service.begin(plan.order))

    assert any(warning.startswith(f"only the messages name {WORK}") for warning in plan.warnings)
    await until_depth(connection, DLQ, 0)
    assert (await depths(connection))[1] == 0


async def test_a_queue_that_dead_letters_by_a_policy_is_known(
    request: pytest.FixtureRequest, connection: Connection, context: AdminContext, amqp_url: str
) -> None:
    node = only_on_rabbitmq(request)
    for name in (WORK, DLQ, TARGET):
        await connection.declare_queue(name)
    dying = {"dead-letter-exchange": "", "dead-letter-routing-key": DLQ}
    vhost = amqp_url.rpartition("/")[2]
    policy = {"pattern": f"^{WORK}$", "definition": dying, "apply-to": "queues"}
    node.api(f"/policies/{vhost}/dying", "PUT", policy)
    await eventually(lambda: "dying" in str(node.api(f"/queues/{vhost}/{WORK}")))
    await die(connection, FORGED)

    async with asking(context, "operator", queues=MINE) as client:
        await redriven(client)

    assert await depths(connection) == (1, 0)
