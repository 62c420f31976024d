"""What looking at dead letters promises, on every broker: it shows what is there, and leaves it as it was."""

import asyncio
from datetime import UTC, datetime

import pytest

from dead_lettering import DLQ, SOURCE, bodies, dead_letter, operating, orders, prepare, until_depth
from redrive.client import Connection
from redrive.client.publisher import Publish
from redrive.deadletters.search import parse
from redrive.errors import LetterAmbiguous
from redrive.operations.browse import GroupBy, count_returned, find, for_each, group, peek

TYPES = ["classic", "quorum"]
NOW = datetime(2024, 5, 18, tzinfo=UTC)


@pytest.mark.parametrize("queue_type", TYPES)
async def test_a_hundred_looks_cost_nothing(connection: Connection, amqp_url: str, queue_type: str) -> None:
    limit = {"x-delivery-limit": -1} if queue_type == "quorum" and connection.server_version >= (4,) else {}
    await prepare(connection, 30, queue_type, **limit)

    async with operating(amqp_url) as broker:
        for _ in range(100):
            page = await peek(broker, DLQ, limit=10)
            assert [letter.message_id for letter in page.dead_letters] == [f"m-{number}" for number in range(10)] or (
                queue_type == "quorum" and connection.server_version < (4, 3)  # which rotate
            )
            await until_depth(connection, DLQ, 30)

    assert sorted(await bodies(connection, DLQ)) == sorted(orders(*range(30)))


@pytest.mark.parametrize("queue_type", TYPES)
async def test_a_look_at_everything_keeps_the_order(connection: Connection, amqp_url: str, queue_type: str) -> None:
    await prepare(connection, 3000, queue_type)

    async with operating(amqp_url) as broker:
        found = await group(broker, DLQ, GroupBy.FINGERPRINT)

    assert [(one.key, one.count) for one in found.groups] == [("3fa9c0ffee", 1500), ("77d1beef00", 1500)]
    assert (found.matched, found.scanned, found.depth) == (3000, 3000, 3000)
    await until_depth(connection, DLQ, 3000)
    assert await bodies(connection, DLQ) == orders(*range(3000))


async def test_the_event_loop_runs_between_messages(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    await connection.publish_many([Publish("", DLQ, b"x" * 64 * 1024)] * 100)
    await until_depth(connection, DLQ, 100)
    in_one_turn, most = 0, 0

    def see(*_: object) -> bool:
        nonlocal in_one_turn, most
        in_one_turn += 1
        most = max(most, in_one_turn)
        return False

    async def others() -> None:
        nonlocal in_one_turn
        while True:
            in_one_turn = 0
            await asyncio.sleep(0)

    async with operating(amqp_url) as broker:
        running = asyncio.create_task(others())
        assert await for_each(broker, DLQ, see) == (100, 100)
        running.cancel()

    assert most <= 5


async def test_pages_follow_one_another(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 25)
    async with operating(amqp_url) as broker:
        seen, start = [], 1
        while start is not None:
            page = await peek(broker, DLQ, limit=10, start=start)
            seen += [letter.message_id for letter in page.dead_letters]
            start = page.next
        assert seen == [f"m-{number}" for number in range(25)]

        query = parse("body.order:>20", NOW)
        page = await peek(broker, DLQ, query=query, limit=3)
        assert [letter.message_id for letter in page.dead_letters] == ["m-21", "m-22", "m-23"]
        assert page.next == 25
        page = await peek(broker, DLQ, query=query, limit=3, start=page.next)
        assert ([letter.message_id for letter in page.dead_letters], page.next) == (["m-24"], None)


async def test_groups_by_what_messages_have_in_common(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 4)
    await connection.publish_many([Publish("", DLQ, b"?")])
    await until_depth(connection, DLQ, 5)

    async with operating(amqp_url) as broker:
        by_error = await group(broker, DLQ, GroupBy.ERROR)
        by_source = await group(broker, DLQ, GroupBy.SOURCE, parse("error:Timeout", NOW))

    assert [(one.key, one.count) for one in by_error.groups] == [("TimeoutError", 4), ("", 1)]
    assert [(one.key, one.count) for one in by_source.groups] == [(SOURCE, 4)]


async def test_one_message_is_found_by_its_id_message_id_or_beginning(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 12)
    async with operating(amqp_url) as broker:
        by_message_id = await find(broker, DLQ, "m-7")
        assert by_message_id is not None
        assert by_message_id.body == b'{"order": 7}'
        assert by_message_id.dead_letter.error_message == "no answer to 7"

        by_id = await find(broker, DLQ, by_message_id.dead_letter.id)
        beginning = await find(broker, DLQ, by_message_id.dead_letter.id[:-4])
        assert by_id is not None
        assert beginning is not None
        assert by_id.dead_letter.id == beginning.dead_letter.id == by_message_id.dead_letter.id
        assert await find(broker, DLQ, "m-1") is not None  # which is also a beginning
        with pytest.raises(LetterAmbiguous, match="m stands for 12 messages"):
            await find(broker, DLQ, "m")
        assert await find(broker, DLQ, "nobody") is None
    assert await bodies(connection, DLQ) == orders(*range(12))


async def test_what_came_back_is_counted(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 3)
    await connection.publish_many([dead_letter(8, **{"x-redriven-op": "op_1", "x-redriven-count": 1})])
    await until_depth(connection, DLQ, 4)

    async with operating(amqp_url) as broker:
        assert await count_returned(broker, DLQ, "op_1") == 1
        assert await count_returned(broker, DLQ, "op_2") == 0


async def test_an_empty_queue_is_looked_at_at_once(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    async with operating(amqp_url) as broker:
        page = await peek(broker, DLQ)
    assert (page.dead_letters, page.depth, page.next) == ((), 0, None)
