"""On what the work is done: the embedded broker, a RabbitMQ node, a cluster of three. Started once, for many runs."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import quote, urlsplit

from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from tests.support.cluster import Cluster

_WATERMARK = "1GB"


class Broker(ABC):
    """`kind`: of the queues that keep what they confirmed, whatever happens."""

    name: str
    kind: str

    @abstractmethod
    def fresh_place(self) -> str:
        """The URL of a virtual host in which nothing is."""

    def addresses(self, url: str) -> list[str]:
        """The same place at every node."""
        return [url]

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def restart(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Embedded(Broker):
    """Its virtual hosts are made by whoever comes; every run gets a broker of its own, since it costs nothing."""

    kind = "classic"

    def __init__(self, folder: Path) -> None:
        self.name = "embedded"
        self._folder = folder
        self._broker: EmbeddedBroker | None = None

    def fresh_place(self) -> str:
        self.close()
        folder = self._folder / secrets.token_hex(4)
        self._broker = EmbeddedBroker(folder, data=folder / "data")
        self._broker.start()
        return self._broker.url + "%2F"

    @property
    def _running(self) -> EmbeddedBroker:
        assert self._broker is not None
        return self._broker

    def kill(self) -> None:
        self._running.kill()

    def start(self) -> None:
        self._running.start()

    def restart(self) -> None:
        self._running.restart()

    def close(self) -> None:
        if self._broker is not None:
            self._broker.kill()


class Node(Broker):
    kind = "quorum"

    def __init__(self, folder: Path, version: str, root: Path | None) -> None:
        self.name = version
        self.node = RabbitMQ(folder, name=f"chaos{version.replace('.', '')}", root=root, management=True)
        self.node.start()

    def fresh_place(self) -> str:
        return _fresh_vhost(self.node)

    def kill(self) -> None:
        self.node.kill()

    def start(self) -> None:
        self.node.start()

    def restart(self) -> None:
        self.node.restart()

    def raise_alarm(self) -> None:
        self.node.ctl("set_vm_memory_high_watermark", "absolute", "1")

    def clear_alarm(self) -> None:
        self.node.ctl("set_vm_memory_high_watermark", "absolute", _WATERMARK)

    def close(self) -> None:
        self.node.discard()


class Nodes(Broker):
    """Three nodes; a client finds one that serves, through a balancer."""

    kind = "quorum"

    def __init__(self, folder: Path, version: str, root: Path | None) -> None:
        self.name = f"cluster {version}"
        self.cluster = Cluster(folder, root=root, config="cluster_partition_handling = pause_minority")
        self.cluster.start()

    def fresh_place(self) -> str:
        return _fresh_vhost(self.cluster.nodes[0])

    def addresses(self, url: str) -> list[str]:
        path = urlsplit(url).path
        return [f"amqp://guest:guest@127.0.0.1:{node.port}{path}" for node in self.cluster.nodes]

    def leader_of(self, queue: str, url: str) -> RabbitMQ:
        """The node on which a quorum queue's leader is."""
        vhost = urlsplit(url).path.removeprefix("/")
        witness = next(node for node in self.cluster.nodes if node.running)
        told = witness.ctl("list_queues", "--quiet", "--vhost", vhost, "name", "pid", "--no-table-headers")
        for line in told.splitlines():
            name, _, pid = line.partition("\t")
            if name == queue:
                return next(node for node in self.cluster.nodes if f"{node.name}@" in pid)
        raise LookupError(f"no node leads {queue}: {told}")

    def kill(self) -> None:
        for node in self.cluster.nodes:
            node.kill()

    def start(self) -> None:
        self.cluster.start()

    def restart(self) -> None:
        """One after the other, as in an upgrade: there is always a majority."""
        for node in self.cluster.nodes:
            node.restart()

    def close(self) -> None:
        self.cluster.discard()


def _fresh_vhost(node: RabbitMQ) -> str:
    """Queues of which nobody says the type are quorum queues there: for clients that cannot say it."""
    vhost = f"chaos-{secrets.token_hex(4)}"
    if node.management_port is not None:
        node.api(f"/vhosts/{quote(vhost, safe='')}", "PUT", {"default_queue_type": "quorum"})
    else:
        node.ctl("add_vhost", vhost, "--default-queue-type", "quorum")
        node.ctl("set_permissions", "--vhost", vhost, "guest", ".*", ".*", ".*")
    return node.url_for(vhost)
