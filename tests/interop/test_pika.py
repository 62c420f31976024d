"""pika, unmodified, against the embedded broker."""

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from interop.conftest import Names
from interop.embedded import EmbeddedBroker

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def connection(broker_url: str) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, names: Names) -> str:
    """A queue whose dead letters go to `<queue>.dead`."""
    queue = names("q")
    channel.queue_declare(f"{queue}.dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}.dead"}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    return queue


def consume(channel: BlockingChannel, queue: str, **options: object) -> Iterator[tuple]:  # type: ignore[type-arg]
    return channel.consume(queue, inactivity_timeout=20, **options)  # type: ignore[arg-type]


def test_a_confirmed_message_goes_through_an_exchange_to_a_consumer(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names("e"), names("q")
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "orders.*")
    channel.confirm_delivery()

    channel.basic_publish(exchange, "orders.new", b"{}", pika.BasicProperties(delivery_mode=2), mandatory=True)

    method, properties, body = next(consume(channel, queue))
    channel.basic_ack(method.delivery_tag)
    assert (method.exchange, method.routing_key, method.redelivered, body) == (exchange, "orders.new", False, b"{}")
    assert properties.delivery_mode == 2
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_headers_of_every_type_and_large_bodies_arrive_as_sent(channel: BlockingChannel, queue: str) -> None:
    body = bytes(range(256)) * 4096
    headers = {
        "text": "zoë", "true": True, "int": -5, "long": 1 << 40, "nothing": None, "list": [1, "two"],
        "table": {"deep": {"er": 1}}, "decimal": Decimal("1.25"), "time": dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    }  # fmt: skip

    channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers, message_id="m", priority=3))

    _, properties, arrived = channel.basic_get(queue, auto_ack=True)
    assert arrived == body
    time = properties.headers.pop("time")
    assert time.replace(tzinfo=dt.UTC) == headers.pop("time")
    assert properties.headers == headers
    assert (properties.message_id, properties.priority) == ("m", 3)


def test_prefetch_holds_back_what_is_beyond_it(channel: BlockingChannel, queue: str) -> None:
    for number in range(3):
        channel.basic_publish("", queue, str(number))
    channel.basic_qos(prefetch_count=2)
    got: list[int] = []
    channel.basic_consume(queue, lambda _channel, method, _properties, _body: got.append(method.delivery_tag))
    while len(got) < 2:
        channel.connection.process_data_events(time_limit=20)
    assert channel.queue_declare(queue, passive=True).method.message_count == 1  # the broker answered: no third came
    assert got == [1, 2]

    channel.basic_ack(1)
    while len(got) < 3:
        channel.connection.process_data_events(time_limit=20)

    assert got == [1, 2, 3]


def test_a_rejected_message_tells_its_death(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"poison", pika.BasicProperties(headers={"tenant": "acme"}))
    method, _, _ = channel.basic_get(queue)

    channel.basic_reject(method.delivery_tag, requeue=False)

    _, properties, body = next(consume(channel, f"{queue}.dead", auto_ack=True))
    [death] = properties.headers["x-death"]
    assert body == b"poison"
    assert properties.headers["tenant"] == "acme"
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [queue])
    assert isinstance(death["time"], dt.datetime)
    assert properties.headers["x-first-death-queue"] == queue


def test_a_message_given_back_comes_again_as_redelivered(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"again")
    method, _, _ = channel.basic_get(queue)

    channel.basic_nack(method.delivery_tag, requeue=True)

    method, _, _ = next(consume(channel, queue, auto_ack=True))
    assert method.redelivered


def test_an_expired_message_tells_its_death(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"late", pika.BasicProperties(expiration="1"))

    _, properties, _ = next(consume(channel, f"{queue}.dead", auto_ack=True))

    [death] = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "1")
    assert properties.expiration is None


def test_an_unroutable_mandatory_message_comes_back(channel: BlockingChannel, names: Names) -> None:
    channel.confirm_delivery()

    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish("", names("nowhere"), b"lost?", mandatory=True)

    [message] = returned.value.messages
    assert (message.method.reply_code, message.method.reply_text, message.body) == (312, "NO_ROUTE", b"lost?")


def publish_times(count: int, channel: BlockingChannel, queue: str) -> None:
    for _ in range(count):
        channel.basic_publish("", queue, b"x")


def test_a_full_queue_that_refuses_is_a_nack(channel: BlockingChannel, names: Names) -> None:
    queue = names("full")
    channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()

    with pytest.raises(NackError):
        publish_times(3, channel, queue)  # RabbitMQ lets one more in than it says


def test_declaring_a_queue_differently_is_406_and_ends_only_the_channel(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(queue, durable=False)

    assert refused.value.reply_code == 406
    assert refused.value.reply_text.startswith(f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}'")
    assert connection.channel().is_open


def test_a_queue_that_is_not_there_is_404(channel: BlockingChannel, names: Names) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(names("missing"), passive=True)

    assert refused.value.reply_code == 404


def test_publishing_to_a_missing_exchange_is_404_at_the_next_confirm(channel: BlockingChannel, names: Names) -> None:
    channel.confirm_delivery()

    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish(names("missing"), "", b"")

    assert refused.value.reply_code == 404


def test_a_consumer_is_told_when_its_queue_goes(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    told: list[str] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)

    connection.channel().queue_delete(queue)

    while not told:
        connection.process_data_events(time_limit=20)
    assert told == [tag]


def test_a_transaction_is_all_or_nothing(channel: BlockingChannel, queue: str) -> None:
    channel.tx_select()
    channel.basic_publish("", queue, b"undone")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"done")
    channel.tx_commit()

    assert channel.basic_get(queue, auto_ack=True)[2] == b"done"
    assert channel.basic_get(queue, auto_ack=True) == (None, None, None)


