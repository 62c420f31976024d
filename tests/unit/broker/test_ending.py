"""A channel that ends: what RabbitMQ does now one way and now the other, and this broker always the same way."""

from typing import Any

import pytest

from redrive.broker.broker import Broker
from redrive.broker.dialect import DIALECTS
from redrive.broker.server import BrokerServer
from redrive.client import Connection, Publish
from redrive.client.transport import open_transport
from redrive.client.url import BrokerURL
from redrive.wire.methods.basic import BasicConsume

QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
SMALL: dict[str, Any] = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}


@pytest.mark.parametrize("version", DIALECTS)
async def test_a_quorum_queue_loses_nothing_to_a_consumer_of_a_channel_that_ends(version: str) -> None:
    """Of two that come back to the source, one is too much: its dead letter meets a consumer that acknowledges nothing.

    The client is told nothing of it.
    """
    async with BrokerServer(Broker(dialect=DIALECTS[version])) as server, Connection(server.url) as connection:
        await connection.declare_queue("target", arguments=QUORUM)
        await connection.declare_queue("source", arguments=SMALL)
        url = BrokerURL.parse(server.url)
        link = await open_transport(url, url.hosts[0], {}, lambda: None)
        channel = await link.channel()
        delivered: list[bytes] = []
        channel.on_delivery = lambda delivery: delivered.append(delivery.body)
        await channel.ask(BasicConsume(queue="target", consumer_tag="of the target", no_ack=True))
        await channel.ask(BasicConsume(queue="source", consumer_tag="of the source"))
        await connection.publish_many(Publish("", "source", body) for body in (b"0", b"1"))

        await channel.close()

        dead = await connection.get("target")
        assert dead is not None
        assert (dead.body, dead.redelivered) == (b"0", True)
        assert delivered == [b"0", b"1"]
        await link.close()
