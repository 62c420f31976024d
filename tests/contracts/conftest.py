"""Fixtures of the broker contract: what RabbitMQ promises, and every broker that wants to stand in for it must keep.

The tests know a broker by a URL (`amqp_url`, a virtual host of the test's own) and speak to it through the client. They
assert what AMQP 0-9-1 or RabbitMQ promises and nothing more. Where RabbitMQ's versions differ, the test asks for the
version and says what differs.

What the tables promise, they promise on SQLite and on PostgreSQL (`fresh_database`).
"""

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.client import Connection
from redrive.client.channel import Channel
from redrive.client.transport import open_transport
from redrive.client.url import BrokerURL
from redrive.database.engine import Database
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker

# The matrix asks for the versions of RabbitMQ one after the other; the embedded broker is the same beside each.
BROKERS = ["rabbitmq"] if os.environ.get("REDRIVE_RABBITMQ_ROOT") else ["rabbitmq", "memory", "sqlite"]


# Not for the whole session: a worker may run tests in between that look into the journal's own machinery.
@pytest.fixture(scope="module")
def memory_broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def sqlite_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    with ThreadedBroker(data=tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(params=BROKERS)
def amqp_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A virtual host of the test's own, on each broker that keeps the contract."""
    vhost = f"contract-{secrets.token_hex(8)}"
    if request.param == "rabbitmq":
        node: Endpoint = request.getfixturevalue("rabbitmq")
        node.add_vhost(vhost)
        yield node.url_for(vhost)
        node.delete_vhost(vhost)
    else:
        broker: ThreadedBroker = request.getfixturevalue(f"{request.param}_broker")
        yield broker.add_vhost(vhost)


@pytest.fixture
def management_url(request: pytest.FixtureRequest, amqp_url: str) -> str | None:  # noqa: ARG001 - whose it is
    """RabbitMQ's management API. The embedded broker has none: it tells everything over AMQP."""
    if request.node.callspec.params["amqp_url"] != "rabbitmq":
        return None
    node: Endpoint = request.getfixturevalue("rabbitmq")
    return f"http://guest:guest@127.0.0.1:{node.management_port}"


@pytest.fixture
def another_user(request: pytest.FixtureRequest, amqp_url: str) -> Iterator[str]:
    """The URL for somebody who is not guest, and may do the same."""
    name = f"ada-{secrets.token_hex(4)}"
    url = amqp_url.replace("guest:guest@", f"{name}:secret@")
    if request.node.callspec.params["amqp_url"] == "rabbitmq":
        node: Endpoint = request.getfixturevalue("rabbitmq")
        node.api(f"/users/{name}", "PUT", {"password": "secret", "tags": ""})
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        node.api(f"/permissions/{amqp_url.rpartition('/')[2]}/{name}", "PUT", rights)
        yield url
        node.api(f"/users/{name}", "DELETE")
    else:
        broker: ThreadedBroker = request.getfixturevalue(f"{request.node.callspec.params['amqp_url']}_broker")
        broker.call(lambda: broker.server.broker.users.update({name: "secret"}))
        yield url
        broker.call(lambda: broker.server.broker.users.pop(name))


@pytest.fixture(params=["sqlite", "postgresql"])
async def fresh_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Without a table in it."""
    if request.param == "sqlite":
        database = Database.embedded(tmp_path)
    else:
        url: str = request.getfixturevalue("postgres_url")
        database = Database(url.replace("postgresql://", "postgresql+psycopg://"))
    yield database
    await database.close()


@pytest.fixture
async def cleanliness() -> AsyncIterator[None]:
    """No task outlives its test, no exception escapes into the event loop, and no test waits for ever."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    alarm = threading.Timer(240, loop.call_soon_threadsafe, [_wake_up, loop])
    alarm.start()
    yield
    alarm.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    left_behind = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left_behind
    assert not complaints


def _wake_up(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel("the test hangs")


@pytest.fixture
async def connection(amqp_url: str, cleanliness: None) -> AsyncIterator[Connection]:  # noqa: ARG001 - before and after
    async with Connection(amqp_url, name="contract") as connection:
        yield connection


@pytest.fixture
async def channel(amqp_url: str, cleanliness: None) -> AsyncIterator[Channel]:  # noqa: ARG001
    """A channel as AMQP knows it, for what the client does not offer."""
    url = BrokerURL.parse(amqp_url)
    link = await open_transport(url, url.hosts[0], {}, lambda: None)
    yield await link.channel()
    await link.close()


@pytest.fixture
async def other(amqp_url: str, cleanliness: None) -> AsyncIterator[Connection]:  # noqa: ARG001
    """A second connection to the same virtual host."""
    async with Connection(amqp_url, name="contract, the other") as connection:
        yield connection