def test_an_answer_goes_straight_to_the_channel_that_asked(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    answers: list[bytes] = []
    channel.basic_consume(REPLY_TO, lambda _c, _m, _p, body: answers.append(body), auto_ack=True)
    question = pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7", headers={REPLY_TO: REPLY_TO})
    channel.basic_publish("", queue, b"question", question)
    server = connection.channel()
    _, properties, _ = next(consume(server, queue, auto_ack=True))
    assert properties.reply_to.startswith(f"{REPLY_TO}.")
    assert (properties.correlation_id, properties.headers) == ("7", {REPLY_TO: REPLY_TO})
    server.cancel()
    server.confirm_delivery()
    server.queue_declare(properties.reply_to, passive=True)

    server.basic_publish("", properties.reply_to, b"answer")
    while not answers:
        connection.process_data_events(time_limit=20)

    assert answers == [b"answer"]
    channel.close()
    with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
        server.queue_declare(properties.reply_to, passive=True)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda channel: channel.basic_consume(REPLY_TO, print), "reply consumer cannot acknowledge"),
        (
            lambda channel: [channel.basic_consume(REPLY_TO, print, auto_ack=True) for _ in range(2)],
            "reply consumer already set",
        ),
        (
            lambda channel: channel.basic_publish("", "", b"", pika.BasicProperties(reply_to=REPLY_TO)),
            "fast reply consumer does not exist",
        ),
    ],
)
def test_direct_replies_have_rules(
    channel: BlockingChannel, act: Callable[[BlockingChannel], object], reason: str
) -> None:
    channel.confirm_delivery()

    with pytest.raises(ChannelClosedByBroker, match=f"PRECONDITION_FAILED - {reason}"):
        act(channel)


@pytest.mark.usefixtures("litter")
def test_a_wrong_password_is_refused(broker_url: str) -> None:
    parameters = pika.URLParameters(broker_url)
    parameters.credentials = pika.PlainCredentials("guest", "wrong")

    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(parameters)


@pytest.mark.usefixtures("litter")
def test_an_unknown_virtual_host_is_refused(broker_url: str) -> None:
    parameters = pika.URLParameters(broker_url)
    parameters.virtual_host = "elsewhere"

    with pytest.raises(ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost elsewhere not found'"):
        pika.BlockingConnection(parameters)


def test_exclusive_queues_go_with_their_connection(broker_url: str, connection: pika.BlockingConnection) -> None:
    other = pika.BlockingConnection(pika.URLParameters(broker_url))
    queue = other.channel().queue_declare("", exclusive=True).method.queue
    assert queue.startswith("amq.gen-")
    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare(queue, passive=True)
    assert refused.value.reply_code == 405  # RESOURCE_LOCKED

    other.close()

    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare(queue, passive=True)
    assert refused.value.reply_code == 404


def test_heartbeats_keep_a_quiet_connection(broker_url: str) -> None:
    """With one second agreed on, a broker that sends none is given up after two."""
    parameters = pika.URLParameters(broker_url)
    parameters.heartbeat = 1
    connection = pika.BlockingConnection(parameters)
    beats = connection._impl._heartbeat_checker
    while beats._heartbeat_frames_received < 2:
        connection.process_data_events(time_limit=0.1)

    connection.close()


@pytest.mark.usefixtures("litter")
def test_a_callback_driven_connection_works(broker_url: str, names: Names) -> None:
    queue, got = names("q"), threading.Event()

    def opened(connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=declare)

    def declare(channel: pika.channel.Channel) -> None:
        channel.queue_declare(queue, callback=lambda _: start(channel))

    def start(channel: pika.channel.Channel) -> None:
        channel.basic_consume(queue, lambda *_: (got.set(), channel.connection.close()), auto_ack=True)
        channel.basic_publish("", queue, b"!")

    connection = pika.SelectConnection(
        pika.URLParameters(broker_url),
        on_open_callback=opened,
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.call_later(20, connection.ioloop.stop)
    connection.ioloop.start()

    assert got.is_set()


@pytest.mark.usefixtures("litter")
def test_a_broker_that_stops_says_so(own_broker: EmbeddedBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(own_broker.url))
    stopping = threading.Thread(target=own_broker.stop)
    stopping.start()

    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.process_data_events(time_limit=20)

    stopping.join()
    assert ended.value.reply_code == 320


def test_durable_things_are_there_after_a_restart(own_broker: EmbeddedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(own_broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.queue_declare("gone")
        channel.basic_publish("", "kept", b"persistent", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "kept", b"transient")

    own_broker.restart()

    with pika.BlockingConnection(pika.URLParameters(own_broker.url)) as connection:
        channel = connection.channel()
        assert channel.queue_declare("kept", passive=True).method.message_count == 1
        assert channel.basic_get("kept", auto_ack=True)[2] == b"persistent"
        with pytest.raises(ChannelClosedByBroker):
            channel.queue_declare("gone", passive=True)
