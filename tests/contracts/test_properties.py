"""All 14 properties and every type of header arrive as they were sent; a header alone, byte for byte."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest

from contracts.observing import got, take
from redrive.client import Connection, Delivery, Properties
from redrive.wire.properties import PERSISTENT, decode_properties
from redrive.wire.values import FieldValue

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
LOGIN = "guest"  # a broker compares `user_id` with the user of the connection

EVERY_PROPERTY = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {"tenant": "acme", "attempt": 3},
    "delivery_mode": PERSISTENT,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": NOON,
    "type": "order.placed",
    "user_id": LOGIN,
    "app_id": "billing",
    "cluster_id": "eu-1",
}


async def sent_and_got(connection: Connection, properties: Properties) -> Delivery:
    await connection.declare_queue("orders")
    await connection.publish("", "orders", b"body", properties)
    return await got(connection, "orders")


def canonical(properties: Properties) -> bytes:
    """Encoded, with the headers in the order of their names: RabbitMQ 4.x sorts them, 3.10 keeps their order."""
    headers = None if properties.headers is None else dict(sorted(properties.headers.items()))
    return replace(properties, headers=headers).encode()


def test_all_fourteen_are_tested() -> None:
    assert len(EVERY_PROPERTY) == 14


async def test_all_fourteen_properties_arrive_as_they_were_sent(connection: Connection) -> None:
    sent = Properties(**EVERY_PROPERTY)  # type: ignore[arg-type]

    delivery = await sent_and_got(connection, sent)

    assert delivery.properties == sent
    assert canonical(delivery.properties) == canonical(sent)


@pytest.mark.parametrize("name", EVERY_PROPERTY)
async def test_each_property_arrives_alone(connection: Connection, name: str) -> None:
    sent = Properties(**{"delivery_mode": PERSISTENT, name: EVERY_PROPERTY[name]})  # type: ignore[arg-type]

    delivery = await sent_and_got(connection, sent)

    assert canonical(delivery.properties) == canonical(sent)


async def test_properties_arrive_the_same_at_a_consumer(connection: Connection) -> None:
    sent = Properties(**EVERY_PROPERTY)  # type: ignore[arg-type]
    await connection.declare_queue("orders")
    await connection.publish("", "orders", b"body", sent)

    async with await connection.consume("orders") as consumer:
        [delivery] = await take(consumer, 1)
        delivery.ack()

    assert canonical(delivery.properties) == canonical(sent)


async def test_properties_arrive_the_same_through_a_quorum_queue(connection: Connection) -> None:
    sent = Properties(**EVERY_PROPERTY)  # type: ignore[arg-type]
    await connection.declare_queue("safe", arguments={"x-queue-type": "quorum"})
    await connection.publish("", "safe", b"body", sent)

    arrived = (await got(connection, "safe")).properties

    # RabbitMQ 3.10 counts from the first delivery on (x-delivery-count 0), 4.x from the first redelivery.
    headers = {name: value for name, value in (arrived.headers or {}).items() if name != "x-delivery-count"}
    assert replace(arrived, headers=headers) == sent


async def test_an_empty_text_is_not_the_same_as_none(connection: Connection) -> None:
    sent = Properties(delivery_mode=PERSISTENT, correlation_id="", message_id=None, headers={})

    delivery = await sent_and_got(connection, sent)

    assert (delivery.properties.correlation_id, delivery.properties.message_id) == ("", None)
    assert delivery.properties.headers == {}


@pytest.mark.parametrize("name", ["content_type", "correlation_id", "message_id", "type", "app_id"])
async def test_text_of_255_bytes_fits_into_a_property(connection: Connection, name: str) -> None:
    longest = "ü" * 127 + "x"

    delivery = await sent_and_got(connection, Properties(**{name: longest}))  # type: ignore[arg-type]

    assert getattr(delivery.properties, name) == longest


# Headers ----------------------------------------------------------------------------------------------

VALUES: dict[str, FieldValue] = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "32 bits": (1 << 31) - 1,
    "64 bits": (1 << 63) - 1,
    "least": -(1 << 63),
    "float": 0.1,
    "decimal": Decimal("-1234.5"),
    "text": "größer als 🐇",
    "no text": "",
    "bytes": b"\x00\xff\xfe",
    "time": NOON,
    "nothing": None,
    "list": [1, "two", None, [3, [4]]],
    "no list": [],
    "table": {"nested": {"deeper": {"still": "here"}}},
    "no table": {},
    "list of tables": [{"queue": "orders", "count": 1}, {"queue": "retry", "count": 2}],
    "long text": "x" * 10_000,
    "name with a space and ü": 1,
    "n" * 255: 1,
}


@pytest.mark.parametrize("name", VALUES, ids=lambda name: name[:20])
async def test_a_header_of_any_type_arrives_as_it_was_sent(connection: Connection, name: str) -> None:
    sent = Properties(delivery_mode=PERSISTENT, headers={name: VALUES[name]})

    delivery = await sent_and_got(connection, sent)

    assert delivery.properties.headers == {name: VALUES[name]}
    assert delivery.raw_properties == sent.encode()


async def test_all_headers_together_arrive_as_they_were_sent(connection: Connection) -> None:
    sent = Properties(delivery_mode=PERSISTENT, headers=VALUES)

    delivery = await sent_and_got(connection, sent)

    assert canonical(delivery.properties) == canonical(sent)


class Raw(Properties):
    """Properties as another client would write them."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__(delivery_mode=PERSISTENT)
        self.__dict__["raw"] = encoded

    def encode(self) -> bytes:
        raw: bytes = self.__dict__["raw"]
        return raw


def with_header(value: bytes) -> bytes:
    """Encoded properties of a persistent message with one header, `x`, of this encoded value."""
    table = b"\x01x" + value
    return b"\x30\x00" + len(table).to_bytes(4, "big") + table + bytes((PERSISTENT,))


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"t\x01", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", (1 << 32) - 1),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xff", -1),
        (b"L\x00\x00\x00\x00\x00\x00\x00\x07", 7),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"d\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"D\x02\x00\x00\x00\x7b", Decimal("1.23")),
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),  # text that is no UTF-8
        (b"x\x00\x00\x00\x02hi", b"hi"),
        (b"A\x00\x00\x00\x04t\x01t\x00", [True, False]),
        (b"T\x00\x00\x00\x00\x00\x00\x00\x01", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        (b"T\x00\x00\xff\xff\xff\xff\xff\xff", (1 << 48) - 1),  # milliseconds, by mistake: beyond the calendar
        (b"F\x00\x00\x00\x04\x01yt\x01", {"y": True}),
        (b"V", None),
    ],
    ids=lambda value: repr(value) if isinstance(value, bytes) else "",
)
async def test_a_header_of_any_type_that_others_write_arrives_and_is_understood(
    connection: Connection, encoded: bytes, value: FieldValue
) -> None:
    sent = with_header(encoded)
    assert decode_properties(sent).headers == {"x": value}

    delivery = await sent_and_got(connection, Raw(sent))

    assert delivery.properties.headers == {"x": value}


async def test_headers_just_within_a_frame_arrive(connection: Connection) -> None:
    await connection.declare_queue("orders")
    sent = Properties(delivery_mode=PERSISTENT, headers={"story": "x" * 131_000})

    await connection.publish("", "orders", b"body", sent)

    assert (await got(connection, "orders")).properties == sent
