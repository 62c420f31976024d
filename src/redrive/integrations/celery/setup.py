"""`equip`: one call, after the application's configuration and before its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import celery
from celery import signals
from celery.utils.imports import symbol_by_name
from kombu import Exchange, Queue, binding

from redrive.errors import ConfigurationError
from redrive.integrations.celery.bootsteps import Provision
from redrive.integrations.celery.queues import CeleryQueue, CelerySettings, Parking, equipment_of, give_equipment
from redrive.integrations.celery.requests import remember_failure
from redrive.integrations.celery.tasks import Task
from redrive.topology import Bind, Definitions, Topology
from redrive.topology.definitions import DEFAULT_EXCHANGE
from redrive.topology.serialization import parse_toml, parse_yaml

log = logging.getLogger("redrive.integrations.celery")

_PARSERS: Mapping[str, Callable[[str], Topology]] = {".toml": parse_toml, ".yaml": parse_yaml, ".yml": parse_yaml}
_CONSUMER = "celery.worker.consumer:Consumer"
_OWN_CONSUMER = "redrive.integrations.celery.bootsteps:Consumer"


def equip(
    app: celery.Celery,
    topology: Any,
    *,
    queue: str | None = None,
    park: Parking = "publish",
    crash_limit: int | None = 5,
    declare: bool = True,
) -> None:
    """Have the tasks of an application wait, fail and end as the topology says.

    `topology` is a `Topology`, a Redrive `App`, or a TOML or YAML file. Its queues become the application's
    `task_queues`, and `queue` the one that tasks go to by default. `park="reject"` parks by rejecting, through the
    queue's dead-letter exchange, without the story of the last attempt. After `crash_limit` processes that a task has
    ended it is parked; None: no guard. `declare`: workers make what is missing of the topology when they connect.
    """
    _check_tasks(app)
    equipment = CelerySettings.of(_read(topology), queue, park, crash_limit)
    give_equipment(app, equipment)
    _align(app.conf, equipment)
    _give_class(app, equipment.default)
    if declare:
        app.steps["consumer"].add(Provision)
    signals.task_failure.connect(remember_failure, weak=False, dispatch_uid="redrive")
    app.on_after_finalize.connect(_warn_of_unequipped_tasks, weak=False)


def _read(topology: Any) -> Topology:
    if isinstance(topology, str | Path):
        path = Path(topology)
        if path.suffix not in _PARSERS:
            raise ConfigurationError(f"equip: {topology}: want a file that ends with {', '.join(_PARSERS)}")
        try:
            return _PARSERS[path.suffix](path.read_text())
        except OSError as error:
            raise ConfigurationError(f"equip: cannot read {path}: {error.strerror}") from None
    found = getattr(topology, "topology", topology)  # an App has one
    if not isinstance(found, Topology):
        raise ConfigurationError(f"equip: {topology!r}: want a Topology, an App, or a file with a topology")
    return found


# Settings -----------------------------------------------------------------------------------------


def _align(conf: Any, equipment: CelerySettings) -> None:
    ours = [task_queue(place, equipment.definitions) for place in equipment.places.values()]
    others = [one for one in conf.task_queues or () if _queue_name(one) not in equipment.places]
    default = _way(equipment.default)
    conf.update(
        task_queues=[*ours, *others],
        task_default_queue=equipment.default.name,
        task_default_exchange=default.exchange,
        task_default_routing_key=default.routing_key,
        task_routes=[*_routes(conf.task_routes), _route_by_exchange(equipment)],
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={**(conf.broker_transport_options or {}), "confirm_publish": True},
    )
    definition = equipment.definitions.exchange(default.exchange)
    if definition is not None:
        conf.task_default_exchange_type = definition.type
    if conf.worker_consumer == _CONSUMER:
        conf.worker_consumer = _OWN_CONSUMER


def _queue_name(queue: Any) -> str:
    return str(getattr(queue, "name", queue))


def _routes(said: Any) -> list[Any]:
    if not said:
        return []
    return list(said) if isinstance(said, list | tuple) else [said]


def _way(place: CeleryQueue) -> Bind:
    """By which tasks come to it: its first binding, or its name."""
    return place.names.queue.bind[0] if place.names.queue.bind else Bind(DEFAULT_EXCHANGE, place.name)


def _route_by_exchange(equipment: CelerySettings) -> Callable[..., dict[str, Any] | None]:
    """A route for Celery: to an equipped queue by its own exchange and key, where the caller does not say otherwise.
    Without, Celery goes past direct exchanges, straight into the queue.
    """

    def route(_name: str, _args: Any, _kwargs: Any, options: Mapping[str, Any], **_: Any) -> dict[str, Any] | None:
        if options.get("exchange") or options.get("routing_key"):
            return None
        said = options.get("queue")
        place = equipment.places.get(_queue_name(said)) if said else equipment.default
        if place is None:
            return None
        way = _way(place)
        return {"queue": place.name, "exchange": way.exchange, "routing_key": way.routing_key}

    return route


def task_queue(place: CeleryQueue, definitions: Definitions) -> Queue:
    """As Celery declares it: with exactly the arguments that the topology gives it."""
    found = definitions.queue(place.name)
    assert found is not None
    binds = [(_exchange(bind.exchange, definitions), bind) for bind in place.names.queue.bind]
    options = {"durable": found.durable, "auto_delete": found.auto_delete, "queue_arguments": dict(found.arguments)}
    if len(binds) == 1 and not binds[0][1].arguments:
        exchange, bind = binds[0]
        return Queue(place.name, exchange, routing_key=bind.routing_key, **options)
    more = [binding(exchange, bind.routing_key, arguments=dict(bind.arguments)) for exchange, bind in binds]
    return Queue(place.name, bindings=more, **options)


def _exchange(name: str, definitions: Definitions) -> Exchange:
    found = definitions.exchange(name)
    if found is None:
        return Exchange(name, passive=True)
    return Exchange(
        name,
        found.type,
        durable=found.durable,
        auto_delete=found.auto_delete,
        arguments=dict(found.arguments),
    )


# Classes ------------------------------------------------------------------------------------------


def _give_class(app: Any, default: CeleryQueue) -> None:
    """Tasks are made of `app.Task`. Those that do not say how often they are retried have the ladder's number."""
    base = symbol_by_name(app.task_cls)
    bases = (base,) if issubclass(base, Task) else (Task, base)
    own: dict[str, Any] = {"abstract": True, "__module__": Task.__module__}
    if default.policy is not None and base.max_retries == celery.Task.max_retries:
        own["max_retries"] = default.policy.attempts - 1
    app.task_cls = type("Task", bases, own)
    app.__dict__.pop("Task", None)  # made of the class there was


def _check_tasks(app: Any) -> None:
    if equipment_of(app) is not None:
        raise ConfigurationError(f"{app!r} is equipped already")
    made = sorted(name for name, task in app._tasks.items() if not _is_own(name) and not isinstance(task, Task))
    if made:
        raise ConfigurationError(f"equip(app, ...) comes before the tasks; these exist already: {', '.join(made)}")


def _warn_of_unequipped_tasks(sender: Any, **_: Any) -> None:
    for name, task in sender._tasks.items():
        if not isinstance(task, Task) and not _is_own(name):
            log.warning(
                "task %s is not equipped, so its retries wait in workers: derive its base class from app.Task", name
            )


def _is_own(name: str) -> bool:
    return name.startswith("celery.")
