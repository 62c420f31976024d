import asyncio
import functools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from redrive.errors import ConfigurationError
from redrive.protocol.messages import Delivery
from redrive.recovery.classification import FailureKind, classify
from redrive.recovery.failure import describe
from redrive.recovery.handler_signals import Discard, Park, RetryLater, Snooze
from redrive.recovery.history import History
from redrive.recovery.retry import Retry
from redrive.worker.batch import Batch
from redrive.worker.codecs import Codecs
from redrive.worker.handlers import FailedElsewhere, Handler, HandlerDied
from redrive.worker.message import Message, current_message


class Order(msgspec.Struct):
    id: int


class ValidationError(Exception):
    """By this name it is known that it does not pass."""


class Given:
    pass


GIVEN = Given()


def handler(function: Any, **options: Any) -> Handler:
    return Handler(function, codecs=Codecs(), given={Given: GIVEN}, threads=options.pop("threads", 2), **options)


def message() -> Message:
    delivery = Delivery(1, b"\x00\x3c\x00\x3c\x00" + bytes(8) + b"\x00" + b"\x01e\x01k", b"\x00\x00", b'{"id": 7}')
    return Message(delivery, "orders", lambda _: History())


async def call(found: Handler) -> Any:
    body = found.read(b'{"id": 7}', b"\x00\x00")
    return await found.call(body, message())


async def test_arguments_come_by_their_annotations_in_any_order() -> None:
    async def handle(given: Given, message: Message, order: Order) -> tuple[Any, ...]:
        return given, message.queue, order

    assert await call(handler(handle)) == (GIVEN, "orders", Order(7))


async def test_a_body_without_annotation_is_what_json_says() -> None:
    async def handle(anything) -> Any:  # type: ignore[no-untyped-def]
        return anything

    assert await call(handler(handle)) == {"id": 7}


async def test_a_handler_may_want_nothing() -> None:
    async def handle() -> str:
        return "done"

    assert await call(handler(handle)) == "done"


async def test_a_parameter_with_a_default_may_be_left_alone() -> None:
    async def handle(order: Order, limit: int = 5) -> int:
        return order.id + limit

    assert await call(handler(handle)) == 12


async def test_a_plain_function_runs_in_a_thread_and_knows_its_message() -> None:
    def handle() -> tuple[str, Any]:
        return threading.current_thread().name, current_message.get()

    current = message()
    current_message.set(current)
    found = handler(handle)
    name, seen = await call(found)
    found.close()
    assert name.startswith("redrive-")
    assert seen is current


async def test_plain_functions_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=10)

    def meet() -> None:
        meeting.wait()

    found = handler(meet, threads=2)
    await asyncio.gather(call(found), call(found))
    found.close()


def in_another_process() -> threading.Lock:
    assert multiprocessing.parent_process() is not None
    return threading.Lock()  # which cannot travel, and does not have to


