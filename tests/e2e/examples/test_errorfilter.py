"""The error filter, sentence by sentence as its document (seed 002) says."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

import httpx
import pytest

from e2e.examples.checklist import Checklist
from e2e.examples.stacks import Program, Stack
from examples.errorfilter.exceptions import (
    BadRequestException,
    HttpException,
    NotFoundException,
    ServiceUnavailableException,
    UnprocessableEntityException,
    ValidationException,
)
from examples.errorfilter.filtering import DECISION_TABLE, Decision, RabbitMQConsumerErrorFilter, Row
from redrive import App
from redrive.broker.shared import SharedBroker
from redrive.client import Delivery, Properties
from redrive.testing.ports import free_port
from redrive.topology import Server, expand
from redrive.topology.ladder import ENTRANCE, LEVELS
from redrive.topology.routing import targets
from topology_systems import system
from working import take, working

SEEDS_OWN = RabbitMQConsumerErrorFilter()
FIXED = [5_000] * 10
EXPONENTIAL = [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000, 300_000]
WITH_PLUGIN, WITHOUT = Server.of("3.10", delayed_exchanges=True), Server.of("3.10")

says = Checklist(
    {
        # Overview
        "objective": "One place handles the errors of all consumers and decides when a message is retried, with a "
        "delay, and when it is rejected.",
        "intercepts": "The filter intercepts every exception that a consumer raises.",
        "classifies": "It separates errors that are not worth a retry (validation) from those that may be transient "
        "(timeouts, unavailable dependencies).",
        "nack": "An error that is not worth a retry is answered with Nack(false): the message is rejected without "
        "requeue and goes to the dead-letter queue.",
        "discarded": "If the queue has no dead-letter queue, the rejected message is discarded.",
        "retry": "Any other message is published again over AMQP, with a header that counts its retries and with "
        "x-delay.",
        "no loop": "No message loops forever: the number of retries is limited.",
        # Components
        "rmq only": "The filter acts in the context of RabbitMQ only. Called directly, a handler raises its error.",
        "header": "RETRY_COUNT_HEADER is x-retry-count.",
        "limit": "MAX_RETRIES is 10.",
        "never": "NON_RETRYABLE_ERRORS are ValidationException, BadRequestException and UnprocessableEntityException: "
        "they are never retried, and rejected at once.",
        "increment": "A retry adds one to x-retry-count.",
        "fixed": "A retry has x-delay = 5000. This is the default, RETRY_BACKOFF=fixed.",
        "key": "A retry has the routing key of the original message.",
        "correlation": "A retry preserves the correlationId.",
        "first": "shouldRetry is true the first time, when the header is absent.",
        "below": "shouldRetry is true up to a count of MAX_RETRIES - 1.",
        "from": "shouldRetry is false from a count of MAX_RETRIES on.",
        "parseInt": "The document reads the count with parseInt. Deliberate difference: a count that is not a number "
        "is read as 0, where parseInt gives NaN and the message would be rejected at its first failure.",
        "direct.delayed": "A retry is published to the exchange direct.delayed.",
        "plugin": "That exchange is of type x-delayed-message, or infrastructure that does the same: where RabbitMQ "
        "has no such plugin, a retry goes to a ladder of delay queues and waits as long, in whole seconds.",
        # The table
        "row 1": "NON_RETRYABLE_ERRORS: shouldRetry is not asked, Nack(false), rejected without requeue.",
        "row 2": "A transient error and a count below MAX_RETRIES: shouldRetry, retry(), published again with x-delay.",
        "row 3": "A transient error and a count of MAX_RETRIES or more: not shouldRetry, Nack(false), rejected without "
        "requeue.",
        # Use
        "one handler": "The filter can be that of one handler: here, the options of one consumer.",
        "global": "The filter can be that of all handlers: here, the defaults of the application.",
        # Infrastructure
        "dlq": "Queues have a dead-letter exchange and a dead-letter routing key, so that a rejected message reaches "
        "its dead-letter queue.",
        "idempotency": "Handlers are idempotent: a message that is processed again has no effect again.",
        # Good practice
        "exponential": "The recommended backoff is x-delay = min(5 * 60_000, 5000 * 2 ** (retryCount - 1)): "
        "RETRY_BACKOFF=exponential.",
        "number": "x-retry-count is always a number, when it is read and when it is written.",
        "updated": "x-retry-count is updated with every retry. The document's own code does not overwrite it after the "
        "first; what it recommends instead is done.",
        "observability": "Log lines have the correlationId, the routingKey, the count and the reason of the error.",
        "lists": "The lists of errors can be adjusted to the domain: NotFoundException, for one, is not retried.",
        "breaker": "A circuit breaker protects an external dependency that is unstable.",
        # The reference
        "minha.fila": "minha.fila has the x-dead-letter-exchange dlx.exchange and the x-dead-letter-routing-key "
        "minha.fila.dlq.",
        "exchange": "direct.delayed is of type x-delayed-message, with x-delayed-type direct.",
        # Why it is useful
        "robustness": "Permanent errors are separated from transient conditions.",
        "control": "Retries are limited, and poison messages do not loop.",
        "elasticity": "Backoff relieves services that are unstable.",
        "simplicity": "The policy is in one place, reproducible and testable.",
        # Edge cases
        "types": "The count may arrive as a string or as a number; it is normalised.",
        "large": "A retry copies the content of the message, also of a large one.",
        "compatibility": "Whether the broker supports x-delay has to be confirmed: the application finds out when it "
        "connects.",
        "propagated": "The correlationId is propagated: also to the messages that a handler publishes.",
        "inputs": "Inputs are validated.",
        # In short
        "adjust": "Header, limit, list of errors and strategy of the delay can be adjusted.",
    }
)


# The decision -------------------------------------------------------------------------------------

CASES = [
    pytest.param(row, error, count, id=f"{type(error).__name__}-{count}")
    for row in DECISION_TABLE
    for error in row.errors
    for count in row.counts
]


@says(
    "row 1", "row 2", "row 3", "classifies", "never", "header", "limit", "first", "below", "from", "increment",
    "robustness", "simplicity",
)  # fmt: skip
@pytest.mark.parametrize(("row", "error", "count"), CASES)
def test_the_decision_is_that_of_the_table(row: Row, error: Exception, count: int | None) -> None:
    decided = SEEDS_OWN.decide(error, {} if count is None else {"x-retry-count": count, "other": "header"})

    assert (decided.should_retry, decided.action) == (row.should_retry, row.action)
    assert decided.retry_count == (None if not row.should_retry else (count or 0) + 1)


def test_the_table_is_that_of_the_text() -> None:
    assert [(row.should_retry, row.action) for row in DECISION_TABLE] == [
        (None, "Nack(false)"), (True, "retry()"), (False, "Nack(false)"),
    ]  # fmt: skip
    never, below, reached = DECISION_TABLE
    assert [type(error) for error in never.errors] == [
        ValidationException, BadRequestException, UnprocessableEntityException,
    ]  # fmt: skip
    assert below.counts == (None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert min(count for count in reached.counts if isinstance(count, int)) == 10


def delays(chosen: RabbitMQConsumerErrorFilter) -> list[int | None]:
    counts = [{}, *({"x-retry-count": count} for count in range(1, 10))]
    return [chosen.decide(TimeoutError(), headers).x_delay for headers in counts]


@says("fixed", "exponential")
def test_the_delays_are_those_of_the_text() -> None:
    assert delays(SEEDS_OWN) == FIXED
    assert delays(replace(SEEDS_OWN, exponential=True)) == EXPONENTIAL
    assert [min(5 * 60_000, 5000 * 2 ** (retry_count - 1)) for retry_count in range(1, 11)] == EXPONENTIAL


@says("number", "types", "parseInt")
@pytest.mark.parametrize(
    ("said", "counted"),
    [
        *((count, count + 1) for count in range(10)),
        *((str(count), count + 1) for count in range(10)),
        (b"7", 8), (" 7 ", 8), ("7.0", 8), (7.0, 8), (2.9, 3),
        (-1, 1), (-(2**31), 1), ("-5", 1), ("", 1), ("nonsense", 1), ("7 times", 1), (float("nan"), 1),
        (None, 1), (True, 1), ([3], 1), ({"count": 3}, 1),
        (10, None), ("10", None), (10.0, None), (99, None), (2**63 - 1, None), ("9" * 100, None), (float("inf"), None),
    ],
)  # fmt: skip
def test_whatever_the_count_says_it_is_read_as_a_number(said: object, counted: int | None) -> None:
    decided = SEEDS_OWN.decide(TimeoutError(), {"x-retry-count": said})

    assert (decided.retry_count, decided.action) == (counted, "retry()" if counted else "Nack(false)")


@says("lists", "adjust")
def test_whoever_uses_the_filter_can_adjust_it() -> None:
    missing = NotFoundException("no such customer")
    strict = replace(SEEDS_OWN, non_retryable=(*SEEDS_OWN.non_retryable, NotFoundException))
    only = replace(SEEDS_OWN, retryable=(TimeoutError,))

    assert SEEDS_OWN.decide(missing, {}).action == "retry()"  # it is not on the list of the text
    assert strict.decide(missing, {}).action == "Nack(false)"
    assert [only.decide(error, {}).action for error in (TimeoutError(), OSError(), missing)] == [
        "retry()", "Nack(false)", "Nack(false)",
    ]  # fmt: skip
    assert replace(only, non_retryable=(TimeoutError,)).decide(TimeoutError(), {}).action == "Nack(false)"
    shorter = replace(SEEDS_OWN, header="x-tries", max_retries=2)
    assert [shorter.decide(OSError(), {"x-tries": count}).action for count in (1, 2)] == ["retry()", "Nack(false)"]
    assert shorter.decide(OSError(), {"x-retry-count": 9}).action == "retry()"


def test_a_gateway_that_says_when_to_come_back_is_not_asked_sooner() -> None:
    now = datetime.now(UTC)
    busy = [ServiceUnavailableException(headers={"Retry-After": seconds}) for seconds in ("1", "60", "600")]

    assert [SEEDS_OWN.decide(error, {}, now).x_delay for error in busy] == [5_000, 60_000, 600_000]
    growing = replace(SEEDS_OWN, exponential=True)  # which has a wait of 80 s
    assert [growing.decide(error, {}, now).x_delay for error in busy] == [5_000, 80_000, 600_000]
    assert SEEDS_OWN.decide(HttpException(status=401), {}).action == "retry()"  # the lists decide, and nothing else


# What is declared ---------------------------------------------------------------------------------


@says("dlq", "minha.fila", "exchange", "plugin", "compatibility", "direct.delayed")
def test_the_topology_is_that_of_the_text_with_the_plugin_and_without() -> None:
    made, without = expand(system("errorfilter"), WITH_PLUGIN), expand(system("errorfilter"), WITHOUT)

    for definitions in (made, without):
        fila = definitions.queue("minha.fila")
        assert fila is not None
        assert fila.arguments["x-dead-letter-exchange"] == "dlx.exchange"
        assert fila.arguments["x-dead-letter-routing-key"] == "minha.fila.dlq"
        assert targets(definitions, "dlx.exchange", "minha.fila.dlq") == {"minha.fila.dlq"}
    delayed = made.exchange("direct.delayed")
    assert delayed is not None
    assert (delayed.type, delayed.arguments) == ("x-delayed-message", {"x-delayed-type": "direct"})
    assert targets(made, "direct.delayed", "minha.chave") == {"minha.fila"}
    assert without.exchange("direct.delayed") is None
    assert len([queue for queue in without.queues if queue.name.startswith("redrive.delay.")]) == LEVELS


@says("objective", "one handler", "global", "rmq only", "simplicity")
async def test_one_filter_is_everybodys_and_one_consumer_has_its_own() -> None:
    from examples.errorfilter.app import app, charge, everywhere, for_receipts
    from examples.errorfilter.messages import Charge

    for server in (WITH_PLUGIN, WITHOUT):
        assert expand(app.topology, server) == expand(system("errorfilter"), server)
    filters = {spec.queue.name: (spec.retry, spec.headers.attempts, spec.park) for spec in app.consumers}
    assert filters == {
        "minha.fila": (everywhere.policy, "x-retry-count", "reject"),
        "recibos": (for_receipts.policy, "x-retry-count", "reject"),
    }
    assert everywhere == SEEDS_OWN
    assert for_receipts == replace(SEEDS_OWN, non_retryable=(*SEEDS_OWN.non_retryable, NotFoundException))
    with pytest.raises(ValidationException):  # called by somebody else, it raises, and nobody decides anything
        await charge(Charge("ch_1", "ana", 0))


def decisions(stack: Stack, **said: str) -> list[list[str]]:
    """The rows of `python -m examples.errorfilter decisions`, its head included."""
    told = stack.run("examples.errorfilter", "decisions", COLUMNS="200", **said).stdout
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in told.splitlines() if line[0] in "│┃"]


@says("fixed", "exponential", "adjust")
@pytest.mark.parametrize(
    ("backoff", "waits"),
    [(None, FIXED), ("fixed", FIXED), ("exponential", EXPONENTIAL)],
    ids=["unset", "fixed", "exponential"],
)
def test_the_delay_is_fixed_unless_the_environment_says_exponential(
    embedded: Stack, backoff: str | None, waits: list[int]
) -> None:
    rows = decisions(embedded, **({} if backoff is None else {"RETRY_BACKOFF": backoff}))

    retried = [row for row in rows if row[0] == "TimeoutError" and row[3] == "retry()"]
    assert [(row[1], row[4]) for row in retried] == [
        ("none", "5000"),
        *((str(count), str(wait)) for count, wait in enumerate(waits)),
    ]


@says("adjust", "lists")
def test_the_environment_adjusts_it(embedded: Stack) -> None:
    said = {"RETRY_COUNT_HEADER": "x-tries", "MAX_RETRIES": "3", "RETRY_DELAY": "7s"}
    lists = {"NON_RETRYABLE_ERRORS": "BadRequestException, TimeoutError", "RETRYABLE_ERRORS": "Exception"}
    rows = decisions(embedded, **said, **lists)
    wrong = embedded.run("examples.errorfilter", "decisions", RETRYABLE_ERRORS="Nothing")

    assert rows[0][1] == "x-tries"
    assert ["TimeoutError", "none", "–", "Nack(false)", "–"] in rows
    assert ["ValidationException", "none", "True", "retry()", "7000"] in rows
    assert ["ValidationException", "3", "False", "Nack(false)", "–"] in rows
    assert (wrong.returncode, "RETRYABLE_ERRORS: unknown Nothing; there are" in wrong.stderr) == (2, True)


# At work ------------------------------------------------------------------------------------------


class Charges:
    """The example as a process, the gateway as another, and somebody else's programs that publish."""

    def __init__(self, stack: Stack, program: Program, gateway: str) -> None:
        self.stack = stack
        self.program = program
        self._gateway = gateway

    @property
    def has_plugin(self) -> bool:
        return self.stack.broker is None

    def publish(self, *messages: tuple[bytes, Properties]) -> None:
        async def send() -> None:
            async with self.stack.connection() as connection:
                for body, properties in messages:
                    await connection.publish("minha.exchange", "minha.chave", body, properties)

        asyncio.run(send())

    def until(self, condition: Callable[[], Any], within: float = 60) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, self.program.output[-3000:]
            time.sleep(0.05)
        return found

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.program.output.splitlines() if line.startswith("{")]
        return [line for line in found if wanted.items() <= line.items()]

    def accounts(self) -> tuple[Counter[str], Counter[str]]:
        """What was paid, and how often it was asked for."""
        told = httpx.get(f"{self._gateway}/charges").json()
        return Counter(payment["key"] for payment in told["payments"]), Counter(told["asked"])

    def receipts(self) -> dict[str, str]:
        with self.stack.looking() as connection:
            return {row.charge: row.address for row in connection.exec_driver_sql("SELECT * FROM receipts")}

    def taken(self, queue: str) -> dict[str | None, list[Delivery]]:
        """What is in a queue, by correlation id, taken out of it."""

        async def read() -> list[Delivery]:
            async with self.stack.connection() as connection:
                count = (await connection.queue_info(queue)).messages
                return [await take(connection, queue) for _ in range(count)]

        found: dict[str | None, list[Delivery]] = {}
        for delivery in asyncio.run(read()):
            found.setdefault(delivery.properties.correlation_id, []).append(delivery)
        return found

    def witness(self) -> None:
        """A queue that gets a copy of every retry of a charge: after its delay, or on its way into the ladder."""

        async def bind() -> None:
            async with self.stack.connection() as connection:
                await connection.declare_queue("witness")
                if self.has_plugin:
                    await connection.bind_queue("witness", "direct.delayed", "minha.chave")
                else:
                    await connection.bind_queue("witness", ENTRANCE, "#.minha.fila")

        asyncio.run(bind())

    def retry_seen(self, copy: Delivery) -> tuple[object, int]:
        """The count, and the delay in milliseconds: as the header says, or as the key of the ladder."""
        headers = dict(copy.properties.headers or {})
        if self.has_plugin:
            assert (copy.exchange, copy.routing_key) == ("direct.delayed", "minha.chave")
            return headers["x-retry-count"], headers["x-delay"]
        bits, queue = copy.routing_key.split(".")[:LEVELS], copy.routing_key.split(".", LEVELS)[LEVELS]
        assert (copy.exchange, queue) == (ENTRANCE, "minha.fila")
        assert headers["x-redrive-routing-key"] == "minha.chave"
        return headers["x-retry-count"], int("".join(bits), 2) * 1000

    def waited(self, milliseconds: int) -> int:
        """As long as it takes here: the ladder counts whole seconds."""
        return milliseconds if self.has_plugin else ceil(milliseconds / 1000) * 1000


