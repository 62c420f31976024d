"""What a person says about a topology: a queue is a line, and its retry and dead-letter parts follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, TypedDict

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry, retry_example
from redrive.topology.definitions import Arguments, BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.naming import Naming
from redrive.wire.values import brief_repr


class QueueType(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


_LONGEST = 300  # of a name that is quoted: a file may hold a longer one than any broker takes

_TRUTHS = frozenset(("", "yes", "no", "true", "false", "on", "off"))  # texts that were not meant as a queue's name

DeadLettering = Literal["at-least-once", "at-most-once"]
_DLQ = "true, false or the name of its dead-letter queue"
DlqOption: TypeAlias = Annotated[bool | str | None, _DLQ]


@checked("binding")
@dataclass(frozen=True, slots=True)
class Bind:
    """One binding of a queue, as said from the queue's side."""

    exchange: str
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)


@checked("exchange {name}")
@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange of an application, declared by `app.exchange(name, type)`."""

    name: str  # as it is called in the broker
    type: str = "direct"  # direct, topic, fanout, headers, or a plugin's
    durable: bool = True  # it survives a restart of the broker
    auto_delete: bool = False  # it goes with its last binding
    internal: bool = False  # only exchanges publish to it
    arguments: Arguments = field(default_factory=dict)  # as the broker takes them

    def on(self, *routing_keys: str, arguments: Arguments | None = None) -> tuple[Bind, ...]:
        """Bindings for a queue: `events.on("files.*", "orders.#")`; for headers exchanges by `arguments`."""
        return tuple(Bind(self.name, key, arguments or {}) for key in routing_keys or ("",))

    @property
    def definition(self) -> ExchangeDefinition:
        """Return the exchange as a broker holds it."""
        return ExchangeDefinition(
            self.name, self.type, self.durable, self.auto_delete, self.internal, dict(self.arguments)
        )


class DestinationKind(StrEnum):
    """Where re-driven messages go."""

    OWN = "own"  # the queue each failed in, and nowhere else
    RETRY = "retry"  # the retry exchange of that queue: it waits there first
    QUEUE = "queue"  # one that is named
    ORIGINAL = "original"  # the exchange and key of the first publish: everybody bound to it gets it again
    EXCHANGE = "exchange"  # one that is named, with a key


def bind_example(value: object) -> str:
    """Return what to give for `bind` instead of a value."""
    return f"events.on({value!r}) of an exchange" if isinstance(value, str) else "events.on('order.*') of an exchange"


_WORDS = (DestinationKind.OWN, DestinationKind.RETRY, DestinationKind.ORIGINAL)  # that stand for themselves


@dataclass(frozen=True, slots=True)
class Destination:
    way: DestinationKind = DestinationKind.OWN
    name: str = ""
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> Destination:
        """`own`, `retry`, `original`, `exchange:NAME:KEY`, or the name of a queue (`queue:own` for one called own)."""
        if text in _WORDS:
            return cls(DestinationKind(text))
        if text.startswith("exchange:"):
            name, colon, key = text.removeprefix("exchange:").partition(":")
            if not name or not colon:
                raise ConfigurationError(f"destination {text!r}: want exchange:NAME:KEY", option="to")
            return cls(DestinationKind.EXCHANGE, name, key)
        name = text.removeprefix("queue:")
        if not name:
            raise ConfigurationError(
                "destination: want the name of a queue, own, retry, original, or exchange:NAME:KEY"
            )
        return cls(DestinationKind.QUEUE, name)

    def __str__(self) -> str:
        match self.way:
            case DestinationKind.QUEUE:
                ambiguous = self.name in _WORDS or self.name.startswith(("queue:", "exchange:"))
                return f"queue:{self.name}" if ambiguous else self.name
            case DestinationKind.EXCHANGE:
                return f"exchange:{self.name}:{self.key}"
            case _:
                return self.way


@checked("queue {name}", retry=retry_example, bind=bind_example, naming="Naming(retry_queue='{queue}.wait')")
@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and what becomes of the messages that fail in it.

    `retry` gives it waiting queues, `dlq` (the default) a dead-letter queue. `type` is classic or quorum, or that of
    the topology. On quorum queues dead letters are handed over at least once, unless `dead_lettering` says otherwise.
    """

    name: str  # as it is called in the broker
    bind: Sequence[Bind] = ()  # what it is bound to: `events.on("order.*")`
    # gives it waiting queues. A consumer's queue has `Retry()` unless told otherwise; None parks at once
    retry: Retry | None = None
    # has it a dead-letter queue? Yes, unless it is auto-delete or a stream. A text names it, `{queue}` stands for the
    # queue's own name. A consumer may give a table of errors and the dead-letter queues for them
    dlq: DlqOption = None
    type: QueueType | None = None  # classic, quorum or stream; without a word that of the application
    durable: bool = True  # it survives a restart of the broker
    auto_delete: bool = False  # it goes with its last consumer
    arguments: Arguments = field(default_factory=dict)  # more arguments, as the broker takes them
    naming: Naming | None = None  # how its retry and dead-letter queues are called
    # at-least-once or at-most-once; quorum queues do the first without a word
    dead_lettering: DeadLettering | None = None
    delivery_limit: int | None = None  # how often a quorum queue delivers a message before it gives it up
    # take a queue that exists as it is: it is never declared or compared, and only its retry and dead-letter queues are
    # made. Its type and arguments are those that the broker reports
    existing: bool = False
    # where a re-drive of its dead letters goes unless the operator names another destination: own (the default), retry,
    # original, exchange:NAME:KEY, or the name of a queue
    redrive_to: str | None = None
    dead_ends: Sequence[str] = ()  # more dead-letter queues, for failures that somebody wants apart

    def __post_init__(self) -> None:
        object.__setattr__(self, "bind", tuple(self.bind))
        object.__setattr__(self, "dead_ends", tuple(dict.fromkeys(self.dead_ends)))
        _check_dlq(self.name, self.dlq)
        _check_existing(self)
        _check_redrive_to(self.name, self.redrive_to)
        if self.type is not None:
            object.__setattr__(self, "type", queue_type(self.type, f"queue {self.name}"))

    @property
    def destination(self) -> Destination:
        """Return where a re-drive of its dead letters goes by default."""
        return Destination() if self.redrive_to is None else Destination.parse(self.redrive_to)

    def has_dlq(self, default: QueueType) -> bool:
        """Return whether it has a dead-letter queue; `default` is the type of queues that name none."""
        if self.dlq is not None:
            return bool(self.dlq)
        return not self.auto_delete and (self.type or default) is not QueueType.STREAM


