"""One socket: the handshake with every broker it may meet, the farewells, and the silences."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from redrive.client.transport import Transport, open_transport
from redrive.client.url import BrokerURL
from redrive.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    LocalProtocolError,
    RedriveError,
    RemoteProtocolError,
)
from redrive.testing import free_port
from redrive.wire.frames import HEARTBEAT_FRAME
from redrive.wire.method import Method
from redrive.wire.methods.channel import ChannelOpen
from redrive.wire.methods.connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecretOk,
)
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk
from unit.client.clock import Clock
from unit.client.scripted import GREETING, ScriptedBroker, WiredLink

SECRET = "s3cret"


async def connect(url: str) -> Transport:
    parsed = BrokerURL.parse(url)
    return await open_transport(parsed, parsed.hosts[0], {"product": "test"}, lambda: None)


@asynccontextmanager
async def connected(broker: ScriptedBroker, query: str = "") -> AsyncIterator[Transport]:
    link = await connect(broker.url + query)
    yield link
    await link.close(within=0.1)


# The handshake ----------------------------------------------------------------------------------------


async def test_a_link_knows_its_broker(broker: ScriptedBroker) -> None:
    async with connected(broker) as link:
        assert link.server_properties["version"] == "4.0.5"


async def test_a_broker_knows_its_client(broker: ScriptedBroker) -> None:
    async with connected(broker):
        [start_ok] = broker.session.heard(ConnectionStartOk)

    assert start_ok.client_properties["product"] == "test"
    assert start_ok.response == b"\0guest\0guest"


async def test_the_limits_of_the_url_are_settled_within_those_of_the_broker(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionStartOk] = ConnectionTune(channel_max=10, frame_max=65536, heartbeat=60)

    async with connected(broker, "?channel_max=20&frame_max=8192&heartbeat=5"):
        [settled] = broker.session.heard(ConnectionTuneOk)

    assert settled == ConnectionTuneOk(channel_max=10, frame_max=8192, heartbeat=5)


async def test_the_virtual_host_of_the_url_is_entered(broker: ScriptedBroker) -> None:
    async with connected(broker, "orders"):
        [entered] = broker.session.heard(ConnectionOpen)

    assert entered.virtual_host == "orders"


async def test_a_wrong_password_is_told_at_once_and_not_repeated(broker: ScriptedBroker) -> None:
    refusal = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
    broker.answers[ConnectionStartOk] = ConnectionClose(reply_code=403, reply_text=refusal)

    with pytest.raises(AuthenticationFailed, match="403 ACCESS_REFUSED - Login was refused") as caught:
        await connect(broker.url.replace(":guest@", f":{SECRET}@"))
    assert SECRET not in str(caught.value)


async def test_a_virtual_host_that_is_not_there_is_told_at_once(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionOpen] = ConnectionClose(reply_code=530, reply_text="NOT_ALLOWED - vhost nope not found")

    with pytest.raises(AuthenticationFailed, match="530 NOT_ALLOWED - vhost nope not found"):
        await connect(broker.url + "nope")


async def test_a_broker_in_trouble_is_not_taken_for_one_that_knows_us_not(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionOpen] = ConnectionClose(reply_code=541, reply_text="INTERNAL_ERROR")

    with pytest.raises(ConnectionClosed) as caught:
        await connect(broker.url)
    assert not isinstance(caught.value, AuthenticationFailed)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (ConnectionStart(version_major=0, version_minor=8), "speaks AMQP 0-8, not 0-9"),
        (ConnectionStart(version_major=1, version_minor=0), "speaks AMQP 1-0, not 0-9"),
        (ConnectionStart(mechanisms=b"GSSAPI EXTERNAL"), "offers GSSAPI EXTERNAL, not PLAIN"),
        (ConnectionStart(mechanisms=b""), "offers no mechanism, not PLAIN"),
    ],
)
async def test_a_broker_that_speaks_otherwise_is_refused(
    broker: ScriptedBroker, start: ConnectionStart, words: str
) -> None:
    broker.answers[GREETING] = start

    with pytest.raises(RemoteProtocolError, match=words):
        await connect(broker.url)


async def test_a_broker_that_wants_a_second_challenge_is_refused(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionStartOk] = ConnectionSecure(challenge=b"who are you?")

    with pytest.raises(RemoteProtocolError, match="PLAIN needs no second challenge"):
        await connect(broker.url)


async def test_a_broker_with_frames_that_are_too_small_is_refused(broker: ScriptedBroker) -> None:
    broker.answers[ConnectionStartOk] = ConnectionTune(frame_max=1024)

    with pytest.raises(RemoteProtocolError, match="frame_max 1024 is below 4096"):
        await connect(broker.url)


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[str]:
    """A server that is no broker: it answers the greeting with these bytes, or hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(answer or b"")
        if answer is not None:
            await reader.read()
        writer.close()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    yield f"amqp://127.0.0.1:{port}/"
    server.close()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"AMQP\x00\x00\x09\x00", RemoteProtocolError, r"refuses AMQP 0-9-1, it speaks 0\.0\.9\.0"),
        (b"AMQP\x03\x01\x00\x00", RemoteProtocolError, "refuses AMQP 0-9-1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError, "FRAME_ERROR"),
        (None, ConnectionLost, "the broker closed the socket"),
    ],
    ids=["another version", "SASL", "HTTP", "hangs up"],
)
async def test_whatever_answers_instead_of_a_broker_is_told_apart(
    answer: bytes | None, error: type[RedriveError], words: str
) -> None:
    async with listening(answer) as url:
        with pytest.raises(error, match=words):
            await connect(url)


