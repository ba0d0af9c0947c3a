"""A run brought back from its history, to find out what one of its commands is.

An activity is told no more than the position of its command: what a model is asked is all that was said before, and to
send that along with each call would make the history grow with the square of the conversation. Where the run itself is
in memory, as a rule, the command is found there (``engine_context``). Where it is not, because the worker was started
anew, the run was pushed out of its memory, or another worker was handed the activity, the run's code is taken through
its history up to where it is now, without anything being done; then its open commands are what they were. The run is
kept for a while, so that the next activity only needs what is new.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from holdfast.errors import HoldfastError, StepFailed
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.operations import FinishRun, NewRun
from holdfast.stores.temporal.payloads import load_json
from holdfast.stores.temporal.run_events import DelayElapsed, EventBatch, EventBatchReader, RunEvent, UpdateReceived
from holdfast.stores.temporal.run_memo import EXTERNAL_PAYLOADS_KEY, RUN_MEMO_KEY, budgets_from_memo, run_from_memo
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.inputs import build_inputs, split_arguments
from holdfast.temporal.steps_and_timers import TemporalStep
from holdfast.temporal.temporal_run import TemporalRun

MAX_REBUILT_RUNS = 50
"""How many recalled runs are kept in memory."""


class RebuiltRun(TemporalRun):
    """A run whose code goes where its history says, and begins nothing."""

    def __init__(self, engine_context: EngineContext, started: HistoryEvent, id: str, execution_id: str) -> None:
        told = started.workflow_execution_started_event_attributes
        fields = told.memo.fields
        head: dict[str, Any] = load_json(fields[RUN_MEMO_KEY]) if RUN_MEMO_KEY in fields else {}
        name = told.workflow_type.name
        definition = engine_context.get_definition(name, head.get("version", ""))
        given, brought = split_arguments(told.input.payloads)
        started_at = started.event_time.ToDatetime(UTC).timestamp()  # as the SDK tells it, in microseconds
        run = run_from_memo(
            head,
            id=id,
            execution_id=execution_id,
            workflow=name,
            inputs=build_inputs(definition, given),
            started_at=started_at,
        )
        super().__init__(
            run,
            definition,
            brought,
            engine_context.settings.max_value,
            external_payloads=bool(head.get(EXTERNAL_PAYLOADS_KEY)),
        )
        self._patches: set[str] = set()
        self._budgets = budgets_from_memo(head, id)
        is_delayed = bool(head.get("parent")) and not self._records
        self._starts_at: float = head.get("available_at", 0.0) if is_delayed else 0.0
        self._is_delayed: bool | None = None
        self._early_batches: list[Sequence[RunEvent]] = []
        self._is_started = False
        self._reader = EventBatchReader()
        self.last_read_event_id = 0
        """The last event that was read."""
        self.last_applied_event_id = 0
        """The event up to which the run has been told everything."""

    def apply_events(self, events: Sequence[HistoryEvent]) -> None:
        """Tell the run what these events of its history say, which come behind those that it was told before."""
        if events:
            self.last_read_event_id = events[-1].event_id
            self.apply_batches(list(self._reader.read(events)))

    def apply_batches(self, batches: Sequence[EventBatch]) -> None:
        """Tell the run what is new in its history."""
        self._patches.update(name for batch in batches for name in batch.patches)
        for batch in batches:
            if batch.completed_event_id > self.last_applied_event_id:
                self._apply_batch(batch)
                self.last_applied_event_id = batch.completed_event_id

    def _apply_batch(self, batch: EventBatch) -> None:
        happenings: Sequence[RunEvent] = batch.events
        if not self._is_started:
            # Whether a timer was set is decided by the first workflow task, and by its time.
            self._is_delayed = self._starts_at > batch.at if self._is_delayed is None else self._is_delayed
            if self._is_delayed and not any(isinstance(one, DelayElapsed) for one in happenings):
                self._early_batches.append(happenings)
                return
            self._is_started = True
            self.start(batch.at)
            early, self._early_batches = self._early_batches, []
            for one in early:
                self.apply_workflow_task(batch.at, one)
        self.apply_workflow_task(batch.at, happenings)

    def find_open_command(self, position: int) -> StartedCommand | None:
        """The command at this position, if it has no outcome yet."""
        command = self.driver.execution.open_commands.get(position) if hasattr(self.driver, "execution") else None
        return None if command is None else StartedCommand(command, self.driver.run, self._budgets)

    def release(self) -> None:
        """Leave memory."""
        if hasattr(self.driver, "execution"):
            self.driver.execution.loop.bind_to_current_thread()
        self.driver.unload()

    # Nothing is begun

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run: whatever it logs, it has logged before."""
        super().set_turn(run_id)
        self.driver.execution.loop.is_retracing = True

    def is_patched(self, name: str) -> bool:
        """Whether the run has taken the new way of a change."""
        return name in self._patches

    def start_step(self, step: TemporalStep) -> None:
        """Nothing."""

    def cancel_step(self, step: TemporalStep) -> None:
        """Nothing."""

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Nothing."""

    def cancel_timer(self, position: int) -> None:
        """Nothing."""

    def start_child_workflow(self, new: NewRun, position: int, *, is_awaited: bool) -> None:
        """Nothing."""

    def cancel_child(self, run_id: str) -> None:
        """Nothing."""

    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """Nothing."""

    def cancel_await(self, position: int) -> None:
        """Nothing."""

    def on_approvals_changed(self) -> None:
        """Nothing."""

    def on_reminder(self, approval: RequestApproval, reminders: int, assignee: str, expires_at: float | None) -> None:
        """Nothing."""

    def answer_update(self, event: UpdateReceived, is_accepted: bool) -> None:
        """Nothing."""

    def finish(self, end: FinishRun) -> None:
        """Nothing."""


def trim_transient_events(events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Those of these events that stay as they are: a workflow task that has begun may be tried again in its place."""
    last = len(events)
    while last and events[last - 1].event_type in _TRANSIENT_EVENTS:
        last -= 1
    return events[:last]


