from __future__ import annotations

import pytest

from redrive.errors import LocalProtocolError, RemoteProtocolError, ReplyCode
from redrive.protocol.handshake import (
    CLIENT_CAPABILITIES,
    ClientHandshake,
    Credentials,
    ExternalAuth,
    PlainAuth,
    Tuning,
    agreed_limits,
    check_tune_ok,
    negotiate,
    read_plain,
)
from redrive.wire.method import Method
from redrive.wire.methods.connection import (
    ConnectionBlocked,
    ConnectionOpen,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)

# Credentials ----------------------------------------------------------------------------------------------------


def test_plain_is_a_user_and_a_password_each_after_a_nul() -> None:
    assert PlainAuth("guest", "geheim").response() == b"\x00guest\x00geheim"


def test_external_says_nothing_because_the_certificate_does() -> None:
    assert ExternalAuth().response() == b""


def test_a_password_is_not_in_the_repr() -> None:
    assert repr(PlainAuth("guest", "geheim")) == "PlainAuth(username='guest')"


@pytest.mark.parametrize(
    "credentials",
    [PlainAuth("guest", "guest"), PlainAuth("", ""), PlainAuth("zoë", "pässwörd")],
    ids=lambda plain: plain.username,
)
def test_a_broker_reads_what_a_client_wrote(credentials: PlainAuth) -> None:
    assert read_plain(credentials.response()) == credentials


@pytest.mark.parametrize(
    "response", [b"", b"guest", b"\x00guest", b"\x00a\x00b\x00c", b"\x00gu\xffest\x00p", b"\x00g\x00\xff"]
)
def test_a_response_that_is_not_plain_is_a_syntax_error(response: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a PLAIN response must be") as refusal:
        read_plain(response)

    assert refusal.value.code is ReplyCode.FRAME_ERROR


# Tuning, as the client settles it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offer", "wish", "settled"),
    [
        ((2047, 131072, 60), (2047, 131072, 60), (2047, 131072, 60)),
        ((100, 8192, 30), (2047, 131072, 60), (100, 8192, 30)),
        ((2047, 131072, 60), (100, 8192, 30), (100, 8192, 30)),
        ((0, 0, 60), (100, 8192, 60), (100, 8192, 60)),
        ((100, 8192, 60), (0, 0, 60), (100, 8192, 60)),
        ((0, 0, 60), (0, 0, 60), (65535, 131072, 60)),
        ((2047, 131072, 0), (2047, 131072, 30), (2047, 131072, 30)),
        ((2047, 131072, 60), (2047, 131072, 0), (2047, 131072, 0)),
        ((0, 4096, 0), (0, 4096, 0), (65535, 4096, 0)),
    ],
    ids=[
        "agreement",
        "the broker wants less",
        "the client wants less",
        "the broker sets no limits",
        "the client sets no limits",
        "nobody sets limits",
        "the broker asks for no heartbeat",
        "the client asks for no heartbeat",
        "the smallest frames",
    ],
)
def test_a_client_settles_for_the_smaller_of_two_limits(
    offer: tuple[int, int, int], wish: tuple[int, int, int], settled: tuple[int, int, int]
) -> None:
    assert negotiate(tune(*offer), Tuning(*wish)) == Tuning(*settled)


@pytest.mark.parametrize("offered", [1, 4095])
def test_a_broker_that_cannot_take_the_least_frame_of_amqp_is_refused(offered: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"frame_max {offered} is below 4096") as refusal:
        negotiate(tune(2047, offered, 60), Tuning())

    assert refusal.value.code is ReplyCode.NOT_ALLOWED


def tune(channel_max: int, frame_max: int, heartbeat: int) -> ConnectionTune:
    return ConnectionTune(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)


