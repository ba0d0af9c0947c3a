"""One run held by this worker: its journal is replayed, its commands are carried out, their outcomes recorded.

A driver is moved by callbacks alone, all on the process's loop: an outcome was committed, a timer is due, a signal
came. Each outcome goes the same way: ``journal`` hands it to the writer; when it is durable, ``recorded`` puts it
into the inbox; ``_pump`` takes one record from the inbox at a time, lets the workflow run until it is idle, and then
``_act``s on what the workflow asked for meanwhile. A replayed record differs only in that it is in the inbox from the
start.

Steps are begun by ``in_flight`` and carried out by ``step_run``, timers kept by ``timers``, other runs started and
awaited by ``child_runs``, people asked by ``run_approvals``. What was sent to the run, answers, and the ends of runs
that it waits for, lie in its ``mailbox``. Being asked to cancel, the driver records that, and the workflow's code is
interrupted by the record. Being asked to pause, it starts nothing more, and parks when what is in flight has been
recorded.

The driver ends in one of four ways, after each of which ``gone`` is true and nothing of the run is left in memory:
*finished* (the workflow ended), *parked* (it waits for time, signals and other runs only, or is paused), *released*
(this worker stops, the workflow was switched off, or the run's end could not be recorded) and *lost* (a write was
fenced: somebody else holds the run).

A write that is answered with an exception and not with a verdict was handed in several times (see ``journal_writer``).
For a record that means that it cannot be recorded, and the run fails. For the end of the run it means that nobody knows
what the store has: the run is given back, and whoever claims it goes on from what is recorded. Dropping it from memory
alone would leave it ``running`` under a worker that lives and does not work on it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.commands import UNREAD, Command
from holdfast.core.execution import Execution
from holdfast.core.patches import NOWHERE
from holdfast.core.records import Attempt, Kind, Record, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.engine.child_runs import Children
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.host import RunHost
from holdfast.engine.mailbox import Mailbox
from holdfast.engine.park_operation import park_of
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_approvals import Questions
from holdfast.engine.run_outcome import End, end_of
from holdfast.engine.steps_in_flight import StepsInFlight
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.contract import History, Request
from holdfast.stores.operations import Answer, Cancel, FinishRun, ReleaseRun, Run, Verdict
from holdfast.stores.rules import is_isolated

log = logging.getLogger("holdfast.engine")

REPLAY_SLICE = 500
"""How many records are replayed before the process's loop gets its turn (a few milliseconds)."""

PARK_AFTER = 1.0
"""A run that waits for less than this many seconds stays in memory."""

_TOLD = (Kind.STEP, Kind.COMPENSATION, Kind.CHILD)
"""Of what something is told while it is in flight."""


