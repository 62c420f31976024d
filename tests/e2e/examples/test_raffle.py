"""The raffle, sentence by sentence as its document (seed 004) says."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID, uuid4

import httpx
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from e2e.examples.checklist import Checklist
from e2e.examples.stacks import ROOT, Program, Stack
from examples.raffle import settings
from examples.raffle.users import Row, User, metadata
from redrive import App
from redrive.client import Connection, Delivery, Properties
from redrive.database.engine import Database
from redrive.errors import ConfigurationError, PreconditionFailed
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from redrive.testing.ports import free_port
from redrive.topology import Server, expand
from redrive.topology.draw import draw
from redrive.worker.events import DeliveryOutcome
from tests.support.postgres import Postgres
from topology_systems import system
from working import take, working

EXAMPLE = ROOT / "examples" / "raffle"
PATH = "/api/v1/users"
AWAY = "examples.raffle.users.DatabaseAway"
REFUSED = "examples.raffle.users.RowRefused"

says = Checklist(
    {
        # Overview and architecture
        "overview": "New users are queued in RabbitMQ, retried automatically, and end in a dead-letter queue (DLQ).",
        "rest": "The REST API is at /api/v1/users; where the sequence diagram has /users, that is short for it.",
        "publisher": "A publisher publishes users to raffle_exchange and retries to raffle_retry_exchange. It is not a "
        "GenServer: each process publishes over its own connection.",
        "exchanges": "raffle_exchange, raffle_retry_exchange and raffle_dlx are direct exchanges.",
        "queues": "The queues are raffle_queue (main), raffle_retry_10s (TTL 10 s) and raffle_dlq (dead letters).",
        "bindings": "raffle_exchange leads to raffle_queue, raffle_retry_exchange to raffle_retry_10s, raffle_dlx to "
        "raffle_dlq.",
        "consumer": "A pipeline of processors and batchers consumes raffle_queue. It is a batch consumer instead of a "
        "Broadway pipeline.",
        "dlq consumer": "A second pipeline consumes raffle_dlq.",
        "table": "Both consumers insert into the table users in PostgreSQL; on the embedded stack, in SQLite.",
        "dlx": "raffle_queue dead-letters rejected messages to raffle_dlx.",
        "ttl": "raffle_retry_10s dead-letters expired messages to raffle_exchange.",
        # Flow 1: a user is created
        "post": "A client posts {name, email}.",
        "uuid": "The API generates a UUID.",
        "publish": "The API publishes the user, and it is in raffle_queue.",
        "answer": "The API answers 200 {id: uuid}.",
        # Flow 2: normal processing
        "validate": "The consumer takes a message and validates its JSON.",
        "batch": "The consumer gathers messages in a batch.",
        "insert": "The consumer inserts the users of a batch with one INSERT.",
        "ack": "When the database has them, the messages are acknowledged.",
        "count": "On a database error with attempts < 3 the consumer increments x-retries.",
        "retry": "It then publishes the message with attempt + 1 to the retry queue.",
        "ack original": "It then acknowledges the original.",
        "back": "When the TTL of 10 s has expired, the message moves to raffle_queue, and the process repeats.",
        "reject": "On a database error with attempts >= 3 the consumer rejects the message.",
        "to dlq": "The DLX moves a rejected message to the DLQ.",
        # Flow 3: dead letters
        "dlq validate": "The DLQ consumer takes a message from raffle_dlq and validates its JSON.",
        "dlq insert": "The DLQ consumer gathers a batch and inserts it.",
        "dlq ack": "When the database has it, the DLQ consumer acknowledges the message.",
        "requeue": "When that fails, the DLQ consumer requeues the message: after a pause that grows from 200 ms to "
        "30 s, because the broker would deliver it again at once.",
        # Queues
        "main arguments": "raffle_queue has the messages of users, x-dead-letter-exchange raffle_dlx and "
        "x-dead-letter-routing-key raffle_dlq.",
        "retry arguments": "raffle_retry_10s has failed messages, x-message-ttl 10000, x-dead-letter-exchange "
        "raffle_exchange and x-dead-letter-routing-key raffle_queue.",
        "dlq arguments": "raffle_dlq has exhausted messages, and no arguments.",
        "by hand": "Messages in raffle_dlq are processed apart from the others: what the document calls manual is the "
        "DLQ consumer.",
        # States
        "state processing": "Published by the API, a message is Processing when the consumer takes it.",
        "state success": "Processing becomes Success when the database accepts it.",
        "state retry": "Processing becomes Retry on a database error with attempt < 3.",
        "state dlq": "Processing becomes DLQ on a database error with attempt >= 3.",
        "state malformed": "Processing becomes DLQ when the JSON is invalid.",
        "state waiting": "Retry is Waiting while its TTL of 10 s runs, and Processing when it has expired.",
        "state dlq success": "DLQ becomes DLQProcessing by the DLQ consumer, and Success when the database accepts it.",
        "state dlq requeue": "DLQProcessing becomes DLQRequeue on a database error, and DLQProcessing again: without "
        "an operator, although the diagram calls that a manual retry.",
        # Headers
        "original": 'The body of a message is {"id": uuid-v4, "name", "email"}; it has no control headers.',
        "retry headers": 'A retried message has x-retries: 1 and x-retry-reason: "db_error: " with the reason.',
        "retry body": "A retried message has the body of the original.",
        # Environment
        "RETRY_TTL_MS": "RETRY_TTL_MS (10000) is the TTL of the retry queue in ms.",
        "MAX_RETRIES": "MAX_RETRIES (3) is the maximum of attempts before the DLQ. The first attempt counts, so that "
        "the table and the diagram (attempts < 3: retry) agree: two retries.",
        "USERS_BATCH_SIZE": "USERS_BATCH_SIZE (1000) is the size of a batch.",
        "USERS_BATCH_TIMEOUT_MS": "USERS_BATCH_TIMEOUT_MS (1000) is the timeout of a batch in ms.",
        "USERS_PROC_CONCURRENCY": "USERS_PROC_CONCURRENCY (8) is the concurrency of the processors.",
        "USERS_BATCH_CONCURRENCY": "USERS_BATCH_CONCURRENCY (2) is the concurrency of the batchers.",
        # Logs and metrics
        "log publisher": "The publisher logs failures to connect and to publish.",
        "log consumer": "The consumer logs processing errors and retries.",
        "log dlq": "The DLQ consumer logs how it processes failed messages.",
        "metric success": "A metric has the success rate of the main consumer.",
        "metric retry": "A metric has the number of messages in the retry queue.",
        "metric dlq": "A metric has the number of messages in the DLQ.",
        "metric latency": "A metric has the latency of processing.",
        "metric errors": "A metric has the error rate by type.",
        # Failures
        "failure 1": "On a temporary database failure, messages are retried automatically after the TTL.",
        "failure 1 limit": "The limit is 3 attempts.",
        "failure 1 recovery": "They are processed when the database is back, without an operator.",
        "failure 2": "On a persistent database failure, messages go to the DLQ.",
        "failure 2 recovery": "The DLQ consumer processes them.",
        "failure 3": "Malformed JSON is rejected straight to the DLQ.",
        "failure 3 recovery": "The error is logged, and the DLQ consumer discards the message.",
        "failure 4": "When RabbitMQ fails, the publisher returns an error to the API.",
        "failure 4 recovery": "The client can try again.",
        # Performance
        "batching": "Batches reduce the overhead of database transactions.",
        "concurrency": "Concurrency is configured by the environment.",
        "persistent": "Messages survive restarts.",
        "durable": "Queues and exchanges are durable.",
        # Pictures
        "pictures": "Pictures are generated from the diagrams: not with the Mermaid CLI, its online editor or VS Code, "
        "but from the topology itself, as Mermaid text and as SVG.",
    }
)


# What is made -------------------------------------------------------------------------------------


@says(
    "exchanges", "queues", "bindings", "dlx", "ttl", "main arguments", "retry arguments", "dlq arguments", "durable",
    "RETRY_TTL_MS",
)  # fmt: skip
def test_the_topology_is_that_of_the_text() -> None:
    from examples.raffle.app import app

    made = expand(app.topology, Server(version=(3, 10)))
    queues = {one.name: dict(one.arguments) for one in made.queues}

    assert {one.name: one.type for one in made.exchanges} == {
        "raffle_exchange": "direct", "raffle_retry_exchange": "direct", "raffle_dlx": "direct",
    }  # fmt: skip
    assert queues == {
        "raffle_queue": {
            "x-queue-type": "classic",
            "x-dead-letter-exchange": "raffle_dlx",
            "x-dead-letter-routing-key": "raffle_dlq",
        },
        "raffle_retry_10s": {
            "x-queue-type": "classic",
            "x-message-ttl": 10_000,
            "x-dead-letter-exchange": "raffle_exchange",
            "x-dead-letter-routing-key": "raffle_queue",
        },
        "raffle_dlq": {"x-queue-type": "classic"},
    }
    assert {(one.source, one.destination, one.routing_key) for one in made.bindings} == {
        ("raffle_exchange", "raffle_queue", "raffle_queue"),
        ("raffle_retry_exchange", "raffle_retry_10s", "raffle_retry_10s"),
        ("raffle_dlx", "raffle_dlq", "raffle_dlq"),
    }
    assert all(one.durable for one in (*made.exchanges, *made.queues))


def test_the_application_and_the_file_are_one_topology() -> None:
    from examples.raffle.app import app

    for version in ((3, 10), (4, 3)):
        server = Server(version=version)
        assert expand(app.topology, server) == expand(system("raffle"), server)


@says("pictures")
def test_pictures_are_made_of_the_topology() -> None:
    from examples.raffle.app import app

    made = expand(app.topology, Server(version=(3, 10)))

    for form in ("mermaid", "svg"):
        picture = draw(made, form)
        assert all(
            one.name in picture for one in (*made.queues, *made.exchanges) if one.name != "raffle_retry_exchange"
        )


DEFAULTS = {
    "RETRY_TTL_MS": 10_000,
    "MAX_RETRIES": 3,
    "USERS_BATCH_SIZE": 1000,
    "USERS_BATCH_TIMEOUT_MS": 1000,
    "USERS_PROC_CONCURRENCY": 8,
    "USERS_BATCH_CONCURRENCY": 2,
}


@says(*DEFAULTS, "concurrency")
def test_the_environment_says_what_it_says_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> dict[str, Any]:
        found = runpy.run_path(str(EXAMPLE / "settings.py"))
        return {name: found[name] for name in DEFAULTS}

    for name in DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    assert settings() == DEFAULTS

    for number, name in enumerate(DEFAULTS, 5):
        monkeypatch.setenv(name, str(number))
    assert settings() == {name: number for number, name in enumerate(DEFAULTS, 5)}

    for name in DEFAULTS:
        for nonsense in ("0", "-1", "many", "1.5", "99999999999"):
            monkeypatch.setenv(name, nonsense)
            with pytest.raises(ConfigurationError, match=f"{name} '{nonsense}': want a whole number from 1 to"):
                settings()
        monkeypatch.delenv(name)


@says(
    "consumer", "dlq consumer", "USERS_PROC_CONCURRENCY", "USERS_BATCH_CONCURRENCY", "USERS_BATCH_SIZE",
    "USERS_BATCH_TIMEOUT_MS", "MAX_RETRIES",
)  # fmt: skip
def test_the_consumers_are_made_of_the_settings() -> None:
    from examples.raffle.app import app

    main, dead = app.select_consumers(())

    assert (main.queue.name, main.retry.attempts, main.park) == ("raffle_queue", 3, "reject")
    assert main.batch is not None
    assert (main.batch.size, main.batch.max_wait, main.batch.processors, main.batch.batchers) == (1000, "1000ms", 8, 2)
    assert dead.batch is not None
    assert (dead.queue.name, dead.batch.size, dead.batch.processors) == ("raffle_dlq", 1000, 8)


@says("USERS_PROC_CONCURRENCY", "consumer", "validate", "batch", "insert", "concurrency")
async def test_as_many_messages_are_prepared_at_a_time_as_the_environment_says(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(stack, monkeypatch, USERS_PROC_CONCURRENCY=3, USERS_BATCH_TIMEOUT_MS=50)
    spec = app.consumers[0]
    assert spec.batch is not None
    prepare = spec.batch.prepare
    assert prepare is not None
    three, inside, most = asyncio.Barrier(3), 0, 0

    async def meet(user: User) -> Row:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await three.wait()  # no call goes on before three are here
        inside -= 1
        row: Row = await prepare(user)
        return row

    app.consumers[0] = replace(spec, batch=replace(spec.batch, prepare=meet))
    metadata.create_all(app.database.engine)
    many = [user() for _ in range(9)]
    async with working(app) as (connections, watcher):
        for body in encoded(*many):
            await connections.publishing.publish("raffle_exchange", "raffle_queue", body)
        await watcher.seen(DeliveryOutcome.DONE, 9)
    await app.database.close()
    with stack.looking() as connection:
        inserted = {UUID(str(one)) for one in connection.execute(sa.text("SELECT id FROM users")).scalars()}
    assert most == 3
    assert inserted == {UUID(one["id"]) for one in many}


def application(stack: Stack, monkeypatch: pytest.MonkeyPatch, **said: int) -> App:
    """The example's application on a stack, in this process, with other settings."""
    for name, value in (("REDRIVE_BROKER", stack.broker), ("REDRIVE_DATABASE", stack.database)):
        if value is not None:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(stack.folder)
    for name, number in said.items():
        monkeypatch.setattr(settings, name, number)
    found = spec_from_file_location("raffle_with_other_settings", EXAMPLE / "app.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    app: App = module.app
    return app


# At work ------------------------------------------------------------------------------------------


def until(condition: Callable[[], Any], program: Program, within: float = 60) -> Any:
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, program.output[-3000:]
        time.sleep(0.03)
    return found


class Raffle:
    """The example as a process, and what its users and operators do."""

    def __init__(self, stack: Stack, program: Program, port: int) -> None:
        self.stack = stack
        self.program = program
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def sign_up(self, name: str = "João Silva", **headers: str) -> UUID:
        answer = self.client.post(PATH, json={"name": name, "email": "joao@email.com"}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert list(answer.json()) == ["id"]
        return UUID(answer.json()["id"])

    def until(self, condition: Callable[[], Any]) -> Any:
        return until(condition, self.program)

    def publish(self, *bodies: bytes) -> None:
        """What somebody else publishes, who knows the names but not the rules."""

        async def work() -> None:
            async with self.stack.connection() as connection:
                message = Properties(delivery_mode=2, content_type="application/json")
                sent = (connection.publish("raffle_exchange", "raffle_queue", body, message) for body in bodies)
                await asyncio.gather(*sent)

        asyncio.run(work())

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.program.output.splitlines() if line.startswith("{")]
        return [line for line in found if wanted.items() <= line.items()]

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        found = [one for family in families for one in family.samples if (one.name, one.labels) == (name, labels)]
        return found[0].value if found else -1.0

    def processed(self, outcome: str, queue: str = "raffle_queue") -> float:
        return self.metric("redrive_processed_total", queue=queue, outcome=outcome)

    def users(self) -> dict[UUID, tuple[str, str]]:
        with self.stack.looking() as connection:
            rows = connection.execute(sa.text("SELECT id, name, email FROM users")).all()
        return {UUID(str(identity)): (name, email) for identity, name, email in rows}

    def held(self, queue: str) -> int:
        async def look() -> int:
            async with self.stack.connection() as connection:
                return (await connection.queue_info(queue)).messages

        return asyncio.run(look())


@contextmanager
def running(stack: Stack, *command: str, **said: str) -> Iterator[Raffle]:
    """`python -m examples.raffle`, or another command that serves the API."""
    port = free_port()
    with stack.running(*(command or ("examples.raffle",)), "--port", str(port), **said) as program:
        raffle = Raffle(stack, program, port)
        with raffle.client as client:
            until(lambda: answers(client), program)
            yield raffle


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


KEYS = {"raffle_exchange": "raffle_queue", "raffle_retry_exchange": "raffle_retry_10s", "raffle_dlx": "raffle_dlq"}


class Witness:
    """Queues of the test's own, which get a copy of all that goes to each of the three exchanges."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        asyncio.run(self._bind())

    async def _bind(self) -> None:
        async with self._stack.connection() as connection:
            for exchange, key in KEYS.items():
                await connection.declare_queue(f"witness.{exchange}")
                await connection.bind_queue(f"witness.{exchange}", exchange, key)

    def saw(self, exchange: str, count: int) -> list[Delivery]:
        """The next so many messages that it got."""

        async def read() -> list[Delivery]:
            async with self._stack.connection() as connection:
                return [await take(connection, f"witness.{exchange}") for _ in range(count)]

        return asyncio.run(read())

    def saw_no_more(self) -> bool:
        async def count() -> int:
            async with self._stack.connection() as connection:
                return sum([(await connection.queue_info(f"witness.{one}")).messages for one in KEYS])

        return asyncio.run(count()) == 0


def headers(delivery: Delivery) -> dict[str, Any]:
    return dict(delivery.properties.headers or {})


def deaths(delivery: Delivery) -> dict[tuple[str, str], int]:
    return {(death["queue"], death["reason"]): death["count"] for death in headers(delivery).get("x-death", [])}


def user(name: str = "Ana", email: str = "ana@email.com") -> dict[str, str]:
    return {"id": str(uuid4()), "name": name, "email": email}


def encoded(*bodies: Any) -> list[bytes]:
    return [json.dumps(body).encode() for body in bodies]


@says(
    "overview", "rest", "publisher", "exchanges", "queues", "bindings", "dlx", "ttl", "consumer", "table", "post",
    "uuid", "publish", "answer", "validate", "batch", "insert", "ack", "count", "retry", "ack original", "back",
    "reject", "to dlq", "dlq validate", "requeue", "main arguments", "retry arguments", "dlq arguments",
    "state processing", "state success", "state retry", "state dlq", "state malformed", "state waiting",
    "state dlq requeue", "original", "retry headers", "retry body", "RETRY_TTL_MS", "MAX_RETRIES", "USERS_BATCH_SIZE",
    "USERS_BATCH_TIMEOUT_MS", "USERS_BATCH_CONCURRENCY", "log consumer", "log dlq", "metric success", "metric latency",
    "metric errors", "failure 3", "failure 3 recovery", "batching", "durable",
)  # fmt: skip
def test_users_are_inserted_in_batches_and_what_is_wrong_goes_its_own_way(stack: Stack) -> None:
    said = {
        "RETRY_TTL_MS": "300",
        "MAX_RETRIES": "2",
        "USERS_BATCH_SIZE": "20",
        "USERS_BATCH_TIMEOUT_MS": "300",
        "USERS_BATCH_CONCURRENCY": "3",
    }
    with running(stack, **said) as raffle:
        witness = Witness(stack)
        the_broker_has_what_the_text_configures(stack, ttl=300)
        somebody_signs_up(raffle, witness)
        what_makes_no_sense_is_refused(raffle)
        whoever_sends_it_again_is_one_user(raffle, witness)
        many_are_one_statement(raffle)
        if stack.database is not None:
            as_many_batches_at_a_time_as_were_said(raffle, stack.database, 3)
        drain(witness, raffle)
        bad = one_bad_row_hurts_nobody_else(raffle, witness)
        what_the_dlq_consumer_fails_on_goes_round_ever_more_slowly(raffle, bad)
        what_is_no_json_goes_straight_to_the_dlq_and_away(raffle, witness)
        what_is_json_and_no_user_is_kept(raffle)
        shares(raffle)
    assert raffle.held("raffle_dlq") == 2  # the bad row, and what is no user: given back at the end
    assert raffle.held("raffle_queue") == raffle.held("raffle_retry_10s") == 0


def the_broker_has_what_the_text_configures(stack: Stack, ttl: int) -> None:
    """To declare a thing in another way than it is would be an error."""
    dead_letters = {"x-dead-letter-exchange": "raffle_dlx", "x-dead-letter-routing-key": "raffle_dlq"}
    back = {"x-dead-letter-exchange": "raffle_exchange", "x-dead-letter-routing-key": "raffle_queue"}

    async def declare() -> None:
        async with stack.connection() as connection:
            for exchange in KEYS:
                await connection.declare_exchange(exchange, "direct", durable=True)
            await connection.declare_queue("raffle_queue", durable=True, arguments=dead_letters)
            await connection.declare_queue("raffle_retry_10s", durable=True, arguments={"x-message-ttl": ttl, **back})
            await connection.declare_queue("raffle_dlq", durable=True)
            with pytest.raises(PreconditionFailed):
                await connection.declare_queue("raffle_dlq", durable=True, arguments=dead_letters)

    asyncio.run(declare())


def somebody_signs_up(raffle: Raffle, witness: Witness) -> None:
    identity = raffle.sign_up()

    (message,) = witness.saw("raffle_exchange", 1)
    assert identity.version == 4
    assert json.loads(message.body) == {"id": str(identity), "name": "João Silva", "email": "joao@email.com"}
    assert (message.exchange, message.routing_key) == ("raffle_exchange", "raffle_queue")
    assert (message.properties.headers, message.properties.delivery_mode) == (None, 2)
    raffle.until(lambda: raffle.users() == {identity: ("João Silva", "joao@email.com")})
    raffle.until(lambda: raffle.processed("done") == 1)  # and acknowledged
    assert raffle.metric("redrive_unsettled", queue="raffle_queue") == raffle.held("raffle_queue") == 0


def what_makes_no_sense_is_refused(raffle: Raffle) -> None:
    good = {"name": "Ana", "email": "ana@email.com"}
    nonsense: list[Any] = [
        {}, [], good | {"name": ""}, good | {"name": " "}, good | {"name": "A" * 201}, good | {"name": "A\x00"},
        good | {"email": "ana"}, good | {"email": "@"}, good | {"email": "a" * 251 + "@b.c"},
        good | {"email": "a\x00@b"},
    ]  # fmt: skip
    for body in nonsense:
        assert raffle.client.post(PATH, json=body).status_code == 422, body
    assert raffle.client.post(PATH, content=b"{").status_code == 422
    assert raffle.client.post(PATH, json=good, headers={"Idempotency-Key": "mine"}).status_code == 422
    assert len(raffle.users()) == 1


def whoever_sends_it_again_is_one_user(raffle: Raffle, witness: Witness) -> None:
    mine = uuid4()

    assert raffle.sign_up("Ana", **{"Idempotency-Key": str(mine)}) == mine
    assert raffle.sign_up("Ana", **{"Idempotency-Key": str(mine)}) == mine

    raffle.until(lambda: raffle.processed("done") == 3)
    assert len(witness.saw("raffle_exchange", 2)) == 2
    assert len(raffle.users()) == 2


def many_are_one_statement(raffle: Raffle) -> None:
    before, batches = raffle.users().keys(), raffle.metric("redrive_batch_size_count", queue="raffle_queue")
    many = [user() for _ in range(60)]

    raffle.publish(*encoded(*many))

    raffle.until(lambda: raffle.processed("done") == 63)
    assert raffle.users().keys() - before == {UUID(one["id"]) for one in many}
    made = int(raffle.metric("redrive_batch_size_count", queue="raffle_queue") - batches)
    assert 3 <= made < 30
    assert raffle.metric("redrive_batch_size_bucket", queue="raffle_queue", le="20.0") == batches + made
    assert raffle.metric("redrive_batch_seconds_count", queue="raffle_queue") == batches + made
    assert raffle.metric("redrive_batch_seconds_sum", queue="raffle_queue") > 0
    if raffle.stack.database is not None:  # PostgreSQL remembers which transaction and statement made a row
        mark = "SELECT count(DISTINCT (xmin::text, cmin::text)) FROM users"
        with raffle.stack.looking() as connection:
            # Those of three batches were made before: one, and one that came twice in one batch or in two.
            assert made + 2 <= connection.exec_driver_sql(mark).scalar_one() <= made + 3


def as_many_batches_at_a_time_as_were_said(raffle: Raffle, url: str, batchers: int) -> None:
    """While somebody has locked the table, that many statements wait for it, and no more."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO users%%'"
    )
    database = Database(url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE users")
        raffle.publish(*encoded(*(user() for _ in range(100))))

        def waits() -> int:
            with raffle.stack.looking() as looking:
                return int(looking.exec_driver_sql(waiting).scalar_one())

        # All that may be here is here: a batch more than there are batchers, and one message for each processor.
        raffle.until(lambda: raffle.metric("redrive_unsettled", queue="raffle_queue") == 20 * (batchers + 1) + 8)
        raffle.until(lambda: waits() == batchers)
        assert waits() == batchers
    database.engine.dispose()
    raffle.until(lambda: raffle.processed("done") == 163)


def drain(witness: Witness, raffle: Raffle) -> None:
    witness.saw("raffle_exchange", int(raffle.processed("done")) - 3)
    assert witness.saw_no_more()


def one_bad_row_hurts_nobody_else(raffle: Raffle, witness: Witness) -> dict[str, str]:
    """Of twenty rows one is refused: the others are inserted, in this batch. It is tried twice, and rejected."""
    done, bad, good = raffle.processed("done"), user(email="nobody"), [user() for _ in range(19)]

    raffle.publish(*encoded(*good[:7], bad, *good[7:]))

    raffle.until(lambda: raffle.processed("done") == done + 19)
    assert {UUID(one["id"]) for one in good} <= raffle.users().keys()
    (retried,) = witness.saw("raffle_retry_exchange", 1)
    assert json.loads(retried.body) == bad
    assert headers(retried)["x-retries"] == 1
    assert headers(retried)["x-retry-reason"].startswith("db_error: ")
    assert headers(retried)["x-retry-reason"].endswith(("users_email", 'violates check constraint "users_email"'))
    assert retried.properties.delivery_mode == 2
    *_, back = witness.saw("raffle_exchange", 21)  # twenty, and the one that came back
    assert deaths(back) == {("raffle_retry_10s", "expired"): 1}
    assert json.loads(back.body) == bad
    (dead,) = witness.saw("raffle_dlx", 1)
    assert deaths(dead)["raffle_queue", "rejected"] == 1
    assert (json.loads(dead.body), headers(dead)["x-retries"]) == (bad, 1)
    assert witness.saw_no_more()
    lines = raffle.until(lambda: raffle.lines(queue="raffle_queue", outcome="parked") and raffle.lines(event="settled"))
    lines = [line for line in lines if line["queue"] == "raffle_queue"]
    assert [(line["outcome"], line["attempt"], line["maxAttempts"], line["delayMs"]) for line in lines] == [
        ("retried", 1, 2, 300), ("parked", 2, 2, None),
    ]  # fmt: skip
    assert all(line["error"].startswith(f"{REFUSED}: ") and "users_email" in line["error"] for line in lines)
    assert "ana@email.com" not in raffle.program.output
    return bad


def what_the_dlq_consumer_fails_on_goes_round_ever_more_slowly(raffle: Raffle, bad: dict[str, str]) -> None:
    lines = raffle.until(lambda: (found := raffle.lines(queue="raffle_dlq", outcome="released"))[3:] and found)

    times = [datetime.fromisoformat(line["time"]) for line in lines[:4]]
    pauses = 0.2 + 0.4 + 0.8  # of which chance takes a fifth at most; and each time a batch is gathered for 300 ms
    assert (times[3] - times[0]).total_seconds() > 0.8 * pauses + 3 * 0.3 - 0.01
    assert {line["error"].partition(":")[0] for line in lines} == {REFUSED}
    assert raffle.metric("redrive_failures_total", queue="raffle_dlq", error=REFUSED) >= 4
    in_it = raffle.metric("redrive_queue_messages", queue="raffle_dlq", role="dlq")
    assert in_it + raffle.metric("redrive_unsettled", queue="raffle_dlq") >= 1
    assert UUID(bad["id"]) not in raffle.users()


def what_is_no_json_goes_straight_to_the_dlq_and_away(raffle: Raffle, witness: Witness) -> None:
    users = raffle.users()

    raffle.publish(b'{"id": "not JSON')

    (dead,) = witness.saw("raffle_dlx", 1)
    assert (dead.body, deaths(dead)) == (b'{"id": "not JSON', {("raffle_queue", "rejected"): 1})
    assert "x-retries" not in headers(dead)
    (logged,) = raffle.until(lambda: raffle.lines(queue="raffle_queue", reason="malformed"))
    assert (logged["level"], logged["outcome"], logged["attempt"]) == ("error", "parked", 1)
    assert logged["error"].startswith("msgspec.DecodeError: ")
    (discarded,) = raffle.until(lambda: raffle.lines(queue="raffle_dlq", outcome="discarded"))
    assert "no JSON: Input data was truncated" in discarded["error"]
    assert raffle.processed("discarded", "raffle_dlq") == 1
    assert raffle.users() == users
    assert len(witness.saw("raffle_exchange", 1)) == 1
    assert witness.saw_no_more()


def what_is_json_and_no_user_is_kept(raffle: Raffle) -> None:
    raffle.publish(b'{"id": 7}')

    def failed() -> list[dict[str, Any]]:
        return [line for line in raffle.lines(queue="raffle_dlq") if "ValidationError" in line["error"]]

    raffle.until(failed)
    assert failed()[0]["outcome"] == "released"


def shares(raffle: Raffle) -> None:
    """How much went well, and what went wrong, by type."""
    done, retried, parked = (raffle.processed(outcome) for outcome in ("done", "retried", "parked"))
    assert (retried, parked) == (1, 3)
    assert done / (done + retried + parked) > 0.9
    assert raffle.metric("redrive_failures_total", queue="raffle_queue", error=REFUSED) == 2
    assert raffle.metric("redrive_failures_total", queue="raffle_queue", error="msgspec.DecodeError") == 1
    assert raffle.metric("redrive_failures_total", queue="raffle_queue", error="msgspec.ValidationError") == 1
    assert raffle.metric("redrive_parked_total", queue="raffle_queue", reason="malformed") == 2
    assert raffle.metric("redrive_parked_total", queue="raffle_queue", reason="exhausted") == 1


# A database that fails ----------------------------------------------------------------------------


class Outage(Protocol):
    def begin(self) -> None: ...

    def end(self) -> None: ...


@dataclass
class ServerDown:
    """PostgreSQL is stopped."""

    server: Postgres

    def begin(self) -> None:
        self.server.stop()

    def end(self) -> None:
        self.server.start()


@dataclass
class TableGone:
    """SQLite is a file, and always there; what can be gone is the table."""

    stack: Stack

    def begin(self) -> None:
        self._rename("users", "elsewhere")

    def end(self) -> None:
        self._rename("elsewhere", "users")

    def _rename(self, old: str, new: str) -> None:
        database = Database.embedded(self.stack.data)
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")
        database.engine.dispose()


@pytest.fixture(params=["embedded", pytest.param("production", marks=[pytest.mark.rabbitmq, pytest.mark.postgres])])
def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Stack, Outage]:
    """Where the database can fail."""
    if request.param == "embedded":
        stack = Stack(tmp_path)
        return stack, TableGone(stack)
    server: Postgres = request.getfixturevalue("own_postgres")
    return Stack(tmp_path, request.getfixturevalue("amqp_url"), server.url), ServerDown(server)


