"""Batches: users from a queue into PostgreSQL, in batches and one by one; and what queue and database do at best alone.

A batch handler has to consume, and it has to COPY: it cannot be faster than the slower of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.contract import Case, Goal, Rivals, Scenario
from bench.inserting import BATCH, BATCHERS, ROW_BY_ROW, InsertJob, empty_table
from bench.workplace import Workplace


class Insert(Scenario[Workplace]):
    suite = "workers"
    place = 4
    name = "insert"
    title = "Users from a queue into PostgreSQL"
    cases = (Case("id, name, email", 70),)
    yardsticks = ("redrive row by row", "redrive bare consuming", "psycopg bare COPY")
    goals = (
        Goal("redrive batches", at_least=0.8, than=Rivals("slowest", ("redrive bare consuming", "psycopg bare COPY"))),
    )
    job = InsertJob
    arena = Workplace
    unit = BATCH  # the rest of a batch would wait for its timeout

    @contextmanager
    def stage(self, arena: Workplace, case: Case, count: int, settings: Mapping[str, int]) -> Iterator[InsertJob]:  # noqa: ARG002
        with arena.undeclared_queue() as queue:
            empty_table(arena.dsn)
            arena.wait_until_idle()
            yield InsertJob(arena.url, arena.pid, queue, arena.dsn, count)

    def remarks(self) -> list[str]:
        return [
            f"redrive batches: {BATCH} users or 1 s, {BATCHERS} batches at a time, each one COPY and one commit",
            f"redrive row by row: one INSERT and commit for each message, {ROW_BY_ROW} at a time",
            "redrive bare consuming: the client alone, no decoding, each message acknowledged; no database",
            "psycopg bare COPY: all rows, ready in memory, in one COPY and one commit; no broker",
        ]


scenario = Insert()
