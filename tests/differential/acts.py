"""What can be done to a broker, as values that Hypothesis can make up, and how each is done on a `Stage`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from differential.transcript import Stage
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind
from redrive.wire.properties import Properties

QUEUES = ("q0", "q1", "q2")
EXCHANGES = ("x0", "x1")
KEYS = ("a", "a.b", "q1", "")
PATTERNS = ("a", "a.b", "#", "*", "a.*", "")
# Lives of messages: none at all, too short to be seen, longer than any sequence takes.
LIVES = (0, 1, 600_000)

Act = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Step:
    """One act, with a name that makes a counterexample readable."""

    name: str
    act: Act

    def __repr__(self) -> str:
        return self.name


def _call(method: Any) -> Step:
    return Step(repr(method), lambda stage: stage.call(method))


queue_names = st.sampled_from(QUEUES)
exchange_names = st.sampled_from(EXCHANGES)
any_exchange = st.sampled_from((*EXCHANGES, "", "amq.direct", "nowhere"))


@st.composite
def queue_arguments(draw: st.DrawFn) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if draw(st.booleans()):
        arguments["x-dead-letter-exchange"] = draw(st.sampled_from(("", *EXCHANGES, "nowhere")))
        if draw(st.booleans()):
            arguments["x-dead-letter-routing-key"] = draw(st.sampled_from((*QUEUES, "a")))
    for name, values in {
        "x-message-ttl": LIVES,
        "x-max-length": (0, 1, 2),
        "x-max-length-bytes": (3, 6),
        "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
        "x-max-priority": (2, 5),
        "x-single-active-consumer": (True,),
    }.items():
        if draw(st.integers(0, 4)) == 0:
            arguments[name] = draw(st.sampled_from(values))
    return arguments


@st.composite
def declare_queue(draw: st.DrawFn) -> Step:
    return _call(
        QueueDeclare(
            queue=draw(queue_names),
            durable=draw(st.integers(0, 5)) > 0,
            exclusive=draw(st.integers(0, 7)) == 0,
            auto_delete=draw(st.integers(0, 7)) == 0,
            passive=draw(st.integers(0, 9)) == 0,
            arguments=draw(queue_arguments()),
        )
    )


@st.composite
def declare_exchange(draw: st.DrawFn) -> Step:
    return _call(
        ExchangeDeclare(
            exchange=draw(exchange_names),
            type=draw(st.sampled_from(("direct", "fanout", "topic"))),
            durable=draw(st.booleans()),
            auto_delete=draw(st.integers(0, 5)) == 0,
            internal=draw(st.integers(0, 7)) == 0,
            passive=draw(st.integers(0, 9)) == 0,
            arguments={"alternate-exchange": draw(exchange_names)} if draw(st.integers(0, 4)) == 0 else {},
        )
    )


@st.composite
def bind(draw: st.DrawFn) -> Step:
    key = draw(st.sampled_from(PATTERNS))
    kind = draw(st.sampled_from(("queue", "queue", "queue", "unbind", "exchange")))
    if kind == "exchange":
        return _call(ExchangeBind(destination=draw(exchange_names), source=draw(exchange_names), routing_key=key))
    method = QueueBind if kind == "queue" else QueueUnbind
    return _call(method(queue=draw(queue_names), exchange=draw(any_exchange), routing_key=key))


@st.composite
def remove(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(("queue", "exchange", "purge")))
    if kind == "purge":
        return _call(QueuePurge(queue=draw(queue_names)))
    if kind == "exchange":
        return _call(ExchangeDelete(exchange=draw(exchange_names), if_unused=draw(st.booleans())))
    unused, empty = draw(st.integers(0, 2)) == 0, draw(st.integers(0, 2)) == 0
    return _call(QueueDelete(queue=draw(queue_names), if_unused=unused, if_empty=empty))


@st.composite
def message_properties(draw: st.DrawFn) -> Properties:
    headers: dict[str, Any] | None = None
    if draw(st.integers(0, 2)) == 0:
        headers = {"h": draw(st.sampled_from((1, "text", True, None, [1, {"deep": 2}])))}
        if draw(st.integers(0, 3)) == 0:
            headers[draw(st.sampled_from(("CC", "BCC")))] = [draw(st.sampled_from((*KEYS, *QUEUES)))]
    return Properties(
        headers=headers,
        delivery_mode=draw(st.sampled_from((None, 1, 2))),
        priority=draw(st.sampled_from((None, None, 0, 1, 9))),
        expiration=draw(st.sampled_from((None, None, None, None, "0", "1", "600000", "x"))),
    )


@st.composite
def publish(draw: st.DrawFn) -> Step:
    exchange, properties = draw(any_exchange), draw(message_properties())
    key = draw(st.sampled_from(QUEUES if exchange == "" else KEYS))
    body, mandatory = draw(st.sampled_from((b"", b"one", b"second"))), draw(st.booleans())
    name = f"publish({exchange!r}, {key!r}, {body!r}, {properties!r}, mandatory={mandatory})"
    return Step(name, lambda stage: stage.publish(exchange, key, body, properties, mandatory))


@st.composite
def take(draw: st.DrawFn) -> Step:
    queue = draw(queue_names)
    match draw(st.sampled_from(("get", "get", "consume", "cancel"))):
        case "get":
            return Step(f"get({queue!r})", lambda stage: stage.get(queue))
        case "cancel":
            return Step(f"cancel({queue!r})", lambda stage: stage.cancel(queue))
        case _:
            prefetch, exclusive = draw(st.integers(0, 2)), draw(st.integers(0, 5)) == 0
            name = f"consume({queue!r}, prefetch={prefetch}, exclusive={exclusive})"
            return Step(name, lambda stage: stage.consume(queue, prefetch, exclusive))


@st.composite
def settle(draw: st.DrawFn) -> Step:
    queue = draw(queue_names)
    source = draw(st.sampled_from((f"get {queue}", f"consumer of {queue}")))
    how, which = draw(st.sampled_from(("ack", "nack", "reject"))), draw(st.integers(0, 3))
    multiple, requeue = draw(st.booleans()), draw(st.booleans())
    name = f"{how}({source!r}, which={which}, multiple={multiple}, requeue={requeue})"
    return Step(name, lambda stage: stage.settle(source, which, how, multiple, requeue))


_often = [declare_queue(), bind(), publish(), publish(), take(), settle()]
_seldom = [declare_exchange(), bind(), publish(), take(), remove()]
steps = st.one_of(*_often, *_seldom)


@st.composite
def _sequences(draw: st.DrawFn) -> list[Step]:
    """Most begin with something to work on."""
    beginning = draw(st.lists(st.one_of(declare_queue(), declare_exchange()), min_size=1, max_size=4))
    return beginning + draw(st.lists(steps, min_size=2, max_size=12))


sequences = _sequences()