@says(
    "overview", "publisher", "dlq consumer", "table", "count", "retry", "back", "reject", "to dlq", "dlq insert",
    "dlq ack", "requeue", "by hand", "state retry", "state waiting", "state dlq", "state dlq success",
    "state dlq requeue", "retry headers", "retry body", "MAX_RETRIES", "log consumer", "log dlq", "metric success",
    "metric retry", "metric dlq", "metric errors", "failure 1", "failure 1 limit", "failure 1 recovery", "failure 2",
    "failure 2 recovery",
)  # fmt: skip
def test_a_database_that_fails_for_a_while_and_one_that_fails_for_longer(fragile: tuple[Stack, Outage]) -> None:
    stack, outage = fragile
    with running(stack, RETRY_TTL_MS="2000", USERS_BATCH_TIMEOUT_MS="100") as raffle:
        witness = Witness(stack)
        outage.begin()
        some = {raffle.sign_up() for _ in range(5)}  # who signs up does not hear of it
        they_wait_for_their_retry(raffle, witness, len(some))
        outage.end()
        raffle.until(lambda: raffle.processed("done") == 5)
        assert raffle.users().keys() == some
        assert raffle.processed("parked") == 0

        outage.begin()
        others = {raffle.sign_up() for _ in range(3)}
        they_end_in_the_dlq(raffle, witness, others)
        outage.end()
        raffle.until(lambda: raffle.processed("done", "raffle_dlq") == 3)
        assert raffle.users().keys() == some | others
        assert raffle.processed("done") == 5
    assert [raffle.held(queue) for queue in ("raffle_queue", "raffle_retry_10s", "raffle_dlq")] == [0, 0, 0]


