"""RabbitMQ's management API, as far as a topology is concerned: what there is, and in what state.

It is the only way to list what a RabbitMQ holds; plain AMQP answers questions about known names. The URL is that of the
management plugin, `http://user:password@host:15672`, with a path in front of `/api` if a proxy adds one. Both the API
and the embedded broker describe exchanges, queues and bindings as rows, which are read here.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec

from redrive.errors import AccessRefused, ConfigurationError, ConnectionFailed, InvalidURL, NotFound
from redrive.inspection.policies import is_silent, with_policies
from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.snapshot import BrokerSnapshot, QueueState, Server

_Row: TypeAlias = "dict[str, Any]"
_PORTS = {"http": 15672, "https": 15671}
_QUEUE_COLUMNS = (
    *("name", "durable", "auto_delete", "exclusive", "arguments", "messages_ready", "messages_unacknowledged"),
    *("consumers", "policy", "effective_policy_definition"),
)

# A queue reports its figures every five seconds, and these are collected every five seconds: up to ten were measured,
# on 3.10, 4.0 and 4.3 alike. A broker with another `collect_statistics_interval` needs twice that.
LAG = timedelta(seconds=11)

# Messages of a queue that no consumer can get: delivered, dead-lettered and not yet confirmed elsewhere, delayed.
_HELD = ("messages_unacknowledged", "messages_dlx", "messages_delayed")


class Management:
    def __init__(self, url: str, *, timeout: float = 30) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidURL(f"management URL: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InvalidURL("management URL: want http://user:password@host:15672 or https://...")
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, port or _PORTS[parts.scheme]
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self._user = user

    def __str__(self) -> str:
        return f"{self._scheme}://{self._host}:{self._port}{self._path}"

    def __repr__(self) -> str:
        return f"<Management {self}>"

    async def snapshot(self, vhost: str) -> BrokerSnapshot:
        """Return everything in a virtual host. The figures of RabbitMQ's queues lag (`LAG`)."""
        at = quote(vhost, safe="")
        server = _server(await self.get("/overview"))
        queues = await self._with_policies(at, await self.queues(vhost, *_QUEUE_COLUMNS))
        return snapshot_of_rows(server, await self.get(f"/exchanges/{at}"), queues, await self.get(f"/bindings/{at}"))

    async def queues(self, vhost: str, *columns: str) -> list[_Row]:
        """Return the rows of the queues in a virtual host, with these columns and no others."""
        rows: list[_Row] = await self.get(f"/queues/{quote(vhost, safe='')}?columns={','.join(columns)}")
        return rows

    async def _with_policies(self, at: str, queues: list[_Row]) -> list[_Row]:
        if not any(map(is_silent, queues)):
            return queues
        try:
            policies = await self.get(f"/policies/{at}"), await self.get(f"/operator-policies/{at}")
        except AccessRefused:  # the policies stay unknown, and a peek that depends on them is refused
            return queues
        return [with_policies(row, *policies) if is_silent(row) else row for row in queues]

    async def definitions(self) -> _Row:
        """Return the definitions.json of the broker."""
        whole: _Row = await self.get("/definitions")
        return whole

    async def get(self, path: str) -> Any:
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> Any:
        connection = self._connection()
        try:
            connection.request("GET", f"{self._path}/api{path}", headers={"Authorization": self._authorization})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"the management API at {self} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise self._refusal(response.status, path, answer)
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            raise ConfigurationError(f"what answers at {self} is not RabbitMQ's management API") from None

    def _connection(self) -> http.client.HTTPConnection:
        if self._scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _refusal(self, status: int, path: str, answer: bytes) -> Exception:
        said = answer[:200].decode(errors="replace")
        if status in (401, 403):
            return AccessRefused(403, f"the management API refuses user {self._user}: give it the tag 'monitoring'")
        if status == 404:
            return NotFound(404, f"the management API knows no {path.partition('?')[0]}")
        return ConnectionFailed(f"the management API at {self} answered {status}: {said}")


def _server(overview: _Row) -> Server:
    types = {row["name"] for row in overview.get("exchange_types", ())}
    version = str(overview.get("rabbitmq_version", "")).split("+")[0].split("-")[0]
    numbers = tuple(int(number) for number in version.split(".") if number.isdigit())
    return Server(numbers, delayed_exchanges="x-delayed-message" in types)


# Rows ---------------------------------------------------------------------------------------------


def snapshot_of_rows(server: Server, exchanges: list[_Row], queues: list[_Row], bindings: list[_Row]) -> BrokerSnapshot:
    """Return everything but exclusive queues: they belong to a connection, not to a topology."""
    exclusive = {row["name"] for row in queues if row.get("exclusive")}
    rows = [row for row in queues if row["name"] not in exclusive]
    found = [row for row in bindings if row["destination_type"] != "queue" or row["destination"] not in exclusive]
    return BrokerSnapshot(
        server=server,
        definitions=Definitions.of(_exchanges(exchanges), map(_queue, rows), _bindings(found)),
        complete=True,
        queues={row["name"]: _state(row, server) for row in rows},
    )


def _exchanges(rows: Iterable[_Row]) -> Iterable[ExchangeDefinition]:
    for row in rows:
        if row["name"]:  # the default exchange always exists
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
        effective_policy=policy if isinstance(policy, dict) else {},  # 3.x reports [] for none
        policy_unknown=is_silent(row) and not server.embedded,  # which has no policies
    )


# Watching -----------------------------------------------------------------------------------------


class ManagementMonitor:
    """What a migration asks about the queues of a virtual host."""

    def __init__(self, management: Management, vhost: str, *, lag: timedelta = LAG) -> None:
        self.lag = lag
        self._management = management
        self._vhost = vhost

    async def snapshot(self) -> BrokerSnapshot:
        return await self._management.snapshot(self._vhost)

    async def count_held(self, queue: str) -> int | None:
        row = await self._row(queue)
        figures = [figure for name in _HELD if isinstance(figure := row.get(name), int)]
        return sum(figures) if figures else None

    async def consumers(self, queue: str) -> Sequence[str]:
        details = (await self._row(queue)).get("consumer_details", ())
        channels = [consumer.get("channel_details") or {} for consumer in details]
        return tuple(f"{channel.get('user', '?')} at {channel.get('connection_name', '?')}" for channel in channels)

    async def _row(self, queue: str) -> _Row:
        row: _Row = await self._management.get(f"/queues/{quote(self._vhost, safe='')}/{quote(queue, safe='')}")
        return row

    def __repr__(self) -> str:
        return f"<ManagementWatcher of {self._vhost} over {self._management}>"
