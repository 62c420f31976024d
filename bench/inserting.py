"""The job of the scenario about batches: users, one to a message, into a table of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import psycopg

from bench.contract import NotDone
from redrive.client import Connection

BATCH = 1000  # users for one call of the handler, and one transaction
BATCHERS = 2  # calls at a time, each with a connection to the database
ROW_BY_ROW = 10  # handlers at a time where each inserts one user, each with a connection to the database

TABLE = "CREATE TABLE IF NOT EXISTS users (id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL)"
COPY = "COPY users (id, name, email) FROM STDIN"
INSERT = "INSERT INTO users (id, name, email) VALUES (%s, %s, %s)"


class Row(NamedTuple):
    id: int
    name: str
    email: str


class User(msgspec.Struct):
    id: int
    name: str
    email: str


class InsertJob(msgspec.Struct, frozen=True):
    url: str
    broker: int  # its process
    queue: str
    dsn: str
    count: int

    def rows(self) -> Iterator[Row]:
        return (Row(number, f"User {number}", f"user.{number}@example.com") for number in range(self.count))

    async def check_acknowledged(self) -> None:
        async with Connection(self.url) as connection:
            if left := (await connection.queue_info(self.queue)).messages:
                raise NotDone(f"{left} of {self.count} messages were not acknowledged")

    def check_inserted(self) -> None:
        """The primary key sees to it that none is there twice."""
        with psycopg.connect(self.dsn) as connection:
            [inserted] = connection.execute("SELECT count(*) FROM users").fetchone() or [0]
        if inserted != self.count:
            raise NotDone(f"{self.count} users were to be inserted, and {inserted} are in the table")


def empty_table(dsn: str) -> None:
    """Nor has the database anything left to write for the measurement before."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("TRUNCATE users")
        connection.execute("CHECKPOINT")
