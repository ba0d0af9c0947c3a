"""One run held by this worker: its journal is replayed, its commands are carried out, their outcomes recorded.

A driver is moved by callbacks alone, all on the process's loop: an outcome was committed, a timer is due, a signal
came. Each outcome goes the same way: ``_record`` hands it to the writer; when it is durable, ``_recorded`` puts it
into the inbox; ``_pump`` takes one record from the inbox at a time, lets the workflow run until it is idle, and then
``_act``s on what the workflow asked for meanwhile. A replayed record differs only in that it is in the inbox from the
start.

The driver ends in one of four ways, after each of which ``gone`` is true and nothing of the run is left in memory:
*finished* (the workflow ended), *parked* (it waits for time or a signal only), *released* (this worker stops) and
*lost* (a write was fenced: somebody else holds the run).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from holdfast.codec import encode_error
from holdfast.core.execution import UNREAD, Command, Execution
from holdfast.core.loop import RunTimer
from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.core.states import Effect, RunState
from holdfast.engine.clock import Alarm, Clock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.steps import AroundStep, StepRun
from holdfast.engine.threads import Threads
from holdfast.engine.writer import Writer
from holdfast.errors import HoldfastError, StepOutcomeUnknown
from holdfast.stores.contract import Answer, AppendRecord, FinishRun, History, NoteAttempt, ParkRun, Run, Verdict

log = logging.getLogger("holdfast.engine")

REPLAY_SLICE = 500
"""How many records are replayed before the process's loop gets its turn (a few milliseconds)."""

PARK_AFTER = 1.0
"""A run that waits for less than this many seconds stays in memory."""


class Host(Protocol):
    """What a driver needs of the engine that holds it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    writer: Writer
    threads: Threads
    worker: int
    draining: bool
    execution: Callable[..., Execution]
    """What a run in memory is made of: the core's own class, or a testing kit's, which looks on."""
    around_step: AroundStep | None
    stragglers: set[asyncio.Task[Any]]
    """Steps that were cancelled and have not ended yet."""

    def run_idle(self, driver: Driver) -> None:
        """The run waits for nothing but time and signals."""

    def run_busy(self, driver: Driver) -> None:
        """The run does not, any more."""

    def run_over(self, driver: Driver, run: Run | None) -> None:
        """The driver is gone; ``run`` is the ended run, if it ended here."""

    def run_refused_park(self, driver: Driver) -> None:
        """A signal that the run waits for is in the store already."""

    def turning(self, run_id: str | None) -> None:
        """Workflow code of this run starts (or stops) to occupy the loop."""

    def holds_lease(self) -> bool:
        """Whether nobody else can hold this worker's runs yet, so that a step may begin."""
        ...


