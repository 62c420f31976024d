"""`die()` writes what RabbitMQ writes, byte for byte.

Each test lets a message die on a real broker, once or several times, and has `die()` do the same to the bytes that
were published. What the broker delivers at the end must be what `die()` gave: every header, its type and its place.
The one thing taken from the broker is the time of a death; that it lies within the test is checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from redrive.broker.deadletter import Death, dead_letter_of, deaths_of, is_cycle
from redrive.broker.dialect import DIALECTS, Dialect
from redrive.client import Connection, Consumer, Delivery, Properties
from redrive.wire.properties import decode_properties
from redrive.wire.raw_properties import (
    RawValue,
    find_header,
    join_table,
    patch_properties,
    raw_array,
    raw_long,
    raw_table,
    raw_text,
    raw_timestamp,
)
from redrive.wire.values import FieldValue, encode_value

Arguments = Mapping[str, FieldValue]

EVERY_TYPE: dict[bytes, RawValue] = {
    b"zebra": b"t\x01",
    b"b": b"b\xff",
    b"B": b"B\xff",
    b"s": b"s\xff\xfe",
    b"u": b"u\xff\xfe",
    b"I": b"I\xff\xff\xff\xfe",
    b"i": b"i\xff\xff\xff\xfe",
    b"l": b"l" + b"\x00" * 7 + b"\x05",
    b"f": b"f\x3f\xc0\x00\x00",
    b"d": b"d\x3f\xf8" + b"\x00" * 6,
    b"D": b"D\x02\x00\x00\x01\x3a",
    b"S": raw_text("text"),
    b"not utf-8": b"S\x00\x00\x00\x02\xff\xfe",
    b"x": b"x\x00\x00\x00\x02\x00\x01",
    b"A": raw_array([b"b\x01", raw_text("two")]),
    b"F": raw_table([(b"inner", b"s\x00\x01"), (b"a", b"V")]),
    b"T": raw_timestamp(1_700_000_000),
    b"V": b"V",
    b"empty": raw_text(""),
}


class _Raw(Properties):
    """Properties whose bytes are given: types and order that `Properties` would not write."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(delivery_mode=2)
        self.__dict__["_encoded"] = raw


class Broker:
    """The real one, with a consumer kept on each queue that a test has looked at."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect: Dialect = DIALECTS["{}.{}".format(*connection.server_version)]
        self._consumers: dict[str, Consumer] = {}

    async def queue(self, name: str, arguments: Arguments | None = None, **dead_letter: str) -> None:
        """`exchange` and `key` are the queue's for dead letters."""
        names = {"exchange": "x-dead-letter-exchange", "key": "x-dead-letter-routing-key"}
        given = {names[option]: value for option, value in dead_letter.items()}
        await self.connection.declare_queue(name, arguments={**(arguments or {}), **given})

    async def publish(self, raw: bytes, exchange: str = "", key: str = "main") -> None:
        await self.connection.publish(exchange, key, b"body", _Raw(raw))

    async def next(self, queue: str) -> Delivery:
        if queue not in self._consumers:
            self._consumers[queue] = await self.connection.consume(queue, prefetch=1)
        async with asyncio.timeout(30):
            return await anext(self._consumers[queue])

    async def letter(self, queue: str = "dead") -> Delivery:
        delivery = await self.next(queue)
        delivery.ack()
        return delivery


@pytest.fixture
async def broker(amqp_url: str) -> AsyncIterator[Broker]:
    async with Connection(amqp_url) as connection:
        yield Broker(connection)


class Mirror:
    """What `die()` makes of a message while the broker has its own way with it."""

    def __init__(self, raw: bytes, dialect: Dialect) -> None:
        self.raw = raw
        self.dialect = dialect
        self.deaths = deaths_of(raw, dialect)
        self.began = int(time.time())

    def die(
        self,
        letter: Delivery,
        queue: str,
        reason: str,
        *,
        exchange: str = "",
        keys: tuple[str, ...] = ("main",),
        dead_letter_key: str | None = "dead",
    ) -> None:
        self.raw, self.deaths = dead_letter_of(
            self.raw,
            self.deaths,
            queue=queue,
            reason=reason,
            exchange=exchange,
            routing_keys=keys,
            now=_time_of(letter, queue, reason),
            dead_letter_key=dead_letter_key,
            dialect=self.dialect,
        )

    def must_equal(self, letter: Delivery) -> None:
        assert decode_properties(self.raw) == letter.properties
        assert self.raw == letter.raw_properties
        assert deaths_of(self.raw, DIALECTS["3.10"]) == self.deaths  # the deaths beside it tell what the header tells


