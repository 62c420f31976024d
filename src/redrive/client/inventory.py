"""What the embedded broker holds: it tells over AMQP, to whoever asks."""

from __future__ import annotations

import msgspec

from redrive.client.connection import Connection
from redrive.client.probing import server_of
from redrive.client.rows import survey_of_rows
from redrive.topology.survey import Survey
from redrive.wire.methods.basic import BasicGet

INVENTORY = "amq.redrive.inventory"


async def read_inventory(connection: Connection) -> Survey:
    channel = await (await connection.link()).channel()
    try:
        event = await channel.ask(BasicGet(queue=INVENTORY, no_ack=True))
    finally:
        channel.abandon()
    rows = msgspec.json.decode(event.body)
    return survey_of_rows(server_of(connection), rows["exchanges"], rows["queues"], rows["bindings"])
