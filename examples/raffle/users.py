"""A user, as a message and as a row: how one message becomes a row, and the one statement that inserts many.

It is safe to repeat: a message may come twice, after a retry or a redelivery, and a user who is there already stays as
he is. It is one statement in one transaction: all of a batch, or nothing.

What the database objects to is told without the statement and without the row, which hold people's names: errors
travel, in headers and in logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from redrive import Discard

LONGEST_NAME = 200
LONGEST_EMAIL = 254
PATIENCE = 30  # seconds that a database may take for a batch


Row = dict[str, Any]


class User(Struct):
    id: UUID
    name: str
    email: str


metadata = sa.MetaData()
USERS = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("email", sa.Text, nullable=False),
    # The API asks for the same; but it is not the only one who can publish, and the table has the last word.
    sa.CheckConstraint(f"length(name) BETWEEN 1 AND {LONGEST_NAME}", name="users_name"),
    sa.CheckConstraint(f"email LIKE '%_@_%' AND length(email) <= {LONGEST_EMAIL}", name="users_email"),
)

_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class DatabaseAway(Exception):
    """The database is down, or too slow: nobody's fault, and it will pass."""


class RowRefused(Exception):
    """The database is there, and will not have one of these rows."""


async def to_row(user: User) -> Row:
    """Return the row of a message that was read as a user. One that cannot be is rejected before."""
    return {"id": user.id, "name": user.name, "email": user.email}


async def dead_letter_to_row(body: bytes) -> Row:
    """Return the row of a dead letter. One that is not valid JSON is discarded; one that is valid JSON and not a user
    goes back to the queue until an operator edits it.
    """
    try:
        return await to_row(msgspec.json.decode(body, type=User))
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        raise Discard(f"no JSON: {error}") from None


async def insert(session: AsyncSession, rows: Sequence[Row]) -> None:
    statement = _INSERT[session.get_bind().dialect.name](USERS).values(list(rows))
    try:
        async with asyncio.timeout(PATIENCE):
            await session.execute(statement.on_conflict_do_nothing(index_elements=[USERS.c.id]))
    except TimeoutError:
        raise DatabaseAway(f"no answer within {PATIENCE} s") from None
    except (OperationalError, InterfaceError) as error:
        raise DatabaseAway(_objection(error)) from None
    except SQLAlchemyError as error:
        raise RowRefused(_objection(error)) from None


def _objection(error: SQLAlchemyError) -> str:
    """What the database said, in one line. The lines below it show the row."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return next(filter(None, map(str.strip, said.splitlines())), type(error).__name__)
