"""The W3C trace context of the code that starts a run, so that one trace covers the request and the run.

``opentelemetry`` is never imported here: code that has not imported it has no trace.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

TRACE_PARENT_HEADER = "traceparent"

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_ID_STEP = 0x9E3779B97F4A7C15
"""Odd, so that all ids of a run differ, and large, so that they look random."""


class TraceContext(NamedTuple):
    """A span that others may be below of, possibly in another process."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def to_trace_parent(self) -> str:
        """The value of a ``traceparent`` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"


def parse_trace_parent(text: str) -> TraceContext | None:
    """The context in a ``traceparent`` header; ``None``: it has none."""
    found = _TRACE_PARENT.fullmatch(text.strip())
    if found is None or text.startswith("ff"):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    return TraceContext(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED)) if trace_id and span_id else None


request_trace_parent: ContextVar[str] = ContextVar("holdfast_trace_parent", default="")
"""The ``traceparent`` of the HTTP request that the server is answering."""


def get_current_trace_parent() -> str:
    """The ``traceparent`` of the current span, or else of the request; ``""``: there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        parsed = parse_trace_parent(request_trace_parent.get())
        return "" if parsed is None else parsed.to_trace_parent()
    return TraceContext(context.trace_id, context.span_id, bool(context.trace_flags & _SAMPLED)).to_trace_parent()


class RunTrace(NamedTuple):
    """The place of a run in a trace, the same in every process that executes a part of the run."""

    trace_id: int
    span_id: int
    """The id of the run's own span. A retried run has another one."""
    parent: TraceContext | None
    """What started it."""

    def derive_span_id(self, position: int) -> int:
        """The id of the span of a command of the run, the same in each attempt and process."""
        return (self.span_id + (position + 1) * _ID_STEP) % (1 << 64) or 1


def get_run_trace(run_id: str, seed: bytes, trace_parent: str, retry_count: int) -> RunTrace:
    """The place of a run in the trace of what started it, or in one of its own."""
    parent = parse_trace_parent(trace_parent) if trace_parent else None
    identity = b"%b:%b" % (seed, run_id.encode(errors="replace"))
    trace_id = _derive(b"trace:" + identity, 16) if parent is None else parent.trace_id
    return RunTrace(trace_id, _derive(b"%d:%b" % (retry_count, identity), 8), parent)


def get_trace_parent_of_run(run_id: str, seed: bytes, trace_parent: str, retry_count: int) -> str:
    """The ``traceparent`` of a run's own span, for what works on the run elsewhere."""
    trace = get_run_trace(run_id, seed, trace_parent, retry_count)
    is_sampled = trace.parent is None or trace.parent.is_sampled
    return TraceContext(trace.trace_id, trace.span_id, is_sampled).to_trace_parent()


@contextmanager
def continuing_trace(trace_parent: str) -> Generator[None]:
    """The block belongs to this trace: spans that its code starts, and runs."""
    context = parse_trace_parent(trace_parent)
    trace = sys.modules.get("opentelemetry.trace")
    if context is None:
        yield
    elif trace is None:
        token = request_trace_parent.set(trace_parent)
        try:
            yield
        finally:
            request_trace_parent.reset(token)
    else:
        flags = trace.TraceFlags(_SAMPLED if context.is_sampled else 0)
        span = trace.NonRecordingSpan(trace.SpanContext(context.trace_id, context.span_id, True, flags))
        with trace.use_span(span):
            yield


def _derive(text: bytes, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest(), "big") or 1
