"""Plans that somebody was shown, for as long as they may say yes to one: what is carried out is what was shown.

A plan is an order, with the moment its query is meant for, and how many messages it found. Its token is random and
ends with a digest of what was asked for, so that a form that asks for something else is recognised; any server that
shares the database can carry it out. A plan that was carried out is kept until it expires, to recognise its token.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from redrive.database.engine import Database
from redrive.database.operator_tables import plans_table
from redrive.operations.operation import OperationRequest

LASTS = timedelta(minutes=15)


class StoredPlan(NamedTuple):
    order: OperationRequest
    eligible: int


def digest_of(*asked: object) -> str:
    """Return a digest of values that have a complete `repr`."""
    return hashlib.sha256(repr(asked).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_plan_of(token: str, digest: str) -> bool:
    """Return whether this token belongs to a plan of what the digest was made of."""
    return token.endswith(f".{digest}")


class PlanTokens:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = plans_table(sa.MetaData())

    def keep(self, order: OperationRequest, eligible: int, who: str, now: datetime, digest: str = "") -> str:
        token = f"{secrets.token_urlsafe(24)}.{digest}"
        row = {
            "token": token,
            "queue": order.queue,
            "who": who,
            "asked": json.dumps(msgspec.to_builtins(order)),
            "eligible": eligible,
            "expires_at": now + LASTS,
        }
        with self.database.engine.begin() as connection:
            connection.execute(sa.delete(self.table).where(self.table.c.expires_at < now))
            connection.execute(sa.insert(self.table), row)
        return token

    def take(self, token: str, queue: str, who: str, now: datetime) -> StoredPlan | None:
        """Of whoever asks twice, one gets it. None: it was taken, has expired, or is somebody else's."""
        table = self.table
        mine = sa.and_(*self._is(token, queue, who), table.c.expires_at >= now, table.c.eligible >= 0)
        taking = sa.update(table).where(mine).values(eligible=-1 - table.c.eligible)  # below zero: carried out
        with self.database.engine.begin() as connection:
            carried_out_order = connection.execute(taking.returning(table.c.asked, table.c.eligible)).first()
        return (
            StoredPlan(_order(carried_out_order.asked), -1 - carried_out_order.eligible)
            if carried_out_order is not None
            else None
        )

    def carried_out_order(self, token: str, queue: str, who: str) -> OperationRequest | None:
        """Return the order of a plan that was carried out already; None if it is not known."""
        table = self.table
        query = sa.select(table.c.asked).where(*self._is(token, queue, who), table.c.eligible < 0)
        with self.database.reading_connection() as connection:
            asked = connection.execute(query).scalar()
        return _order(asked) if asked is not None else None

    def _is(self, token: str, queue: str, who: str) -> tuple[sa.ColumnElement[bool], ...]:
        return self.table.c.token == token, self.table.c.queue == queue, self.table.c.who == who


def _order(asked: str) -> OperationRequest:
    return msgspec.convert(json.loads(asked), OperationRequest)
