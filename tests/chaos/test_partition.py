"""What the packet filter is told, and what it does to a connection."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import partition
from servers import rabbitmq_root
from tests.support.cluster import Cluster


def test_what_a_node_accepts_what_it_opened_and_what_anybody_would_open_is_dropped() -> None:
    told = partition.rules(7001, {40010, 40002}, {7001, 7002, 7003})

    assert "tcp sport { 7001, 40002, 40010 } drop" in told
    assert "tcp dport { 7001, 40002, 40010 } drop" in told
    assert "tcp dport { 7001, 7002, 7003 } tcp flags & (syn | ack) == syn drop" in told


@pytest.mark.skipif(not partition.possible(), reason="needs root and nft")
def test_the_packet_filter_understands_it_and_silences_nobody_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as node, socket.create_server(("127.0.0.1", 0)) as other:
        own, elsewhere = node.getsockname()[1], other.getsockname()[1]
        subprocess.run(["nft", "-f", "-"], input=partition.rules(own, (), {own}), text=True, check=True)
        try:
            with pytest.raises(TimeoutError):
                socket.create_connection(("127.0.0.1", own), timeout=0.3)
            socket.create_connection(("127.0.0.1", elsewhere), timeout=5).close()
        finally:
            partition.heal()
        socket.create_connection(("127.0.0.1", own), timeout=5).close()


@pytest.mark.slow
@pytest.mark.rabbitmq
@pytest.mark.skipif(not partition.possible(), reason="needs root and nft")
def test_a_node_that_is_cut_off_is_missed_by_the_others_and_found_again(tmp_path: Path) -> None:
    config = "cluster_partition_handling = pause_minority"
    with Cluster(tmp_path / "cluster", root=rabbitmq_root(), config=config) as cluster:
        alone, *others = cluster.nodes
        partition.isolate(alone, cluster.nodes)
        try:
            for node in others:
                assert came_true(
                    lambda node=node: f"{alone.name}@localhost down: net_tick_timeout" in node.log.read_text()
                )
        finally:
            partition.heal()
        assert came_true(lambda: len(cluster.running_nodes()) == len(cluster.nodes))


def came_true(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
