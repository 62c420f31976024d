"""The object people hold: it opens or says why not, restores what was declared, tells its state, and closes."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import count

import pytest

from redrive.client import Connection, Delivery, LinkState
from redrive.client.consumer import ConsumerState
from redrive.errors import (
    AuthenticationFailed,
    ChannelClosed,
    Closed,
    ConfigurationError,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    InvalidURL,
    NotFound,
    NotPublished,
    PublishUnknown,
    RedriveError,
)
from redrive.protocol.messages import Publication
from redrive.testing import free_port
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicAck, BasicConsume, BasicGet, BasicGetOk, BasicNack, BasicQos
from redrive.wire.methods.channel import ChannelClose, ChannelOpen
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUnblocked,
)
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDeclareOk
from unit.client.clock import Clock
from unit.client.scripted import GREETING, QUICK, ScriptedBroker

LOGIN_REFUSED = ConnectionClose(reply_code=403, reply_text="ACCESS_REFUSED - Login was refused")
SHUTDOWN = ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED - shutdown")
SECRET = "s3cret"
PUBLISHING = 1  # the channel that is opened first


async def reconnected(connection: Connection, times: int = 1) -> None:
    async with asyncio.timeout(10):
        while connection.reconnects < times or connection.state is not LinkState.OPEN:
            await connection.until(LinkState.RECONNECTING, LinkState.CONNECTING)
            await connection.until(LinkState.OPEN)


async def alarmed(connection: Connection, broker: ScriptedBroker) -> None:
    """Let the broker run out of memory, and the client hear of it."""
    heard = asyncio.Event()
    connection.on_change(lambda _: heard.set())
    broker.session.say(0, ConnectionBlocked(reason="low on memory"))
    await heard.wait()


def dead_host() -> str:
    return f"127.0.0.1:{free_port()}"


# Opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "window_bytes"), [(0, 1), (1, 0), (-1, 1)])
def test_a_window_through_which_nothing_fits_is_refused(window: int, window_bytes: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 1 of each must fit"):
        Connection("amqp://rabbit/", window=window, window_bytes=window_bytes)


def test_a_bad_url_is_refused_before_anything_is_started() -> None:
    with pytest.raises(InvalidURL):
        Connection("http://rabbit/")


async def test_it_is_open_within_its_block_and_closed_after_it(broker: ScriptedBroker) -> None:
    async with Connection(broker.url) as connection:
        assert "OPEN" in repr(connection)

    assert "CLOSED" in repr(connection)
    assert len(broker.session.heard(ConnectionClose)) == 1


async def test_one_that_was_opened_by_hand_may_enter_its_block(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url).open()

    async with connection as same:
        assert same is connection


async def test_the_broker_sees_its_name(broker: ScriptedBroker) -> None:
    async with Connection(broker.url, name="billing"):
        [start_ok] = broker.session.heard(ConnectionStartOk)

    assert start_ok.client_properties["connection_name"] == "billing"


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("3.10.8", (3, 10, 8)), ("4.3.0-rc.1", (4, 3, 0)), ("4.0.5+2.g1234", (4, 0, 5)), ("", ()), (7, (7,))],
)
async def test_the_version_of_the_broker_is_numbers(
    broker: ScriptedBroker, version: str, numbers: tuple[int, ...]
) -> None:
    broker.answers[GREETING] = ConnectionStart(server_properties={"version": version})

    async with Connection(broker.url) as connection:
        assert connection.server_version == numbers


def test_before_it_is_open_nothing_is_known_of_the_broker() -> None:
    connection = Connection("amqp://rabbit/")

    assert (connection.server_version, connection.blocked, connection.unconfirmed) == ((), None, 0)


async def test_when_the_first_host_is_dead_the_next_is_taken(broker: ScriptedBroker) -> None:
    hosts = f"{dead_host()},127.0.0.1:{broker.port}"

    async with Connection(f"amqp://{hosts}/") as connection:
        assert connection.state is LinkState.OPEN


async def test_when_all_hosts_are_dead_each_is_named_with_its_reason() -> None:
    one, other = dead_host(), dead_host()

    with pytest.raises(ConnectionFailed, match=f"{one}: Connection refused; {other}: Connection refused"):
        await Connection(f"amqp://me:{SECRET}@{one},{other}/").open()


async def test_no_error_of_opening_shows_the_password() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        await Connection(f"amqp://me:{SECRET}@{dead_host()}/").open()

    assert SECRET not in str(caught.value)


async def test_a_refused_login_is_not_tried_at_the_next_host(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionStartOk] = LOGIN_REFUSED
    host = f"127.0.0.1:{broker.port}"

    with pytest.raises(AuthenticationFailed):
        await Connection(f"amqp://{host},{host}/").open(wait=timedelta(seconds=5))
    assert len(broker.sessions) == 1


async def test_a_host_that_breaks_the_rules_is_passed_over(broker: ScriptedBroker) -> None:
    async with ScriptedBroker() as odd:
        odd.answers[GREETING] = ConnectionStart(mechanisms=b"GSSAPI")
        hosts = f"127.0.0.1:{odd.port},127.0.0.1:{broker.port}"

        async with Connection(f"amqp://{hosts}/") as connection:
            assert connection.state is LinkState.OPEN


async def test_certificate_files_that_are_missing_are_a_fault_of_the_url() -> None:
    with pytest.raises(InvalidURL, match="TLS files"):
        await Connection("amqps://127.0.0.1/?cacertfile=/nowhere/ca.pem").open(wait=timedelta(seconds=5))


async def test_opening_fails_at_once_unless_told_to_wait(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionOpen] = SHUTDOWN

    with pytest.raises(ConnectionFailed, match="320 CONNECTION_FORCED"):
        await Connection(broker.url).open()
    assert len(broker.sessions) == 1


async def test_opening_can_wait_for_a_broker_that_is_not_ready(broker: ScriptedBroker) -> None:
    broker.first(ConnectionOpen, SHUTDOWN, SHUTDOWN)

    connection = await Connection(broker.url, backoff=QUICK).open(wait=timedelta(seconds=10))

    assert len(broker.sessions) == 3
    await connection.close()


async def test_one_that_could_not_be_opened_is_closed_and_may_try_again(broker: ScriptedBroker) -> None:
    broker.first(ConnectionStartOk, LOGIN_REFUSED)
    connection = Connection(broker.url)
    with pytest.raises(AuthenticationFailed):
        await connection.open()
    assert "CLOSED" in repr(connection)

    async with connection:
        assert "OPEN" in repr(connection)


async def test_one_that_is_being_opened_is_not_opened_a_second_time(broker: ScriptedBroker) -> None:
    connection = Connection(broker.url)

    opened, refused = await asyncio.gather(connection.open(), connection.open(), return_exceptions=True)

    assert (opened, type(refused)) == (connection, Closed)
    assert len(broker.sessions) == 1
    await connection.close()


async def test_one_that_was_closed_is_not_opened_again(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url).open()
    await connection.close()

    with pytest.raises(Closed, match="make a new one"):
        await connection.open()


@pytest.mark.parametrize("moment", [GREETING, ConnectionOpen, ChannelOpen, ConfirmSelect])
async def test_an_opening_that_is_given_up_closes_its_socket(broker: ScriptedBroker, moment: object) -> None:
    broker.ignore(moment)
    connection = Connection(broker.url)
    opening = asyncio.create_task(connection.open())
    session = await broker.accepted()
    if isinstance(moment, type):
        await session.hears(moment)

    opening.cancel()

    await asyncio.wait_for(session.lost.wait(), 5)
    assert connection.state is LinkState.CLOSED


@pytest.mark.parametrize("moment", [ChannelOpen, ConfirmSelect])
async def test_a_broker_that_goes_away_while_the_connection_is_made_ready_is_a_failure_to_open(
    broker: ScriptedBroker, moment: type[Method]
) -> None:
    broker.ignore(moment)
    opening = asyncio.create_task(Connection(broker.url).open())
    session = await broker.accepted()
    await session.hears(moment)

    session.say(0, SHUTDOWN)

    with pytest.raises(RedriveError):
        await opening


@pytest.mark.parametrize(
    "operation",
    [
        lambda connection: connection.publish("", "orders", b""),
        lambda connection: connection.publish_many([]),
        lambda connection: connection.declare_queue("orders"),
        lambda connection: connection.consume("orders"),
        lambda connection: connection.get("orders"),
        lambda connection: connection.link(),
    ],
    ids=["publish", "publish_many", "declare", "consume", "get", "link"],
)
async def test_nothing_can_be_done_before_it_is_open(operation: Callable[[Connection], object]) -> None:
    with pytest.raises(Closed):
        await operation(Connection("amqp://rabbit/"))  # type: ignore[misc]


# Its state --------------------------------------------------------------------------------------------


async def test_those_who_listen_hear_of_every_change(broker: ScriptedBroker) -> None:
    connection = Connection(broker.url, backoff=QUICK)
    states: list[LinkState] = []
    connection.on_change(lambda changed: states.append(changed.state))

    await connection.open()
    broker.hang_up()
    await reconnected(connection)
    await connection.close()

    in_order = [state for state, before in zip(states, [None, *states], strict=False) if state is not before]
    assert in_order == [LinkState.CONNECTING, LinkState.OPEN, LinkState.RECONNECTING, LinkState.OPEN, LinkState.CLOSED]


async def test_a_listener_that_fails_stops_neither_the_others_nor_the_connection(
    connection: Connection, broker: ScriptedBroker
) -> None:
    heard: list[LinkState] = []

    def fail(_: Connection) -> None:
        raise ValueError("a bug in a dashboard")

    connection.on_change(fail)
    connection.on_change(lambda changed: heard.append(changed.state))

    broker.hang_up()
    await reconnected(connection)

    assert LinkState.RECONNECTING in heard


async def test_an_alarm_is_seen_and_heard_of(connection: Connection, broker: ScriptedBroker) -> None:
    alarms: asyncio.Queue[str | None] = asyncio.Queue()
    connection.on_change(lambda changed: alarms.put_nowait(changed.blocked))

    broker.session.say(0, ConnectionBlocked(reason="low on memory"))
    assert await alarms.get() == "low on memory"
    assert "blocked='low on memory'" in repr(connection)
    broker.session.say(0, ConnectionUnblocked())

    assert await alarms.get() is None


async def test_an_alarm_is_over_when_its_connection_is(connection: Connection, broker: ScriptedBroker) -> None:
    await alarmed(connection, broker)
    publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
    broker.confirming = True

    broker.hang_up()

    await asyncio.wait_for(publishing, 5)


async def test_it_introduces_itself(broker: ScriptedBroker) -> None:
    async with Connection(broker.url.replace(":guest@", f":{SECRET}@")) as connection:
        await connection.consume("orders")
        shown = repr(connection)

    assert shown == f"<Connection amqp://guest@127.0.0.1:{broker.port}/ OPEN consumers=1 unconfirmed=0>"


# The broker goes away in the middle of something ------------------------------------------------------

ENDS = [
    pytest.param(lambda broker: broker.session.say(0, SHUTDOWN), ConnectionClosed, id="farewell"),
    pytest.param(lambda broker: broker.hang_up(), ConnectionLost, id="reset"),
]


@pytest.mark.parametrize(("end", "error"), ENDS)
async def test_a_declaration_under_way_fails_with_the_reason(
    connection: Connection, broker: ScriptedBroker, end: Callable[[ScriptedBroker], None], error: type[RedriveError]
) -> None:
    broker.ignore(QueueDeclare)
    declaring = asyncio.create_task(connection.declare_queue("orders"))
    await broker.session.hears(QueueDeclare)

    end(broker)

    with pytest.raises(error):
        await declaring


@pytest.mark.parametrize(("end", "error"), ENDS)
async def test_a_publish_under_way_is_of_unknown_fate(
    connection: Connection, broker: ScriptedBroker, end: Callable[[ScriptedBroker], None], error: type[RedriveError]
) -> None:
    publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
    await broker.session.hears(Publication)

    end(broker)

    with pytest.raises(PublishUnknown) as caught:
        await publishing
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("moment", [ChannelOpen, BasicQos, BasicConsume])
@pytest.mark.parametrize(("end", "error"), ENDS)
async def test_a_first_consume_under_way_fails_with_the_reason(
    connection: Connection,
    broker: ScriptedBroker,
    moment: type[Method],
    end: Callable[[ScriptedBroker], None],
    error: type[RedriveError],
) -> None:
    broker.session.forget()
    broker.ignore(moment)
    starting = asyncio.create_task(connection.consume("orders"))
    await broker.session.hears(moment)

    end(broker)

    with pytest.raises(error):
        await starting


async def test_declarations_wait_for_the_next_connection(connection: Connection, broker: ScriptedBroker) -> None:
    broker.hang_up()
    await connection.until(LinkState.RECONNECTING)

    assert (await connection.declare_queue("orders")).name == "orders"
    assert len(broker.sessions) == 2


async def test_it_tries_again_after_every_kind_of_failure(connection: Connection, broker: ScriptedBroker) -> None:
    """Even after a refused login: the password may be in the middle of being changed."""
    broker.first(ConnectionStartOk, LOGIN_REFUSED, SHUTDOWN, ConnectionClose(reply_code=541))

    broker.hang_up()
    await reconnected(connection)

    assert len(broker.sessions) == 5


async def test_why_it_is_not_connected_can_be_seen(connection: Connection, broker: ScriptedBroker) -> None:
    broker.session.say(0, SHUTDOWN)
    await connection.until(LinkState.RECONNECTING)

    assert str(connection.last_error) == "320 CONNECTION_FORCED - shutdown"
    await reconnected(connection)


async def test_a_publishing_channel_that_cannot_be_opened_is_tried_again(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.confirming = True
    broker.first(ConfirmSelect, ChannelClose(reply_code=541), ChannelClose(reply_code=541))
    broker.session.forget()

    broker.session.say(PUBLISHING, ChannelClose(reply_code=541, reply_text="INTERNAL_ERROR"))
    await broker.session.hears(ChannelOpen)

    await asyncio.wait_for(connection.publish("", "orders", b"{}"), 5)


async def test_a_broker_that_stops_reading_makes_publishers_wait_and_loses_nothing(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.confirming = True
    broker.stop_reading()
    megabyte = b"x" * 1_000_000
    publishing: list[asyncio.Task[None]] = []

    for _ in range(40):  # more than the kernel and the socket's own buffer take
        publishing.append(asyncio.create_task(connection.publish("", "orders", megabyte)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert connection.unconfirmed < 40
    broker.read_again()

    await asyncio.gather(*publishing)
    assert len(broker.session.heard(Publication)) == 40


# Restoring --------------------------------------------------------------------------------------------


async def test_everything_declared_is_declared_again_in_an_order_that_works(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_queue("paper", arguments={"x-queue-type": "quorum"})
    await connection.declare_exchange("world", "fanout")
    await connection.declare_exchange("news", "topic", auto_delete=True)
    await connection.bind_queue("paper", "news", "sport.#")
    await connection.bind_exchange("news", "world")

    broker.hang_up()
    await reconnected(connection)

    kinds = (QueueDeclare, ExchangeDeclare, QueueBind, ExchangeBind)
    heard = [method for method in broker.session.heard(Method) if isinstance(method, kinds)]
    assert heard == [
        ExchangeDeclare(exchange="world", type="fanout", durable=True),
        ExchangeDeclare(exchange="news", type="topic", durable=True, auto_delete=True),
        QueueDeclare(queue="paper", durable=True, arguments={"x-queue-type": "quorum"}),
        QueueBind(queue="paper", exchange="news", routing_key="sport.#"),
        ExchangeBind(destination="news", source="world"),
    ]


async def test_what_was_deleted_or_unbound_is_not_declared_again(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")
    await connection.declare_queue("screen")
    await connection.bind_queue("screen", "news", "a", {"x": 1})
    await connection.bind_exchange("news", "amq.topic", "b")
    await connection.unbind_queue("screen", "news", "a", {"x": 1})
    await connection.unbind_exchange("news", "amq.topic", "b")
    await connection.delete_queue("paper")
    await connection.delete_exchange("news")

    broker.hang_up()
    await reconnected(connection)

    kinds = (QueueDeclare, ExchangeDeclare, QueueBind, ExchangeBind)
    assert [method for method in broker.session.heard(Method) if isinstance(method, kinds)] == [
        QueueDeclare(queue="screen", durable=True)
    ]


async def test_what_was_only_looked_at_is_not_declared_again(connection: Connection, broker: ScriptedBroker) -> None:
    await connection.queue_info("theirs")
    await connection.exchange_exists("theirs")

    broker.hang_up()
    await reconnected(connection)

    assert [*broker.session.heard(QueueDeclare), *broker.session.heard(ExchangeDeclare)] == []


async def test_what_the_broker_refuses_to_restore_is_told_and_the_rest_is_restored(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_queue("changed")
    await connection.declare_queue("same")
    refusal = ChannelClose(reply_code=406, reply_text="PRECONDITION_FAILED - inequivalent arg")
    broker.answers[QueueDeclare] = lambda declare: (
        refusal if declare.queue == "changed" else QueueDeclareOk(queue=declare.queue)
    )

    broker.hang_up()
    await reconnected(connection)

    [trouble] = connection.troubles
    assert "queue='changed'" in trouble
    assert "inequivalent arg" in trouble
    assert [declare.queue for declare in broker.session.heard(QueueDeclare)] == ["changed", "same"]


async def test_troubles_stay_visible_until_the_next_reconnect(connection: Connection, broker: ScriptedBroker) -> None:
    await connection.declare_queue("changed")
    await connection.declare_queue("orders")
    consumer = await connection.consume("orders")
    refusal = ChannelClose(reply_code=406, reply_text="PRECONDITION_FAILED")
    broker.answers[QueueDeclare] = lambda declare: (
        refusal if declare.queue == "changed" else QueueDeclareOk(queue=declare.queue)
    )

    broker.hang_up()
    await consumer.until(ConsumerState.RECOVERING)
    await consumer.until(ConsumerState.CONSUMING)

    assert len(connection.troubles) == 1


async def test_a_broker_that_goes_away_while_all_is_restored_is_left_for_the_next_try(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_queue("orders")
    broker.ignore(QueueDeclare)
    broker.hang_up()
    session = await broker.accepted(2)
    await session.hears(QueueDeclare)
    broker.answers[QueueDeclare] = QueueDeclareOk(queue="orders")

    session.say(0, SHUTDOWN)
    await reconnected(connection)

    assert len(broker.sessions) == 3


async def test_a_server_named_queue_is_known_by_its_old_name_after_a_reconnect(
    connection: Connection, broker: ScriptedBroker
) -> None:
    numbers = count(1)
    broker.answers[QueueDeclare] = lambda declare: QueueDeclareOk(queue=declare.queue or f"amq.gen-{next(numbers)}")
    queue = await connection.declare_queue(exclusive=True)
    await connection.bind_queue(queue.name, "news")

    broker.hang_up()
    await reconnected(connection)

    assert (await connection.queue_info("amq.gen-1")).name == "amq.gen-2"
    assert broker.session.heard(QueueBind) == [QueueBind(queue="amq.gen-2", exchange="news")]


# Declaring --------------------------------------------------------------------------------------------


async def test_a_refused_declaration_is_the_callers_alone(connection: Connection, broker: ScriptedBroker) -> None:
    broker.answers[QueueDeclare] = lambda declare: (
        ChannelClose(reply_code=404, reply_text="NOT_FOUND") if declare.passive else QueueDeclareOk(queue="q")
    )

    looking, declaring = await asyncio.gather(
        connection.queue_info("missing"), connection.declare_queue("q"), return_exceptions=True
    )

    assert isinstance(looking, NotFound)
    assert not isinstance(declaring, BaseException)


async def test_a_refused_declaration_is_not_remembered(connection: Connection, broker: ScriptedBroker) -> None:
    broker.answers[QueueDeclare] = ChannelClose(reply_code=406)
    with pytest.raises(ChannelClosed):
        await connection.declare_queue("orders")

    broker.hang_up()
    await reconnected(connection)

    assert broker.session.heard(QueueDeclare) == []


@pytest.mark.parametrize("moment", [ChannelOpen, QueueDeclare])
async def test_a_declaration_that_was_given_up_does_not_block_the_next(
    connection: Connection, broker: ScriptedBroker, moment: type[Method]
) -> None:
    manners = broker.answers[moment]
    broker.session.forget()
    broker.ignore(moment)
    given_up = asyncio.create_task(connection.declare_queue("one"))
    channel = await broker.session.hears_on(moment)
    given_up.cancel()
    broker.answers[moment] = manners
    if moment is QueueDeclare:
        broker.session.say(channel, QueueDeclareOk(queue="one"))

    assert (await asyncio.wait_for(connection.declare_queue("two"), 5)).name == "two"


# Getting ----------------------------------------------------------------------------------------------

GOT = BasicGetOk(delivery_tag=1, redelivered=True, exchange="news", routing_key="sport")


async def test_an_empty_queue_gives_none(connection: Connection) -> None:
    assert await connection.get("orders") is None


async def got(connection: Connection, broker: ScriptedBroker) -> Delivery:
    broker.answers.pop(BasicGet, None)
    getting = asyncio.create_task(connection.get("orders"))
    channel = await broker.session.hears_on(BasicGet)
    broker.session.say(channel, GOT, body=b"{}")
    delivery = await getting
    assert delivery is not None
    return delivery


async def test_a_message_is_given_with_all_that_belongs_to_it(connection: Connection, broker: ScriptedBroker) -> None:
    delivery = await got(connection, broker)

    shown = (delivery.body, delivery.exchange, delivery.routing_key, delivery.redelivered, delivery.consumer_tag)
    assert shown == (b"{}", "news", "sport", True, "")


async def test_a_message_that_was_got_is_settled_at_once(connection: Connection, broker: ScriptedBroker) -> None:
    delivery = await got(connection, broker)

    delivery.ack()

    assert (await broker.session.hears(BasicAck)).delivery_tag == 1


async def test_one_queue_is_read_over_one_channel(connection: Connection, broker: ScriptedBroker) -> None:
    await connection.get("orders")
    opened = len(broker.session.heard(ChannelOpen))

    await connection.get("orders")

    assert len(broker.session.heard(ChannelOpen)) == opened


async def test_two_who_get_at_once_share_a_channel(connection: Connection, broker: ScriptedBroker) -> None:
    opened = len(broker.session.heard(ChannelOpen))

    await asyncio.gather(connection.get("orders"), connection.get("orders"))

    assert len(broker.session.heard(ChannelOpen)) == opened + 1


async def test_a_refused_get_is_the_callers_error_and_the_next_has_a_new_channel(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.first(BasicGet, ChannelClose(reply_code=404, reply_text="NOT_FOUND"))
    with pytest.raises(NotFound):
        await connection.get("orders")

    assert await connection.get("orders") is None


async def test_a_message_that_nobody_waits_for_any_more_goes_back(
    connection: Connection, broker: ScriptedBroker
) -> None:
    """The caller gave up before the answer came. Kept, the message would be nobody's until the connection ends."""
    broker.ignore(BasicGet)
    getting = asyncio.create_task(connection.get("orders"))
    channel = await broker.session.hears_on(BasicGet)

    getting.cancel()
    await asyncio.sleep(0)
    broker.session.say(channel, GOT, body=b"{}")

    # Either will do: a nack, or the end of the channel that holds it.
    while not [method for method in broker.session.heard(Method) if isinstance(method, BasicNack | ChannelClose)]:
        await broker.session.hears(Method)


