"""Clients that misbehave: the broker stays up, its memory bounded, and others do not notice."""

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

import pytest

from fuzzing.listening import Input, inputs, tell
from interop.embedded import EmbeddedBroker, eventually
from interop.neighbour import Neighbour
from interop.raw import OPEN, START_OK, RawClient, tune_ok
from redrive.broker import session
from redrive.client import Connection, ConsumerState, Delivery
from redrive.testing.broker import ThreadedBroker
from redrive.wire.frames import CONTENT_HEAD, HEADER, PROTOCOL_HEADER, method_frame
from redrive.wire.methods.basic import BasicAck, BasicConsume, BasicGet, BasicPublish, BasicRecover
from redrive.wire.methods.channel import ChannelClose, ChannelOpen
from redrive.wire.methods.connection import ConnectionClose, ConnectionCloseOk
from redrive.wire.methods.queue import QueueDeclare
from tests.support.connection_pair import frame

MB = 1024 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path) as broker:
        yield broker
        assert broker.running
        assert "a fault of the broker's own" not in broker.log.read_text()
        assert "Traceback" not in broker.log.read_text()


# Those who do not read ----------------------------------------------------------------------------------


async def fill(url: str, queues: list[str], *, messages: int, size: int) -> None:
    """The same messages into all of these queues: the broker holds each body once."""
    async with Connection(url) as connection:
        await connection.declare_exchange("all", "fanout")
        for queue in queues:
            await connection.declare_queue(queue)
            await connection.bind_queue(queue, "all")
        await asyncio.gather(*(connection.publish("all", "", bytes(size)) for _ in range(messages)))


async def test_consumers_that_never_read_cost_next_to_nothing(broker: EmbeddedBroker) -> None:
    """Ten are owed 30 MB each. They get it, when they read at last."""
    queues = [f"slow{number}" for number in range(10)]
    await fill(broker.url, queues, messages=300, size=100_000)
    before = broker.memory
    with Neighbour(broker.url), ExitStack() as stack:
        readers = [stack.enter_context(RawClient(broker.port).open()) for _ in queues]
        heard = [len(reader.call(BasicConsume(queue=queue))) for reader, queue in zip(readers, queues, strict=True)]
        async with Connection(broker.url) as connection:
            assert (await connection.queue_info("slow0")).consumers == 1

        assert broker.memory - before < 40 * MB

        while heard[0] < 300 * 100_000:
            heard[0] += len(readers[0].socket.recv(MB))


