"""The order of what is ready."""

from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.message import Entry, Facts, Message
from redrive.broker.ready_queue import PriorityQueue, ReturnedFirstQueue, WeightedPriorityQueue

MESSAGE = Message(b"", b"", b"", Facts(b""))


def entry(number: int, priority: int, expires_at: float | None = None) -> Entry:
    return Entry(number, Message(b"", b"", b"", Facts(b"", priority=priority)), number, expires_at)


@given(delivered=st.sets(st.integers(0, 60)), data=st.data())
def test_what_comes_back_takes_its_old_place_however_it_comes(delivered: set[int], data: st.DataObject) -> None:
    entries = [Entry(number, MESSAGE, number, None) for number in range(61)]
    lanes = PriorityQueue(0)
    for entry in entries:
        if entry.position not in delivered:
            lanes.append(entry)

    order = data.draw(st.permutations(sorted(delivered)))
    while order:
        together = data.draw(st.integers(1, len(order)))
        lanes.insert([entries[number] for number in order[:together]])
        order = order[together:]

    assert list(lanes) == entries
    assert len(lanes) == len(entries)


def test_messages_expire_at_the_head_of_all_lanes_together() -> None:
    lanes = PriorityQueue(9)
    for ready in (entry(1, 9), entry(2, 1, expires_at=5.0)):
        lanes.append(ready)

    assert (lanes.deadline, lanes.take_expired(6.0)) == (None, None)
    lanes.popleft()
    assert lanes.deadline == 5.0
    assert [lanes.take_expired(4.0), getattr(lanes.take_expired(5.0), "id", None)] == [None, 2]


def test_messages_expire_at_the_head_of_each_lane_and_of_those_that_came_back() -> None:
    lanes = ReturnedFirstQueue(PriorityQueue(31, usual=4, each_expires=True), each_expires=True)
    lanes.insert((entry(1, 4), entry(2, 4, expires_at=1.0)))
    for ready in (entry(3, 9), entry(4, 9, expires_at=1.0), entry(5, 2, expires_at=3.0), entry(6, 1, expires_at=2.0)):
        lanes.append(ready)

    assert lanes.deadline == 2.0
    assert [gone.id for gone in iter(lambda: lanes.take_expired(9.0), None)] == [5, 6]
    assert ([left.id for left in lanes], lanes.deadline) == ([1, 2, 3, 4], None)
    lanes.popleft()
    assert [gone.id for gone in iter(lambda: lanes.take_expired(9.0), None)] == [2]


def test_of_two_lanes_messages_expire_where_the_next_one_is_taken() -> None:
    lanes = ReturnedFirstQueue(WeightedPriorityQueue())
    for ready in (entry(1, 1, expires_at=1.0), entry(2, 9, expires_at=2.0)):
        lanes.append(ready)

    assert lanes.deadline == 2.0
    assert [gone.id for gone in iter(lambda: lanes.take_expired(9.0), None)] == [2, 1]
    lanes.insert((entry(3, 1),))
    assert (lanes.deadline, lanes.take_expired(9.0)) == (None, None)
