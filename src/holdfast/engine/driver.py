"""One run that this worker holds: its journal is replayed, its commands are executed, their outcomes are recorded.

Only callbacks move a driver, all on the process's loop: an outcome was committed, a timer is due, a signal arrived.
Each outcome takes the same path. ``recorder`` gives it to the writer. When it is durable, ``on_recorded`` puts it into
the inbox. ``_pump`` takes one record from the inbox at a time and lets the workflow run until it is idle, and then
``_process_commands`` handles what the workflow has issued. A replayed record differs only in that it is in the inbox
from the start.

``steps_in_flight`` starts steps and ``step_run`` executes them. ``timers`` keeps timers, and ``run_waits`` handles
signals, approvals, and other runs.

- **Resume.** When a run comes back into memory, a requested cancel and the timers that are due are recorded first. Only
  then do the steps start that were in flight: otherwise a paid call could start only to be cancelled.
- **Cancel.** The driver records the request, and that record cancels the workflow's code. Until it is recorded, the
  store refuses to park or finish the run, so a cancel that was accepted always takes effect.
- **Pause.** The driver starts nothing more and parks the run when what is in flight has been recorded.
- **Disable.** When the workflow is disabled, the driver starts nothing more, lets what is in flight end (it is paid
  for), and releases the run. A step that waits for its next attempt does not make it; its attempts so far are saved.

**Phases.** A driver is in one ``phase`` at a time. It goes from ``LOADING`` over ``REPLAYING`` and ``RESUMING`` to
``LIVE``. While the end of the run is being written it is ``ENDING``, and while its park is, ``PARKING``. The store may
refuse both: then it returns to the phase before. Every write of the run is answered in ``handle_answer``: it is done,
refused, fenced, or it failed.

The driver ends in one of four ways. After each, it is ``GONE``, and nothing of the run is left in memory: *finished*
(the workflow has ended, and no record is still on its way), *parked* (it waits only for time, signals, and other runs,
or is paused), *released* (this worker stops, the workflow was disabled, or the run's end could not be recorded), and
*lost* (a write was fenced: another worker holds the run).

A write is answered with an exception instead of a status when it cannot be recorded, usually after several tries (see
``journal_writer``). If it was a record, the run fails. If it was the end of the run, it is unknown what the store has:
the run is released, and the next worker continues from the journal. Dropping it from memory alone would leave it
``running`` under a live worker that does not work on it. The release counts as a delivery, so a run whose end can never
be written becomes ``dead`` instead of repeating its steps forever.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.commands import UNDECODED, Command
from holdfast.core.execution import Execution
from holdfast.core.patches import PATCH_POSITION
from holdfast.core.records import WAIT_KINDS, Record, RecordKind, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.host import RunHost, StartedStep
from holdfast.engine.park_operation import make_park_run
from holdfast.engine.phase import Phase, TurnState
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_outcome import RunOutcome, make_ended_run, make_run_outcome
from holdfast.engine.run_waits import RunWaits
from holdfast.engine.step_outcome import StepOutcome
from holdfast.engine.steps_in_flight import StepsInFlight
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.claims import RunRequests
from holdfast.stores.contract import History
from holdfast.stores.operations import CancelState, FinishRun, OpResult, OpStatus, ReleaseRun, Run
from holdfast.stores.worker_deaths import is_isolated

log = logging.getLogger("holdfast.engine")

REPLAY_BATCH_SIZE = 500
"""How many records are replayed before other tasks of the process get a turn (a few milliseconds)."""

PARK_AFTER_S = 1.0
"""A run that waits for less than this many seconds stays in memory."""

_LIVE_EVENT_KINDS = (RecordKind.STEP, RecordKind.COMPENSATION, RecordKind.CHILD)
"""The commands that have live events while they are in flight."""


# Reading a member of an enumeration takes 0.1 µs on Python 3.11.
_REPLAYING, _RESUMING, _LIVE, _GONE = Phase.REPLAYING, Phase.RESUMING, Phase.LIVE, Phase.GONE
_ENDING = Phase.ENDING
_IDLE, _RUNNING, _INTERRUPTED = TurnState.IDLE, TurnState.RUNNING, TurnState.INTERRUPTED
_STEP, _COMPENSATION, _DONE = RecordKind.STEP, RecordKind.COMPENSATION, OpStatus.DONE


class Driver:
    """A held run."""

    def __init__(self, host: RunHost, run: Run, definition: WorkflowDefinition) -> None:
        self.host = host
        self.run = run
        self.definition = definition
        self.phase = Phase.LOADING
        self._refused_phase = Phase.LOADING
        """The phase to which the driver returns if the store refuses to end or park the run."""
        self.execution: Execution
        self.steps = StepsInFlight(self)
        self._waits: RunWaits | None = None
        self._inbox: deque[Record] = deque()
        """Durable records that the workflow has not seen; in replay, the rest of the journal."""
        self._inbox_values: dict[int, Any] = {}
        """By ``seq``, the values of those that are decoded already."""
        self.recorder = Recorder(self)
        self._timers = host.create_timers(self)
        self._pending_commands: list[Command] = []
        self._resume_after_seq = -1
        """``seq`` of the last record of a cancel or timer that was due on resume."""
        self._last_durable_seq = -1
        """``seq`` of the last record that became durable here."""
        self._turn_state = _IDLE
        self._cancel_state = run.cancel_state
        self._is_pausing = False
        self.is_disabled = False
        """The workflow was disabled: this driver starts nothing more."""
        self.is_isolated = is_isolated(run.suspicion)
        """Workers that held the run died, and nothing was recorded since."""
        self.has_fatal_error = False
        """The run cannot continue with this code, and the log says so."""
        self.is_parked = False
        self.wake_at: float | None = None
        """When a parked run must be claimed again."""

    # Coming into memory

    def start(self, history: History) -> None:
        """Replay the journal, then continue."""
        run = self.run
        self.phase = _REPLAYING
        try:
            args, kwargs = self.definition.inputs_codec.decode(run.inputs)
        except HoldfastError as error:
            self._finish(RunOutcome(RunState.FAILED, None, encode_error(error)), respect_cancel=False)
            return
        self.execution = self.host.execution_factory(
            run.id,
            partial(self.definition.execute, args, kwargs, self.host.max_value),
            workflow=run.workflow,
            start_time=run.clock_started_at,
            seed=run.seed,
            recorded_python=run.python_version,
            rewind_points=run.rewind_points,
            patches=self.host.create_patches(history),
        )
        self.steps.earlier_attempts = dict(history.attempts)
        if history.links or history.signals:
            self._waits = RunWaits(self, history.links)
            self._waits.add_signals(history.signals)
        self._inbox.extend(history.records)
        self.recorder.next_seq = history.records[-1].seq + 1 if history.records else 0
        self._timers.is_deadline_recorded = run.deadline is not None and any(
            r.kind is RecordKind.DEADLINE for r in history.records
        )
        if run.epoch == 1 and not history.records:
            self._end_replay()  # no worker has executed any of it before
        self.execution.start()
        self._pump()

    def _end_replay(self) -> None:
        self.execution.go_live()
        self.phase = _RESUMING

    @property
    def is_closed(self) -> bool:
        """Whether the run is no longer in memory."""
        return self.phase is _GONE

    @property
    def is_started(self) -> bool:
        """Whether the run's code is in memory."""
        return hasattr(self, "execution")

    # Turning

    def _pump(self, record: Record | None = None, value: Any = UNDECODED) -> None:
        """Deliver this record, and those in the inbox, one by one, and process the workflow's commands."""
        if self._turn_state is _RUNNING or self.phase is _GONE:
            return
        execution, host = self.execution, self.host
        try:
            is_idle = True
            self._turn_state = _RUNNING
            host.set_turn(self.run.id)
            try:
                if record is not None:
                    execution.deliver(record, value)
                is_idle = self._advance()
            finally:
                self._turn_state = _IDLE if is_idle else _INTERRUPTED
                host.set_turn(None)
            if execution.patches.newly_decided:
                self._record_patches()
            if not is_idle:
                host.loop.call_soon(self._pump)
            elif execution.fatal_error is not None:
                self.fail(execution.fatal_error)
            else:
                self._process_commands()
        except Exception as error:  # a bug in Holdfast: without this, the run would be stuck in memory
            log.exception("run %r could not be carried on", self.run.id)
            self.fail(error)

    def _advance(self) -> bool:
        execution, inbox = self.execution, self._inbox
        if self.phase is _REPLAYING and not execution.replay(inbox, REPLAY_BATCH_SIZE):
            return False
        for _ in range(REPLAY_BATCH_SIZE):
            if not execution.turn():
                return False
            if execution.fatal_error is not None:
                return True
            if not inbox and self.phase is _REPLAYING:
                self._end_replay()
            if execution.is_compensation_held and self._start_compensation():
                continue
            if not inbox:
                return True
            if execution.result is not None:
                execution.deliver_after_end(inbox.popleft())
            else:
                record = inbox.popleft()
                execution.deliver(record, self._inbox_values.pop(record.seq, UNDECODED))
        return False

    def _start_compensation(self) -> bool:
        """Let the run compensate its steps, unless an outcome may still come that must be compensated first."""
        if self.phase is not _REPLAYING:
            self._cancel_withdrawn()  # cancelled steps that have no outcome yet will not get one
            self.steps.record_committed_outcomes()
        return self.execution.try_start_compensation(self._inbox, expected_positions=self.recorder.expected_positions)

    def _record_patches(self) -> None:
        """Record what the code has decided, before any record that depends on it."""
        execution = self.execution
        # Replay records nothing, and code that does not fit leaves the journal as it is.
        if self.phase is not _REPLAYING and execution.fatal_error is None:
            for name in execution.patches.take_newly_decided():
                self.recorder.record(RecordKind.PATCH, PATCH_POSITION, name)

    def _process_commands(self) -> None:
        """The workflow is idle: execute its new commands."""
        execution = self.execution
        if execution.withdrawn_commands:
            self._cancel_withdrawn()
        if execution.unhandled_errors:
            self._log_unhandled_errors()
        if self.phase is _ENDING:
            return
        if execution.result is not None:
            self._record_end()
            return
        self._pending_commands += execution.take_issued()
        if self.phase is _RESUMING and self._record_what_is_due():
            self._resume_after_seq = self.recorder.next_seq - 1
            return  # what is due comes before what was in flight, or a paid call starts only to be cancelled
        if self._last_durable_seq < self._resume_after_seq:
            return  # not all of these records are durable yet
        if not self.is_halted:
            if self.phase is _RESUMING:
                self.phase = _LIVE
            if self._waits is not None:
                self._waits.record_answers()
            self._start_commands()
        self._timers.arm()
        self.finish_turn()

    def _record_what_is_due(self) -> bool:
        """On resume, record a requested cancel and the timers that are due; true if there were any."""
        if self.run.epoch > 1:  # an earlier holder may have written live events of these
            self.recorder.live_event_positions |= {
                position for position, one in self.execution.open_commands.items() if one.kind.has_live_events
            }
        return self._record_cancel() or (not self.is_halted and self._timers.record_due())

    def _cancel_withdrawn(self) -> None:
        for command in self.execution.take_withdrawn():
            if (step := self.steps.started.pop(command.position, None)) is not None:
                step.cancel()
            elif command.kind in WAIT_KINDS:
                self._get_waits().withdraw(command)

    def finish_turn(self) -> None:
        """If nothing else is in progress: start compensation, or end, release, park, or mark the run idle."""
        execution = self.execution
        if execution.is_compensation_held and not self.recorder.expected_positions:
            self._pump()
        elif execution.result is not None:
            self._record_end()
        elif self.recorder.pending_count or self.steps.has_running_attempt:
            pass  # the answer, or the outcome, finishes the turn
        elif self.is_disabled and self._is_quiescent():
            self._release()
        elif self._is_pausing and self._is_quiescent():
            self.park()
        elif self._is_idle():
            self.host.on_run_idle(self)

    def _start_commands(self) -> None:
        execution = self.execution
        if not self._pending_commands or self.host.is_draining or not execution.patches.is_durable:
            return
        commands, self._pending_commands = self._pending_commands, []
        for command in commands:
            if command.position not in execution.open_commands:
                continue
            if command.kind is _STEP or command.kind is _COMPENSATION:
                self.steps.start(command)
            elif command.kind is not RecordKind.SIGNAL:
                self._get_waits().start(command)

    def _get_waits(self) -> RunWaits:
        if self._waits is None:
            self._waits = RunWaits(self, {})
        return self._waits

    # Outcomes

    def on_recorded(self, record: Record, value: Any) -> None:
        """A record is durable: the workflow may see it."""
        if self.is_isolated:
            self.is_isolated = False
            self.host.wake()  # the worker has waited for this before it takes other runs
        self._last_durable_seq = record.seq
        execution = self.execution
        if self._inbox or self._turn_state is not _IDLE or not execution.is_waiting:
            self._inbox.append(record)
            self._inbox_values[record.seq] = value
            self._pump()
        else:
            self._pump(record, value)

    def record_outcome(self, step: StartedStep, outcome: StepOutcome) -> None:
        """Record the outcome of a step, unless it must not be: the step was withdrawn, or the run is gone."""
        command = step.command
        if self.phase is not _GONE and self.steps.started.pop(command.position, None) is not None:
            self.recorder.record_step(command, outcome)

    def handle_answer(
        self,
        on_done: Callable[[OpResult], None],
        on_refused: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        answer: OpResult | BaseException,
    ) -> None:
        """The store has answered a write of this run."""
        if self.phase is _GONE:
            return
        if answer is _DONE:
            on_done(_DONE)
        elif isinstance(answer, BaseException):
            on_failed(answer)
        elif answer is OpStatus.FENCED:
            self.handle_claim_lost()
        elif answer is OpStatus.REFUSED:
            on_refused()
        else:
            on_done(answer)

    # Signals and requests

    def add_signals(self, signals: Sequence[Signal]) -> None:
        """Add the signals that the store has for this run; known ones are ignored."""
        waits = self._get_waits()
        waits.add_signals(signals)
        if self.is_accepting:
            waits.record_answers()

    def handle_request(self, request: RunRequests) -> None:
        """Cancel or pause the run. A request that cannot be handled now comes again."""
        if request.is_cancel_requested:
            self._note_cancel()
            if self._is_live():
                self._record_cancel()
        elif request.is_pause_requested and (self.phase is _REPLAYING or self._is_live()):
            self._is_pausing = True
            self.steps.requeue_waiting()
            if self.phase is not _REPLAYING:  # else when the replay is done
                self.finish_turn()

    @property
    def is_accepting(self) -> bool:
        """Whether the run takes new outcomes now."""
        return self._is_live() and not self.is_halted

    @property
    def is_halted(self) -> bool:
        """Whether the driver starts nothing more, for now."""
        return self._is_pausing or self.is_disabled

    def _is_live(self) -> bool:
        """Whether the replay is done, and the run is neither ending nor leaving memory."""
        return self.phase is _LIVE or self.phase is _RESUMING

    def _note_cancel(self) -> None:
        if self._cancel_state is CancelState.NONE:
            self._cancel_state = CancelState.REQUESTED

    def _record_cancel(self) -> bool:
        """Record the cancel request, if there is one; true when that is new."""
        if self._cancel_state is not CancelState.REQUESTED:
            return False
        self._cancel_state = CancelState.RECORDED
        self._is_pausing = False
        self.recorder.record(RecordKind.CANCEL, 0, "cancel")
        return True

    # Leaving memory

    def _is_quiescent(self) -> bool:
        """Whether nothing is in flight."""
        return (self.phase is _REPLAYING or self._is_live()) and not (
            self.recorder.pending_count
            or self._inbox
            or self._turn_state is not _IDLE
            or self.steps.has_running_attempt
        )

    def _is_idle(self) -> bool:
        """Whether the run waits only for time, signals, and other runs."""
        execution, started = self.execution, self.steps.started
        # If it is quiescent, the started steps wait for their next attempts.
        has_only_waits = len(execution.open_commands) == execution.wait_count + len(started)
        return has_only_waits and not self._pending_commands and self._is_quiescent()

    def is_parkable(self, now: float) -> bool:
        """Whether the run waits long enough to leave memory."""
        due = self._get_next_due_at()
        return self._is_idle() and (due is None or due - now > PARK_AFTER_S)

    def _get_next_due_at(self) -> float | None:
        """When the next timer or the next attempt of a step is due."""
        due = self._timers.get_next_due_at()
        waiting = self.steps.waiting_retries
        if not waiting:
            return due
        return waiting[0][0] if due is None else min(due, waiting[0][0])

    def requeue(self, command: Command) -> None:
        """Start a step again that has no outcome, when the driver starts commands again."""
        self._pending_commands.append(command)

    def _try_to_leave(self, phase: Phase) -> None:
        if self.phase is not Phase.PARKING:  # a run that is being parked can still fail
            self._refused_phase = self.phase
        self.phase = phase

    def park(self) -> None:
        """Leave memory until the next timer or signal, or the next end of another run; if paused, until resumed."""
        self._try_to_leave(Phase.PARKING)
        self.host.on_run_busy(self)
        self._timers.stop()
        self.host.live_events.flush_run(self)
        op = make_park_run(
            self.run,
            list(self.execution.open_commands.values()),
            self._timers.get_next_due_at(),
            self.steps.waiting_retries,
            self.recorder.next_seq,
            is_paused=self._is_pausing,
        )
        self.steps.requeue_waiting()
        on_parked = partial(self._on_parked, None if self._is_pausing else op.wake_at)
        on_answer = partial(self.handle_answer, on_parked, self._on_park_refused, self._on_park_refused)
        self.host.writer.submit(op, on_answer)

    def _on_parked(self, wake_at: float | None, _: OpResult) -> None:
        self.is_parked, self.wake_at = True, wake_at
        self._close(None)

    def _on_park_refused(self, _: BaseException | None = None) -> None:
        """There is something to do: what the run waits for has arrived, or it was resumed or cancelled.

        Or the park could not be written: then the run stays in memory. (If it was written, the next write is fenced.)
        """
        if self.phase is Phase.PARKING:
            self.phase = self._refused_phase
        self._is_pausing = False
        self._process_commands()
        self.host.on_park_refused(self)

    def _record_end(self) -> None:
        """The workflow's code has ended: record how, when all writes on their way have been answered."""
        ending = self.execution.result
        assert ending is not None
        if not self.recorder.pending_count and self.phase is not _ENDING:
            if self.execution.skipped_steps:
                self.host.live_events.write_skipped_steps(self)
            self._finish(
                make_run_outcome(ending, self.run.id),
                ending.rewind,
                respect_cancel=self._cancel_state is not CancelState.RECORDED,
            )

    def fail(self, error: BaseException) -> None:
        """The run cannot continue with this code: fail it, and leave its journal as it is."""
        if self.phase is not _ENDING and self.phase is not _GONE:
            self.has_fatal_error, encoded = True, encode_error(error)
            self.host.run_log.log_stall(self.run, encoded)
            self._finish(RunOutcome(RunState.FAILED, None, encoded), respect_cancel=False)

    def mark_dead(self, error: bytes) -> None:
        """The run's workers died too often: no worker executes it until a person retries it."""
        if self.phase is not _ENDING and self.phase is not _GONE:
            self._finish(RunOutcome(RunState.DEAD, None, error), respect_cancel=False)

    def _finish(self, end: RunOutcome, rewind: Rewind | None = None, *, respect_cancel: bool) -> None:
        self._try_to_leave(_ENDING)
        self.steps.cancel_all()
        at = self.host.clock.now()
        ended = make_ended_run(self.run, end, at, rewind)
        op = FinishRun(self.run.key, self.run.epoch, *end, at, rewind, respect_cancel)
        self.host.on_run_busy(self)
        on_answer = partial(
            self.handle_answer, partial(self._on_finished, ended), self._on_finish_refused, self._on_finish_failed
        )
        self.host.writer.submit(op, on_answer)

    def _on_finished(self, ended: Run, answer: OpResult) -> None:
        self._close(ended)
        if answer is OpStatus.DONE_NOTIFIED:
            self.host.wake()

    def _on_finish_refused(self) -> None:
        """The store has accepted a cancel, so the run must not complete."""
        self.phase = self._refused_phase
        self._note_cancel()
        self._record_cancel()

    def _on_finish_failed(self, error: BaseException) -> None:
        unknown = StoreUnavailable(f"the end of run {self.run.id!r} could not be recorded: {error!r}")
        log.error("%s; it is given back, and goes on from its journal", unknown)
        # It counts as a delivery, so that steps are not run again and again if this never works.
        self._release(encode_error(unknown))

    def handle_claim_lost(self) -> None:
        """Another worker holds the run: stop executing it here."""
        if not self.is_closed:
            log.warning("run %r is held by another worker now; this one stops working on it", self.run.id)
            self._close(None)

    def unload(self) -> None:
        """This worker stops: leave memory. The store gives the run to another worker."""
        if not self.is_closed:
            self._close(None)

    def begin_disable(self) -> None:
        """The workflow was disabled: start nothing more, and release the run once what is in flight has ended."""
        if self.phase is _GONE or self.is_disabled:
            return
        self.is_disabled = True
        self.steps.requeue_waiting()
        if self.phase is Phase.LOADING:
            self._release()
        elif self.phase is _REPLAYING or self._is_live():
            self.finish_turn()

    def cancel_disable(self) -> None:
        """The workflow was enabled again, while something was in flight."""
        self.is_disabled = False
        if self._is_live():
            self._process_commands()

    def _release(self, error: bytes | None = None) -> None:
        self.host.writer.submit(ReleaseRun(self.run.key, self.run.epoch, error=error), self.host.on_released)
        self._close(None)

    def abandon(self) -> None:
        """The event loop is gone: unwind the workflow's code, and touch nothing else."""
        self.phase = _GONE
        if self.is_started:
            self.execution.unload()

    def simulate_crash(self) -> None:
        """Like ``abandon``, with an event loop that still runs: stop everything of the run."""
        self._timers.stop()
        self.steps.cancel_all()
        self.abandon()

    @property
    def in_flight_count(self) -> int:
        """Running steps, outcomes on their way to the store, and records that are not delivered yet."""
        return (
            len(self.steps.started)
            + self.recorder.pending_count
            + len(self._inbox)
            + (self._turn_state is _INTERRUPTED)
            + (self.phase is Phase.LOADING)
        )

    def _close(self, ended: Run | None) -> None:
        self.phase = _GONE
        self._timers.stop()
        self.steps.cancel_all()
        if self.is_started:
            self.execution.unload()
        self.host.on_run_closed(self, ended)
        # These refer back to the driver: only the garbage collector would free them.
        del self.steps, self.recorder, self._timers
        self._waits = None

    def _log_unhandled_errors(self) -> None:
        errors, self.execution.unhandled_errors = self.execution.unhandled_errors, []
        for context in errors:
            log.error("run %r: %s", self.run.id, context.get("message"), exc_info=context.get("exception"))
