"""What an engine reports: its spans and metrics, if anybody wants them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import NANO_PER_USD
from holdfast.core.commands import Command
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.run_log import RunLog
from holdfast.stores.operations import Run
from holdfast.telemetry.metrics import METRICS, Metrics

if TYPE_CHECKING:
    from holdfast.engine.definitions import StepDefinition
    from holdfast.engine.step_outcome import StepOutcome
    from holdfast.telemetry.spans import StepSpan
    from holdfast.telemetry.tracing import RunSpans, Tracing

_is_page_served = False


def enable_metrics() -> Metrics:
    """Count from now on, in the engines that are opened later: the process has a page with its metrics."""
    global _is_page_served
    _is_page_served = True
    return METRICS


def _is_never_muted() -> bool:
    return False


class Telemetry(NamedTuple):
    """The spans and metrics of one engine."""

    tracing: Tracing | None
    metrics: Metrics | None

    @classmethod
    def find(cls, run_log: RunLog) -> Telemetry | None:
        """What the program has configured; ``None``: nothing."""
        tracing = metrics = None
        if "opentelemetry.sdk.trace" in sys.modules:
            from holdfast.telemetry.tracing import Tracing

            tracing = Tracing.find(run_log)
            run_log.has_traces = tracing is not None
        if "opentelemetry.sdk.metrics" in sys.modules:
            from holdfast.telemetry.otel_metrics import offer_metrics

            metrics = METRICS if offer_metrics(METRICS) else None
        if _is_page_served:
            metrics = METRICS
        return None if tracing is None and metrics is None else cls(tracing, metrics)

    def open_run(self, run: Run, records: Sequence[Record], *, is_agent: bool, now: float) -> RunTelemetry:
        """A run has come into the memory of this process, which holds it now."""
        opened = self.find_run(run, is_agent=is_agent)
        if (metrics := self.metrics) is not None:
            workflow = (run.workflow,)
            if run.epoch == 1:
                metrics.runs_started.add(workflow)
                metrics.queue_wait.observe(max(0.0, now - (run.wake_at or run.created_at)), (run.queue,))
            else:
                metrics.replays.add(workflow)
                metrics.replayed_records.add(workflow, len(records))
        return opened

    def find_run(self, run: Run, *, is_agent: bool = False) -> RunTelemetry:
        """A run of which a part happens in this process."""
        spans = None if self.tracing is None else self.tracing.open_run(run, is_agent=is_agent)
        return RunTelemetry(run, spans, self.metrics)


class RunTelemetry:
    """A run in the memory of this process."""

    __slots__ = ("is_muted", "metrics", "run", "spans")

    def __init__(self, run: Run, spans: RunSpans | None, metrics: Metrics | None) -> None:
        self.run = run
        self.spans = spans
        self.metrics = metrics
        self.is_muted: Callable[[], bool] = _is_never_muted
        """Whether what happens now is a replay."""

    @property
    def trace_parent(self) -> str:
        """The trace context for what the run starts."""
        return self.run.trace_parent if self.spans is None else self.spans.trace_parent

    def note_takeover(self, records: Sequence[Record], now: float) -> None:
        """The worker that held the run has died, and this one continues it."""
        if self.spans is not None:
            previous = records[-1].worker if records else self.run.starter or 0
            self.spans.add_takeover(now, previous, self.run.owner or 0, len(records))
        if self.metrics is not None:
            self.metrics.takeovers.add((self.run.workflow,))

    def start_step(self, step: StepDefinition, position: int, now: float) -> StepTelemetry:
        """A step is about to be executed; its span becomes the current one."""
        span = None if self.spans is None else self.spans.start_step(position, now)
        return StepTelemetry(self, step, span)

    def end_step(self, step: StepTelemetry, record: Record, outcome: StepOutcome) -> None:
        """The outcome of a step is durable."""
        if self.spans is not None and step.span is not None:
            self.spans.end_step(step.span, step.definition, record, outcome)
        metrics = self.metrics
        if metrics is None:
            return
        workflow = self.run.workflow
        metrics.steps.add((workflow, "completed" if record.ok else "failed"))
        metrics.step_duration.observe(max(0.0, record.at - record.started_at), (workflow,))
        used = outcome.usage
        if used is not None and used.calls:
            model = outcome.model or "unknown"
            metrics.model_calls.add((model,), used.calls)
            metrics.model_tokens.add((model, "input"), used.input_tokens)
            metrics.model_tokens.add((model, "output"), used.output_tokens)
            metrics.model_cost.add((model,), used.nano_usd / NANO_PER_USD)

    def end_approval(self, command: Command, now: float) -> None:
        """A person has answered the approval of a command."""
        if self.spans is not None and not self.is_muted():
            call = command.call
            self.spans.end_approval(command.position, call.id, call.requested_at, now)

    def end_delivery(self, outcome: str, handed_over_at: float, now: float) -> None:
        """A listener has ended its work on the run."""
        if self.spans is not None:
            self.spans.end_delivery(outcome, handed_over_at, now)
        if self.metrics is not None:
            self.metrics.deliveries.add((outcome,))

    def end_run(self, ended: Run) -> None:
        """The run has ended, and this is durable."""
        if self.spans is not None:
            self.spans.end_run(ended)
        if self.metrics is not None:
            self.metrics.runs_ended.add((ended.workflow, str(RunState(ended.state))))


class StepTelemetry:
    """A step in flight."""

    __slots__ = ("_run", "definition", "span")

    def __init__(self, run: RunTelemetry, definition: StepDefinition, span: StepSpan | None) -> None:
        self._run = run
        self.definition = definition
        self.span = span

    def enter(self) -> Any:
        """Make its span the current one, for the code that follows."""
        return None if self.span is None else self.span.enter()

    def leave(self, token: Any) -> None:
        """Undo ``enter``."""
        if self.span is not None:
            self.span.leave(token)

    def note_retry(self, attempt: int, delay_s: float, error: str) -> None:
        """An attempt has failed, and another one follows."""
        if self.span is not None:
            attributes = {"holdfast.attempt": attempt, "holdfast.retry_in_s": delay_s, "error.type": error}
            self.span.add_event("holdfast.retry", attributes)
        if self._run.metrics is not None:
            self._run.metrics.step_retries.add((self._run.run.workflow,))

    def end(self, record: Record, outcome: StepOutcome) -> None:
        """Its outcome is durable."""
        self._run.end_step(self, record, outcome)