def flooded(client: RawClient, question: bytes, most: int) -> int:
    """Ask without reading answers until nobody listens any more. How many bytes were taken."""
    sent, block = 0, question * (100_000 // len(question))
    client.socket.settimeout(1)
    try:
        while sent < most:
            sent += client.socket.send(block)
    except TimeoutError:
        pass
    return sent


def test_who_does_not_read_answers_is_not_listened_to(broker: EmbeddedBroker) -> None:
    with Neighbour(broker.url), RawClient(broker.port, receives=65536).open() as client:
        client.call(QueueDeclare(queue="asked"))
        before = broker.memory

        taken = flooded(client, method_frame(1, QueueDeclare(queue="asked", passive=True)), most=100 * MB)

        assert taken < 50 * MB
        assert broker.memory - before < 40 * MB


def test_small_questions_with_large_answers_do_not_fill_the_memory(broker: EmbeddedBroker) -> None:
    """The same message of 1 MB, got and given back thousands of times by a few hundred kilobytes."""
    with Neighbour(broker.url), RawClient(broker.port).open() as client:
        client.call(QueueDeclare(queue="large"))
        client.tell(BasicPublish(routing_key="large"), body=bytes(MB))
        before = broker.memory

        flooded(client, method_frame(1, BasicGet(queue="large")) + method_frame(1, BasicRecover(requeue=True)), most=MB)

        eventually(lambda: broker.memory - before < 40 * MB)


# Those who do not ack -----------------------------------------------------------------------------------


async def test_a_client_that_never_acks_harms_nobody_and_loses_nothing(broker: EmbeddedBroker) -> None:
    count = 20_000
    async with Connection(broker.url) as connection:
        await connection.declare_queue("orders")
        for start in range(0, count, 1000):
            numbers = range(start, start + 1000)
            await asyncio.gather(*(connection.publish("", "orders", str(number).encode()) for number in numbers))
        with Neighbour(broker.url):
            with RawClient(broker.port).open() as hoarder:
                hoarder.call(BasicConsume(queue="orders", consumer_tag="hoarder"))
                while (await connection.queue_info("orders")).messages:
                    hoarder.socket.recv(MB)
                await connection.publish("", "orders", str(count).encode())  # the hoarder gets that, too

            numbers_again = await drained(connection, "orders", count + 1)
        assert [number for number, _ in numbers_again] == list(range(count + 1))
        assert all(redelivered for _, redelivered in numbers_again)


async def drained(connection: Connection, queue: str, count: int) -> list[tuple[int, bool]]:
    found: list[tuple[int, bool]] = []
    everything = asyncio.Event()

    async def keep(delivery: Delivery) -> None:
        found.append((int(delivery.body), delivery.redelivered))
        delivery.ack()
        if len(found) == count:
            everything.set()

    async with await connection.consume(queue, keep, prefetch=1000) as consumer, asyncio.timeout(30):
        await consumer.until(ConsumerState.CONSUMING)
        await everything.wait()
    return found


# Those who say nothing ----------------------------------------------------------------------------------


def silent(_: RawClient) -> None:
    pass


def half_a_greeting(client: RawClient) -> None:
    client.socket.sendall(PROTOCOL_HEADER[:4])


def greeting(client: RawClient) -> None:
    client.ask(PROTOCOL_HEADER)


def logged_in(client: RawClient) -> None:
    client.log_in()


def tuned_without_heartbeats(client: RawClient) -> None:
    client.log_in().socket.sendall(tune_ok(heartbeat=0))


@pytest.mark.parametrize("go", [silent, half_a_greeting, greeting, logged_in, tuned_without_heartbeats])
def test_who_does_not_finish_the_handshake_is_shown_out(
    go: Callable[[RawClient], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANDSHAKE_WITHIN", 0.3)
    with ThreadedBroker() as broker, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.server.port)) for _ in range(40)]
        patient = stack.enter_context(RawClient(broker.server.port).open())
        for client in clients:
            go(client)

        for client in clients:
            client.until_closed()

        assert len(broker.server.broker.sessions) == 1  # who did finish it stays
        patient.call(QueueDeclare(queue="q"))


def test_two_hundred_silent_connections_are_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HANDSHAKE_WITHIN", 0.3)
    with ThreadedBroker() as broker, Neighbour(broker.url), ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.server.port)) for _ in range(200)]

        assert [client.until_closed() for client in clients] == [b""] * 200


def test_who_takes_its_time_and_finishes_is_let_in(broker: EmbeddedBroker) -> None:
    """Byte by byte."""
    with RawClient(broker.port) as client:
        for octet in PROTOCOL_HEADER[:-1]:
            client.socket.sendall(bytes((octet,)))
        client.ask(PROTOCOL_HEADER[-1:])
        client.ask(START_OK)
        for octet in tune_ok() + OPEN[:-1]:
            client.socket.sendall(bytes((octet,)))
        assert client.ask(OPEN[-1:])


# Those who are many -------------------------------------------------------------------------------------


def allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            pytest.skip(f"this system allows {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


async def hold_many(broker: EmbeddedBroker, *, connections: int, queues: int) -> None:
    with Neighbour(broker.url), ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.port).open()) for _ in range(connections)]
        async with Connection(broker.url) as connection:
            for start in range(0, queues, 500):
                numbers = range(start, min(start + 500, queues))
                await asyncio.gather(*(connection.declare_queue(f"idle{number}") for number in numbers))
            await connection.publish("", f"idle{queues - 1}", b"still awake")
            delivery = await connection.get(f"idle{queues - 1}")
            assert delivery is not None
            delivery.ack()
        for client in (clients[0], clients[-1]):
            client.call(QueueDeclare(queue="idle0", passive=True, durable=True))
        assert broker.memory < 60 * MB + connections * 50_000 + queues * 10_000


async def test_hundreds_of_connections_and_thousands_of_queues_are_no_trouble(broker: EmbeddedBroker) -> None:
    await hold_many(broker, connections=300, queues=2_000)


@pytest.mark.slow
async def test_a_thousand_connections_and_ten_thousand_queues_are_no_trouble(tmp_path: Path) -> None:
    allow_files(4096)
    with EmbeddedBroker(tmp_path) as broker:
        begun = time.monotonic()
        await hold_many(broker, connections=1_000, queues=10_000)
        assert time.monotonic() - begun < 60