def _x_death(letter: Delivery) -> list[Any]:
    deaths = (letter.properties.headers or {})["x-death"]
    assert isinstance(deaths, list)
    return deaths


def _time_of(letter: Delivery, queue: str, reason: str) -> int:
    deaths = deaths_of(letter.raw_properties, DIALECTS["3.10"])
    (found,) = [death.time for death in deaths if (death.queue, death.reason) == (queue, reason)]
    return found


def _named(death: Any) -> tuple[str, str]:
    return death.get("queue"), death.get("reason")


def message(headers: Mapping[bytes, RawValue] | None = None, **properties: Any) -> bytes:
    usual: dict[str, Any] = {"content_type": "text/plain", "delivery_mode": 2, "message_id": "m-1", "app_id": "test"}
    return patch_properties(Properties(**usual | properties).encode(), set_headers=headers)


# One death ------------------------------------------------------------------------------------------


async def test_a_rejected_message_keeps_every_header_with_its_type(broker: Broker) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead")
    mirror = Mirror(message(EVERY_TYPE, correlation_id="c", priority=3, timestamp=1_700_000_000), broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.letter()

    mirror.die(letter, "main", "rejected")
    mirror.must_equal(letter)
    assert mirror.began <= mirror.deaths[0].time <= time.time()


@pytest.mark.parametrize("headers", [None, {}], ids=["no headers", "an empty table"])
async def test_a_message_without_headers_gets_them(broker: Broker, headers: dict[bytes, RawValue] | None) -> None:
    await broker.queue("main", {"x-message-ttl": 1}, exchange="", key="dead")
    await broker.queue("dead")
    raw = message() if headers is None else Properties(delivery_mode=2, headers={}).encode()
    mirror = Mirror(raw, broker.dialect)

    await broker.publish(mirror.raw)
    letter = await broker.letter()

    mirror.die(letter, "main", "expired")
    mirror.must_equal(letter)


@pytest.mark.parametrize("expiration", ["1", "001", "+1"])
async def test_an_expired_message_loses_its_expiration_and_notes_it(broker: Broker, expiration: str) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead")
    mirror = Mirror(message(EVERY_TYPE, expiration=expiration, reply_to="r"), broker.dialect)

    await broker.publish(mirror.raw)
    letter = await broker.letter()

    mirror.die(letter, "main", "expired")
    mirror.must_equal(letter)


async def test_a_message_that_does_not_fit_dies_of_maxlen(broker: Broker) -> None:
    await broker.queue("main", {"x-max-length": 0}, exchange="", key="dead")
    await broker.queue("dead")
    mirror = Mirror(message(EVERY_TYPE, expiration="60000"), broker.dialect)

    await broker.publish(mirror.raw)
    letter = await broker.letter()

    mirror.die(letter, "main", "maxlen")
    mirror.must_equal(letter)


async def test_a_message_given_back_too_often_dies_of_its_delivery_limit(broker: Broker) -> None:
    await broker.queue("main", {"x-queue-type": "quorum", "x-delivery-limit": 1}, exchange="", key="dead")
    await broker.queue("dead")
    mirror = Mirror(message(EVERY_TYPE), broker.dialect)

    await broker.publish(mirror.raw)
    for _ in range(2):
        (await broker.next("main")).reject(requeue=True)
    letter = await broker.letter()

    mirror.die(letter, "main", "delivery_limit")
    mirror.must_equal(letter)


# Several deaths -------------------------------------------------------------------------------------


async def test_laps_are_counted_in_the_same_tables(broker: Broker) -> None:
    await broker.connection.declare_exchange("in", "topic")
    await broker.queue("main", exchange="", key="retry")
    await broker.queue("retry", {"x-message-ttl": 1}, exchange="", key="main")
    await broker.connection.bind_queue("main", "in", "order.#")
    mirror = Mirror(message(EVERY_TYPE, expiration="60000"), broker.dialect)

    await broker.publish(mirror.raw, "in", "order.created")
    (await broker.next("main")).reject()
    for lap in range(3):
        letter = await broker.next("main")
        came_by = ("in", ("order.created",)) if lap == 0 else ("", ("main",))
        mirror.die(letter, "main", "rejected", exchange=came_by[0], keys=came_by[1], dead_letter_key="retry")
        mirror.die(letter, "retry", "expired", keys=("retry",), dead_letter_key="main")
        mirror.must_equal(letter)
        letter.reject()


async def test_a_row_of_queues_is_written_in_the_order_of_the_version(broker: Broker) -> None:
    """3.10 turns the tail around at each death."""
    names = ["one", "two", "three", "four", "five"]
    await broker.queue("dead")
    for name, after in zip(names, [*names[1:], "dead"], strict=True):
        await broker.queue(name, {"x-message-ttl": 1}, exchange="", key=after)
    mirror = Mirror(message(), broker.dialect)

    await broker.publish(mirror.raw, key="one")
    letter = await broker.letter()

    for name in names:
        mirror.die(letter, name, "expired", keys=(name,))
    mirror.must_equal(letter)


async def test_one_queue_may_kill_for_several_reasons(broker: Broker) -> None:
    await broker.queue("main", {"x-message-ttl": 50}, exchange="", key="retry")
    await broker.queue("retry", exchange="", key="main")
    mirror = Mirror(message(), broker.dialect)

    await broker.publish(mirror.raw)
    for _ in range(2):
        (await broker.next("retry")).reject()
    letter = await broker.next("retry")

    for _ in range(2):
        mirror.die(letter, "main", "expired", dead_letter_key="retry")
        mirror.die(letter, "retry", "rejected", keys=("retry",), dead_letter_key="main")
    mirror.die(letter, "main", "expired", dead_letter_key="retry")
    mirror.must_equal(letter)


# What clients write themselves ----------------------------------------------------------------------


def _death(queue: str, reason: str, *more: tuple[bytes, RawValue], count: RawValue | None = None) -> RawValue:
    fields = [(b"reason", raw_text(reason)), (b"queue", raw_text(queue)), (b"time", raw_timestamp(1_600_000_000))]
    return raw_table([*fields, *more, *([(b"count", count)] if count is not None else [])])


MATCHING = _death("main", "rejected", (b"extra", b"b\x07"), count=raw_long(7))
OTHERS = [_death(name, "expired", (b"exchange", raw_text(name)), count=b"I\x00\x00\x00\x01") for name in "abc"]
FORGED = {
    "the same death": [MATCHING],
    "the same death, with a count of another type": [_death("main", "rejected", count=b"s\x00\x07")],
    "the same death without a count": [_death("main", "rejected")],
    "each death by itself, as before 3.6": [_death("main", "rejected"), _death("main", "rejected"), OTHERS[0]],
    "the same death among others": [OTHERS[0], MATCHING, OTHERS[1]],
    "other deaths": OTHERS,
    "one other death": [_death("else", "rejected", count=raw_long(1))],
    "one of them twice": [OTHERS[0], OTHERS[1], OTHERS[0], OTHERS[2]],
    "names as bytes": [_death("main", "rejected", count=raw_long(3)).replace(b"S", b"x")],
    "a death without a name": [raw_table([(b"count", raw_long(3))]), OTHERS[0]],
    "an empty array": [],
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
async def test_a_published_x_death_is_continued_or_replaced(broker: Broker, forged: list[RawValue]) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead", exchange="", key="main")
    headers = {b"x-death": raw_array(forged), b"x-first-death-queue": raw_text("forged"), b"mine": b"V"}
    mirror = Mirror(message(headers), broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.next("dead")
    mirror.die(letter, "main", "rejected")
    mirror.must_equal(letter)

    letter.reject()
    letter = await broker.next("main")
    mirror.die(letter, "dead", "rejected", keys=("dead",), dead_letter_key="main")
    mirror.must_equal(letter)


@pytest.mark.parametrize("garbage", ["text", 7, None, {"a": 1}, True], ids=str)
async def test_an_x_death_that_is_no_array_is_replaced(broker: Broker, garbage: FieldValue) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead", exchange="", key="main")
    headers = {b"x-death": encode_value(garbage), b"x-first-death-reason": raw_text("forged")}
    mirror = Mirror(message(headers, expiration="60000"), broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.next("dead")
    mirror.die(letter, "main", "rejected")
    mirror.must_equal(letter)

    letter.reject()
    letter = await broker.next("main")
    mirror.die(letter, "dead", "rejected", keys=("dead",), dead_letter_key="main")
    mirror.must_equal(letter)


async def test_first_and_last_deaths_that_a_client_wrote_are_replaced(broker: Broker) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead")
    headers = {
        f"x-{which}-death-{what}".encode(): b"b\x01"
        for which in ("first", "last")
        for what in ("queue", "reason", "exchange")
    }
    mirror = Mirror(message(headers), broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.letter()

    mirror.die(letter, "main", "rejected")
    mirror.must_equal(letter)


async def test_a_message_published_again_begins_anew_or_goes_on(broker: Broker) -> None:
    await broker.queue("main", exchange="", key="dead")
    await broker.queue("dead")
    await broker.publish(message())
    (await broker.next("main")).reject()
    mirror = Mirror((await broker.letter()).raw_properties, broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.letter()

    mirror.die(letter, "main", "rejected")
    mirror.must_equal(letter)
    assert _x_death(letter)[0]["count"] == (2 if broker.dialect.believes_client_x_death else 1)


# CC and BCC -----------------------------------------------------------------------------------------


COPIES = {
    b"CC": raw_array([raw_text("copy"), raw_text("second copy")]),
    b"BCC": raw_array([raw_text("secret")]),
    b"a": b"V",
}


@pytest.mark.parametrize("key", [None, "dead"])
async def test_copies_are_among_the_routing_keys_and_secret_ones_are_not(broker: Broker, key: str | None) -> None:
    await broker.connection.declare_exchange("graves", "fanout")
    dead_letter: dict[str, Any] = {"exchange": "graves"} | ({"key": key} if key is not None else {})
    await broker.queue("main", **dead_letter)
    await broker.queue("dead", exchange="", key="main")
    await broker.connection.bind_queue("dead", "graves")
    mirror = Mirror(message(COPIES), broker.dialect)
    keys: tuple[str, ...] = ("main", "copy", "second copy")

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.next("dead")
    mirror.die(letter, "main", "rejected", keys=keys, dead_letter_key=key)
    mirror.must_equal(letter)
    assert find_header(letter.raw_properties, b"BCC") is None

    letter.reject()
    letter = await broker.next("main")
    keys = keys if key is None else (key,)
    mirror.die(letter, "dead", "rejected", exchange="graves", keys=keys, dead_letter_key="main")
    mirror.must_equal(letter)

    letter.reject()  # by its CC, if there is one, it would be routed no more: the explicit key was the last word
    letter = await broker.next("dead")
    mirror.die(letter, "main", "rejected", keys=("main",), dead_letter_key=key)
    mirror.must_equal(letter)


@pytest.mark.parametrize("name", ["copy", "secret"])
async def test_a_dead_letter_without_a_key_goes_to_the_copies_too_the_secret_ones_included(
    broker: Broker, name: str
) -> None:
    await broker.connection.declare_exchange("graves", "direct")
    await broker.queue("main", exchange="graves")
    await broker.queue("dead")
    await broker.connection.bind_queue("dead", "graves", name)
    mirror = Mirror(message(COPIES), broker.dialect)

    await broker.publish(mirror.raw)
    (await broker.next("main")).reject()
    letter = await broker.letter()

    assert letter.routing_key == "main"
    mirror.die(letter, "main", "rejected", keys=("main", "copy", "second copy"), dead_letter_key=None)
    mirror.must_equal(letter)


# Cycles ---------------------------------------------------------------------------------------------


Visit = tuple[str, str]  # a queue and what the message dies of in it


class Circle:
    """Queues that dead-letter into each other by fanout. All dead letters also go to witnesses, who tell the way."""

    def __init__(self, broker: Broker, queues: Mapping[str, Arguments]) -> None:
        self.broker = broker
        self.queues = queues

    async def declare(self) -> None:
        await self.broker.queue("witnesses")
        for name, arguments in self.queues.items():
            await self.broker.connection.declare_exchange(f"after {name}", "fanout")
            await self.broker.queue(name, arguments, exchange=f"after {name}")
        names = list(self.queues)
        for name, after in zip(names, [*names[1:], names[0]], strict=True):
            await self.broker.connection.bind_queue(after, f"after {name}")
            await self.broker.connection.bind_queue("witnesses", f"after {name}")

    async def way(self, visits: int) -> list[Visit]:
        """The first visits of the one message there is. Witnesses of two queues may come in the wrong order."""
        letters = [_x_death(await self.broker.letter("witnesses")) for _ in range(visits)]
        letters.sort(key=lambda deaths: sum(death["count"] for death in deaths))
        return [_named(deaths[0]) for deaths in letters]


def until_cycle(visits: list[Visit], dialect: Dialect) -> list[Visit]:
    """How many of these visits there are before the message is dropped."""
    raw = message()
    deaths: tuple[Death, ...] = ()
    for number, (queue, reason) in enumerate(visits[:-1], start=1):
        raw, deaths = dead_letter_of(
            raw,
            deaths,
            queue=queue,
            reason=reason,
            exchange="",
            routing_keys=(),
            now=0,
            dead_letter_key=None,
            dialect=dialect,
        )
        if is_cycle(deaths, reason, visits[number][0]):
            return visits[:number]
    return visits


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
async def test_a_circle_of_expiring_queues_is_gone_round_once(broker: Broker, names: str) -> None:
    circle = Circle(broker, {name: {"x-message-ttl": 1} for name in names})
    await circle.declare()
    expected = until_cycle([(name, "expired") for name in names * 2], broker.dialect)
    assert len(expected) == len(names)

    for _ in range(2):  # by the time that the second has ended, the first has gone as far as it ever will
        await broker.publish(message(), key=names[0])
        assert await circle.way(len(expected)) == expected
    assert (await broker.connection.queue_info("witnesses")).messages == 0


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
async def test_a_circle_in_which_a_consumer_rejects_is_left_by_nobody_but_3_10(broker: Broker, names: str) -> None:
    """Between two rejects 3.10 allows one other queue: with two it loses count of who came first, and drops."""
    circle = Circle(broker, {name: {"x-message-ttl": 1} if name != "a" else {} for name in names})
    await circle.declare()
    planned = [(name, "rejected" if name == "a" else "expired") for name in names * 3]
    expected = until_cycle(planned, broker.dialect)
    assert (expected != planned) == (broker.dialect.believes_client_x_death and names != "ab")

    for _ in range(2):
        await broker.publish(message(), key="a")
        for _ in range(expected.count(("a", "rejected"))):
            (await broker.next("a")).reject()
        assert await circle.way(len(expected)) == expected
        if expected == planned:
            return
    assert (await broker.connection.queue_info("witnesses")).messages == 0


async def test_a_reject_before_protects_a_loop_of_expiring_queues_in_3_10_only(broker: Broker) -> None:
    """3.10 has turned the older deaths around, so that it finds the old reject before the older visit."""
    circle = Circle(broker, {"main": {"x-message-ttl": 200}, "retry": {"x-message-ttl": 1}})
    await circle.declare()
    planned = [("main", "rejected"), ("retry", "expired"), *[("main", "expired"), ("retry", "expired")] * 2]
    expected = until_cycle(planned, broker.dialect)
    assert (expected == planned) == broker.dialect.believes_client_x_death

    async with await broker.connection.consume("main", prefetch=1) as consumer:
        await broker.publish(message())
        (await anext(consumer)).reject()

    assert await circle.way(len(expected)) == expected
    if expected != planned:
        await broker.publish(message())
        assert await circle.way(2) == [("main", "expired"), ("retry", "expired")]
        assert (await broker.connection.queue_info("witnesses")).messages == 0


# Raw helpers that only these tests need -------------------------------------------------------------


def test_the_raw_message_of_these_tests_is_what_the_client_publishes() -> None:
    raw = b"\x20\x00" + join_table([(b"a", b"b\x01")])

    assert _Raw(raw).encode() == raw
