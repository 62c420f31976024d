"""For tests of programs built on Redrive.

`broker` has the embedded broker in a thread (the `amqp_broker` fixture of the pytest plugin), `embedded` the same as a
process that can be killed, `clock` a clock that the test advances, `watching` an observer that a test can wait on, and
`RabbitMQ` is a private node on loopback that can be stopped, killed and thrown away, as root or not. Nothing outlives
the process that started it.
"""

from redrive.testing.installation import find_rabbitmq
from redrive.testing.ports import free_port
from redrive.testing.processes import ServerFailed
from redrive.testing.rabbitmq import ApiError, Endpoint, RabbitMQ

__all__ = ["ApiError", "Endpoint", "RabbitMQ", "ServerFailed", "find_rabbitmq", "free_port"]
