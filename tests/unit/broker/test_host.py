"""Several processes and one data folder, here as several hosts in one process."""

import asyncio
from pathlib import Path

from redrive.broker.host import SharedBroker
from redrive.client import Connection


async def test_the_first_hosts_and_the_second_finds_it(tmp_path: Path) -> None:
    async with SharedBroker(tmp_path) as first, SharedBroker(tmp_path) as second:
        assert first.hosting
        assert not second.hosting
        assert second.url == first.url


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
