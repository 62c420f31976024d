"""A shop whose night went badly: dead letters with their stories, for the console's screenshots and browser tests.

    with ShopAtNight(folder) as shop:
        shop.address, shop.keys["admin"]

An admin server on the embedded broker, both in threads of their own. The payment provider was slow from two o'clock on,
a deployment broke the addresses of emails, and some messages are nobody's fault. `q.orders` has a consumer: what is
re-driven there is handled; what holds a `bad` order fails again, and is back with its lineage.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from redrive import App
from redrive.admin.access.roles import Role
from redrive.admin.access.settings import AccessSettings
from redrive.admin.api.application import Admin
from redrive.admin.context import AdminContext
from redrive.client import Connection, Delivery, Properties
from redrive.client.publisher import Publish
from redrive.database.application_tables import RowState
from redrive.database.schema import Schema
from redrive.operations.operation import CanarySchedule, OperationKind, OperationRequest, Selection
from redrive.recovery.retry import Retry
from redrive.testing.broker import ThreadedBroker

MINUTE = timedelta(minutes=1)

_STACK = """\
Traceback (most recent call last):
  File "/srv/shop/workers/orders.py", line 88, in charge
    receipt = await provider.charge(order.customer, order.total)
  File "/srv/shop/payments/provider.py", line 41, in charge
    async with asyncio.timeout(self.patience):
  File "/usr/lib/python3.11/asyncio/timeouts.py", line 115, in __aexit__
    raise TimeoutError from exc_val
