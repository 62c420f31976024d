"""The targets that `tools/fuzz.py` knows, by the names under which they are chosen.

`inputs` is what `make fuzz` tries of each, and `few` what `make test` does. Those that need a server take longer for
an input than the others for a thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzing.targets import Target


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    what: str
    make: Callable[[], list[Target]]  # imports what it needs, and nobody else does
    inputs: int
    few: int


def _frames() -> list[Target]:
    from fuzzing.conversations import decoders

    return decoders()


def _protocol() -> list[Target]:
    from fuzzing.conversations import conversations

    return conversations()


def _queries() -> list[Target]:
    from fuzzing.queries import QueryTarget

    return [QueryTarget("queries")]


def _bodies() -> list[Target]:
    from fuzzing.bodies import BodyTarget

    return [BodyTarget("bodies")]


def _definitions() -> list[Target]:
    from fuzzing.definitions import DefinitionsTarget, TopologyTarget
    from redrive.topology.serialization import parse_toml, parse_yaml

    return [DefinitionsTarget("definitions"), TopologyTarget("toml", parse_toml), TopologyTarget("yaml", parse_yaml)]


def _socket() -> list[Target]:
    from fuzzing.listening import SocketTarget

    return [SocketTarget("socket")]


def _deliveries() -> list[Target]:
    from fuzzing.deliveries import DeliveryTarget

    return [DeliveryTarget("deliveries")]


def _rabbitmq() -> list[Target]:
    from fuzzing.deliveries import RabbitMQTarget

    return [RabbitMQTarget("rabbitmq")]


def _rest() -> list[Target]:
    from fuzzing.rest import RestTarget

    return [RestTarget("rest")]


FAMILIES = {
    family.name: family
    for family in (
        Family("frames", "the decoders of methods, tables, properties, messages", _frames, 500_000, 2_000),
        Family("protocol", "the conversation of either side, in every state", _protocol, 500_000, 2_000),
        Family("queries", "the language in which dead letters are searched", _queries, 300_000, 1_000),
        Family("bodies", "what handlers get of a body, and what people are shown of it", _bodies, 100_000, 1_000),
        Family("definitions", "definitions.json, and topologies as TOML and YAML", _definitions, 60_000, 200),
        Family("socket", "a listening broker, and clients that talk nonsense", _socket, 50_000, 200),
        Family("deliveries", "hostile messages for a worker, and as dead letters", _deliveries, 500, 10),
        Family("rabbitmq", "the same on RabbitMQ, if it is installed", _rabbitmq, 100, 0),
        Family("rest", "requests for the admin server that no client would send", _rest, 10_000, 150),
    )
}


def target_named(name: str) -> Target:
    """As corpus files call it."""
    for family in FAMILIES.values():
        for target in family.make():
            if target.name == name:
                return target
    raise LookupError(f"there is no target {name}: there are {', '.join(FAMILIES)}")
