"""Where public keys come from: a file that changes, and a server that answers, lies, is slow, or is gone."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from redrive.admin.access.jwks import (
    FIRST_PAUSE,
    LARGEST,
    OLD,
    PAUSE,
    KeysAtURL,
    KeysInFile,
    KeysUnavailable,
    key_source,
)
from redrive.errors import ConfigurationError
from redrive.testing.clock import ManualClock


def parse(data: bytes) -> str:
    """As `KeySet.parse` does, it raises ValueError for what is none."""
    if data.startswith(b"junk"):
        raise ValueError("this is junk")
    return data.decode()


class Owner:
    """Of the keys: a server on loopback."""

    def __init__(self) -> None:
        self.answer: bytes = b"one"
        self.status = 200
        self.asked: list[str] = []
        self.was_asked = threading.Event()
        self.go = threading.Event()
        self.go.set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                owner.was_asked.set()
                owner.go.wait(30)
                self.send_response(owner.status)
                self.send_header("Location", owner.url)
                self.end_headers()
                self.wfile.write(owner.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys?realm=a"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(owner: Owner, clock: ManualClock) -> KeysAtURL[str]:
    return KeysAtURL(owner.url, parse, clock)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


# A URL --------------------------------------------------------------------------------------------


async def test_the_owner_is_asked_when_keys_are_needed_and_once(source: KeysAtURL[str], owner: Owner) -> None:
    assert owner.asked == []
    assert [await source.keys(), await source.keys()] == ["one", "one"]
    assert owner.asked == ["/keys?realm=a"]


async def test_old_keys_are_asked_for_again(source: KeysAtURL[str], owner: Owner, clock: ManualClock) -> None:
    await source.keys()
    owner.answer = b"two"
    clock.advance(seconds(OLD - 1))
    assert await source.keys() == "one"
    clock.advance(seconds(1))
    assert await source.keys() == "two"


async def test_who_misses_a_key_makes_the_owner_be_asked_once_a_minute(
    source: KeysAtURL[str], owner: Owner, clock: ManualClock
) -> None:
    await source.keys()
    owner.answer = b"two"
    assert await source.newer() == "one"
    clock.advance(seconds(PAUSE - 1))
    assert await source.newer() == "one"
    clock.advance(seconds(1))
    assert [await source.newer() for _ in range(3)] == ["two"] * 3
    assert len(owner.asked) == 2


async def test_of_many_who_want_keys_at_once_one_asks(source: KeysAtURL[str], owner: Owner) -> None:
    assert await asyncio.gather(*(source.keys() for _ in range(20))) == ["one"] * 20
    assert len(owner.asked) == 1


async def test_while_somebody_asks_the_old_keys_do(source: KeysAtURL[str], owner: Owner, clock: ManualClock) -> None:
    await source.keys()
    owner.go.clear()
    owner.was_asked.clear()
    owner.answer = b"two"
    clock.advance(seconds(OLD))
    asking = asyncio.create_task(source.keys())
    await asyncio.to_thread(owner.was_asked.wait, 30)
    assert await source.keys() == "one"
    owner.go.set()
    assert await asking == "two"


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, b"two"),
        (404, b"two"),
        (301, b"two"),
        (302, b"two"),
        (204, b""),
        (200, b"junk"),
        (200, b"x" * (LARGEST + 1)),
    ],
)
async def test_if_the_answer_is_none_the_keys_of_before_stay(
    status: int, answer: bytes, source: KeysAtURL[str], owner: Owner, clock: ManualClock
) -> None:
    await source.keys()
    owner.status, owner.answer = status, answer
    clock.advance(seconds(OLD))
    assert await source.keys() == "one"
    assert len(owner.asked) == 2
    assert await source.keys() == "one"
    assert len(owner.asked) == 2
    owner.status, owner.answer = 200, b"three"
    clock.advance(seconds(PAUSE))
    assert await source.keys() == "three"


async def test_an_owner_who_is_gone_leaves_the_keys_of_before(
    source: KeysAtURL[str], owner: Owner, clock: ManualClock
) -> None:
    await source.keys()
    owner.server.shutdown()
    owner.server.server_close()
    clock.advance(seconds(OLD))
    assert await source.keys() == "one"
    assert "Connection refused" in repr(source)


async def test_without_any_keys_the_owner_is_asked_again_soon(
    source: KeysAtURL[str], owner: Owner, clock: ManualClock
) -> None:
    owner.status = 503
    for _ in range(2):
        with pytest.raises(KeysUnavailable, match=r"http://127\.0\.0\.1:\d+/keys: it answered 503"):
            await source.keys()
    assert len(owner.asked) == 1
    owner.status = 200
    clock.advance(seconds(FIRST_PAUSE))
    assert await source.keys() == "one"


async def test_whoever_gives_up_waiting_does_not_stop_the_others(
    source: KeysAtURL[str], owner: Owner, clock: ManualClock
) -> None:
    owner.go.clear()
    impatient = asyncio.create_task(source.keys())
    await asyncio.to_thread(owner.was_asked.wait, 30)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    owner.go.set()
    clock.advance(seconds(FIRST_PAUSE))
    assert await source.keys() == "one"


def test_what_is_not_to_be_asked_is_refused_when_built(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match="use https"):
        key_source("http://idp.example/keys", parse, clock)


# A file -------------------------------------------------------------------------------------------


async def test_a_file_is_read_again_when_it_has_changed_and_only_then(tmp_path: Path, clock: ManualClock) -> None:
    path, reads = tmp_path / "jwks.json", []
    path.write_text("one")

    def counting(data: bytes) -> str:
        reads.append(data)
        return parse(data)

    source = key_source(str(path), counting, clock)
    assert isinstance(source, KeysInFile)
    assert [await source.keys(), await source.newer()] == ["one", "one"]
    assert len(reads) == 1
    change(path, "two")
    assert await source.keys() == "two"
    assert await source.newer() == "two"
    assert len(reads) == 2


def change(path: Path, text: str) -> None:
    """In another moment, however coarse the file system counts."""
    at = path.stat().st_mtime_ns + 1_000_000_000
    path.write_text(text)
    os.utime(path, ns=(at, at))


async def test_a_file_that_turns_to_junk_or_is_gone_leaves_the_keys_of_before(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text("one")
    source = KeysInFile(path, parse)
    for text in ("junk", "x" * (LARGEST + 1)):
        change(path, text)
        assert await source.keys() == "one"
    path.unlink()
    assert await source.keys() == "one"
    path.write_text("two")
    assert await source.keys() == "two"
