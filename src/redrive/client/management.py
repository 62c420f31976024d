"""RabbitMQ's management API, as far as a topology is concerned: what is there, and what state it is in.

It is the only way to list what a RabbitMQ holds; plain AMQP answers questions about names one knows. The URL is that
of the management plugin, `http://user:password@host:15672`, with a path in front of `/api` if a proxy adds one.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec

from redrive.client.policies import is_silent, with_policies
from redrive.client.rows import survey_of_rows
from redrive.errors import AccessRefused, ConfigurationError, ConnectionFailed, InvalidURL, NotFound
from redrive.topology.server import Server
from redrive.topology.survey import Survey

_Row: TypeAlias = "dict[str, Any]"
_PORTS = {"http": 15672, "https": 15671}
_QUEUE_COLUMNS = (
    "name,durable,auto_delete,exclusive,arguments,messages_ready,messages_unacknowledged,consumers,policy,"
    "effective_policy_definition"
)


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

    # Looking ------------------------------------------------------------------------------------------

    async def survey(self, vhost: str) -> Survey:
        """Everything in a virtual host. The figures of RabbitMQ's queues lag up to five seconds behind."""
        at = quote(vhost, safe="")
        overview = await self.get("/overview")
        queues, exchanges, bindings = (
            await self.get(f"/queues/{at}?columns={_QUEUE_COLUMNS}"),
            await self.get(f"/exchanges/{at}"),
            await self.get(f"/bindings/{at}"),
        )
        return survey_of_rows(_server(overview), exchanges, await self._with_policies(at, queues), bindings)

    async def _with_policies(self, at: str, queues: list[_Row]) -> list[_Row]:
        if not any(map(is_silent, queues)):
            return queues
        try:
            policies = await self.get(f"/policies/{at}"), await self.get(f"/operator-policies/{at}")
        except AccessRefused:  # then they stay silent, and who would look into one is told that nobody knows
            return queues
        return [with_policies(row, *policies) if is_silent(row) else row for row in queues]

    async def definitions(self, vhost: str | None = None) -> _Row:
        """The definitions.json of the broker, or of one virtual host."""
        whole: _Row = await self.get("/definitions" if vhost is None else f"/definitions/{quote(vhost, safe='')}")
        return whole

    async def get(self, path: str) -> Any:
        return await asyncio.to_thread(self._ask, "GET", path)

    def _ask(self, verb: str, path: str) -> Any:
        connection = self._connection()
        try:
            connection.request(verb, f"{self._path}/api{path}", headers={"Authorization": self._authorization})
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