@contextmanager
def at_work(stack: Stack, port: int, **said: str) -> Iterator[Charges]:
    url = f"http://127.0.0.1:{port}"
    settings = {"GATEWAY_URL": url, "GATEWAY_TIMEOUT": "1s", "BREAKER_CALLS": "1000"} | said
    with stack.running("examples.errorfilter", **settings) as program:
        program.wait_for("<App errorfilter")
        yield Charges(stack, program, url)


@contextmanager
def gateway(stack: Stack, port: int) -> Iterator[Program]:
    with stack.running("examples.errorfilter", "gateway", "--port", str(port), log="gateway.log") as program:
        yield program


def order(identity: str, **said: Any) -> bytes:
    return json.dumps({"id": identity, "customer": "ana", "amount": 1990} | said).encode()


def from_elsewhere(identity: str, **headers: Any) -> Properties:
    """As others publish: without a message id, with whatever headers."""
    return Properties(correlation_id=identity, delivery_mode=2, headers=headers or None)


COUNTS: Sequence[tuple[object, int | None]] = (
    *((number, number + 1) for number in range(10)),
    ("3", 4), (-5, 1), ("nonsense", 1), (2.0, 3), (True, 1),
    (10, None), ("10", None), (2**62, None), ("9" * 30, None),
)  # fmt: skip


