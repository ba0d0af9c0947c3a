"""One run of a workflow in memory: commands go out, records come in.

``Execution`` knows nothing about stores, threads, or clocks. ``workflow_code`` has the run's own code, with its end and
its compensation. The engine drives both::

    execution.start()
    while not execution.turn(): ...          # run the workflow until it is idle
    for record in journal:                   # replay
        execution.deliver(record)
        while not execution.turn(): ...
    execution.go_live()
    for command in execution.take_issued(): ...   # execute what has no record yet, record it, deliver it

Replay is exact because *every* record is delivered alone and followed by turns until idle, live and in replay alike.

**Drift.** A record must match the command at its position: the same kind, the same name, and for a timer the same due
time. A record that does not match is drift, and so is one that the declared type cannot decode (``guard_decoding``).
The run stops as ``failed`` with its journal untouched, and continues under corrected code when a person retries it.
Signals differ: anyone may send one, so code may catch the error for a signal that does not fit its type; the run
records that error like a patch (``authoring.workflow_api``). A signal without such a record once fit, so if it no
longer does, that is drift.

**Runs that cannot continue.** A run that is idle and waits for nothing that can be recorded is stuck: ``WorkflowStuck``
says where. A run that makes ``MAX_CALLBACKS`` callbacks without a new record is in an endless loop:
``WorkflowNeverYields``.

**Holes.** Cancelling a command needs no record: it follows from the record that caused it. The cancelled command leaves
a hole in the stream of positions. Its outcome may already be on its way to the journal, so a record for a hole is
legal, and is skipped. A signal is not skipped, because the store no longer has it: it goes to the next wait for that
name.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from holdfast.core import asyncio_overrides
from holdfast.core.commands import UNDECODED, Command, Outcome, make_outcome
from holdfast.core.drift import DriftContext
from holdfast.core.loop import RunLoop
from holdfast.core.patches import Patches
from holdfast.core.program_calls import LoggedCall
from holdfast.core.records import WAIT_KINDS, Record, RecordKind, RewindPoint
from holdfast.core.seeded_random import SeededRandom
from holdfast.core.workflow_code import Hole, WorkflowCode
from holdfast.errors import (
    UnreadableRecord,
    WorkflowNeverYields,
    WorkflowStuck,
)

asyncio_overrides.install_overrides()

# Reading a member of an enumeration takes 0.1 µs on Python 3.11, and each step needs several of them.
_STEP, _TIMER, _SIGNAL, _COMPENSATION = (
    RecordKind.STEP, RecordKind.TIMER, RecordKind.SIGNAL, RecordKind.COMPENSATION,
)  # fmt: skip

MAX_CALLBACKS = 1_000_000
"""Callbacks without a new outcome after which a workflow counts as an endless loop."""


class Execution(WorkflowCode):
    """The workflow's code at one point of its journal."""

    def __init__(
        self,
        run_id: str,
        main: Callable[[], Coroutine[Any, Any, Any]],
        *,
        workflow: str = "",
        start_time: float,
        seed: bytes,
        recorded_python: str = "",
        rewind_points: Sequence[RewindPoint] = (),
        patches: Patches | None = None,
    ) -> None:
        super().__init__(run_id, main, start_time)
        self.workflow = workflow
        self.loop.execution = self
        self.unhandled_errors: list[dict[str, Any]] = []
        """Exceptions that no code has seen, for the engine to log."""
        self.skipped_steps: dict[int, tuple[str, int]] = {}
        """Skipped steps of a class workflow, by number: the name, and the position of the next command. For display
        only."""
        self.open_commands: dict[int, Command] = {}
        """Commands without an outcome, in the order they were issued."""
        self.wait_count = 0
        """How many open commands wait for a signal, a person, or another run, and so need no process."""
        self.patches = Patches() if patches is None else patches
        self.unsaved_calls: tuple[LoggedCall, ...] = ()
        """A program's calls that are not in the journal yet: the next record takes them along."""
        self._seed = seed
        self._rewind_points = rewind_points
        self._drift_context = DriftContext(run_id, recorded_python, self.patches)
        self._taken_count = 0
        """How many commands had been issued at the last ``take_issued``."""
        self.withdrawn_commands: list[Command] = []
        """Commands that the workflow has cancelled since ``take_withdrawn``."""
        self._unclaimed_signals: dict[str, deque[Outcome]] = {}
        self._draw_count = 0

    # Driving

    def start(self) -> None:
        """Create the workflow's first task. Nothing runs before the first ``turn``."""
        self._main_task = self.loop.create_main_task(self._run_main())

    def turn(self) -> bool:
        """Run the workflow for a slice; true when it is idle, has ended, or cannot continue (see ``fatal_error``)."""
        if self.fatal_error is not None:
            return True
        loop, is_idle = self.loop, True
        if loop.ready:
            outer = loop.enter()
            try:
                is_idle = loop.drain()
            finally:
                loop.leave(outer)
        return self._check_turn(is_idle)

    def replay(self, journal: deque[Record], max_records: int) -> bool:
        """Deliver records from ``journal``, each followed by turns until idle.

        Stops when there is no record left or the workflow's code has ended, which the caller has to handle. False: a
        slice was done, and there is more. The loop is entered once for all of them.
        """
        loop = self.loop
        outer = loop.enter()
        try:
            for _ in range(max_records):
                if loop.ready and not self._check_turn(loop.drain()):
                    return False
                if self.fatal_error is not None or self.result is not None or self._compensation_start is not None:
                    return True
                if not journal:
                    return True
                self.deliver(journal.popleft())
        finally:
            loop.leave(outer)
        return False

    def _check_turn(self, is_idle: bool) -> bool:
        if self.loop.fatal_error is not None:
            self.fatal_error = self.loop.fatal_error
            return True
        if is_idle:
            if not self.open_commands:
                self._check_not_stuck()
            return True
        if self.loop.callback_count > MAX_CALLBACKS:
            self.fatal_error = WorkflowNeverYields(
                f"run {self.run_id!r}: workflow code has run {MAX_CALLBACKS:,} callbacks without waiting for anything "
                f"that is recorded{self._format_location()}. A loop around `asyncio.sleep(0)` never ends here: wait "
                "with `asyncio.sleep(seconds)`, a step or a signal."
            )
            return True
        return False

    def deliver(self, record: Record, value: Any = UNDECODED) -> None:
        """Deliver one record to the workflow; call ``turn`` until idle after it."""
        loop = self.loop
        loop.callback_count = 0
        if self.fatal_error is not None:
            return
        self._last_seq = record.seq
        kind = record.kind
        if kind is _TIMER:
            self._fire_timer(record)
        elif kind.has_position:
            self._resolve_command(record, value)
        elif kind is RecordKind.PATCH:
            self.patches.mark_durable(record.name)
        elif kind is RecordKind.CALL:
            self._stop_on_drift(record)  # the run was started as a program
        else:
            loop.advance_time(record.at)
            self._interrupt(record)
        self._drift_context.records.append(record)

    def go_live(self) -> None:
        """The replay is done: from here on, outcomes are new."""
        self.loop.is_replaying = False

    def take_issued(self) -> list[Command]:
        """Commands issued since the last call that are still open, in order."""
        # They are not collected when they are issued: a replay issues all commands of a long journal.
        taken, self._taken_count = self._taken_count, self._issued_count
        new: list[Command] = []
        if taken != self._issued_count:
            for position, command in reversed(self.open_commands.items()):
                if position < taken:
                    break
                new.append(command)
            new.reverse()
        return new

    def take_withdrawn(self) -> list[Command]:
        """Commands that the workflow has cancelled since the last call."""
        withdrawn, self.withdrawn_commands = self.withdrawn_commands, []
        return withdrawn

    def unload(self) -> None:
        """Take the run out of memory, at any point; see ``RunLoop.unwind``."""
        self.loop.unwind()
        for command in self.open_commands.values():
            command.close()
        self.loop.execution = self._main_task = None  # only the garbage collector would free them
        self.open_commands.clear()
        self.withdrawn_commands.clear()

    def deliver_after_end(self, record: Record) -> None:
        """The workflow has ended, but its journal continues with ``record``.

        That is drift, unless the record belongs to a hole, or the run was cancelled before its end was recorded.
        """
        if record.kind in (RecordKind.CANCEL, RecordKind.PATCH):
            self.deliver(record)
        elif record.kind.has_position and record.position not in self._holes:
            self._stop_on_drift(record)
            self.result = None
        elif record.kind.has_position:
            self._note_late_outcome(record)
            self._revise_result()

    @property
    def is_waiting(self) -> bool:
        """Whether the workflow's code, or its compensation, has begun, has not ended, and waits for outcomes."""
        return self.result is None and self._compensation_start is None and not self.loop.ready

    # Commands

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """A new command at the next position; await the future for its outcome."""
        loop = self.loop
        if loop.is_closing:
            return loop.refuse_command()
        position = self._issued_count
        self._issued_count += 1
        self._draw_count = 0
        command = Command(loop, self, kind, position, name, call)
        self._drift_context.commands.append((position, kind, name))
        if kind is _SIGNAL and (waiting := self._unclaimed_signals.get(name)):
            self._holes[position] = Hole(kind, name, self._last_seq)
            command.close()
            command.set_result(waiting.popleft())
            return command
        self.open_commands[position] = command
        if kind is not _STEP:
            self.wait_count += kind in WAIT_KINDS
        return command

    def withdraw(self, command: Command) -> None:
        """The workflow cancelled this command: its position becomes a hole."""
        if command.position in self.open_commands:
            self._close_command(command)
            is_noted_step = command.kind is _STEP and command.call is not None and command.call.is_noted
            call = command.call if is_noted_step else None
            self._holes[command.position] = Hole(command.kind, command.name, self._last_seq, call)
            self.withdrawn_commands.append(command)

    def _close_command(self, command: Command) -> None:
        del self.open_commands[command.position]
        if command.kind is not _STEP:
            self.wait_count -= command.kind in WAIT_KINDS
        command.close()

    def is_patched(self, name: str) -> bool:
        """Whether the run takes the new branch of this change: see ``patches``."""
        if self.loop.is_closing:
            return self.patches.is_active(name)
        return self.patches.decide(name, command_count=self._issued_count, timer_count=self.loop.issued_timer_count)

    def draw_bytes(self, purpose: str) -> bytes:
        """32 bytes that are random to the world and the same on every replay.

        They depend on how many commands came before, so that a draw added by a new deploy changes only the draws
        between the same two commands.
        """
        self._draw_count += 1
        return self.seeded_random.draw_bytes(
            f"{purpose}:{self._issued_count}:{self._draw_count}", self._issued_count, self._last_seq
        )

    @cached_property
    def seeded_random(self) -> SeededRandom:
        """Draws from the run's seed."""
        return SeededRandom(self._seed, self._rewind_points)

    @contextmanager
    def guard_decoding(self) -> Generator[None]:
        """A block that decodes recorded bytes.

        If that fails, the code no longer fits the journal. The exception alone is not enough: workflow code that
        catches it would continue with a decision that the run never made. So the run stops, with its journal as it is.
        """
        try:
            yield
        except UnreadableRecord as unreadable:
            self.fatal_error = self.fatal_error or unreadable
            raise

    @property
    def next_position(self) -> int:
        """The position of the command that is issued next."""
        return self._issued_count

    def add_unhandled_error(self, context: dict[str, Any]) -> None:
        """An exception that no workflow code has seen."""
        if not self.loop.is_replaying:
            self.unhandled_errors.append(context)

    def _fire_timer(self, record: Record) -> None:
        loop = self.loop
        timer = loop.timers.get(record.position)
        if record.position >= loop.issued_timer_count or (timer is not None and record.name != timer.name):
            self._stop_on_drift(record, timer=None if timer is None else timer.name)
            return
        loop.advance_time(record.at)
        loop.fire_timer(record.position)

    def _resolve_command(self, record: Record, value: Any) -> None:
        loop, kind = self.loop, record.kind
        outcome = make_outcome((record, value, self._issued_count, loop.issued_timer_count))
        command = self.open_commands.get(record.position)
        if command is None:
            hole = self._holes.get(record.position)
            if hole is None or hole.kind is not kind or hole.name != record.name:
                self._stop_on_drift(record)
                return
            loop.advance_time(record.at)
            self._note_late_outcome(record)
            if kind is _SIGNAL:
                self._deliver_signal(record.name, outcome)
            return
        if command.kind is not kind or command.name != record.name:
            self._stop_on_drift(record, command)
            return
        loop.advance_time(record.at)
        self._close_command(command)
        call = command.call
        if not record.ok:
            self._note_failure(record, call)
        if (kind is _STEP or kind is _COMPENSATION) and call is not None and call.is_noted:
            self._compensations.add_outcome(record, call)
        loop.call_inside(command.set_result, outcome)

    def _deliver_signal(self, name: str, outcome: Outcome) -> None:
        """A signal for a cancelled wait goes to the oldest open wait for its name, else to the next one."""
        for command in self.open_commands.values():
            if command.kind is RecordKind.SIGNAL and command.name == name:
                self._close_command(command)
                self._holes[command.position] = Hole(_SIGNAL, name, self._last_seq)
                self.withdrawn_commands.append(command)
                self.loop.call_inside(command.set_result, outcome)
                return
        self._unclaimed_signals.setdefault(name, deque()).append(outcome)

    def _check_not_stuck(self) -> None:
        """The workflow is idle, and no command is open."""
        if self.fatal_error is not None or self.result is not None or self.loop.timers or self._compensation_start:
            return
        self.fatal_error = WorkflowStuck(
            f"run {self.run_id!r} waits for something that nothing recorded can wake{self._format_location()}. "
            "Workflow code may wait only for steps, timers, signals and its own tasks: do this in a step."
        )

    def _format_location(self) -> str:
        location = self.loop.locate_wait()
        return f" (at {location})" if location else ""

    def _stop_on_drift(self, record: Record, command: Command | None = None, timer: str | None = None) -> None:
        self.fatal_error = self._drift_context.make_error(
            record, self.open_commands, command, timer, has_ended=self.result is not None
        )


def get_current_execution() -> Execution | None:
    """The execution of the workflow code that is running now, if any."""
    loop = events._get_running_loop()
    return loop.execution if isinstance(loop, RunLoop) else None
