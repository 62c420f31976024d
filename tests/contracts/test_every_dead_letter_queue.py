"""Every dead-letter queue of an application, however it is declared, is in everything that lists dead-letter queues."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from admin_api import admin_context, asking
from dead_lettering import a_service, operating, until_depth
from redrive import App
from redrive.admin.target import BrokerTarget
from redrive.cli.dlq import dlq
from redrive.cli.exit_codes import FOUND
from redrive.integrations.monitoring import Monitoring
from redrive.operations.operation import CanarySchedule, OperationKind, OperationRequest, OperationState, Selection
from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Naming
from redrive.topology.definitions import Definitions
from redrive.topology.doctor import examine
from working import working

ONCE = Retry(attempts=1)
SOURCES = {
    "orders.dlq": "orders",  # nothing said
    "mail_graveyard": "mail",  # by the naming
    "payments.dlq": "payments",  # the rest of a table of errors
    "payments.invalid": "payments",  # by a table of errors
    "payments.unknown": "payments",
    "invoices.grave": "invoices",  # by its name
    "returns.grave": "returns",  # by its name, where the queue's own dead-letter exchange leads to its retry queue
}


@dataclass
class Shop:
    app: App
    url: str
    management: str | None
    folder: Path
    fails_with: type[Exception] | None = None  # whatever the message is


def declare_all(shop: Shop) -> None:
    def declare(queue: str, **options: object) -> None:
        @shop.app.consumer(queue, **{"retry": ONCE, **options})
        async def handle(kind: str) -> None:
            raise shop.fails_with or {"key": KeyError, "value": ValueError}.get(kind, OSError)

    declare("orders")
    declare("mail", naming=Naming(dlq_queue="{queue}_graveyard"))
    declare("payments", dlq={KeyError: "payments.unknown", ValueError: "payments.invalid"})
    declare("invoices", dlq="invoices.grave")
    declare("returns", dlq="{queue}.grave", retry=Retry(attempts=2, delay="20ms", via=RetryRoute.REJECT))


@pytest.fixture
async def shop(
    amqp_url: str, management_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    """A shop whose dead-letter queues hold one message each."""
    app = App("shop", broker=amqp_url, data=tmp_path)
    shop = Shop(app, amqp_url, management_url, tmp_path)
    declare_all(shop)
    module = ModuleType("shop_of_the_test")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    async with working(app) as (running, _):
        for queue in ("orders", "mail", "payments", "invoices", "returns"):
            await app.publish("", queue, "any")
        await app.publish("", "payments", "key")
        await app.publish("", "payments", "value")
        for queue in SOURCES:
            await until_depth(running.publishing, queue, 1)
        yield shop


def command(*words: str) -> tuple[int, object]:
    done = CliRunner().invoke(dlq, [*words, "--app", "shop_of_the_test:app", "--json"])
    return done.exit_code, json.loads(done.stdout)


async def test_it_is_in_the_list_of_the_command_line_with_its_source(shop: Shop) -> None:  # noqa: ARG001
    code, rows = await asyncio.to_thread(command, "ls")
    assert isinstance(rows, list)
    assert (code, {row["name"]: (row["source"], row["depth"]) for row in rows}) == (
        0,
        {name: (source, 1) for name, source in SOURCES.items()},
    )


async def test_it_is_checked(shop: Shop) -> None:  # noqa: ARG001
    code, rows = await asyncio.to_thread(command, "check")
    assert isinstance(rows, list)
    assert (code, {row["name"] for row in rows}) == (FOUND, set(SOURCES))


async def test_it_is_in_the_metrics_of_a_worker(shop: Shop) -> None:
    page = (await Monitoring(shop.app).metrics()).decode()
    found = re.findall(r'^redrive_queue_messages\{queue="(.*?)",role="dlq"\} 1\.0$', page, re.MULTILINE)
    assert set(found) == set(SOURCES)


async def test_it_is_in_the_api_the_metrics_of_the_server_and_the_console(shop: Shop) -> None:
    context = admin_context(shop.url, shop.folder, management=shop.management, topology=shop.app.topology)
    async with asking(context) as client:
        rows = (await client.get("/admin/dlq/queues")).json()["items"]
        metrics = (await client.get("/metrics")).text
        console = (await client.get("/")).text
    assert {row["name"]: row["source"] for row in rows} == SOURCES
    assert set(re.findall(r'^redrive_dead_letters\{queue="(.*?)"\} 1\.0$', metrics, re.MULTILINE)) == set(SOURCES)
    assert "7 dead letters" in re.sub(r"\s+", " ", re.sub("<.*?>", "", console))
    assert all(f"/queues/{name}" in console for name in SOURCES)


async def test_the_doctor_sees_when_it_forgets_messages(shop: Shop) -> None:
    target = BrokerTarget(shop.url, shop.management, topology=shop.app.topology)
    async with target.connect_to_read() as view:
        seen = view.snapshot
    definitions = seen.definitions
    forgetting = (
        replace(queue, arguments={**queue.arguments, "x-max-length": 9}) if queue.name in SOURCES else queue
        for queue in definitions.queues
    )
    changed = replace(seen, definitions=Definitions(definitions.exchanges, tuple(forgetting), definitions.bindings))

    found = examine(changed, shop.app.topology)

    assert {one.subject for one in found if one.id == "dlq-evicts"} >= set(SOURCES)


async def test_it_is_found_without_the_application_where_the_broker_shows_its_bindings(shop: Shop) -> None:
    service = a_service(shop.url, shop.folder, management=shop.management)
    found = {view.name: view.source for view in await service.queues()}
    assert set(found) == set(SOURCES)
    assert found["payments.invalid"] == "payments"


# Canary -----------------------------------------------------------------------------------------------


def a_canary(queue: str) -> OperationRequest:
    return OperationRequest(
        OperationKind.REDRIVE, queue, Selection(limit=1), ramp=CanarySchedule((1,), returned_pct=10, wait=5)
    )


@pytest.mark.parametrize("queue", SOURCES)
async def test_a_canary_counts_what_returns_to_any_of_them(shop: Shop, queue: str) -> None:
    service = a_service(shop.url, shop.folder, management=shop.management, topology=shop.app.topology)
    shop.fails_with = KeyError  # what was in payments.dlq and payments.invalid returns to payments.unknown

    over = await service.run(await service.begin(a_canary(queue)))

    assert (over.state, over.counts.moved, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 1, 1)


async def test_a_canary_that_cannot_look_into_one_of_them_is_undecided(shop: Shop) -> None:
    service = a_service(shop.url, shop.folder, management=shop.management, topology=shop.app.topology)
    shop.fails_with = KeyError
    async with operating(shop.url) as another:
        await another.lock("payments.unknown")
        over = await service.run(await service.begin(a_canary("payments.dlq")))

    assert (over.state, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 0)
    assert over.note == (
        "undecided: 0 of 1 came back, and there may be more: payments.unknown is locked by another operation or look"
    )
