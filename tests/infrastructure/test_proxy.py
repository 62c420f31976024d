"""The fault proxy breaks connections in exactly the way asked for. The server behind it echoes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from redrive.testing import free_port
from tests.support.proxy import FaultProxy

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def network() -> AsyncIterator[FaultProxy]:
    port = free_port()
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    async with FaultProxy(f"amqp://guest:secret@127.0.0.1:{port}/vhost?heartbeat=5") as proxy:
        yield proxy
    server.close()


@asynccontextmanager
async def connected(network: FaultProxy) -> AsyncIterator[Stream]:
    reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def exchange(stream: Stream, data: bytes) -> bytes:
    reader, writer = stream
    writer.write(data)
    return await reader.readexactly(len(data))


async def hears_nothing(stream: Stream) -> bool:
    """That something does not come can only be shown by giving it time to come."""
    try:
        await asyncio.wait_for(stream[0].read(1), timeout=0.05)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_both_ways_in_order(network: FaultProxy) -> None:
    data = bytes(range(256)) * 4_000

    async with connected(network) as stream:
        assert await exchange(stream, data) == data


async def test_the_url_is_the_servers_with_another_port(network: FaultProxy) -> None:
    assert network.url == f"amqp://guest:secret@127.0.0.1:{network.port}/vhost?heartbeat=5"


def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="a host and a port"):
        FaultProxy("amqp://localhost/")


async def test_the_end_of_a_stream_passes_too(network: FaultProxy) -> None:
    async with connected(network) as (reader, writer):
        writer.write(b"last words")
        writer.write_eof()

        assert await reader.read() == b"last words"


async def test_cut_resets_all_connections_and_serves_new_ones(network: FaultProxy) -> None:
    async with connected(network) as first, connected(network) as second:
        assert await exchange(first, b"x") + await exchange(second, b"y") == b"xy"

        network.cut()

        for reader, _ in (first, second):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
    async with connected(network) as third:
        assert await exchange(third, b"z") == b"z"
        assert network.accepted == 3


async def test_a_stalled_network_is_silent_until_it_resumes(network: FaultProxy) -> None:
    async with connected(network) as stream:
        await exchange(stream, b"x")

        network.stall()
        stream[1].write(b"held back")
        assert await hears_nothing(stream)
        network.resume()

        assert await stream[0].readexactly(9) == b"held back"


async def test_a_stalled_network_accepts_connections_and_says_nothing(network: FaultProxy) -> None:
    network.stall()

    async with connected(network) as stream:
        await network.wait_for(lambda proxy: proxy.connections == 1)
        stream[1].write(b"hello?")
        assert await hears_nothing(stream)
        assert "STALLED" in repr(network)
        network.resume()
        assert await stream[0].readexactly(6) == b"hello?"


async def test_a_stalled_network_can_be_cut(network: FaultProxy) -> None:
    async with connected(network) as stream:
        await exchange(stream, b"x")
        network.stall()
        stream[1].write(b"held back")

        network.cut()

        with pytest.raises(ConnectionResetError):
            await stream[0].read(1)
        await network.wait_for(lambda proxy: proxy.connections == 0)


async def test_answers_alone_can_be_stalled() -> None:
    arrived = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        arrived.set()
        await reader.read()
        writer.close()

    port = free_port()
    server = await asyncio.start_server(receive, "127.0.0.1", port)
    async with FaultProxy(f"tcp://127.0.0.1:{port}") as network, connected(network) as stream:
        network.stall(to="client")
        stream[1].write(b"hello")

        async with asyncio.timeout(10):
            await arrived.wait()
        assert await hears_nothing(stream)
    server.close()


async def test_a_refusing_network_refuses_until_it_accepts_on_the_same_port(network: FaultProxy) -> None:
    async with connected(network) as before:
        await exchange(before, b"x")
        network.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", network.port)
        assert await exchange(before, b"y") == b"y"

        await network.accept()

        async with connected(network) as after:
            assert await exchange(after, b"z") == b"z"


@pytest.mark.parametrize("size", [0, 1, 7, 10])
async def test_a_truncated_stream_ends_after_exactly_so_many_bytes_once(network: FaultProxy, size: int) -> None:
    network.truncate_after(size, to="client")

    async with connected(network) as (reader, writer):
        writer.write(b"0123456789")
        assert await reader.read() == b"0123456789"[:size]
    async with connected(network) as stream:
        assert await exchange(stream, b"0123456789") == b"0123456789"


async def test_a_slow_network_delays(network: FaultProxy) -> None:
    network.delay = timedelta(milliseconds=30)
    loop = asyncio.get_running_loop()

    async with connected(network) as stream:
        started = loop.time()
        await exchange(stream, b"x")

    assert loop.time() - started >= 0.06  # there and back


async def test_a_client_of_a_dead_server_is_told_so() -> None:
    async with FaultProxy(f"tcp://127.0.0.1:{free_port()}") as network, connected(network) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_the_proxy_introduces_itself(network: FaultProxy) -> None:
    async with connected(network) as stream:
        await exchange(stream, b"x")

        assert repr(network) == f"<FaultProxy port={network.port} ACCEPTING connections=1/1>"
        network.refuse()
        assert "REFUSING" in repr(network)


async def test_in_front_of_several_servers_it_finds_one_that_answers() -> None:
    ports = [free_port() for _ in range(3)]
    server = await asyncio.start_server(echo, "127.0.0.1", ports[1])
    async with FaultProxy(*(f"amqp://127.0.0.1:{port}/" for port in ports)) as network:
        for _ in ports:  # whoever's turn it is
            async with connected(network) as stream:
                assert await exchange(stream, b"there") == b"there"
    server.close()
