"""Spans of runs and steps. Imported only if the program has configured the OpenTelemetry SDK: see ``spans``.

Attribute names follow the semantic conventions of OpenTelemetry for generative AI, and begin with ``holdfast`` where
these have none. Arguments, prompts, and outputs are attached only on request, and never from an encrypted store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanContext, SpanKind

from holdfast.admission.usage import NANO_PER_USD
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.processes.process_name import get_process_name
from holdfast.reports.recorded_reply import MODEL_CALL_STEP
from holdfast.run_log import RunLog
from holdfast.stores.operations import Run
from holdfast.telemetry.spans import Event, SpanMaker, StepSpan, make_span_context
from holdfast.trace_context import TraceContext, get_run_trace

if TYPE_CHECKING:
    from holdfast.engine.definitions import StepDefinition
    from holdfast.engine.step_outcome import StepOutcome

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""OpenTelemetry's variable: whether arguments, prompts, and outputs are attached to spans."""
MAX_CONTENT_CHARS = 10_000
"""Characters of a value that is attached to a span."""


@dataclass(frozen=True)
class Tracing:
    """Makes the spans of one engine."""

    spans: SpanMaker
    run_log: RunLog
    captures_content: bool

    @classmethod
    def find(cls, run_log: RunLog) -> Tracing | None:
        """With the program's tracer provider; ``None``: it has none."""
        spans = SpanMaker.find()
        if spans is None:
            return None
        captures = os.environ.get(CAPTURE_VARIABLE, "").lower() in ("true", "1")
        return cls(spans, run_log, captures and not run_log.is_encrypted)

    def open_run(self, run: Run, *, is_agent: bool) -> RunSpans:
        """The spans of a run that this process holds now."""
        return RunSpans(self, run, is_agent=is_agent)


