"""Three private nodes are one broker, and two of them still are when one dies."""

import pika
import pytest

from tests.support.cluster import Cluster


@pytest.mark.slow
def test_a_cluster_keeps_a_confirmed_message_when_a_node_is_killed(rabbitmq_cluster: Cluster) -> None:
    first, second, _ = rabbitmq_cluster.nodes
    with pika.BlockingConnection(pika.URLParameters(first.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "q", b"kept", mandatory=True)

    first.kill()

    assert rabbitmq_cluster.running_nodes() == ["node2@localhost", "node3@localhost"]
    with pika.BlockingConnection(pika.URLParameters(second.url)) as connection:
        _, _, body = connection.channel().basic_get("q", auto_ack=True)
    assert body == b"kept"
    first.start()
    assert len(rabbitmq_cluster.running_nodes()) == 3
    assert "3/3 running" in repr(rabbitmq_cluster)