@pytest.mark.parametrize("answer", [b"", b"\x01"], ids=["silence", "one byte"])
async def test_a_server_that_does_not_answer_is_given_up_after_the_connection_timeout(answer: bytes) -> None:
    async with listening(answer) as url:
        with pytest.raises(ConnectionFailed, match=r"no answer within 0\.05 s"):
            await connect(url + "?connection_timeout=50")


async def test_a_host_where_nobody_listens_is_named() -> None:
    port = free_port()

    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}: Connection refused"):
        await connect(f"amqp://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("host", "words"),
    [("nowhere.invalid", r"\[Errno -\d\] \w+"), ("a..b", "label empty"), ("x" * 64, "label too long")],
)
async def test_a_host_name_that_leads_nowhere_is_named(host: str, words: str) -> None:
    with pytest.raises(ConnectionFailed, match=f"{host}:5672: .*{words}"):
        await connect(f"amqp://{host}/")


@pytest.mark.parametrize("moment", [GREETING, ConnectionStartOk, ConnectionOpen])
async def test_a_handshake_that_is_given_up_closes_its_socket(broker: ScriptedBroker, moment: object) -> None:
    broker.ignore(moment)
    connecting = asyncio.create_task(connect(broker.url))
    await broker.accepted()

    connecting.cancel()

    await asyncio.wait_for(broker.session.lost.wait(), 5)


@pytest.mark.parametrize("moment", [GREETING, ConnectionStartOk, ConnectionOpen])
async def test_a_broker_that_falls_silent_during_the_handshake_is_given_up(
    broker: ScriptedBroker, moment: object
) -> None:
    broker.ignore(moment)

    with pytest.raises(ConnectionFailed, match="no answer within"):
        await connect(broker.url + "?connection_timeout=200")
    session = await broker.accepted()
    await asyncio.wait_for(session.lost.wait(), 5)


@pytest.mark.parametrize("answered", [ConnectionStartOk, ConnectionOpen])
async def test_a_broker_that_says_farewell_during_the_handshake_gets_its_answer(
    broker: ScriptedBroker, answered: type[Method]
) -> None:
    broker.answers[answered] = ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED")

    with pytest.raises(ConnectionClosed, match="320 CONNECTION_FORCED"):
        await connect(broker.url)
    assert await broker.session.hears(ConnectionCloseOk)


