"""Plans that somebody was shown, for as long as they may say yes to one: what is carried out is what was shown.

A plan is an order, with the moment its query is meant for, and how many messages it found. Its token is random and
says nothing; any server that shares the database can carry it out.
"""

from __future__ import annotations

import json
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from redrive.runtime.dlq.operation import Order
from redrive.store.database import Database
from redrive.store.tables import plans_table

LASTS = timedelta(minutes=15)


class Kept(NamedTuple):
    order: Order
    eligible: int


class Plans:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = plans_table(sa.MetaData())

    def keep(self, order: Order, eligible: int, who: str, now: datetime) -> str:
        token = secrets.token_urlsafe(24)
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

    def take(self, token: str, queue: str, who: str, now: datetime) -> Kept | None:
        """Of whoever asks twice, one gets it. None: it was taken, has expired, or is somebody else's."""
        table = self.table
        mine = sa.and_(table.c.token == token, table.c.queue == queue, table.c.who == who, table.c.expires_at >= now)
        with self.database.engine.begin() as connection:
            taken = connection.execute(sa.delete(table).where(mine).returning(table.c.asked, table.c.eligible)).first()
        if taken is None:
            return None
        return Kept(msgspec.convert(json.loads(taken.asked), Order), taken.eligible)