@says(
    "number", "types", "parseInt", "fixed", "exponential", "from", "below", "first", "row 2", "row 3", "compatibility",
    "plugin", "limit", "elasticity",
)  # fmt: skip
@pytest.mark.parametrize(
    ("said", "waits"),
    [({}, FIXED), ({"RETRY_BACKOFF": "exponential"}, EXPONENTIAL)],
    ids=["fixed", "exponential"],
)
def test_a_gateway_that_is_away_gets_the_delays_of_the_text_on_every_broker(
    stack: Stack, said: dict[str, str], waits: list[int]
) -> None:
    with at_work(stack, free_port(), **said) as charges:  # nobody listens there
        charges.witness()
        counts = {"absent": (None, 1)} | {f"{type(count).__name__} {count}": (count, to) for count, to in COUNTS}
        charges.publish(
            *(
                (order(name), from_elsewhere(name, **({} if count is None else {"x-retry-count": count})))
                for name, (count, _) in counts.items()
            )
        )
        charges.until(lambda: {line["correlationId"] for line in charges.lines(event="settled")} == counts.keys())

        decided = {name: charges.lines(correlationId=name)[0] for name in counts}
        for name, (_, count) in counts.items():
            line = decided[name]
            assert "Connection refused" in line["error"]
            if count is None:
                assert (line["outcome"], line["reason"], line["delayMs"]) == ("parked", "exhausted", None)
            else:
                assert (line["outcome"], line["attempt"], line["delayMs"]) == ("retried", count, waits[count - 1])

        # The first one is back after 5 s, by whichever way, and goes on from there. The delay begins with the
        # confirmed copy, the line about it is written a little later.
        first = decided["absent"]
        again = charges.until(lambda: charges.lines(correlationId="absent", attempt=2))[0]
        assert again["delayMs"] == waits[1]
        took = datetime.fromisoformat(again["time"]) - datetime.fromisoformat(first["time"])
        assert 4 <= took.total_seconds() < 10

        dead = charges.taken("minha.fila.dlq")
        exhausted = {name for name, (_, count) in counts.items() if count is None}
        assert exhausted <= set(dead) <= exhausted | {"int 9"}  # whose tenth retry is back after 5 s, if that is fixed
        copies = charges.taken("witness")
        assert charges.retry_seen(copies["absent"][0]) == (1, 5_000)
        if not charges.has_plugin:  # here they are seen on their way in, and need not be waited for
            for name, (_, count) in counts.items():
                if count is not None:
                    seen = charges.retry_seen(copies[name][0])
                    assert (type(seen[0]), seen) == (int, (count, waits[count - 1]))