_TRANSIENT_EVENTS = (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)


EventReader = Callable[[str, str, int], Awaitable[Sequence[HistoryEvent]]]
"""Reads the events of an execution after a number, by run id and execution id."""


class RebuiltRuns:
    """The runs of one engine that were brought back from their histories."""

    def __init__(self, engine_context: EngineContext, read_events: EventReader) -> None:
        self._site = engine_context
        self._read_events = read_events
        self._runs: OrderedDict[str, RebuiltRun] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self.history_read_count = 0
        """How often a history was read."""
        self.event_count = 0
        """How many events of it."""

    async def find_command(self, run_id: str, execution_id: str, position: int) -> StartedCommand:
        """The command at this position of a run. Raises an error of Holdfast's if the code knows no such command."""
        lock = self._locks.setdefault(execution_id, asyncio.Lock())
        async with lock:
            try:
                return await self._find_command(run_id, execution_id, position)
            finally:
                if not getattr(lock, "_waiters", None):
                    self._locks.pop(execution_id, None)

    async def _find_command(self, run_id: str, execution_id: str, position: int) -> StartedCommand:
        known = self._runs.get(execution_id)
        if known is not None and (found := known.find_open_command(position)) is not None:
            self._runs.move_to_end(execution_id)
            return found
        self.history_read_count += 1
        events = trim_transient_events(
            await self._read_events(run_id, execution_id, 0 if known is None else known.last_read_event_id)
        )
        self.event_count += len(events)
        recalled = await asyncio.to_thread(self._rebuild_run, run_id, execution_id, events)
        found = recalled.find_open_command(position)
        if found is None:
            fault: HoldfastError | None = recalled.driver.execution.fatal_error
            raise fault or StepFailed(
                f"run {run_id!r} has no open command at position {position + 1} by its history: its code has changed, "
                f"or what the step was for is over",
                "",
            )
        return found

    def _rebuild_run(self, run_id: str, execution_id: str, events: Sequence[HistoryEvent]) -> RebuiltRun:
        recalled = self._runs.pop(execution_id, None)
        if recalled is None:
            recalled = RebuiltRun(self._site, events[0], run_id, execution_id)
        recalled.apply_events(events)
        self._runs[execution_id] = recalled
        while len(self._runs) > MAX_REBUILT_RUNS:
            self._runs.popitem(last=False)[1].release()
        return recalled

    def close(self) -> None:
        """Let all of them leave memory."""
        while self._runs:
            self._runs.popitem()[1].release()
