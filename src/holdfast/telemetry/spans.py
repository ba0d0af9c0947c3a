"""Makes spans with the OpenTelemetry SDK of the program. Imported only if the program has configured one.

The SDK's own ``start_span`` takes 20 µs, as long as Holdfast takes for a step. A span whose outcome is known needs none
of that: it is made as a ``ReadableSpan``, and goes to the program's span processors like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes, AttributeValue

from holdfast.installation import __version__
from holdfast.trace_context import RunTrace

SCOPE = "holdfast"

_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_OK = Status(StatusCode.UNSET)


class SpanMaker:
    """Makes spans, and hands them to the program's span processors."""

    def __init__(self, tracer: Any) -> None:
        self._processor = tracer.span_processor
        self._sampler = tracer.sampler
        self._resource = tracer.resource
        self._scope = InstrumentationScope(SCOPE, __version__)

    @classmethod
    def find(cls) -> SpanMaker | None:
        """For the program's tracer provider; ``None``: it has none, or one that is not of the SDK."""
        provider = get_tracer_provider()
        tracer = provider.get_tracer(SCOPE, __version__) if isinstance(provider, TracerProvider) else None
        return cls(tracer) if hasattr(tracer, "span_processor") else None  # it has none if the SDK is disabled

    def is_sampled(self, trace: RunTrace, name: str, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether the spans of a run are made: the same in every process with the same sampler."""
        parent = None
        if trace.parent is not None:
            flags = _SAMPLED if trace.parent.is_sampled else _NOT_SAMPLED
            parent = set_span_in_context(
                NonRecordingSpan(SpanContext(trace.trace_id, trace.parent.span_id, True, flags)), Context()
            )
        result = self._sampler.should_sample(parent, trace.trace_id, name, SpanKind.INTERNAL, attributes)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def make(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, AttributeValue],
        started_at: float,
        ended_at: float,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
        events: Sequence[Event] = (),
        links: Sequence[Link] = (),
    ) -> None:
        """Make a span that has ended; ``error`` says what went wrong."""
        start, end = int(started_at * 1e9), int(ended_at * 1e9)
        status = _OK if error is None else Status(StatusCode.ERROR, error)
        self._processor.on_end(
            ReadableSpan(
                name, context, parent, self._resource, attributes, events, links, kind, None, status,
                start, max(start, end), self._scope,
            )
        )  # fmt: skip


def make_span_context(trace_id: int, span_id: int, *, is_sampled: bool, is_remote: bool = False) -> SpanContext:
    """The context of a span with these ids."""
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED if is_sampled else _NOT_SAMPLED)


class StepSpan(Span):
    """The span of a step in flight, as the step's code sees it: ``trace.get_current_span()``."""

    __slots__ = ("_context", "attributes", "events", "links", "name", "started_at")

    def __init__(self, context: SpanContext, started_at: float) -> None:
        self._context = context
        self.started_at = started_at
        self.attributes: dict[str, AttributeValue] | None = None
        self.events: tuple[Event, ...] = ()
        self.links: tuple[Link, ...] = ()
        self.name = ""
        """What the step's code calls it."""

    def enter(self) -> Token[Context]:
        """Make it the current span, for the code that follows."""
        return attach(set_span_in_context(self))

    def leave(self, token: Token[Context]) -> None:
        """Undo ``enter``."""
        detach(token)

    def get_span_context(self) -> SpanContext:
        """Its ids."""
        return self._context

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes."""
        self.attributes = {**(self.attributes or {}), **attributes}

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Add an attribute."""
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        self.events = (*self.events, Event(name, attributes, timestamp))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """Add a link."""
        self.links = (*self.links, Link(context, attributes))

    def update_name(self, name: str) -> None:
        """Replace its name."""
        self.name = name

    def is_recording(self) -> bool:
        """Whether its trace is sampled."""
        return self._context.trace_flags.sampled

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Nothing: the outcome of the step decides."""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an event for an exception."""
        known = {"exception.type": type(exception).__qualname__, "exception.message": str(exception)}
        self.add_event("exception", {**known, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Nothing: the span ends when the outcome of its step is durable."""
