"""For tests of programs built on Redrive: see docs/howto/test-without-a-broker.md.

    ManualClock       one clock for the embedded broker and for applications, which the test advances
    Recorder          what happened to messages, for a test to wait for
    ThreadedBroker    the embedded broker in a thread; `attach(app)` gives it and its clock to an application
    RabbitMQ          a private node on loopback that can be stopped, killed and thrown away, as root or not

The pytest plugin has the fixtures `redrive_clock` and `amqp_broker`. `broker_process` has the embedded broker as a
process that can be killed. Nothing outlives the process that started it.
"""

from redrive.testing.broker import ThreadedBroker
from redrive.testing.clock import ManualClock
from redrive.testing.installation import find_rabbitmq
from redrive.testing.ports import free_port
from redrive.testing.processes import ServerFailed
from redrive.testing.rabbitmq import ApiError, Endpoint, RabbitMQ
from redrive.testing.recorder import Recorder

__all__ = [
    "ApiError",
    "Endpoint",
    "ManualClock",
    "RabbitMQ",
    "Recorder",
    "ServerFailed",
    "ThreadedBroker",
    "find_rabbitmq",
    "free_port",
]
