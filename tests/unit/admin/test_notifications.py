"""Notices: decided with a clock that is moved by hand, and sent to a real server and a real program."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.admin.notifications import SIGNATURE, Command, Kind, Notice, Notifier, Webhook, deliver, signature
from redrive.errors import ConfigurationError, NotDelivered
from redrive.operations.operation import Operation, OperationRequest, OperationState
from redrive.operations.operation import OperationKind as OperationKind
from tests.support.tls import make_certificates

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DLQ = "q.orders.dlq"
NOTICE = Notice(Kind.DEAD_LETTERS, DLQ, NOON, NOON, 3, 17)


@dataclass
class Watch:
    """A notifier, and the time."""

    notifier: Notifier = field(default_factory=Notifier)
    at: datetime = NOON

    def after(self, minutes: float) -> Watch:
        self.at += minutes * MINUTE
        return self

    def wait(self, seconds: float) -> None:
        """Nothing is due before that time."""
        self.at += timedelta(seconds=seconds)
        assert self.notifier.due(self.at - timedelta(microseconds=1)) == []

    def depth(self, depth: int, queue: str = DLQ) -> Watch:
        self.notifier.record_queue(queue, depth, self.at)
        return self

    def operation(self, operation: Operation) -> Watch:
        self.notifier.record_operation(operation, self.at)
        return self

    def due(self) -> list[Notice]:
        return self.notifier.due(self.at)

    def told(self) -> list[tuple[Any, ...]]:
        """What is due, in short, all of it delivered."""
        notices = self.due()
        for notice in notices:
            self.notifier.record_delivery(notice, self.at)
        return [(notice.kind, notice.new, notice.depth) for notice in notices]


NEW, STALLED, RESOLVED = Kind.DEAD_LETTERS, Kind.STALLED, Kind.RESOLVED


# Queues ----------------------------------------------------------------------------------------------------


def test_an_empty_queue_is_not_worth_a_word() -> None:
    assert Watch().depth(0).told() == []


def test_new_dead_letters_are_told_once() -> None:
    watch = Watch().depth(0).depth(3)

    assert watch.told() == [(NEW, 3, 3)]
    assert watch.after(60).depth(3).told() == []


def test_what_is_there_at_the_first_look_is_told() -> None:
    assert Watch().depth(17).told() == [(NEW, 17, 17)]


def test_what_is_there_when_the_watch_begins_is_told_and_not_as_new() -> None:
    watch = Watch()
    watch.notifier.record_backlog(DLQ, 17)
    watch.notifier.record_backlog("empty.dlq", 0)

    assert watch.notifier.depths == {DLQ: 17, "empty.dlq": 0}
    assert watch.depth(17).told() == [(Kind.BACKLOG, 0, 17)]
    assert watch.after(60).depth(19).told() == [(NEW, 2, 19)]
    assert watch.after(60).depth(0).told() == [(RESOLVED, 0, 0)]


def test_a_backlog_that_grows_before_it_is_told_is_told_as_what_is_new() -> None:
    watch = Watch()
    watch.notifier.record_backlog(DLQ, 17)

    assert watch.depth(20).told() == [(NEW, 3, 20)]
    assert watch.after(60).depth(20).told() == []


def test_a_backlog_that_is_gone_before_it_is_told_is_not_worth_a_word() -> None:
    watch = Watch()
    watch.notifier.record_backlog(DLQ, 17)

    assert watch.depth(0).told() == []


def test_more_of_them_wait_for_the_interval_and_are_told_together() -> None:
    watch = Watch().depth(1)
    assert watch.told() == [(NEW, 1, 1)]

    assert watch.after(1).depth(3).told() == []
    assert watch.after(3).depth(10).told() == []
    (notice,) = watch.after(1).due()

    assert (notice.new, notice.depth, notice.since, notice.at) == (9, 10, NOON + MINUTE, NOON + 5 * MINUTE)


def test_what_goes_does_not_hide_what_comes() -> None:
    watch = Watch().depth(10)
    watch.told()

    assert watch.after(1).depth(2).after(1).depth(5).after(9).told() == [(NEW, 3, 5)]


def test_every_queue_has_its_own_interval() -> None:
    watch = Watch().depth(1)
    watch.told()

    assert watch.depth(2, "q.mail.dlq").told() == [(NEW, 2, 2)]


def test_an_empty_queue_is_told_when_it_was_told_of_before() -> None:
    watch = Watch().depth(3)
    watch.told()

    assert watch.after(1).depth(0).told() == []  # one in an interval
    assert watch.after(5).told() == [(RESOLVED, 0, 0)]
    assert watch.after(60).depth(0).told() == []


def test_a_queue_that_came_and_went_unseen_is_told_of_in_one_notice() -> None:
    watch = Watch().depth(3).depth(0)

    assert watch.told() == [(NEW, 3, 0)]
    assert watch.after(60).told() == []


def test_the_result_of_a_notice_does_not_count_for_a_watch_that_began_again() -> None:
    watch = Watch().depth(3)
    (notice,) = watch.due()
    watch.notifier.record_backlog(DLQ, 0)

    watch.notifier.record_delivery(notice, watch.at)
    watch.notifier.record_failure(notice, watch.at)

    assert watch.after(60).told() == []


# Failing ---------------------------------------------------------------------------------------------------


def test_a_notice_under_way_is_not_sent_twice() -> None:
    watch = Watch().depth(3)

    assert len(watch.due()) == 1
    assert watch.after(60).depth(4).due() == []
    assert repr(watch.notifier) == "<Notifier 1 queues 0 operations, 1 under way>"


def test_a_notice_that_failed_is_tried_again_later_and_later() -> None:
    watch = Watch().depth(3)
    for seconds in (5, 10, 20, 40, 80, 160, 320, 600, 600):
        (notice,) = watch.due()
        watch.notifier.record_failure(notice, watch.at)
        watch.wait(seconds)

    assert watch.told() == [(NEW, 3, 3)]


def test_a_notice_that_is_tried_again_tells_what_came_meanwhile() -> None:
    watch = Watch().depth(3)
    watch.notifier.record_failure(watch.due()[0], watch.at)

    assert watch.after(1).depth(5).told() == [(NEW, 5, 5)]


def test_what_comes_while_a_notice_is_under_way_is_told_in_the_next() -> None:
    watch = Watch().depth(3)
    (notice,) = watch.due()
    watch.depth(5)
    watch.notifier.record_delivery(notice, watch.at)

    assert watch.told() == []
    assert watch.after(5).told() == [(NEW, 2, 5)]


def test_after_a_success_failures_are_forgotten() -> None:
    watch = Watch().depth(3)
    for _ in range(3):
        watch.notifier.record_failure(watch.due()[0], watch.at)
        watch.after(1)
    watch.told()
    watch.after(5).depth(4)
    watch.notifier.record_failure(watch.due()[0], watch.at)

    watch.wait(5)
    assert watch.told() == [(NEW, 1, 4)]


def test_chance_shortens_the_wait() -> None:
    watch = Watch().depth(1)
    watch.notifier.record_failure(watch.due()[0], watch.at, chance=1.0)

    watch.wait(2.5)
    assert watch.told() == [(NEW, 1, 1)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 400), st.booleans()), max_size=30))
def test_whatever_happens_every_dead_letter_is_told_once_and_not_too_often(
    story: list[tuple[int, int, bool]],
) -> None:
    watch, grown, known, told, delivered_at = Watch(), 0, 0, 0, []
    for depth, seconds, works in story:
        watch.at += timedelta(seconds=seconds)
        watch.depth(depth)
        grown, known = grown + max(0, depth - known), depth
        for notice in watch.due():
            if works:
                watch.notifier.record_delivery(notice, watch.at)
                told += notice.new
                delivered_at.append(watch.at)
            else:
                watch.notifier.record_failure(notice, watch.at)
    for _ in range(2):
        watch.after(60)
        told += sum(new for _, new, _ in watch.told())

    assert told == grown
    assert all(later - earlier >= 5 * MINUTE for earlier, later in pairwise(delivered_at))
    assert watch.after(60).told() == []


# Operations ------------------------------------------------------------------------------------------------

RUNNING = Operation(
    "op_1",
    OperationRequest(OperationKind.REDRIVE, DLQ),
    NOON,
    OperationState.RUNNING,
    started_at=NOON,
    beat_at=NOON + MINUTE,
)


def test_an_operation_that_beats_is_not_worth_a_word() -> None:
    watch = Watch().operation(RUNNING).after(3).operation(RUNNING)

    assert watch.told() == []  # 2 minutes since the last beat, and no more


@pytest.mark.parametrize(
    "state", [OperationState.PENDING, OperationState.RUNNING, OperationState.PAUSED, OperationState.CANCELLING]
)
def test_a_stalled_operation_is_told_once(state: OperationState) -> None:
    watch = Watch().after(4).operation(replace(RUNNING, state=state))

    (notice,) = watch.due()
    watch.notifier.record_delivery(notice, watch.at)

    assert (notice.kind, notice.operation, notice.queue, notice.since) == (STALLED, "op_1", DLQ, NOON + MINUTE)
    assert watch.after(60).operation(replace(RUNNING, state=state)).told() == []


def test_an_operation_that_nobody_began_has_stalled_since_it_was_made() -> None:
    pending = Operation("op_1", OperationRequest(OperationKind.REDRIVE, DLQ), NOON)

    assert Watch().after(3).operation(pending).due()[0].since == NOON


@pytest.mark.parametrize("state", [state for state in OperationState if state.is_over])
def test_an_operation_that_is_over_is_forgotten(state: OperationState) -> None:
    watch = Watch().after(60).operation(replace(RUNNING, state=state))

    assert watch.told() == []
    assert repr(watch.notifier) == "<Notifier 0 queues 0 operations, 0 under way>"


@pytest.mark.parametrize(
    "then", [replace(RUNNING, beat_at=NOON + 14 * MINUTE), replace(RUNNING, state=OperationState.FAILED)]
)
def test_that_it_goes_on_or_is_over_is_told_to_who_heard_that_it_stalled(then: Operation) -> None:
    watch = Watch().after(4).operation(RUNNING)
    watch.told()

    (notice,) = watch.after(10).operation(then).due()
    watch.notifier.record_delivery(notice, watch.at)

    assert (notice.kind, notice.state) == (RESOLVED, then.state)
    assert watch.after(60).told() == []


def test_an_operation_that_stalls_again_is_told_again() -> None:
    watch = Watch().after(4).operation(RUNNING)
    watch.told()
    watch.after(10).operation(replace(RUNNING, beat_at=watch.at)).told()

    assert [kind for kind, _, _ in watch.after(10).operation(RUNNING).told()] == [STALLED]


def test_an_operation_that_recovers_while_its_notice_is_under_way_is_told_of_after_it() -> None:
    watch = Watch().after(4).operation(RUNNING)
    (notice,) = watch.due()
    watch.operation(replace(RUNNING, state=OperationState.SUCCEEDED))
    watch.notifier.record_delivery(notice, watch.at)

    assert [kind for kind, _, _ in watch.after(5).told()] == [RESOLVED]
    assert "0 operations" in repr(watch.notifier)


def test_an_operation_that_is_over_before_anybody_was_told_is_forgotten() -> None:
    watch = Watch().after(4).operation(RUNNING)
    (notice,) = watch.due()
    watch.operation(replace(RUNNING, state=OperationState.SUCCEEDED))
    watch.notifier.record_failure(notice, watch.at)

    assert watch.after(60).told() == []
    assert "0 operations" in repr(watch.notifier)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="want more than 0"):
        Notifier(interval=timedelta(0))


# What a notice says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notice", "text"),
    [
        (NOTICE, "3 new dead letters in q.orders.dlq (17 there now)"),
        (replace(NOTICE, new=1), "1 new dead letter in q.orders.dlq (17 there now)"),
        (replace(NOTICE, kind=RESOLVED), "q.orders.dlq is empty again"),
        (replace(NOTICE, kind=Kind.BACKLOG), "17 dead letters were in q.orders.dlq already when the watch began"),
        (replace(NOTICE, kind=Kind.BACKLOG, depth=1), "1 dead letter was in q.orders.dlq already when the watch began"),
        (replace(NOTICE, kind=STALLED, operation="op_1"), "operation op_1 on q.orders.dlq has stalled: its runner was"),
        (replace(NOTICE, kind=RESOLVED, operation="op_1", state="RUNNING"), "has not stalled any more: it is RUNNING"),
        (replace(NOTICE, queue="\x1b[2J\n"), "3 new dead letters in \\x1b[2J\\n (17 there now)"),
    ],
)
def test_a_notice_speaks_to_people(notice: Notice, text: str) -> None:
    assert text in notice.text


def test_a_notice_speaks_to_machines() -> None:
    assert json.loads(NOTICE.as_json()) == {
        "kind": "dead-letters",
        "text": "3 new dead letters in q.orders.dlq (17 there now)",
        "queue": DLQ,
        "operation": None,
        "state": None,
        "new": 3,
        "depth": 17,
        "since": "2024-05-17T12:00:00.000Z",
        "at": "2024-05-17T12:00:00.000Z",
    }


# Delivering ------------------------------------------------------------------------------------------------


class Standing:
    """A clock that stands."""

    def now(self) -> datetime:
        return NOON

    def monotonic(self) -> float:
        return 0.0


async def test_what_is_due_is_delivered() -> None:
    watch, sent = Watch().depth(3).depth(4, "q.mail.dlq"), list[Notice]()

    assert await deliver(watch.notifier, sent.append, Standing()) == 2
    assert await deliver(watch.notifier, sent.append, Standing()) == 0

    assert {notice.queue for notice in sent} == {DLQ, "q.mail.dlq"}


@pytest.mark.parametrize("error", [NotDelivered("no"), ZeroDivisionError("a bug")])
async def test_whatever_a_sender_raises_the_notice_is_sent_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch().depth(3).depth(1, "q.mail.dlq")

    def send(notice: Notice) -> None:
        if notice.queue == DLQ:
            raise error

    with caplog.at_level(logging.WARNING):
        assert await deliver(watch.notifier, send, Standing()) == 1

    assert "a notice was not delivered (3 new dead letters in q.orders.dlq" in caplog.text
    assert ("Traceback" in caplog.text) is not isinstance(error, NotDelivered)
    assert watch.after(1).told() == [(NEW, 3, 3)]


async def test_a_notice_whose_delivery_was_cancelled_is_sent_again() -> None:
    watch, began, go_on = Watch().depth(3), threading.Event(), threading.Event()

    def send(_: Notice) -> None:
        began.set()
        go_on.wait(30)

    task = asyncio.create_task(deliver(watch.notifier, send, Standing()))
    await asyncio.to_thread(began.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()

    assert watch.after(1).told() == [(NEW, 3, 3)]


# Webhooks --------------------------------------------------------------------------------------------------


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@contextmanager
def receiver(
    status: int = 204, tls: ssl.SSLContext | None = None, **answer: str
) -> Iterator[tuple[str, list[Received]]]:
    got: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            got.append(Received(self.path, dict(self.headers), self.rfile.read(size)))
            self.send_response(status)
            for name, value in answer.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_gets_the_notice_as_json() -> None:
    with receiver() as (url, got):
        Webhook(f"{url}/hooks/a?b=c")(NOTICE)

    (request,) = got
    assert request.path == "/hooks/a?b=c"
    assert request.body == NOTICE.as_json()
    assert request.headers["Content-Type"] == "application/json"
    assert SIGNATURE not in request.headers


@pytest.mark.parametrize("secret", ["hush", b"hush"])
def test_a_webhook_is_signed_by_a_secret(secret: str | bytes) -> None:
    with receiver() as (url, got):
        Webhook(url, secret=secret)(NOTICE)

    (request,) = got
    wanted = hmac.new(b"hush", request.body, hashlib.sha256).hexdigest()
    assert request.headers[SIGNATURE] == f"sha256={wanted}" == signature(request.body, b"hush")
    assert request.path == "/"


def test_a_webhook_speaks_tls_and_verifies_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.server_certificate, files.server_key)
    with receiver(tls=tls) as (url, got):
        with pytest.raises(NotDelivered, match="certificate verify failed"):
            Webhook(url)(NOTICE)
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        Webhook(url)(NOTICE)

    assert len(got) == 1


@pytest.mark.parametrize("status", [301, 307, 400, 404, 500, 503])
def test_any_other_answer_is_a_failure_and_no_redirect_is_followed(status: int) -> None:
    with (
        receiver() as (elsewhere, strangers),
        receiver(status, Location=elsewhere) as (url, got),
        pytest.raises(NotDelivered, match=f"answered {status}"),
    ):
        Webhook(f"{url}/secret")(NOTICE)

    assert (len(got), len(strangers)) == (1, 0)


def test_nobody_there_is_a_failure_and_the_path_is_not_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(NotDelivered, match="Connection refused") as caught:
        Webhook(f"http://127.0.0.1:{port}/T0/secret")(NOTICE)
    assert str(caught.value).startswith(f"<Webhook http://127.0.0.1:{port}/…>: ")
    assert "secret" not in str(caught.value)


def _says_nothing(_: socket.socket) -> None: ...


def _says_nonsense(peer: socket.socket) -> None:
    peer.sendall(b"\x00nonsense\r\n\r\n")


@pytest.mark.parametrize(("answer", "problem"), [(_says_nothing, "."), (_says_nonsense, "nonsense")])
def test_who_does_not_speak_http_is_a_failure(answer: Callable[[socket.socket], None], problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                answer(peer)
                done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=timedelta(milliseconds=300))
        with pytest.raises(NotDelivered, match=problem):
            hook(NOTICE)
        done.set()
        thread.join()


def test_who_answers_a_byte_at_a_time_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = threading.Event()

        def drip() -> None:
            peer, _ = server.accept()
            with peer:
                try:
                    while not left.wait(0.05):
                        peer.sendall(b"H")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=timedelta(milliseconds=500))
        with pytest.raises(NotDelivered):
            hook(NOTICE)
        left.set()
        thread.join()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.test/", "begins with https://HOST or http://HOST"),
        ("example.test", "begins with https"),
        ("https:///path", "begins with https"),
        ("https://example.test:99999/", "Port out of range"),
        ("https://ann:pw@example.test/", "must not hold a password"),
        ("https://example.test/a b", "percent-encode"),
        ("https://example.test/ü", "percent-encode"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        Webhook(url)
    assert "pw" not in str(caught.value)


# Commands --------------------------------------------------------------------------------------------------


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


def test_a_command_gets_the_notice_on_its_standard_input(tmp_path: Path) -> None:
    to = tmp_path / "got"
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())"

    Command(python(program, str(to)))(NOTICE)

    assert to.read_bytes() == NOTICE.as_json() + b"\n"


def test_no_shell_reads_it(tmp_path: Path) -> None:
    to = tmp_path / "forged"
    hostile = replace(NOTICE, queue=f"$(touch {to}); touch {to} #`touch {to}`")

    Command(["/bin/cat", "-", "/dev/null"])(hostile)
    with pytest.raises(NotDelivered):
        Command(["/bin/cat", f"; touch {to}"])(hostile)

    assert not to.exists()


def test_a_command_that_reads_nothing_is_fine() -> None:
    Command(["/bin/true"])(NOTICE)


def test_a_command_that_fails_is_quoted() -> None:
    program = "import sys; print('no\\x1b[2J such\\nchannel', file=sys.stderr); sys.exit(3)"

    with pytest.raises(NotDelivered, match="ended with 3: no") as caught:
        Command(python(program))(NOTICE)
    assert str(caught.value).isprintable()


def test_a_command_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(NotDelivered, match="<Command /no/such> cannot be started: No such file"):
        Command(["/no/such"])(NOTICE)


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    child = "import time; time.sleep(600)"
    program = (
        "import os, pathlib, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )

    with pytest.raises(NotDelivered, match="took longer than 3 seconds, and was ended"):
        Command(python(program, str(pids)), timeout=timedelta(seconds=3))(NOTICE)

    if pids.exists():  # on a machine so busy that it had not begun there is nothing left, either
        own, started = map(int, pids.read_text().split())
        assert _ends(own)
        assert _ends(started)


def _ends(pid: int) -> bool:
    """It was killed; that it has gone is told when the kernel has come to it."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 30)[0])
    finally:
        os.close(process)


def test_a_child_that_stays_behind_does_not_hold_it_up() -> None:
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(2)'])"

    Command(python(program), timeout=timedelta(seconds=60))(NOTICE)


@pytest.mark.parametrize("argv", ["rm -rf", [], [""], ["a\0b"]])
def test_a_command_that_is_none_is_refused(argv: Any) -> None:
    with pytest.raises(ConfigurationError, match="a command"):
        Command(argv)
