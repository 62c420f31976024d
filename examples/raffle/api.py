"""The API: somebody signs up, and has an id at once. The row follows.

uvicorn --factory examples.raffle.api:make_api        beside it: redrive worker examples.raffle.app:app
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID, uuid4

from fastapi import FastAPI, Header
from pydantic import BaseModel, StringConstraints

from examples.raffle.app import app, exchange
from examples.raffle.users import LONGEST_EMAIL, LONGEST_NAME, User
from redrive.integrations.fastapi import Publishing, explain_errors, lifespan, monitor


class NewUser(BaseModel):
    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_NAME, pattern=r"^[^\x00-\x1f\x7f]+$"),
    ]
    email: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=LONGEST_EMAIL, pattern=r"^[^@\s\x00]+@[^@\s\x00]+$")
    ]


class SignedUp(BaseModel):
    id: UUID


def make_api(*, work: bool = False) -> FastAPI:
    """`work`: insert the users in this process, too."""
    api = FastAPI(title="Raffle", lifespan=lifespan(app, work=work))
    explain_errors(api)
    monitor(api, app)
    api.post("/api/v1/users")(sign_up)
    return api


async def sign_up(
    new: NewUser, publisher: Publishing, idempotency_key: Annotated[UUID | None, Header()] = None
) -> SignedUp:
    """200: it is safe with the broker, and will be inserted. Whoever sends his own key may send it again: it is the
    user's id, and a user is inserted once.
    """
    user = User(idempotency_key or uuid4(), new.name, new.email)
    await publisher.publish(exchange, "raffle_queue", user, message_id=str(user.id), type="User")
    return SignedUp(id=user.id)