class RunSpans:
    """The spans of one run, in a process that executes a part of it."""

    __slots__ = (
        *("_attributes", "_context", "_events", "_is_sampled"),
        *("_name", "_run", "_step_attributes", "_trace", "_tracing"),
    )

    def __init__(self, tracing: Tracing, run: Run, *, is_agent: bool) -> None:
        self._tracing = tracing
        self._run = run
        self._trace = get_run_trace(run.id, run.seed, run.trace_parent, len(run.rewind_points))
        operation, kind = ("invoke_agent", "agent") if is_agent else ("invoke_workflow", "workflow")
        self._name = f"{operation} {run.workflow}"
        self._attributes = {
            "gen_ai.operation.name": operation,
            f"gen_ai.{kind}.name": run.workflow,
            "holdfast.run.id": run.id,
        }
        self._step_attributes = {"holdfast.run.id": run.id, "holdfast.workflow": run.workflow}
        self._is_sampled = tracing.spans.is_sampled(self._trace, self._name, self._attributes)
        self._context = self._make_context(self._trace.span_id)
        self._events: list[Event] = []

    def _make_context(self, span_id: int, *, is_remote: bool = False) -> SpanContext:
        return make_span_context(self._trace.trace_id, span_id, is_sampled=self._is_sampled, is_remote=is_remote)

    @property
    def trace_parent(self) -> str:
        """The trace context for what the run starts."""
        return TraceContext(self._trace.trace_id, self._trace.span_id, self._is_sampled).to_trace_parent()

    # Steps

    def start_step(self, position: int, now: float) -> StepSpan:
        """The span of a step that is about to be executed here. Its id is the same in each attempt and process."""
        return StepSpan(self._make_context(self._trace.derive_span_id(position)), now)

    def end_step(self, span: StepSpan, step: StepDefinition, record: Record, outcome: StepOutcome) -> None:
        """The outcome of a step is durable."""
        if not self._is_sampled:
            return
        attributes: dict[str, Any] = {
            **self._step_attributes,
            "holdfast.step.name": record.name,
            "holdfast.step.position": record.position,
            "holdfast.step.attempts": record.attempts,
            "holdfast.worker.id": record.worker,
        }
        kind = SpanKind.INTERNAL
        if outcome.model or record.name == MODEL_CALL_STEP:
            name, kind = self._describe_model_call(attributes, outcome), SpanKind.CLIENT
        elif step.is_tool:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": record.name}
            name = f"execute_tool {record.name}"
        else:
            name = record.name
        if self._tracing.captures_content:
            attributes["holdfast.step.arguments"] = record.preview
            attributes["holdfast.step.output"] = _shorten(record.payload)
        error = None
        if not record.ok:
            attributes["error.type"], error = self._tracing.run_log.describe_error(record.payload or b"null")
        if span.attributes:
            attributes |= span.attributes
        self._tracing.spans.make(
            span.name or name, span.get_span_context(), self._context, attributes, span.started_at, record.at,
            kind=kind, error=error, events=span.events, links=span.links,
        )  # fmt: skip

    def _describe_model_call(self, attributes: dict[str, Any], outcome: StepOutcome) -> str:
        provider, _, model = outcome.model.rpartition(":")
        attributes["gen_ai.operation.name"] = "chat"
        if outcome.model:
            attributes["gen_ai.request.model"] = model
        if provider:
            attributes["gen_ai.provider.name"] = provider
        if (used := outcome.usage) is not None:
            attributes["gen_ai.usage.input_tokens"] = used.input_tokens
            attributes["gen_ai.usage.output_tokens"] = used.output_tokens
            if used.cached_tokens:
                attributes["gen_ai.usage.cache_read.input_tokens"] = used.cached_tokens
            if not used.unpriced:
                attributes["holdfast.cost_usd"] = used.nano_usd / NANO_PER_USD
        return f"chat {model}".rstrip()

    def end_approval(self, position: int, approval_id: str, requested_at: float, now: float) -> None:
        """A person has answered."""
        if self._is_sampled:
            context = self._make_context(self._trace.derive_span_id(position))
            attributes = {"holdfast.run.id": self._run.id, "holdfast.approval.id": approval_id}
            self._tracing.spans.make("approval", context, self._context, attributes, requested_at, now)

    def end_delivery(self, outcome: str, handed_over_at: float, now: float) -> None:
        """A listener has ended its work on the run."""
        if self._is_sampled:
            run = self._run
            context = self._make_context(self._trace.derive_span_id(-1 - run.epoch))
            attributes = {
                **self._step_attributes, "holdfast.delivery.number": run.epoch, "holdfast.delivery.outcome": outcome,
                "holdfast.worker.id": run.owner or 0,
            }  # fmt: skip
            self._tracing.spans.make(
                f"deliver {run.workflow}", context, self._context, attributes, handed_over_at, now,
                kind=SpanKind.PRODUCER, error=None if outcome == RunState.COMPLETED else outcome,
            )  # fmt: skip

    # The run

    def add_takeover(self, at: float, previous_worker: int, worker: int, record_count: int) -> None:
        """This worker continues the run of one that has died."""
        attributes = {
            "holdfast.worker.previous_id": previous_worker,
            "holdfast.worker.id": worker,
            "holdfast.worker.name": get_process_name(),
            "holdfast.replayed_records": record_count,
        }
        self._events.append(Event("holdfast.takeover", attributes, int(at * 1e9)))

    def end_run(self, run: Run) -> None:
        """The run has ended, and this is durable."""
        if not self._is_sampled:
            return
        attributes: dict[str, Any] = {
            **self._attributes, "holdfast.run.state": str(run.state), "holdfast.queue": run.queue,
            "holdfast.epoch": run.epoch,
        }  # fmt: skip
        error = None
        if run.state is not RunState.COMPLETED:
            attributes["error.type"], error = str(run.state), str(run.state)
            if run.error is not None:
                attributes["error.type"], error = self._tracing.run_log.describe_error(run.error)
        if self._tracing.captures_content:
            attributes["holdfast.run.inputs"] = _shorten(run.inputs)
            attributes["holdfast.run.output"] = _shorten(run.output)
        parent = self._trace.parent
        self._tracing.spans.make(
            self._name, self._context, None if parent is None else self._make_context(parent.span_id, is_remote=True),
            attributes, run.created_at, run.finished_at or run.created_at, error=error, events=self._events,
        )  # fmt: skip


def _shorten(payload: bytes | None) -> str:
    text = (payload or b"")[: 4 * MAX_CONTENT_CHARS].decode(errors="replace")
    return text if len(text) <= MAX_CONTENT_CHARS else f"{text[:MAX_CONTENT_CHARS]}…"