TimeoutError: no answer from api.payments.example within 5 s
"""
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


class ShopAtNight:
    def __init__(self, folder: Path, *, root: str = "", small: bool = False, seeded: bool = True) -> None:
        """`root`: the path it is mounted under. `small`: a few messages suffice. Not `seeded`: a good night."""
        self.folder = folder
        self.root = root
        self.keys: dict[str, str] = {}
        self._scale = 0.05 if small else 1.0
        self._seeded = seeded
        self._chance = random.Random(7)
        self._broker = ThreadedBroker()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shop", daemon=True)
        self._began = datetime.now(UTC)

    # Opening and closing ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._broker.start()
        self._thread.start()
        self.run(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._broker.stop()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do something where the shop lives."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    async def _open(self) -> None:
        self.app = make_app(self._broker.url, self.folder)
        Schema().upgrade(self.app.database)
        self.context = AdminContext.of(self.app, access=AccessSettings(editing=True), apart=False)
        self._connection = await Connection(self._broker.url, name="orders").open()
        await self.app._apply_topology(self._connection)
        await self._connection.consume("q.orders", self._handle, prefetch=10)
        if self._seeded:
            await self._connection.declare_queue("legacy.imports_dlq", arguments={"x-queue-type": "classic"})
            await self._connection.declare_queue("legacy.imports", arguments={"x-dead-letter-exchange": "legacy.dlx"})
            await self._connection.publish_many(self._letters())
            self._write_outbox()
        for role in Role:
            _, self.keys[role.value] = self.context.gate.keys.create(_NAMES[role], role, by="screenshots")
        await self._serve()
        if self._seeded:
            self._remember_depths()

    async def _close(self) -> None:
        self._server.should_exit = True
        await self._serving
        await self._connection.close()

    async def _serve(self) -> None:
        admin = Admin(self.context)
        app: Any = admin
        if self.root:
            app = Starlette(routes=[Mount(self.root, admin)], lifespan=admin.lifespan)
        config = uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.origin = f"http://127.0.0.1:{port}"
        self.address = f"{self.origin}{self.root}"

    # Who handles orders -------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery) -> None:
        body, told = delivery.body, delivery.properties
        if b'"bad"' in body:
            headers = {
                **(told.headers or {}),
                **_story("q.orders", "ValueError", "total is negative", "e11e77", self.now),
            }
            await self._connection.publish(
                "",
                "q.orders.dlq",
                body,
                Properties(content_type=told.content_type, message_id=told.message_id, headers=headers),
            )
        delivery.ack()

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    # What went wrong ----------------------------------------------------------------------------------

    def _letters(self) -> Iterator[Publish]:
        now, many = self._began, self._many
        for number in range(many(1204)):
            at = now - 210 * MINUTE + number * 200 * MINUTE / many(1204)
            yield self._order(
                number, "TimeoutError", "no answer from api.payments.example within 5 s", "3fa9c0ffee21", at
            )
        for number in range(many(86)):
            at = now - 95 * MINUTE + number * MINUTE / 2
            message = "column orders.discount_code does not exist"
            yield self._order(5000 + number, "ProgrammingError", message, "b81d44e0aa10", at, attempts=1)
        for number in range(many(31)):
            yield self._order(
                7000 + number, "ValueError", "total is negative", "e11e77000001", now - 26 * 60 * MINUTE, bad=True
            )
        yield self._redriven_twice(now)
        yield self._hostile(now)
        for number in range(many(412)):
            yield self._email(number, now - 70 * MINUTE + number * MINUTE / 12)
        for number in range(many(9) + 2):
            yield self._payment(number, now - (30 - number) * MINUTE)
        for number in range(3):
            yield self._foreign(number, now - (400 - number) * MINUTE)

    def _many(self, count: int) -> int:
        return max(3, int(count * self._scale))

    def _order(
        self, number: int, error: str, message: str, group: str, at: datetime, *, attempts: int = 3, bad: bool = False
    ) -> Publish:
        total = -12.5 if bad else self._chance.randrange(500, 90_000) / 100
        body = {
            "order": 48_000 + number,
            "customer": {"id": self._chance.randrange(100, 999), "name": "Ada Byron", "card": "4111 1111 1111 1111"},
            "total": total,
            "currency": "EUR",
            "kind": "bad" if bad else "web",
        }
        headers = {"tenant": "acme", "authorization": "Bearer eyJhbGciOi.secret"}
        headers |= _story("q.orders", error, message, group, at, attempts, "order.placed")
        return _letter("q.orders.dlq", f"order-{48_000 + number}", "OrderPlaced", body, headers, at)

    def _redriven_twice(self, now: datetime) -> Publish:
        at = now - 12 * MINUTE
        headers = _story(
            "q.orders", "TimeoutError", "no answer from api.payments.example within 5 s", "3fa9c0ffee21", at
        )
        deaths = [_death(now - 52 * MINUTE, "op_two", "grace", "INC-2041: provider says it is back"),
                  _death(now - 180 * MINUTE, "op_one", "ada", "INC-2041")]  # fmt: skip
        headers |= {"x-redriven-count": 2, "x-redriven-op": "op_two", "x-redriven-by": "grace", "tenant": "acme"}
        headers |= {"x-redriven-at": (now - 40 * MINUTE).isoformat(), "x-redriven-deaths": deaths}
        headers |= {"x-redriven-reason": "INC-2041: provider says it is back", "x-redriven-from": "q.orders.dlq"}
        body = {"order": 47_211, "customer": {"id": 42, "name": "Grace Hopper", "password": "hunter2"}, "total": 129.9}
        return _letter("q.orders.dlq", "order-47211", "OrderPlaced", body, headers, now - 190 * MINUTE)

    def _hostile(self, now: datetime) -> Publish:
        headers = {
            HOSTILE: HOSTILE,
            **_story("q.orders", "Err\u202egnirts", HOSTILE, "badc0de00001", now - 300 * MINUTE),
        }
        properties = Properties(
            content_type="text/html", message_id="hostile-1", type=HOSTILE, headers=headers, timestamp=now
        )
        return Publish("", "q.orders.dlq", f"{HOSTILE}\u202e\x1b[31m\x00 </pre></textarea>".encode(), properties)

    def _email(self, number: int, at: datetime) -> Publish:
        body = {"to": f"customer{number}@example.com", "template": "receipt-v7", "order": 47_000 + number}
        message = "template receipt-v7 has no variable customer.first_name"
        headers = _story("q.emails", "TemplateError", message, "77d1beef0042", at, 5, "order.paid")
        return _letter("q.emails.dlq", f"mail-{number}", "ReceiptWanted", body, headers, at)

    def _payment(self, number: int, at: datetime) -> Publish:
        body = {"payment": 900 + number, "iban": "DE89370400440532013000", "amount": "19.90"}
        message = "insufficient funds" if number % 3 else "account is closed"
        headers = _story("q.payments", "PaymentRefused", message, f"c0de{number % 3:08d}", at, 1, "payment.due")
        return _letter("q.payments.dlq", f"payment-{900 + number}", "PaymentDue", body, headers, at)

    def _foreign(self, number: int, at: datetime) -> Publish:
        """As a broker dead-letters it, with no story."""
        death = {"queue": "legacy.imports", "reason": "rejected", "count": 1, "exchange": "", "time": at}
        headers = {"x-death": [death | {"routing-keys": ["legacy.imports"]}], "x-first-death-queue": "legacy.imports"}
        headers |= {"x-first-death-reason": "rejected", "x-first-death-exchange": ""}
        return Publish("", "legacy.imports_dlq", b"id;name\n%d;M\xc3\xbcller" % number, Properties(headers=headers))

    # What else there is -------------------------------------------------------------------------------

    def _write_outbox(self) -> None:
        parked = {"state": int(RowState.PARKED), "attempts": 8}
        rows = [
            (f"invoice-{number}", "shop.events", "invoice.created", parked | {"last_error": error, "ordering_key": key})
            for number, error, key in (
                (
                    3301,
                    "unroutable: no queue is bound to shop.events for invoice.created (312 NO_ROUTE)",
                    "customer-42",
                ),
                (
                    3302,
                    "unroutable: no queue is bound to shop.events for invoice.created (312 NO_ROUTE)",
                    "customer-97",
                ),
                (3310, "message of 142 MB is larger than the broker takes (134217728 bytes)", None),
            )
        ]
        rows += [(f"order-{number}", "shop.events", "order.placed", {}) for number in range(49_300, 49_304)]
        with self.app.database.engine.begin() as connection:
            for id, exchange, key, more in rows:
                connection.execute(
                    sa.insert(self.app.outbox.table).values(
                        message_id=id, exchange=exchange, routing_key=key, body=b"{}", **more
                    )
                )

    def _remember_depths(self) -> None:
        """Two hours of them, as if the server had been there."""
        trends, count = self.context.trends, 120
        shapes = {
            "q.orders.dlq": lambda part: 300 + 1020 * part**1.5 + 20 * self._chance.random(),
            "q.emails.dlq": lambda part: 0 if part < 0.45 else 412 * (part - 0.45) / 0.55,
            "q.payments.dlq": lambda part: 4 + round(7 * part),
            "legacy.imports_dlq": lambda part: 3,  # noqa: ARG005
        }
        trends.times.clear()
        trends.depths.clear()
        for number in range(count):
            at = self._began - (count - number) * self.context.sampled_every
            trends.add(at, {queue: round(shape(number / count)) for queue, shape in shapes.items()})

    def redrive_slowly(self) -> str:
        """An operation that will run for as long as anybody wants to look at it. Its id."""
        order = OperationRequest(
            OperationKind.REDRIVE, "q.emails.dlq", Selection(group="77d1"), rate=4, reason="INC-2043: template mended"
        )
        return self._begin(order)

    def redrive_as_canary(self) -> str:
        """One that finds that its messages still fail."""
        ramp = CanarySchedule((1, 3), 10, wait=0.3)
        order = OperationRequest(
            OperationKind.REDRIVE, "q.orders.dlq", Selection(group="e11e77"), ramp=ramp, reason="INC-2042: try again"
        )
        return self._begin(order)

    def _begin(self, order: OperationRequest) -> str:
        from redrive.admin.access.roles import Principal
        from redrive.admin.authorized_service import AuthorizedService

        async def begin() -> str:
            desk = AuthorizedService(self.context, Principal("grace", Role.OPERATOR))
            return (await desk.redrive(order)).id

        return str(self.run(begin))


_NAMES = {Role.VIEWER: "vera", Role.OPERATOR: "omar", Role.ADMIN: "ada"}


def make_app(broker: str, folder: Path) -> App:
    app = App("shop", broker=broker, data=folder)
    events = app.exchange("shop.events", "topic")
    app.queue("q.orders", bind=events.on("order.placed"), retry=Retry(attempts=3, delay="15s"))
    app.queue("q.emails", bind=events.on("order.paid", "order.shipped"), retry=Retry(attempts=5, delay="1m"))
    app.queue("q.payments", bind=events.on("payment.*"), retry=Retry(attempts=3, delay="30s"))
    app.queue("q.audit", bind=events.on("#"))
    return app


def _letter(queue: str, id: str, type: str, body: Any, headers: dict[str, Any], at: datetime) -> Publish:
    properties = Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=id,
        correlation_id=f"c-{id}",
        type=type,
        timestamp=at - 3 * MINUTE,
        headers=headers,
    )
    return Publish("", queue, json.dumps(body, ensure_ascii=False).encode(), properties)


def _story(
    queue: str, error: str, message: str, group: str, at: datetime, attempts: int = 3, key: str = "order.placed"
) -> dict[str, Any]:
    history = [
        {
            "number": number,
            "at": (at - (attempts - number) * timedelta(seconds=15)).isoformat(),
            "error": error,
            "message": message,
            **({"delay-ms": 15_000} if number < attempts else {}),
        }
        for number in range(1, attempts + 1)
    ]
    return {
        "x-redrive-queue": queue,
        "x-redrive-exchange": "shop.events",
        "x-redrive-routing-key": key,
        "x-redrive-reason": "exhausted" if attempts > 1 else "permanent",
        "x-redrive-error": error,
        "x-redrive-message": message,
        "x-redrive-fingerprint": group,
        "x-redrive-attempts": attempts,
        "x-redrive-history": history,
        "x-redrive-parked-at": at.isoformat(),
        "x-redrive-app": "shop",
        "x-redrive-host": "worker-7c9f",
        "x-redrive-stack": _STACK if error == "TimeoutError" else f"{error}: {message}",
    }


def _death(at: datetime, operation: str, by: str, reason: str) -> dict[str, Any]:
    return {
        "count": 3,
        "reason": "exhausted",
        "queue": "q.orders",
        "time": at.replace(microsecond=0),
        "exchange": "shop.events",
        "routing-keys": ["order.placed"],
        "error": "TimeoutError",
        "fingerprint": "3fa9c0ffee21",
        "redriven-at": (at + 12 * MINUTE).isoformat(),
        "redriven-by": by,
        "redriven-op": operation,
        "redriven-from": "q.orders.dlq",
        "redriven-reason": reason,
    }