def they_wait_for_their_retry(raffle: Raffle, witness: Witness, count: int) -> None:
    waiting = {"queue": "raffle_retry_10s", "role": "retry"}
    raffle.until(lambda: raffle.metric("redrive_queue_messages", **waiting) == count)
    assert raffle.metric("redrive_failures_total", queue="raffle_queue", error=AWAY) >= count
    published = {one.properties.message_id: one for one in witness.saw("raffle_exchange", count)}
    for retried in witness.saw("raffle_retry_exchange", count):
        original = published[retried.properties.message_id]
        assert retried.body == original.body
        assert headers(retried)["x-retries"] == 1
        reason = headers(retried)["x-retry-reason"]
        assert reason.startswith("db_error: ")
        assert "INSERT" not in reason
        assert any(word in reason for word in ("connect", "no such table: users")), reason
    told = raffle.lines(queue="raffle_queue", attempt=1)
    assert [(line["outcome"], line["maxAttempts"], line["delayMs"]) for line in told] == [("retried", 3, 2000)] * count


def they_end_in_the_dlq(raffle: Raffle, witness: Witness, identities: set[UUID]) -> None:
    raffle.until(lambda: len(raffle.lines(queue="raffle_queue", outcome="parked")) == 3)
    for identity in identities:
        lines = raffle.lines(queue="raffle_queue", messageId=str(identity))
        assert [(line["outcome"], line["attempt"]) for line in lines] == [
            ("retried", 1), ("retried", 2), ("parked", 3),
        ]  # fmt: skip
    dead = witness.saw("raffle_dlx", 3)
    assert {one.properties.message_id for one in dead} == set(map(str, identities))
    assert {(headers(one)["x-retries"], deaths(one)["raffle_queue", "rejected"]) for one in dead} == {(2, 1)}

    # The DLQ consumer has no database either: they stay, and are tried again and again.
    raffle.until(lambda: len(raffle.lines(queue="raffle_dlq", outcome="released")) >= 9)
    assert {line["error"].partition(":")[0] for line in raffle.lines(queue="raffle_dlq")} == {AWAY}

    def in_the_dlq() -> float:
        ready = raffle.metric("redrive_queue_messages", queue="raffle_dlq", role="dlq")
        return ready + raffle.metric("redrive_unsettled", queue="raffle_dlq")

    raffle.until(lambda: in_the_dlq() == 3)


