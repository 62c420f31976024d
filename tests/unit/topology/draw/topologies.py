"""Definitions to draw: small ones written by hand, and any at all made up by Hypothesis."""

from hypothesis import strategies as st

from redrive.recovery.retry import Retry
from redrive.topology import (
    BindingDefinition,
    Definitions,
    Exchange,
    ExchangeDefinition,
    Queue,
    QueueDefinition,
    Server,
    Topology,
    expand,
)
from redrive.topology.draw.picture import Edge, Node, Picture, picture_of

LATEST = Server.of("4.3")

HOSTILE = [
    'say "hello"',
    "<b>&amp;</b>",
    "</text><script>alert(1)</script>",
    "]]></style>",
    "two\nlines\tand\ra tab",
    "nul\0 and escape\x1b[31m",
    "[brackets]{braces}(round)|pipe|",
    "end",
    "subgraph",
    "style q fill:#f00;",
    "`tick` #35; $$x$$ %%{init}%%",
    "1. list",
    "- dash",
    "back\\slash\\N\\",
    "\u202edesrever",
    "zero\u200bwidth",
    "\ud800",
    "日本語のキュー",
    "🎉",
    " spaced ",
    "x" * 255,
    "é" * 127,
    "-->",
    "a---b",
    "--",
    "*",
    "#",
]


def queue(name: str, **arguments: object) -> QueueDefinition:
    """With arguments as in `queue("q", message_ttl=5)`."""
    return QueueDefinition(name, arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})


def dying(name: str, exchange: str, key: str | None = None, **arguments: object) -> QueueDefinition:
    """A queue whose dead letters go to an exchange."""
    if key is not None:
        arguments["dead_letter_routing_key"] = key
    return queue(name, dead_letter_exchange=exchange, **arguments)


def bound(source: str, destination: str, *keys: str, kind: str = "queue") -> list[BindingDefinition]:
    return [BindingDefinition(source, destination, key, kind) for key in keys or ("",)]  # type: ignore[arg-type]


def topic(name: str) -> ExchangeDefinition:
    return ExchangeDefinition(name, "topic")


def expanded(*queues: Queue, server: Server = LATEST) -> Definitions:
    """These queues, and the topic exchange `events` to which they may be bound."""
    return expand(Topology([Exchange("events", "topic")], queues), server)


def orders(retry: Retry, **options: object) -> Definitions:
    """One queue, bound to `events`."""
    bind = Exchange("events").on("order.*")
    return expanded(Queue("orders", bind, retry=retry, **options))  # type: ignore[arg-type]


def of_hostile_names() -> Definitions:
    """Each name as exchange, queue, dead-letter queue and key at once."""
    return Definitions.of(
        [topic(name) for name in HOSTILE],
        [each for name in HOSTILE for each in (dying(name, "", f"{name}.dlq", message_ttl=1000), queue(f"{name}.dlq"))],
        [one for name in HOSTILE for one in bound(name, name, name, "other")],
    )


# Questions to pictures ----------------------------------------------------------------------------


def node(definitions: Definitions, name: str) -> Node:
    (found,) = named(picture_of(definitions), name)
    return found


def named(picture: Picture, name: str) -> list[Node]:
    """An exchange and a queue may share a name."""
    return [node for node in picture.nodes if node.name == name]


def edges(definitions: Definitions) -> set[str]:
    """Each edge as a sentence: "orders → orders.retry: rejected"."""
    picture = picture_of(definitions)
    return {sentence(picture, edge) for edge in picture.edges}


def sentence(picture: Picture, edge: Edge) -> str:
    names = {node.id: node.name for node in picture.nodes}
    said = ", ".join(edge.lines)
    return f"{names[edge.source]} → {names[edge.target]}" + (f": {said}" if said else "")


# Any definitions ----------------------------------------------------------------------------------

_some_names = st.sampled_from(["a", "b", "c", "d", "e.dlq", "a.retry", "a.dlq", "redrive.delay.21", "amq.topic"])
any_names = _some_names | st.sampled_from(HOSTILE) | st.text(max_size=60)
_junk = st.none() | st.integers() | st.booleans() | st.floats() | st.text(max_size=5)
_lengths = st.integers(0, 10**13) | _junk
_types = st.sampled_from(["direct", "topic", "fanout", "headers", "x-delayed-message"]) | any_names


def _arguments(names: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "x-message-ttl": _lengths,
            "x-dead-letter-exchange": st.just("") | names | _junk,
            "x-dead-letter-routing-key": names | _junk,
            "x-queue-type": st.sampled_from(["classic", "quorum", "stream"]) | names,
            "x-delayed-retry-min": _lengths,
            "x-delayed-retry-max": _lengths,
        },
    )


def _definitions(names: st.SearchStrategy[str]) -> st.SearchStrategy[Definitions]:
    keys = st.sampled_from(["", "#", "*", "a.*", "a"]) | names
    exchanges = st.builds(
        ExchangeDefinition,
        names,
        _types,
        arguments=st.just({}) | st.fixed_dictionaries({"alternate-exchange": names | _junk}),
    )
    queues = st.builds(QueueDefinition, names, arguments=_arguments(names))
    bindings = st.builds(BindingDefinition, names, names, keys, st.sampled_from(["queue", "exchange"]))
    return st.builds(
        Definitions.of,
        st.lists(exchanges, max_size=6),
        st.lists(queues, max_size=8),
        st.lists(bindings, max_size=14),
    )


tangles = _definitions(_some_names)  # few names, many ties: cycles, dangling ends, shared parts
any_definitions = tangles | _definitions(any_names)
