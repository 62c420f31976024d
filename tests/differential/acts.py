"""What can be done to a broker, as values that Hypothesis can make up, and how each is done on a `Stage`.

A sequence begins with a world to work on: queues that dead-letter into each other, exchanges, bindings between them.
What follows is mostly publishing, taking and settling; and now and then somebody binds, declares, deletes or purges in
between, and even more rarely asks for what is not there. Whether a sequence uses confirms or transactions is decided
once, at its beginning, since a channel cannot change from one to the other. Some things happen seldom: another channel
is opened, a channel or the connection is closed with what is not settled there, a body fills a frame or exceeds it, a
name is empty, has line ends, letters beyond ASCII, or the greatest length.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

from differential.transcript import Stage
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicRecover
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind
from redrive.wire.methods.tx import TxCommit, TxRollback, TxSelect
from redrive.wire.properties import Properties

QUEUES = ("q0", "q1", "q2")
EXCHANGES = ("x0", "x1", "x2")
KEYS = ("a", "a", "a.b", "q1", "")
FRAME_MAX = 8192
# Bodies around the size of a frame: the last that fits, one that is forgiven, the largest forgiven, two frames, three.
LARGE = (FRAME_MAX - 8, FRAME_MAX - 7, FRAME_MAX, 2 * (FRAME_MAX - 8), 2 * FRAME_MAX)
LONG_NAMES = ("n" * 255, "é" * 127)
ODD_QUEUES = ("q0\n", "\rq1", "q\r\n0", "\n", *LONG_NAMES)
ODD_EXCHANGES = ("x0\n", "\r\nx1", "\r", *LONG_NAMES)
PATTERNS = ("a", "a", "a.b", "#", "*", "a.*", "")
# Lives of messages in milliseconds: too short to be seen, longer than any sequence takes, none at all.
SHORT, LONG, NONE = 1, 600_000, 0

T = TypeVar("T")
Act = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Step:
    """One act, with a name that makes a counterexample readable."""

    name: str
    act: Act
    short_lived: bool = False  # a message may live for a millisecond after it: quorum queues look at none at once

    def __repr__(self) -> str:
        return self.name


def seldom(draw: st.DrawFn, one_in: int) -> bool:
    return draw(st.sampled_from((False,) * (one_in - 1) + (True,)))


def _call(method: Method, *, short_lived: bool = False) -> Step:
    return Step(_shortly(method), lambda stage: stage.call(method), short_lived)


def _shortly(method: Method) -> str:
    """A method with what it says beyond the defaults."""
    fields = {name: getattr(method, name) for name in method.__dataclass_fields__}  # type: ignore[attr-defined]
    told = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value)
    return f"{type(method).__name__}({told})"


# The world ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What was declared at the beginning, so that most acts have something to act on."""

    queues: tuple[str, ...]
    exchanges: tuple[str, ...]
    transactions: bool

    @property
    def lives(self) -> tuple[int, ...]:
        """In a commit, what lives for a millisecond may or may not meet a consumer that an ack sets free."""
        return (LONG, NONE) if self.transactions else (SHORT, LONG, NONE)

    def queue(self, draw: st.DrawFn) -> str:
        """The first is where most happens: what is published has to meet somebody who takes it."""
        if seldom(draw, 40):
            return draw(st.sampled_from(ODD_QUEUES))
        return draw(st.sampled_from(QUEUES if seldom(draw, 60) else (*self.queues, *self.queues[:1] * 3)))

    def exchange(self, draw: st.DrawFn) -> str:
        if seldom(draw, 60):
            return draw(st.sampled_from(ODD_EXCHANGES))
        if not self.exchanges or seldom(draw, 20):
            return draw(st.sampled_from((*EXCHANGES, "amq.direct", "amq.match", "nowhere")))
        return draw(st.sampled_from(self.exchanges))


def _some(draw: st.DrawFn, choices: dict[str, tuple[Any, ...]], one_in: int) -> dict[str, Any]:
    return {name: draw(st.sampled_from(values)) for name, values in choices.items() if seldom(draw, one_in)}


