"""One function inspects a broker, whichever it is."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redrive.client import Connection
from redrive.inspection import inspect_broker
from redrive.testing.broker import ThreadedBroker
from redrive.topology import Queue, Server, Topology
from redrive.topology.snapshot import QueueState

QUEUE = {"name": "orders", "durable": True, "auto_delete": False, "arguments": {}, "messages_ready": 3}
ANSWERS = {
    "/api/overview": {"rabbitmq_version": "4.0.5", "exchange_types": [{"name": "x-delayed-message"}]},
    "/api/queues/shop": [QUEUE],
    "/api/exchanges/shop": [],
    "/api/bindings/shop": [],
}


class ManagementServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://guest:guest@127.0.0.1:{self.server_port}"
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        cast("ManagementServer", self.server).requests.append(path)
        body = json.dumps(ANSWERS[path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def management() -> Iterator[ManagementServer]:
    with ManagementServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_the_management_api_is_asked_once_for_the_server_and_for_each_list(management: ManagementServer) -> None:
    connection = cast("Connection", SimpleNamespace(url=SimpleNamespace(virtual_host="shop")))

    snapshot = await inspect_broker(connection, Topology(), management.url)

    assert management.requests == ["/api/overview", "/api/queues/shop", "/api/exchanges/shop", "/api/bindings/shop"]
    assert snapshot.complete
    assert snapshot.server == Server((4, 0, 5), delayed_exchanges=True)
    assert snapshot.state("orders") == QueueState(messages=3)


async def test_the_embedded_broker_lists_also_what_the_topology_does_not_ask_for() -> None:
    with ThreadedBroker() as broker:
        async with Connection(broker.url) as connection:
            await connection.declare_queue("orders")
            await connection.declare_queue("bills")

            snapshot = await inspect_broker(connection, Topology(queues=[Queue("orders")]))

    assert snapshot.complete
    assert snapshot.server.embedded
    assert {queue.name for queue in snapshot.definitions.queues} == {"orders", "bills"}
