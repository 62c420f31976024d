"""Consumers and topology as they are declared: by an application, or by a router that it includes.

    router = Router()

    @router.consumer("q.validator", retry=Retry(attempts=3, delay="15s"))
    async def validate(file: FileUploaded) -> None: ...

    app.include(router)

What all consumers of a router or an application have in common is said once, and each of them may say otherwise:

    router = Router(defaults={"retry": Retry(attempts=11, exponential=Exponential("5s")), "timeout": "30s"})

A decorated function stays what it was: call it in a test as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.text import did_you_mean
from redrive.topology.definitions import BindingDefinition
from redrive.topology.model import Bind, Exchange, Queue
from redrive.worker.consumer_spec import BatchSpec, ConsumerSpec, Middleware

F = TypeVar("F", bound=Callable[..., Any])

_QUEUE_OPTIONS = {field.name for field in fields(Queue)} - {"name", "dead_ends"}
_CONSUMER_OPTIONS = {field.name for field in fields(ConsumerSpec)} - {
    "queue",
    "function",
    "batch",
    "dead_ends",
    "for_dead_letters",
}
_BATCH_OPTIONS = {field.name for field in fields(BatchSpec)}
_DEFAULTS = (_QUEUE_OPTIONS | _CONSUMER_OPTIONS) - {"bind"}


class Router:
    """Collects what a module declares.

    `defaults` are options of `consumer`, for every consumer declared here that does not say them itself. Those of an
    included router have the defaults of that router.
    """

    def __init__(self, *, defaults: Mapping[str, Any] | None = None) -> None:
        self._defaults = dict(defaults or {})
        _check_known("defaults", self._defaults, _DEFAULTS)
        self.exchanges: list[Exchange] = []
        self.queues: list[Queue] = []
        self.bindings: list[BindingDefinition] = []
        self.consumers: list[ConsumerSpec] = []
        self.dead_letter_consumers: list[tuple[str, ConsumerSpec]] = []  # by the name of the main queue
        self.middleware: list[Middleware] = []

    # Topology -----------------------------------------------------------------------------------------

    def exchange(self, name: str, type: str = "direct", **options: Any) -> Exchange:
        """Declare an exchange; `options` are those of `Exchange`."""
        exchange = Exchange(name, type, **options)
        self.exchanges.append(exchange)
        return exchange

    def queue(self, name: str, *, bind: Sequence[Bind] = (), **options: Any) -> Queue:
        """Declare a queue with what belongs to it; `options` are those of `Queue`."""
        queue = Queue(name, bind, **options)
        self.queues.append(queue)
        return queue

    def bind(self, destination: Exchange, source: Exchange, *routing_keys: str) -> None:
        """Lead what an exchange gets on to another exchange."""
        for key in routing_keys or ("",):
            self.bindings.append(BindingDefinition(source.name, destination.name, key, "exchange"))

    # Consumers ----------------------------------------------------------------------------------------

    def consumer(self, queue: str | Queue, **options: Any) -> Callable[[F], F]:
        """Have a function handle the messages of a queue.

        `options` are those of `Queue` (bind, retry, type, ...) and of `ConsumerSpec` (concurrency, prefetch, timeout,
        ...). Without a word about `retry` there are three attempts, 15 s apart; `retry=None` parks at once.
        `dlq` may be the name of the queue's dead-letter queue, or a table of errors and the dead-letter queues for
        them; what is not in the table goes to the queue's own.
        """
        _check_options(queue, options, _CONSUMER_OPTIONS)
        return self._consumer(queue, options)

    def batch_consumer(self, queue: str | Queue, **options: Any) -> Callable[[F], F]:
        """Have a function handle many messages at once; its parameter is annotated as `list[T]` or `Batch[T]`.

        In addition to the options of `consumer` there are those of `BatchSpec`: size, timeout, batchers, prepare,
        processors, key, isolate. With `prepare=` the function gets what that returned for each message: `prepare(body:
        T) -> U` and `list[U]`. The time limit of a call, of either function, is `call_timeout`.
        """
        _check_options(queue, options, _CONSUMER_OPTIONS | _BATCH_OPTIONS | {"call_timeout"})
        return self._consumer(queue, {"batch": _batch_of(options), **options})

    def _consumer(self, queue: str | Queue, options: dict[str, Any]) -> Callable[[F], F]:
        declared, more = self._queue_of(queue, self._completed(queue, options))

        def register(function: F) -> F:
            self._add(ConsumerSpec(queue=declared, function=function, **more))
            return function

        return register

    def dlq_consumer(self, queue: str | Queue, **options: Any) -> Callable[[F], F]:
        """Have a function handle the dead letters of a queue. What it fails on goes back, after a growing pause, unless
        it raises `Discard`.
        """
        _check_options(queue, options, _CONSUMER_OPTIONS)
        return self._dead_letter_consumer(queue, options)

    def dlq_batch_consumer(self, queue: str | Queue, **options: Any) -> Callable[[F], F]:
        """Have a function handle many dead letters at once: as `dlq_consumer`, with the options of `batch_consumer`."""
        _check_options(queue, options, _CONSUMER_OPTIONS | _BATCH_OPTIONS | {"call_timeout"})
        return self._dead_letter_consumer(queue, {"batch": _batch_of(options), **options})

    def _dead_letter_consumer(self, queue: str | Queue, options: Mapping[str, Any]) -> Callable[[F], F]:
        name = queue.name if isinstance(queue, Queue) else queue

        def register(function: F) -> F:
            spec = ConsumerSpec(queue=Queue(name), function=function, for_dead_letters=True, **options)
            self.dead_letter_consumers.append((name, spec))
            return function

        return register

    def _completed(self, queue: str | Queue, options: dict[str, Any]) -> dict[str, Any]:
        """The options, and the defaults of which neither they nor the queue say anything."""
        said = _said_by(queue) if isinstance(queue, Queue) else set()
        return {name: value for name, value in self._defaults.items() if name not in said} | options

    def _queue_of(self, queue: str | Queue, options: dict[str, Any]) -> tuple[Queue, dict[str, Any]]:
        """The queue that the options describe, declared once, and the options that are the consumer's."""
        dlq = options.pop("dlq", None)
        dead_ends = dict(dlq) if isinstance(dlq, Mapping) else {}
        said = {name: options.pop(name) for name in list(options) if name in _QUEUE_OPTIONS}
        said["dead_ends"] = tuple(dead_ends.values())
        named = isinstance(queue, Queue) and isinstance(queue.dlq, str)
        said["dlq"] = (None if named else True) if isinstance(dlq, Mapping) else dlq
        if isinstance(queue, Queue):
            changes = {name: value for name, value in said.items() if value not in (None, ())}
            declared = replace(queue, **changes) if changes else queue
            self.queues = [one for one in self.queues if one is not queue]
        else:
            declared = Queue(queue, **({"retry": Retry()} | said))
        self.queues.append(declared)
        return declared, options | {"dead_ends": dead_ends}

    def _add(self, spec: ConsumerSpec) -> None:
        if any(known.queue.name == spec.queue.name for known in self.consumers):
            raise ConfigurationError(
                f"queue {spec.queue.name} has a consumer already: give the other a queue of its own"
            )
        self.consumers.append(spec)

    def include(self, router: Router) -> None:
        """Take over what another router declares."""
        for spec in router.consumers:
            self._add(spec)
        self.exchanges += router.exchanges
        self.queues += router.queues
        self.bindings += router.bindings
        self.dead_letter_consumers += router.dead_letter_consumers
        self.middleware += router.middleware


def _batch_of(options: dict[str, Any]) -> BatchSpec:
    """What the options say of batches, taken out of them; what is left are those of any consumer."""
    batch = BatchSpec(**{name: options.pop(name) for name in list(options) if name in _BATCH_OPTIONS})
    if "call_timeout" in options:
        options["timeout"] = options.pop("call_timeout")
    return batch


def _said_by(queue: Queue) -> set[str]:
    """What a queue says about itself that it would not be anyway."""
    plain = Queue(queue.name)
    return {field.name for field in fields(Queue) if getattr(queue, field.name) != getattr(plain, field.name)}


def _check_options(queue: str | Queue, options: Mapping[str, Any], more: set[str]) -> None:
    name = queue.name if isinstance(queue, Queue) else queue
    _check_known(f"consumer of {name}", options, _QUEUE_OPTIONS | more)


def _check_known(whose: str, options: Mapping[str, Any], known: set[str]) -> None:
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, f"; there are {', '.join(sorted(known))}")
            raise ConfigurationError(f"{whose}: unknown option {option}{hint}")
