"""A run that this worker holds: its state, its phases, and the ways in which it leaves memory.

``idle_runs``, ``live_events``, and the callbacks of a ``RunHost`` need only this part of a run. ``driver`` adds how the
run moves forward.

**Phases.** A held run is in one ``phase`` at a time. It goes from ``LOADING`` over ``REPLAYING`` and ``RESUMING`` to
``LIVE``. While the end of the run is being written it is ``ENDING``, and while its park is, ``PARKING``. The store may
refuse both: then it returns to the phase before. Every write of the run is answered in ``handle_answer``: it is done,
refused, fenced, or it failed.

A run leaves memory in one of four ways. After each, it is ``GONE``, and nothing of it is left in memory: *finished*
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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial

from holdfast.codec import encode_error
from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.engine.host import RunHost, RunTimers
from holdfast.engine.park_operation import make_park_run
from holdfast.engine.phase import Phase, TurnState
from holdfast.engine.program_run import ProgramRun
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_outcome import RunOutcome, make_ended_run, make_run_outcome
from holdfast.engine.run_waits import RunWaits
from holdfast.engine.steps_in_flight import StepsInFlight
from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import CancelState, FinishRun, OpResult, OpStatus, ReleaseRun, Run
from holdfast.stores.worker_deaths import is_isolated
from holdfast.telemetry.telemetry import RunTelemetry

log = logging.getLogger("holdfast.engine")

PARK_AFTER_S = 1.0
"""A run that waits for less than this many seconds stays in memory."""

# Reading a member of an enumeration takes 0.1 µs on Python 3.11.
_REPLAYING, _RESUMING, _LIVE, _GONE = Phase.REPLAYING, Phase.RESUMING, Phase.LIVE, Phase.GONE
_ENDING, _DONE = Phase.ENDING, OpStatus.DONE
_IDLE, _INTERRUPTED = TurnState.IDLE, TurnState.INTERRUPTED


class HeldRun(ABC):
    """The state of a run in memory, and how it leaves. ``Driver`` is the only subclass."""

    execution: Execution
    """The workflow's code; there from the start of the replay."""
    # These call the driver, so the driver creates them.
    steps: StepsInFlight
    recorder: Recorder
    telemetry: RunTelemetry | None = None
    _timers: RunTimers

    def __init__(self, host: RunHost, run: Run) -> None:
        self.host = host
        self.run = run
        self.phase = Phase.LOADING
        self._refused_phase = Phase.LOADING
        """The phase to which the run returns if the store refuses to end or park it."""
        self._turn_state = _IDLE
        self._inbox: deque[Record] = deque()
        """Durable records that the workflow has not seen; in replay, the rest of the journal."""
        self._pending_commands: list[Command] = []
        """Commands of the workflow that have not been started."""
        self._waits: RunWaits | None = None
        self.program: ProgramRun | None = None
        """The program, if the run's code is one."""
        self._cancel_state = run.cancel_state
        self._is_pausing = False
        self.is_disabled = False
        """The workflow was disabled: nothing more of the run is started."""
        self.is_isolated = is_isolated(run.suspicion)
        """Workers that held the run died, and nothing was recorded since."""
        self.has_fatal_error = False
        """The run cannot continue with this code, and the log says so."""
        self.is_parked = False
        self.wake_at: float | None = None
        """When a parked run must be claimed again."""

    @abstractmethod
    def _process_commands(self) -> None:
        """Execute what the workflow has issued: the run stays in memory after all."""

    # State

    @property
    def is_closed(self) -> bool:
        """Whether the run is no longer in memory."""
        return self.phase is _GONE

    @property
    def is_started(self) -> bool:
        """Whether the run's code is in memory."""
        return hasattr(self, "execution")

    @property
    def is_halted(self) -> bool:
        """Whether nothing more of the run is started, for now."""
        return self._is_pausing or self.is_disabled

    def _is_live(self) -> bool:
        """Whether the replay is done, and the run is neither ending nor leaving memory."""
        return self.phase is _LIVE or self.phase is _RESUMING

    def _is_quiescent(self) -> bool:
        """Whether nothing is in flight."""
        return (self.phase is _REPLAYING or self._is_live()) and not (
            self.recorder.pending_count
            or self._inbox
            or self._turn_state is not _IDLE
            or self.steps.has_running_attempt
            or (self.program is not None and not self.program.is_blocked)
        )

    def _is_idle(self) -> bool:
        """Whether the run waits only for time, signals, and other runs."""
        execution, started = self.execution, self.steps.started
        # If it is quiescent, the started steps wait for their next attempts.
        has_only_waits = len(execution.open_commands) == execution.wait_count + len(started)
        return has_only_waits and not self._pending_commands and self.program is None and self._is_quiescent()

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

    @property
    def in_flight_count(self) -> int:
        """Running steps, a running program, outcomes on their way to the store, and records that are not delivered."""
        return (
            len(self.steps.started)
            + self.recorder.pending_count
            + len(self._inbox)
            + (self._turn_state is _INTERRUPTED)
            + (self.phase is Phase.LOADING)
            + (self.program is not None and not self.program.is_blocked)
        )

    # Answers of the store

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

    # Cancel requests

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
        log.error("%s; it is released, and continues from its journal", unknown)
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

    def _release(self, error: bytes | None = None) -> None:
        self.host.writer.submit(ReleaseRun(self.run.key, self.run.epoch, error=error), self.host.on_released)
        self._close(None)

    def abandon(self) -> None:
        """The event loop is gone: unwind the workflow's code, and touch nothing else."""
        self.phase = _GONE
        self._unload_code()

    def _unload_code(self) -> None:
        if self.program is not None:
            self.program.close()
        if self.is_started:
            self.execution.unload()

    def simulate_crash(self) -> None:
        """Like ``abandon``, with an event loop that still runs: stop everything of the run."""
        self._timers.stop()
        self.steps.cancel_all()
        self.abandon()

    def _close(self, ended: Run | None) -> None:
        self.phase = _GONE
        self._timers.stop()
        self.steps.cancel_all()
        self._unload_code()
        self.host.on_run_closed(self, ended)
        # These refer back to the driver: only the garbage collector would free them.
        del self.steps, self.recorder, self._timers
        self._waits = self.program = None
