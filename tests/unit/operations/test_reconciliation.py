"""Which dead letters were moved already: decided by their ids, and by how many there should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.operations.pipeline import UNDER_WAY, WINDOW, in_flight
from redrive.operations.reconciliation import Reconciliation, key_of
from redrive.protocol.messages import Delivery
from redrive.recovery.history import HeaderNames
from redrive.wire.methods.basic import BasicGetOk
from redrive.wire.properties import Properties


def message(
    tag: int, body: str, message_id: str | None, redelivered: bool = True, *, dated: bool = True
) -> tuple[Delivery, Summary]:
    parked = {HeaderNames().reason: "exhausted", HeaderNames.PARKED_AT: "2026-01-01T00:00:00.000Z"}
    headers = parked if dated else {}
    raw = Properties(message_id=message_id, headers=headers).encode()
    got = BasicGetOk(delivery_tag=tag, redelivered=redelivered, exchange="", routing_key="q.dlq")
    delivery = Delivery.from_get(1, got, raw, body.encode())
    return delivery, read_summary(raw, delivery.body, "q.dlq", tag)


def reconciled(
    moved: str,
    queue: str,
    *,
    scope: int,
    named: bool = True,
    dated: bool = True,
    new: str = "",
    keeps_order: bool = True,
) -> tuple[list[int], int]:
    """Return the positions, from 1, of what was moved already, and how many of the others may be duplicated.

    Each letter is a message; a capital was never delivered before. `scope` messages were in the queue before `moved`
    were moved; those in `new` arrived since.
    """
    messages = [
        message(tag, body.lower(), f"m-{body.lower()}" if named else None, body.islower(), dated=dated)
        for tag, body in enumerate(queue, 1)
    ]
    ids = {body.lower(): letter.id for body, (_, letter) in zip(queue, messages, strict=True)}
    arrived = {ids[body] for body in new}
    reconciliation = Reconciliation(
        Counter(key_of(ids.get(body, body)) for body in moved),
        remaining=scope - len(moved),
        is_newer=lambda letter: letter.id in arrived,
        keeps_order=keeps_order,
    )
    for delivery, letter in messages:
        reconciliation.add(delivery, letter)
    found, doubtful = reconciliation.split_moved()
    return sorted(candidate.delivery_tag for candidate in found), doubtful


def test_messages_with_an_item_were_moved_already() -> None:
    assert reconciled("abc", "bcdef", scope=6) == ([1, 2], 0)


def test_nothing_was_moved_already_where_no_ack_was_lost() -> None:
    assert reconciled("abc", "def", scope=6) == ([], 0)


def test_what_arrived_since_is_not_counted() -> None:
    assert reconciled("ab", "bcdxyz", scope=4, new="xyz") == ([1], 0)


@pytest.mark.parametrize("keeps_order", [True, False])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("lost", range(4))
def test_of_identical_messages_only_the_surplus_was_moved_already(named: bool, lost: int, keeps_order: bool) -> None:
    moved, remaining = 3, 4
    queue = "a" * (lost + remaining)

    found, doubtful = reconciled("a" * moved, queue, scope=moved + remaining, named=named, keeps_order=keeps_order)

    assert (found, doubtful) == ([*range(1, lost + 1)], 0)


def test_a_copy_that_was_not_moved_is_sent_though_the_other_was_moved() -> None:
    assert reconciled("ab", "acd", scope=5) == ([], 1)
    assert reconciled("ab", "bacd", scope=5) == ([1], 1)


def test_where_others_removed_messages_what_is_not_proven_is_sent_and_counted() -> None:
    assert reconciled("abc", "bcde", scope=6) == ([1], 1)


def test_a_message_without_id_and_time_of_death_is_sent_again_rather_than_lost() -> None:
    """It could have arrived since, with the content of one that was moved."""
    assert reconciled("abc", "bcdef", scope=6, named=False, dated=False) == ([], 2)
    assert reconciled("abc", "bcdef", scope=6, dated=False) == ([1, 2], 0)


def test_a_message_of_a_quorum_queue_that_was_never_delivered_was_not_moved() -> None:
    assert reconciled("aa", "Aab", scope=4, keeps_order=False) == ([2], 0)


def test_where_order_is_lost_messages_without_a_copy_come_first() -> None:
    assert reconciled("aab", "abcd", scope=6, keeps_order=False) == ([2], 0)


@given(st.text("abc", max_size=12), st.booleans(), st.data())
def test_whatever_acks_are_lost_each_message_is_sent_as_often_as_it_was_there(
    original: str, named: bool, data: st.DataObject
) -> None:
    """A queue that keeps its order, moved from the front, whose last acks are lost."""
    moved = data.draw(st.integers(0, len(original)))
    lost = data.draw(st.integers(0, moved))
    queue = original[moved - lost :]

    acked, _ = reconciled(original[:moved], queue, scope=len(original), named=named)

    assert len(acked) == lost
    sent = Counter(original[:moved]) + Counter(without(queue, acked))
    assert sent == Counter(original)


def without(queue: str, positions: Sequence[int]) -> str:
    return "".join(body for position, body in enumerate(queue, 1) if position not in positions)


def test_the_first_five_losses_of_an_operation_leave_at_most_one_window_possibly_duplicated() -> None:
    lost = 0
    for _ in range(5):
        lost += in_flight(lost)

    assert lost <= WINDOW
    assert in_flight(lost) == UNDER_WAY
