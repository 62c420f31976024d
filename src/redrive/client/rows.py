"""The rows in which RabbitMQ's management API, and the embedded broker after it, tell what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from redrive.client.policies import is_silent
from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.server import Server
from redrive.topology.survey import QueueState, Survey

_Row: TypeAlias = "dict[str, Any]"


def survey_of_rows(server: Server, exchanges: list[_Row], queues: list[_Row], bindings: list[_Row]) -> Survey:
    """Everything but exclusive queues: they belong to a connection, not to a topology."""
    exclusive = {row["name"] for row in queues if row.get("exclusive")}
    rows = [row for row in queues if row["name"] not in exclusive]
    found = [row for row in bindings if row["destination_type"] != "queue" or row["destination"] not in exclusive]
    return Survey(
        server=server,
        definitions=Definitions.of(_exchanges(exchanges), map(_queue, rows), _bindings(found)),
        complete=True,
        queues={row["name"]: _state(row, server) for row in rows},
    )


def _exchanges(rows: Iterable[_Row]) -> Iterable[ExchangeDefinition]:
    for row in rows:
        if row["name"]:  # the default exchange goes without saying
            yield ExchangeDefinition(
                row["name"], row["type"], row["durable"], row["auto_delete"], row["internal"], row["arguments"]
            )


def _queue(row: _Row) -> QueueDefinition:
    return QueueDefinition(row["name"], row["durable"], row["auto_delete"], row["arguments"])


def _bindings(rows: Iterable[_Row]) -> Iterable[BindingDefinition]:
    for row in rows:
        if row["source"]:
            yield BindingDefinition(
                row["source"], row["destination"], row["routing_key"], row["destination_type"], row["arguments"]
            )


def _state(row: _Row, server: Server) -> QueueState:
    policy = row.get("effective_policy_definition") or {}
    return QueueState(
        messages=row.get("messages_ready"),
        unacknowledged=row.get("messages_unacknowledged"),
        consumers=row.get("consumers"),
        policy=row.get("policy") or None,
        effective_policy=policy if isinstance(policy, dict) else {},  # 3.x says [] for none
        policy_unknown=is_silent(row) and not server.embedded,  # which has no policies
    )
