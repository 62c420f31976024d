from __future__ import annotations

import pytest

from redrive.errors import RemoteProtocolError, ReplyCode
from redrive.protocol.confirms import ConfirmLedger, Pending


def message(
    waiter: str, *, exchange: str = "e", key: str = "k", properties: bytes = b"\x00\x00", body: bytes = b"body"
) -> Pending[str]:
    return Pending(exchange, key, properties, body, waiter)


def ledger_of(*waiters: str) -> ConfirmLedger[str]:
    ledger: ConfirmLedger[str] = ConfirmLedger()
    for waiter in waiters:
        ledger.add(message(waiter))
    return ledger


def settled(ledger: ConfirmLedger[str], tag: int, *, multiple: bool = False) -> list[str]:
    return [pending.waiter for pending in ledger.settle(tag, multiple)]


# Confirms ---------------------------------------------------------------------------------------------------------


def test_publishes_are_numbered_from_one() -> None:
    ledger: ConfirmLedger[str] = ConfirmLedger()

    assert [ledger.add(message("a")), ledger.add(message("b"))] == [1, 2]


def test_a_number_is_not_used_again_when_its_publish_is_answered() -> None:
    ledger = ledger_of("a")
    ledger.settle(1, multiple=False)

    assert ledger.add(message("b")) == 2


def test_a_single_confirm_answers_for_one() -> None:
    ledger = ledger_of("a", "b", "c")

    assert settled(ledger, 2) == ["b"]
    assert [pending.waiter for pending in ledger.abandon()] == ["a", "c"]


def test_a_multiple_confirm_answers_for_all_up_to_one_in_publishing_order() -> None:
    ledger = ledger_of("a", "b", "c")

    assert settled(ledger, 2, multiple=True) == ["a", "b"]
    assert [pending.waiter for pending in ledger.abandon()] == ["c"]


def test_confirms_may_come_in_any_order() -> None:
    ledger = ledger_of("a", "b", "c", "d")

    assert settled(ledger, 3) == ["c"]
    assert settled(ledger, 1) == ["a"]
    assert settled(ledger, 4, multiple=True) == ["b", "d"]
    assert len(ledger) == 0


def test_number_zero_with_multiple_answers_for_all() -> None:
    assert settled(ledger_of("a", "b"), 0, multiple=True) == ["a", "b"]


@pytest.mark.parametrize("multiple", [True, False])
def test_a_publish_is_answered_once(multiple: bool) -> None:
    ledger = ledger_of("a", "b")
    ledger.settle(2, multiple=True)

    assert settled(ledger, 2, multiple=multiple) == []


def test_number_zero_alone_answers_for_nothing() -> None:
    assert settled(ledger_of("a"), 0) == []


@pytest.mark.parametrize("multiple", [True, False])
def test_a_confirm_for_what_was_never_published_is_the_brokers_mistake(multiple: bool) -> None:
    ledger = ledger_of("a")

    with pytest.raises(RemoteProtocolError, match="a confirm for publish 2, but only 1 were made") as refusal:
        ledger.settle(2, multiple)

    assert refusal.value.code is ReplyCode.COMMAND_INVALID
    assert len(ledger) == 1


def test_when_the_channel_is_gone_exactly_the_unanswered_are_given_up() -> None:
    ledger = ledger_of("a", "b", "c")
    ledger.settle(2, multiple=False)

    assert [pending.waiter for pending in ledger.abandon()] == ["a", "c"]
    assert len(ledger) == 0


# Returns ------------------------------------------------------------------------------------------------------------


def blamed(ledger: ConfirmLedger[str], returned: Pending[str]) -> str | None:
    found = ledger.mark_returned(
        returned.exchange, returned.routing_key, returned.properties, returned.body, "NO_ROUTE"
    )
    return found.waiter if found is not None else None


def ledger_with(*publishes: Pending[str]) -> ConfirmLedger[str]:
    ledger: ConfirmLedger[str] = ConfirmLedger()
    for pending in publishes:
        ledger.add(pending)
    return ledger


def test_a_returned_publish_is_still_to_be_confirmed_and_knows_why_it_came_back() -> None:
    ledger = ledger_of("a")

    assert blamed(ledger, message("?")) == "a"
    assert [pending.returned for pending in ledger.settle(1, multiple=False)] == ["NO_ROUTE"]


@pytest.mark.parametrize(
    "other",
    [
        message("other", exchange="elsewhere"),
        message("other", key="elsewhere"),
        message("other", body=b"another"),
        message("other", properties=b"another"),
    ],
    ids=["exchange", "routing key", "body", "properties"],
)
def test_a_return_is_found_by_everything_that_was_sent(other: Pending[str]) -> None:
    assert blamed(ledger_with(other, message("this")), message("?")) == "this"


def test_of_two_publishes_that_are_alike_each_is_returned_once_and_the_older_first() -> None:
    """A retry and its original share message_id, key and body: both may come back."""
    ledger = ledger_of("original", "retry")

    assert [blamed(ledger, message("?")) for _ in range(3)] == ["original", "retry", None]


def test_of_two_publishes_that_are_alike_one_return_blames_only_one() -> None:
    ledger = ledger_of("original", "retry")
    blamed(ledger, message("?"))

    assert [pending.returned for pending in ledger.settle(2, multiple=True)] == ["NO_ROUTE", None]


def test_a_publish_that_was_answered_is_not_blamed() -> None:
    ledger = ledger_of("original", "retry")
    ledger.settle(1, multiple=False)

    assert blamed(ledger, message("?")) == "retry"


def test_a_return_whose_properties_the_broker_rewrote_is_found_by_its_body() -> None:
    ledger = ledger_with(message("other", body=b"another"), message("this", properties=b"with bcc"))

    assert blamed(ledger, message("?")) == "this"


def test_a_return_that_resembles_nothing_goes_to_the_oldest_with_its_route() -> None:
    ledger = ledger_with(message("elsewhere", key="x"), message("first"), message("second"))

    assert blamed(ledger, message("?", body=b"never sent")) == "first"


def test_a_return_to_a_route_that_was_never_used_blames_nobody() -> None:
    assert blamed(ledger_of("a"), message("?", key="never used")) is None


# Introductions --------------------------------------------------------------------------------------------------------


def test_a_ledger_introduces_itself() -> None:
    ledger = ledger_of("a", "b", "c")
    ledger.settle(1, multiple=False)

    assert repr(ledger) == "<ConfirmLedger unconfirmed=2 published=3>"


def test_a_pending_publish_introduces_itself_and_says_why_it_came_back() -> None:
    pending = message("a")
    assert repr(pending) == "<Pending exchange='e' key='k' 4 bytes>"

    pending.returned = "NO_ROUTE"
    assert repr(pending) == "<Pending exchange='e' key='k' 4 bytes returned='NO_ROUTE'>"