async def test_giving_up_a_get_leaves_those_that_were_got_before_their_channel(
    connection: Connection, broker: ScriptedBroker
) -> None:
    delivery = await got(connection, broker)
    getting = asyncio.create_task(connection.get("orders"))
    await broker.session.hears(BasicGet)

    getting.cancel()
    await asyncio.sleep(0)

    assert delivery.ack() is True


async def test_a_message_got_over_the_last_connection_is_too_late_to_settle(
    connection: Connection, broker: ScriptedBroker
) -> None:
    delivery = await got(connection, broker)

    broker.hang_up()
    await reconnected(connection)

    assert delivery.ack() is False


# Closing ----------------------------------------------------------------------------------------------


async def test_closing_one_that_was_never_opened_does_nothing() -> None:
    await Connection("amqp://rabbit/").close()


async def test_closing_twice_says_farewell_once(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url).open()

    await connection.close()
    await connection.close()

    assert len(broker.session.heard(ConnectionClose)) == 1


async def test_two_may_close_at_once(connection: Connection, broker: ScriptedBroker) -> None:
    publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
    await broker.session.hears(Publication)
    closing = [asyncio.create_task(connection.close()) for _ in range(2)]
    await asyncio.sleep(0)

    broker.session.say(PUBLISHING, BasicAck(delivery_tag=1))

    await asyncio.wait_for(asyncio.gather(publishing, *closing), 5)