_ANY_QUEUE: dict[str, tuple[Any, ...]] = {
    "x-max-length": (1, 2, 3, 0),
    "x-max-length-bytes": (3, 8),
    "x-single-active-consumer": (True,),
}
_OF_A_CLASSIC_QUEUE: dict[str, tuple[Any, ...]] = {"x-max-priority": (2, 5)}
_OF_A_QUORUM_QUEUE: dict[str, tuple[Any, ...]] = {"x-delivery-limit": (0, 1, 2)}


@st.composite
def queue_arguments(draw: st.DrawFn, world: World, *, quorum: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"x-queue-type": "quorum"} if quorum else {}
    if not seldom(draw, 3):
        arguments |= draw(dead_letter_arguments(world))
    arguments |= _some(draw, {"x-message-ttl": world.lives, **_ANY_QUEUE}, 6)
    if arguments.keys() & {"x-max-length", "x-max-length-bytes"} and draw(st.booleans()):
        overflows = ("drop-head", "reject-publish", "reject-publish", *(("reject-publish-dlx",) * (2 - quorum)))
        arguments["x-overflow"] = draw(st.sampled_from(overflows))
    arguments |= _some(draw, _OF_A_QUORUM_QUEUE, 2 if quorum else 60)
    return arguments | _some(draw, _OF_A_CLASSIC_QUEUE, 60 if quorum else 4)


@st.composite
def dead_letter_arguments(draw: st.DrawFn, world: World) -> dict[str, Any]:
    """To a queue by its name, or through an exchange, with or without a key."""
    if draw(st.booleans()):
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": draw(st.sampled_from(world.queues[::-1]))}
    arguments = {"x-dead-letter-exchange": world.exchange(draw) if draw(st.booleans()) else ""}
    if draw(st.booleans()):
        arguments["x-dead-letter-routing-key"] = draw(st.sampled_from(KEYS))
    return arguments


@st.composite
def declare_queue(draw: st.DrawFn, world: World, name: str | None = None) -> Step:
    quorum = seldom(draw, 3)
    arguments = draw(queue_arguments(world, quorum=quorum))
    odd = 40 if quorum else 12  # how seldom it has what a quorum queue must not have
    declare = QueueDeclare(
        queue=name if name is not None else world.queue(draw),
        durable=not seldom(draw, odd),
        exclusive=seldom(draw, odd),
        auto_delete=seldom(draw, odd),
        passive=name is None and seldom(draw, 4),
        arguments=arguments,
    )
    return _call(declare, short_lived=arguments.get("x-message-ttl") in (NONE, SHORT))


@st.composite
def declare_exchange(draw: st.DrawFn, world: World, name: str | None = None) -> Step:
    return _call(
        ExchangeDeclare(
            exchange=name if name is not None else world.exchange(draw),
            type=draw(st.sampled_from(("direct", "fanout", "topic", "headers"))),
            durable=draw(st.booleans()),
            auto_delete=seldom(draw, 6),
            internal=seldom(draw, 10),
            passive=name is None and seldom(draw, 4),
            arguments={"alternate-exchange": world.exchange(draw)} if seldom(draw, 3) else {},
        )
    )


@st.composite
def match_arguments(draw: st.DrawFn) -> dict[str, Any]:
    """What a headers exchange may be asked for; other types keep bindings apart by it and do not look."""
    modes = ("all", "any", "all-with-x", "any-with-x")
    wanted: dict[str, tuple[Any, ...]] = {"x-match": modes, "h": (1, 1, "text", None), "k": (1, 2)}
    arguments = _some(draw, wanted, 2) | _some(draw, {"x-h": (1,)}, 6)
    return arguments | {"x-match": "some"} if seldom(draw, 40) else arguments


