"""The exception tree: as drawn, and each error with what a caller needs to decide what to do next."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from redrive import errors
from redrive.errors import (
    AccessRefused,
    AuditUnavailable,
    ChannelClosed,
    KeyNotFound,
    LetterAmbiguous,
    NotFound,
    NotPublished,
    OperationConflict,
    OperationNotFound,
    OperationOver,
    PeekUnsafe,
    PreconditionFailed,
    PublishError,
    PublishErrors,
    PublishUnknown,
    RedriveError,
    RemoteProtocolError,
    ReplyCode,
    ResourceLocked,
    SearchError,
    TopologyMissing,
    Unroutable,
    channel_closed,
)


def drawn_tree() -> dict[str, str]:
    """Each class in the drawing of the module's docstring, with the one it hangs from."""
    parents = {}
    path = ["RedriveError"]
    for branch, name in re.findall(r"^    ([│├└─ ]*[├└]── )(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(branch) // 4
        parents[name] = path[depth - 1]
        path[depth:] = [name]
    return parents


def real_tree() -> dict[str, str]:
    """The classes that hang from others; a group of errors is Python's own kind of exception first."""
    found = {name: kind.__bases__ for name, kind in inspect.getmembers(errors, inspect.isclass)}
    return {name: bases[0].__name__ for name, bases in found.items() if issubclass(bases[0], RedriveError)}


def test_the_tree_is_as_drawn() -> None:
    assert drawn_tree() == real_tree()


def test_every_error_says_what_it_means() -> None:
    undocumented = [name for name in real_tree() if not inspect.getdoc(getattr(errors, name))]
    assert undocumented == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (403, AccessRefused),
        (404, NotFound),
        (405, ResourceLocked),
        (406, PreconditionFailed),
        (541, ChannelClosed),
        (999, ChannelClosed),
    ],
)
def test_a_closed_channel_is_as_precise_as_its_reply_code(code: int, kind: type[ChannelClosed]) -> None:
    assert type(channel_closed(code, "why")) is kind


def test_a_refusal_carries_the_code_the_words_and_the_culprit() -> None:
    error = channel_closed(404, "NOT_FOUND - no queue 'q'", (50, 10))
    assert (error.code, error.text, error.method) == (404, "NOT_FOUND - no queue 'q'", (50, 10))
    assert str(error) == "404 NOT_FOUND - no queue 'q'"


def test_a_mistake_of_the_peer_carries_the_code_to_close_with() -> None:
    error = RemoteProtocolError(ReplyCode.FRAME_ERROR, "no end")
    assert error.code is ReplyCode.FRAME_ERROR
    assert str(error) == "FRAME_ERROR - no end"


def test_a_publish_error_names_the_message() -> None:
    error = Unroutable("events", "order.created", "no queue is bound for it")
    assert (error.exchange, error.routing_key, error.why) == ("events", "order.created", "no queue is bound for it")
    assert str(error) == "message to exchange 'events' with key 'order.created': no queue is bound for it"
    assert error.index is None


def test_errors_of_a_pipeline_can_be_told_apart_by_kind() -> None:
    lost, unsent = PublishUnknown("e", "k", "lost"), NotPublished("e", "k", "unsent")
    group = PublishErrors("2 of 5 messages", [lost, unsent])
    unknown, rest = group.split(PublishUnknown)
    assert isinstance(unknown, PublishErrors)
    assert isinstance(rest, PublishErrors)
    assert (unknown.exceptions, rest.exceptions) == ((lost,), (unsent,))


def test_errors_of_a_pipeline_are_caught_like_one() -> None:
    group = PublishErrors("1 of 5 messages", [Unroutable("e", "k", "nowhere")])
    with pytest.raises(RedriveError):
        raise group
    with pytest.raises(
        ExceptionGroup, check=lambda caught: all(isinstance(e, PublishError) for e in caught.exceptions)
    ):
        raise group


def test_a_conflict_names_who_holds_the_queue_and_how_to_end_that() -> None:
    error = OperationConflict("q.dlq", "operation op_1 of ann")
    assert (error.queue, error.holder) == ("q.dlq", "operation op_1 of ann")
    assert str(error).startswith("queue q.dlq is held by operation op_1 of ann: wait until that is over")
    assert "`redrive ops cancel ID`" in str(error)


def test_a_missing_operation_is_named_with_the_way_to_those_there_are() -> None:
    error = OperationNotFound("op_1")
    assert error.operation == "op_1"
    assert str(error) == "there is no operation op_1: `redrive ops ls` shows those there are"


def test_a_missing_key_is_named_with_the_way_to_those_there_are() -> None:
    error = KeyNotFound("ci")
    assert error.key == "ci"
    assert str(error) == "there is no key ci: `redrive admin keys ls` shows those there are"


def test_a_look_that_would_do_harm_says_why_and_what_to_do() -> None:
    error = PeekUnsafe("q.dlq", "each look is one of the 20 deliveries it allows", "Set x-delivery-limit to -1")
    assert (error.queue, error.why, error.fix) == (
        "q.dlq",
        "each look is one of the 20 deliveries it allows",
        "Set x-delivery-limit to -1",
    )
    assert str(error) == (
        "queue q.dlq was not looked into, since that could lose its messages: "
        "each look is one of the 20 deliveries it allows. Set x-delivery-limit to -1"
    )


def test_an_audit_that_cannot_be_written_says_that_nothing_was_done() -> None:
    error = AuditUnavailable("the disk is full")
    assert error.why == "the disk is full"
    assert str(error) == "the audit cannot be written, so nothing was done: the disk is full"


@pytest.mark.parametrize(
    "error",
    [
        OperationConflict("q.dlq", "operation op_1"),
        OperationNotFound("op_1"),
        OperationOver("op_1", "SUCCEEDED"),
        LetterAmbiguous("q.dlq", "m-1", ["m-1-a", "m-1-b"], 3),
        KeyNotFound("ci"),
        PeekUnsafe("q.dlq", "why", "fix"),
        AuditUnavailable("the disk is full"),
        SearchError("unknown field", "errro:x", 0),
        NotFound(404, "NOT_FOUND - no queue 'q'", (50, 10)),
        RemoteProtocolError(ReplyCode.FRAME_ERROR, "a frame"),
        Unroutable("exchange", "key", "no queue"),
        TopologyMissing(["queue q"]),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: RedriveError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
