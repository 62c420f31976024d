"""`definitions`: RabbitMQ's definitions.json, and topologies as TOML and YAML, that somebody else wrote.

Whatever a file says, it is a value, or a ConfigurationError of which each sentence names the place and is short enough
to be read. What was read is written and reads as the same. What a file defines can be looked at in every way there is:
planned, drawn, examined by the doctor, equipped with retries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from redrive.errors import ConfigurationError, TopologyError
from redrive.recovery.retry import Retry
from redrive.topology import Definitions, Naming, Server, Topology, expand
from redrive.topology.add_retry import as_topology, equip
from redrive.topology.definitions_json import DefinitionsFile
from redrive.topology.doctor import examine
from redrive.topology.draw import FORMATS, draw
from redrive.topology.plan import make_plan
from redrive.topology.serialization import parse_toml, to_toml
from redrive.topology.snapshot import BrokerSnapshot
from topology_systems import EXAMPLES, SYSTEMS, system

SERVERS = (Server.of("3.10"), Server.of("4.3", delayed_exchanges=True))
MOST_WORDS = 1_500  # characters of one sentence about what is wrong
MOST_DRAWN = 40  # definitions: a picture of more takes its time

# What every complaint begins with: the file, a section of it, or the thing in it.
_PLACE = re.compile(
    r"definitions\.json|not (TOML|YAML)|topology|exchanges|queues|bindings|naming|queue |exchange |binding |retry|"
    r"dead-letter cycle|the ladder|the topology|no queue that lacks"
)
_DEEP: Any = []
for _ in range(60):
    _DEEP = [_DEEP]
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1.5, -0.0, float("nan"), float("inf"), 1e308,
    "", "q", "amq.direct", "x" * 256, "é" * 130, "y" * 1_000_000, "\0", "\n", "\x1b[31m", "\u202e", "\ud800", "{queue}",
    "{queue:>999999999}", "{queue!r}", "{nobody}", "{", "{}", "{queue.x}", "15s", "1ns", "99999999999d", "-1s", "1e9h",
    "reject", "delayed", "quorum", "stream", "classic", "topic", "fanout", "x-delayed-message", "headers", "queue",
    "exchange", "orders", "orders.dlq", "domain.events", "/", [], {}, [[]], [{}], {"a": {"b": []}}, [None], ["x", 7],
    {"": ""}, {"x-match": "all", "n": 10**400}, _DEEP, {"name": "orders"}, {"name": {}},
    {"name": "orders", "vhost": []},
    {"x-message-ttl": "15000"}, {"x-message-ttl": -1}, {"x-message-ttl": 1, "x-dead-letter-exchange": ""},
    {"x-dead-letter-exchange": 7, "x-dead-letter-routing-key": []}, {"x-queue-type": {}}, {"x-max-length": 1.5},
    {"attempts": 10**9, "exponential": {"first": "1ms", "factor": 1.0000001, "ceiling": "49d"}}, {"steps": ["1s"] * 50},
    {"attempts": 3, "delay": "15s", "via": "reject"}, {"source": "", "destination": "", "destination_type": "queue"},
)  # fmt: skip
# Values as TOML and YAML have them, and JSON has not.
_WORDS = (
    "[[queues]]", "[naming]", "[queues.retry]", "name", "=", '"orders"', "nan", "inf", "-inf", "1979-05-27T07:32:00Z",
    "0x" + "f" * 50, '"""', "'''", "\n", "[", "]", "{", "}", ",", "#", '"\\ud800"', '"\\u0000"', "true", "1e400", "-",
    ": ", "- ", "&a", "*a", "<<: *a", "!!python/object:os.system", "!!binary |", "!!set", "? ", "| ", "> ", "---",
    "...",
    "%YAML 1.1", "0o17", "12:30:45", "~", "2001-12-14", "=\n", "[[", "]]", '"' + "k" * 3_000 + '"', "[" * 300,
    "a." * 300 + "b", "retry", "bind", "arguments", "delay", '"15s"', "delivery_limit", "dead_lettering", "rungs",
)  # fmt: skip


class FileTarget(Target):
    """A file of one kind."""

    seconds = 5.0  # PyYAML takes one for a megabyte

    def run(self, data: bytes) -> set[str]:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return set()  # no command gives it to these functions
        try:
            return self.read(text)
        except ConfigurationError as error:
            return check_words(error)

    def read(self, text: str) -> set[str]:
        raise NotImplementedError


class DefinitionsTarget(FileTarget):
    """definitions.json."""

    def read(self, text: str) -> set[str]:
        file = DefinitionsFile.parse(text)
        words = set()
        for vhost in file.vhosts:
            definitions = file.definitions(vhost)
            check_again(definitions, str(DefinitionsFile.of(definitions, vhost)), vhost)
            check_again(definitions, str(file.with_definitions(definitions, vhost)), vhost)
            words |= look_at(definitions)
            words |= allowed(lambda found=definitions: expand(Topology(others=found), SERVERS[1]))
        return words

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        return _mutated(
            mutator, data, others, lambda value: json.dumps(value, ensure_ascii=mutator.chance.random() < 0.5)
        )

    def made(self) -> dict[str, bytes]:
        found = {name: expand(system(name), SERVERS[0]) for name in SYSTEMS}
        return {name: str(DefinitionsFile.of(one)).encode() for name, one in found.items()}


