"""The environment variables that Redrive reads, all of them, and nowhere else.

| variable                   | means                                                                      |
|----------------------------|----------------------------------------------------------------------------|
| `REDRIVE_BROKER`           | the broker's URL, where the program does not say one                       |
| `REDRIVE_MANAGEMENT`       | the URL of RabbitMQ's management API, for what plain AMQP cannot tell      |
| `REDRIVE_DATABASE`         | the database's URL, where the program does not say one                     |
| `REDRIVE_DATA`             | the folder of the embedded broker and database (`.redrive`)                |
| `REDRIVE_USER`             | who is acting, in the audit and in the lineage of messages                 |
| `REDRIVE_WEBHOOK_SECRET`   | signs the notices of `redrive dlq watch`                                   |
| `REDRIVE_OUTBOX_TRANSPORT` | RABBIT or LOCAL, where the program does not say one (RABBIT)               |
"""

from __future__ import annotations

import os
from pathlib import Path

BROKER = "REDRIVE_BROKER"
MANAGEMENT = "REDRIVE_MANAGEMENT"
DATABASE = "REDRIVE_DATABASE"
DATA = "REDRIVE_DATA"
USER = "REDRIVE_USER"
WEBHOOK_SECRET = "REDRIVE_WEBHOOK_SECRET"
OUTBOX_TRANSPORT = "REDRIVE_OUTBOX_TRANSPORT"


def broker() -> str | None:
    return os.environ.get(BROKER) or None


def management() -> str | None:
    return os.environ.get(MANAGEMENT) or None


def database() -> str | None:
    return os.environ.get(DATABASE) or None


def data() -> Path:
    return Path(os.environ.get(DATA) or ".redrive")


def user() -> str | None:
    return os.environ.get(USER) or None


def outbox_transport() -> str | None:
    return os.environ.get(OUTBOX_TRANSPORT) or None


def webhook_secret() -> str | None:
    return os.environ.get(WEBHOOK_SECRET) or None
