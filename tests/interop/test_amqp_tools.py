"""rabbitmq-c's command line tools (Debian: amqp-tools), unmodified, against the embedded broker."""

import shutil
import subprocess
import time
from collections.abc import Callable

import pika
import pytest

from interop.conftest import Names
from interop.embedded import eventually, run

TOOLS = ("publish", "consume", "get", "declare-queue", "delete-queue")
pytestmark = pytest.mark.skipif(
    not all(shutil.which(f"amqp-{tool}") for tool in TOOLS), reason="no amqp-tools: run tools/install_servers.sh"
)

Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tool(broker_url: str) -> Tool:
    """Run one of the tools: `tool("get", "-q", "orders")`."""

    def use(name: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return run(f"amqp-{name}", "--url", address(broker_url), *arguments, given=given)

    return use


def address(url: str) -> str:
    """rabbitmq-c takes an empty virtual host for what it is, and not for /."""
    return f"{url}%2f" if url.endswith("/") else url


@pytest.fixture
def queue(tool: Tool, names: Names) -> str:
    queue = names("q")
    assert tool("declare-queue", "-d", "-q", queue).stdout == f"{queue}\n"
    return queue


def test_a_published_message_is_got(tool: Tool, queue: str) -> None:
    tool("publish", "-r", queue, "-p", "-C", "text/plain", "-H", "tenant: acme", "-b", "hello")

    assert tool("get", "-q", queue).stdout == "hello"


def test_an_empty_queue_is_said_by_the_exit_code(tool: Tool, queue: str) -> None:
    assert tool("get", "-q", queue).returncode == 2


def test_lines_are_consumed_in_order_and_acked(tool: Tool, queue: str) -> None:
    tool("publish", "-r", queue, "-l", given="one\ntwo\nthree\n")

    assert tool("consume", "-q", queue, "-c", "3", "-p", "1", "cat").stdout == "one\ntwo\nthree\n"

    assert tool("get", "-q", queue).returncode == 2


def test_a_message_whose_command_fails_is_not_acked(tool: Tool, queue: str) -> None:
    tool("publish", "-r", queue, "-b", "again")

    tool("consume", "-q", queue, "-c", "1", "false")

    eventually(lambda: tool("get", "-q", queue).stdout == "again")


def test_a_consumer_binds_a_queue_of_its_own_to_an_exchange(tool: Tool, broker_url: str) -> None:
    command = [
        "amqp-consume",
        "--url",
        address(broker_url),
        "-e",
        "amq.topic",
        "-r",
        "orders.*",
        "-x",
        "-c",
        "1",
        "cat",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stderr.readline().startswith("Server provided queue name: amq.gen-")
        publish_until_ended(tool, consumer)

        assert consumer.stdout.read() == "new order"


def publish_until_ended(tool: Tool, consumer: subprocess.Popen[str]) -> None:
    """The consumer does not say when it is bound: publish until it has got one and ends."""
    deadline = time.monotonic() + 20
    while consumer.poll() is None:
        assert time.monotonic() < deadline
        tool("publish", "-e", "amq.topic", "-r", "orders.new", "-b", "new order")


def test_a_deleted_queue_is_gone(tool: Tool, queue: str) -> None:
    tool("publish", "-r", queue, "-b", "x")

    assert tool("delete-queue", "-q", queue).stdout == "1\n"

    assert "NOT_FOUND" in tool("get", "-q", queue).stderr


def test_declaring_a_queue_differently_is_406(tool: Tool, queue: str) -> None:
    refused = tool("declare-queue", "-q", queue)

    assert refused.returncode == 1
    assert "406" in refused.stderr
    assert "PRECONDITION_FAILED - inequivalent arg 'durable'" in refused.stderr


def test_a_wrong_password_is_refused(broker_url: str, queue: str) -> None:
    wrong = address(broker_url).replace("guest:guest", "guest:wrong")

    refused = run("amqp-get", "--url", wrong, "-q", queue)

    assert refused.returncode == 1
    assert "ACCESS_REFUSED" in refused.stderr


def test_what_another_client_published_is_read_and_the_other_way_round(tool: Tool, queue: str, broker_url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.basic_publish("", queue, "from pika")
        assert tool("consume", "-q", queue, "-c", "1", "cat").stdout == "from pika"
        tool("publish", "-r", queue, "-H", "tenant: acme", "-b", "from C")

        _, properties, body = next(channel.consume(queue, auto_ack=True, inactivity_timeout=20))

        assert (properties.headers["tenant"], body) == ("acme", b"from C")