class TopologyTarget(FileTarget):
    """TOML, or YAML."""

    def __init__(self, name: str, parse: Callable[[str], Topology]) -> None:
        super().__init__(name)
        self._parse = parse

    def read(self, text: str) -> set[str]:
        topology = self._parse(text)
        written = to_toml(topology)
        if parse_toml(written) != topology:
            raise Broken(f"{topology!r:.500} came back as something else from {written:.500}")
        words = {f"{queue.type} {queue.retry is not None} {queue.dlq}" for queue in topology.queues}
        for server in SERVERS:
            words |= allowed(lambda server=server: check_expanded(topology, server))
        return words

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        if self.name == "yaml":  # of which JSON is a part
            return _mutated(mutator, data, others, lambda value: json.dumps(value, ensure_ascii=False))
        return mutator.text(data, others, (*_WORDS, *map(_as_toml, HOSTILE)))

    def made(self) -> dict[str, bytes]:
        if self.name == "toml":
            return {name: (EXAMPLES / name / "topology.toml").read_bytes() for name in SYSTEMS}
        laughing = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"{chr(at)}: &{chr(at)} [*{chr(at - 1)}, *{chr(at - 1)}, *{chr(at - 1)}, *{chr(at - 1)}]\n"
            for at in range(ord("c"), ord("p"))
        )
        return {
            "orders": _YAML.encode(),
            "json": json.dumps({"queues": [{"name": "orders", "retry": {"delay": "15s"}, "bind": []}]}).encode(),
            "laughs": (laughing + "queues: *o\n").encode(),
            "laughs-in-arguments": (laughing + "queues:\n- name: q\n  arguments: {x: *o}\n").encode(),
            "cycle": b"queues: &q\n- name: q\n  arguments: &a {x: *a}\n  bind: *q\n",
        }


_YAML = """\
queue_type: quorum
exchanges:
- {name: domain.events, type: topic}
queues:
- name: orders
  bind: {domain.events: [order.*]}
  retry: {attempts: 3, delay: 15s}
naming: {dlq_queue: '{queue}.dead'}
"""


def _mutated(mutator: Mutator, data: bytes, others: Sequence[bytes], write: Callable[[Any], str]) -> bytes:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if value is None or mutator.chance.random() < 0.25:
        return mutator.text(data, others, (*_WORDS, *map(_as_toml, HOSTILE)))
    return write(mutator.value(value, HOSTILE)).encode("utf-8", "replace")


def _as_toml(value: Any) -> str:
    return json.dumps(value).replace('": ', '" = ')


# What is promised -----------------------------------------------------------------------------------------------------


def check_words(error: ConfigurationError) -> set[str]:
    """Each sentence names the place; gives what kinds of sentences there were."""
    sentences = error.problems if isinstance(error, TopologyError) else (str(error),)
    if not sentences:
        raise Broken("it says no, and not why")
    for sentence in sentences:
        if len(sentence) > MOST_WORDS:
            raise Broken(f"{len(sentence)} characters about what is wrong: {sentence[:200]}")
        if not _PLACE.match(sentence):
            raise Broken(f"this names no place: {sentence}")
    return {" ".join(word for word in sentence.split()[-8:] if word.isalpha()) for sentence in sentences[:20]}


def allowed(call: Callable[[], object]) -> set[str]:
    """What the call says if it refuses."""
    try:
        call()
    except ConfigurationError as error:
        return check_words(error)
    return {"fine"}


def check_again(definitions: Definitions, written: str, vhost: str) -> None:
    again = DefinitionsFile.parse(written).definitions(vhost)
    if again != definitions:
        raise Broken(f"{definitions!r} came back as {again!r} from {written:.1000}")


def check_expanded(topology: Topology, server: Server) -> None:
    definitions = expand(topology, server)
    check_again(definitions, str(DefinitionsFile.of(definitions)), "/")
    look_at(definitions)


def look_at(definitions: Definitions) -> set[str]:
    """In every way that needs no broker."""
    words: set[str] = set()
    for server in SERVERS:
        snapshot = BrokerSnapshot(server, definitions, complete=True)
        words |= {finding.id for finding in examine(snapshot)}
        words |= {str(step.action) for step in make_plan(definitions, snapshot).steps}
        words |= allowed(lambda server=server: equip(definitions, Retry(delay="15s"), server, Naming(), ("*",)))
    if len(definitions) <= MOST_DRAWN:
        for form in FORMATS:
            draw(definitions, form)
    topology = as_topology(definitions)
    if parse_toml(to_toml(topology)) != topology:
        raise Broken(f"{topology!r:.500} is written as {to_toml(topology):.500}")
    return words
