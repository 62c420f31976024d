"""psycopg: what the database takes in when nothing else is to be done."""

from __future__ import annotations

import psycopg

from bench.contract import Stopwatch, System
from bench.inserting import COPY, InsertJob

system = System("psycopg", packages=("psycopg",))


@system.contends("insert", "bare COPY")
def bare_copy(job: InsertJob, watch: Stopwatch) -> None:
    rows = list(job.rows())
    with psycopg.connect(job.dsn) as connection, watch:
        with connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for row in rows:
                copy.write_row(row)
        connection.commit()
    job.check_inserted()
