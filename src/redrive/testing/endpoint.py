"""Where a RabbitMQ node answers: its URLs and its management API.

This is all that a test may know about a node it shares with others: it can connect and make virtual hosts, but not stop
it. A node of one's own (`rabbitmq.RabbitMQ`) is an endpoint with a process behind it.
"""

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from redrive.testing.certificates import TLSFiles
from redrive.testing.ports import LOOPBACK

_AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


class ApiError(RuntimeError):
    """The management API answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False, repr=False)
class Endpoint:
    """The address of a running node. `version` is (3, 10, 8); ports that are not served are None."""

    name: str
    version: tuple[int, ...]
    port: int
    tls_port: int | None = None
    management_port: int | None = None
    tls: TLSFiles | None = None

    @property
    def url(self) -> str:
        return self.url_for("/")

    def url_for(self, vhost: str) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/{quote(vhost, safe='')}"

    @property
    def tls_url(self) -> str:
        """Without query: add `?` and one of the queries of `TLSFiles` to say whom to trust."""
        if self.tls_port is None:
            raise RuntimeError(f"{self.name} was made without TLS: RabbitMQ(..., tls=make_certificates(...))")
        return f"amqps://guest:guest@localhost:{self.tls_port}/%2F"

    def api(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Ask the management API: `api("/queues/%2F")`. Returns the decoded JSON, None when there is none."""
        if self.management_port is None:
            raise RuntimeError(f"{self.name} was made without management: RabbitMQ(..., management=True)")
        connection = http.client.HTTPConnection(LOOPBACK, self.management_port, timeout=30)
        try:
            headers = {"Authorization": _AUTHORIZATION, "Content-Type": "application/json"}
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            said = answer.decode(errors="replace")
            raise ApiError(response.status, f"{method} /api{path}: {response.status} {said}")
        return json.loads(answer) if answer else None

    def add_vhost(self, vhost: str) -> None:
        """Make a virtual host in which guest may do everything (the management API grants that to its maker)."""
        self.api(f"/vhosts/{quote(vhost, safe='')}", "PUT", {})

    def delete_vhost(self, vhost: str) -> None:
        self.api(f"/vhosts/{quote(vhost, safe='')}", "DELETE")

    def __repr__(self) -> str:
        version = ".".join(map(str, self.version))
        return f"<Endpoint RabbitMQ {version} {self.name}@localhost port={self.port}>"
