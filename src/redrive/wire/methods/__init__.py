"""Every AMQP 0-9-1 method and RabbitMQ's additions, one file per class of the specification.

A name reads as in the specification: `queue.declare-ok` is `QueueDeclareOk` in `queue`. RabbitMQ's own are
`connection.blocked`, `connection.unblocked`, `connection.update-secret`, `exchange.bind` and `exchange.unbind`,
`basic.nack`, a `basic.cancel` from the broker, and the class `confirm`.

Code that uses many methods imports them all: `from redrive.wire import methods as m`, then `m.QueueDeclareOk`.
"""

# ruff: noqa: F403 - each module declares methods and nothing else
from redrive.wire.methods.basic import *
from redrive.wire.methods.channel import *
from redrive.wire.methods.confirm import *
from redrive.wire.methods.connection import *
from redrive.wire.methods.exchange import *
from redrive.wire.methods.queue import *
from redrive.wire.methods.tx import *
