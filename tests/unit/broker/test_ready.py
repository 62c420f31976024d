"""The order of what is ready."""

from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.message import Entry, Facts, Message
from redrive.broker.ready import Lanes

MESSAGE = Message(b"", b"", b"", Facts(b""))


@given(delivered=st.sets(st.integers(0, 60)), data=st.data())
def test_what_comes_back_takes_its_old_place_however_it_comes(delivered: set[int], data: st.DataObject) -> None:
    entries = [Entry(number, MESSAGE, number, None) for number in range(61)]
    lanes = Lanes(0)
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
