"""The environment variables that Redrive reads, all of them, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

BROKER = "REDRIVE_BROKER"
MANAGEMENT = "REDRIVE_MANAGEMENT"
DATABASE = "REDRIVE_DATABASE"
DATA = "REDRIVE_DATA"
USER = "REDRIVE_USER"
WEBHOOK_SECRET = "REDRIVE_WEBHOOK_SECRET"
OUTBOX_TRANSPORT = "REDRIVE_OUTBOX_TRANSPORT"
ADMIN_JWT_SECRET = "REDRIVE_ADMIN_JWT_SECRET"
ADMIN_JWT_JWKS = "REDRIVE_ADMIN_JWT_JWKS"
ADMIN_JWT_ISSUER = "REDRIVE_ADMIN_JWT_ISSUER"
ADMIN_JWT_AUDIENCE = "REDRIVE_ADMIN_JWT_AUDIENCE"
ADMIN_JWT_ALGORITHMS = "REDRIVE_ADMIN_JWT_ALGORITHMS"
ADMIN_JWT_ROLES = "REDRIVE_ADMIN_JWT_ROLES"
ADMIN_JWT_QUEUES = "REDRIVE_ADMIN_JWT_QUEUES"
ADMIN_EDITING = "REDRIVE_ADMIN_EDITING"
ADMIN_TRUST_PROXY = "REDRIVE_ADMIN_TRUST_PROXY"


class Variable(NamedTuple):
    """An environment variable: what it means, its default, and the setting it stands for."""

    meaning: str
    default: str | None = None
    setting: str | None = None  # what it stands in for, where the program does not say that


VARIABLES: Mapping[str, Variable] = {
    BROKER: Variable("the broker's URL", setting="App.broker"),
    MANAGEMENT: Variable(
        "the URL of RabbitMQ's management API, for what plain AMQP cannot tell", setting="App.management"
    ),
    DATABASE: Variable("the database's URL", setting="App.database"),
    DATA: Variable("the folder of the embedded broker and database", ".redrive", setting="App.data"),
    USER: Variable("who is acting, in the audit and in the lineage of messages"),
    WEBHOOK_SECRET: Variable("signs the notices of `redrive dlq watch`"),
    OUTBOX_TRANSPORT: Variable("RABBIT or LOCAL", "RABBIT", setting="OutboxPolicy.transport"),
    ADMIN_JWT_SECRET: Variable("the secret that tokens for the admin API are signed with (HS256)"),
    ADMIN_JWT_JWKS: Variable("or the public keys they are checked with: a file, or an https URL"),
    ADMIN_JWT_ISSUER: Variable("the `iss` they must have"),
    ADMIN_JWT_AUDIENCE: Variable("the `aud` they must have; wanted with a JWKS"),
    ADMIN_JWT_ALGORITHMS: Variable("which algorithms do, with commas between: RS256,ES256"),
    ADMIN_JWT_ROLES: Variable("the claim with the roles, `realm_access.roles` for one", "roles"),
    ADMIN_JWT_QUEUES: Variable("the claim with patterns of queues; if said, no claim means no queue"),
    ADMIN_EDITING: Variable("1: messages may be edited before they are re-driven", "0"),
    ADMIN_TRUST_PROXY: Variable("networks of proxies whose X-Forwarded-For is read, with commas between: 10.0.0.0/8"),
}


def _text(name: str) -> str | None:
    return os.environ.get(name) or None


def _list(name: str) -> tuple[str, ...]:
    return tuple(os.environ.get(name, "").replace(",", " ").split())


broker = partial(_text, BROKER)
management = partial(_text, MANAGEMENT)
database = partial(_text, DATABASE)
user = partial(_text, USER)
outbox_transport = partial(_text, OUTBOX_TRANSPORT)
webhook_secret = partial(_text, WEBHOOK_SECRET)
admin_jwt_secret = partial(_text, ADMIN_JWT_SECRET)
admin_jwt_jwks = partial(_text, ADMIN_JWT_JWKS)
admin_jwt_issuer = partial(_text, ADMIN_JWT_ISSUER)
admin_jwt_audience = partial(_text, ADMIN_JWT_AUDIENCE)
admin_jwt_roles = partial(_text, ADMIN_JWT_ROLES)
admin_jwt_queues = partial(_text, ADMIN_JWT_QUEUES)
admin_editing = partial(_text, ADMIN_EDITING)
admin_trust_proxy = partial(_list, ADMIN_TRUST_PROXY)


def data() -> Path:
    """Return the folder of the embedded broker and database."""
    return Path(_text(DATA) or ".redrive")


def admin_jwt_algorithms() -> tuple[str, ...] | None:
    """Return the algorithms of tokens that are accepted."""
    return _list(ADMIN_JWT_ALGORITHMS) or None
