"""The second witness: what real RabbitMQ brokers said (see `golden/README.md`), understood and written again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redrive.errors import RemoteProtocolError
from redrive.wire.frames import BODY, CONTENT_HEAD, END_OCTET, HEAD, HEADER, HEARTBEAT, METHOD
from redrive.wire.method import Method, decode_method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsumeOk,
    BasicDeliver,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicReturn,
)
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelFlowOk, ChannelOpenOk
from redrive.wire.methods.connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    ConnectionUpdateSecretOk,
)
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.values import FarFuture

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDINGS = sorted(GOLDEN.glob("rabbitmq-*/*.bin"))


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


@dataclass(frozen=True)
class Broker:
    """What one version of RabbitMQ said."""

    folder: Path

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.folder.name.removeprefix("rabbitmq-").split(".")))

    def methods(self, name: str) -> list[Method]:
        return [decode_method(frame.payload) for frame in self._frames(name) if frame.kind == METHOD]

    def raw_properties(self, name: str) -> list[bytes]:
        return [frame.payload[CONTENT_HEAD.size :] for frame in self._frames(name) if frame.kind == HEADER]

    def properties(self, name: str) -> list[Properties]:
        return [decode_properties(raw) for raw in self.raw_properties(name)]

    def bodies(self, name: str) -> list[bytes]:
        return [frame.payload for frame in self._frames(name) if frame.kind == BODY]

    def _frames(self, name: str) -> Iterator[Frame]:
        return frames_in((self.folder / f"{name}.bin").read_bytes())


def frames_in(raw: bytes) -> Iterator[Frame]:
    pos = 0
    while pos < len(raw):
        kind, channel, size = HEAD.unpack_from(raw, pos)
        start = pos + HEAD.size
        pos = start + size + 1
        assert raw[pos - 1] == END_OCTET
        yield Frame(kind, channel, raw[start : pos - 1])


@pytest.fixture(params=sorted(GOLDEN.glob("rabbitmq-*")), ids=lambda folder: folder.name)
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param)


# Written again, byte for byte ---------------------------------------------------------------------

# RabbitMQ 3.10 cuts this text inside a letter, which nobody can print and Redrive does not repeat.
CUT_INSIDE_A_LETTER = b"\xc3..."


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_method_is_written_as_rabbitmq_wrote_it(recording: Path) -> None:
    for frame in frames_in(recording.read_bytes()):
        if frame.kind == METHOD and CUT_INSIDE_A_LETTER not in frame.payload:
            assert decode_method(frame.payload).encode() == frame.payload


# Tables in which RabbitMQ, or the hand that made the table, chose other types than Redrive does; and flags that mean
# nothing, and a table that is nested too deep. Each of them has a test of its own below.
WITH_OTHER_TYPES = {"dead-letters", "field-types", "field-types-dead", "odd"}


@pytest.mark.parametrize(
    "recording",
    [path for path in RECORDINGS if path.stem not in WITH_OTHER_TYPES],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_properties_are_written_as_rabbitmq_wrote_them(recording: Path) -> None:
    for raw in Broker(recording.parent).raw_properties(recording.stem):
        assert decode_properties(raw).encode() == raw


@pytest.mark.parametrize("name", ["dead-letters", "field-types", "field-types-dead"])
def test_properties_with_other_types_mean_the_same_when_written_again(broker: Broker, name: str) -> None:
    for properties in broker.properties(name):
        assert decode_properties(properties.encode()) == properties


def test_x_death_differs_only_in_the_width_of_its_counts(broker: Broker) -> None:
    """RabbitMQ counts in 64 bits, `l`; Redrive writes a number that fits 32 bits as `I`, four bytes shorter."""
    fresh, *dead = broker.raw_properties("dead-letters")
    assert decode_properties(fresh).encode() == fresh
    for raw in dead:
        assert raw.count(b"\x05countl") == 2
        assert len(decode_properties(raw).encode()) == len(raw) - 2 * 4


# The conversations --------------------------------------------------------------------------------


def test_the_handshake(broker: Broker) -> None:
    start, *rest = broker.methods("handshake")
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert b"PLAIN" in start.mechanisms.split()
    assert start.locales == b"en_US"
    assert rest == [
        ConnectionTune(channel_max=2047, frame_max=131_072, heartbeat=60),
        ConnectionOpenOk(),
        ConnectionUpdateSecretOk(),
        ChannelOpenOk(),
        ChannelFlowOk(active=True),
        ChannelCloseOk(),
        ConnectionCloseOk(),
    ]


def test_the_server_introduces_itself(broker: Broker) -> None:
    start = broker.methods("handshake")[0]
    assert isinstance(start, ConnectionStart)
    server: dict[str, Any] = dict(start.server_properties)
    assert server["product"] == "RabbitMQ"
    assert tuple(map(int, server["version"].split(".")))[:2] == broker.version
    assert server["capabilities"] == dict.fromkeys(
        [
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
        ],
        True,
    )


def test_declarations_are_answered_one_by_one(broker: Broker) -> None:
    assert [method.name for method in broker.methods("declarations")] == [
        "exchange.declare-ok",
        "exchange.declare-ok",
        "exchange.bind-ok",
        "exchange.unbind-ok",
        "queue.declare-ok",
        "queue.declare-ok",
        "queue.bind-ok",
        "queue.unbind-ok",
        "queue.purge-ok",
        "queue.delete-ok",
        "exchange.delete-ok",
        "basic.qos-ok",
        "basic.recover-ok",
        "confirm.select-ok",
    ]


def test_a_queue_without_a_name_is_given_one(broker: Broker) -> None:
    _, _, _, _, named, unnamed, *_ = broker.methods("declarations")
    assert getattr(named, "queue", None) == "golden.declared"
    assert getattr(unnamed, "queue", "").startswith("amq.gen-")


def test_a_transaction_is_answered(broker: Broker) -> None:
    assert [method.name for method in broker.methods("transaction")] == [
        "tx.select-ok",
        "tx.commit-ok",
        "tx.rollback-ok",
    ]


def test_get_is_answered_with_a_message_or_with_nothing(broker: Broker) -> None:
    _, empty, first, again = broker.methods("get")
    assert empty == BasicGetEmpty()
    assert first == BasicGetOk(delivery_tag=1, routing_key="golden.get", message_count=1)
    assert again == BasicGetOk(delivery_tag=2, redelivered=True, routing_key="golden.get", message_count=1)
    assert broker.bodies("get") == [b"first", b"first"]


def test_a_consumer_is_served_and_cancelled(broker: Broker) -> None:
    _, consuming, delivery, cancelled, *_ = broker.methods("consume")
    assert consuming == BasicConsumeOk(consumer_tag="mine")
    assert delivery == BasicDeliver(consumer_tag="mine", delivery_tag=1, routing_key="golden.consume")
    assert cancelled == BasicCancelOk(consumer_tag="mine")
    assert broker.properties("consume") == [Properties(delivery_mode=2)]
    assert broker.bodies("consume") == [b"hello"]


def test_a_consumer_whose_queue_is_gone_is_cancelled_by_the_broker(broker: Broker) -> None:
    *_, consuming, cancel = broker.methods("consume")
    assert isinstance(consuming, BasicConsumeOk)
    assert consuming.consumer_tag.startswith("amq.ctag-")
    assert cancel == BasicCancel(consumer_tag=consuming.consumer_tag, no_wait=True)


def test_an_unroutable_message_is_returned_and_then_acked(broker: Broker) -> None:
    _, returned, ack, *_ = broker.methods("confirms")
    assert returned == BasicReturn(reply_code=312, reply_text="NO_ROUTE", routing_key="golden.nowhere")
    assert ack == BasicAck(delivery_tag=1)
    assert broker.properties("confirms") == [Properties(message_id="lost")]
    assert broker.bodies("confirms") == [b"nobody listens"]


def test_a_stored_message_is_acked_and_a_refused_one_nacked(broker: Broker) -> None:
    *_, ack, nack = broker.methods("confirms")
    assert ack == BasicAck(delivery_tag=2)
    assert isinstance(nack, BasicNack)
    assert nack.delivery_tag == 3


def test_a_body_comes_in_frames_of_frame_max(broker: Broker) -> None:
    bodies = broker.bodies("big-body")
    assert [len(body) for body in bodies] == [8192 - 8, 9000 - 8192 + 8]
    assert b"".join(bodies) == bytes(range(250)) * 36


def test_a_heartbeat_is_an_empty_frame_on_channel_0(broker: Broker) -> None:
    assert list(broker._frames("heartbeat")) == [(HEARTBEAT, 0, b"")]


def test_an_alarm_comes_and_goes(broker: Broker) -> None:
    assert broker.methods("blocked") == [ConnectionBlocked(reason="low on memory"), ConnectionUnblocked()]


# Messages -----------------------------------------------------------------------------------------


def test_all_properties_are_passed_on(broker: Broker) -> None:
    every, empty, none = broker.properties("properties")
    assert every == Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"tenant": "blue"},
        delivery_mode=2,
        priority=5,
        correlation_id="correlation",
        reply_to="answers",
        expiration="60000",
        message_id="m-1",
        timestamp=dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
        type="order.created",
        user_id="guest",
        app_id="shop",
        cluster_id="east",
    )
    assert empty == Properties(headers={}, message_id="", app_id="")
    assert none == Properties()


def test_a_dead_letter_carries_its_deaths_newest_first(broker: Broker) -> None:
    fresh, once, twice = (properties.headers for properties in broker.properties("dead-letters"))
    assert fresh == {"attempt": 1}
    for laps, headers in enumerate((once, twice), start=1):
        assert headers is not None
        deaths: Any = headers["x-death"]
        assert [without_time(death) for death in deaths] == [
            {
                "count": laps,
                "reason": "expired",
                "queue": "golden.work.retry",
                "exchange": "",
                "routing-keys": ["golden.work.retry"],
            },
            {
                "count": laps,
                "reason": "rejected",
                "queue": "golden.work",
                "exchange": "golden.events",
                "routing-keys": ["order.created"],
                "original-expiration": "60000",
            },
        ]


def without_time(death: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(death["time"], dt.datetime)
    return {name: value for name, value in death.items() if name != "time"}


def test_a_dead_letter_names_its_first_death_and_from_4_0_on_its_last(broker: Broker) -> None:
    headers = broker.properties("dead-letters")[1].headers
    assert headers is not None
    first = {f"x-first-death-{what}" for what in ("exchange", "queue", "reason")}
    last = {f"x-last-death-{what}" for what in ("exchange", "queue", "reason")}
    assert set(headers) == {"attempt", "x-death"} | first | (last if broker.version >= (4, 0) else set())


VALUES = [
    True,
    -1,
    255,
    -1,
    65_535,
    -1,
    (1 << 32) - 1,
    -1,
    -1,
    1.5,
    0.1,
    Decimal("-3.14"),
    "schön",
    b"\xff\xfe",
    b"\x00\xff",
    [1, None],
    dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
    FarFuture((1 << 64) - 1),
    {"a": 1},
    None,
]


def test_every_type_of_field_is_understood(broker: Broker) -> None:
    assert [properties.headers for properties in broker.properties("field-types")] == [
        {"value": value} for value in VALUES
    ]


def test_every_type_of_field_is_understood_after_a_death(broker: Broker) -> None:
    (dead,) = broker.properties("field-types-dead")
    assert dead.headers is not None
    assert [dead.headers[f"{number:02}"] for number in range(len(VALUES))] == VALUES


def test_types_are_passed_on_as_they_came_but_for_one(broker: Broker) -> None:
    """`L` is a synonym of `l`, and 4.x says `l`."""
    types = "".join(chr(raw[12]) for raw in broker.raw_properties("field-types"))
    assert types == ("tbBsuIilLfdDSSxATTFV" if broker.version < (4, 0) else "tbBsuIillfdDSSxATTFV")


def test_types_are_written_again_as_redrive_would_choose_them(broker: Broker) -> None:
    types = "".join(chr(properties.encode()[12]) for properties in broker.properties("field-types"))
    assert types == "tIIIIIlIIddDSxxATTFV"


def test_names_and_ids_that_are_not_utf8_are_passed_on_and_survive(broker: Broker) -> None:
    for raw, properties in zip(
        broker.raw_properties("odd")[:2],
        [Properties(headers={"\udcff\udcfe": 1}), Properties(message_id="\udcff\udcfeid")],
        strict=True,
    ):
        assert decode_properties(raw) == properties
        assert properties.encode() == raw


def test_a_routing_key_that_is_not_utf8_is_passed_on(broker: Broker) -> None:
    assert broker.methods("odd-routing-key") == [
        BasicGetOk(delivery_tag=1, exchange="golden.fanout", routing_key="\udcff\udcfe")
    ]


def test_flags_without_a_meaning_are_passed_on_by_3_10_and_removed_by_4(broker: Broker) -> None:
    flags = broker.raw_properties("odd")[2:4]
    assert flags == ([b"\x00\x02", b"\x00\x01"] if broker.version < (4, 0) else [b"\x00\x00", b"\x00\x00"])
    assert [decode_properties(raw) for raw in flags] == [Properties(), Properties()]


def test_a_table_nested_40_deep_is_passed_on_and_refused(broker: Broker) -> None:
    deep = broker.raw_properties("odd")[4]
    with pytest.raises(RemoteProtocolError, match="nested more than 32 deep"):
        decode_properties(deep)


# Refusals -----------------------------------------------------------------------------------------


def test_a_channel_is_closed_with_a_code_and_a_culprit(broker: Broker) -> None:
    assert broker.methods("refused-channels")[:3] == [
        ChannelClose(
            reply_code=404,
            reply_text="NOT_FOUND - no queue 'golden.missing' in vhost '/'",
            class_id=50,
            method_id=10,
        ),
        ChannelClose(
            reply_code=404,
            reply_text="NOT_FOUND - no exchange 'golden.missing' in vhost '/'",
            class_id=60,
            method_id=40,
        ),
        ChannelClose(
            reply_code=406,
            reply_text="PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'golden.passed' in vhost '/': "
            "received the value '1' of type 'signedint' but current is none",
            class_id=50,
            method_id=10,
        ),
    ]


def test_a_text_that_is_cut_inside_a_letter_is_still_read(broker: Broker) -> None:
    """3.10 cuts it; 4.x fails to, and ends the connection."""
    last = broker.methods("refused-channels")[3]
    if broker.version >= (4, 0):
        assert last == ConnectionClose(reply_code=541, reply_text="INTERNAL_ERROR")
    else:
        assert isinstance(last, ChannelClose)
        assert last.reply_text.endswith("é\N{REPLACEMENT CHARACTER}...")


def test_contents_that_rabbitmq_cannot_read_end_the_connection(broker: Broker) -> None:
    assert broker.methods("refused-contents") == [ConnectionClose(reply_code=541, reply_text="INTERNAL_ERROR")] * 5


def test_mistakes_end_the_connection_with_a_code_and_a_reason(broker: Broker) -> None:
    closes = broker.methods("refused-connections")
    assert [getattr(close, "reply_code", None) for close in closes] == [501, 501, 501, 505, 501, 505, 504, 320]
    assert getattr(closes[0], "reply_text", None) == "FRAME_ERROR - Malformed UTF-8 in shortstr"
    assert getattr(closes[-1], "reply_text", None) == "CONNECTION_FORCED - going home"
