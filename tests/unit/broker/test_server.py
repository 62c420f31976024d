"""What a broker lets in, and where it listens."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.client import Connection, Properties
from redrive.errors import AuthenticationFailed, ConfigurationError
from redrive.testing.clock import ManualClock


def test_beyond_loopback_it_wants_users_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="lets others in"):
        BrokerServer(Broker(), host="0.0.0.0")


def test_beyond_loopback_it_is_fine_with_a_user_of_its_own() -> None:
    assert BrokerServer(Broker(users={"me": "secret"}), host="0.0.0.0").host == "0.0.0.0"


async def test_a_wrong_password_is_refused() -> None:
    async with BrokerServer(Broker(users={"me": "secret"})) as server:
        with pytest.raises(AuthenticationFailed, match="Login was refused"):
            await Connection(server.url.replace("//", "//me:wrong@")).open()


async def test_an_unknown_virtual_host_is_refused() -> None:
    async with BrokerServer(Broker()) as server:
        with pytest.raises(AuthenticationFailed, match="vhost nowhere not found"):
            await Connection(server.url + "nowhere").open()


async def test_a_broker_behind_a_file_alone_has_no_port(tmp_path: Path) -> None:
    async with BrokerServer(Broker(), host=None, path=tmp_path / "socket") as server:
        assert server.addresses == [f"unix:{tmp_path / 'socket'}"]
        assert not server.port


def test_a_broker_listens_somewhere() -> None:
    with pytest.raises(ConfigurationError, match="on a host, on a path, or on both"):
        BrokerServer(Broker(), host=None)


async def test_when_the_path_is_taken_the_port_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = BrokerServer(Broker(), path=tmp_path / "file")

    with pytest.raises(FileExistsError, match="not a socket"):
        await server.start()

    async with BrokerServer(Broker(), port=server.port):
        pass


async def test_a_stopped_broker_leaves_the_socket_of_its_successor_alone(tmp_path: Path) -> None:
    async with BrokerServer(Broker(), path=tmp_path / "socket"):
        (tmp_path / "socket").unlink()
        successor = await BrokerServer(Broker(), path=tmp_path / "socket").start()

    assert (tmp_path / "socket").is_socket()
    await successor.stop()
    assert not (tmp_path / "socket").exists()


async def test_what_falls_due_after_the_end_wakes_nobody_and_is_there_for_the_next(tmp_path: Path) -> None:
    """A process that goes on after it hosted a broker: an API, a demo, a test."""
    clock = ManualClock()
    journal = SQLiteJournal(tmp_path)
    async with BrokerServer(Broker(journal=journal, clock=clock)) as server, Connection(server.url) as connection:
        arguments = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await connection.declare_queue("waiting", arguments=arguments)
        await connection.declare_queue("dead")
        await connection.publish("", "waiting", b"it", Properties(delivery_mode=2))

    clock.advance(timedelta(seconds=1))  # would raise: nothing can be stored any more

    journal = SQLiteJournal(tmp_path)
    async with BrokerServer(Broker(journal=journal, clock=clock)) as server, Connection(server.url) as connection:
        assert (await connection.queue_info("dead")).messages == 1


def test_beyond_loopback_every_user_needs_a_password() -> None:
    with pytest.raises(ConfigurationError, match="users with passwords"):
        BrokerServer(Broker(users={"ada": "secret", "bob": ""}), host="0.0.0.0")
