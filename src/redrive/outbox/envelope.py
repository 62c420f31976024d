"""What an event says about itself, around what it is about.

`Envelope` is the plain form: event id, type, aggregate, time, payload, correlation. `CloudEvent` says the same in the
words of CloudEvents 1.0 (structured mode).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Envelope:
    """`Envelope(aggregate_type="Nfe", aggregate_id="351...")`"""

    aggregate_type: str | None = None
    aggregate_id: str | None = None
    trace: str | None = None  # a traceparent, if the caller has one

    content_type = "application/json"

    def wrap(
        self, payload: Any, *, event_id: str, type: str | None, correlation_id: str, occurred_at: datetime
    ) -> dict[str, Any]:
        """Return the event that holds a payload."""
        said = {
            "eventId": event_id,
            "eventType": type,
            "aggregateType": self.aggregate_type,
            "aggregateId": self.aggregate_id,
            "occurredAt": occurred_at.isoformat(timespec="milliseconds"),
            "correlationId": correlation_id,
            "traceparent": self.trace,
            "payload": payload,
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class CloudEvent(Envelope):
    """`CloudEvent(source="/shop")`: the body becomes the `data` of a CloudEvent 1.0 in structured mode."""

    source: str = "redrive"

    content_type = "application/cloudevents+json"

    def wrap(
        self, payload: Any, *, event_id: str, type: str | None, correlation_id: str, occurred_at: datetime
    ) -> dict[str, Any]:
        """Return the event that holds a payload."""
        said = {
            "specversion": "1.0",
            "id": event_id,
            "type": type or "event",
            "source": self.source,
            "subject": self.aggregate_id,
            "time": occurred_at.isoformat(timespec="milliseconds"),
            "datacontenttype": "application/json",
            "correlationid": correlation_id,
            "traceparent": self.trace,
            "data": payload,
        }
        return {name: value for name, value in said.items() if value is not None}