async def test_closing_waits_for_the_confirms(connection: Connection, broker: ScriptedBroker) -> None:
    publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
    await broker.session.hears(Publication)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)

    broker.session.say(PUBLISHING, BasicAck(delivery_tag=1))

    await publishing
    await closing


async def test_what_is_not_confirmed_in_time_is_of_unknown_fate(connection: Connection, broker: ScriptedBroker) -> None:
    publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
    await broker.session.hears(Publication)

    await connection.close(within=timedelta(milliseconds=10))

    with pytest.raises(PublishUnknown):
        await publishing


async def test_a_handler_may_publish_while_the_connection_is_being_closed(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.confirming = True
    began, may_go_on = asyncio.Event(), asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        began.set()
        await may_go_on.wait()
        await connection.publish("", "next", delivery.body)
        delivery.ack()

    await connection.consume("orders", handler)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"{}")
    await began.wait()
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)

    may_go_on.set()
    await closing

    assert len(broker.session.heard(Publication)) == len(broker.session.heard(BasicAck)) == 1


async def test_a_handler_may_close_the_connection(connection: Connection, broker: ScriptedBroker) -> None:
    async def handler(delivery: Delivery) -> None:
        delivery.ack()
        await connection.close()

    await connection.consume("orders", handler)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"the last one")

    await asyncio.wait_for(connection.until(LinkState.CLOSED), 5)
    assert len(broker.session.heard(BasicAck)) == 1


