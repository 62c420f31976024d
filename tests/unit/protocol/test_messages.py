from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.errors import AlreadySettled, RemoteProtocolError, ReplyCode
from redrive.protocol.messages import Delivery, Publication, ack_all, check_route, route_exchange, route_key
from redrive.wire.methods.basic import BasicDeliver, BasicGetOk, BasicPublish
from redrive.wire.properties import Properties

PROPERTIES = Properties(message_id="m1", headers={"x-retries": 2})


class Notebook:
    """A settler that writes down what it is told. `listens` is whether the broker can still be told."""

    def __init__(self, listens: bool = True) -> None:
        self.listens = listens
        self.notes: list[tuple[object, ...]] = []

    @property
    def is_open(self) -> bool:
        return self.listens

    def ack(self, delivery_tag: int) -> bool:
        self.notes.append(("ack", delivery_tag))
        return self.listens

    def ack_all(self, delivery_tags: list[int]) -> bool:
        self.notes.append(("ack", *delivery_tags))
        return self.listens

    def nack(self, delivery_tag: int, requeue: bool) -> bool:
        self.notes.append(("nack", delivery_tag, requeue))
        return self.listens

    def reject(self, delivery_tag: int, requeue: bool) -> bool:
        self.notes.append(("reject", delivery_tag, requeue))
        return self.listens


def deliver(**fields: object) -> Delivery:
    method = BasicDeliver(**({"consumer_tag": "c1", "delivery_tag": 7, "exchange": "e", "routing_key": "k"} | fields))  # type: ignore[arg-type]
    return Delivery(3, method.encode(), PROPERTIES.encode(), b"body")


# Deliveries -------------------------------------------------------------------------------------------------------


def test_a_delivery_says_what_the_broker_said() -> None:
    delivery = deliver(redelivered=True)

    assert (delivery.channel, delivery.consumer_tag, delivery.delivery_tag) == (3, "c1", 7)
    assert (delivery.redelivered, delivery.exchange, delivery.routing_key) == (True, "e", "k")
    assert delivery.body == b"body"


@pytest.mark.parametrize(
    "name", ["", "zoë", "x" * 255, "not \udcff UTF-8"], ids=["empty", "UTF-8", "long", "odd bytes"]
)
def test_names_survive_whatever_they_are_made_of(name: str) -> None:
    delivery = deliver(exchange=name, routing_key=name)

    assert (delivery.exchange, delivery.routing_key) == (name, name)


def test_properties_are_decoded_once_and_when_first_asked_for() -> None:
    delivery = deliver()

    assert delivery.properties == PROPERTIES
    assert delivery.properties is delivery.properties


def test_properties_that_are_nonsense_harm_only_who_looks_at_them() -> None:
    delivery = Delivery(1, BasicDeliver(delivery_tag=1).encode(), b"\xff\xff", b"body")

    assert delivery.body == b"body"
    with pytest.raises(RemoteProtocolError) as refusal:
        _ = delivery.properties
    assert refusal.value.code is ReplyCode.FRAME_ERROR


def test_a_message_that_was_fetched_is_a_delivery_without_a_consumer() -> None:
    got = BasicGetOk(delivery_tag=9, redelivered=True, exchange="e", routing_key="k", message_count=4)

    delivery = Delivery.from_get(3, got, PROPERTIES.encode(), b"body")

    assert (delivery.channel, delivery.consumer_tag, delivery.delivery_tag) == (3, "", 9)
    assert (delivery.redelivered, delivery.exchange, delivery.routing_key) == (True, "e", "k")
    assert (delivery.properties, delivery.body, delivery.settled) == (PROPERTIES, b"body", True)


@pytest.mark.parametrize("cut", range(4, len(BasicDeliver(consumer_tag="c", exchange="e", routing_key="k").encode())))
def test_a_delivery_that_is_cut_short_is_a_syntax_error(cut: int) -> None:
    payload = BasicDeliver(consumer_tag="c", exchange="e", routing_key="k").encode()

    with pytest.raises(RemoteProtocolError) as refusal:
        Delivery(1, payload[:cut], b"\x00\x00", b"")

    assert refusal.value.code is ReplyCode.FRAME_ERROR


def test_a_delivery_with_something_behind_its_routing_key_is_a_syntax_error() -> None:
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        Delivery(1, BasicDeliver().encode() + b"!", b"\x00\x00", b"")


# Settling ---------------------------------------------------------------------------------------------------------

Settle = Callable[[Delivery], bool]
WAYS: dict[str, tuple[Settle, tuple[object, ...]]] = {
    "ack": (Delivery.ack, ("ack", 7)),
    "nack": (Delivery.nack, ("nack", 7, True)),
    "nack without requeue": (lambda delivery: delivery.nack(requeue=False), ("nack", 7, False)),
    "reject": (Delivery.reject, ("reject", 7, False)),
    "reject with requeue": (lambda delivery: delivery.reject(requeue=True), ("reject", 7, True)),
}


