"""The short form of `tools/fuzz.py`: the corpus, a few thousand inputs, and proof that it would find what it seeks."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import fuzz
from fuzz import FINDINGS, Finding, Run, replay, time_limit, try_input
from fuzzing import corpus, deliveries
from fuzzing.bodies import BodyTarget
from fuzzing.conversations import ConversationTarget, DecoderTarget
from fuzzing.definitions import DefinitionsTarget
from fuzzing.deliveries import DeliveryTarget, RabbitMQTarget
from fuzzing.families import FAMILIES
from fuzzing.hostile import MARK
from fuzzing.queries import QueryTarget
from fuzzing.rest import check_answer
from fuzzing.targets import Broken, Target
from redrive.deadletters.search import Query
from redrive.errors import ConfigurationError, RemoteProtocolError
from redrive.protocol.connection import AmqpConnection
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.wire.frames import BODY, METHOD
from redrive.wire.method import Sender
from redrive.wire.methods.queue import QueueDeclare
from redrive.worker.settlement import VerdictExecutor
from tests.support.connection_pair import frame


def opened(side: Sender) -> ConversationTarget:
    """A test breaks how a conversation goes on: it has been opened before, whichever test comes first."""
    target = ConversationTarget(side, "open")
    target.run(b"")
    return target


SERVER, CLIENT = opened(Sender.SERVER), opened(Sender.CLIENT)
DECLARE = frame(METHOD, 1, QueueDeclare(queue="q").encode())
NONSENSE = frame(4, 0, b"")


# The product ------------------------------------------------------------------------------------------------------


STORED = sorted({corpus.target_name(path) for path in corpus.FOLDER.glob("*.bin")})


@pytest.mark.parametrize("target", STORED)
def test_every_input_of_the_corpus_is_survived(target: str) -> None:
    assert replay(sorted(corpus.FOLDER.glob(f"{target}.*.bin"))).findings == []


def test_nothing_that_was_ever_found_is_left_unrepaired() -> None:
    assert replay(sorted(FINDINGS.glob("*.bin"))).findings == []


@pytest.mark.parametrize("family", [family.name for family in FAMILIES.values() if family.few])
def test_a_few_inputs_find_nothing(family: str) -> None:
    few = FAMILIES[family].few

    report = Run(family, seed=1).go(inputs=few)

    assert report.inputs >= few
    assert report.findings == []


def test_hostile_deliveries_find_nothing_on_rabbitmq(amqp_url: str) -> None:
    """The same as on the embedded broker; the node is that of all tests."""
    with RabbitMQTarget("rabbitmq", amqp_url) as target, time_limit():
        for path in sorted(corpus.FOLDER.glob("deliveries.*.bin")):
            assert not isinstance(try_input(target, path.read_bytes()), Finding), path


# The fuzzer -------------------------------------------------------------------------------------------------------


def attempt(target: Target, data: bytes) -> set[str] | Finding:
    with time_limit():
        return try_input(target, data)


def found(result: set[str] | Finding) -> str:
    """How the input failed."""
    assert isinstance(result, Finding)
    return result.story


def test_an_exception_that_no_peer_is_to_blame_for_is_a_finding() -> None:
    story = found(attempt(DecoderTarget("careless", lambda data: data[0]), b""))

    assert "IndexError" in story


def test_a_complaint_about_the_peer_is_no_finding() -> None:
    assert attempt(SERVER, NONSENSE) == {
        "False FRAME_ERROR unknown frame type", "CLOSED",
    }  # fmt: skip


def test_an_input_that_never_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_forever(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(DecoderTarget, "seconds", 0.02)

    assert "took more processor time" in found(attempt(DecoderTarget("endless", decode_forever), b""))


def test_a_conversation_that_lives_on_after_a_violation_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AmqpConnection, "_refuse", lambda *_: None)

    assert "after a violation" in found(attempt(SERVER, NONSENSE))


def test_a_conversation_that_speaks_after_its_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_talking(conversation: AmqpConnection, _: RemoteProtocolError) -> None:
        conversation.state = ConnectionState.CLOSED
        monkeypatch.setattr(AmqpConnection, "receive", lambda _conversation, _data: [object()])

    monkeypatch.setattr(AmqpConnection, "_refuse", keep_talking)

    assert "heard or said something" in found(attempt(CLIENT, NONSENSE))


def test_a_conversation_that_says_what_nobody_can_read_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AmqpConnection, "data_to_send", lambda _: b"\x01\x00\x00\x00\x00\x00\x00\x00")

    assert "said no frame" in found(attempt(SERVER, DECLARE))


def test_a_conversation_that_keeps_more_than_it_was_told_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hoard(conversation: AmqpConnection, data: bytes, _: object) -> None:
        conversation.hoard = bytes(1000 * len(data))  # type: ignore[attr-defined]

    monkeypatch.setattr(AmqpConnection, "_read", hoard)

    assert "bytes kept after hearing" in found(attempt(SERVER, DECLARE))


def test_a_bug_in_a_corner_is_found_within_a_few_thousand_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted behind the head of a frame, a channel and its state."""
    read_other = AmqpConnection._read_other

    def read_other_carelessly(
        self: AmqpConnection, kind: int, number: int, payload: bytes, events: list[object]
    ) -> None:
        if kind == BODY and number == 1 and self.channel_state(1) is ChannelState.CROSSED:
            raise KeyError(number)
        read_other(self, kind, number, payload, events)  # type: ignore[arg-type]

    monkeypatch.setattr(AmqpConnection, "_read_other", read_other_carelessly)

    report = Run("protocol", seed=1).go(inputs=4000)

    assert {finding.target.split("-")[1] for finding in report.findings} == {"channels"}