async def test_after_closing_a_publish_fails_at_once(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url).open()
    await connection.close()

    with pytest.raises(NotPublished):
        await asyncio.wait_for(connection.publish("", "orders", b"{}"), 1)


async def test_after_closing_in_a_hurry_a_publish_fails_at_once(connection: Connection, broker: ScriptedBroker) -> None:
    began = asyncio.Event()

    async def handler(_: Delivery) -> None:
        began.set()
        await asyncio.Event().wait()

    await connection.consume("orders", handler)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"{}")
    await began.wait()
    await connection.close(within=timedelta(milliseconds=10))

    with pytest.raises(NotPublished):
        await asyncio.wait_for(connection.publish("", "orders", b"{}"), 1)


async def test_those_who_wait_for_their_turn_are_told_when_it_is_closed_in_a_hurry(
    connection: Connection, broker: ScriptedBroker
) -> None:
    began = asyncio.Event()

    async def handler(_: Delivery) -> None:
        began.set()
        await asyncio.Event().wait()

    await connection.consume("orders", handler)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"{}")
    await began.wait()
    await alarmed(connection, broker)
    waiting = asyncio.create_task(connection.publish("", "orders", b"{}"))
    await asyncio.sleep(0)

    await connection.close(within=timedelta(milliseconds=10))

    with pytest.raises(NotPublished):
        await asyncio.wait_for(waiting, 1)