class DeclarationOptions(TypedDict, total=False):
    """What a queue and a consumer of it have in common, as keyword arguments."""

    bind: Sequence[Bind]
    retry: Retry | None
    type: QueueType | Literal["classic", "quorum", "stream"] | None
    durable: bool
    auto_delete: bool
    arguments: Arguments
    naming: Naming | None
    dead_lettering: DeadLettering | None
    delivery_limit: int | None
    existing: bool
    redrive_to: str | None


class QueueOptions(DeclarationOptions, total=False):
    """The options of a queue, as keyword arguments: `app.queue("q.thumbs", **options)`."""

    dlq: DlqOption


@checked("topology")
@dataclass(frozen=True, slots=True)
class Topology:
    """Everything an application wants of its broker."""

    exchanges: Sequence[Exchange] = ()
    queues: Sequence[Queue] = ()
    bindings: Sequence[BindingDefinition] = ()  # between exchanges, and whatever a queue's `bind` does not say
    naming: Naming = field(default_factory=Naming)
    queue_type: QueueType = QueueType.CLASSIC
    delays: bool = False  # publish with a delay, even if no queue retries by that route
    others: Definitions = field(default_factory=Definitions)  # taken as they are
    held: Definitions = field(default_factory=Definitions)  # existing queues as the broker has them, where it was asked

    def __post_init__(self) -> None:
        for name in ("exchanges", "queues", "bindings"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "queue_type", queue_type(self.queue_type, "topology"))

    def names_of(self, queue: Queue) -> Naming:
        """Return how the queue's retry and dead-letter parts are named; `dlq="name"` overrides the naming."""
        naming = queue.naming or self.naming
        return replace(naming, dlq_queue=queue.dlq) if isinstance(queue.dlq, str) else naming

    def with_held(self, held: Definitions) -> Topology:
        """Return the topology with its existing queues as they are among these definitions of a broker."""
        names = {queue.name for queue in self.queues if queue.existing}
        return replace(self, held=Definitions(queues=tuple(queue for queue in held.queues if queue.name in names)))

    def held_queue(self, queue: Queue) -> QueueDefinition | None:
        """Return an existing queue as the broker has it; None for other queues, and where the broker was not asked."""
        return self.held.queue(queue.name) if queue.existing else None

    def type_of(self, queue: Queue) -> QueueType:
        """Return the type of a queue: that of an existing queue, its own, or the topology's."""
        held = self.held_queue(queue)
        if held is not None:
            return queue_type(held.type, str(held))
        return queue.type or self.queue_type

    def queue(self, name: str) -> Queue | None:
        """Return the queue of this name, if there is one."""
        return next((queue for queue in self.queues if queue.name == name), None)


def _check_dlq(queue: str, dlq: bool | str | None) -> None:
    if isinstance(dlq, str) and dlq.lower() in _TRUTHS:
        raise ConfigurationError(f"queue {queue[:_LONGEST]}: dlq {brief_repr(dlq)}: want {_DLQ}")
    if isinstance(dlq, str):
        try:
            Naming(dlq_queue=dlq)
        except ConfigurationError as error:
            raise ConfigurationError(f"queue {queue[:_LONGEST]}: dlq: {error}") from None


_OF_A_DECLARATION = ("type", "durable", "auto_delete", "arguments", "delivery_limit", "dead_lettering")


def _check_existing(queue: Queue) -> None:
    """Refuse what only a declaration could give the queue."""
    if not queue.existing:
        return
    defaults = {field.name: field.default for field in fields(Queue)} | {"arguments": {}}
    if said := [name for name in _OF_A_DECLARATION if getattr(queue, name) != defaults[name]]:
        raise ConfigurationError(
            f"queue {queue.name[:_LONGEST]}: existing=True takes it as it is, and {', '.join(said)} would change it: "
            f"leave {'it' if len(said) == 1 else 'them'} out, or leave out existing=True and give the queue other "
            "arguments with `redrive topology migrate`"
        )


def _check_redrive_to(queue: str, to: str | None) -> None:
    try:
        if to is not None:
            Destination.parse(to)
    except ConfigurationError as error:
        raise ConfigurationError(f"queue {queue[:_LONGEST]}: redrive_to: {error}") from None


def queue_type(value: str, what: str) -> QueueType:
    try:
        return QueueType(value)
    except ValueError:
        raise ConfigurationError(
            f"{what[:_LONGEST]}: queue type {brief_repr(value)}: want one of {', '.join(QueueType)}"
        ) from None