def test_the_same_seed_tries_the_same_inputs() -> None:
    first, second = Run("protocol", seed=5), Run("protocol", seed=5)
    first.go(inputs=600)
    second.go(inputs=600)

    assert [pool.inputs for pool in first.pools] == [pool.inputs for pool in second.pools]


def test_a_finding_is_saved_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "FINDINGS", tmp_path)
    monkeypatch.setattr(AmqpConnection, "_read_other", lambda *_: 1 / 0)
    finding = attempt(SERVER, NONSENSE)
    assert isinstance(finding, Finding)

    fuzz.tell(finding)

    [saved] = tmp_path.iterdir()
    assert f"repeat it with: python tools/fuzz.py --replay {saved}" in capsys.readouterr().out
    assert [again.kind for again in replay([saved]).findings] == [finding.kind]


# Each of the targets would find what it seeks -------------------------------------------------------------------------


def test_a_query_that_is_written_as_another_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Query, "__str__", lambda query: " ".join(term.value for term in query.terms))

    assert "came back as" in found(attempt(QueryTarget("queries"), b"error:Timeout"))


def test_a_control_character_that_is_shown_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.deadletters.body_preview.printable", lambda text: text)

    assert "is shown as it is" in found(attempt(BodyTarget("bodies"), b"text/plain\n\x1b[2J"))


@pytest.mark.parametrize(
    ("planted", "story"),
    [(KeyError("queues"), "KeyError"), (ConfigurationError("something is wrong"), "names no place")],
)
def test_a_file_that_is_refused_without_a_place_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, planted: Exception, story: str
) -> None:
    def refuse(*_: object) -> None:
        raise planted

    monkeypatch.setattr("fuzzing.definitions.DefinitionsFile.parse", refuse)

    assert story in found(attempt(DefinitionsTarget("definitions"), b"{}"))


def hostile() -> bytes:
    return min((path.read_bytes() for path in corpus.FOLDER.glob("deliveries.*.bin")), key=len)


def test_a_message_that_is_lost_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VerdictExecutor, "_park", lambda _, case, __: case.delivery.ack())
    monkeypatch.setattr(deliveries, "PATIENCE", 3.0)
    with DeliveryTarget("deliveries") as target:
        assert "are settled" in found(attempt(target, hostile()))


def test_markup_out_of_a_message_on_a_page_is_a_finding() -> None:
    page = httpx.Response(200, html=f"<td>{MARK}</td>")

    with pytest.raises(Broken, match="markup out of a message"):
        deliveries.check_page("/", page)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 500 Oops\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nTraceback (most recent call last)",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-security-policy: default-src 'none'\r\n\r\n<zz>",
    ],
)
def test_an_answer_that_no_server_should_give_is_a_finding(said: bytes) -> None:
    with pytest.raises(Broken):
        check_answer(said)
