"""A run that is fed with what its history tells: the part that is the same for a live execution and for a recalled one.

The run's driver is the journal engine's own, and so is what it means to be signalled, paused, cancelled, to wait for a
child or to undo a step. It only has another host. Where the journal engine writes a record and goes on when that is
durable, here the outcome is in Temporal's history before anybody hears of it: every write is answered at once. Where it
carries a step out, here somebody is asked to (``begin_step``), and the outcome comes back as a ``Happening``.

``tell`` takes all that one workflow task brings, in the order that ``happenings`` gives it. Nothing else moves the run.
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
from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.journal_writer import Done
from holdfast.errors import ValueTooLarge
from holdfast.run_log import RunLog
from holdfast.stores.approvals import AskApproval, WithdrawApproval, answer_name
from holdfast.stores.change_feed import News
from holdfast.stores.contract import History, Request
from holdfast.stores.operations import (
    Answer,
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    Link,
    NewRun,
    NoteAttempt,
    Op,
    ParkRun,
    Run,
    Verdict,
)
from holdfast.stores.rules import is_child_failure
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import Packing, seen_in, unpack
from holdfast.stores.temporal.payloads import data_of, largest, plain
from holdfast.stores.temporal.run_events import (
    CancelAsked,
    ChildEnded,
    ChildStarted,
    DelayOver,
    Happening,
    Signalled,
    StepEnded,
    TimerFired,
    Updated,
    in_stages,
)
from holdfast.temporal import start_limiter
from holdfast.temporal.approval_memo import check_room
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.linked_runs import Relatives
from holdfast.temporal.run_environment import FedClock, TemporalPatches, Turns, Untold
from holdfast.temporal.start_limiter import Pace
from holdfast.temporal.steps_and_timers import FedStep, FedTimers

_CANCEL = Request(0, cancel=True, pause=False)
_PAUSE = Request(0, cancel=False, pause=True)


class Feed(ABC):
    """A run that is fed. It is its driver's host, and its writer."""

    worker = 0
    run_log = RunLog(is_encrypted=True)
    """It says little: whoever reads a history is told there what has happened. A live execution has its engine's."""
    execution: Callable[..., Execution] = Execution

    def __init__(
        self,
        run: Run,
        definition: WorkflowDefinition,
        brought: Iterable[Payload],
        max_value: int,
        *,
        apart: bool,
    ) -> None:
        self.clock = FedClock()
        self.telling = Untold()
        self.news = News()
        self.turns = Turns()
        self.loop = cast(asyncio.AbstractEventLoop, self.turns)
        self.draining = False
        self.max_value = largest(max_value, apart=apart)
        self.apart = apart
        """Whether large payloads have a storage of their own."""
        self.questions: dict[str, AskApproval] = {}
        """What the run asks people now."""
        handed_on = list(brought)
        chunks, self._records, self._signals = unpack(handed_on)
        self.packing = Packing(chunks)
        self.unheard: dict[int, Signal] = {signal.id: signal for signal in self._signals}
        """Signals that no record has consumed yet."""
        self._last_signal = len(self._signals)
        self.refused: set[int] = set()
        """Positions of steps that were refused, without anybody having been asked to carry them out."""
        self._answered: set[str] = set()
        """Questions that were answered."""
        self.seen: set[str] = seen_in(handed_on)
        """Deduplication ids of signals that came."""
        self.relatives = Relatives(self)
        self.activities = Pace(start_limiter.MOST_ACTIVITIES)
        self._parked: Done | None = None
        self._pause_asked = self._cancel_asked = False
        self._steps: dict[int, FedStep] = {}
        self.driver = Driver(self, run, definition)

    # Moving

    def begin(self, at: float) -> None:
        """Let the code run, over what was brought along, until it waits for something new."""
        self.clock.time = at
        self.driver.begin(History(self._records, {}, self._signals))
        self._records = self._signals = []
        self.turns.drain()

    def tell(self, at: float, happenings: Sequence[Happening]) -> None:
        """All that one workflow task brings, in order."""
        self.clock.time = at
        for stage in in_stages(happenings):
            for happening in stage:
                self._take(happening)
            self.turns.drain()

    def later(self, call: Callable[..., object], *args: Any) -> None:
        """Call this when the present call has returned."""
        self.turns.call_soon(call, *args)

    def _take(self, happening: Happening) -> None:
        match happening:
            case Signalled():
                self._signalled(happening)
            case DelayOver():
                pass  # told before the code begins
            case Updated():
                self.updated(happening, self._update(happening))
            case CancelAsked():
                self._cancel_asked = True
                self.driver.ask(_CANCEL)
                self._unpark()
            case TimerFired():
                self._timers.fired(happening.position)
            case StepEnded():
                self.activities.over(happening.position)
                if happening.is_await:
                    self.relatives.awaited(happening)
                elif (step := self._steps.pop(happening.position, None)) is not None:
                    step.ended(happening)
            case ChildStarted():
                self.relatives.started(happening)
            case ChildEnded():
                self.relatives.ended(happening)

    # What a driver asks for (see `engine.host.RunHost`)

    @property
    def writer(self) -> Feed:
        """Where what happens goes to."""
        return self

    def step_run(self, driver: Driver, command: Command, known: Attempt | None) -> FedStep:
        """What lets a step be carried out."""
        step = self._steps[command.position] = FedStep(self, driver, command)
        return step

    def timers(self, driver: Driver) -> FedTimers:
        """What wakes the run when something is due."""
        self._timers = FedTimers(self, driver)
        return self._timers

    def patches(self, history: History) -> Patches:
        """What the run answers to code that asks which way to take."""
        return TemporalPatches(history.records, self.patched)

    def run_idle(self, driver: Driver) -> None:
        """Nothing: it is Temporal that takes executions out of memory."""
        return

    def run_busy(self, driver: Driver) -> None:
        """Nothing, either."""
        return

    def run_over(self, driver: Driver, run: Run | None) -> None:
        """Nothing: what ends is told by ``over``."""
        return

    def given_back(self, answer: Answer | BaseException) -> None:
        """Temporal gives its runs to workers by itself."""
        return

    def run_refused_park(self, driver: Driver) -> None:
        """It goes on; if it is to be cancelled, it can hear that now."""
        if self._cancel_asked:
            driver.ask(_CANCEL)

    def turning(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run, perhaps in another thread than the last time."""
        if run_id is not None:
            self.driver.execution.loop.adopt()
            return
        self.relatives.look()

    def start_child(self, new: NewRun, link: Link, done: Done) -> None:
        """Start a run for this one."""
        self.relatives.start(new, link, done)

    def nudge(self) -> None:
        """Nothing: all that there is to do comes by itself."""
        return

    def submit(self, op: Op, done: Done) -> None:
        """Carry out what the journal engine would write."""
        match op:
            case AppendRecord():
                if op.consume is not None:
                    self.unheard.pop(op.consume, None)
                self.packing.add(op.record)
            case FinishRun():
                self.over(op)
                return
            case ParkRun():
                if self._pause_asked:
                    self._parked = done
                else:
                    self.later(done, Verdict.REFUSED)
                return
            case AskApproval():
                try:
                    check_room(self.questions.values(), op, self.max_value)
                except ValueTooLarge as error:
                    self.later(done, error)
                    return
                self.questions[op.id] = op
                self.questions_changed()
            case WithdrawApproval():
                if self.questions.pop(op.id, None) is not None:
                    self.questions_changed()
            case AwaitRun():
                self.relatives.wait_for(op.run_id, op.link, done)
                return
            case CancelRun():
                self.relatives.cancel(op.run_id)
            case NoteAttempt():
                pass
            case _:
                raise NotImplementedError(type(op).__name__)
        self.later(done, Verdict.DONE)

    def in_short(self, record: Record, consumed: int | None) -> list[Any]:
        """What of the history a record is; with what the history does not tell."""
        entry: list[Any] = [int(record.kind), record.position, record.name, record.at, consumed]
        more: dict[str, str] = {}
        is_refused = not record.ok and record.position in self.refused
        if record.kind in (Kind.CHILD, Kind.START):
            more["run"] = record.preview
            is_refused = not record.ok and not is_child_failure(record.payload)
        if is_refused:
            more["error"] = (record.payload or b"null").decode()
        return [*entry, more] if more else entry

    # Signals

    def _signalled(self, told: Signalled) -> None:
        if told.name == identifiers.PAUSE:
            self._pause_asked = True
            self.driver.ask(_PAUSE)
        elif told.name == identifiers.RESUME:
            self._pause_asked = False
            self._unpark()
        elif told.name == identifiers.ANSWER:
            id = str(plain(told.values[0]))
            question = self.questions.pop(id, None)
            if question is not None:
                self._answered.add(id)
                self.questions_changed()
                self.put(answer_name(id), data_of(told.values[1]), told.at, question.position)
        else:
            dedup = str(plain(told.values[1])) if len(told.values) > 1 else ""
            if not dedup or dedup not in self.seen:
                self.seen.update([dedup] if dedup else [])
                self.put(told.name, data_of(told.values[0]) if told.values else b"null", told.at)

    def _update(self, told: Updated) -> bool:
        """A step changes a question of its run; false when that is too late."""
        id = str(plain(told.values[0]))
        question = self.questions.get(id)
        if told.name == identifiers.WITHDRAW:
            if question is not None:
                del self.questions[id]
                self.questions_changed()
            return id not in self._answered
        if question is not None:
            self.reminded(question, *(plain(value) for value in told.values[1:]))
        return question is not None

    def put(self, name: str, payload: bytes, at: float, position: int | None = None) -> None:
        """Something was sent to the run, or (with a position) to one of its commands."""
        self._last_signal += 1
        signal = Signal(self._last_signal, name, payload, at, position)
        if position is None:
            self.unheard[signal.id] = signal
        self.driver.add_signals([signal])

    def _unpark(self) -> None:
        """Let a paused run go on."""
        parked, self._parked = self._parked, None
        if parked is not None:
            self.later(parked, Verdict.REFUSED)

    # What is done about all that

    @abstractmethod
    def patched(self, name: str) -> bool:
        """Whether the run takes the new way of a change."""

    @abstractmethod
    def begin_step(self, step: FedStep) -> None:
        """Let a step be carried out."""

    @abstractmethod
    def cancel_step(self, step: FedStep) -> None:
        """Nobody wants its outcome any more."""

    @abstractmethod
    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Tell after ``delay`` seconds that a timer is due; ``summary`` is what is written on it."""

    @abstractmethod
    def cancel_timer(self, position: int) -> None:
        """Nobody waits for it any more."""

    @abstractmethod
    def begin_child(self, new: NewRun, position: int, *, awaited: bool) -> None:
        """Start a run."""

    @abstractmethod
    def cancel_child(self, run_id: str) -> None:
        """Ask for a run to be cancelled that this one has started."""

    @abstractmethod
    def begin_await(self, position: int, awaited: AwaitedRun) -> None:
        """Find a run, or wait for its end."""

    @abstractmethod
    def cancel_await(self, position: int) -> None:
        """Nobody waits for it any more."""

    @abstractmethod
    def questions_changed(self) -> None:
        """The run asks people something else than before."""

    @abstractmethod
    def reminded(self, question: AskApproval, reminders: int, asked_of: str, expires_at: float | None) -> None:
        """People are told of a question again."""

    @abstractmethod
    def updated(self, told: Updated, answer: bool) -> None:
        """Tell a step what came of the change that it has asked for."""

    @abstractmethod
    def over(self, end: FinishRun) -> None:
        """The run has ended."""
