"""A message as its handler sees it: decoded only as far as it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redrive.protocol.messages import Delivery
from redrive.recovery.history import HeaderNames, History

if TYPE_CHECKING:
    from collections.abc import Callable


_QUARANTINE = HeaderNames.QUARANTINE.encode()


class Message:
    """What came with the body. `attempt` counts from 1; `history` tells of the attempts before."""

    __slots__ = ("_delivery", "_history", "_read_history", "queue")

    def __init__(self, delivery: Delivery, queue: str, read_history: Callable[[Delivery], History]) -> None:
        self.queue = queue
        self._delivery = delivery
        self._read_history = read_history
        self._history: History | None = None

    @property
    def body(self) -> bytes:
        """The body as it was received."""
        return self._delivery.body

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers."""
        return self._delivery.properties.headers or {}

    @property
    def message_id(self) -> str | None:
        """The id that its publisher gave it. It stays the same through retries and re-drives."""
        return self._delivery.properties.message_id

    @property
    def correlation_id(self) -> str | None:
        """The id of what it belongs to."""
        return self._delivery.properties.correlation_id

    @property
    def type(self) -> str | None:
        """What kind of message it is."""
        return self._delivery.properties.type

    @property
    def content_type(self) -> str | None:
        """How the body is encoded."""
        return self._delivery.properties.content_type

    @property
    def timestamp(self) -> datetime | int | None:
        """When it was published, as its publisher says."""
        return self._delivery.properties.timestamp

    @property
    def priority(self) -> int | None:
        """The priority, if it has one."""
        return self._delivery.properties.priority

    @property
    def reply_to(self) -> str | None:
        """Where an answer is expected."""
        return self._delivery.properties.reply_to

    @property
    def app_id(self) -> str | None:
        """The application that published it."""
        return self._delivery.properties.app_id

    @property
    def redelivered(self) -> bool:
        """Whether it may have been handled before. A message in quarantine was redelivered to its own queue."""
        return self._delivery.redelivered or _QUARANTINE in self._delivery.raw_properties

    @property
    def history(self) -> History:
        """The earlier attempts, as far as the message tells."""
        if self._history is None:
            self._history = self._read_history(self._delivery)
        return self._history

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.history.failed + 1

    @property
    def exchange(self) -> str:
        """The exchange it was first published to: a retry comes back by another way."""
        known = self.history.exchange
        return self._delivery.exchange if known is None else known

    @property
    def routing_key(self) -> str:
        """The routing key it was first published with."""
        known = self.history.routing_key
        return self._delivery.routing_key if known is None else known

    def __repr__(self) -> str:
        return f"<Message {self.message_id} from {self.queue} attempt={self.attempt} {len(self.body)} bytes>"


# The message that is being handled: what is published meanwhile belongs to it.
current_message: ContextVar[Message | None] = ContextVar("redrive_current_message", default=None)
