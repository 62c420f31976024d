"""Exchanges, queues and bindings as values: say what you want in a line, see what that makes, compare it with a broker.

    topology = Topology(
        exchanges=[events := Exchange("domain.events", "topic")],
        queues=[Queue("q.validator", bind=events.on("files.uploaded.*"), retry=Retry(attempts=3, delay="15s"))],
    )
    definitions = expand(topology, Server.of("4.3"))     # seven objects: main, retry and dead-letter queue, ...

| module             | what                                                                      |
|--------------------|---------------------------------------------------------------------------|
| `model`            | what a person says: `Topology`, `Exchange`, `Queue`                       |
| `naming`           | how the retry and dead-letter parts of a queue are called                 |
| `definitions`      | what a broker holds: plain exchanges, queues and bindings                 |
| `expansion`        | from the one to the other                                                 |
| `ladder`           | delays without a plugin: queues of 2^n seconds                            |
| `validation`       | what no broker would accept, or would accept and regret                   |
| `plan`             | what is missing, what differs, what is more                               |
| `definitions_json` | RabbitMQ's `definitions.json`, kept whole                                 |
| `serialization`    | a topology written as TOML or YAML                                        |
| `snapshot`         | a broker as it was inspected: its server and what it can do, what it held |
| `reachability`     | where messages can go, whatever their keys                                |
| `dlq_detection`    | which queues are for dead letters, also in systems that others made       |
| `doctor`           | what in a broker loses messages, and how to fix it                        |
| `draw`             | pictures: Mermaid, Graphviz, SVG                                          |
| `add_retry`        | add retry and dead-letter queues to existing queues                        |
| `cycles`           | ways that lead back to where they began, in a graph of names              |
| `peek_safety`      | may a queue be looked at, and what does it cost?                          |
| `routing`          | where a message would go, according to the definitions alone              |

Nothing here does I/O.
"""

from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.expansion import expand
from redrive.topology.model import Bind, Exchange, Queue, QueueType, Topology
from redrive.topology.naming import Naming
from redrive.topology.snapshot import Server

__all__ = [
    "Bind",
    "BindingDefinition",
    "Definitions",
    "Exchange",
    "ExchangeDefinition",
    "Naming",
    "Queue",
    "QueueDefinition",
    "QueueType",
    "Server",
    "Topology",
    "expand",
]
