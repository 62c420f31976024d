"""What the API accepts, and the events of a ticket."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import BaseModel, StringConstraints


class NewTicket(BaseModel):
    customer: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    subject: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TicketOpened(msgspec.Struct, frozen=True):
    id: str
    customer: str
    subject: str


class TicketAssigned(msgspec.Struct, frozen=True):
    id: str
    agent: str