@st.composite
def bind(draw: st.DrawFn, world: World, *, mostly: str = "on") -> Step:
    key = draw(st.sampled_from(PATTERNS))
    arguments = draw(match_arguments()) if draw(st.booleans()) else {}
    kind = draw(st.sampled_from(("queue", "queue", "queue", "exchange")))
    off = seldom(draw, 3 if mostly == "off" else 20)
    if kind == "exchange":
        ends = {"destination": world.exchange(draw), "source": world.exchange(draw)}
        method = ExchangeUnbind if off else ExchangeBind
        return _call(method(**ends, routing_key=key, arguments=arguments))
    queue, exchange = world.queue(draw), world.exchange(draw)
    if off:
        return _call(QueueUnbind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))
    return _call(QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))


@st.composite
def remove(draw: st.DrawFn, world: World) -> Step:
    kind = draw(st.sampled_from(("queue", "exchange", "purge", "purge")))
    if kind == "purge":
        return _call(QueuePurge(queue=world.queue(draw)))
    if kind == "exchange":
        return _call(ExchangeDelete(exchange=world.exchange(draw), if_unused=draw(st.booleans())))
    return _call(QueueDelete(queue=world.queue(draw), if_unused=seldom(draw, 3), if_empty=seldom(draw, 3)))


# Messages -------------------------------------------------------------------------------------------------


@st.composite
def message_properties(draw: st.DrawFn, world: World) -> Properties:
    headers: dict[str, Any] | None = None
    if draw(st.booleans()):
        headers = {"h": draw(st.sampled_from((1, 1, "text", True, None, [1, {"deep": 2}])))}
        headers |= _some(draw, {"k": (1, 2)}, 2) | _some(draw, {"x-h": (1,)}, 6)
        if seldom(draw, 5):
            headers[draw(st.sampled_from(("CC", "BCC")))] = [draw(st.sampled_from((*KEYS, *QUEUES)))]
    expirations = tuple(map(str, world.lives)) if seldom(draw, 5) else ("x",) if seldom(draw, 60) else (None,)
    return Properties(
        headers=headers,
        delivery_mode=draw(st.sampled_from((None, 1, 2))),
        priority=draw(st.sampled_from((None, None, None, 0, 1, 4, 5, 9))),
        expiration=draw(st.sampled_from(expirations)),
    )


@st.composite
def publish(draw: st.DrawFn, world: World) -> Step:
    """One to three of the same kind, one after the other."""
    properties = draw(message_properties(world))
    if not world.exchanges or draw(st.booleans()):
        exchange, key = "", world.queue(draw)
    else:
        exchange, key = world.exchange(draw), draw(st.sampled_from(KEYS))
    sizes = LARGE if seldom(draw, 12) else (1, 1, 4, 0)
    count, size = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from(sizes))
    mandatory = draw(st.booleans())
    name = f"publish({count} to {exchange!r} {key!r}, size={size}, {properties!r}{', mandatory' * mandatory})"

    async def act(stage: Stage) -> None:
        for _ in range(count):
            await stage.publish(exchange, key, size, properties, mandatory)

    return Step(name, act, short_lived=properties.expiration in (str(NONE), str(SHORT)))


@st.composite
def get(draw: st.DrawFn, world: World) -> Step:
    queue, no_ack, count = world.queue(draw), seldom(draw, 8), draw(st.sampled_from((1, 1, 2)))

    async def act(stage: Stage) -> None:
        for _ in range(count):
            await stage.get(queue, no_ack=no_ack)

    return Step(f"get({count} from {queue!r}{', no_ack' * no_ack})", act)


@st.composite
def consume(draw: st.DrawFn, world: World) -> Step:
    queue, prefetch = world.queue(draw), draw(st.sampled_from((0, 1, 2, 3)))
    exclusive, no_ack = seldom(draw, 8), seldom(draw, 10)
    name = f"consume({queue!r}, prefetch={prefetch}{', exclusive' * exclusive}{', no_ack' * no_ack})"
    return Step(name, lambda stage: stage.consume(queue, prefetch, exclusive=exclusive, no_ack=no_ack))


