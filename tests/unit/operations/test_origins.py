"""Which queue a dead letter belongs to, whatever its headers say."""

from typing import Any

import pytest

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.operations.origins import NO_SOURCE, origin_of
from redrive.topology.dlq_detection import Feeders
from redrive.wire.properties import Properties

UNKNOWN = Feeders()
ORDERS = Feeders({"orders.dlq": frozenset({"orders"})}, frozenset({"orders.dlq"}))
SHARED = Feeders({"dead": frozenset({"orders", "payments"})}, frozenset({"dead"}))
WAITING = Feeders(
    {"dead": frozenset({"wait"}), "wait": frozenset({"orders", "payments"})}, frozenset({"dead"}), frozenset({"wait"})
)
GRAVEYARD = Feeders(
    {"graveyard": frozenset({"orders.dlq"}), "orders.dlq": frozenset({"orders"})},
    frozenset({"graveyard", "orders.dlq"}),
)


def letter(*deaths: tuple[str, str], named: str | None = None, parked: bool = False, queue: str = "dead") -> Summary:
    headers: dict[str, Any] = {"x-redrive-queue": named, "x-redrive-reason": "exhausted" if parked else None}
    if deaths:
        headers["x-death"] = [{"queue": where, "reason": reason, "count": 1} for where, reason in deaths]
    raw = Properties(headers={name: value for name, value in headers.items() if value is not None}).encode()
    return read_summary(raw, b"", queue, 1)


def origin(of: Summary, feeders: Feeders, *, restricted: bool = True) -> str | None:
    return origin_of(of, feeders, restricted=restricted).queue


@pytest.mark.parametrize("parked", [True, False])
@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_the_newest_death_counts_against_header_and_older_deaths(reason: str, parked: bool) -> None:
    forged = letter(("orders", reason), ("payments", "rejected"), named="payments", parked=parked)

    assert origin(forged, SHARED) == "orders"


def test_a_wait_is_followed_back_to_the_queue_that_sent_it_there() -> None:
    assert origin(letter(("wait", "expired"), ("orders", "rejected")), WAITING) == "orders"
    forged = letter(("wait", "expired"), ("orders", "expired"), ("payments", "rejected"), named="payments")
    assert origin(forged, WAITING) == "orders"


def test_a_record_that_was_evicted_from_its_dead_letter_queue_belongs_to_a_queue_of_that() -> None:
    evicted = letter(("orders.dlq", "maxlen"), named="orders", parked=True, queue="graveyard")
    forged = letter(("orders.dlq", "maxlen"), named="payments", parked=True, queue="graveyard")

    assert origin(evicted, GRAVEYARD) == "orders"
    assert origin(forged, GRAVEYARD) == "orders.dlq"


def test_a_parked_message_goes_to_the_queue_in_its_header_if_that_feeds_this_queue() -> None:
    assert origin(letter(named="orders", parked=True, queue="orders.dlq"), ORDERS) == "orders"


@pytest.mark.parametrize("restricted", [True, False])
def test_anything_else_is_skipped_with_the_reason(restricted: bool) -> None:
    forged = letter(named="payments", parked=True, queue="orders.dlq")

    assert origin_of(forged, ORDERS, restricted=restricted) == (
        None,
        "its header names payments, which does not dead-letter to this queue; name it with --to to send it there",
    )
    by_death = letter(("payments", "rejected"), queue="orders.dlq")
    assert origin_of(by_death, ORDERS, restricted=restricted).why.startswith("its x-death names payments, which")


@pytest.mark.parametrize("restricted", [True, False])
def test_a_message_that_names_no_queue_belongs_to_the_only_queue_that_feeds_its_dead_letter_queue(
    restricted: bool,
) -> None:
    behind_a_wait = Feeders(
        {"dead": frozenset({"wait"}), "wait": frozenset({"orders"})}, frozenset({"dead"}), frozenset({"wait"})
    )

    assert origin(letter(queue="orders.dlq"), ORDERS, restricted=restricted) == "orders"
    assert origin(letter(queue="graveyard"), GRAVEYARD, restricted=restricted) == "orders"
    assert origin(letter(), behind_a_wait, restricted=restricted) == "orders"


@pytest.mark.parametrize("feeders", [SHARED, WAITING], ids=["shared", "waiting"])
def test_a_message_that_names_no_queue_is_skipped_if_several_queues_feed_its_dead_letter_queue(
    feeders: Feeders,
) -> None:
    assert origin_of(letter(), feeders, restricted=False) == (None, NO_SOURCE)


def test_a_name_in_a_reason_is_fit_to_be_printed() -> None:
    why = origin_of(letter(named="pay\x1b[2J\n\u202ements", queue="orders.dlq"), ORDERS, restricted=True).why

    assert why.isprintable()


def test_where_nothing_is_known_an_unrestricted_operator_gets_what_the_message_names() -> None:
    assert origin(letter(named="orders", parked=True), UNKNOWN, restricted=False) == "orders"
    assert origin(letter(("orders", "rejected"), named="payments"), UNKNOWN, restricted=False) == "orders"
    assert origin(letter(("wait", "expired"), ("orders", "rejected")), UNKNOWN, restricted=False) == "orders"
    assert origin(letter(named="orders", parked=True), UNKNOWN, restricted=True) is None
    assert origin_of(letter(), UNKNOWN, restricted=False) == (None, NO_SOURCE)


def test_where_nothing_is_known_header_and_broker_must_not_contradict_each_other() -> None:
    unclear = origin_of(letter(("orders", "expired"), named="payments"), UNKNOWN, restricted=False)

    assert unclear == (None, "its header names payments, and x-death orders: name one with --to")


def test_the_name_of_the_dead_letter_queue_is_believed() -> None:
    assert origin(letter(named="orders", parked=True, queue="orders.dlq"), UNKNOWN, restricted=True) == "orders"
    assert origin(letter(named="payments", parked=True, queue="orders.dlq"), UNKNOWN, restricted=True) is None
