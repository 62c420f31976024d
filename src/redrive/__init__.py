"""Redrive makes RabbitMQ messages survive failure.

from redrive import App, Retry

app = App("uploads")
events = app.exchange("domain.events", "topic")
app.queue("q.validator", bind=events.on("files.uploaded.*"), retry=Retry(attempts=3, delay="15s"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.recovery.breaker import BreakerPolicy
    from redrive.recovery.exception_filter import http_status
    from redrive.recovery.handler_signals import Discard, Park, RetryLater, Snooze
    from redrive.recovery.retry import Exponential, Retry
    from redrive.router import Router
    from redrive.topology import Exchange, Naming, Queue, Topology
    from redrive.worker.batch import Batch
    from redrive.worker.message import Message
    from redrive.worker.publisher import Publisher

__version__ = "0.1.0.dev0"

# Where each public name lives. They are imported when first asked for: who needs the embedded broker alone does not
# load the client, and the other way round.
_HOMES = {
    "App": "redrive.app",
    "Batch": "redrive.worker.batch",
    "BreakerPolicy": "redrive.recovery.breaker",
    "Discard": "redrive.recovery.handler_signals",
    "Exchange": "redrive.topology",
    "Exponential": "redrive.recovery.retry",
    "Message": "redrive.worker.message",
    "Naming": "redrive.topology",
    "Park": "redrive.recovery.handler_signals",
    "Publisher": "redrive.worker.publisher",
    "Queue": "redrive.topology",
    "Retry": "redrive.recovery.retry",
    "RetryLater": "redrive.recovery.handler_signals",
    "Router": "redrive.router",
    "Snooze": "redrive.recovery.handler_signals",
    "Topology": "redrive.topology",
    "http_status": "redrive.recovery.exception_filter",
}

__all__ = [
    "App",
    "Batch",
    "BreakerPolicy",
    "Discard",
    "Exchange",
    "Exponential",
    "Message",
    "Naming",
    "Park",
    "Publisher",
    "Queue",
    "Retry",
    "RetryLater",
    "Router",
    "Snooze",
    "Topology",
    "__version__",
    "http_status",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
