"""The ticket service: every failure with the manual clock, and the whole of it as processes on both stacks."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from e2e.examples.stacks import Stack
from examples.tickets.api import make_api
from examples.tickets.app import EVENTS, make_app
from examples.tickets.messages import TicketOpened
from examples.tickets.records import AuditEntry, Ticket
from examples.tickets.settings import Settings
from redrive import App
from redrive.testing import ManualClock, Recorder, ThreadedBroker, free_port

APP = "examples.tickets.app:app"
TICKET = {"customer": "ana", "subject": "printer on fire"}

Answer = tuple[int, dict[str, str]]
OK: Answer = (200, {})
UNAVAILABLE: Answer = (500, {})
REFUSED: Answer = (422, {})


@dataclass
class HelpDesk:
    """The other service, over HTTP on loopback. `answers` come one after the other; then every ticket gets an agent."""

    answers: list[Answer] = field(default_factory=list)
    refuses: str = ""  # tickets with this in their subject
    asked: list[str] = field(default_factory=list)
    holding: threading.Event | None = None  # it answers nothing before this is set
    url: str = ""
    called: threading.Event = field(default_factory=threading.Event)

    def answer(self, ticket: dict[str, str]) -> Answer:
        self.asked.append(ticket["ticket"])
        self.called.set()
        if self.holding is not None:
            self.holding.wait(60)
        if self.refuses and self.refuses in ticket["subject"]:
            return REFUSED
        return self.answers.pop(0) if self.answers else OK


@pytest.fixture
def desk() -> Iterator[HelpDesk]:
    made = HelpDesk()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, headers = made.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = b'{"agent": "grace"}'
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(BrokenPipeError):  # a client that did not wait
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield made
    if made.holding is not None:
        made.holding.set()
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Service:
    app: App
    client: httpx.AsyncClient
    recorder: Recorder
    clock: ManualClock

    async def open(self) -> str:
        """Open a ticket, and let the relay find its event."""
        response = await self.client.post("/tickets", json=TICKET)
        assert response.status_code == 202, response.text
        self.clock.advance("2s")
        return str(response.json()["id"])

    async def agent(self, ticket: str) -> str | None:
        found: str | None = (await self.client.get(f"/tickets/{ticket}")).json()["agent"]
        return found

    async def depth(self, queue: str) -> int:
        assert self.app.connected is not None
        return (await self.app.connected.consuming.queue_info(queue)).messages


@pytest.fixture
async def service(
    amqp_broker: ThreadedBroker, redrive_clock: ManualClock, desk: HelpDesk, tmp_path: Path
) -> AsyncIterator[Service]:
    app = make_app(Settings(helpdesk=desk.url), data=tmp_path)
    with amqp_broker.attach(app) as recorder:
        api = make_api(app)
        transport = httpx.ASGITransport(api)
        async with (
            app.worker(relay=True),
            api.router.lifespan_context(api),
            httpx.AsyncClient(transport=transport, base_url="http://tickets") as client,
        ):
            yield Service(app, client, recorder, redrive_clock)
    await app.database.close()


async def test_a_ticket_gets_its_agent_and_both_events_are_audited(service: Service) -> None:
    ticket = await service.open()
    await service.recorder.handled("tickets.assign")
    assert await service.agent(ticket) == "grace"

    service.clock.advance("2s")  # the relay finds the second event
    await service.recorder.taken("tickets.audit", 2)
    service.clock.advance("1s")  # the batch is complete
    await service.recorder.handled("tickets.audit", 2)
    with service.app.database.sessions()() as session:
        assert session.execute(sa.select(AuditEntry.ticket, AuditEntry.event).order_by(AuditEntry.event)).all() == [
            (ticket, "ticket.assigned"),
            (ticket, "ticket.opened"),
        ]


async def test_a_refused_ticket_is_parked_at_once_in_a_queue_of_its_own(service: Service, desk: HelpDesk) -> None:
    desk.answers = [REFUSED]
    await service.open()

    [parked] = await service.recorder.parked("tickets.assign")
    assert (parked.attempt, parked.reason) == (1, "permanent")
    assert (await service.depth("tickets.refused"), await service.depth("tickets.assign.dlq")) == (1, 0)


async def test_the_help_desk_says_how_long_to_wait(service: Service, desk: HelpDesk) -> None:
    desk.answers = [(503, {"Retry-After": "60"})]
    ticket = await service.open()
    await service.recorder.retried("tickets.assign")

    service.clock.advance("59s")
    assert len(desk.asked) == 1
    service.clock.advance("1s")
    await service.recorder.handled("tickets.assign")
    assert (await service.agent(ticket), len(desk.asked)) == ("grace", 2)


async def test_an_answer_that_does_not_come_is_a_failed_attempt_after_ten_seconds(
    service: Service, desk: HelpDesk
) -> None:
    desk.holding = threading.Event()
    await service.open()
    await service.recorder.taken("tickets.assign")
    assert await asyncio.to_thread(desk.called.wait, 20)
    service.clock.advance("10s")

    [retried] = await service.recorder.retried("tickets.assign")
    assert "took longer than timeout=10s" in (retried.error or "")


async def test_a_help_desk_that_is_down_is_left_alone_and_no_attempt_is_used(service: Service, desk: HelpDesk) -> None:
    desk.answers = [UNAVAILABLE] * 4
    for _ in range(4):
        await service.open()
    await service.recorder.breaker_is("open")
    await service.recorder.retried("tickets.assign", 4)
    asked = len(desk.asked)
    waiting = await service.open()
    await service.recorder.taken("tickets.assign", 5)
    assert len(desk.asked) == asked

    service.clock.advance("30s")  # the breaker's pause, and the waits of the four
    await service.recorder.breaker_is("closed")
    service.clock.advance("1s")  # the others look at the breaker again
    await service.recorder.handled("tickets.assign", 5)
    assert await service.agent(waiting) == "grace"


async def test_the_same_event_twice_asks_the_help_desk_once(service: Service, desk: HelpDesk) -> None:
    event = TicketOpened("7", **TICKET)
    for _ in range(2):
        await service.app.publish(EVENTS, "ticket.opened", event, message_id="event-7")
    await service.recorder.seen("duplicate", queue="tickets.assign")
    assert desk.asked == ["7"]


async def test_a_ticket_that_keeps_failing_is_parked_with_every_attempt(service: Service, desk: HelpDesk) -> None:
    desk.answers = [(409, {})] * 5
    await service.open()
    for attempt, wait in enumerate(("5s", "10s", "20s", "40s"), 1):
        await service.recorder.retried("tickets.assign", attempt)
        service.clock.advance(wait)

    [parked] = await service.recorder.parked("tickets.assign")
    assert (parked.attempt, parked.reason) == (5, "exhausted")
    assert await service.depth("tickets.assign.dlq") == 1


async def test_a_ticket_without_a_subject_is_the_callers_fault(service: Service) -> None:
    assert (await service.client.post("/tickets", json={"customer": "ana", "subject": ""})).status_code == 422


# As processes ---------------------------------------------------------------------------------------------


def until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_the_service_as_processes(stack: Stack, desk: HelpDesk) -> None:
    desk.refuses = "refuse"
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    said = {"HELPDESK_URL": desk.url}
    assert stack.run("redrive", "db", "upgrade", APP, **said).returncode == 0
    with (
        stack.running("redrive", "worker", "--relay", APP, log="worker.log", **said) as worker,
        stack.running("uvicorn", "examples.tickets.api:api", "--port", str(port), log="api.log", **said) as api,
    ):
        worker.wait_for("is working on")
        api.wait_for("Application startup complete")
        subjects = ["a", "b", "please refuse this", "c"]
        opened = [httpx.post(f"{address}/tickets", json={**TICKET, "subject": one}).json()["id"] for one in subjects]
        good = [opened[0], opened[1], opened[3]]
        until(lambda: agents_of(stack, good) == ["grace"] * 3, worker.output)
        until(lambda: dead_letters(stack) == {"tickets.refused": 1}, worker.output)
        until(lambda: audited(stack) == 7, worker.output)  # four opened, three assigned
        assert httpx.get(f"{address}/tickets/{opened[2]}").json()["agent"] is None
    restricted_key_sees_its_queues_only(stack, **said)


def agents_of(stack: Stack, tickets: list[str]) -> list[str | None]:
    with stack.looking() as connection:
        rows = connection.execute(sa.select(Ticket.agent).where(Ticket.id.in_(tickets)))
        return [agent for (agent,) in rows]


def audited(stack: Stack) -> int:
    with stack.looking() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(AuditEntry)).scalar_one()


def dead_letters(stack: Stack) -> dict[str, int]:
    told = stack.run("redrive", "dlq", "ls", "--app", APP, "--json")
    assert told.returncode == 0, told.stderr
    return {row["name"]: row["depth"] for row in json.loads(told.stdout) if row["depth"]}


def restricted_key_sees_its_queues_only(stack: Stack, **said: str) -> None:
    made = stack.run(
        "redrive",
        "admin",
        "keys",
        "create",
        "support",
        "--role",
        "viewer",
        "--queues",
        "tickets.refused",
        "--app",
        APP,
        **said,
    )
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    with stack.running("redrive", "serve", APP, "--port", "0", log="serve.log", **said) as server:
        address = server.wait_for(r"the console is at (http://[^ ]+)/ and the API")[1]
        headers = {"Authorization": f"Bearer {key}"}
        queues = httpx.get(f"{address}/admin/dlq/queues", headers=headers).json()["items"]
        assert [queue["name"] for queue in queues] == ["tickets.refused"]
        hidden = httpx.get(f"{address}/admin/dlq/queues/tickets.assign.dlq/messages", headers=headers)
        assert hidden.status_code in (403, 404)
        page = httpx.get(f"{address}/", headers=headers, follow_redirects=True).text
        assert not re.search("tickets.assign.dlq", page)
