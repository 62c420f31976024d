"""A message that is published if, and only if, the transaction commits.

    with Session(engine) as session, session.begin():
        session.add(Order(...))
        outbox.add(session, "events", "order.placed", {"id": 7})

The row is written by the caller's own session, in the caller's own transaction: there is no moment in which one of
the two is stored and the other is not. A relay publishes it afterwards (`redrive outbox relay`, or within the
worker).

For code that has no SQLAlchemy session, `Outbox.statement` is the insert, to be executed by whoever has a connection,
and docs/outbox.md has it as SQL.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack, overload

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from redrive.checks import checked
from redrive.database.application_tables import OutboxNames, outbox_table
from redrive.errors import ConfigurationError
from redrive.outbox.envelope import Envelope
from redrive.outbox.mode import OutboxMode
from redrive.recovery.durations import Duration, duration
from redrive.topology.model import Exchange
from redrive.wire.properties import PERSISTENT, Properties
from redrive.worker.codecs import Codecs
from redrive.worker.message import current_message
from redrive.worker.publisher import uuid7

LONGEST_NAME = 255
LARGEST_BODY = 16 * 1024 * 1024  # RabbitMQ 4's own limit

SyncPlace = Session | scoped_session[Session] | sa.Connection
AsyncPlace = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection


@checked("outbox_policy")
@dataclass(frozen=True, slots=True)
class OutboxPolicy:
    """`attempts`: how often a row that the broker refuses is tried before it is parked. `keep`: published rows are
    kept for so long; None deletes them at once. `transport`: RABBIT, for a relay and a worker, or LOCAL, for consumers
    in the application's own process; None asks the environment.
    """

    attempts: int = 10  # how often a row that the broker refuses is tried before it is parked
    keep: Duration | None = None  # published rows are kept for so long; None deletes them at once
    largest_body: int = LARGEST_BODY  # bytes; a larger message is refused when it is added
    transport: OutboxMode | str | None = None  # RABBIT, or LOCAL: handled in the application's own process

    def __post_init__(self) -> None:
        for name in ("attempts", "largest_body"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"outbox_policy.{name} {getattr(self, name)}: want at least 1", option=name)
        if self.keep is not None:
            duration(self.keep, "outbox_policy.keep")
        if self.transport is not None:
            OutboxMode.of(self.transport)


class RowOptions(TypedDict, total=False):
    """The options of a message in the outbox, as keyword arguments."""

    message_id: str | None
    type: str | None
    headers: Mapping[str, Any] | None
    content_type: str | None
    correlation_id: str | None
    ordering_key: str | None
    envelope: Envelope | None
    priority: int | None


class Outbox:
    """Writes messages into the outbox table, as part of the caller's transaction."""

    def __init__(
        self,
        names: OutboxNames = OutboxNames(),  # noqa: B008 - frozen
        *,
        metadata: sa.MetaData | None = None,
        app: str = "redrive",
        codecs: Codecs | None = None,
        policy: OutboxPolicy = OutboxPolicy(),  # noqa: B008 - frozen
    ) -> None:
        """`metadata`: your own, if the table is to be part of your own migrations."""
        self.names = names
        self.table = outbox_table(metadata if metadata is not None else sa.MetaData(), names)
        self.policy = policy
        self._app = app
        self._codecs = codecs or Codecs()

    @overload
    def add(
        self,
        session: SyncPlace,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        **options: Unpack[RowOptions],
    ) -> str: ...

    @overload
    async def add(
        self,
        session: AsyncPlace,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        **options: Unpack[RowOptions],
    ) -> str: ...

    def add(
        self, session: Any, exchange: str | Exchange, routing_key: str, body: Any, **options: Unpack[RowOptions]
    ) -> Any:
        """Write a message into the outbox, as part of the session's transaction. Return the message's id.

        `session` is a `Session`, `scoped_session` or `Connection` of SQLAlchemy, whatever its driver. With an
        `AsyncSession`, `async_scoped_session` or `AsyncConnection`, await it. For connections of other libraries, `row`
        has the columns and their values. The options are those of `row`.
        """
        row = self.row(exchange, routing_key, body, **options)
        insert = sa.insert(self.table).values(**row)
        if isinstance(session, AsyncSession | async_scoped_session | AsyncConnection):
            return _add_async(session, insert, row["message_id"])
        if not isinstance(session, Session | scoped_session | sa.Connection):
            raise ConfigurationError(
                f"outbox.add wants a Session, AsyncSession or Connection of SQLAlchemy, not {type(session).__name__}: "
                "for another driver, execute an INSERT with the columns of outbox.row(...)"
            )
        session.execute(insert)
        return row["message_id"]

    def statement(
        self, exchange: str | Exchange, routing_key: str, body: Any, **options: Unpack[RowOptions]
    ) -> sa.Insert:
        """Return the INSERT of a message, for a session of another kind. The options are those of `row`."""
        return sa.insert(self.table).values(**self.row(exchange, routing_key, body, **options))

    def row(
        self,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        *,
        message_id: str | None = None,
        type: str | None = None,
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        correlation_id: str | None = None,
        ordering_key: str | None = None,
        envelope: Envelope | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        """Return the columns of a message's row.

        message_id: its id; by default a UUIDv7
        type: what kind of message it is
        headers: its headers
        content_type: how the body is encoded; by default as JSON, or as it is if it is bytes or a text
        correlation_id: the id of what it belongs to; by default that of the message being handled, or its own
        ordering_key: messages with the same key are published in the order of their rows
        envelope: wrap the body, `Envelope(...)` or `CloudEvent(...)`
        priority: its priority, on queues that have priorities
        """
        now = datetime.now(UTC)
        identity = message_id or str(uuid7(now, secrets.token_bytes(10)))
        handled = current_message.get()
        correlation = correlation_id or (handled.correlation_id if handled is not None else None) or identity
        if envelope is not None:
            body = envelope.wrap(body, event_id=identity, type=type, correlation_id=correlation, occurred_at=now)
            content_type = content_type or envelope.content_type
        encoded, written_as = self._codecs.encode(body, content_type)
        name = exchange.name if isinstance(exchange, Exchange) else exchange
        self._check(name, routing_key, identity, ordering_key, encoded)
        properties = Properties(
            content_type=written_as,
            headers=dict(headers) if headers else None,
            delivery_mode=PERSISTENT,
            priority=priority,
            correlation_id=correlation,
            message_id=identity,
            timestamp=now,
            type=type,
            app_id=self._app,
        )
        return {
            "message_id": identity,
            "exchange": name,
            "routing_key": routing_key,
            "body": encoded,
            "properties": properties.encode(),
            "ordering_key": ordering_key,
        }

    def _check(self, exchange: str, routing_key: str, identity: str, ordering_key: str | None, body: bytes) -> None:
        """What no broker would take is refused here, where the caller can still do something about it."""
        texts = {"exchange": exchange, "routing_key": routing_key, "message_id": identity, "ordering_key": ordering_key}
        for name, text in texts.items():
            if text is not None and len(text.encode()) > LONGEST_NAME:
                raise ConfigurationError(f"outbox: {name} has {len(text.encode())} bytes, and {LONGEST_NAME} fit")
        if len(body) > self.policy.largest_body:
            raise ConfigurationError(
                f"outbox: a body of {len(body):,} bytes, and the broker takes {self.policy.largest_body:,}: store it "
                "elsewhere and send its address"
            )

    def __repr__(self) -> str:
        return f"<Outbox {self.names.table}>"


async def _add_async(session: AsyncPlace, insert: sa.Insert, identity: str) -> str:
    await session.execute(insert)
    return identity
