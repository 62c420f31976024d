"""What acts do with portions of which several are under way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redrive.deadletters.dead_letter import read_summary
from redrive.operations.actions import DiscardAction
from redrive.operations.archive import Archive, read_archive
from redrive.operations.operation import Operation, OperationKind, OperationRequest
from redrive.operations.pipeline import SelectedMessage
from redrive.operations.selector import Selected
from redrive.protocol.messages import Delivery
from redrive.wire.methods.basic import BasicGetOk
from redrive.wire.properties import Properties

RAW = Properties(message_id="m").encode()
OPERATION = Operation(
    "op_1", OperationRequest(OperationKind.DISCARD, "q.dlq", by="ada"), datetime(2026, 1, 1, tzinfo=UTC)
)


def taken(body: bytes) -> SelectedMessage:
    delivery = Delivery.from_get(1, BasicGetOk(delivery_tag=1, exchange="dlx", routing_key="q"), RAW, body)
    return SelectedMessage(delivery, read_summary(RAW, body, "q.dlq", 0), Selected())


class LastFirst(ThreadPoolExecutor):
    """Threads that begin with what was asked of them last."""

    def __init__(self) -> None:
        super().__init__(1)
        self._asked: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._asked.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        while self._asked:
            self._asked.pop()()


async def test_an_archive_has_messages_in_their_order_whichever_thread_is_first(tmp_path: Path) -> None:
    threads = LastFirst()
    asyncio.get_running_loop().set_default_executor(threads)
    portions = [[taken(b"%d" % (10 * portion + n)) for n in range(3)] for portion in range(4)]

    with Archive(tmp_path / "archive.ndjson") as archive:
        act = DiscardAction(archive)
        acting = asyncio.gather(*(act(OPERATION, portion) for portion in portions))
        while not acting.done():
            await asyncio.sleep(0)
            threads.run()

    bodies = [letter.body for _, letter in read_archive(archive.path)]
    assert bodies == [each.delivery.body for portion in portions for each in portion]
