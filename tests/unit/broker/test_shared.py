"""Several processes and one data folder, here as several hosts in one process."""

import asyncio
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import redrive.app
from dead_lettering import eventually
from redrive import App
from redrive.broker.shared import SharedBroker
from redrive.broker.storage.sqlite import FILE_NAME
from redrive.client import Connection, Publish
from redrive.errors import AuthenticationFailed, CorruptFile, NotWritable


async def test_the_first_hosts_and_the_second_finds_it(tmp_path: Path) -> None:
    async with SharedBroker(tmp_path) as first, SharedBroker(tmp_path) as second:
        assert first.hosting
        assert not second.hosting
        assert second.url == first.url


async def test_only_a_client_that_can_read_the_folder_can_connect(tmp_path: Path) -> None:
    async with SharedBroker(tmp_path / "data") as first:
        url = urlsplit(first.url)
        assert url.password
        assert url.password not in repr(first)
        with pytest.raises(AuthenticationFailed):
            await Connection(f"amqp://guest:guest@127.0.0.1:{url.port}/").open()
        async with SharedBroker(tmp_path / "data") as second, Connection(second.url) as connection:
            await connection.declare_queue("orders")

    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
    assert set(files.values()) == {0o600}, files


async def test_a_guest_takes_over_when_the_host_ends_and_clients_find_everything_again(tmp_path: Path) -> None:
    host = await SharedBroker(tmp_path).__aenter__()
    async with SharedBroker(tmp_path) as guest, Connection(guest.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"kept")
        await host.__aexit__()

        async with asyncio.timeout(20):
            delivery = await connection.get("orders")

        assert guest.hosting
        assert delivery is not None
        assert delivery.body == b"kept"


async def test_a_folder_whose_host_was_killed_is_served_again_on_the_same_port(tmp_path: Path) -> None:
    async with SharedBroker(tmp_path) as first:
        url = first.url

    async with SharedBroker(tmp_path) as again:
        assert again.hosting
        assert again.url == url


async def test_a_guest_that_cannot_host_says_so_once_and_hosts_when_the_folder_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def refuse(directory: Path, **_: object) -> None:
        tries.append(directory)
        raise NotWritable(directory, "Read-only file system")

    monkeypatch.setattr("redrive.broker.shared._POLL", 0.001)
    host = await SharedBroker(tmp_path).__aenter__()
    async with SharedBroker(tmp_path) as guest, Connection(guest.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"kept")
        with monkeypatch.context() as broken:
            broken.setattr("redrive.broker.shared.SQLiteJournal", refuse)
            await host.__aexit__()
            await eventually(lambda: len(tries) > 3)
        assert caplog.text.count("nobody hosts the broker") == 1
        assert "cannot be written (Read-only file system)" in caplog.text

        async with asyncio.timeout(20):
            delivery = await connection.get("orders")
        assert guest.hosting
        assert delivery is not None
        assert delivery.body == b"kept"


async def test_a_folder_that_cannot_be_read_stays_nobodys(tmp_path: Path) -> None:
    async with SharedBroker(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish_many(Publish("", "orders", bytes(50_000)) for _ in range(20))
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))

    with pytest.raises(CorruptFile, match="restore it from a backup"):
        await SharedBroker(tmp_path).__aenter__()

    file.write_bytes(whole)
    async with SharedBroker(tmp_path) as again, Connection(again.url) as connection:
        assert again.hosting
        assert (await connection.queue_info("orders")).messages == 20


async def test_an_application_starts_while_the_broker_changes_hands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that hosts the broker ends while a worker that started after it declares its topology."""
    host = await SharedBroker(tmp_path).__aenter__()
    inspect_broker, ends = redrive.app.inspect_broker, [host]

    async def inspect_while_the_host_ends(*arguments: Any) -> Any:
        if not ends:
            return await inspect_broker(*arguments)
        _, found = await asyncio.gather(ends.pop().__aexit__(None, None, None), inspect_broker(*arguments))
        return found

    monkeypatch.setattr(redrive.app, "inspect_broker", inspect_while_the_host_ends)
    app = App("shop", data=tmp_path)
    app.queue("orders")
    async with app:
        await app.publish("", "orders", {"id": 1})
