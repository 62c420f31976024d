"""AMQP 0-9-1 over asyncio: a connection that survives, a publisher that knows, consumers that come back.

    async with Connection("amqp://guest:guest@localhost/") as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b'{"id": 1}')          # returns when the broker has it
        async with await connection.consume("orders") as consumer:
            async for delivery in consumer:
                delivery.ack()

| module         | what                                                                                      |
|----------------|-------------------------------------------------------------------------------------------|
| `url`          | where the broker is and how to speak to it                                                |
| `connection`   | the one object people hold: reconnects, restores, and tells its state                     |
| `publisher`    | publish, confirm, and nothing in between is lost                                          |
| `consumer`     | deliveries, by callback or iterator, over any number of connections                       |
| `topology`     | declaring, binding, deleting, and restoring what was declared                             |
| `declarations` | what was declared, to be declared again                                                   |
| `basic_get`    | basic.get, message by message                                                             |
| `transport`    | one socket, from the first byte to the last                                               |
| `channel`      | one channel of one link                                                                   |
| `ack_batcher`  | tells the broker about deliveries, in few frames                                          |
| `outage_log`   | one line for a lost broker, and one when it is back                                       |
| `browser`      | a cursor over a queue: take messages, ack some, requeue the others in their order         |

Publish and consume on two connections: a broker in a memory or disk alarm stops reading a connection that
publishes, and the acks on it with the publishes (`connection.blocked`).
"""

from redrive.client.connection import Connection, LinkState
from redrive.client.consumer import Consumer, ConsumerState
from redrive.client.publisher import Publish
from redrive.client.topology import QueueInfo
from redrive.client.url import BrokerURL
from redrive.protocol.messages import Delivery
from redrive.wire.properties import Properties

__all__ = [
    "BrokerURL",
    "Connection",
    "Consumer",
    "ConsumerState",
    "Delivery",
    "LinkState",
    "Properties",
    "Publish",
    "QueueInfo",
]