async def test_a_broker_that_asks_and_says_farewell_in_one_breath_is_understood() -> None:
    wired = WiredLink()
    wired.ignore(GREETING)
    opening = asyncio.create_task(wired.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    wired.session.say(0, ConnectionStart(), ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED"))

    with pytest.raises(ConnectionClosed, match="320 CONNECTION_FORCED"):
        await opening


# Farewells --------------------------------------------------------------------------------------------


async def test_closing_says_farewell_and_waits_for_the_answer(broker: ScriptedBroker) -> None:
    link = await connect(broker.url)

    await link.close()

    assert len(broker.session.heard(ConnectionClose)) == 1
    assert not link.alive


async def test_closing_twice_is_closing_once(broker: ScriptedBroker) -> None:
    link = await connect(broker.url)

    await link.close()
    await link.close()

    assert len(broker.session.heard(ConnectionClose)) == 1


async def test_a_broker_that_does_not_answer_the_farewell_is_left_all_the_same(wired: WiredLink, clock: Clock) -> None:
    wired.transport.close()  # what is written from now on goes nowhere
    closing = asyncio.create_task(wired.link.close(within=5))
    await clock.advance(0)
    assert not closing.done()

    await clock.advance(5)

    await closing
    assert not wired.link.alive


async def test_two_farewells_that_cross_end_well(wired: WiredLink) -> None:
    closing = asyncio.create_task(wired.link.close())
    await asyncio.sleep(0)

    wired.session.say(0, ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED"))

    await asyncio.wait_for(closing, 5)


async def test_the_brokers_farewell_says_why(wired: WiredLink) -> None:
    wired.session.say(0, ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED - shutdown"))

    assert str(wired.link.lost.result()) == "320 CONNECTION_FORCED - shutdown"
    assert isinstance(wired.link.lost.result(), ConnectionClosed)


async def test_a_403_after_the_handshake_is_no_failed_login(wired: WiredLink) -> None:
    wired.session.say(0, ConnectionClose(reply_code=403, reply_text="ACCESS_REFUSED"))

    assert not isinstance(wired.link.lost.result(), AuthenticationFailed)


async def test_an_answer_in_one_read_with_the_farewell_still_arrives(wired: WiredLink) -> None:
    channel = await wired.link.channel()
    wired.ignore(QueueDeclare)
    calling = asyncio.create_task(channel.call(QueueDeclare(queue="orders"), QueueDeclareOk))
    await wired.session.hears(QueueDeclare)

    wired.session.conversation.send(channel.number, QueueDeclareOk(queue="orders"))
    wired.session.say(0, ConnectionClose(reply_code=320))

    assert (await calling).queue == "orders"


async def test_an_opening_meets_the_brokers_farewell(wired: WiredLink) -> None:
    wired.ignore(ChannelOpen)
    opening = asyncio.create_task(wired.link.channel())
    await wired.session.hears(ChannelOpen)

    wired.session.say(0, ConnectionClose(reply_code=320))

    with pytest.raises(ConnectionClosed):
        await opening


async def test_an_ended_link_opens_no_channel(wired: WiredLink) -> None:
    wired.end()

    with pytest.raises(ConnectionLost):
        await wired.link.channel()


async def test_a_link_that_says_farewell_opens_no_channel(wired: WiredLink) -> None:
    closing = asyncio.create_task(wired.link.close())
    await asyncio.sleep(0)

    with pytest.raises(LocalProtocolError):
        await wired.link.channel()
    await closing


async def test_a_lost_socket_is_told_with_its_reason(wired: WiredLink) -> None:
    wired.link.connection_lost(ConnectionResetError("Connection reset by peer"))

    assert str(wired.link.lost.result()) == "memory:5672: Connection reset by peer"


async def test_a_violation_is_answered_with_the_close_that_amqp_prescribes(wired: WiredLink) -> None:
    wired.session.say_raw(b"\x01\x00\x00\x00\x00\x00\x01\x00\x00")

    assert (await wired.session.hears(ConnectionClose)).reply_code == 501
    assert isinstance(wired.link.lost.result(), RemoteProtocolError)


async def test_what_comes_after_the_end_is_not_read(wired: WiredLink) -> None:
    wired.end()

    wired.link.data_received(b"anything")

    assert isinstance(wired.link.lost.result(), ConnectionLost)


# Alarms and secrets -----------------------------------------------------------------------------------


async def test_an_alarm_is_seen_and_told_with_its_reason(wired: WiredLink) -> None:
    told: list[str | None] = []
    wired.on_change = lambda: told.append(wired.link.blocked)

    wired.session.say(0, ConnectionBlocked(reason="low on memory"))
    wired.session.say(0, ConnectionUnblocked())

    assert told == ["low on memory", None]


async def test_an_alarm_without_a_reason_is_an_alarm_all_the_same(wired: WiredLink) -> None:
    wired.session.say(0, ConnectionBlocked(reason=""))

    assert wired.link.blocked == "no reason given"


async def test_an_answer_that_nobody_asked_for_on_the_connection_harms_nobody(wired: WiredLink) -> None:
    wired.session.say(0, ConnectionUpdateSecretOk())

    assert wired.link.alive


# Heartbeats -------------------------------------------------------------------------------------------


@pytest.fixture
async def beating() -> AsyncIterator[WiredLink]:
    wired = WiredLink("amqp://memory/?heartbeat=10")
    yield await wired.open()
    wired.end()


async def test_a_silent_broker_is_given_up_after_two_intervals(clock: Clock, beating: WiredLink) -> None:
    await clock.advance(19.5)
    assert beating.link.alive

    await clock.advance(0.6)

    assert str(beating.link.lost.result()) == "memory:5672: silent for 20 s, heartbeats missed"


async def test_any_word_of_the_broker_counts_as_a_sign_of_life(clock: Clock, beating: WiredLink) -> None:
    await clock.advance(15)
    beating.session.say_raw(HEARTBEAT_FRAME)

    await clock.advance(15)

    assert beating.link.alive


async def test_a_link_that_has_nothing_to_say_says_so_every_half_interval(clock: Clock, beating: WiredLink) -> None:
    beating.session.raw.clear()

    for _ in range(3):
        await clock.advance(5.1)

    assert beating.session.raw == [HEARTBEAT_FRAME] * 3


async def test_a_link_that_has_something_to_say_needs_no_heartbeat(clock: Clock, beating: WiredLink) -> None:
    await clock.advance(4)
    await beating.link.channel()
    beating.session.raw.clear()

    await clock.advance(4)

    assert beating.session.raw == []


async def test_without_an_interval_silence_is_for_ever(clock: Clock) -> None:
    wired = await WiredLink("amqp://memory/?heartbeat=0").open()

    await clock.advance(1_000_000)

    assert wired.link.alive
    wired.end()


async def test_an_ended_link_beats_no_more(clock: Clock, beating: WiredLink) -> None:
    beating.end()
    beating.session.raw.clear()

    await clock.advance(5.1)

    assert beating.session.raw == []


# Writing ----------------------------------------------------------------------------------------------


async def test_what_is_said_within_one_turn_leaves_in_one_write(wired: WiredLink) -> None:
    channel = await wired.link.channel()
    wired.session.raw.clear()

    await asyncio.gather(*(channel.call(QueueDeclare(queue=name), QueueDeclareOk) for name in ("one", "two", "three")))

    assert len(wired.session.raw) == 1


async def test_late_words_are_put_in_just_before_the_write(wired: WiredLink) -> None:
    channel = await wired.link.channel()
    order: list[str] = []
    wired.link.before_flush(lambda: order.append("late word"))
    order.append("everything else")

    await channel.call(QueueDeclare(queue="orders"), QueueDeclareOk)

    assert order == ["everything else", "late word"]


# Introductions ----------------------------------------------------------------------------------------


async def test_it_introduces_itself(wired: WiredLink) -> None:
    await wired.link.channel()
    wired.session.say(0, ConnectionBlocked(reason="low on disk"))

    assert repr(wired.link) == "<Link memory:5672 alive channels=1 blocked='low on disk'>"


async def test_an_ended_one_says_why(wired: WiredLink) -> None:
    wired.end()

    assert repr(wired.link) == "<Link memory:5672 ended: memory:5672: the broker closed the socket channels=0>"


async def test_the_answer_to_open_is_waited_for(broker: ScriptedBroker) -> None:
    broker.ignore(ConnectionOpen)
    connecting = asyncio.create_task(connect(broker.url))
    session = await broker.accepted()
    await session.hears(ConnectionOpen)
    assert not connecting.done()

    session.say(0, ConnectionOpenOk())

    await (await connecting).close()
