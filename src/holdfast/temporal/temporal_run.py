"""A run that is fed with what its history tells: the part that is the same for a live execution and for a recalled one.

The run's driver is the journal engine's own, and so is what it means to be signalled, paused, cancelled, to wait for a
child or to undo a step. It only has another host. Where the journal engine writes a record and goes on when that is
durable, here the outcome is in Temporal's history before anybody hears of it: every write is answered at once. Where it
carries a step out, here somebody is asked to (``start_step``), and the outcome comes back as a ``RunEvent``.

``apply_workflow_task`` takes all that one workflow task brings, in the order that ``run_events`` gives it. Nothing else
moves the run.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from temporalio.api.common.v1 import Payload

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.patches import Patches
from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.journal_writer import AnswerCallback
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
from holdfast.stores.temporal.carried_records import RecordPacker, unpack, unpack_signal_ids
from holdfast.stores.temporal.payloads import from_payload, get_max_value_size, load_json
from holdfast.stores.temporal.run_events import (
    CancelRequested,
    ChildEnded,
    ChildStarted,
    DelayElapsed,
    RunEvent,
    SignalReceived,
    StepEnded,
    TimerFired,
    UpdateReceived,
    split_stages,
)
from holdfast.temporal import start_limiter
from holdfast.temporal.approval_memo import check_memo_size
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.linked_runs import LinkedRuns
from holdfast.temporal.run_environment import CallbackQueue, NullLiveEvents, TemporalPatches, WorkflowTaskClock
from holdfast.temporal.start_limiter import StartLimiter
from holdfast.temporal.steps_and_timers import TemporalStep, TemporalTimers

_CANCEL_REQUEST = RunRequests(0, is_cancel_requested=True, is_pause_requested=False)
_PAUSE_REQUEST = RunRequests(0, is_cancel_requested=False, is_pause_requested=True)


class TemporalRun(ABC):
    """A run that is fed. It is its driver's host, and its writer."""

    worker_id = 0
    run_log = RunLog(is_encrypted=True)
    """It says little: whoever reads a history is told there what has happened. A live execution has its engine's."""
    execution_factory: Callable[..., Execution] = Execution

    def __init__(
        self,
        run: Run,
        definition: WorkflowDefinition,
        carried: Iterable[Payload],
        max_value: int,
        *,
        external_payloads: bool,
    ) -> None:
        self.clock = WorkflowTaskClock()
        self.live_events = NullLiveEvents()
        self.change_feed = ChangeFeed()
        self.callbacks = CallbackQueue()
        self.loop = cast(asyncio.AbstractEventLoop, self.callbacks)
        self.is_draining = False
        self.max_value = get_max_value_size(max_value, has_external_payloads=external_payloads)
        self.has_external_payloads = external_payloads
        """Whether large payloads have a storage of their own."""
        self.open_approvals: dict[str, RequestApproval] = {}
        """What the run asks people now."""
        handed_on = list(carried)
        chunks, self._records, self._signals = unpack(handed_on)
        self.carried_records = RecordPacker(chunks)
        self.unconsumed_signals: dict[int, Signal] = {signal.id: signal for signal in self._signals}
        """Signals that no record has consumed yet."""
        self._last_signal_id = len(self._signals)
        self.refused_positions: set[int] = set()
        """Positions of steps that were refused, without anybody having been asked to carry them out."""
        self._answered_ids: set[str] = set()
        """Questions that were answered."""
        self.signal_dedup_ids: set[str] = unpack_signal_ids(handed_on)
        """Deduplication ids of signals that came."""
        self.linked_runs = LinkedRuns(self)
        self.activity_limiter = StartLimiter(start_limiter.MAX_ACTIVITIES)
        self._park_callback: AnswerCallback | None = None
        self._is_pause_requested = self._is_cancel_requested = False
        self._steps: dict[int, TemporalStep] = {}
        self.driver = Driver(self, run, definition)

    # Moving

    def start(self, at: float) -> None:
        """Let the code run, over what was brought along, until it waits for something new."""
        self.clock.time = at
        self.driver.start(History(self._records, {}, self._signals))
        self._records = self._signals = []
        self.callbacks.drain()

    def apply_workflow_task(self, at: float, run_events: Sequence[RunEvent]) -> None:
        """All that one workflow task brings, in order."""
        self.clock.time = at
        for stage in split_stages(run_events):
            for happening in stage:
                self._apply(happening)
            self.callbacks.drain()

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call this when the present call has returned."""
        self.callbacks.call_soon(call, *args)

    def _apply(self, run_event: RunEvent) -> None:
        match run_event:
            case SignalReceived():
                self._apply_signal(run_event)
            case DelayElapsed():
                pass  # told before the code begins
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

    # What a driver asks for (see `engine.host.RunHost`)

    @property
    def writer(self) -> TemporalRun:
        """Where what happens goes to."""
        return self

    def create_step(self, driver: Driver, command: Command, earlier_attempt: Attempt | None) -> TemporalStep:
        """What lets a step be carried out."""
        step = self._steps[command.position] = TemporalStep(self, driver, command)
        return step

    def create_timers(self, driver: Driver) -> TemporalTimers:
        """What wakes the run when something is due."""
        self._timers = TemporalTimers(self, driver)
        return self._timers

    def create_patches(self, history: History) -> Patches:
        """What the run answers to code that asks which way to take."""
        return TemporalPatches(history.records, self.is_patched)

    def on_run_idle(self, driver: Driver) -> None:
        """Nothing: it is Temporal that takes executions out of memory."""
        return

    def on_run_busy(self, driver: Driver) -> None:
        """Nothing, either."""
        return

    def on_run_closed(self, driver: Driver, ended_run: Run | None) -> None:
        """Nothing: what ends is told by ``finish``."""
        return

    def on_released(self, answer: OpResult | BaseException) -> None:
        """Temporal gives its runs to workers by itself."""
        return

    def on_park_refused(self, driver: Driver) -> None:
        """It goes on; if it is to be cancelled, it can hear that now."""
        if self._is_cancel_requested:
            driver.handle_request(_CANCEL_REQUEST)

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run, perhaps in another thread than the last time."""
        if run_id is not None:
            self.driver.execution.loop.bind_to_current_thread()
            return
        self.linked_runs.cancel_stale_awaits()

    def start_child(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a run for this one."""
        self.linked_runs.start(new, link, on_answer)

    def wake(self) -> None:
        """Nothing: all that there is to do comes by itself."""
        return

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Carry out what the journal engine would write."""
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
        """What of the history a record is; with what the history does not tell."""
        entry: list[Any] = [int(record.kind), record.position, record.name, record.at, consumed]
        more: dict[str, str] = {}
        is_refused = not record.ok and record.position in self.refused_positions
        if record.kind in (RecordKind.CHILD, RecordKind.START):
            more["run"] = record.preview
            is_refused = not record.ok and not is_child_failure(record.payload)
        if is_refused:
            more["error"] = (record.payload or b"null").decode()
        return [*entry, more] if more else entry

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
            question = self.open_approvals.pop(id, None)
            if question is not None:
                self._answered_ids.add(id)
                self.on_approvals_changed()
                self.add_signal(make_answer_name(id), from_payload(event.payloads[1]), event.at, question.position)
        else:
            dedup = str(load_json(event.payloads[1])) if len(event.payloads) > 1 else ""
            if not dedup or dedup not in self.signal_dedup_ids:
                self.signal_dedup_ids.update([dedup] if dedup else [])
                self.add_signal(event.name, from_payload(event.payloads[0]) if event.payloads else b"null", event.at)

    def _apply_update(self, event: UpdateReceived) -> bool:
        """A step changes a question of its run; false when that is too late."""
        id = str(load_json(event.payloads[0]))
        question = self.open_approvals.get(id)
        if event.name == identifiers.WITHDRAW_UPDATE:
            if question is not None:
                del self.open_approvals[id]
                self.on_approvals_changed()
            return id not in self._answered_ids
        if question is not None:
            self.on_reminder(question, *(load_json(value) for value in event.payloads[1:]))
        return question is not None

    def add_signal(self, name: str, payload: bytes, at: float, position: int | None = None) -> None:
        """Something was sent to the run, or (with a position) to one of its commands."""
        self._last_signal_id += 1
        signal = Signal(self._last_signal_id, name, payload, at, position)
        if position is None:
            self.unconsumed_signals[signal.id] = signal
        self.driver.add_signals([signal])

    def _unpark(self) -> None:
        """Let a paused run go on."""
        parked, self._park_callback = self._park_callback, None
        if parked is not None:
            self.call_soon(parked, OpStatus.REFUSED)

    # What is done about all that

    @abstractmethod
    def is_patched(self, name: str) -> bool:
        """Whether the run takes the new way of a change."""

    @abstractmethod
    def start_step(self, step: TemporalStep) -> None:
        """Let a step be carried out."""

    @abstractmethod
    def cancel_step(self, step: TemporalStep) -> None:
        """Nobody wants its outcome any more."""

    @abstractmethod
    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Tell after ``delay`` seconds that a timer is due; ``summary`` is what is written on it."""

    @abstractmethod
    def cancel_timer(self, position: int) -> None:
        """Nobody waits for it any more."""

    @abstractmethod
    def start_child_workflow(self, new: NewRun, position: int, *, is_awaited: bool) -> None:
        """Start a run."""

    @abstractmethod
    def cancel_child(self, run_id: str) -> None:
        """Ask for a run to be cancelled that this one has started."""

    @abstractmethod
    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """Find a run, or wait for its end."""

    @abstractmethod
    def cancel_await(self, position: int) -> None:
        """Nobody waits for it any more."""

    @abstractmethod
    def on_approvals_changed(self) -> None:
        """The run asks people something else than before."""

    @abstractmethod
    def on_reminder(self, approval: RequestApproval, reminders: int, assignee: str, expires_at: float | None) -> None:
        """People are told of a question again."""

    @abstractmethod
    def answer_update(self, event: UpdateReceived, is_accepted: bool) -> None:
        """Tell a step what came of the change that it has asked for."""

    @abstractmethod
    def finish(self, end: FinishRun) -> None:
        """The run has ended."""
