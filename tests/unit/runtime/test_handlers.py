import asyncio
import os
import threading
from typing import Any

import msgspec
import pytest

from redrive.errors import ConfigurationError
from redrive.protocol.content import Delivery
from redrive.recovery.history import History
from redrive.runtime.batch import Batch
from redrive.runtime.codecs import Codecs
from redrive.runtime.handlers import Handler, HandlerDied
from redrive.runtime.message import Message, current_message


class Order(msgspec.Struct):
    id: int


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


def in_another_process() -> int:
    return os.getpid()


def dies() -> None:
    os._exit(3)


async def test_work_for_a_processor_runs_in_another_process() -> None:
    found = handler(in_another_process, processes=1)
    assert await call(found) != os.getpid()
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
        (_fine, {"processes": 2}, "processes are for plain functions"),
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
