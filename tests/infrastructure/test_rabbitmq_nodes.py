"""Private RabbitMQ nodes do what the tests that use them rely on. Witness: pika, an unrelated client."""

import socket
import time
from pathlib import Path

import pika
import psutil
import pytest

from redrive.testing import ApiError, Endpoint, RabbitMQ, ServerFailed
from servers import rabbitmq_root
from tests.support.tls import TLSEndpoint


def publish(url: str, queue: str, body: bytes) -> None:
    """Publish one persistent message to a durable queue and return when the broker has confirmed it."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", queue, body, persistent, mandatory=True)


def get(url: str, queue: str) -> bytes | None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        _, _, body = connection.channel().basic_get(queue, auto_ack=True)
        return body


def test_a_killed_node_comes_back_on_the_same_port_with_its_data(own_rabbitmq: RabbitMQ) -> None:
    publish(own_rabbitmq.url, "q", b"survivor")
    time.sleep(2)  # a queue younger than about a second may be lost when RabbitMQ is killed: its fact, not ours
    port, killed = own_rabbitmq.port, own_rabbitmq.pid

    own_rabbitmq.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    own_rabbitmq.start()

    assert own_rabbitmq.port == port
    assert own_rabbitmq.pid != killed
    assert get(own_rabbitmq.url, "q") == b"survivor"


def test_a_restarted_node_keeps_its_virtual_hosts(own_rabbitmq: RabbitMQ) -> None:
    own_rabbitmq.add_vhost("tenant/1")

    own_rabbitmq.restart()

    publish(own_rabbitmq.url_for("tenant/1"), "q", b"hello")
    assert "tenant/1" in own_rabbitmq.ctl("list_vhosts", "--silent").splitlines()


def test_a_discarded_node_leaves_no_process_and_no_file(own_rabbitmq: RabbitMQ) -> None:
    broker = psutil.Process(own_rabbitmq.pid)

    own_rabbitmq.discard()

    assert not broker.is_running()
    assert not own_rabbitmq.directory.exists()
    assert "DOWN" in repr(own_rabbitmq)


@pytest.mark.rabbitmq
def test_a_node_that_cannot_start_says_why_with_its_log(tmp_path: Path) -> None:
    node = RabbitMQ(tmp_path / "node", root=rabbitmq_root(), config="no.such.option = 1")

    with pytest.raises(ServerFailed, match=r"(?s)RabbitMQ did not start in .*no\.such\.option"), node:
        pytest.fail("a node with a wrong configuration started")

    assert not node.running


def test_a_node_is_private_and_tells_what_it_is_and_is_not(own_rabbitmq: RabbitMQ) -> None:
    """Several facts about a running node in one test: they change nothing, and a start takes seconds."""
    version = ".".join(map(str, own_rabbitmq.version))
    assert repr(own_rabbitmq) == (
        f"<RabbitMQ {version} own@localhost port={own_rabbitmq.port} RUNNING pid={own_rabbitmq.pid}>"
    )

    sockets = psutil.Process(own_rabbitmq.pid).net_connections("inet")
    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {"127.0.0.1"}

    with pytest.raises(RuntimeError, match="already running"):
        own_rabbitmq.start()
    with pytest.raises(RuntimeError, match="management=True"):
        own_rabbitmq.api("/overview")
    with pytest.raises(RuntimeError, match="nobody"):
        own_rabbitmq.ctl("change_password", "nobody", "secret")


def test_a_client_may_log_in_by_its_certificate_alone(tls_rabbitmq: TLSEndpoint) -> None:
    parameters = pika.URLParameters(tls_rabbitmq.tls_url)
    parameters.ssl_options = pika.SSLOptions(tls_rabbitmq.tls.client_context(), "localhost")
    parameters.credentials = pika.credentials.ExternalCredentials()

    with pika.BlockingConnection(parameters) as connection:
        assert connection.channel().queue_declare("", exclusive=True).method.message_count == 0


def test_the_shared_node_has_a_management_api(rabbitmq: Endpoint) -> None:
    assert rabbitmq.api("/overview")["rabbitmq_version"] == ".".join(map(str, rabbitmq.version))
    with pytest.raises(ApiError, match="404") as not_found:
        rabbitmq.api("/vhosts/no-such-vhost")
    assert not_found.value.status == 404


def test_a_test_has_a_virtual_host_of_its_own(amqp_url: str, rabbitmq: Endpoint) -> None:
    publish(amqp_url, "q", b"mine")

    assert "a-test-has-a-virtual-host-of-its-own" in amqp_url
    assert "q" not in {queue["name"] for queue in rabbitmq.api("/queues/%2F")}
    assert get(amqp_url, "q") == b"mine"