async def test_those_who_wait_for_a_connection_are_told_that_there_will_be_none(broker: ScriptedBroker) -> None:
    patient = Connection(broker.url)
    await patient.open()
    broker.ignore(GREETING)
    broker.hang_up()
    await patient.until(LinkState.RECONNECTING)
    declaring = asyncio.create_task(patient.declare_queue("orders"))
    publishing = asyncio.create_task(patient.publish("", "orders", b"{}"))
    await asyncio.sleep(0)

    await patient.close()

    with pytest.raises(Closed):
        await asyncio.wait_for(declaring, 5)
    with pytest.raises(NotPublished):
        await asyncio.wait_for(publishing, 5)


async def test_what_the_broker_is_stays_known_while_it_is_away(broker: ScriptedBroker) -> None:
    """Who asks in between would else take it for another: other arguments for queues, other limits for headers."""
    broker.answers[GREETING] = ConnectionStart(server_properties={"version": "4.3.1"})
    broker.answers[ConnectionStartOk] = ConnectionTune(channel_max=100, frame_max=8192, heartbeat=0)
    connection = await Connection(broker.url, backoff=QUICK).open()
    before = (connection.server_version, connection.properties_max)
    broker.ignore(GREETING)

    broker.hang_up()
    await broker.accepted(2)

    assert connection.state is LinkState.RECONNECTING
    assert (connection.server_version, connection.properties_max) == before
    assert before[0] == (4, 3, 1)
    assert before[1] < 8192
    await connection.close()


@pytest.mark.parametrize("moment", [GREETING, ConnectionOpen, ChannelOpen, ConfirmSelect])
async def test_closing_while_it_reconnects_closes_the_socket(broker: ScriptedBroker, moment: object) -> None:
    connection = await Connection(broker.url, backoff=QUICK).open()
    broker.ignore(moment)
    broker.hang_up()
    session = await broker.accepted(2)
    if isinstance(moment, type):
        await session.hears(moment)

    await asyncio.wait_for(connection.close(), 5)

    await asyncio.wait_for(session.lost.wait(), 5)


async def test_a_broker_that_does_not_answer_the_farewell_is_left_after_a_moment(
    broker: ScriptedBroker, clock: Clock
) -> None:
    connection = await Connection(broker.url).open()
    broker.stop_reading()
    closing = asyncio.create_task(connection.close())
    await clock.advance(0)
    assert not closing.done()

    await clock.advance(30)

    await asyncio.wait_for(closing, 5)
    assert connection.state is LinkState.CLOSED
