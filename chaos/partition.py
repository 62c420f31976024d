"""A network between nodes that loses every packet, without a word to either side.

The nodes share one machine, so packets are told apart by ports. Between a node and the others there are connections
that it accepted, at its own distribution port, and connections that it opened, from ports that it was given: those are
looked up. While the partition lasts nobody opens a new one, so none slips through. Clients use other ports and notice
nothing.

Needs root and `nft`. Erlang believes that a silent node is gone after the net tick time: a minute, unless it is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence

import psutil

from redrive.testing import RabbitMQ

TICK_TIME = 8  # seconds
_TABLE = "inet redrive_chaos"


def possible() -> bool:
    return os.geteuid() == 0 and shutil.which("nft") is not None


def rules(own: int, opened: Collection[int], all_nodes: Collection[int]) -> str:
    """For `nft -f`: nothing passes between the node that listens at `own`, and opened the others, and the rest."""
    silent = _set({own, *opened})
    return (
        f"table {_TABLE} {{\n"
        "  chain output {\n"
        "    type filter hook output priority 0; policy accept;\n"
        f"    tcp sport {silent} drop\n"
        f"    tcp dport {silent} drop\n"
        f"    tcp dport {_set(all_nodes)} tcp flags & (syn | ack) == syn drop\n"
        "  }\n"
        "}\n"
    )


def isolate(node: RabbitMQ, nodes: Sequence[RabbitMQ]) -> None:
    for each in nodes:
        each.ctl("eval", f"net_kernel:set_net_ticktime({TICK_TIME}, 0).")
    everybody = {each.distribution_port for each in nodes}
    opened = {
        connection.laddr.port
        for connection in psutil.Process(node.pid).net_connections("tcp")
        if connection.raddr and connection.raddr.port in everybody
    }
    _nft(rules(node.distribution_port, opened, everybody))


def heal() -> None:
    _nft(f"delete table {_TABLE}\n")


def _nft(script: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=script, text=True, check=True)


def _set(ports: Collection[int]) -> str:
    return "{ " + ", ".join(map(str, sorted(ports))) + " }"
