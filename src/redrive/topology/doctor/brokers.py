"""What depends on the broker: its version, its plugins, its patience."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from redrive.recovery.durations import brief, milliseconds
from redrive.topology.doctor.case import Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import remade

_DELAYED = "x-delayed-message"
_PLUGIN = "rabbitmq_delayed_message_exchange"


def consumer_timeout(case: Case) -> Iterator[Symptom]:
    if case.server.embedded:  # it waits for ever
        return
    for name, limit in sorted(case.handler_limits.items()):
        patience = _patience(case, name)
        if patience is not None and limit >= patience:
            enough = milliseconds(limit + timedelta(minutes=1))
            own = f"x-consumer-timeout: {enough} on the queue, or " if case.server.version >= (4, 3) else ""
            evidence = f"its handler may take {brief(limit)}, and the broker waits {brief(patience)} for an ack"
            yield Symptom(name, evidence, f"{own}consumer_timeout = {enough} in rabbitmq.conf, or a shorter limit")


def _patience(case: Case, name: str) -> timedelta | None:
    """How long the broker waits for the ack of a delivery; None: for ever, as classic queues do from 4.3 on."""
    queue = case.queues.get(name) or case.asked.queue(name)
    if case.server.version < (4, 3) or queue is None:
        return case.consumer_timeout
    if queue.type != "quorum":
        return None
    own = queue.arguments.get("x-consumer-timeout")
    return case.consumer_timeout if own is None else timedelta(milliseconds=own)


def delayed_no_plugin(case: Case) -> Iterator[Symptom]:
    if case.server.delayed_exchanges:
        return
    for name, where in _delayed_exchanges(case):
        fix = f"rabbitmq-plugins enable {_PLUGIN}; or leave it out: via='delayed' has a ladder of queues instead"
        yield Symptom(name, f"{where} as {_DELAYED}, and {case.server} has no such type", fix)


def delayed_ending(case: Case) -> Iterator[Symptom]:
    if not case.server.delayed_exchanges or not case.is_4 or case.server.embedded:
        return
    for name, where in _delayed_exchanges(case):
        fix = f"rabbitmq-plugins disable {_PLUGIN} when nothing waits in it; via='delayed' then uses a ladder of queues"
        yield Symptom(name, f"{where} as {_DELAYED} on {case.server}", fix)


def _delayed_exchanges(case: Case) -> Iterator[tuple[str, str]]:
    for exchange in (case.asked | case.definitions).exchanges:
        if exchange.type == _DELAYED:
            yield exchange.name, "it exists" if exchange.name in case.exchanges else "it is wanted"


def transient_queue(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        if case.is_4 and not queue.durable and not queue.arguments.get("exclusive"):
            fix = "declare it durable (with x-expires if it is for a while), or exclusive"
            yield Symptom(queue.name, f"neither durable nor exclusive, on {case.server}", fix)


def mirrored(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        mode = case.policy(queue.name).get("ha-mode")
        if mode is not None and queue.type == "classic":
            what = "has no mirrors, so that there is one copy" if case.is_4 else "has them for the last time"
            name = case.policy_name(queue.name)
            evidence = f"ha-mode {mode} by policy {name}, and {case.server} {what}"
            fix = f"{remade(queue, 'with x-queue-type: quorum')}, and take ha-mode out of policy {name}"
            yield Symptom(queue.name, evidence, fix)
