"""Topologies to test with: the five example systems, and one for each retry route and queue type."""

from pathlib import Path

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Exchange, Queue, QueueType, Server, Topology
from redrive.topology.serialization import parse_toml

EXAMPLES = Path(__file__).parents[1] / "examples"
SYSTEMS = ("uploads", "video", "errorfilter", "nfe", "raffle")
VERSIONS = ("3.10", "4.0", "4.3")


def system(name: str) -> Topology:
    return parse_toml((EXAMPLES / name / "topology.toml").read_text())


def orders(kind: str = "classic", via: RetryRoute | str = RetryRoute.REPUBLISH, **options: object) -> Topology:
    """One queue for orders, bound to a topic exchange."""
    events = Exchange("events", "topic")
    retry = Retry(attempts=3, delay="15s", via=RetryRoute(via))
    queue = Queue("orders", events.on("order.*"), retry=retry, type=QueueType(kind), **options)  # type: ignore[arg-type]
    return Topology([events], [queue])


def routes(server: Server) -> list[tuple[str, RetryRoute]]:
    """Every queue type with every route that the server can do."""
    possible = [(kind, via) for kind in ("classic", "quorum") for via in RetryRoute if via is not RetryRoute.QUORUM]
    return [*possible, ("quorum", RetryRoute.QUORUM)] if server.native_delayed_retry else possible
