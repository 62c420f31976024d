"""A tracer that remembers its spans: as much of an SDK as the tests need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags


class RecordedSpan(Span):
    def __init__(self, name: str, kind: SpanKind, context: SpanContext, parent: SpanContext | None) -> None:
        self.name = name
        self.kind = kind
        self.parent = parent
        self.attributes: dict[str, Any] = {}
        self.links: list[Link] = []
        self.errors: list[BaseException] = []
        self.status: StatusCode = StatusCode.UNSET
        self.ended = False
        self._context = context

    @property
    def traceparent(self) -> str:
        return f"00-{self._context.trace_id:032x}-{self._context.span_id:016x}-01"

    def end(self, *_: Any, **__: Any) -> None:
        self.ended = True

    def get_span_context(self) -> SpanContext:
        return self._context

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes.update(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_event(self, *_: Any, **__: Any) -> None: ...

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return not self.ended

    def set_status(self, status: Status | StatusCode, *_: Any, **__: Any) -> None:
        self.status = status.status_code if isinstance(status, Status) else status

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.errors.append(exception)


class Recorder(trace.TracerProvider, trace.Tracer):
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []
        self._numbers = count(1)

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        *_: Any,
        **__: Any,
    ) -> RecordedSpan:
        around = trace.get_current_span(context).get_span_context()
        parent = around if around.is_valid else None
        number = next(self._numbers)
        own = SpanContext(parent.trace_id if parent else number, number, False, TraceFlags(1))
        span = RecordedSpan(name, kind, own, parent)
        span.attributes.update(attributes or {})
        span.links.extend(links or ())
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(self, *arguments: Any, **options: Any) -> Iterator[RecordedSpan]:  # type: ignore[override]
        span = self.start_span(*arguments, **options)
        with trace.use_span(span, end_on_exit=True):
            yield span