class Declined(ValidationError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def declines() -> None:
    raise Declined(402, "no money")


def snoozes() -> None:
    raise Snooze("5m")


def yields() -> Iterator[int]:
    yield 1


def forgets() -> Any:
    return yields()


def dies() -> None:
    os._exit(3)


async def test_work_for_a_processor_runs_in_another_process() -> None:
    found = handler(in_another_process, processes=1)
    assert await call(found) is None
    found.close()


async def test_errors_of_another_process_arrive_as_what_they_are_and_harm_no_neighbour() -> None:
    found = handler(declines, processes=1)
    with pytest.raises(FailedElsewhere, match="no money") as caught:
        await call(found)
    pool = found._executor
    assert classify(caught.value, Retry(), datetime.now(UTC)).kind is FailureKind.PERMANENT  # by the name of its base
    assert describe(caught.value, datetime.now(UTC)).error_type == f"{__name__}.Declined"

    for function, expected in ((snoozes, Snooze), (forgets, TypeError)):
        found.function = function
        with pytest.raises(expected) as raised:
            await call(found)
        if isinstance(raised.value, Snooze):
            assert raised.value.after == timedelta(minutes=5)
    assert found._executor is pool
    found.close()


@pytest.mark.parametrize(
    "signal", [RetryLater("busy", after="30s"), Snooze("5m", "night"), Park("no"), Discard()], ids=repr
)
def test_what_a_handler_says_is_the_same_in_another_process(signal: Exception) -> None:
    again = pickle.loads(pickle.dumps(signal))
    assert (type(again), str(again), vars(again)) == (type(signal), str(signal), vars(signal))


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return plain


async def test_a_coroutine_that_comes_back_is_awaited() -> None:
    done: list[str] = []

    async def handle(order: Order) -> None:
        await asyncio.sleep(0)
        done.append(f"order {order.id}")

    async def forgetful(order: Order) -> Any:
        return handle(order)

    for found in (handler(decorated(handle)), handler(forgetful)):
        await found.finish(await call(found))
        found.close()
    assert done == ["order 7"] * 2


async def test_a_generator_that_comes_back_has_not_run_and_is_a_failure() -> None:
    found = handler(forgets)
    with pytest.raises(TypeError, match="gave back a generator, whose code did not run"):
        await found.finish(await call(found))
    found.close()


async def test_a_function_that_runs_out_of_something_has_failed() -> None:
    def handle() -> None:
        next(iter(()))

    found = handler(handle)
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await call(found)
    found.close()


async def test_a_process_that_dies_is_told_and_the_next_call_has_a_new_one() -> None:
    found = handler(dies, processes=1)
    for _ in range(2):
        with pytest.raises(HandlerDied, match="dies died"):
            await call(found)
    found.close()


def batch_of(*numbers: int) -> Batch[Order]:
    messages = [message() for _ in numbers]
    known = {id(each._delivery): each for each in messages}
    deliveries = [each._delivery for each in messages]
    return Batch([Order(number) for number in numbers], deliveries, lambda delivery: known[id(delivery)])


async def test_a_batch_is_given_as_a_list_or_as_itself() -> None:
    async def of_bodies(orders: list[Order]) -> Any:
        return orders

    async def of_itself(batch: Batch[Order], given: Given) -> Any:
        return batch, given

    batch = batch_of(1)
    assert await handler(of_bodies, for_batches=True).call_with_batch(batch) == [Order(1)]
    assert await handler(of_itself, for_batches=True).call_with_batch(batch) == (batch, GIVEN)


class Invoice(msgspec.Struct):
    """Next to an order: of which of the two a body is, no codec can tell."""

    id: int


async def test_a_handler_that_reads_nothing_gets_what_another_function_made() -> None:
    async def handle(made: list[Order | Invoice]) -> Any:
        return made

    with pytest.raises(ConfigurationError, match="is no type that a body can be read as"):
        handler(handle, for_batches=True)
    made = Invoice(1)
    batch = Batch([made], [message()._delivery], lambda _: message())
    assert await handler(handle, for_batches=True, reads=False).call_with_batch(batch) == [made]


async def test_the_result_of_a_call_is_returned_when_nothing_is_left_to_do() -> None:
    async def work() -> int:
        return 7

    found = handler(_fine)
    assert await found.finish(work()) == 7
    assert await found.finish(7) == 7


async def _two_bodies(a: Order, b: Order) -> None: ...
async def _starred(*orders: Order) -> None: ...
async def _fine(order: Order) -> None: ...
async def _unreadable(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _with_message(order: Order, message: Message) -> None: ...
async def _batch_and_message(orders: list[Order], message: Message) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "complaint"),
    [
        (_two_bodies, {}, "a gets the body; what should b get?"),
        (_starred, {}, r"what should \*orders get\?"),
        (_unreadable, {}, "its annotations cannot be read"),
        (_with_message, {"processes": 2}, "it can have the body only"),
        (_fine, {"for_batches": True}, r"annotated as list\[T\] or Batch\[T\]"),
        (_batch_and_message, {"for_batches": True}, "a batch handler has no one message"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(function: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        handler(function, **options)


def test_failures_of_a_batch_are_marked_by_item_message_or_position() -> None:
    batch = batch_of(0, 1, 2)
    batch.fail(batch.items[0], ValueError("a"))
    batch.fail(batch.messages[1], "b")
    batch.fail(2, "c")
    assert [str(batch.failures[position]) for position in range(3)] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="is not in this batch"):
        batch.fail(3, "d")


def test_what_a_handler_does_to_its_list_changes_no_batch() -> None:
    """Its halves are tried when it fails, and each body must still be that of its delivery."""
    batch = batch_of(1, 2, 3)
    batch.bodies.reverse()
    batch.bodies.clear()
    assert isinstance(batch.deliveries, tuple)

    assert [item.body for item in batch] == batch.bodies == [Order(1), Order(2), Order(3)]


def test_a_part_of_a_batch_begins_without_failures() -> None:
    batch = batch_of(1, 2, 3)
    batch.fail(0, "late")

    part = batch.part([0, 2])

    assert part.bodies == [Order(1), Order(3)]
    assert [item.delivery for item in part] == [batch.deliveries[0], batch.deliveries[2]]
    assert part.failures == {}
