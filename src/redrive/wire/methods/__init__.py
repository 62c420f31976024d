"""Every AMQP 0-9-1 method and RabbitMQ's additions, one file per class of the specification.

A name reads as in the specification: `queue.declare-ok` is `QueueDeclareOk` in `queue`. RabbitMQ's own are
`connection.blocked`, `connection.unblocked`, `connection.update-secret`, `exchange.bind` and `exchange.unbind`,
`basic.nack`, a `basic.cancel` from the broker, and the class `confirm`.
"""

from redrive.wire.methods import basic, channel, confirm, connection, exchange, queue, tx

__all__ = ["basic", "channel", "confirm", "connection", "exchange", "queue", "tx"]
