"""Consume a full queue: decode each message, await a handler where the library has async ones, acknowledge it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.broker import Broker
from bench.contract import Case, Goal, NotDone, Scenario
from bench.messages import CASES, MessageJob, codec_remark, decode, document, encode


class Consume(Scenario[Broker]):
    place = 2
    name = "consume"
    title = "Consume, decode, handle, acknowledge"
    cases = CASES
    yardsticks = ("aio-pika", "FastStream", "C")
    goals = (
        Goal("redrive", at_least=6, than="FastStream"),
        Goal("redrive", at_least=0.9, than="C"),
        Goal("redrive", cpu_at_most=25),
    )
    job = MessageJob
    arena = Broker

    @contextmanager
    def stage(self, arena: Broker, case: Case, count: int, settings: Mapping[str, int]) -> Iterator[MessageJob]:
        with arena.fresh_queue() as queue:
            arena.fill(queue, encode(document(case.size)), count)
            arena.wait_until_idle()
            yield MessageJob(arena.url, queue, case.size, count, **settings)
            if left := arena.depth(queue):
                raise NotDone(f"{left} of {count} messages were not acknowledged")

    def remarks(self) -> list[str]:
        return [codec_remark("decoding", decode, lambda size: encode(document(size)))]


scenario = Consume()
