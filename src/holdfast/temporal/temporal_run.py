"""A run that the events of its history drive: what a live execution and a rebuilt one have in common.

The run's driver is that of the journal engine, and so is the meaning of signals, pause, cancel, children, and
compensations. Only its host differs. The journal engine writes a record and continues when it is durable. Here the
outcome is in Temporal's history before the run sees it, so every write is answered at once. The journal engine executes
a step itself. Here ``start_step`` schedules it, and the outcome comes back as a ``RunEvent``.

``apply_workflow_task`` applies the events of one workflow task, in the order that ``run_events`` defines. Nothing else
moves the run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from temporalio.api.common.v1 import Payload

from holdfast.codec import encode_inputs_by_name
from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.program_execution import ProgramExecution
from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.held_run import HeldRun
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.engine.program_run import ProgramRun
from holdfast.errors import ValueTooLarge
from holdfast.run_log import RunLog
from holdfast.stores.approvals import RequestApproval, WithdrawApproval, make_answer_name
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.claims import RunRequests
from holdfast.stores.contract import History
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    NewRun,
    Op,
    OpResult,
    OpStatus,
    ParkRun,
    Run,
    RunLink,
    SaveAttempt,
)
from holdfast.stores.run_errors import is_child_failure
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.approvals import check_memo_size
from holdfast.stores.temporal.awaited_run import AwaitedRun
from holdfast.stores.temporal.carried_records import RecordPacker, is_carried, unpack, unpack_signal_ids
from holdfast.stores.temporal.outcomes import get_dedup_id, get_signal_payload
from holdfast.stores.temporal.payloads import from_payload, get_max_value_size, load_json
from holdfast.stores.temporal.run_events import (
    CancelRequested,
    ChildEnded,
    ChildStarted,
    DelayElapsed,
    ProgramStopped,
    RunEvent,
    SignalReceived,
    StepEnded,
    TimerFired,
    UpdateReceived,
    split_stages,
)
from holdfast.stores.temporal.run_memo import EXTERNAL_PAYLOADS_KEY, budgets_from_memo, run_from_memo
from holdfast.telemetry.telemetry import Telemetry
from holdfast.temporal import start_limiter
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.linked_runs import LinkedRuns
from holdfast.temporal.run_environment import CallbackQueue, NullLiveEvents, TemporalPatches, WorkflowTaskClock
from holdfast.temporal.start_limiter import StartLimiter
from holdfast.temporal.steps_and_timers import TemporalStep, TemporalTimers

_CANCEL_REQUEST = RunRequests(0, is_cancel_requested=True, is_pause_requested=False)
_PAUSE_REQUEST = RunRequests(0, is_cancel_requested=False, is_pause_requested=True)


class TemporalRun:
    """A run, as the host and the writer of its driver.

    Args:
        engine_context: the workflows and the settings of the engine.
        run_memo: the memo's entry about the run.
        args: the arguments of the execution.
        id: the run's id.
        execution_id: Temporal's run id.
        workflow: the name of the workflow.
        started_at: when the execution started.
    """

    worker_id = 0
    run_log = RunLog(is_encrypted=True)
    telemetry: Telemetry | None = None
    """Logs little, because the history says what happened. A live execution uses its engine's log."""
    execution_factory: Callable[..., Execution] = Execution
    program_execution_factory: Callable[..., ProgramExecution] = ProgramExecution

    def __init__(
        self,
        engine_context: EngineContext,
        run_memo: Mapping[str, Any],
        args: Sequence[Payload],
        *,
        id: str,
        execution_id: str,
        workflow: str,
        started_at: float,
    ) -> None:
        definition = engine_context.get_definition(workflow, run_memo.get("version", ""))
        run = build_run(definition, run_memo, args, id=id, execution_id=execution_id, started_at=started_at)
        self._budgets = budgets_from_memo(run_memo, id)
        self.clock = WorkflowTaskClock()
        self.live_events = NullLiveEvents()
        self.change_feed = ChangeFeed()
        self.callbacks = CallbackQueue()
        self.loop = cast(asyncio.AbstractEventLoop, self.callbacks)
        self.is_draining = False
        self.has_external_payloads = bool(run_memo.get(EXTERNAL_PAYLOADS_KEY))
        self.max_value = get_max_value_size(
            engine_context.settings.max_value, has_external_payloads=self.has_external_payloads
        )
        self.open_approvals: dict[str, RequestApproval] = {}
        chunks, self._records, self._signals = unpack(args)
        self.carried_records = RecordPacker(chunks)
        self.unconsumed_signals: dict[int, Signal] = {signal.id: signal for signal in self._signals}
        self._last_signal_id = len(self._signals)
        self.refused_positions: set[int] = set()
        """Positions of steps that were refused before an activity was scheduled."""
        self._answered_ids: set[str] = set()
        """Ids of answered approvals."""
        self.signal_dedup_ids: set[str] = unpack_signal_ids(args)
        self.linked_runs = LinkedRuns(self)
        self.activity_limiter = StartLimiter(start_limiter.MAX_ACTIVITIES)
        self._park_callback: AnswerCallback | None = None
        self._is_pause_requested = self._is_cancel_requested = False
        self._steps: dict[int, TemporalStep] = {}
        self.driver = self.create_driver(run, definition)

    def create_driver(self, run: Run, definition: WorkflowDefinition) -> Driver:
        """The driver of the run."""
        return Driver(self, run, definition)

    # Moving

    def start(self, at: float) -> None:
        """Replay the code over the carried records until it waits for something new."""
        self.clock.time = at
        self.driver.start(History(self._records, {}, self._signals))
        self._records = self._signals = []
        self.callbacks.drain()

    def apply_workflow_task(self, at: float, run_events: Sequence[RunEvent]) -> None:
        """Apply the sorted events of one workflow task."""
        self.clock.time = at
        for stage in split_stages(run_events):
            for run_event in stage:
                self._apply(run_event)
            self.callbacks.drain()

    def release(self) -> None:
        """Leave memory."""
        if self.driver.is_started:
            self.driver.execution.loop.bind_to_current_thread()
        self.driver.unload()

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call this when the current call has returned."""
        self.callbacks.call_soon(call, *args)

    def _apply(self, run_event: RunEvent) -> None:
        match run_event:
            case SignalReceived():
                self._apply_signal(run_event)
            case DelayElapsed():
                pass  # handled before the code begins
            case UpdateReceived():
                self.answer_update(run_event, self._apply_update(run_event))
            case CancelRequested():
                self._is_cancel_requested = True
                self.driver.handle_request(_CANCEL_REQUEST)
                self._unpark()
            case TimerFired():
                self._timers.on_fired(run_event.position)
            case StepEnded():
                self.activity_limiter.note_ended(run_event.position)
                if run_event.is_await:
                    self.linked_runs.on_await_ended(run_event)
                elif (step := self._steps.pop(run_event.position, None)) is not None:
                    step.on_ended(run_event)
            case ChildStarted():
                self.linked_runs.on_child_started(run_event)
            case ChildEnded():
                self.linked_runs.on_child_ended(run_event)
            case ProgramStopped():
                raise AssertionError("the run of a program is a `LiveProgram`")

    # The driver's host (see `engine.host.RunHost`)

    @property
    def writer(self) -> TemporalRun:
        """The run answers its driver's writes itself."""
        return self

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> TemporalStep:
        """Create a step that an activity executes."""
        step = self._steps[command.position] = TemporalStep(self, driver, command)
        return step

    def create_timers(self, driver: Driver) -> TemporalTimers:
        """Create the run's timers."""
        self._timers = TemporalTimers(self, driver)
        return self._timers

    def create_program(
        self, driver: Driver, execution: ProgramExecution, function: Callable[[], Any], *, is_async: bool
    ) -> ProgramRun:
        """Never called: the driver of a program is in its activity, with another host (``program_host``)."""
        raise AssertionError(f"{driver.run.workflow!r} is a program")

    def create_patches(self, history: History) -> Patches:
        """Create the run's patches."""
        return TemporalPatches(history.records, self.is_patched)

    def on_run_idle(self, held_run: HeldRun) -> None:
        """Does nothing: Temporal decides which executions stay in memory."""

    def on_run_busy(self, held_run: HeldRun) -> None:
        """Does nothing, for the same reason."""

    def on_run_closed(self, held_run: HeldRun, ended_run: Run | None) -> None:
        """Does nothing: ``finish`` ends the execution."""

    def on_released(self, answer: OpResult | BaseException) -> None:
        """Does nothing: Temporal assigns runs to workers."""

    def on_park_refused(self, held_run: HeldRun) -> None:
        """Continue the run, which can now process a cancel request."""
        if self._is_cancel_requested:
            self.driver.handle_request(_CANCEL_REQUEST)

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops running, perhaps in another thread than the last time."""
        if run_id is not None:
            self.driver.execution.loop.bind_to_current_thread()
            return
        self.linked_runs.cancel_stale_awaits()

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for this one."""
        self.linked_runs.start(new, link, on_answer)

    def wake(self) -> None:
        """Does nothing: only events of the history wake the run."""

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Perform an operation that the journal engine would write."""
        match op:
            case AppendRecord():
                if op.consumed_signal_id is not None:
                    self.unconsumed_signals.pop(op.consumed_signal_id, None)
                self.carried_records.add(op.record)
            case FinishRun():
                self.finish(op)
                return
            case ParkRun():
                if self._is_pause_requested:
                    self._park_callback = on_answer
                else:
                    self.call_soon(on_answer, OpStatus.REFUSED)
                return
            case RequestApproval():
                try:
                    check_memo_size(self.open_approvals.values(), op, self.max_value)
                except ValueTooLarge as error:
                    self.call_soon(on_answer, error)
                    return
                self.open_approvals[op.id] = op
                self.on_approvals_changed()
            case WithdrawApproval():
                if self.open_approvals.pop(op.id, None) is not None:
                    self.on_approvals_changed()
            case AwaitRun():
                self.linked_runs.wait_for(op.run_id, op.link, on_answer)
                return
            case CancelRun():
                self.linked_runs.cancel(op.run_id)
            case SaveAttempt():
                pass
            case _:
                raise NotImplementedError(type(op).__name__)
        self.call_soon(on_answer, OpStatus.DONE)

    def summarize_record(self, record: Record, consumed: int | None) -> list[Any]:
        """A record as a reference to the history, with details that the history does not have (see ``journals``)."""
        entry: list[Any] = [int(record.kind), record.position, record.name, record.at, consumed]
        extra: dict[str, str] = {}
        is_refused = not record.ok and record.position in self.refused_positions
        if record.kind in (RecordKind.CHILD, RecordKind.START):
            extra["run"] = record.preview
            is_refused = not record.ok and not is_child_failure(record.payload)
        if is_refused:
            extra["error"] = (record.payload or b"null").decode()
        return [*entry, extra] if extra else entry

    # Signals

    def _apply_signal(self, event: SignalReceived) -> None:
        if event.name == identifiers.PAUSE_SIGNAL:
            self._is_pause_requested = True
            self.driver.handle_request(_PAUSE_REQUEST)
        elif event.name == identifiers.RESUME_SIGNAL:
            self._is_pause_requested = False
            self._unpark()
        elif event.name == identifiers.ANSWER_SIGNAL:
            id = str(load_json(event.payloads[0]))
            approval = self.open_approvals.pop(id, None)
            if approval is not None:
                self._answered_ids.add(id)
                self.on_approvals_changed()
                self.add_signal(make_answer_name(id), from_payload(event.payloads[1]), event.at, approval.position)
        elif not (dedup_id := get_dedup_id(event)) or dedup_id not in self.signal_dedup_ids:
            self.signal_dedup_ids.update([dedup_id] if dedup_id else [])
            self.add_signal(event.name, get_signal_payload(event), event.at)

    def _apply_update(self, event: UpdateReceived) -> bool:
        """A step changes an approval of its run; false if it is too late."""
        id = str(load_json(event.payloads[0]))
        approval = self.open_approvals.get(id)
        if event.name == identifiers.WITHDRAW_UPDATE:
            if approval is not None:
                del self.open_approvals[id]
                self.on_approvals_changed()
            return id not in self._answered_ids
        if approval is not None:
            self.on_reminder(approval, *(load_json(value) for value in event.payloads[1:]))
        return approval is not None

    def add_signal(self, name: str, payload: bytes, at: float, position: int | None = None) -> None:
        """Add a signal to the mailbox of the run, or (with a position) of one of its commands."""
        self._last_signal_id += 1
        signal = Signal(self._last_signal_id, name, payload, at, position)
        if position is None:
            self.unconsumed_signals[signal.id] = signal
        self.driver.add_signals([signal])

    def _unpark(self) -> None:
        """Continue a paused run."""
        on_answer, self._park_callback = self._park_callback, None
        if on_answer is not None:
            self.call_soon(on_answer, OpStatus.REFUSED)

    # Effects: a live execution overrides these methods; a rebuilt run has no effects, and keeps them as they are

    def is_patched(self, name: str) -> bool:
        """Whether the run takes the new path of a patch."""
        raise NotImplementedError

    def start_step(self, step: TemporalStep) -> None:
        """Schedule an activity for a step."""

    def cancel_step(self, step: TemporalStep) -> None:
        """Cancel the activity of a step."""

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Set a timer that fires after ``delay`` seconds, with this summary."""

    def cancel_timer(self, position: int) -> None:
        """Cancel a timer."""

    def start_child_workflow(self, new: NewRun, position: int, *, is_awaited: bool) -> None:
        """Start a child workflow, on the task queue of its own workflow."""

    def cancel_child(self, run_id: str) -> None:
        """Cancel a child."""

    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """Schedule an activity that finds a run, or waits for its end."""

    def cancel_await(self, position: int) -> None:
        """Cancel such an activity."""

    def on_approvals_changed(self) -> None:
        """Publish the open approvals."""

    def on_reminder(self, approval: RequestApproval, reminders: int, assignee: str, expires_at: float | None) -> None:
        """Publish that people were reminded of an approval."""

    def answer_update(self, event: UpdateReceived, answer: Any) -> None:
        """Answer the update of a step, or of a program."""

    def finish(self, end: FinishRun) -> None:
        """End the execution."""


def build_run(
    definition: WorkflowDefinition,
    run_memo: Mapping[str, Any],
    args: Sequence[Payload],
    *,
    id: str,
    execution_id: str,
    started_at: float,
) -> Run:
    """A run's row, from the start of its execution."""
    return run_from_memo(
        run_memo,
        id=id,
        execution_id=execution_id,
        workflow=definition.name,
        inputs=_build_inputs(definition, [payload for payload in args if not is_carried(payload)]),
        started_at=started_at,
    )


def _build_inputs(definition: WorkflowDefinition, args: Sequence[Payload]) -> bytes:
    """A run's inputs. A workflow that was not started by Holdfast may have several arguments."""
    if len(args) == 1:
        data = from_payload(args[0])
        if data.lstrip()[:1] == b"{" or data[:1] == TAGGED_PREFIX:
            return data
    values = [json.loads(from_payload(payload)) for payload in args]
    return encode_inputs_by_name(definition.name, definition.inputs_codec.parameters, values, {})
