"""Inputs on disk, and how the first of them are made: `python tools/fuzz.py --make-corpus`.

A file is named for the target that takes it, `server-open.publish.bin`. What the server hears was said by a client
in a valid conversation, and the other way round. Inputs that showed a target something new are kept beside them, as
`server-open.~1a2b3c4d.bin`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fuzzing.conversations import LARGEST_MESSAGE, new_pair, opened
from fuzzing.targets import Target
from redrive.protocol.connection import Event
from redrive.wire.frames import HEADER, METHOD
from redrive.wire.method import METHODS, Method, Sender
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
)
from redrive.wire.methods.channel import ChannelClose, ChannelFlow, ChannelOpen
from redrive.wire.methods.connection import ConnectionBlocked, ConnectionClose, ConnectionUnblocked
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDelete
from redrive.wire.properties import Properties
from redrive.wire.values import Table, encode_table
from tests.support.connection_pair import ConnectionPair, frame_by_frame

FOLDER = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"

HEADERS: Table = {
    "text": "zoë", "bytes": b"\xff\x00", "true": True, "int": -5, "long": 1 << 40, "float": 1.5, "nothing": None,
    "decimal": decimal.Decimal("-12.34"), "time": dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    "x-death": [{"queue": "q", "count": 3, "reason": "expired", "routing-keys": ["k"]}],
    "deep": {"er": {"est": [[], {}]}},
}  # fmt: skip

EVERYTHING = Properties(
    content_type="application/json", content_encoding="utf-8", headers=HEADERS, delivery_mode=2, priority=5,
    correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_000, type="t",
    user_id="guest", app_id="a", cluster_id="",
).encode()  # fmt: skip


# On disk ------------------------------------------------------------------------------------------------------------


def load(folder: Path = FOLDER) -> dict[str, list[bytes]]:
    """Inputs by the name of their target."""
    corpus: dict[str, list[bytes]] = {}
    for path in sorted(folder.glob("*.bin")):
        corpus.setdefault(target_name(path), []).append(path.read_bytes())
    return corpus


def target_name(path: Path) -> str:
    return path.name.split(".")[0]


def keep(target: str, data: bytes, folder: Path) -> Path:
    """Save an input under the name of its target and its own digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target}.~{hashlib.sha256(data).hexdigest()[:8]}.bin"
    path.write_bytes(data)
    return path


def seeds_for(target: Target, corpus: dict[str, list[bytes]]) -> list[bytes]:
    """Where this target's inputs begin: its own files, and what its decoder finds in every stream."""
    own = [data for seed in target.seeds for data in corpus.get(seed, [])]
    streams = [data for name, inputs in corpus.items() if "-" in name for data in inputs]
    parts = _PARTS[target.name](streams) if target.name in _PARTS else []
    return own + parts or [b""]


def _payloads(streams: list[bytes], kind: int, prefix: bytes = b"") -> list[bytes]:
    units = [unit for stream in streams for unit in frame_by_frame(stream)]
    return sorted({unit[7:-1] for unit in units if unit[:1] == bytes((kind,)) and unit[7:].startswith(prefix)})


_PARTS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "method": lambda streams: _payloads(streams, METHOD),
    "delivery": lambda streams: _payloads(streams, METHOD, b"\x00\x3c\x00\x3c"),
    "publication": lambda streams: _payloads(streams, METHOD, b"\x00\x3c\x00\x28"),
    "properties": lambda streams: [payload[12:] for payload in _payloads(streams, HEADER)],
}


# Grown --------------------------------------------------------------------------------------------------------------


def grow(news: list[tuple[Target, bytes]], targets: Iterable[Target], folder: Path = FOLDER) -> None:
    """Keep the inputs that show something which no stored input of that side or decoder shows, as small as can be."""
    known = {(family(target), word) for target, data in _stored(targets, folder) for word in target.run(data)}
    for target, data in sorted(news, key=lambda item: len(item[1])):
        fresh = {word for word in target.run(data) if (family(target), word) not in known}
        if fresh:
            known |= {(family(target), word) for word in fresh}
            keep(target.name, shrunk(data, _shows(target, fresh)), folder)


def _shows(target: Target, words: set[str]) -> Callable[[bytes], bool]:
    return lambda data: words <= target.run(data)


def family(target: Target) -> str:
    """The side of a conversation, whatever its state, or the name of a decoder."""
    return target.name.split("-")[0]


def _stored(targets: Iterable[Target], folder: Path) -> Iterator[tuple[Target, bytes]]:
    stored = load(folder)
    return ((target, data) for target in targets for data in stored.get(target.name, []))