@pytest.mark.parametrize(("settle", "note"), WAYS.values(), ids=WAYS)
def test_settling_tells_whoever_it_was_entrusted_to(settle: Settle, note: tuple[object, ...]) -> None:
    notebook = Notebook()
    delivery = deliver()
    delivery.attach(notebook)

    settled = [delivery.settled, settle(delivery), delivery.settled]

    assert settled == [False, True, True]
    assert notebook.notes == [note]


def entrusted(notebook: Notebook, *tags: int) -> list[Delivery]:
    deliveries = [deliver(delivery_tag=tag) for tag in tags]
    for delivery in deliveries:
        delivery.attach(notebook)
    return deliveries


def test_many_are_acked_by_one_word_to_each_whom_they_were_entrusted_to() -> None:
    one, other = Notebook(), Notebook()
    deliveries = [*entrusted(one, 1, 2), *entrusted(other, 1), *entrusted(one, 3)]

    ack_all(deliveries)

    assert (one.notes, other.notes) == ([("ack", 1, 2), ("ack", 3)], [("ack", 1)])
    assert all(delivery.settled for delivery in deliveries)


def test_none_at_all_is_no_word() -> None:
    ack_all([])


def test_one_that_was_settled_before_does_not_keep_the_others_from_being_acked() -> None:
    notebook = Notebook()
    deliveries = entrusted(notebook, 1, 2, 3)
    deliveries[1].nack()

    with pytest.raises(AlreadySettled, match="Delivery 2"):
        ack_all(deliveries)

    assert notebook.notes == [("nack", 2, True), ("ack", 1, 3)]


@pytest.mark.parametrize("settle", [settle for settle, _ in WAYS.values()], ids=WAYS)
def test_a_delivery_is_settled_once(settle: Settle) -> None:
    notebook = Notebook()
    delivery = deliver()
    delivery.attach(notebook)
    delivery.ack()

    with pytest.raises(AlreadySettled, match="acked, nacked or rejected once"):
        settle(delivery)

    assert notebook.notes == [("ack", 7)]


@pytest.mark.parametrize("settle", [settle for settle, _ in WAYS.values()], ids=WAYS)
def test_settling_too_late_says_so(settle: Settle) -> None:
    delivery = deliver()
    delivery.attach(Notebook(listens=False))

    assert settle(delivery) is False


def test_a_delivery_whose_channel_has_ended_is_taken_back_until_it_is_settled() -> None:
    delivery, other = deliver(), deliver()
    delivery.attach(Notebook(listens=False))
    other.attach(Notebook())

    assert (delivery.is_taken_back, other.is_taken_back, deliver().is_taken_back) == (True, False, False)
    delivery.ack()
    assert not delivery.is_taken_back


def test_a_delivery_introduces_itself() -> None:
    delivery = deliver(redelivered=True)

    assert repr(delivery) == "<Delivery 7 on channel 3 exchange='e' key='k' 4 bytes redelivered settled>"
    delivery.attach(Notebook())
    assert repr(delivery).endswith("redelivered>")


# Publications -------------------------------------------------------------------------------------------------------


def publish(**fields: object) -> Publication:
    return Publication(3, BasicPublish(**fields).encode(), PROPERTIES.encode(), b"body")  # type: ignore[arg-type]


@pytest.mark.parametrize("mandatory", [True, False])
@pytest.mark.parametrize("immediate", [True, False])
def test_a_publication_says_what_the_client_said(mandatory: bool, immediate: bool) -> None:
    publication = publish(exchange="e", routing_key="k", mandatory=mandatory, immediate=immediate)

    assert (publication.channel, publication.exchange, publication.routing_key) == (3, "e", "k")
    assert (publication.mandatory, publication.immediate) == (mandatory, immediate)
    assert (publication.raw_properties, publication.body) == (PROPERTIES.encode(), b"body")


def test_a_publication_passes_its_route_on_byte_for_byte() -> None:
    assert publish(exchange="orders", routing_key="\udcff").route == b"\x06orders\x01\xff"


@pytest.mark.parametrize("cut", range(4, len(BasicPublish(exchange="e", routing_key="k").encode())))
def test_a_publication_that_is_cut_short_is_a_syntax_error(cut: int) -> None:
    payload = BasicPublish(exchange="e", routing_key="k").encode()

    with pytest.raises(RemoteProtocolError) as refusal:
        Publication(1, payload[:cut], b"\x00\x00", b"")

    assert refusal.value.code is ReplyCode.FRAME_ERROR


def test_a_publication_introduces_itself() -> None:
    assert repr(publish(exchange="e", routing_key="k")) == "<Publication on channel 3 exchange='e' key='k' 4 bytes>"


# Routes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [b"\x00\x00", b"\x01e\x01k", b"\x00\x02kk", b"\x02ee\x00"])
def test_a_route_is_two_short_strings(route: bytes) -> None:
    check_route(route)

    assert route == b"%c%b%c%b" % (
        len(route_exchange(route)), route_exchange(route).encode(), len(route_key(route)), route_key(route).encode()
    )  # fmt: skip


@pytest.mark.parametrize("route", [b"", b"\x00", b"\x01", b"\x01e", b"\x01e\x02k", b"\x00\x00!", b"\xff\x00"])
def test_anything_else_is_no_route(route: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        check_route(route)
