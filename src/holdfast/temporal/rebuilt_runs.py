"""Rebuilds runs from their histories, to find the commands of activities.

An activity receives only the position of its command. The arguments of a model call are the whole conversation so far:
sending them with each call would make the history grow with the square of the conversation. Normally the run is in
memory, and the command is found there (``engine_context``). If it is not, because the worker was restarted, the run was
evicted, or another worker received the activity, the run's code is replayed over its history, without any effects. Then
its open commands are the same as in the live run. The rebuilt run stays in memory for a while, so that the next
activity needs only the new events.
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
from holdfast.stores.temporal.payloads import load_json
from holdfast.stores.temporal.run_events import DelayElapsed, EventBatch, EventBatchReader, RunEvent
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.temporal_run import TemporalRun

MAX_REBUILT_RUNS = 50
"""The maximum number of rebuilt runs in memory."""


class RebuiltRun(TemporalRun):
    """A run that is replayed over its history, without effects."""

    def __init__(self, engine_context: EngineContext, started: HistoryEvent, id: str, execution_id: str) -> None:
        start = started.workflow_execution_started_event_attributes
        fields = start.memo.fields
        head: dict[str, Any] = load_json(fields[RUN_MEMO_KEY]) if RUN_MEMO_KEY in fields else {}
        super().__init__(
            engine_context,
            head,
            start.input.payloads,
            id=id,
            execution_id=execution_id,
            workflow=start.workflow_type.name,
            started_at=started.event_time.ToDatetime(UTC).timestamp(),  # in microseconds, like the SDK
        )
        self._patches: set[str] = set()
        is_delayed = bool(head.get("parent")) and not self._records
        self._starts_at: float = head.get("available_at", 0.0) if is_delayed else 0.0
        self._is_delayed: bool | None = None
        self._early_batches: list[Sequence[RunEvent]] = []
        self._is_started = False
        self._reader = EventBatchReader()
        self.last_read_event_id = 0
        self.last_applied_event_id = 0

    def apply_events(self, events: Sequence[HistoryEvent]) -> None:
        """Apply the next events of the history."""
        if events:
            self.last_read_event_id = events[-1].event_id
            self.apply_batches(list(self._reader.read(events)))

    def apply_batches(self, batches: Sequence[EventBatch]) -> None:
        """Apply the batches that are new."""
        self._patches.update(name for batch in batches for name in batch.patches)
        for batch in batches:
            if batch.completed_event_id > self.last_applied_event_id:
                self._apply_batch(batch)
                self.last_applied_event_id = batch.completed_event_id

    def _apply_batch(self, batch: EventBatch) -> None:
        if not self._is_started:
            # The first workflow task decides, by its time, whether to set a timer for the delay.
            self._is_delayed = self._starts_at > batch.at if self._is_delayed is None else self._is_delayed
            if self._is_delayed and not any(isinstance(event, DelayElapsed) for event in batch.events):
                self._early_batches.append(batch.events)
                return
            self._is_started = True
            self.start(batch.at)
            early, self._early_batches = self._early_batches, []
            for events in early:
                self.apply_workflow_task(batch.at, events)
        self.apply_workflow_task(batch.at, batch.events)

    def find_open_command(self, position: int) -> StartedCommand | None:
        """The command at this position, if it has no outcome yet."""
        command = self.driver.execution.open_commands.get(position) if self.driver.is_started else None
        return None if command is None else StartedCommand(command, self.driver.run, self._budgets)

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops running: whatever it logs, the live run has logged before."""
        super().set_turn(run_id)
        self.driver.execution.loop.is_retracing = True

    def is_patched(self, name: str) -> bool:
        """Whether the live run took the new path of a patch."""
        return name in self._patches


def trim_transient_events(events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """These events without a workflow task at their end that has not completed: the server may retry it."""
    last = len(events)
    while last and events[last - 1].event_type in _TRANSIENT_EVENTS:
        last -= 1
    return events[:last]


_TRANSIENT_EVENTS = (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)


EventReader = Callable[[str, str, int], Awaitable[Sequence[HistoryEvent]]]
"""Reads the events of an execution after a number, by run id and execution id."""


class RebuiltRuns:
    """The rebuilt runs of one engine."""

    def __init__(self, engine_context: EngineContext, read_events: EventReader) -> None:
        self._engine_context = engine_context
        self._read_events = read_events
        self._runs: OrderedDict[str, RebuiltRun] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self.history_read_count = 0
        """How often this has read a history, for tests, like the next one."""
        self.event_count = 0

    async def find_command(self, run_id: str, execution_id: str, position: int) -> StartedCommand:
        """The command at this position of a run. Raises ``HoldfastError`` if the code has no such command."""
        lock = self._locks.setdefault(execution_id, asyncio.Lock())
        async with lock:
            try:
                return await self._find_command(run_id, execution_id, position)
            finally:
                if not getattr(lock, "_waiters", None):
                    self._locks.pop(execution_id, None)

    async def _find_command(self, run_id: str, execution_id: str, position: int) -> StartedCommand:
        run = self._runs.get(execution_id)
        if run is not None and (command := run.find_open_command(position)) is not None:
            self._runs.move_to_end(execution_id)
            return command
        self.history_read_count += 1
        events = trim_transient_events(
            await self._read_events(run_id, execution_id, 0 if run is None else run.last_read_event_id)
        )
        self.event_count += len(events)
        run = await asyncio.to_thread(self._rebuild_run, run_id, execution_id, events)
        command = run.find_open_command(position)
        if command is None:
            error: HoldfastError | None = run.driver.execution.fatal_error
            raise error or StepFailed(
                f"run {run_id!r} has no open command at position {position + 1} by its history: its code has changed, "
                f"or what the step was for is over",
                "",
            )
        return command

    def _rebuild_run(self, run_id: str, execution_id: str, events: Sequence[HistoryEvent]) -> RebuiltRun:
        run = self._runs.pop(execution_id, None)
        if run is None:
            run = RebuiltRun(self._engine_context, events[0], run_id, execution_id)
        run.apply_events(events)
        self._runs[execution_id] = run
        while len(self._runs) > MAX_REBUILT_RUNS:
            self._runs.popitem(last=False)[1].release()
        return run

    def close(self) -> None:
        """Release all of them."""
        while self._runs:
            self._runs.popitem()[1].release()