COUNTS = re.compile(r"^\| (\d) \| (none|\d) \| .*`x-retries: (\d)`", re.MULTILINE)


@says("MAX_RETRIES", "count", "retry", "ack original", "back", "reject", "to dlq", "retry headers", "failure 1 limit")
def test_each_delivery_has_the_x_retries_of_the_readme(fragile: tuple[Stack, Outage]) -> None:
    stack, outage = fragile
    with running(stack, RETRY_TTL_MS="300", USERS_BATCH_TIMEOUT_MS="50") as raffle:
        witness = Witness(stack)
        outage.begin()
        identity = raffle.sign_up()
        raffle.until(lambda: raffle.lines(queue="raffle_queue", outcome="parked"))
        delivered = witness.saw("raffle_exchange", 3)
        afterwards = [*witness.saw("raffle_retry_exchange", 2), *witness.saw("raffle_dlx", 1)]
        assert witness.saw_no_more()
        assert [raffle.held(queue) for queue in ("raffle_queue", "raffle_retry_10s")] == [0, 0]
        assert raffle.metric("redrive_unsettled", queue="raffle_queue") == 0
        outage.end()
        raffle.until(lambda: raffle.processed("done", "raffle_dlq") == 1)
        assert raffle.users().keys() == {identity}

    counts = [
        (str(number), str(headers(before).get("x-retries", "none")), str(headers(after)["x-retries"]))
        for number, (before, after) in enumerate(zip(delivered, afterwards, strict=True), 1)
    ]
    assert counts == COUNTS.findall((EXAMPLE / "README.md").read_text())
    assert counts == [("1", "none", "1"), ("2", "1", "2"), ("3", "2", "2")]


