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
from collections.abc import Sequence
from datetime import UTC
from typing import Any, Protocol

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from holdfast.errors import HoldfastError, StepFailed
from holdfast.stores.approvals import AskApproval
from holdfast.stores.operations import FinishRun, NewRun
from holdfast.stores.temporal.payloads import plain
from holdfast.stores.temporal.run_events import Batch, BatchReader, DelayOver, Happening, Updated
from holdfast.stores.temporal.run_memo import APART, HEAD, budgets_in, run_of
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.engine_context import Open, Site
from holdfast.temporal.inputs import inputs_of, split_arguments
from holdfast.temporal.steps_and_timers import FedStep
from holdfast.temporal.temporal_run import Feed

KEPT = 50
"""How many recalled runs are kept in memory."""


class RecalledRun(Feed):
    """A run whose code goes where its history says, and begins nothing."""

    def __init__(self, site: Site, started: HistoryEvent, id: str, execution: str) -> None:
        told = started.workflow_execution_started_event_attributes
        fields = told.memo.fields
        head: dict[str, Any] = plain(fields[HEAD]) if HEAD in fields else {}
        name = told.workflow_type.name
        definition = site.definition(name, head.get("version", ""))
        given, brought = split_arguments(told.input.payloads)
        started_at = started.event_time.ToDatetime(UTC).timestamp()  # as the SDK tells it, in microseconds
        run = run_of(
            head,
            id=id,
            execution=execution,
            workflow=name,
            inputs=inputs_of(definition, given),
            started_at=started_at,
        )
        super().__init__(run, definition, brought, site.settings.max_value, apart=bool(head.get(APART)))
        self._patches: set[str] = set()
        self._budgets = budgets_in(head, id)
        is_delayed = bool(head.get("parent")) and not self._records
        self._begins_at: float = head.get("available_at", 0.0) if is_delayed else 0.0
        self._is_delayed: bool | None = None
        self._early: list[Sequence[Happening]] = []
        self._begun = False
        self._reader = BatchReader()
        self.read = 0
        """The last event that was read."""
        self.heard = 0
        """The event up to which the run has been told everything."""

    def read_on(self, events: Sequence[HistoryEvent]) -> None:
        """Tell the run what these events of its history say, which come behind those that it was told before."""
        if events:
            self.read = events[-1].event_id
            self.go_on(list(self._reader.read(events)))

    def go_on(self, batches: Sequence[Batch]) -> None:
        """Tell the run what is new in its history."""
        self._patches.update(name for batch in batches for name in batch.patches)
        for batch in batches:
            if batch.completed > self.heard:
                self._go_on(batch)
                self.heard = batch.completed

    def _go_on(self, batch: Batch) -> None:
        happenings: Sequence[Happening] = batch.happenings
        if not self._begun:
            # Whether a timer was set is decided by the first workflow task, and by its time.
            self._is_delayed = self._begins_at > batch.at if self._is_delayed is None else self._is_delayed
            if self._is_delayed and not any(isinstance(one, DelayOver) for one in happenings):
                self._early.append(happenings)
                return
            self._begun = True
            self.begin(batch.at)
            early, self._early = self._early, []
            for one in early:
                self.tell(batch.at, one)
        self.tell(batch.at, happenings)

    def open_at(self, position: int) -> Open | None:
        """The command at this position, if it has no outcome yet."""
        command = self.driver.execution.open.get(position) if hasattr(self.driver, "execution") else None
        return None if command is None else Open(command, self.driver.run, self._budgets)

    def forget(self) -> None:
        """Leave memory."""
        if hasattr(self.driver, "execution"):
            self.driver.execution.loop.adopt()
        self.driver.release()

    # Nothing is begun

    def turning(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run: whatever it logs, it has logged before."""
        super().turning(run_id)
        self.driver.execution.loop.retracing = True

    def patched(self, name: str) -> bool:
        """Whether the run has taken the new way of a change."""
        return name in self._patches

    def begin_step(self, step: FedStep) -> None:
        """Nothing."""

    def cancel_step(self, step: FedStep) -> None:
        """Nothing."""

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Nothing."""

    def cancel_timer(self, position: int) -> None:
        """Nothing."""

    def begin_child(self, new: NewRun, position: int, *, awaited: bool) -> None:
        """Nothing."""

    def cancel_child(self, run_id: str) -> None:
        """Nothing."""

    def begin_await(self, position: int, awaited: AwaitedRun) -> None:
        """Nothing."""

    def cancel_await(self, position: int) -> None:
        """Nothing."""

    def questions_changed(self) -> None:
        """Nothing."""

    def reminded(self, question: AskApproval, reminders: int, asked_of: str, expires_at: float | None) -> None:
        """Nothing."""

    def updated(self, told: Updated, answer: bool) -> None:
        """Nothing."""

    def over(self, end: FinishRun) -> None:
        """Nothing."""


def written(events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Those of these events that stay as they are: a workflow task that has begun may be tried again in its place."""
    last = len(events)
    while last and events[last - 1].event_type in _PASSING:
        last -= 1
    return events[:last]


_PASSING = (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)


class Histories(Protocol):
    """Who can read histories."""

    async def events(self, run_id: str, execution: str, after: int) -> Sequence[HistoryEvent]:
        """The events of one execution so far, behind this number."""
        ...


class Recall:
    """The runs of one engine that were brought back from their histories."""

    def __init__(self, site: Site, histories: Histories) -> None:
        self._site = site
        self._histories = histories
        self._kept: OrderedDict[str, RecalledRun] = OrderedDict()
        self._busy: dict[str, asyncio.Lock] = {}
        self.count = 0
        """How often a history was read."""
        self.events = 0
        """How many events of it."""

    async def find(self, run_id: str, execution: str, position: int) -> Open:
        """The command at this position of a run. Raises an error of Holdfast's if the code knows no such command."""
        lock = self._busy.setdefault(execution, asyncio.Lock())
        async with lock:
            try:
                return await self._find(run_id, execution, position)
            finally:
                if not getattr(lock, "_waiters", None):
                    self._busy.pop(execution, None)

    async def _find(self, run_id: str, execution: str, position: int) -> Open:
        known = self._kept.get(execution)
        if known is not None and (found := known.open_at(position)) is not None:
            self._kept.move_to_end(execution)
            return found
        self.count += 1
        events = written(await self._histories.events(run_id, execution, 0 if known is None else known.read))
        self.events += len(events)
        recalled = await asyncio.to_thread(self._go_on, run_id, execution, events)
        found = recalled.open_at(position)
        if found is None:
            fault: HoldfastError | None = recalled.driver.execution.fault
            raise fault or StepFailed(
                f"run {run_id!r} has no open command at position {position + 1} by its history: its code has changed, "
                f"or what the step was for is over",
                "",
            )
        return found

    def _go_on(self, run_id: str, execution: str, events: Sequence[HistoryEvent]) -> RecalledRun:
        recalled = self._kept.pop(execution, None)
        if recalled is None:
            recalled = RecalledRun(self._site, events[0], run_id, execution)
        recalled.read_on(events)
        self._kept[execution] = recalled
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)[1].forget()
        return recalled

    def close(self) -> None:
        """Let all of them leave memory."""
        while self._kept:
            self._kept.popitem()[1].forget()
