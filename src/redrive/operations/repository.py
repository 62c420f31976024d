"""The memory of operations on dead-letter queues: what was asked for, how far it is, what became of each message.

Two write to an operation, and neither overwrites the other. Its runner saves its progress (`save`). Anybody else leaves
a wish in columns of its own (`wish`): pause, go on, cancel, this fast. The runner reads the wishes, obeys, and takes
away those that it has obeyed, if they are still the same (`granted`). A newer wish takes the place of an older one,
except that nobody takes back a cancel.

An operation has one runner. Who finds one whose runner is gone takes it over (`take_over`): of several who try, one
succeeds. If the runner was not gone after all, its next `save` says so: it is not the owner any more. For that an owner
must be a process, not a place: the same name for a process and the next one at its place would be one and the same.

What was asked for is JSON, in which fields that this version does not know are left aside.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from redrive.database.bulk_insert import insert_rows
from redrive.database.engine import Database
from redrive.database.operator_tables import is_running, items_table, operations_table
from redrive.deadletters.redaction import redact_text
from redrive.errors import ConfigurationError, OperationConflict, OperationNotFound
from redrive.operations.operation import (
    ControlRequest,
    Counts,
    ItemOutcome,
    Operation,
    OperationItem,
    OperationRequest,
    OperationState,
)

_MOST_FOUND = 20  # of what begins alike: more is no answer
_CHUNK = 10_000  # rows
_WISHED = (OperationState.PAUSED, OperationState.RUNNING, OperationState.CANCELLING)


class OperationRepository:
    def __init__(self, database: Database) -> None:
        self.database = database
        metadata = sa.MetaData()
        self.table = operations_table(metadata)
        self.items_table = items_table(metadata)

    # Operations ---------------------------------------------------------------------------------------

    def add(self, operation: Operation) -> None:
        with self.database.engine.begin() as connection:
            self.insert(connection, operation)

    def insert(self, connection: sa.Connection, operation: Operation) -> None:
        """Add an operation within a transaction that also does something else."""
        row = {"id": operation.id, "created_at": operation.created_at} | _order(operation.order) | _progress(operation)
        connection.execute(sa.insert(self.table), row)

    def save(self, operation: Operation, items: Sequence[OperationItem] = ()) -> None:
        """Write down how far it is, and what became of some messages: of both or of none. OperationConflict: somebody
        else has taken it over, so leave it alone; what became of the messages is written down all the same.
        """
        table, mine = self.table, self.table.c.owner.in_(["", operation.owner])
        with self.database.engine.begin() as connection:
            self._insert(connection, operation.id, items)
            change = sa.update(table).where(table.c.id == operation.id, mine).values(**_progress(operation))
            if connection.execute(change).rowcount:
                return
            owner = connection.execute(sa.select(table.c.owner).where(table.c.id == operation.id)).scalar()
        if owner is None:
            raise OperationNotFound(operation.id)
        raise OperationConflict(operation.order.queue, f"operation {operation.id}, which {owner} has taken over")

    def get(self, operation: str) -> Operation | None:
        found = self._read(sa.select(self.table).where(self.table.c.id == operation))
        return found[0] if found else None

    def find(self, beginning: str) -> list[Operation]:
        """The one of that id; else those whose ids begin so, the newest first."""
        if exact := self.get(beginning):
            return [exact]
        table = self.table
        begins = sa.func.substr(table.c.id, 1, len(beginning), type_=table.c.id.type) == beginning
        return self._read(self._newest_first().where(begins).limit(_MOST_FOUND))

    def list_operations(
        self,
        queue: str | None = None,
        states: Collection[OperationState] | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Operation]:
        """The newest first. `before`: the id of the last one on the page before."""
        query = self._newest_first().limit(limit)
        if queue is not None:
            query = query.where(self.table.c.queue == queue)
        if states is not None:
            query = query.where(self.table.c.state.in_([str(state) for state in states]))
        if before is not None:
            query = query.where(self._is_before(before))
        return self._read(query)

    def running_operations(self) -> list[Operation]:
        """Those that are not over, the newest first, whether anybody works on them or not."""
        return self._read(self._newest_first().where(is_running(self.table)))

    def take_over(
        self, operation: str, owner: str, beat_at: datetime, expected_owner: str, state: OperationState | None = None
    ) -> bool:
        """Become the owner, if the owner is still the expected one and it is not over. `state`: put it into this."""
        change = sa.update(self.table).where(self.table.c.owner == expected_owner)
        if state is not None:
            change = change.values(state=str(state))
        return self._change(operation, change.values(owner=owner, beat_at=beat_at))

    def _newest_first(self) -> sa.Select[Any]:
        return sa.select(self.table).order_by(self.table.c.created_at.desc(), self.table.c.id.desc())

    def _is_before(self, operation: str) -> sa.ColumnElement[bool]:
        created_at, identity = self.table.c.created_at, self.table.c.id
        with self.database.reading_connection() as connection:
            moment = connection.execute(sa.select(created_at).where(identity == operation)).scalar()
        if moment is None:
            raise OperationNotFound(operation)
        here = sa.tuple_(moment, operation, types=[created_at.type, identity.type])
        return sa.tuple_(created_at, identity) < here

    def _read(self, query: sa.Select[Any]) -> list[Operation]:
        with self.database.reading_connection() as connection:
            return [_operation(row) for row in connection.execute(query).mappings()]

    def _change(self, operation: str, change: sa.Update) -> bool:
        """Change one that is not over. Whether there is one."""
        with self.database.engine.begin() as connection:
            found = connection.execute(change.where(self.table.c.id == operation, is_running(self.table)))
            return found.rowcount > 0

    # Wishes -------------------------------------------------------------------------------------------

    def request_control(self, operation: str, wish: ControlRequest) -> bool:
        """Leave word for the runner. False: there is no such operation, or it is over."""
        if wish.state is not None and wish.state not in _WISHED:
            raise ConfigurationError(f"an operation cannot be asked to be {wish.state}: want {', '.join(_WISHED)}")
        if wish.rate is not None and not wish.rate > 0:
            raise ConfigurationError(f"rate {wish.rate:g}: want messages a second, more than 0", option="rate")
        return self._change(operation, sa.update(self.table).values(**self._request_columns(wish)))

    def control_request(self, operation: str) -> ControlRequest:
        table = self.table
        query = sa.select(table.c.wanted_state, table.c.wanted_rate).where(table.c.id == operation)
        with self.database.reading_connection() as connection:
            found = connection.execute(query).one_or_none()
        if found is None:
            raise OperationNotFound(operation)
        return ControlRequest(OperationState(found.wanted_state) if found.wanted_state else None, found.wanted_rate)

    def clear_request(self, operation: str, wish: ControlRequest) -> None:
        """The runner has obeyed: take the wish away, except what somebody has changed meanwhile. The rate that it works
        at now is the order's.
        """
        table, state, rate = self.table, self.table.c.wanted_state, self.table.c.wanted_rate
        changes: dict[str, Any] = {
            "wanted_state": sa.case((state == _text(wish.state), sa.null()), else_=state),
            "wanted_rate": sa.case((rate == wish.rate, sa.null()), else_=rate),
        }
        with self.database.engine.begin() as connection:
            if wish.rate is not None:
                asked = connection.execute(sa.select(table.c.asked).where(table.c.id == operation)).scalar_one()
                changes["asked"] = json.dumps(json.loads(asked) | {"rate": wish.rate})
            connection.execute(sa.update(table).where(table.c.id == operation).values(**changes))

    def _request_columns(self, wish: ControlRequest) -> dict[str, Any]:
        state, cancel = self.table.c.wanted_state, str(OperationState.CANCELLING)
        cancelled = sa.or_(state == cancel, self.table.c.state == cancel)
        wanted = sa.case((cancelled, state), else_=_text(wish.state)) if wish.state is not None else state
        return {"wanted_state": wanted, "wanted_rate": self.table.c.wanted_rate if wish.rate is None else wish.rate}

    # Items --------------------------------------------------------------------------------------------

    def add_items(self, operation: str, items: Sequence[OperationItem]) -> None:
        with self.database.engine.begin() as connection:
            self._insert(connection, operation, items)

    def _insert(self, connection: sa.Connection, operation: str, items: Sequence[OperationItem]) -> None:
        insert_rows(connection, self.items_table, _ITEM_COLUMNS, [_item_row(operation, item) for item in items])

    def items(
        self, operation: str, outcome: ItemOutcome | None = None, limit: int = 100, after: int | None = None
    ) -> list[tuple[int, OperationItem]]:
        """In the order in which they were added, each with its number. `after`: the number of the last one seen."""
        table = self.items_table
        query = sa.select(table).where(table.c.operation == operation).order_by(table.c.number).limit(limit)
        if outcome is not None:
            query = query.where(table.c.outcome == str(outcome))
        if after is not None:
            query = query.where(table.c.number > after)
        with self.database.reading_connection() as connection:
            return [(row["number"], _item(row)) for row in connection.execute(query).mappings()]

    def moved_ids(self, operation: str) -> Iterator[str]:
        """Return the ids of the messages that were moved, one for each item, in chunks: there may be millions."""
        table = self.items_table
        mine = sa.and_(table.c.operation == operation, table.c.outcome == str(ItemOutcome.MOVED))
        query = sa.select(table.c.number, table.c.id).where(mine).order_by(table.c.number).limit(_CHUNK)
        after = 0
        while True:
            with self.database.reading_connection() as connection:
                rows = connection.execute(query.where(table.c.number > after)).all()
            yield from (row.id for row in rows)
            if len(rows) < _CHUNK:
                return
            after = rows[-1].number

    # Forgetting ---------------------------------------------------------------------------------------

    def prune(self, older_than: timedelta, *, batch: int = 1000) -> int:
        """Forget the operations that were over longer ago than that, and their items, a little at a time. How many."""
        table, items = self.table, self.items_table
        ended_at = sa.func.coalesce(table.c.ended_at, table.c.beat_at, table.c.created_at, type_=table.c.ended_at.type)
        old = sa.select(table.c.id).where(~is_running(table), ended_at < datetime.now(UTC) - older_than)
        old_items = sa.select(items.c.number).where(items.c.operation.in_(old)).limit(batch)
        self.database.delete_in_batches(items, items.c.number.in_(old_items), batch)
        return self.database.delete_in_batches(table, table.c.id.in_(old.limit(batch)), batch)


# Rows -------------------------------------------------------------------------------------------------


def _order(order: OperationRequest) -> dict[str, Any]:
    """ASCII: so that it holds whatever a selection is made of, also what is no text."""
    return {"queue": order.queue, "asked": json.dumps(msgspec.to_builtins(order))}


def _progress(operation: Operation) -> dict[str, Any]:
    return {
        "state": str(operation.state),
        "scope": operation.scope,
        "step": operation.step,
        "started_at": operation.started_at,
        "beat_at": operation.beat_at,
        "ended_at": operation.ended_at,
        "owner": operation.owner,
        "note": redact_text(operation.note),
        **operation.counts.as_dict(),
    }


def _operation(row: Mapping[Any, Any]) -> Operation:
    try:
        order = msgspec.convert(json.loads(row["asked"]), OperationRequest)
        state = OperationState(row["state"])
    except (ValueError, ConfigurationError) as error:  # msgspec's ValidationError is a ValueError
        raise ConfigurationError(
            f"operation {row['id']} cannot be read: {error}. If a newer Redrive wrote it, upgrade this one"
        ) from error
    return Operation(
        id=row["id"],
        order=order,
        created_at=row["created_at"],
        state=state,
        counts=Counts(**{name: row[name] for name in _COUNTS}),
        scope=row["scope"],
        step=row["step"],
        started_at=row["started_at"],
        beat_at=row["beat_at"],
        ended_at=row["ended_at"],
        owner=row["owner"],
        note=row["note"],
    )


_COUNTS = tuple(Counts().as_dict())
_ITEM_COLUMNS = ("operation", "id", "outcome", "at", "message_id", "why", "destination")


def _item_row(operation: str, item: OperationItem) -> tuple[Any, ...]:
    why = redact_text(item.why) if item.why else ""
    return operation, item.id, str(item.outcome), item.at, item.message_id, why, item.to


def _item(row: Mapping[Any, Any]) -> OperationItem:
    outcome = ItemOutcome(row["outcome"])
    return OperationItem(row["id"], outcome, row["at"], row["message_id"], row["why"], row["destination"])


def _text(state: OperationState | None) -> str | None:
    return None if state is None else str(state)