class Driver:
    """A held run."""

    def __init__(self, host: RunHost, run: Run, definition: WorkflowDefinition) -> None:
        self.host = host
        self.run = run
        self.definition = definition
        self.gone = False
        self.parking = False
        self.loading = False
        """Its code is still being imported."""
        self.execution: Execution
        self.steps = StepsInFlight(self)
        self._children = Children(self)
        self._questions = Questions(self)
        self.told: set[int] = set()
        """The positions of which there may be notices: their records delete them."""
        self._mailbox = Mailbox()
        self._inbox: deque[tuple[Record, Any]] = deque()
        self.journal = Recorder(self)
        self._timers = host.timers(self)
        self._to_start: list[Command] = []
        self._resuming = True
        self._resume_after = -1
        """``seq`` of the last record of what was due on resume."""
        self._last_recorded = -1
        """``seq`` of the last record that became durable here."""
        self._pumping = False
        self._mid_turn = False
        """The workflow has more to do than fits into one turn of the process's loop."""
        self._ending = False
        self._cancel_asked = run.cancel is Cancel.ASKED
        self._cancel_sent = run.cancel is Cancel.RECORDED
        self._pausing = False
        self.standing = False
        """Its workflow was switched off: nothing more is begun here."""
        self.is_isolated = is_isolated(run.suspicion)
        """Workers that held it died, and nothing new is recorded since."""
        self.has_fault = False
        """It cannot continue with this code, and the log says so."""
        self.wakes_at: float | None = None
        """When a parked run is to be taken up again."""

    # Coming into memory

    def begin(self, history: History) -> None:
        """Replay what is recorded, then go on."""
        run = self.run
        try:
            args, kwargs = self.definition.inputs.decode(run.inputs)
        except HoldfastError as error:
            self._finish(End(RunState.FAILED, None, encode_error(error)), heed_cancel=False)
            return
        self.execution = self.host.execution(
            run.id,
            partial(self.definition.execute, args, kwargs, self.host.max_value),
            workflow=run.workflow,
            start_time=run.began_at,
            seed=run.seed,
            recorded_python=run.python,
            rewound=run.rewound,
            patches=self.host.patches(history),
        )
        self.steps.known = dict(history.attempts)
        self._children.linked = dict(history.links)
        self.add_signals(history.signals)
        self._inbox.extend((record, UNREAD) for record in history.records)
        self.journal.next_seq = history.records[-1].seq + 1 if history.records else 0
        self._timers.deadline_sent = run.deadline is not None and any(r.kind is Kind.DEADLINE for r in history.records)
        if run.epoch == 1 and not history.records:
            self.execution.go_live()  # nobody has executed any of it before
        self.execution.start()
        self._pump()

    @property
    def is_begun(self) -> bool:
        """Whether the run's code is in memory."""
        return hasattr(self, "execution")

    # Turning

    def _pump(self) -> None:
        """Deliver what is in the inbox, record by record, and act on what the workflow asks for."""
        if self._pumping or self.gone:
            return
        try:
            self._turn_and_act()
        except Exception as error:  # a defect of ours: without this, the run would stand still in memory
            log.exception("run %r could not be carried on", self.run.id)
            self.fail(error)

    def _turn_and_act(self) -> None:
        self._pumping = True
        self.host.turning(self.run.id)
        try:
            idle = self._turn()
        finally:
            self._pumping = False
            self.host.turning(None)
        self._mid_turn = not idle
        self._record_patches()
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
            if not inbox and execution.loop.replaying:
                execution.go_live()
            if execution.is_undoing_held and self._begin_undoing():
                continue
            if not inbox:
                return True
            record, value = inbox.popleft()
            if execution.ending is not None:
                execution.leftover(record)
            else:
                execution.deliver(record, value)
        return False

    def _begin_undoing(self) -> bool:
        """Let the run undo what it has done, unless there is an outcome to come that must be undone first."""
        if not self.execution.loop.replaying:
            self._cancel_withdrawn()  # of those that are not on their way yet, nothing comes any more
            self.steps.record_kept_outcomes()
        upcoming = (record for record, _ in self._inbox)
        return self.execution.begin_undoing(upcoming, expected=self.journal.expected)

    def _record_patches(self) -> None:
        """Record what the code has decided, now: no record may come before it that rests on it."""
        execution = self.execution
        # In replay nothing else is recorded either; and code that does not fit leaves the journal as it is.
        if not execution.loop.replaying and execution.fault is None:
            for name in execution.patches.take_new():
                self.journal.record(Kind.PATCH, NOWHERE, name)

    def _act(self) -> None:
        """The workflow is idle: carry out what it asked for."""
        execution = self.execution
        self._cancel_withdrawn()
        self._log_stray_errors()
        if self._ending:
            return
        if execution.ending is not None:
            self._end()
            return
        self._to_start += execution.take_issued()
        if self._resuming and self.run.epoch > 1:  # whoever had the run before may have told something of these
            self.told |= {one.position for one in execution.open.values() if one.kind in _TOLD}
        if self._resuming and (self._heed_cancel() or (not self.is_halted and self._timers.record_due())):
            self._resume_after = self.journal.next_seq - 1
            return  # what is due comes before what was in flight, or a paid call starts only to be cancelled
        if self._last_recorded < self._resume_after:
            return  # not all of it is durable yet
        self._resuming = self._resuming and self.is_halted
        if not self.is_halted:
            self._answer_waits()
        self._start_commands()
        self._timers.set_alarm()
        self.rest()

    def _cancel_withdrawn(self) -> None:
        for command in self.execution.take_withdrawn():
            if (step := self.steps.begun.pop(command.position, None)) is not None:
                step.cancel()
            elif command.kind is Kind.CHILD:
                self._children.withdrawn(command)
            elif command.kind is Kind.APPROVAL:
                self._questions.withdrawn(command)

    def rest(self) -> None:
        """See whether there is anything left to do here for now."""
        if self.execution.is_undoing_held and not self.journal.expected:
            self._pump()
        elif self.execution.ending is not None:
            self._end()
        elif self.standing and self._is_still():
            self._give_back()
        elif self._pausing and self._is_still():
            self.park()
        elif self._is_idle():
            self.host.run_idle(self)

    def _start_commands(self) -> None:
        if self.host.draining or self.is_halted or not self.execution.patches.is_settled:
            return
        commands, self._to_start = self._to_start, []
        for command in commands:
            if command.position not in self.execution.open:
                continue
            if command.kind in (Kind.STEP, Kind.COMPENSATION):
                self.steps.start(command)
            elif command.kind in (Kind.CHILD, Kind.START):
                self._begin_child(command)
            elif command.kind is Kind.APPROVAL and not self._mailbox.has_answer(command):
                self._questions.ask(command)

    def _begin_child(self, command: Command) -> None:
        if command.kind is Kind.START or not self._mailbox.has_answer(command):
            self._children.begin(command)

    # Outcomes

    def note(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        """Keep what is known of a step in flight."""
        if not self.gone:
            self.journal.note(attempt, then)

    def recorded(self, record: Record, value: Any) -> None:
        """A record is durable: the workflow may see it."""
        if self.is_isolated:
            self.is_isolated = False
            self.host.nudge()  # the worker waited for this before it takes other runs
        self._last_recorded = record.seq
        self._inbox.append((record, value))
        self._pump()

    # What comes from outside

    def add_signals(self, signals: Sequence[Signal]) -> None:
        """Signals that are in the store for this run; those known already are passed over."""
        self._mailbox.add(signals)
        if self.takes_in:
            self._answer_waits()

    def ask(self, request: Request) -> None:
        """Somebody wants the run to be cancelled, or paused. Whatever is not heeded now is asked again."""
        if request.cancel:
            self._cancel_asked = True
            if self._is_live():
                self._heed_cancel()
        elif request.pause and self._is_here():
            self._pausing = True
            self.steps.put_back_waiting()
            if not self.execution.loop.replaying:  # else as soon as it is where it was
                self.rest()

    @property
    def takes_in(self) -> bool:
        """Whether what happens now is recorded now."""
        return self._is_live() and not self.is_halted

    @property
    def is_halted(self) -> bool:
        """Whether nothing more is to be begun here, for now."""
        return self._pausing or self.standing

    def _is_live(self) -> bool:
        """Whether the run goes on by what happens now, and not by what is recorded."""
        return self._is_here() and not self.execution.loop.replaying

    def _is_here(self) -> bool:
        """Whether the run's code is in memory, and neither ends nor leaves."""
        return self.is_begun and not (self.parking or self._ending or self.gone)

    def _heed_cancel(self) -> bool:
        """Record that the run is to be cancelled, if somebody has asked for it; true when that is new."""
        if not self._cancel_asked or self._cancel_sent:
            return False
        self._cancel_sent = True
        self._pausing = False
        self.journal.record(Kind.CANCEL, 0, "cancel")
        return True

    def _answer_waits(self) -> None:
        """Record what has come for the open waits."""
        for command, signal in self._mailbox.answers(self.execution):
            if command.kind is Kind.CHILD:
                self._children.ended(command, signal)
                continue
            if command.kind is Kind.APPROVAL:
                self._questions.answered(command, signal)
                continue
            self.journal.record(
                Kind.SIGNAL,
                command.position,
                command.name,
                payload=signal.payload,
                started_at=signal.sent_at,
                consume=signal.id,
            )

    # Leaving memory

    def _is_still(self) -> bool:
        """Whether nothing is under way."""
        return not (
            self.gone
            or self.parking
            or self._ending
            or self.steps.at_work
            or self.journal.on_its_way
            or self._inbox
            or self._pumping
            or self._mid_turn
        )

    def _is_idle(self) -> bool:
        """Whether the run waits for nothing but time, signals and other runs."""
        waits = self.execution.waits + len(self.steps.begun)  # of steps, for their next attempts
        return self._is_still() and not self._to_start and len(self.execution.open) == waits

    def is_parkable(self, now: float) -> bool:
        """Whether it is worth while to take the run out of memory."""
        due = self._next_due()
        return self._is_idle() and (due is None or due - now > PARK_AFTER)

    def _next_due(self) -> float | None:
        """When the run goes on by itself: the next timer, or the next attempt of a step."""
        due = self._timers.next_due()
        waiting = self.steps.waiting
        if not waiting:
            return due
        return waiting[0][0] if due is None else min(due, waiting[0][0])

    def put_back(self, command: Command) -> None:
        """Begin a step again that has no outcome: as soon as anything is begun here."""
        self._to_start.append(command)

    def park(self) -> None:
        """Leave memory until the next timer or signal, or the next end of another run; if paused, until resumed."""
        self.parking = True
        self.host.run_busy(self)
        self._timers.stop()
        self.host.telling.tell_now(self)
        op = park_of(
            self.run,
            list(self.execution.open.values()),
            self._timers.next_due(),
            self.steps.waiting,
            self.journal.next_seq,
            paused=self._pausing,
        )
        self.steps.put_back_waiting()
        self.host.writer.submit(op, partial(self._parked, None if self._pausing else op.wake_at))

    def _parked(self, wakes_at: float | None, answer: Answer | BaseException) -> None:
        if self.gone:
            return
        if answer is Verdict.DONE:
            self.wakes_at = wakes_at
            self._leave(None)
        elif answer is Verdict.REFUSED or isinstance(answer, BaseException):
            # There is something to do: what the run waits for has come, it was resumed, or it is to be cancelled. Or
            # the park could not be written: then it stays in memory. (If it was, the next write is fenced.)
            self.parking = self._pausing = False
            self._act()
            self.host.run_refused_park(self)
        else:
            self.lose()

    def _end(self) -> None:
        """The workflow's code has ended: record how, once what is on its way has arrived."""
        ending = self.execution.ending
        assert ending is not None
        if not self.journal.on_its_way and not self._ending:
            self.host.telling.tell_skipped(self)
            self._finish(end_of(ending, self.run.id), ending.rewind, heed_cancel=not self._cancel_sent)

    def fail(self, error: BaseException) -> None:
        """The run cannot go on with this code: its journal stays as it is."""
        if not self._ending and not self.gone:
            self.has_fault, encoded = True, encode_error(error)
            self.host.run_log.log_fault(self.run, encoded)
            self._finish(End(RunState.FAILED, None, encoded), heed_cancel=False)

    def die(self, error: bytes) -> None:
        """The run's workers died too often: nobody executes it until a person retries it."""
        if not self._ending and not self.gone:
            self._finish(End(RunState.DEAD, None, error), heed_cancel=False)

    def _finish(self, end: End, rewind: Rewind | None = None, *, heed_cancel: bool = True) -> None:
        self._ending = True
        self.steps.cancel()
        at = self.host.clock.now()
        ended = replace(self.run, **end._asdict(), finished_at=at, owner=None, rewind=rewind)
        op = FinishRun(self.run.key, self.run.epoch, *end, at, rewind, heed_cancel)
        self.host.run_busy(self)
        self.host.writer.submit(op, partial(self._finished, ended))

    def _finished(self, ended: Run, answer: Answer | BaseException) -> None:
        if self.gone:
            return
        if answer in (Verdict.DONE, Verdict.TOLD):
            self._leave(ended)
            if answer is Verdict.TOLD:
                self.host.nudge()
        elif answer is Verdict.REFUSED:
            # Somebody was told that the run will be cancelled: it must not be completed after that.
            self._ending = False
            self._cancel_asked = True
            self._heed_cancel()
        elif isinstance(answer, BaseException):
            unknown = StoreUnavailable(f"the end of run {self.run.id!r} could not be recorded: {answer!r}")
            log.error("%s; it is given back, and goes on from its journal", unknown)
            # It counts as a delivery, so that steps are not run again and again if this never works.
            self._give_back(encode_error(unknown))
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

    def stand_still(self) -> None:
        """The workflow was switched off: begin nothing more, and give the run back once what is in flight has ended."""
        if self.gone or self.standing:
            return
        self.standing = True
        self.steps.put_back_waiting()
        if not self.is_begun:
            self._give_back()
        elif not (self.parking or self._ending):
            self.rest()

    def go_on(self) -> None:
        """The workflow was switched on again, while something was in flight."""
        self.standing = False
        if self._is_live():
            self._act()

    def _give_back(self, error: bytes | None = None) -> None:
        self.host.writer.submit(ReleaseRun(self.run.key, self.run.epoch, error=error), self.host.given_back)
        self._leave(None)

    def abandon(self) -> None:
        """The event loop is gone: unwind the workflow's code, and touch nothing else."""
        self.gone = True
        if self.is_begun:
            self.execution.leave()

    def vanish(self) -> None:
        """As ``abandon``, where the loop is still there: nothing of the run goes on."""
        self._timers.stop()
        self.steps.cancel()
        self.abandon()

    @property
    def in_flight(self) -> int:
        """How many steps are running, outcomes are on their way to the store, and records wait to be seen."""
        return len(self.steps.begun) + self.journal.on_its_way + len(self._inbox) + self._mid_turn + self.loading

    def _leave(self, ended: Run | None) -> None:
        self.gone = True
        self._timers.stop()
        self.steps.cancel()
        if self.is_begun:
            self.execution.leave()
        self.host.run_over(self, ended)

    def _log_stray_errors(self) -> None:
        errors, self.execution.stray_errors = self.execution.stray_errors, []
        for context in errors:
            log.error("run %r: %s", self.run.id, context.get("message"), exc_info=context.get("exception"))