def shrunk(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    """As much of the input as it takes for `still` to hold: without frames, then without runs of bytes."""
    data = _without(list(frame_by_frame(data)), still)
    for size in (256, 64, 16, 4, 1):
        data = _without([data[at : at + size] for at in range(0, len(data), size)], still)
    return data


def _without(parts: list[bytes], still: Callable[[bytes], bool]) -> bytes:
    for at in reversed(range(len(parts))):
        rest = parts[:at] + parts[at + 1 :]
        if still(b"".join(rest)):
            parts = rest
    return b"".join(parts)


# Made ---------------------------------------------------------------------------------------------------------------


class Recording(ConnectionPair):
    """A pair that remembers what each side was told."""

    def __init__(self, pair: ConnectionPair) -> None:
        super().__init__(offer=pair.offer, client=pair.client, server=pair.server)
        self.server_heard = bytearray()
        self.client_heard = bytearray()

    def tell_server(self, data: bytes) -> list[Event]:
        self.server_heard += data
        return super().tell_server(data)

    def tell_client(self, data: bytes) -> list[Event]:
        self.client_heard += data
        return super().tell_client(data)


def make(targets: Iterable[Target], folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = _made() | {f"{target.name}.{name}": data for target in targets for name, data in target.made().items()}
    for name, data in made.items():
        (folder / f"{name}.bin").write_bytes(data)


def _made() -> dict[str, bytes]:
    life = Recording(new_pair())
    _whole_life(life)
    streams = {
        "server-fresh.life": bytes(life.server_heard),
        "client-fresh.life": bytes(life.client_heard),
        "table.everything": encode_table(HEADERS),
        "properties.everything": EVERYTHING,
    }
    for (side, name), methods in _CONVERSATIONS.items():
        hearer = "server" if side is Sender.CLIENT else "client"
        streams[f"{hearer}-open.{name}"] = _said(side, methods)
    return streams


def _whole_life(pair: ConnectionPair) -> None:
    """From the greeting to the farewell, with a message in each direction."""
    pair.open()
    number = pair.open_channel()
    pair.client.send_heartbeat()
    pair.server.send_heartbeat()
    pair.client.send(number, QueueDeclare(queue="q"))
    pair.client.send(number, BasicPublish(routing_key="q"), EVERYTHING, b"body")
    pair.server.send(number, BasicDeliver(consumer_tag="c", delivery_tag=1, routing_key="q"), EVERYTHING, b"body")
    pair.pump()
    pair.client.send(number, ChannelClose())
    pair.pump()
    pair.client.send(0, ConnectionClose())
    pair.pump()


def _said(side: Sender, methods: list[tuple[int, Method, bytes]]) -> bytes:
    """What one side says in an open connection, channel by channel and body by body."""
    pair = opened()
    speaker = pair.client if side is Sender.CLIENT else pair.server
    for channel, method, body in methods:
        speaker.send(channel, method, EVERYTHING if body else b"\x00\x00", body)
    return speaker.data_to_send()


def _on(channel: int, *methods: Method, body: bytes = b"") -> list[tuple[int, Method, bytes]]:
    return [(channel, method, body) for method in methods]


def _all_of(side: Sender) -> list[tuple[int, Method, bytes]]:
    """Every method of this side that an open channel may hear, with nothing in it."""
    ordinary = [cls() for cls in METHODS.values() if cls.id[0] not in (10, 20) and cls.sender in (side, Sender.EITHER)]
    return _on(1, *ordinary)


_CONVERSATIONS: dict[tuple[Sender, str], list[tuple[int, Method, bytes]]] = {
    (Sender.CLIENT, "methods"): _all_of(Sender.CLIENT),
    (Sender.CLIENT, "publishes"): [
        *_on(1, BasicPublish(exchange="e", routing_key="k", mandatory=True), body=b"{}"),
        *_on(2, BasicPublish(routing_key="q"), body=b"x" * 4500),
        *_on(1, BasicPublish(exchange="e", routing_key="k")),
        *_on(2, BasicPublish(), body=b"x" * (LARGEST_MESSAGE + 1)),
    ],
    (Sender.CLIENT, "topology"): _on(
        1,
        ExchangeDeclare(exchange="e", type="topic", durable=True, arguments=HEADERS),
        QueueDeclare(queue="q", durable=True, arguments={"x-dead-letter-exchange": "dlx", "x-message-ttl": 15000}),
        QueueBind(queue="q", exchange="e", routing_key="a.#", arguments={"x-match": "all"}),
        ExchangeBind(destination="f", source="e", routing_key="b.*"),
        QueueDelete(queue="q", if_empty=True),
    ),
    (Sender.CLIENT, "consumes"): _on(
        2,
        BasicConsume(queue="q", consumer_tag="c", arguments={"x-priority": 5}),
        BasicAck(delivery_tag=3, multiple=True),
        BasicNack(delivery_tag=4, requeue=False),
        BasicReject(delivery_tag=5),
        BasicCancel(consumer_tag="c"),
    ),
    (Sender.CLIENT, "channels"): [
        *_on(3, ChannelOpen()),
        *_on(1, ChannelFlow(active=False), ChannelClose(reply_text="enough")),
        *_on(4, ChannelOpen()),
        *_on(0, ConnectionClose(reply_text="goodbye")),
    ],
    (Sender.SERVER, "methods"): _all_of(Sender.SERVER),
    (Sender.SERVER, "deliveries"): [
        *_on(1, BasicDeliver(consumer_tag="c", delivery_tag=1, exchange="e", routing_key="k"), body=b"{}"),
        *_on(2, BasicDeliver(consumer_tag="c", delivery_tag=2, redelivered=True), body=b"x" * 4500),
        *_on(1, BasicDeliver(delivery_tag=3)),
        *_on(1, BasicGetOk(delivery_tag=4, routing_key="q", message_count=9), body=b"body"),
        *_on(2, BasicDeliver(delivery_tag=5), body=b"x" * (LARGEST_MESSAGE + 1)),
    ],
    (Sender.SERVER, "confirms"): [
        *_on(1, BasicReturn(reply_text="NO_ROUTE", exchange="e", routing_key="k"), body=b"body"),
        *_on(1, BasicAck(delivery_tag=1), BasicNack(delivery_tag=3, multiple=True), BasicAck(delivery_tag=9)),
    ],
    (Sender.SERVER, "refusals"): [
        *_on(0, ConnectionBlocked(reason="low on memory"), ConnectionUnblocked()),
        *_on(1, ChannelClose(reply_code=404, reply_text="NOT_FOUND - no queue", class_id=50, method_id=10)),
        *_on(2, BasicCancel(consumer_tag="c")),
        *_on(0, ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED")),
    ],
}
