"""The admin API for tests: an admin server on a real broker, asked as programs ask it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt

from redrive.admin.access.settings import AccessSettings
from redrive.admin.access.tokens import TokenPolicy
from redrive.admin.api.application import Admin
from redrive.admin.context import AdminContext
from redrive.admin.target import BrokerTarget
from redrive.database.engine import Database
from redrive.database.schema import Schema

SECRET = "a secret that is long enough for everybody's taste"
HOST = "http://127.0.0.1:8080"


def token(role: str | None = "admin", name: str = "ada", **claims: Any) -> str:
    """As an identity provider makes one."""
    told = {"sub": name, "exp": datetime.now(UTC) + timedelta(minutes=5), **claims}
    if role is not None:
        told["roles"] = [role]
    return jwt.encode(told, SECRET, algorithm="HS256")


def bearing(role: str | None = "admin", name: str = "ada", **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role, name, **claims)}"}


def admin_context(url: str | None, folder: Path, *, editing: bool = False, **options: Any) -> AdminContext:
    database = options.pop("database", None) or Database.embedded(folder)
    Schema().upgrade(database)
    known = {name: options.pop(name) for name in ("management", "topology") if name in options}
    access = AccessSettings(tokens=TokenPolicy(secret=SECRET), editing=editing)
    target = options.pop("target", None) or BrokerTarget(url, data=folder, **known)
    options = {"access": access, "archives": folder / "archive", "apart": False} | options
    return AdminContext(target, database, **options)


@asynccontextmanager
async def asking(
    context: AdminContext, role: str | None = "admin", name: str = "ada", **claims: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client who is known; with None for its role, one without a role."""
    admin = Admin(context)
    async with (
        admin.lifespan(),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=admin), base_url=HOST, headers=bearing(role, name, **claims), timeout=30
        ) as client,
    ):
        yield client
