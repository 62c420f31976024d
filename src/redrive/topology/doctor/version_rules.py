"""What depends on the broker: its version, its plugins, its timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from redrive.recovery.durations import format_duration, milliseconds
from redrive.topology.doctor.context import Occurrence, RuleContext
from redrive.topology.doctor.phrases import recreate

_DELAYED = "x-delayed-message"
_PLUGIN = "rabbitmq_delayed_message_exchange"


def consumer_timeout(context: RuleContext) -> Iterator[Occurrence]:
    if context.server.embedded:  # it waits indefinitely
        return
    for name, limit in sorted(context.handler_limits.items()):
        patience = _patience(context, name)
        if patience is not None and limit >= patience:
            enough = milliseconds(limit + timedelta(minutes=1))
            own = f"x-consumer-timeout: {enough} on the queue, or " if context.server.version >= (4, 3) else ""
            waits = f"the broker waits {format_duration(patience)} for an ack"
            evidence = f"its handler may take {format_duration(limit)}, and {waits}"
            yield Occurrence(name, evidence, f"{own}consumer_timeout = {enough} in rabbitmq.conf, or a shorter limit")


def _patience(context: RuleContext, name: str) -> timedelta | None:
    """Return how long the broker waits for an ack; None: indefinitely, as for classic queues from 4.3 on."""
    queue = context.queues.get(name) or context.asked.queue(name)
    if context.server.version < (4, 3) or queue is None:
        return context.consumer_timeout
    if queue.type != "quorum":
        return None
    own = queue.arguments.get("x-consumer-timeout")
    return context.consumer_timeout if own is None else timedelta(milliseconds=own)


def delayed_no_plugin(context: RuleContext) -> Iterator[Occurrence]:
    if context.server.delayed_exchanges:
        return
    for name, where in _delayed_exchanges(context):
        fix = f"rabbitmq-plugins enable {_PLUGIN}; or leave it out: via='delayed' has a ladder of queues instead"
        yield Occurrence(name, f"{where} as {_DELAYED}, and {context.server} has no such type", fix)


def delayed_ending(context: RuleContext) -> Iterator[Occurrence]:
    if not context.server.delayed_exchanges or not context.is_4 or context.server.embedded:
        return
    for name, where in _delayed_exchanges(context):
        fix = f"rabbitmq-plugins disable {_PLUGIN} when nothing waits in it; via='delayed' then uses a ladder of queues"
        yield Occurrence(name, f"{where} as {_DELAYED} on {context.server}", fix)


def _delayed_exchanges(context: RuleContext) -> Iterator[tuple[str, str]]:
    for exchange in (context.asked | context.definitions).exchanges:
        if exchange.type == _DELAYED:
            yield exchange.name, "it exists" if exchange.name in context.exchanges else "it is wanted"


def transient_queue(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        if context.is_4 and not queue.durable and not queue.arguments.get("exclusive"):
            fix = "declare it durable (with x-expires if it is for a while), or exclusive"
            yield Occurrence(queue.name, f"neither durable nor exclusive, on {context.server}", fix)


def mirrored(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        mode = context.policy(queue.name).get("ha-mode")
        if mode is not None and queue.type == "classic":
            what = "has no mirrors, so that there is one copy" if context.is_4 else "has them for the last time"
            name = context.policy_name(queue.name)
            evidence = f"ha-mode {mode} by policy {name}, and {context.server} {what}"
            fix = f"{recreate(queue, 'with x-queue-type: quorum')}, and take ha-mode out of policy {name}"
            yield Occurrence(queue.name, evidence, fix)
