"""Matchers against RabbitMQ itself: the same bindings, the same messages, the same queues get them.

Destinations are the queues of a real broker. Every example has an exchange of its own in it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine, Iterator
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.broker.dialect import DIALECTS
from redrive.broker.exchanges import MATCHERS, InvalidBinding
from redrive.client import Connection, Properties
from redrive.errors import PreconditionFailed, Unroutable
from redrive.wire.values import FieldValue

T = TypeVar("T")
Arguments = dict[str, FieldValue]
Binding = tuple[str, Arguments]  # its key and arguments; each leads to a queue of its own
Message = tuple[str, Arguments]  # its key and headers

QUEUES = [f"q{number}" for number in range(8)]

# Many bindings and messages in each of few examples: an exchange costs more than a binding.
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class RealExchange:
    """Exchanges of a real broker, one after the other."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.Runner()
        self._connection = Connection(url)
        self.run(self._connection.open())
        self.dialect = DIALECTS["{}.{}".format(*self._connection.server_version)]
        for queue in QUEUES:
            self.run(self._connection.declare_queue(queue))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def close(self) -> None:
        self.run(self._connection.close())
        self._loop.close()

    async def routes(self, kind: str, bindings: list[Binding], messages: list[Message]) -> list[object]:
        """For each binding that is refused, why; and for each message, which queues got it."""
        await self._connection.declare_exchange("exchange", kind)
        refused = [await self._bind(*pair) for pair in zip(QUEUES, bindings, strict=False)]
        await asyncio.gather(*(self._publish(number, message) for number, message in enumerate(messages)))
        got = [await self._drain(queue) for queue in QUEUES]
        await self._connection.delete_exchange("exchange")
        arrived = [
            {queue for queue, numbers in zip(QUEUES, got, strict=True) if n in numbers} for n in range(len(messages))
        ]
        return [refused, arrived]

    async def _bind(self, queue: str, binding: Binding) -> str | None:
        try:
            await self._connection.bind_queue(queue, "exchange", *binding)
        except PreconditionFailed as refused:
            return refused.text
        return None

    async def _publish(self, number: int, message: Message) -> None:
        key, headers = message
        try:
            await self._connection.publish("exchange", key, str(number).encode(), Properties(headers=headers))
        except Unroutable:
            pass

    async def _drain(self, queue: str) -> set[int]:
        """A confirm says that a message is in all of its queues, so that what is not there now never comes."""
        numbers = set()
        while (delivery := await self._connection.get(queue)) is not None:
            delivery.ack()
            assert int(delivery.body) not in numbers, "came twice"
            numbers.add(int(delivery.body))
        return numbers

    def modelled(self, kind: str, bindings: list[Binding], messages: list[Message]) -> list[object]:
        matcher = MATCHERS[kind](self.dialect)
        refused: list[str | None] = []
        for queue, (key, arguments) in zip(QUEUES, bindings, strict=False):
            try:
                matcher.bind(queue, key, arguments)
                refused.append(None)
            except InvalidBinding as invalid:
                refused.append(f"PRECONDITION_FAILED - {invalid}")
        return [refused, [set(matcher.match(key, headers)) for key, headers in messages]]


@pytest.fixture
def real(amqp_url: str) -> Iterator[RealExchange]:
    exchange = RealExchange(amqp_url)
    yield exchange
    exchange.close()


patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "#"]), max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


@few
@given(
    st.lists(patterns.map(lambda key: (key, {})), min_size=4, max_size=8),
    st.lists(keys.map(lambda key: (key, {})), min_size=4, max_size=20),
)
def test_topics_match_as_in_rabbitmq(real: RealExchange, bindings: list[Binding], messages: list[Message]) -> None:
    assert real.modelled("topic", bindings, messages) == real.run(real.routes("topic", bindings, messages))


plain: st.SearchStrategy[FieldValue] = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 1 << 40, 0.0, -0.0, 1.0, 1.5, "", "a", "1", "true", "ä", b"", b"a", b"\xff"),
        *(Decimal("1"), Decimal("1.0"), dt.datetime.fromtimestamp(1, dt.UTC), 1000),
    ]
)
values: st.SearchStrategy[FieldValue] = st.one_of(
    plain, plain, st.lists(plain, max_size=2), st.dictionaries(st.sampled_from("ab"), plain, max_size=2)
)
names = st.sampled_from(["a", "b", "x-a", "x-matches"])
tables = st.dictionaries(names, st.one_of(plain, values), max_size=3)
modes: st.SearchStrategy[Arguments] = st.sampled_from(
    [
        *[{}, *({"x-match": mode} for mode in ("all", "any", "all-with-x", "any-with-x"))] * 4,
        *({"x-match": wrong} for wrong in ("none", "", 1, None, b"all", 'a"b', [1, "a"], {"a": 1.5})),
    ]
)


@few
@given(
    st.lists(st.builds(lambda mode, table: ("", mode | table), modes, tables), min_size=4, max_size=8),
    st.lists(tables.map(lambda headers: ("", headers)), min_size=4, max_size=20),
)
def test_headers_match_as_in_rabbitmq(real: RealExchange, bindings: list[Binding], messages: list[Message]) -> None:
    messages += [("", arguments) for _, arguments in bindings]  # so that something fits
    assert real.modelled("headers", bindings, messages) == real.run(real.routes("headers", bindings, messages))
