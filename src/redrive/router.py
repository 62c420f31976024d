"""Consumers and topology as they are declared: by an application, or by a router that it includes.

    router = Router()

    @router.consumer("q.validator", retry=Retry(attempts=3, delay="15s"))
    async def validate(file: FileUploaded) -> None: ...

    app.include(router)

Options that all consumers of a router or an application share are given once; each consumer may override them:

    router = Router(defaults={"retry": Retry(attempts=11, exponential=Exponential("5s")), "timeout": "30s"})

A decorated function stays what it was: call it in a test as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, Unpack, cast

from redrive.checks import Examples, check_names, check_types, checked, option_types
from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry, retry_example
from redrive.topology.definitions import Arguments, BindingDefinition
from redrive.topology.model import Exchange, Queue, QueueOptions, bind_example
from redrive.worker.consumer_spec import (
    BatchConsumerOptions,
    BatchSpec,
    ConsumerOptions,
    ConsumerSpec,
    DlqBatchConsumerOptions,
    GatheringOptions,
    HandlerOptions,
    Middleware,
)

F = TypeVar("F", bound=Callable[..., Any])

_QUEUE_OPTIONS = frozenset(option_types(QueueOptions))
_GATHERING_OPTIONS = frozenset(option_types(GatheringOptions))
_EXAMPLES: Examples = {
    "retry": retry_example,
    "bind": bind_example,
    "breaker": "BreakerPolicy(pause='30s')",
    "inbox": "InboxPolicy(keep='7d')",
    "naming": "Naming(dlq_queue='{queue}.dead')",
}


@checked("router")
class Router:
    """Collects the exchanges, queues and consumers that a module declares.

    `defaults` are options of `consumer`, for every consumer declared here that does not give them itself. Those of an
    included router have the defaults of that router.
    """

    def __init__(self, *, defaults: ConsumerOptions | None = None) -> None:
        self._defaults: dict[str, Any] = {**(defaults or {})}
        _check_options("defaults", self._defaults, ConsumerOptions)
        if "bind" in self._defaults:
            raise ConfigurationError("defaults: bind belongs to one queue: give it to that consumer", option="bind")
        self.exchanges: list[Exchange] = []
        self.queues: list[Queue] = []
        self.bindings: list[BindingDefinition] = []
        self.consumers: list[ConsumerSpec] = []
        self.dead_letter_consumers: list[tuple[str, ConsumerSpec]] = []  # by the name of the main queue
        self.middleware: list[Middleware] = []

    # Topology -----------------------------------------------------------------------------------------

    def exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> Exchange:
        """Declare an exchange; the options are those of `Exchange`."""
        exchange = Exchange(name, type, durable, auto_delete, internal, arguments if arguments is not None else {})
        self.exchanges.append(exchange)
        return exchange

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Declare a queue with its retry and dead-letter queues.

        The options are those of `Queue`: bind, retry, dlq, type, durable, auto_delete, arguments, naming,
        dead_lettering, delivery_limit, existing, redrive_to.
        """
        _check_options(f"queue {name}", options, QueueOptions)
        queue = Queue(name, **cast("dict[str, Any]", options))
        self.queues.append(queue)
        return queue

    def bind(self, destination: Exchange, source: Exchange, *routing_keys: str) -> None:
        """Route messages of an exchange on to another exchange."""
        for key in routing_keys or ("",):
            self.bindings.append(BindingDefinition(source.name, destination.name, key, "exchange"))

    # Consumers ----------------------------------------------------------------------------------------

    def consumer(self, queue: str | Queue, **options: Unpack[ConsumerOptions]) -> Callable[[F], F]:
        """Handle the messages of a queue with the decorated function, and declare that queue.

        Without `retry` there are three attempts, 15 s apart; `retry=None` parks at once.

        The queue:
            bind: what it is bound to, such as `events.on("order.*")`
            retry: when a failed message is retried; `Retry(attempts=3, delay="15s")`, or None
            dlq: whether it has a dead-letter queue, the name of that queue, or a table of errors and the dead-letter
                queues for them, `{http_status(422): "orders.refused"}`; other errors go to the queue's own
            type: classic, quorum or stream; that of the application if not given
            durable: whether it survives a restart of the broker
            auto_delete: whether it is deleted with its last consumer
            arguments: more arguments, as the broker takes them
            naming: the names of its retry and dead-letter queues
            dead_lettering: at-least-once or at-most-once; quorum queues use the first if it is not given
            delivery_limit: how often a quorum queue delivers a message before it dead-letters it
            existing: take a queue that exists as it is, and make only its retry and dead-letter queues
            redrive_to: where a re-drive of its dead letters goes by default

        The handler:
            concurrency: how many messages are handled at a time
            prefetch: how many messages the broker delivers ahead; by default twice the concurrency, at least 10
            timeout: how long one call of the handler may take; a longer one has failed
            processes: how many processes run a handler that needs a processor of its own; 0: none
            park: publish dead letters with their failure record, or reject them and leave it to the broker
            crash_limit: park a message after it crashed its worker this often; None: never
            crash_grace: how long a worker that lost its connection has to come back before it counts as dead
            breaker: stop consuming while what the handler depends on fails; one policy, or one for each dependency
            depends_on: the name of the dependency; consumers with the same dependency share a breaker
            rate: how many messages are handled per second at most
            headers: the names of the headers in which attempts are counted
            middleware: context managers around each call of the handler
            inbox: process each message once, in one transaction with the handler's writes
            database_outage: while the database of these transactions is unavailable, wait or count a failed attempt
        """
        _check_options(_name_of(queue), options, ConsumerOptions)
        return self._consumer(queue, {**options})

    def batch_consumer(self, queue: str | Queue, **options: Unpack[BatchConsumerOptions]) -> Callable[[F], F]:
        """Handle many messages at once; the function's parameter is annotated as `list[T]` or `Batch[T]`.

        In addition to the options of `consumer`:
            size: how many messages are in a batch
            max_wait: how long after its first message a batch is complete, however few it has
            batchers: how many batches are handled at a time
            prepare: a function that is called with each message before it is gathered; the batch gets what it returns:
                `prepare(body: T) -> U` and `list[U]`
            processors: how many messages are prepared at a time
            key: a function of the body; all messages of a batch have the same key
            isolate: when a batch fails, or fails with these errors, find the message that is the cause by halving
        """
        _check_options(_name_of(queue), options, BatchConsumerOptions)
        return self._consumer(queue, _with_batch(options))

    def _consumer(self, queue: str | Queue, options: dict[str, Any]) -> Callable[[F], F]:
        declared, more = _queue_and_options(queue, self._completed(queue, options))
        spec = ConsumerSpec(queue=declared, function=_no_handler, **more)
        self.queues = [*(one for one in self.queues if one is not queue), declared]
        return self._decorator(spec, self._add)

    def dlq_consumer(self, queue: str | Queue, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Handle the dead letters of a queue with the decorated function.

        A message on which it fails is returned, after a growing pause, unless the function raises `Discard`. The
        options are those of `consumer` that are about the handler.
        """
        _check_options(f"dlq_{_name_of(queue)}", options, HandlerOptions)
        return self._dead_letter_consumer(queue, {**options})

    def dlq_batch_consumer(self, queue: str | Queue, **options: Unpack[DlqBatchConsumerOptions]) -> Callable[[F], F]:
        """Handle many dead letters at once: as `dlq_consumer`, with the options of `batch_consumer`."""
        _check_options(f"dlq_{_name_of(queue)}", options, DlqBatchConsumerOptions)
        return self._dead_letter_consumer(queue, _with_batch(options))

    def _dead_letter_consumer(self, queue: str | Queue, options: Mapping[str, Any]) -> Callable[[F], F]:
        name = queue.name if isinstance(queue, Queue) else queue
        spec = ConsumerSpec(queue=Queue(name), function=_no_handler, for_dead_letters=True, **options)
        return self._decorator(spec, lambda spec: self.dead_letter_consumers.append((name, spec)))

    def _decorator(self, spec: ConsumerSpec, add: Callable[[ConsumerSpec], None]) -> Callable[[F], F]:
        def register(function: F) -> F:
            add(replace(spec, function=function))
            return function

        return register

    def _completed(self, queue: str | Queue, options: dict[str, Any]) -> dict[str, Any]:
        """The options, and the defaults of which neither they nor the queue say anything."""
        said = _said_by(queue) if isinstance(queue, Queue) else set()
        return {name: value for name, value in self._defaults.items() if name not in said} | options

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


def _no_handler() -> None:
    """Stand for the handler of a consumer until the decorator gets it."""


def _name_of(queue: str | Queue) -> str:
    if not isinstance(queue, str | Queue):
        raise ConfigurationError(f"consumer: queue {queue!r:.100}: want a queue's name or a Queue", option="queue")
    return f"consumer of {queue.name if isinstance(queue, Queue) else queue}"


def _queue_and_options(queue: str | Queue, options: dict[str, Any]) -> tuple[Queue, dict[str, Any]]:
    """Return the queue that the options describe, and the options of its consumer."""
    of_queue = {name: value for name, value in options.items() if name in _QUEUE_OPTIONS}
    others = {name: value for name, value in options.items() if name not in _QUEUE_OPTIONS}
    if isinstance(table := of_queue.get("dlq"), Mapping):
        others["dead_ends"] = dict(table)
        of_queue["dead_ends"] = tuple(table.values())
        of_queue["dlq"] = queue.dlq if isinstance(queue, Queue) and isinstance(queue.dlq, str) else True
    if isinstance(queue, Queue):
        return (replace(queue, **of_queue) if of_queue else queue), others
    return Queue(queue, **({"retry": Retry()} | of_queue)), others


def _with_batch(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of batches as one `batch`."""
    gathering = {name: value for name, value in options.items() if name in _GATHERING_OPTIONS}
    others = {name: value for name, value in options.items() if name not in _GATHERING_OPTIONS}
    return others | {"batch": BatchSpec(**gathering)}


def _said_by(queue: Queue) -> set[str]:
    """What a queue says about itself that it would not be anyway."""
    plain = Queue(queue.name)
    return {field.name for field in fields(Queue) if getattr(queue, field.name) != getattr(plain, field.name)}


def _check_options(what: str, options: Mapping[str, Any], known: type) -> None:
    types = option_types(known)
    check_names(what, options, types)
    check_types(f"{what}: ", options, types, _EXAMPLES)
