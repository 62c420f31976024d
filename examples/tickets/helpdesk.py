"""The help desk, another service: it names an agent for a ticket."""

from __future__ import annotations

import httpx

from examples.tickets.messages import TicketOpened


class Helpdesk:
    """`agent_for` raises what httpx raises: `HTTPStatusError` with the response, or a `TransportError`."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=None)  # the consumer's timeout is the limit

    async def agent_for(self, ticket: TicketOpened) -> str:
        response = await self._client.post("/assignments", json={"ticket": ticket.id, "subject": ticket.subject})
        response.raise_for_status()
        return str(response.json()["agent"])

    async def close(self) -> None:
        await self._client.aclose()
