"""What cancels out in a batch is not written."""

from redrive.broker.storage.datafile import Batch
from unit.broker.storage.samples import message


def test_a_new_batch_has_nothing_to_write() -> None:
    assert not Batch()


def test_a_batch_that_only_has_somebody_to_tell_has_nothing_to_write() -> None:
    batch = Batch()
    batch.callbacks.append(lambda: None)

    assert not batch


def test_a_queue_that_is_emptied_takes_along_what_was_stored_in_it_just_before() -> None:
    batch = Batch()
    batch.stored = {1: message(1, queue=7), 2: message(2, queue=8)}
    batch.forget_queue(7)

    assert batch.stored == {2: message(2, queue=8)}
    assert batch.emptied == {7}


def test_a_message_that_comes_back_before_it_was_written_is_written_with_its_new_count() -> None:
    batch = Batch()
    batch.stored = {1: message(1)}
    batch.note_return(1, 2)

    assert batch.stored[1].delivery_count == 2
    assert batch.returned == {}


def test_a_message_that_comes_back_after_it_was_written_changes_its_count_only() -> None:
    batch = Batch()
    batch.note_return(1, 2)
    batch.note_return(1, 3)

    assert batch.returned == {1: 3}
    assert len(batch) == 1


def test_a_batch_counts_and_tells_what_is_in_it() -> None:
    batch = Batch()
    batch.stored = {1: message(1), 2: message(2)}
    batch.forgotten = [5]
    batch.delivered = {1: 1}

    assert len(batch) == 4
    assert repr(batch) == "<Batch delivered=1 forgotten=1 stored=2>"