# A thousandth of the text's, and exponential: so that the filter of the receipts, which is not, is seen to differ.
MILLISECONDS = {"RETRY_DELAY": "5ms", "RETRY_CEILING": "300ms", "RETRY_BACKOFF": "exponential"}
FASTER = [delay // 1000 for delay in EXPONENTIAL]
LARGE = order("large", source="tok_error", attachment="0123456789abcdef" * 400_000)  # which nobody reads
FOREIGN = {"x-retry-count": "8", "x-tenant": "acme", "x-nested": {"list": [1, "two", None]}}


@says(
    "objective", "intercepts", "nack", "retry", "no loop", "control", "never", "increment", "key",
    "correlation", "propagated", "direct.delayed", "plugin", "row 1", "row 2", "row 3", "dlq", "idempotency", "number",
    "updated", "observability", "lists", "large", "inputs", "one handler", "global",
)  # fmt: skip
def test_charges_are_paid_refused_or_tried_again(stack: Stack) -> None:
    port = free_port()
    with gateway(stack, port) as payments, at_work(stack, port, **MILLISECONDS) as charges:
        payments.wait_for("the gateway is at")
        charges.witness()
        orders = {
            "good": order("good"),
            "bad": order("bad", source="tok_bad"),
            "declined": order("declined", source="tok_declined"),
            "nothing": order("nothing", amount=0),
            "elsewhere": order("elsewhere", currency="XXX"),
            "recovers": order("recovers", source="tok_recovers"),
            "slow": order("slow", source="tok_slow"),
            "hopeless": order("hopeless", source="tok_error"),
            "unknown": order("unknown", customer="nobody"),
            "busy": order("busy", customer="busy"),
        }
        charges.publish(
            *((body, from_elsewhere(name)) for name, body in orders.items()),
            (orders["good"], from_elsewhere("good again")),
            (b"not JSON", from_elsewhere("broken")),
            (LARGE, Properties(correlation_id="large", delivery_mode=2, message_id="m-1", type="Charge",
                               content_type="application/json", priority=3, app_id="elsewhere", headers=FOREIGN)),
        )  # fmt: skip
        charges.until(lambda: len(charges.lines(queue="minha.fila", outcome="parked")) == 7)
        charges.until(lambda: len(charges.receipts()) == 4)
        charges.until(lambda: charges.lines(queue="recibos", outcome="parked"))
        charges.until(lambda: charges.lines(queue="recibos", outcome="duplicate"))
        dead = {str(name): one for name, (one,) in charges.taken("minha.fila.dlq").items()}

        nobody_pays_twice(charges)
        what_cannot_pass_is_rejected_at_once(charges, dead)
        what_may_pass_is_tried_ten_times(charges, dead, orders["hopeless"])
        receipts_have_a_filter_of_their_own(charges)
        a_large_message_is_what_it_was(dead["large"])


def nobody_pays_twice(charges: Charges) -> None:
    paid, asked = charges.accounts()
    assert paid == Counter(["good", "recovers", "slow", "unknown", "busy"])
    assert (asked["good"], asked["recovers"], asked["slow"]) == (2, 3, 3)
    assert charges.receipts() == {
        "good": "ana@example.org", "recovers": "ana@example.org", "slow": "ana@example.org", "busy": "busy@example.org",
    }  # fmt: skip
    assert {line["error"].partition(":")[0] for line in charges.lines(correlationId="slow")} == {"TimeoutError"}


def what_cannot_pass_is_rejected_at_once(charges: Charges, dead: dict[str, Delivery]) -> None:
    causes = {
        "bad": "BadRequestException", "declined": "UnprocessableEntityException",
        "nothing": "ValidationException", "elsewhere": "ValidationException",
    }  # fmt: skip
    for name, cause in causes.items():
        (line,) = charges.lines(correlationId=name)
        assert (line["outcome"], line["reason"], line["attempt"]) == ("parked", "permanent", 1)
        assert f".{cause}:" in line["error"]
    (line,) = charges.lines(correlationId="broken")
    assert (line["outcome"], line["reason"]) == ("parked", "malformed")
    for name in (*causes, "broken"):
        headers = dict(dead[name].properties.headers or {})
        assert "x-retry-count" not in headers
        (death,) = headers["x-death"]
        assert (death["queue"], death["reason"], death["exchange"]) == ("minha.fila", "rejected", "minha.exchange")
        assert (dead[name].exchange, dead[name].routing_key) == ("dlx.exchange", "minha.fila.dlq")
    _, asked = charges.accounts()
    assert (asked["bad"], asked["declined"], asked["nothing"], asked["elsewhere"]) == (1, 1, 0, 0)


def what_may_pass_is_tried_ten_times(charges: Charges, dead: dict[str, Delivery], body: bytes) -> None:
    lines = charges.lines(correlationId="hopeless")
    assert [(line["outcome"], line["attempt"], line["delayMs"]) for line in lines] == [
        *(("retried", number, delay) for number, delay in enumerate(FASTER, 1)),
        ("parked", 11, None),
    ]
    assert {(line["queue"], line["routingKey"], line["maxAttempts"]) for line in lines} == {
        ("minha.fila", "minha.chave", 11)
    }
    assert all("500: we have a problem" in line["error"] for line in lines)
    _, asked = charges.accounts()
    assert asked["hopeless"] == 11

    copies = charges.taken("witness")["hopeless"]
    assert [charges.retry_seen(copy) for copy in copies] == [
        (number, charges.waited(delay)) for number, delay in enumerate(FASTER, 1)
    ]
    assert {copy.body for copy in copies} == {body}
    count = (dead["hopeless"].properties.headers or {})["x-retry-count"]
    assert (type(count), count) == (int, 10)
    assert dead["hopeless"].body == body


def receipts_have_a_filter_of_their_own(charges: Charges) -> None:
    (missing,) = charges.lines(queue="recibos", correlationId="unknown")
    assert (missing["outcome"], missing["reason"], missing["attempt"]) == ("parked", "permanent", 1)
    assert ".NotFoundException:" in missing["error"]
    busy = charges.lines(queue="recibos", correlationId="busy")
    assert [(line["outcome"], line["attempt"], line["delayMs"]) for line in busy] == [
        ("retried", 1, 5), ("retried", 2, 5),
    ]  # fmt: skip
    assert list(charges.taken("recibos.dlq")) == ["unknown"]


def a_large_message_is_what_it_was(dead: Delivery) -> None:
    assert dead.body == LARGE
    assert len(dead.body) > 6_000_000
    headers = dict(dead.properties.headers or {})
    assert headers["x-retry-count"] == 10  # it came with eight
    assert {name: headers[name] for name in FOREIGN if name != "x-retry-count"} == {
        "x-tenant": "acme", "x-nested": {"list": [1, "two", None]},
    }  # fmt: skip
    kept = dead.properties
    assert (kept.message_id, kept.type, kept.content_type, kept.priority, kept.app_id, kept.delivery_mode) == (
        "m-1", "Charge", "application/json", 3, "elsewhere", 2,
    )  # fmt: skip


@says("breaker", "elasticity")
def test_a_gateway_that_is_away_is_left_alone_until_it_is_back(stack: Stack) -> None:
    port = free_port()
    names = [f"ch_{number}" for number in range(30)]
    with at_work(stack, port, **MILLISECONDS, BREAKER_CALLS="5", BREAKER_PAUSE="300ms") as charges:
        charges.publish((order("late", source="tok_recovers"), from_elsewhere("late", **{"x-retry-count": 10})))
        charges.publish(*((order(name), from_elsewhere(name)) for name in names))
        charges.until(lambda: len(charges.lines(event="breaker", state="open")) >= 3)  # it was tried, and tried again
        burnt = len(charges.lines(outcome="retried"))

        with gateway(stack, port):
            charges.until(lambda: charges.receipts().keys() == set(names))
            what_is_dead_is_driven_again(charges, stack)
            paid, _ = charges.accounts()

        assert paid == Counter([*names, "late"])
        assert burnt <= 5 + 4 + 3  # those that tripped it, those under way, and the probes
        assert charges.lines(event="breaker", state="closed", name="gateway")
        assert [line["correlationId"] for line in charges.lines(outcome="parked")] == ["late"]


def what_is_dead_is_driven_again(charges: Charges, stack: Stack) -> None:
    """It had used up its retries, and fails twice more: it has to begin anew, or it would be rejected at once."""
    app = ("--app", "examples.errorfilter.app:app")
    done = stack.run("redrive", "dlq", "redrive", "minha.fila.dlq", "--yes", *app)
    assert done.returncode == 0, done.stdout + done.stderr
    charges.until(lambda: "late" in charges.receipts())


@says("discarded")
async def test_without_a_dead_letter_queue_what_is_rejected_is_gone(stack: Stack) -> None:
    async with SharedBroker(stack.data) as embedded:
        app = App("elsewhere", broker=stack.broker or embedded.url, defaults=SEEDS_OWN.options)

        @app.consumer("ephemeral", dlq=False)
        async def refuse() -> None:
            raise UnprocessableEntityException("never")

        async with working(app) as (running, watcher):
            await app.publish("", "ephemeral", {})
            await watcher.until(lambda: bool(watcher.events))
            (queue,) = [one for one in app.queues if one.name == "ephemeral"]
            assert not queue.has_dlq(app.topology.queue_type)
        async with stack.connection() as connection:
            assert (await connection.queue_info("ephemeral")).messages == 0
        assert running.app is app


def test_a_decision_says_what_it_is() -> None:
    assert SEEDS_OWN.decide(TimeoutError(), {"x-retry-count": "9"}) == Decision("retry()", True, 10, 5_000)
    assert SEEDS_OWN.decide(BadRequestException(), {}) == Decision("Nack(false)")


def test_every_statement_of_the_text_is_asserted() -> None:
    assert not says.unclaimed