@st.composite
def cancel(draw: st.DrawFn, world: World) -> Step:
    queue = world.queue(draw)
    return Step(f"cancel({queue!r})", lambda stage: stage.cancel(queue))


@st.composite
def settle(draw: st.DrawFn) -> Step:
    which, how = draw(st.integers(0, 5)), draw(st.sampled_from(("ack", "nack", "nack", "reject")))
    multiple, requeue, again = draw(st.booleans()), draw(st.booleans()), seldom(draw, 60)
    told = f"{', multiple' * multiple}{', requeue' * requeue}{', again' * again}"
    return Step(
        f"{how}(which={which}{told})",
        lambda stage: stage.settle(which, how, multiple=multiple, requeue=requeue, again=again),
    )


@st.composite
def settle_all(draw: st.DrawFn) -> Step:
    how, requeue = draw(st.sampled_from(("ack", "nack", "nack"))), draw(st.booleans())
    return Step(f"{how} all({'requeue' * requeue})", lambda stage: stage.settle_all(how, requeue=requeue))


@st.composite
def recover(draw: st.DrawFn) -> Step:
    method = BasicRecover(requeue=not seldom(draw, 12))
    return Step(_shortly(method), lambda stage: stage.recover(method))


@st.composite
def transact(draw: st.DrawFn) -> Step:
    method = draw(st.sampled_from((TxCommit(), TxCommit(), TxRollback())))
    return Step(_shortly(method), lambda stage: stage.end_transaction(method))


CHANNELS = (
    Step("another channel", lambda stage: stage.another_channel()),
    Step("close the channel", lambda stage: stage.close_channel()),
    Step("close the connection", lambda stage: stage.reconnect()),
)


def another_mode() -> st.SearchStrategy[Step]:
    return st.sampled_from((_call(TxSelect()), _call(ConfirmSelect())))


# Sequences ------------------------------------------------------------------------------------------------

TRANSACTIONS = Step("in transactions", lambda stage: stage.use_transactions())


@st.composite
def _beginnings(draw: st.DrawFn, world: World) -> list[Step]:
    beginning = [draw(declare_exchange(world, name)) for name in world.exchanges]
    beginning += [draw(declare_queue(world, name)) for name in world.queues]
    if world.exchanges:
        beginning += draw(st.lists(bind(world), min_size=1, max_size=4))
    return beginning


@st.composite
def _rounds(draw: st.DrawFn, world: World, *, strange: bool) -> list[Step]:
    """Something is published, somebody takes it and settles it, and something else happens."""
    steps = draw(st.lists(publish(world), min_size=1, max_size=2))
    if seldom(draw, 4):
        steps.append(draw(st.sampled_from(CHANNELS)))
    if world.transactions:
        steps += draw(st.lists(transact(), max_size=1))
    steps += draw(st.lists(st.one_of(get(world), consume(world)), min_size=1, max_size=2))
    steps += draw(st.lists(st.one_of(settle(), settle(), settle(), settle_all(), recover()), min_size=1, max_size=3))
    if world.transactions:
        steps += draw(st.lists(transact(), max_size=1))
    if seldom(draw, 4):
        steps.append(draw(st.sampled_from(CHANNELS)))
    if seldom(draw, 3):
        others = [
            bind(world, mostly="off"),
            remove(world),
            cancel(world),
            declare_queue(world),
            declare_exchange(world),
        ]
        steps.append(draw(st.one_of(*others, *([another_mode(), transact()] if strange else []))))
    return steps


@st.composite
def _sequences(draw: st.DrawFn) -> list[Step]:
    queues, exchanges = draw(st.sampled_from((2, 2, 3, 1))), draw(st.sampled_from((0, 1, 1, 2, 3)))
    world = World(QUEUES[:queues], EXCHANGES[:exchanges], transactions=seldom(draw, 4))
    rounds = draw(st.lists(_rounds(world, strange=seldom(draw, 15)), min_size=1, max_size=5))
    return [TRANSACTIONS] * world.transactions + draw(_beginnings(world)) + [step for round in rounds for step in round]


sequences = _sequences()
