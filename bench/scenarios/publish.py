"""Publish persistent messages to a durable queue; each counts when the broker has confirmed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.broker import Broker
from bench.contract import Case, Goal, NotDone, Scenario
from bench.messages import CASES, MessageJob, codec_remark, document, encode


class Publish(Scenario[Broker]):
    place = 1
    name = "publish"
    title = "Publish, persistent, each message confirmed"
    cases = CASES
    yardsticks = ("aio-pika", "FastStream", "C")
    goals = tuple(
        goal
        for contender in ("redrive publish", "redrive publish_many")
        for goal in (
            Goal(contender, at_least=5, than="aio-pika"),
            Goal(contender, at_least=5, than="FastStream"),
            Goal(contender, at_least=0.9, than="C"),
            Goal(contender, cpu_at_most=25),
        )
    )
    job = MessageJob
    arena = Broker

    @contextmanager
    def stage(self, arena: Broker, case: Case, count: int, settings: Mapping[str, int]) -> Iterator[MessageJob]:
        with arena.fresh_queue() as queue:
            arena.wait_until_idle()
            yield MessageJob(arena.url, queue, case.size, count, **settings)
            if (stored := arena.depth(queue)) != count:
                raise NotDone(f"{count} messages were to be published, and {stored} are in the queue")

    def remarks(self) -> list[str]:
        return [codec_remark("encoding", encode, document)]


scenario = Publish()