# Tuning, as the broker checks it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offer", "answer", "limits"),
    [
        ((2047, 131072), (2047, 131072), (2047, 131072)),
        ((2047, 131072), (10, 4096), (10, 4096)),
        ((0, 0), (65535, 1 << 20), (65535, 1 << 20)),
        ((0, 0), (0, 0), (65535, 131072)),
    ],
    ids=["as offered", "less than offered", "anything where no limit was set", "no limits at all"],
)
def test_a_broker_accepts_what_is_within_its_offer(
    offer: tuple[int, int], answer: tuple[int, int], limits: tuple[int, int]
) -> None:
    assert check_tune_ok(tune(*offer, 60), tune_ok(*answer, 20)) == Tuning(*limits, 20)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((2048, 131072), r"negotiated channel_max = 2048 is higher than the maximum allowed value \(2047\)"),
        ((0, 131072), r"negotiated channel_max = 0 is higher than the maximum allowed value \(2047\)"),
        ((2047, 131073), r"negotiated frame_max = 131073 is higher than the maximum allowed value \(131072\)"),
        ((2047, 0), r"negotiated frame_max = 0 is higher than the maximum allowed value \(131072\)"),
        ((2047, 4095), r"negotiated frame_max = 4095 is lower than the minimum allowed value \(4096\)"),
    ],
)
def test_a_broker_refuses_what_is_beyond_its_offer(answer: tuple[int, int], complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint) as refusal:
        check_tune_ok(tune(2047, 131072, 60), tune_ok(*answer, 60))

    assert refusal.value.code is ReplyCode.NOT_ALLOWED


def test_an_answer_without_limits_still_bounds_channels_and_frames() -> None:
    assert agreed_limits(tune_ok(0, 0, 0)) == Tuning(channel_max=65535, frame_max=131072, heartbeat=0)


def tune_ok(channel_max: int, frame_max: int, heartbeat: int) -> ConnectionTuneOk:
    return ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)


# The client's half of the handshake -----------------------------------------------------------------------------------


def answers(handshake: ClientHandshake, question: Method) -> list[Method]:
    return list(handshake.answer(question))


@pytest.mark.parametrize("credentials", [PlainAuth("guest", "guest"), ExternalAuth()], ids=lambda c: c.mechanism)
def test_a_client_answers_the_start_with_its_credentials(credentials: Credentials) -> None:
    handshake = ClientHandshake(credentials, client_properties={"connection_name": "me"})

    [start_ok] = answers(handshake, ConnectionStart(mechanisms=b"AMQPLAIN PLAIN EXTERNAL"))

    assert start_ok == ConnectionStartOk(
        client_properties={"connection_name": "me", "capabilities": CLIENT_CAPABILITIES},
        mechanism=credentials.mechanism,
        response=credentials.response(),
    )


def test_a_client_remembers_who_the_broker_is() -> None:
    handshake = ClientHandshake(PlainAuth("guest", "guest"))

    answers(handshake, ConnectionStart(server_properties={"product": "RabbitMQ"}))

    assert handshake.server_properties == {"product": "RabbitMQ"}


def test_a_client_settles_the_tuning_and_names_its_virtual_host_in_one_go() -> None:
    handshake = ClientHandshake(PlainAuth("guest", "guest"), "orders", wish=Tuning(10, 8192, 20))

    assert answers(handshake, tune(2047, 131072, 60)) == [tune_ok(10, 8192, 20), ConnectionOpen(virtual_host="orders")]
    assert handshake.tuning == Tuning(10, 8192, 20)


@pytest.mark.parametrize(
    ("question", "code", "complaint"),
    [
        (ConnectionStart(version_minor=8), ReplyCode.NOT_IMPLEMENTED, "the broker speaks AMQP 0-8, not 0-9"),
        (ConnectionStart(version_major=1), ReplyCode.NOT_IMPLEMENTED, "the broker speaks AMQP 1-9, not 0-9"),
        (
            ConnectionStart(mechanisms=b"EXTERNAL X"),
            ReplyCode.ACCESS_REFUSED,
            "the broker offers EXTERNAL X, not PLAIN",
        ),
        (ConnectionStart(mechanisms=b""), ReplyCode.ACCESS_REFUSED, "the broker offers no mechanism, not PLAIN"),
        (ConnectionStart(mechanisms=b"\xff"), ReplyCode.ACCESS_REFUSED, "not PLAIN"),
        (ConnectionSecure(), ReplyCode.NOT_IMPLEMENTED, "PLAIN needs no second challenge, but the broker sent one"),
        (tune(2047, 100, 60), ReplyCode.NOT_ALLOWED, "frame_max 100 is below 4096"),
    ],
)
def test_a_client_refuses_a_question_that_it_cannot_answer(question: Method, code: ReplyCode, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint) as refusal:
        answers(ClientHandshake(PlainAuth("guest", "guest")), question)

    assert refusal.value.code is code


def test_only_questions_of_the_handshake_are_answered() -> None:
    with pytest.raises(LocalProtocolError, match=r"connection\.blocked is not a question of the handshake"):
        answers(ClientHandshake(ExternalAuth()), ConnectionBlocked())
