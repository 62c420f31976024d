"""One trace from the publish over every attempt to the end, by the conventions; and no trace of it where it is off."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from redrive.integrations.tracing import (
    HeaderGetter,
    Tracing,
    destination,
    extract,
    inject,
)
from unit.integrations.recorder import RecordedSpan, Recorder

TRACEPARENT = "traceparent"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Handled:
    queue: str = "q.orders"
    headers: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = "domain.events"
    routing_key: str = "orders.placed"
    message_id: str | None = "m-17"
    correlation_id: str | None = "c-4"
    attempt: int = 2
    body: bytes = b"{}"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def tracing(recorder: Recorder) -> Tracing:
    return Tracing(recorder)


def context_in(headers: Mapping[str, Any]) -> SpanContext:
    return trace.get_current_span(extract(headers)).get_span_context()


# The journey of a message ------------------------------------------------------------------------------


def test_publish_and_every_attempt_are_one_trace(tracing: Tracing, recorder: Recorder) -> None:
    headers: dict[str, Any] = {}
    with tracing.publish_span("domain.events", "orders.placed", headers):
        pass
    retried = dict(headers)
    with tracing.process_span(Handled(headers=headers)), tracing.publish_span("", "q.orders.retry", retried):
        pass
    with tracing.process_span(Handled(headers=retried)):
        pass

    publish, first, again, second = recorder.spans
    assert [span.name for span in recorder.spans] == [
        "publish domain.events",
        "process q.orders",
        "publish q.orders.retry",
        "process q.orders",
    ]
    assert {span.get_span_context().trace_id for span in recorder.spans} == {publish.get_span_context().trace_id}
    assert [parent_of(span) for span in (first, again, second)] == [
        publish.get_span_context().span_id,
        first.get_span_context().span_id,
        publish.get_span_context().span_id,
    ]
    assert all(span.ended for span in recorder.spans)


def parent_of(span: RecordedSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


# Publishing --------------------------------------------------------------------------------------------


def test_publishing_tells_where_to_by_the_conventions(tracing: Tracing, recorder: Recorder) -> None:
    with tracing.publish_span("domain.events", "orders.placed", {}, message_id="m", correlation_id="c"):
        pass

    [span] = recorder.spans
    assert span.kind is SpanKind.PRODUCER
    assert span.attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "domain.events:orders.placed",
        "messaging.rabbitmq.destination.routing_key": "orders.placed",
        "messaging.message.id": "m",
        "messaging.message.conversation_id": "c",
    }


def test_a_new_message_carries_the_context_of_its_publish(tracing: Tracing, recorder: Recorder) -> None:
    headers: dict[str, Any] = {"x": 1}
    with tracing.publish_span("e", "k", headers):
        pass

    assert headers == {"x": 1, TRACEPARENT: recorder.spans[0].traceparent}


def test_a_message_that_has_a_context_keeps_it_and_the_publish_links_to_it(
    tracing: Tracing, recorder: Recorder
) -> None:
    headers: dict[str, Any] = {TRACEPARENT: PARENT}
    with tracing.publish_span("", "q.orders", headers):
        pass

    [span] = recorder.spans
    assert headers == {TRACEPARENT: PARENT}
    assert (span.kind, span.parent) == (SpanKind.CLIENT, None)
    assert [link.context.span_id for link in span.links] == [0xB7AD6B7169203331]


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("direct_logs", "warning"), "direct_logs:warning"),
        (("logs", ""), "logs"),
        (("", "q.orders"), "q.orders"),
        (("", ""), "amq.default"),
        (("e", "k", "q"), "e:k:q"),
        (("", "q", "q"), "q"),
        (("e", "q", "q"), "e:q"),
        (("", "", "q"), "q"),
    ],
    ids=str,
)
def test_a_destination_is_named_by_the_conventions(parts: tuple[str, ...], name: str) -> None:
    assert destination(*parts) == name


# Processing --------------------------------------------------------------------------------------------


def test_processing_tells_what_and_where_by_the_conventions(tracing: Tracing, recorder: Recorder) -> None:
    with tracing.process_span(Handled(headers={TRACEPARENT: PARENT.encode()})):
        pass

    [span] = recorder.spans
    assert (span.name, span.kind, parent_of(span)) == ("process q.orders", SpanKind.CONSUMER, 0xB7AD6B7169203331)
    assert span.attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "domain.events:orders.placed:q.orders",
        "messaging.rabbitmq.destination.routing_key": "orders.placed",
        "messaging.message.id": "m-17",
        "messaging.message.conversation_id": "c-4",
        "messaging.message.body.size": 2,
        "redrive.attempt": 2,
    }


def test_what_is_unknown_is_not_told(tracing: Tracing, recorder: Recorder) -> None:
    with tracing.process_span(Handled(message_id=None, correlation_id=None, routing_key="")):
        pass

    assert not {"messaging.message.id", "messaging.message.conversation_id"} & recorder.spans[0].attributes.keys()
    assert "messaging.rabbitmq.destination.routing_key" not in recorder.spans[0].attributes


def test_a_message_without_a_context_begins_a_trace_even_inside_another(tracing: Tracing, recorder: Recorder) -> None:
    with tracing.publish_span("e", "k", {}), tracing.process_span(Handled()):
        pass

    assert recorder.spans[1].parent is None


def test_a_handler_that_fails_is_told_by_the_type_of_its_error(tracing: Tracing, recorder: Recorder) -> None:
    with pytest.raises(TimeoutError), tracing.process_span(Handled()):
        raise TimeoutError("no answer")

    [span] = recorder.spans
    assert span.attributes["error.type"] == "TimeoutError"
    assert (span.status, [type(error) for error in span.errors]) == (StatusCode.ERROR, [TimeoutError])


def test_an_error_of_a_library_is_told_with_its_module(tracing: Tracing, recorder: Recorder) -> None:
    class Refused(Exception): ...

    with pytest.raises(Refused), tracing.publish_span("e", "k", {}):
        raise Refused

    assert (
        recorder.spans[0]
        .attributes["error.type"]
        .endswith("test_tracing.test_an_error_of_a_library_is_told_with_its_module.<locals>.Refused")
    )


# Strangers' headers ------------------------------------------------------------------------------------

values = st.one_of(
    st.text(), st.binary(), st.integers(), st.none(), st.lists(st.text()), st.dictionaries(st.text(), st.text())
)
NAMES = [TRACEPARENT, "tracestate", "baggage"]


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(), values))
def test_whatever_the_headers_hold_a_message_is_processed(headers: dict[str, Any]) -> None:
    recorder = Recorder()
    with Tracing(recorder).process_span(Handled(headers=headers)) as span:
        assert span is recorder.spans[0]


def test_a_message_whose_properties_cannot_be_read_is_processed(tracing: Tracing, recorder: Recorder) -> None:
    class Unreadable:
        queue = "q.orders"

        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

    with tracing.process_span(Unreadable()):
        pass

    assert recorder.spans[0].attributes["messaging.destination.name"] == "q.orders"


def test_propagators_may_look_at_the_names_of_all_headers() -> None:
    assert HeaderGetter().keys({"a": 1, "b": b"2"}) == ["a", "b"]


def test_a_context_is_written_and_read_back(tracing: Tracing) -> None:
    headers: dict[str, Any] = {}
    with tracing.process_span(Handled()) as span:
        inject(headers)

    assert context_in(headers).span_id == span.get_span_context().span_id
    assert not context_in({}).is_valid


# Off ---------------------------------------------------------------------------------------------------


def test_without_an_sdk_it_is_off_and_leaves_no_trace() -> None:
    tracing = Tracing()
    headers: dict[str, Any] = {}

    with tracing.publish_span("e", "k", headers) as published, tracing.process_span(Handled()) as processed:
        pass

    assert headers == {}
    assert not any(span.is_recording() for span in (published, processed))
    assert not tracing.is_on


def test_when_it_is_off_nothing_of_a_message_is_looked_at() -> None:
    with Tracing().process_span(None):  # type: ignore[arg-type]
        pass


def test_when_it_is_off_all_spans_are_the_same_object() -> None:
    tracing = Tracing()

    assert tracing.process_span(Handled()) is tracing.publish_span("e", "k", {})


def test_tracing_introduces_itself(tracing: Tracing) -> None:
    assert (repr(tracing), repr(Tracing())) == ("<Tracing on>", "<Tracing off>")