class Driver:
    """A held run."""

    def __init__(self, host: Host, run: Run, definition: WorkflowDefinition) -> None:
        self.host = host
        self.run = run
        self.definition = definition
        self.gone = False
        self.parking = False
        self.execution: Execution
        self._steps: dict[int, StepRun] = {}
        self._attempts: dict[int, Attempt] = {}
        self._signals: dict[str, deque[Signal]] = {}
        self._last_signal = 0
        self._inbox: deque[tuple[Record, Any]] = deque()
        self._next_seq = 0
        self._in_writer = 0
        self._to_start: list[Command] = []
        self._answered: set[int] = set()
        """Positions of signal waits for which a record is on its way."""
        self._resuming = True
        self._pumping = False
        self._mid_turn = False
        """The workflow has more to do than fits into one turn of the process's loop."""
        self._ending = False
        self._reset_deliveries = run.deliveries > 0
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self._deadline_sent = False
        self.parked_until: float | None = None

    # Coming into memory

    def begin(self, history: History) -> None:
        """Replay what is recorded, then go on."""
        run = self.run
        try:
            args, kwargs = self.definition.inputs.decode(run.inputs)
        except HoldfastError as error:
            self._finish(RunState.FAILED, None, encode_error(error))
            return
        self.execution = self.host.execution(
            run.id,
            partial(self.definition.function, *args, **kwargs),
            workflow=run.workflow,
            start_time=run.created_at,
            seed=run.seed,
            deadline=run.deadline,
            recorded_python=run.python,
        )
        self._attempts = dict(history.attempts)
        self.add_signals(history.signals)
        self._inbox.extend((record, UNREAD) for record in history.records)
        self._next_seq = history.records[-1].seq + 1 if history.records else 0
        self._deadline_sent = run.deadline is not None and any(r.kind is Kind.DEADLINE for r in history.records)
        if run.epoch == 1 and not history.records:
            self.execution.go_live()  # nobody has executed any of it before
        self.execution.start()
        self._pump()

    # Turning

    def _pump(self) -> None:
        """Deliver what is in the inbox, record by record, and act on what the workflow asks for."""
        if self._pumping or self.gone:
            return
        self._pumping = True
        self.host.turning(self.run.id)
        try:
            idle = self._turn()
        finally:
            self._pumping = False
            self.host.turning(None)
        self._mid_turn = not idle
        if not idle:
            self.host.loop.call_soon(self._pump)
        elif self.execution.fault is not None:
            self.fail(self.execution.fault)
        else:
            self._act()

    def _turn(self) -> bool:
        execution, inbox = self.execution, self._inbox
        for _ in range(REPLAY_SLICE):
            if not execution.turn():
                return False
            if execution.fault is not None:
                return True
            if not inbox:
                if execution.loop.replaying:
                    execution.go_live()
                return True
            record, value = inbox.popleft()
            if execution.ending is not None:
                execution.leftover(record)
            else:
                execution.deliver(record, value)
        return False

    def _act(self) -> None:
        """The workflow is idle: carry out what it asked for."""
        execution = self.execution
        for command in execution.take_withdrawn():
            if (step := self._steps.pop(command.position, None)) is not None:
                step.cancel()
        self._log_stray_errors()
        if self._ending:
            return
        if execution.ending is not None:
            self._end()
            return
        self._to_start += execution.take_issued()
        if self._resuming and self._fire_due():
            return  # what is due comes before what was in flight, or a paid call starts only to be cancelled
        self._resuming = False
        self._answer_waits()
        self._start_commands()
        self._set_alarm()
        if self._is_idle():
            self.host.run_idle(self)

    def _start_commands(self) -> None:
        if self.host.draining:
            return
        commands, self._to_start = self._to_start, []
        for command in commands:
            if command.kind is Kind.STEP and command.position in self.execution.open:
                self._start_step(command)

    def _start_step(self, command: Command) -> None:
        step = StepRun(self, command, self._attempts.pop(command.position, None))
        if step.call.step.effect is not Effect.ONCE:
            self._steps[command.position] = step
            step.launch()
        elif step.was_intended:
            self._record_unknown(command)
        else:
            self._steps[command.position] = step
            self._submit(
                NoteAttempt(self.run.key, self.run.epoch, step.note_intent()), partial(self._intent_noted, step)
            )

    def _intent_noted(self, step: StepRun) -> None:
        if not step.withdrawn:
            step.launch()

    def _record_unknown(self, command: Command) -> None:
        error = StepOutcomeUnknown(
            f"step {command.name!r} of run {self.run.id!r} was in flight when its worker died. Its effect is `once`, "
            f"so it is "
            f"not run again: it may or may not have happened. Check first, then act on what you find.",
            command.name,
        )
        self._record(Kind.STEP, command.position, command.name, ok=False, payload=encode_error(error), noted=True)

    # Outcomes

    def step_settled(
        self,
        step: StepRun,
        *,
        ok: bool,
        payload: bytes,
        value: Any,
        started_at: float,
        attempts: int,
        preview: str,
        noted: bool,
    ) -> None:
        """A step has its outcome: record it."""
        command = step.command
        if self.gone or self._steps.pop(command.position, None) is None:
            return
        self._record(
            Kind.STEP,
            command.position,
            command.name,
            ok=ok,
            payload=payload,
            value=value,
            started_at=started_at,
            attempts=attempts,
            preview=preview,
            noted=noted,
        )

    def note(self, attempt: Attempt) -> None:
        """Keep what is known of a step in flight."""
        if not self.gone:
            self._submit(NoteAttempt(self.run.key, self.run.epoch, attempt), None)

    def _record(
        self,
        kind: Kind,
        position: int,
        name: str,
        *,
        ok: bool = True,
        payload: bytes | None = None,
        value: Any = UNREAD,
        at: float | None = None,
        started_at: float | None = None,
        attempts: int = 1,
        preview: str = "",
        noted: bool = False,
        consume: int | None = None,
    ) -> None:
        now = self.host.clock.now()
        record = Record(
            self._next_seq,
            kind,
            position,
            name,
            ok,
            payload,
            now if at is None else at,
            now if started_at is None else started_at,
            attempts,
            self.host.worker,
            self.run.epoch,
            preview,
        )
        self._next_seq += 1
        reset, self._reset_deliveries = self._reset_deliveries, False
        self._submit(AppendRecord(self.run.key, record, consume, noted, reset), partial(self._recorded, record, value))

    def _recorded(self, record: Record, value: Any) -> None:
        self._inbox.append((record, value))
        self._pump()

    def _submit(self, op: AppendRecord | NoteAttempt, then: Any) -> None:
        self._in_writer += 1
        self.host.run_busy(self)
        self.host.writer.submit(op, partial(self._committed, then))

    def _committed(self, then: Any, answer: Answer | BaseException) -> None:
        self._in_writer -= 1
        if self.gone:
            return
        if isinstance(answer, BaseException):
            self.fail(answer)
        elif answer is not Verdict.DONE:
            self.lose()
        elif then is not None:
            then()
        elif self._is_idle():
            self.host.run_idle(self)

    # Timers

    def _set_alarm(self) -> None:
        when = self._next_due()
        if self._alarm is not None:
            if when == self._alarm_at:
                return
            self._alarm.cancel()
            self._alarm = None
        if when is not None:
            self._alarm_at = when
            self._alarm = self.host.clock.call_at(when, self._on_alarm)

    def _next_due(self) -> float | None:
        timer = self.execution.loop.next_timer()
        deadline = None if self._deadline_sent else self.run.deadline
        if timer is None:
            return deadline
        return timer.when() if deadline is None else min(deadline, timer.when())

    def _on_alarm(self) -> None:
        self._alarm = None
        if not self.gone and not self.parking and not self._ending:
            self._fire_due()
            self._set_alarm()

    def _fire_due(self) -> bool:
        """Record the timers that are due; true when there were any."""
        now = self.host.clock.now()
        due: Sequence[RunTimer] = self.execution.loop.take_due(now)
        for timer in due:
            self._record(Kind.TIMER, timer.position, timer.name, at=max(now, timer.when()))
        deadline = self.run.deadline
        if deadline is None or deadline > now or self._deadline_sent:
            return bool(due)
        self._deadline_sent = True
        self._record(Kind.DEADLINE, 0, "deadline", at=now)
        return True

    # Signals

    def add_signals(self, signals: Sequence[Signal]) -> None:
        """Signals that are in the store for this run; those known already are passed over."""
        for signal in signals:
            if signal.id > self._last_signal:
                self._last_signal = signal.id
                self._signals.setdefault(signal.name, deque()).append(signal)
        if (
            hasattr(self, "execution")
            and not self.execution.loop.replaying
            and not (self.parking or self._ending or self.gone)
        ):
            self._answer_waits()

    def _answer_waits(self) -> None:
        """Give each open wait, oldest first, the oldest signal of its name."""
        if not self._signals:
            return
        for command in list(self.execution.open.values()):
            if command.kind is not Kind.SIGNAL or command.position in self._answered:
                continue
            waiting = self._signals.get(command.name)
            if not waiting:
                continue
            signal = waiting.popleft()
            if not waiting:
                del self._signals[command.name]
            self._answered.add(command.position)
            self._record(
                Kind.SIGNAL,
                command.position,
                command.name,
                payload=signal.payload,
                started_at=signal.sent_at,
                consume=signal.id,
            )

    # Leaving memory

    def _is_idle(self) -> bool:
        """Whether the run waits for nothing but time and signals."""
        return not (
            self.gone
            or self.parking
            or self._ending
            or self._steps
            or self._in_writer
            or self._inbox
            or self._to_start
            or self._pumping
            or any(command.kind is not Kind.SIGNAL for command in self.execution.open.values())
        )

    def is_parkable(self, now: float) -> bool:
        """Whether it is worth while to take the run out of memory."""
        due = self._next_due()
        return self._is_idle() and (due is None or due - now > PARK_AFTER)

    def park(self) -> None:
        """Leave memory until the next timer or signal."""
        self.parking = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        names = [command.name for command in self.execution.open.values()]
        wake_at = self._next_due()
        waits_for = _waits_in_words(names, wake_at)
        op = ParkRun(self.run.key, self.run.epoch, wake_at, tuple(dict.fromkeys(names)), waits_for, self._next_seq)
        self.host.writer.submit(op, self._parked)

    def _parked(self, answer: Answer | BaseException) -> None:
        if self.gone:
            return
        if answer is Verdict.DONE:
            self.parked_until = self._next_due()
            self._leave(None)
        elif answer is Verdict.REFUSED:
            self.parking = False
            self._answer_waits()  # the engine may have heard of the signal while the park was on its way
            self._set_alarm()
            self.host.run_refused_park(self)
        else:
            self.lose()

    def _end(self) -> None:
        """The workflow's code has ended: record how."""
        ending = self.execution.ending
        assert ending is not None
        if ending.error is not None:
            self._finish(RunState.FAILED, None, encode_error(ending.error))
            return
        try:
            output, _ = self.definition.output.record(ending.value, f"the result of workflow {self.definition.name!r}")
        except HoldfastError as error:
            self._finish(RunState.FAILED, None, encode_error(error))
        else:
            self._finish(RunState.COMPLETED, output, None)

    def fail(self, error: BaseException) -> None:
        """The run cannot go on with this code: its journal stays as it is."""
        if not self._ending and not self.gone:
            log.error("run %r of workflow %r cannot go on: %s", self.run.id, self.run.workflow, type(error).__name__)
            self._finish(RunState.FAILED, None, encode_error(error))

    def _finish(self, state: RunState, output: bytes | None, error: bytes | None) -> None:
        self._ending = True
        self._cancel_steps()
        at = self.host.clock.now()
        ended = replace(self.run, state=state, output=output, error=error, finished_at=at, owner=None)
        op = FinishRun(self.run.key, self.run.epoch, state, output, error, at)
        self.host.run_busy(self)
        self.host.writer.submit(op, partial(self._finished, ended))

    def _finished(self, ended: Run, answer: Answer | BaseException) -> None:
        if self.gone:
            return
        if answer is Verdict.DONE:
            self._leave(ended)
        else:
            self.lose()

    def lose(self) -> None:
        """Somebody else holds the run: stop everything that is done for it here."""
        if not self.gone:
            log.warning("run %r is held by another worker now; this one stops working on it", self.run.id)
            self._leave(None)

    def release(self) -> None:
        """This worker stops: leave memory; the store gives the run to another."""
        if not self.gone:
            self._leave(None)

    def abandon(self) -> None:
        """The event loop is gone: unwind the workflow's code, and touch nothing else."""
        self.gone = True
        if hasattr(self, "execution"):
            self.execution.leave()

    def vanish(self) -> None:
        """As ``abandon``, where the loop is still there: nothing of the run goes on."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._cancel_steps()
        self.abandon()

    @property
    def in_flight(self) -> int:
        """How many steps are running, outcomes are on their way to the store, and records wait to be seen."""
        return len(self._steps) + self._in_writer + len(self._inbox) + self._mid_turn

    def _leave(self, ended: Run | None) -> None:
        self.gone = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._cancel_steps()
        if hasattr(self, "execution"):
            self.execution.leave()
        self.host.run_over(self, ended)

    def _cancel_steps(self) -> None:
        steps, self._steps = self._steps, {}
        for step in steps.values():
            step.cancel()

    def _log_stray_errors(self) -> None:
        errors, self.execution.stray_errors = self.execution.stray_errors, []
        for context in errors:
            log.error("run %r: %s", self.run.id, context.get("message"), exc_info=context.get("exception"))


def _waits_in_words(signals: Sequence[str], wake_at: float | None) -> str:
    words = [f"signal {name!r}" for name in dict.fromkeys(signals)]
    if wake_at is not None:
        words.append("a timer")
    return " or ".join(words)
