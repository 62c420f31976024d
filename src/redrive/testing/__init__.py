"""Servers and faults for tests, Redrive's own and those of programs built on it.

Tests here never use a server that they did not start, so a server is an object: `RabbitMQ`, `Cluster` and `Postgres`
start private ones on loopback, as root or not, which can be stopped, killed and thrown away. `FaultProxy` stands
between a client and a server and breaks the network on demand. `make_certificates` makes what TLS needs. Nothing
outlives the process that started it.
"""

from redrive.testing.certificates import TLSFiles, make_certificates
from redrive.testing.cluster import Cluster
from redrive.testing.endpoint import ApiError, Endpoint
from redrive.testing.installation import find_rabbitmq
from redrive.testing.ports import free_port
from redrive.testing.postgres import Database, Postgres, find_postgres
from redrive.testing.processes import ServerFailed
from redrive.testing.proxy import FaultProxy
from redrive.testing.rabbitmq import RabbitMQ

__all__ = [
    "ApiError",
    "Cluster",
    "Database",
    "Endpoint",
    "FaultProxy",
    "Postgres",
    "RabbitMQ",
    "ServerFailed",
    "TLSFiles",
    "find_postgres",
    "find_rabbitmq",
    "free_port",
    "make_certificates",
]
