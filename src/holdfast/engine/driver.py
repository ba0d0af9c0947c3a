"""Moves a held run forward: its journal is replayed, its commands are executed, and their outcomes are recorded.

Only callbacks move a driver, all on the process's loop: an outcome was committed, a timer is due, a signal arrived.
Each outcome takes the same path. ``recorder`` gives it to the writer. When it is durable, ``on_recorded`` puts it into
the inbox. ``_pump`` takes one record from the inbox at a time and lets the workflow run until it is idle, and then
``_process_commands`` handles what the workflow has issued. A replayed record differs only in that it is in the inbox
from the start.

``held_run``, the base class, has the run's state, its phases, and the ways in which it leaves memory.
``steps_in_flight`` starts steps and ``step_run`` executes them. ``timers`` keeps timers, and ``run_waits`` handles
signals, approvals, and other runs.

- **Resume.** When a run comes back into memory, a requested cancel and the timers that are due are recorded first. Only
  then do the steps start that were in flight: otherwise a paid call could start only to be cancelled.
- **Cancel.** The driver records the request, and that record cancels the workflow's code. Until it is recorded, the
  store refuses to park or finish the run, so a cancel that was accepted always takes effect.
- **Pause.** The driver starts nothing more and parks the run when what is in flight has been recorded.
- **Disable.** When the workflow is disabled, the driver starts nothing more, lets what is in flight end (it is paid
  for), and releases the run. A step that waits for its next attempt does not make it; its attempts so far are saved.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.commands import UNDECODED, Command
from holdfast.core.execution import Execution
from holdfast.core.patches import PATCH_POSITION
from holdfast.core.records import WAIT_KINDS, Record, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.held_run import HeldRun
from holdfast.engine.host import RunHost, StartedStep
from holdfast.engine.phase import Phase, TurnState
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_outcome import RunOutcome
from holdfast.engine.run_waits import RunWaits
from holdfast.engine.step_outcome import StepOutcome
from holdfast.engine.steps_in_flight import StepsInFlight
from holdfast.errors import HoldfastError
from holdfast.stores.claims import RunRequests
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

log = logging.getLogger("holdfast.engine")

REPLAY_BATCH_SIZE = 500
"""How many records are replayed before other tasks of the process get a turn (a few milliseconds)."""

# Reading a member of an enumeration takes 0.1 µs on Python 3.11.
_REPLAYING, _RESUMING, _LIVE, _GONE = Phase.REPLAYING, Phase.RESUMING, Phase.LIVE, Phase.GONE
_IDLE, _RUNNING, _INTERRUPTED = TurnState.IDLE, TurnState.RUNNING, TurnState.INTERRUPTED
_ENDING, _CALL, _STEP, _COMPENSATION = Phase.ENDING, RecordKind.CALL, RecordKind.STEP, RecordKind.COMPENSATION


class Driver(HeldRun):
    """A held run, and the turns of its workflow."""

    def __init__(self, host: RunHost, run: Run, definition: WorkflowDefinition) -> None:
        super().__init__(host, run)
        self.definition = definition
        self.steps = StepsInFlight(self)
        self.recorder = Recorder(self)
        self._timers = host.create_timers(self)
        self._inbox_values: dict[int, Any] = {}
        """By ``seq``, the values of records in the inbox that are decoded already."""
        self._resume_after_seq = -1
        """``seq`` of the last record of a cancel or timer that was due on resume."""
        self._last_durable_seq = -1
        """``seq`` of the last record that became durable here."""
        self._early_signals: list[Signal] = []
        """Signals that have arrived since the history was read, while the run's imports were loaded."""

    # Coming into memory

    def start(self, history: History) -> None:
        """Replay the journal, then continue."""
        run = self.run
        self.phase = _REPLAYING
        try:
            args, kwargs = self.definition.inputs_codec.decode(run.inputs)
            self.execution = self._create_execution(args, kwargs, history)
        except HoldfastError as error:
            self._finish(RunOutcome(RunState.FAILED, None, encode_error(error)), respect_cancel=False)
            return
        self.steps.earlier_attempts = dict(history.attempts)
        if history.links or history.signals or self._early_signals:
            self._waits = RunWaits(self, history.links)
            self._waits.add_signals([*history.signals, *self._early_signals])
        self._inbox.extend(history.records)
        self.recorder.next_seq = history.records[-1].seq + 1 if history.records else 0
        self._timers.is_deadline_recorded = run.deadline is not None and any(
            r.kind is RecordKind.DEADLINE for r in history.records
        )
        if run.epoch == 1 and not history.records:
            self._end_replay()  # no worker has executed any of it before
        self.execution.start()
        self._pump()

    def _create_execution(self, args: tuple[Any, ...], kwargs: dict[str, Any], history: History) -> Execution:
        run, definition, max_value = self.run, self.definition, self.host.max_value
        options: dict[str, Any] = {
            "workflow": run.workflow,
            "start_time": run.clock_started_at,
            "seed": run.seed,
            "recorded_python": run.python_version,
            "rewind_points": run.rewind_points,
            "patches": self.host.create_patches(history),
        }
        if not definition.is_program:
            return self.host.execution_factory(run.id, partial(definition.execute, args, kwargs, max_value), **options)
        execution = self.host.program_execution_factory(
            run.id,
            partial(definition.encode_result, max_value=max_value),
            intended_positions=[position for position, attempt in history.attempts.items() if attempt.intent],
            **options,
        )
        function = partial(definition.function, *args, **kwargs)
        self.program = self.host.create_program(self, execution, function, is_async=definition.is_async)
        return execution

    def _end_replay(self) -> None:
        self.execution.go_live()
        self.phase = _RESUMING

    # Turning

    def advance(self) -> None:
        """Let the workflow run until it is idle: something other than a record has made it ready."""
        self._pump()

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
        if self.host.is_draining or not execution.patches.is_durable:
            return
        if self.program is not None:
            self.program.launch()
        commands, self._pending_commands = self._pending_commands, []
        for command in commands:
            if command.position not in execution.open_commands:
                continue
            if command.kind is _STEP or command.kind is _COMPENSATION:
                self.steps.start(command)
            elif command.kind is not RecordKind.SIGNAL:
                self.recorder.record_calls()
                self._get_waits().start(command)

    def requeue(self, command: Command) -> None:
        """Start a step again that has no outcome, when the driver starts commands again."""
        self._pending_commands.append(command)

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
        if record.kind is _CALL:
            self.finish_turn()  # it wakes no code
            return
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
            command.context = None  # it refers to the step, which would stay in memory until the record is durable
            self.recorder.record_step(command, outcome, step.telemetry)

    # Signals and requests

    def add_signals(self, signals: Sequence[Signal]) -> None:
        """Add the signals that the store has for this run; known ones are ignored."""
        if self.phase is Phase.LOADING:
            self._early_signals += signals
            return
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

    @property
    def is_accepting(self) -> bool:
        """Whether the run takes new outcomes now."""
        return self._is_live() and not self.is_halted

    def _log_unhandled_errors(self) -> None:
        errors, self.execution.unhandled_errors = self.execution.unhandled_errors, []
        for context in errors:
            log.error("run %r: %s", self.run.id, context.get("message"), exc_info=context.get("exception"))
