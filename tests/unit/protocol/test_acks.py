"""`AckLedger`, by example and against a broker that knows which deliveries are open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.protocol.acks import AckLedger, AckRun


def told(said: str) -> list[AckRun]:
    """What the broker is told for: `3` an ack, `1,2,3` all of them, `-3` a nack that is told elsewhere, `.` a take."""
    settlements = AckLedger()
    takes = []
    for word in said.split():
        if word == ".":
            takes.append(settlements.take())
        elif word.startswith("-"):
            settlements.settle(int(word[1:]))
        elif "," in word:
            settlements.ack_all([int(tag) for tag in word.split(",")])
        else:
            settlements.ack(int(word))
    return takes


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        (".", [AckRun(None, [])]),
        ("1 .", [AckRun(1, [])]),
        ("1 2 3 .", [AckRun(3, [])]),
        ("3 1 2 .", [AckRun(3, [])]),
        ("2 3 .", [AckRun(None, [2, 3])]),
        ("1 3 4 .", [AckRun(1, [3, 4])]),
        ("2 . 1 .", [AckRun(None, [2]), AckRun(1, [])]),
        ("2 . 1 3 .", [AckRun(None, [2]), AckRun(3, [])]),
        ("1 2 . .", [AckRun(2, []), AckRun(None, [])]),
        ("1 -2 3 .", [AckRun(3, [])]),
        ("1 -2 .", [AckRun(1, [])]),
        ("-1 .", [AckRun(None, [])]),
        ("2 -1 .", [AckRun(2, [])]),
        ("-2 1 .", [AckRun(1, [])]),
        ("3 2 1 5 .", [AckRun(3, [5])]),
        ("1,2,3 4 .", [AckRun(4, [])]),
        ("3,2,1 .", [AckRun(3, [])]),
        ("1,2,5 .", [AckRun(2, [5])]),
        ("2 1,3 .", [AckRun(3, [])]),
        ("4 1,2,3 .", [AckRun(4, [])]),
    ],
    ids=[
        "nothing",
        "the first",
        "a run",
        "a run in any order",
        "all beyond a gap",
        "a run and some beyond a gap",
        "a gap that closes later over told acks",
        "a gap that closes within a run",
        "nothing new",
        "a nack within a run",
        "a nack at the end of a run: multiple names an open tag",
        "only nacks",
        "a nack that closes a gap",
        "a nack beyond",
        "a run backwards and one beyond",
        "many that are a run, and the next",
        "many backwards",
        "many with a gap",
        "many around one that was acked before",
        "many up to one that was acked before",
    ],
)
def test_the_broker_is_told_in_the_fewest_frames(said: str, takes: list[AckRun]) -> None:
    assert told(said) == takes


def test_how_many_acks_wait_to_be_told() -> None:
    settlements = AckLedger()
    settlements.ack(1)
    settlements.ack(3)
    settlements.settle(2)
    before = settlements.pending
    settlements.take()

    assert (before, settlements.pending) == (2, 0)


def test_settlements_introduce_themselves() -> None:
    settlements = AckLedger()
    for tag in (1, 2, 5):
        settlements.ack(tag)

    assert repr(settlements) == "<Settlements all below 3 and 1 beyond, untold=3>"


# Against a model of the broker ----------------------------------------------------------------------------------


class Broker:
    """Knows the open tags of a channel, and refuses every other, as RabbitMQ does."""

    def __init__(self, delivered: int) -> None:
        self.open = set(range(1, delivered + 1))
        self.acked: list[int] = []
        self.nacked: list[int] = []

    def ack(self, tag: int, *, multiple: bool) -> None:
        assert tag in self.open, f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        named = sorted(other for other in self.open if other <= tag) if multiple else [tag]
        self.open.difference_update(named)
        self.acked += named

    def nack(self, tag: int) -> None:
        assert tag in self.open, f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        self.open.remove(tag)
        self.nacked.append(tag)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Deliveries settled in any order, each acked or nacked, with takes in between; some are never settled. What is
    acked with others waits for the next that is not.
    """
    order = draw(st.permutations(range(1, draw(st.integers(1, 30)) + 1)))
    settled = order[: draw(st.integers(0, len(order)))]
    ways = ["ack", "ack", "ack with others", "nack", "ack take", "nack take"]
    return [(draw(st.sampled_from(ways)), tag) for tag in settled]


@given(lives())
def test_every_delivery_is_settled_as_asked_and_no_unknown_one_is_named(life: list[tuple[str, int]]) -> None:
    settlements, broker = AckLedger(), Broker(delivered=30)

    def tell(acks: AckRun) -> None:
        if acks.upto is not None:
            broker.ack(acks.upto, multiple=True)
        for tag in acks.singles:
            broker.ack(tag, multiple=False)

    together: list[int] = []
    for way, tag in [*life, ("end", 0)]:
        if way == "ack with others":
            together.append(tag)
            continue
        settlements.ack_all(together)
        together = []
        if way == "end":
            break
        if way.startswith("ack"):
            settlements.ack(tag)
        else:
            broker.nack(tag)  # at once, before any later ack
            settlements.settle(tag)
        if way.endswith("take"):
            tell(settlements.take())
    tell(settlements.take())

    assert sorted(broker.acked) == sorted(tag for way, tag in life if way.startswith("ack"))
    assert sorted(broker.nacked) == sorted(tag for way, tag in life if way.startswith("nack"))
    assert settlements.pending == 0


@given(st.permutations(range(1, 21)))
def test_when_all_are_acked_one_frame_tells_it(order: list[int]) -> None:
    settlements = AckLedger()
    for tag in order:
        settlements.ack(tag)

    assert settlements.take() == AckRun(20, [])