# A broker that fails ------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", pytest.param("production", marks=[pytest.mark.rabbitmq, pytest.mark.postgres])])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stack, EmbeddedBroker | RabbitMQ]]:
    """Where the broker is another process, which can be stopped."""
    if request.param == "production":
        node: RabbitMQ = request.getfixturevalue("own_rabbitmq")
        yield Stack(tmp_path, node.url, request.getfixturevalue("postgres_url")), node
        return
    with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "broker" / "data") as broker:
        yield Stack(tmp_path, broker.url), broker


@says("failure 4", "failure 4 recovery", "persistent", "durable", "log publisher", "rest")
def test_a_broker_that_fails_is_told_to_the_caller_and_what_it_had_is_there_again(
    mortal: tuple[Stack, EmbeddedBroker | RabbitMQ],
) -> None:
    stack, broker = mortal
    with running(stack, RETRY_TTL_MS="600000", USERS_BATCH_TIMEOUT_MS="100") as raffle:
        before, bad = raffle.sign_up(), user(email="nobody")
        raffle.publish(*encoded(bad))
        raffle.until(lambda: raffle.held("raffle_retry_10s") == 1)
        raffle.until(lambda: raffle.users().keys() == {before})

        broker.stop()
        mine = {"Idempotency-Key": str(uuid4())}
        told = raffle.client.post(PATH, json={"name": "Ana", "email": "ana@email.com"}, headers=mine)
        away = raffle.client.get("/readyz").status_code, raffle.client.get("/healthz").status_code
        broker.start()

        the_caller_knows_what_to_do(told)
        assert away == (503, 200)
        (reason,) = [line["message"] for line in raffle.lines(logger="redrive.integrations")]
        assert reason.startswith(f"POST {PATH}: ")  # with an address, which is not the caller's business
        assert {line["state"] for line in raffle.lines(event="connection", name="broker")} >= {"reconnecting"}
        raffle.until(lambda: answers(raffle.client))
        again = raffle.sign_up("Ana", **mine)
        raffle.until(lambda: raffle.users().keys() == {before, again})
        everything_is_where_it_was(stack, bad)


def the_caller_knows_what_to_do(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["detail"] in (
        "Nothing was taken. Send it again in a moment.",
        "The broker went away before it confirmed. Send it again, as it was.",
    )


def everything_is_where_it_was(stack: Stack, bad: dict[str, str]) -> None:
    async def look() -> Delivery:
        async with Connection(stack.broker or "") as connection:
            assert [(await connection.queue_info(queue)).messages for queue in KEYS.values()] == [0, 1, 0]
            return await take(connection, "raffle_retry_10s")

    waited = asyncio.run(look())
    assert (json.loads(waited.body), headers(waited)["x-retries"], waited.properties.delivery_mode) == (bad, 1, 2)


def test_every_statement_of_the_text_is_asserted() -> None:
    assert not says.unclaimed
