"""Redrive makes RabbitMQ messages survive failure.

from redrive import App, Retry

app = App("uploads")
events = app.exchange("domain.events", "topic")
app.queue("q.validator", bind=events.on("files.uploaded.*"), retry=Retry(attempts=3, delay="15s"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redrive.text import did_you_mean

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.broker.shared import SharedBroker
    from redrive.cli.loading import explain_uncaught_errors, explains_errors
    from redrive.client.url import BrokerURL
    from redrive.connected_app import ConnectedApp
    from redrive.database.application_tables import InboxNames, OutboxNames, inbox_table, outbox_table
    from redrive.database.engine import Database
    from redrive.database.schema import notify_statements
    from redrive.inspection import connect
    from redrive.outbox.envelope import CloudEvent, Envelope
    from redrive.outbox.mode import OutboxMode
    from redrive.outbox.outbox import Outbox, OutboxPolicy
    from redrive.recovery.breaker import BreakerPolicy, BreakerState
    from redrive.recovery.durations import Duration, duration, milliseconds
    from redrive.recovery.exception_filter import http_status
    from redrive.recovery.handler_signals import Discard, Park, RetryLater, Snooze
    from redrive.recovery.history import Attempt, HeaderNames, History
    from redrive.recovery.retry import Exponential, Retry, RetryRoute
    from redrive.router import Router
    from redrive.sync import SyncPublisher
    from redrive.topology import Bind, Exchange, Naming, Queue, QueueType, Topology
    from redrive.wire.properties import Properties
    from redrive.worker.batch import Batch, BatchItem
    from redrive.worker.clock import Clock
    from redrive.worker.codecs import Codec
    from redrive.worker.consumer_spec import BatchConsumerOptions, ConsumerOptions, HandlerOptions
    from redrive.worker.events import BreakerChanged, ConnectionChanged, DeliveryOutcome, DeliverySettled, Observer
    from redrive.worker.message import Message
    from redrive.worker.publisher import Publisher
    from redrive.worker.transactions import InboxPolicy

__version__ = "0.1.0.dev0"

# The module of each public name. A name is imported when it is first used: a program that needs the embedded broker
# alone does not load the client.
_HOMES = {
    "App": "redrive.app",
    "Attempt": "redrive.recovery.history",
    "Batch": "redrive.worker.batch",
    "BatchConsumerOptions": "redrive.worker.consumer_spec",
    "BatchItem": "redrive.worker.batch",
    "Bind": "redrive.topology",
    "BreakerChanged": "redrive.worker.events",
    "BreakerPolicy": "redrive.recovery.breaker",
    "BreakerState": "redrive.recovery.breaker",
    "BrokerURL": "redrive.client.url",
    "Clock": "redrive.worker.clock",
    "CloudEvent": "redrive.outbox.envelope",
    "Codec": "redrive.worker.codecs",
    "ConnectedApp": "redrive.connected_app",
    "ConnectionChanged": "redrive.worker.events",
    "ConsumerOptions": "redrive.worker.consumer_spec",
    "Database": "redrive.database.engine",
    "DeliveryOutcome": "redrive.worker.events",
    "DeliverySettled": "redrive.worker.events",
    "Discard": "redrive.recovery.handler_signals",
    "Duration": "redrive.recovery.durations",
    "Envelope": "redrive.outbox.envelope",
    "Exchange": "redrive.topology",
    "Exponential": "redrive.recovery.retry",
    "HandlerOptions": "redrive.worker.consumer_spec",
    "HeaderNames": "redrive.recovery.history",
    "History": "redrive.recovery.history",
    "InboxNames": "redrive.database.application_tables",
    "InboxPolicy": "redrive.worker.transactions",
    "Message": "redrive.worker.message",
    "Naming": "redrive.topology",
    "Observer": "redrive.worker.events",
    "Outbox": "redrive.outbox.outbox",
    "OutboxMode": "redrive.outbox.mode",
    "OutboxNames": "redrive.database.application_tables",
    "OutboxPolicy": "redrive.outbox.outbox",
    "Park": "redrive.recovery.handler_signals",
    "Properties": "redrive.wire.properties",
    "Publisher": "redrive.worker.publisher",
    "Queue": "redrive.topology",
    "QueueType": "redrive.topology",
    "Retry": "redrive.recovery.retry",
    "RetryLater": "redrive.recovery.handler_signals",
    "RetryRoute": "redrive.recovery.retry",
    "Router": "redrive.router",
    "SharedBroker": "redrive.broker.shared",
    "Snooze": "redrive.recovery.handler_signals",
    "SyncPublisher": "redrive.sync",
    "Topology": "redrive.topology",
    "connect": "redrive.inspection",
    "duration": "redrive.recovery.durations",
    "explain_uncaught_errors": "redrive.cli.loading",
    "explains_errors": "redrive.cli.loading",
    "http_status": "redrive.recovery.exception_filter",
    "inbox_table": "redrive.database.application_tables",
    "milliseconds": "redrive.recovery.durations",
    "notify_statements": "redrive.database.schema",
    "outbox_table": "redrive.database.application_tables",
}

__all__ = [
    "App",
    "Attempt",
    "Batch",
    "BatchConsumerOptions",
    "BatchItem",
    "Bind",
    "BreakerChanged",
    "BreakerPolicy",
    "BreakerState",
    "BrokerURL",
    "Clock",
    "CloudEvent",
    "Codec",
    "ConnectedApp",
    "ConnectionChanged",
    "ConsumerOptions",
    "Database",
    "DeliveryOutcome",
    "DeliverySettled",
    "Discard",
    "Duration",
    "Envelope",
    "Exchange",
    "Exponential",
    "HandlerOptions",
    "HeaderNames",
    "History",
    "InboxNames",
    "InboxPolicy",
    "Message",
    "Naming",
    "Observer",
    "Outbox",
    "OutboxMode",
    "OutboxNames",
    "OutboxPolicy",
    "Park",
    "Properties",
    "Publisher",
    "Queue",
    "QueueType",
    "Retry",
    "RetryLater",
    "RetryRoute",
    "Router",
    "SharedBroker",
    "Snooze",
    "SyncPublisher",
    "Topology",
    "__version__",
    "connect",
    "duration",
    "explain_uncaught_errors",
    "explains_errors",
    "http_status",
    "inbox_table",
    "milliseconds",
    "notify_statements",
    "outbox_table",
]

if not TYPE_CHECKING:  # a type checker knows the names above, and must not take every other name for a good one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'redrive' has no attribute {name!r}{did_you_mean(name, _HOMES)}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
