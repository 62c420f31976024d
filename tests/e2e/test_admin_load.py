"""Hundreds of hostile connections to `redrive serve`: its memory stays bounded, and a signed-in user notices little.

Five kinds of clients, all without credentials: heads that never end, bodies that come byte by byte, bodies that are
huge, keys that do not exist, and static files that do not exist. The short form checks that the server goes on to
answer, and the bound on its memory. The slow form lasts a minute, and also checks how long the pages take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import httpx
import psutil
import pytest

from admin_api import bearing
from dead_lettering import DLQ, eventually, prepare
from e2e.serving import Server, serving
from redrive.admin.api.connection_limit import MOST_CONNECTIONS
from redrive.inspection import connect

MB = 1024 * 1024
MOST_GROWTH = 150 * MB
PLAN = f"/admin/dlq/queues/{DLQ}/re-drive/plan"
PAGES = ("/", f"/queues/{DLQ}", f"/queues/{DLQ}/messages", "/operations", "/admin/dlq/queues", "/admin/me")
_NUMBERS = count()

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("load")
    with serving(folder, None, "--dev", REDRIVE_DATA=str(folder / "data")) as server:

        async def fill() -> None:
            async with connect(None, data=folder / "data") as connection:
                await prepare(connection, 100)

        asyncio.run(fill())
        yield server


# Those who attack ---------------------------------------------------------------------------------------


async def send_a_head_slowly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(f"POST {PLAN} HTTP/1.1\r\nHost: x\r\n".encode())
    while True:
        writer.write(b"X-Slow: 1\r\n")
        await writer.drain()
        await asyncio.sleep(1)


async def send_a_body_slowly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /sign-in HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 60000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(1)


async def send_a_huge_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = f"POST {PLAN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {8 * MB}\r\n\r\n"
    writer.write(head.encode())
    for _ in range(8):
        writer.write(b" " * MB)
        await writer.drain()
    await reader.read(1)


async def show_unknown_keys(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        key = f"rdk_{next(_NUMBERS):012d}_{'x' * 43}"
        await ask(reader, writer, f"GET /admin/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n")


async def ask_for_unknown_files(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await ask(reader, writer, f"GET /static/{next(_NUMBERS)}-{'x' * 1000}.css HTTP/1.1\r\nHost: x\r\n\r\n")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: str) -> None:
    writer.write(request.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
    await reader.readexactly(length)
    await asyncio.sleep(1)


ATTACKS: tuple[Attack, ...] = (
    send_a_head_slowly,
    send_a_body_slowly,
    send_a_huge_body,
    show_unknown_keys,
    ask_for_unknown_files,
)


def attack_all(port: int, connections: int) -> None:
    """In a process of their own: what keeps the attackers busy must not count as the server's time."""

    async def run() -> None:
        await asyncio.gather(*(attack(port, number) for number in range(connections)))

    asyncio.run(run())


@contextmanager
def attackers(server: Server, connections: int) -> Iterator[None]:
    process = get_context("spawn").Process(target=attack_all, args=(server.port, connections), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


async def attack(port: int, number: int) -> None:
    """Again and again, from one of seven addresses that are not the user's."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            source = (f"127.0.0.{2 + number % 7}", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
            try:
                await ATTACKS[number % len(ATTACKS)](reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.5)


# The one who works ----------------------------------------------------------------------------------------


def signed_in(server: Server) -> dict[str, str]:
    headers = {"Sec-Fetch-Site": "same-origin"}
    answer = httpx.post(server.link, headers=headers, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


async def work(server: Server, cookie: dict[str, str], until: float) -> list[float]:
    """Open pages one after the other, each over a new connection, and return the seconds that each took."""
    took = []
    headers = cookie | {"Connection": "close"}
    async with httpx.AsyncClient(base_url=server.address, headers=headers, timeout=20) as client:
        for number in count():
            page = PAGES[number % len(PAGES)]
            began = time.monotonic()
            if began > until and number >= len(PAGES):
                break
            answer = await client.get(page)
            assert answer.status_code == 200, (page, answer.text)
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
    return took


class Load(NamedTuple):
    took: list[float]  # seconds, for each page
    before: int  # bytes of memory
    most: int
    cpu: float  # seconds that the server used
    starved: float  # seconds that it waited for a processor, which other processes had


async def under_attack(server: Server, connections: int, seconds: float) -> Load:
    cookie = await asyncio.to_thread(signed_in, server)
    await work(server, cookie, 0)  # what is made at the first request is not the attack's doing
    before, most = memory(server), 0
    with attackers(server, connections):
        enough = min(connections, MOST_CONNECTIONS) // 2
        await eventually(lambda: connections_of(server) > enough, within=60)
        cpu, starved = processor_time(server)
        working = asyncio.create_task(work(server, cookie, time.monotonic() + seconds))
        while not working.done():
            most = max(most, memory(server))
            await asyncio.wait([working], timeout=0.2)
    used, waited = processor_time(server)
    return Load(working.result(), before, max(most, memory(server)), used - cpu, waited - starved)


def connections_of(server: Server) -> int:
    return len(psutil.Process(pid_of(server)).net_connections("tcp"))


def processor_time(server: Server) -> tuple[float, float]:
    """Return the seconds that the server's first thread has run, and waited to be run."""
    pid = pid_of(server)
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def pid_of(server: Server) -> int:
    assert server.process is not None
    return server.process.pid


def memory(server: Server) -> int:
    return int(psutil.Process(pid_of(server)).memory_info().rss)


def test_pages_are_answered_and_memory_is_bounded_under_attack(server: Server) -> None:
    load = asyncio.run(under_attack(server, 200, 2))

    assert len(load.took) >= len(PAGES)
    assert load.most - load.before < MOST_GROWTH
    assert httpx.get(f"{server.address}/admin/me", headers=bearing("viewer")).status_code == 200


@pytest.mark.slow
def test_600_hostile_connections_for_a_minute_neither_fill_the_memory_nor_slow_down_the_pages(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    load = asyncio.run(under_attack(server, 600, 60))

    p95 = quantiles(load.took, n=20)[-1]
    with capsys.disabled():
        print(
            f"\n{len(load.took)} pages, p95 {p95 * 1000:.0f} ms, slowest {max(load.took) * 1000:.0f} ms; "
            f"memory {load.before // MB} MB before, {load.most // MB} MB at most, {memory(server) // MB} MB after; "
            f"the server ran for {load.cpu:.0f} s and waited {load.starved:.0f} s for a processor"
        )
    assert load.most - load.before < MOST_GROWTH
    assert p95 < 0.5