# Those who talk nonsense ----------------------------------------------------------------------------------


def bombard(broker: EmbeddedBroker, stream: Iterator[Input], sockets: int) -> int:
    """Tell the broker all of these inputs, several at a time."""

    def tell_some() -> int:
        told = 0
        while (item := take()) is not None:
            tell(broker.port, *item)
            told += 1
        return told

    take = _shared(stream)
    with ThreadPoolExecutor(sockets) as pool:
        return sum(future.result() for future in [pool.submit(tell_some) for _ in range(sockets)])


def _shared(stream: Iterator[Input]) -> Callable[[], Input | None]:
    lock = Lock()

    def take() -> Input | None:
        with lock:
            return next(stream, None)

    return take


def test_thousands_of_broken_inputs_leave_the_broker_and_others_unharmed(broker: EmbeddedBroker) -> None:
    before = broker.memory
    with Neighbour(broker.url) as neighbour:
        assert bombard(broker, inputs(seed=1, count=2_000), sockets=4) == 2_000

    assert neighbour.trips > 10
    assert broker.memory - before < 40 * MB


@pytest.mark.slow
def test_half_a_million_broken_inputs_leave_the_broker_and_others_unharmed(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before, begun = broker.memory, time.monotonic()
    with Neighbour(broker.url) as neighbour:
        assert bombard(broker, inputs(seed=2, count=500_000), sockets=8) == 500_000
    grown = broker.memory - before
    with capsys.disabled():
        print(
            f"\n500000 broken inputs in {time.monotonic() - begun:.0f} s: {grown // MB} MB more memory, {neighbour!r}"
        )
    assert grown < 100 * MB


def test_a_refusal_can_quote_what_is_no_text(broker: EmbeddedBroker) -> None:
    """An expiration that is neither a number nor UTF-8: found by the half million."""
    with RawClient(broker.port).open() as client:
        publish = method_frame(1, BasicPublish(routing_key="q"))
        properties = b"\x01\x00" + b"\x0560\xce00"  # the flags, and an expiration
        header = frame(HEADER, 1, CONTENT_HEAD.pack(60, 0, 0) + properties)

        refused = client.ask(publish + header)

        assert b"PRECONDITION_FAILED - invalid expiration '6000'" in refused
        client.ask(method_frame(2, ChannelOpen()))  # the channel ended, and not the connection


# Those who are only quick ---------------------------------------------------------------------------------


def test_a_farewell_right_behind_a_question_is_no_fault(broker: EmbeddedBroker) -> None:
    """One read brings both. The client has stopped listening, and the channel can be opened again."""
    with RawClient(broker.port).open() as client:
        client.call(QueueDeclare(queue="q"))
        question, close = method_frame(1, BasicGet(queue="q")), method_frame(1, ChannelClose())

        client.ask(question + close)

        client.ask(method_frame(1, ChannelOpen()))
        assert client.call(QueueDeclare(queue="q", passive=True))


def test_an_ack_and_a_farewell_in_one_read_leave_the_rest_in_the_queue(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port).open() as client:
        client.call(QueueDeclare(queue="q"))
        for _ in range(3):
            client.tell(BasicPublish(routing_key="q"), body=b"x")
        client.call(BasicGet(queue="q"))
        client.ask(method_frame(1, BasicConsume(queue="q", consumer_tag="c")))
        client.ask(method_frame(1, BasicAck(delivery_tag=1)) + method_frame(1, ChannelClose()))
    with RawClient(broker.port).open() as client:
        declared = client.call(QueueDeclare(queue="q", passive=True))
        assert declared[-9:-5] == (2).to_bytes(4, "big")  # ready messages


def test_a_connection_closed_in_one_breath_with_its_work_is_closed_in_order(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port).open() as client:
        work = method_frame(1, QueueDeclare(queue="q")) + method_frame(2, ChannelOpen())

        client.socket.sendall(work + method_frame(0, ConnectionClose()))

        said = b""
        while not said.endswith(method_frame(0, ConnectionCloseOk())):
            said += client.ask(b"")


def test_a_client_that_vanishes_in_the_middle_of_a_message_leaves_nothing(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port).open() as client:
        client.call(QueueDeclare(queue="q"))
        client.socket.sendall(method_frame(1, BasicPublish(routing_key="q")))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not an end
    with RawClient(broker.port).open() as client:
        assert client.call(QueueDeclare(queue="q", passive=True))[-9:-5] == bytes(4)
