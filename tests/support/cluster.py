"""Three nodes that are one broker.

The nodes find each other by a list in their configuration (RabbitMQ's `classic_config` peer discovery), share one epmd
and one cookie, and are started together, since the first one to come up may wait for the others.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redrive.testing.installation import Epmd, Installation
from redrive.testing.processes import ServerFailed, Throwaway
from redrive.testing.rabbitmq import RabbitMQ


class Cluster(Throwaway):
    """A private cluster: `<Cluster 3.10.8 3/3 running ports=20001,20002,20003>`."""

    def __init__(self, directory: Path, size: int = 3, *, root: Path | None = None, config: str = "") -> None:
        self.directory = directory.resolve()
        installation = Installation.find(root)
        self._epmd = Epmd(self.directory / "epmd", installation)
        names = [f"node{number}" for number in range(1, size + 1)]
        settings = "\n".join([*_discovery(names, installation.version), config])
        self.nodes = [
            RabbitMQ(self.directory / name, name=name, root=root, config=settings, epmd=self._epmd) for name in names
        ]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start(self, *, timeout: float = 180) -> None:
        """Start all nodes that are down and return when all of them serve as one cluster."""
        starting = [node for node in self.nodes if not node.running]
        for node in starting:
            node.launch()
        with ThreadPoolExecutor(len(self.nodes)) as waiters:
            list(waiters.map(lambda node: node.wait_until_ready(timeout=timeout), starting))
        members = self.running_nodes()
        if len(members) != len(self.nodes):
            raise ServerFailed(f"{len(self.nodes)} nodes started, but these formed a cluster: {members}")

    def running_nodes(self) -> list[str]:
        """The names of the members that are up, as the first one that runs sees it."""
        witness = next(node for node in self.nodes if node.running)
        status = json.loads(witness.ctl("cluster_status", "--formatter", "json"))
        return sorted(status["running_nodes"])

    def stop(self) -> None:
        """Stop all nodes in order, at the same time."""
        with ThreadPoolExecutor(len(self.nodes)) as stoppers:
            list(stoppers.map(RabbitMQ.stop, self.nodes))

    def discard(self) -> None:
        for node in self.nodes:
            node.discard()
        self._epmd.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __repr__(self) -> str:
        version = ".".join(map(str, self.nodes[0].version))
        running = sum(node.running for node in self.nodes)
        ports = ",".join(str(node.port) for node in self.nodes)
        return f"<Cluster {version} {running}/{len(self.nodes)} running ports={ports}>"


def _discovery(names: list[str], version: tuple[int, ...]) -> list[str]:
    lines = ["cluster_formation.peer_discovery_backend = classic_config"]
    lines += [f"cluster_formation.classic_config.nodes.{n} = {name}@localhost" for n, name in enumerate(names, 1)]
    if version < (4,):
        # 3.x waits a random 5 to 60 s lest nodes race to be the first; 4.x solved that and refuses the setting.
        lines += ["cluster_formation.randomized_startup_delay_range.min = 0"]
        lines += ["cluster_formation.randomized_startup_delay_range.max = 1"]
    return lines
