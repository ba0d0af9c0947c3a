"""One run of a workflow in memory: commands go out, records come in.

``Execution`` owns the run's loop and knows nothing of stores, threads or clocks. The engine drives it::

    execution.start()
    while not execution.turn(): ...          # run the workflow until it is idle
    for record in journal:                   # replay
        execution.deliver(record)
        while not execution.turn(): ...
    execution.go_live()
    for command in execution.take_issued(): ...   # carry out what has no record yet, record it, deliver it

The rule that makes replay exact is that *every* record is delivered on its own and followed by turns until idle, live
as in replay.

**Holes.** A command that the workflow cancels stays a hole in the stream of positions. Its outcome may have been on its
way to the journal at that moment, so a record for a hole is legal, and skipped. The one exception is a signal: it has
been consumed from the store, so it goes into the run's mailbox, where the next wait for that name finds it.

**Undoing.** Steps are undone in the reverse order of their records. When the workflow's code ends with an exception,
outcomes of steps that it has just cancelled may still be on their way to the journal, and would be undone too late. So
undoing waits until the engine says, with ``begin_undoing``, that none of them will come any more. In replay the journal
says so: they stand before the first compensation.
"""

from __future__ import annotations

import asyncio
import contextvars
from base64 import b32encode
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from holdfast.core import asyncio_overrides
from holdfast.core.commands import UNREAD, Command, CommandFuture, Outcome
from holdfast.core.compensations import Origin, UndoLog, chain_of, has_origin, origins_of
from holdfast.core.drift import describe_drift
from holdfast.core.loop import RunLoop, running_loop
from holdfast.core.patches import Patches
from holdfast.core.records import WAITS, Kind, Record, Rewind
from holdfast.core.seeded_random import Chance
from holdfast.errors import (
    HoldfastError,
    NonDeterminismError,
    RunParked,
    RunTimedOut,
    UnreadableRecord,
    UsageError,
    WorkflowNeverYields,
    WorkflowStuck,
)

asyncio_overrides.install()

TURN_LIMIT = 1_000_000
"""Callbacks without an outcome in between after which a workflow is taken to run for ever."""

CONTEXT = 3
"""How many commands before a drift its message shows."""


class Ending(NamedTuple):
    """How the workflow's code ended: with a value, or with an exception."""

    value: Any
    error: BaseException | None
    is_cancelled: bool = False
    """It gave in to the cancellation that somebody asked for."""
    not_undone: tuple[str, Record] | None = None
    """The step whose compensation failed, and the record of that."""
    rewind: Rewind | None = None
    """What a retry takes back."""


class Execution:
    """The workflow's code at some point of its journal."""

    def __init__(
        self,
        run_id: str,
        main: Callable[[], Coroutine[Any, Any, Any]],
        *,
        workflow: str = "",
        start_time: float,
        seed: bytes,
        recorded_python: str = "",
        rewound: Sequence[int] = (),
        patches: Patches | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.loop = RunLoop(run_id, start_time)
        self.loop.owner = self
        self.ending: Ending | None = None
        self.fault: HoldfastError | None = None
        """Why the run cannot go on with this code; its journal is left as it is."""
        self.stray_errors: list[dict[str, Any]] = []
        """Exceptions that nobody awaited, to be logged by the engine."""
        self.skipped: dict[int, tuple[str, int]] = {}
        """Skipped steps of a class workflow, by number: the name, and the position of the next command. For display
        only."""
        self.open: dict[int, Command] = {}
        """Commands without an outcome, in the order they were issued."""
        self.waits = 0
        """How many of the open commands wait for a signal, a person or the end of another run, and need nobody here."""
        self.patches = Patches() if patches is None else patches
        self._main = main
        self._chance = Chance(seed, rewound)
        self._recorded_python = recorded_python
        self._issued = 0
        self._new: list[Command] = []
        self._withdrawn: list[Command] = []
        self._holes: dict[int, tuple[Kind, str]] = {}
        self._step_holes: dict[int, Any] = {}
        """Calls of steps that were cancelled in flight, and may have been done all the same."""
        self._given_up: dict[int, int] = {}
        """Positions of runs that the workflow no longer waits for, and the record that it had seen last by then."""
        self._mailbox: dict[str, deque[Outcome]] = {}
        self._history: deque[Record] = deque(maxlen=CONTEXT)
        self._trail: deque[Command] = deque(maxlen=2 * CONTEXT + 2)
        self._draws = 0
        self._seen = -1
        """``seq`` of the last record that was delivered."""
        self._undo = UndoLog()
        self._undo_start: asyncio.Future[None] | None = None
        """Done when undoing may begin; while it is not, outcomes of cancelled steps may come."""
        self._supervisor: asyncio.Task[None] | None = None
        self._stopped_by: tuple[Kind, Origin] | None = None
        """The deadline or the cancellation that the workflow was interrupted for, whichever came first."""
        self._cancelled_late = False
        """The cancellation came when the workflow's own code had ended already."""
        self._settled = False
        self._origins: list[Origin] = []
        """The records that ended the workflow's code."""
        self._is_undone = False

    # Driving

    def start(self) -> None:
        """Make the workflow's first task. Nothing runs before the first ``turn``."""
        # An empty context: whatever the starter's context holds would not be there on replay.
        context = contextvars.Context()
        self._supervisor = self.loop.inside(partial(self.loop.create_task, self._supervise(), context=context))

    def turn(self) -> bool:
        """Run the workflow for a slice; true when it is idle, has ended, or cannot go on (see ``fault``)."""
        if self.fault is not None:
            return True
        idle = self.loop.turn()
        if self.loop.poison is not None:
            self.fault = self.loop.poison
            return True
        if idle:
            self._check_idle()
            return True
        if self.loop.turned > TURN_LIMIT:
            self.fault = WorkflowNeverYields(
                f"run {self.run_id!r}: workflow code has run {TURN_LIMIT:,} callbacks without waiting for anything "
                f"that is recorded{self._location()}. A loop around `asyncio.sleep(0)` never ends here: wait with "
                f"`asyncio.sleep(seconds)`, a step or a signal."
            )
            return True
        return False

    def deliver(self, record: Record, value: Any = UNREAD) -> None:
        """Hand one record to the workflow; follow it with ``turn`` until idle."""
        loop = self.loop
        loop.turned = 0
        if self.fault is not None:
            return
        self._seen = record.seq
        if record.kind is Kind.TIMER:
            self._fire(record)
        elif record.kind.has_position:
            self._resolve(record, Outcome(record, value, self._origin(record)))
        elif record.kind is Kind.PATCH:
            self.patches.delivered(record.name)
        else:
            loop.advance_time(record.at)
            self._interrupt(record)
        self._history.append(record)

    def _origin(self, record: Record) -> Origin:
        return Origin(record.seq, self._issued, self.loop.timers_issued)

    def go_live(self) -> None:
        """The journal is used up: from here on outcomes are new."""
        self.loop.replaying = False

    def take_issued(self) -> list[Command]:
        """Commands issued since the last call that are still open, in order."""
        new, self._new = self._new, []
        return [command for command in new if command.position in self.open]

    def take_withdrawn(self) -> list[Command]:
        """Commands that the workflow has cancelled since the last call."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def leave(self) -> None:
        """Take the run out of memory, at any point; see ``RunLoop.unwind``."""
        self.loop.unwind()
        for command in self.open.values():
            command.close()
        self.open.clear()
        self._new.clear()
        self._withdrawn.clear()

    def leftover(self, record: Record) -> None:
        """The workflow has ended, but its journal goes on with ``record``.

        That is drift, unless the record belongs to a hole, or somebody cancelled the run before its end was recorded.
        """
        if record.kind in (Kind.CANCEL, Kind.PATCH):
            self.deliver(record)
        elif record.kind.has_position and record.position not in self._holes:
            self.fault = self._drift(record)
            self.ending = None
        elif record.kind.has_position:
            self._note_hole(record)
            self._end_anew()

    @property
    def is_undoing_held(self) -> bool:
        """Whether the workflow's code has ended, and undoing waits for ``begin_undoing``."""
        return self._undo_start is not None

    def may_have_to_undo(self, position: int, name: str) -> bool:
        """Whether this step was cancelled and has no record yet, so that it must be undone if it was done after all."""
        return position in self._step_holes and self._holes[position] == (Kind.STEP, name)

    def begin_undoing(self, upcoming: Iterable[Record] = (), *, expected: Collection[int] = ()) -> bool:
        """Let undoing begin that is held, unless outcomes of cancelled steps are still to come.

        Call it whenever the workflow is idle. ``upcoming`` are the records that are still to be delivered, in order;
        ``expected`` are positions whose outcomes may be recorded later. True when the workflow has something to do.
        """
        if self._undo_start is None or any(position in self._step_holes for position in expected):
            return False
        for record in upcoming:
            if record.kind is Kind.COMPENSATION:
                break
            if record.kind is Kind.STEP and record.position in self._step_holes:
                return False
        start, self._undo_start = self._undo_start, None
        self.loop.inside(start.set_result, None)
        return True

    def _end_anew(self) -> None:
        """The workflow has ended, and something came after that: it may have to be undone, or taken back by a retry."""
        ending = self.ending
        if ending is None or ending.error is None:
            return
        self.ending = ending._replace(rewind=self._rewind())
        if self._undo:
            self._go_on_ending(ending.error, ending.is_cancelled)

    # What workflow code asks for

    def issue(self, kind: Kind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """A new command at the next position; await the future for its outcome."""
        loop = self.loop
        if loop.closing:
            return loop.refused_command()
        position = self._issued
        self._issued += 1
        self._draws = 0
        command = Command(kind, position, name, call, contextvars.copy_context())
        future = CommandFuture(loop, self, command)
        self._trail.append(command)
        if kind is Kind.SIGNAL and (waiting := self._mailbox.get(name)):
            self._holes[position] = (kind, name)
            command.close()
            future.set_result(waiting.popleft())
            return future
        command.future = future
        self.open[position] = command
        self.waits += kind in WAITS
        self._new.append(command)
        return future

    def withdraw(self, command: Command) -> None:
        """The workflow cancelled this command: its position becomes a hole."""
        if self._close(command) is not None:
            self._holes[command.position] = (command.kind, command.name)
            call = command.call
            if command.kind is Kind.STEP and call is not None and (call.is_undoable or call.is_once):
                self._step_holes[command.position] = call
            if command.kind is Kind.CHILD:
                self._given_up[command.position] = self._seen
            self._withdrawn.append(command)

    def _close(self, command: Command) -> CommandFuture | None:
        """The command is not open any more. Returns the future of its outcome, or ``None`` when it was not open."""
        if self.open.pop(command.position, None) is None:
            return None
        self.waits -= command.kind in WAITS
        return command.close()

    def patched(self, name: str) -> bool:
        """Whether the run takes the new way of this change: see ``patches``."""
        if self.loop.closing:
            return self.patches.known(name)
        return self.patches.answer(name, positions=self._issued, timers=self.loop.timers_issued)

    def draw(self, purpose: str) -> bytes:
        """32 bytes that are random to the world and the same on every replay.

        They depend on how many commands came before, so that a draw added by a new deploy changes only the draws
        between the same two commands.
        """
        self._draws += 1
        return self._chance.draw(f"{purpose}:{self._issued}:{self._draws}", self._issued, self._seen)

    def idempotency_key(self, position: int, name: str) -> str:
        """A key for the outside world that stays the same over attempts and replays of one step."""
        return self._chance.idempotency_key(position, name)

    def child_seed(self, position: int) -> bytes:
        """The seed of a run that the command at this position starts: who starts it again, starts the same."""
        return self._chance.own(f"child:{position}", position)

    def child_place(self, position: int) -> str:
        """What the made-up id of such a run says of the place that it was started at."""
        times = self._chance.times_rewound(position)
        return f"{position + 1}.{times}" if times else f"{position + 1}"

    def approval_id(self, position: int, asked: str) -> str:
        """The id of the question that the command at this position asks: who asks again, asks the same.

        ``asked`` stands for what is asked: another question has another id, so that no answer can be taken for its.
        """
        return b32encode(self._chance.own(f"approval:{position}:{asked}", position)[:10]).decode().lower()[:12]

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Decode recorded bytes inside this block.

        If that fails, the code no longer fits the journal. The exception alone would not do: workflow code that catches
        it would go on with a decision that the run never made. So the run stops, with its journal as it is.
        """
        try:
            yield
        except UnreadableRecord as unreadable:
            self.fault = self.fault or unreadable
            raise

    @property
    def next_position(self) -> int:
        """The position of the command that is issued next."""
        return self._issued

    def stray_error(self, context: dict[str, Any]) -> None:
        """An exception that no workflow code looked at."""
        if not self.loop.replaying:
            self.stray_errors.append(context)

    # Inside

    async def _supervise(self) -> None:
        is_cancelled = False
        try:
            value, error = await self._main(), None
        except (RunParked, GeneratorExit):
            raise
        except asyncio.CancelledError as cancelled:
            value, error = None, cancelled
            if self._stopped_by is not None and self._stopped_by[0] is Kind.DEADLINE:
                error = RunTimedOut(f"run {self.run_id!r} did not end within its workflow's time-out")
            is_cancelled = self._stopped_by is not None and self._stopped_by[0] is Kind.CANCEL
        except (SystemExit, KeyboardInterrupt) as stop:
            # Let out of the loop, these would take the worker down with all its other runs.
            # Its own `str()` is not called, which may raise the same; a number is what most of them carry.
            code = f"({stop.code})" if isinstance(stop, SystemExit) and type(stop.code) is int else ""
            name = f"{type(stop).__name__}{code}"
            stopped = UsageError(f"workflow code raised {name}; raise an ordinary exception to fail the run")
            value, error = None, stopped
        except UnreadableRecord as unreadable:
            if not has_origin(unreadable):
                # Not the failure of a step, but a record that this code cannot decode: nothing must be undone for it.
                self.fault = self.fault or unreadable
                return
            value, error = None, unreadable
        except BaseException as raised:
            value, error = None, raised
        await self._settle()
        if error is None and self._cancelled_late:
            value, error, is_cancelled = None, asyncio.CancelledError(), True
        await self._end(value, error, is_cancelled)

    async def _end(self, value: Any, error: BaseException | None, is_cancelled: bool) -> None:
        """The workflow's code has ended: undo what is to be undone, and tell how it ended."""
        if error is None:
            self.ending = Ending(value, None)
            return
        if self._step_holes:
            self._undo_start = self.loop.create_future()
            await self._undo_start
        failed: tuple[str, Outcome] | None = None
        while self._undo and failed is None:
            record, call = self._undo.pop()
            try:
                undo = call.undo(record.payload or b"null")
            except HoldfastError as unfit:  # the code no longer fits the journal
                if record.is_settled:
                    continue  # a person gave what it cannot have returned: its outcome is still unknown
                self.fault = unfit
                return
            if undo is None:
                continue
            outcome = await self.issue(Kind.COMPENSATION, *undo)
            if outcome.record.ok:
                self._undo.undone += 1
            else:
                failed = record.name, outcome  # those before it may rest on it: a person has to look first
        if failed is not None:
            self._origins = [failed[1].origin]
        elif isinstance(error, asyncio.CancelledError | RunTimedOut) and self._stopped_by is not None:
            self._origins = [self._stopped_by[1]]
        else:
            self._origins = origins_of(error) or self._interruption(error)
        self._is_undone = failed is None and self._undo.undone > 0
        self.ending = Ending(
            None,
            error,
            is_cancelled,
            None if failed is None else (failed[0], failed[1].record),
            self._rewind(),
        )

    def _interruption(self, error: BaseException) -> list[Origin]:
        """The deadline or the cancellation, if the code made something else of it."""
        if self._stopped_by is None:
            return []
        return [self._stopped_by[1]] if any(isinstance(one, asyncio.CancelledError) for one in chain_of(error)) else []

    def _rewind(self) -> Rewind | None:
        return self._undo.rewind(self._origins, self._given_up, undone=self._is_undone)

    def _interrupt(self, record: Record) -> None:
        """The run's deadline has passed, or somebody has cancelled it."""
        if self._stopped_by is not None:
            return  # it is being interrupted already; a second blow would hit its clean-up
        if not self._settled:
            self._stopped_by = (record.kind, self._origin(record))
            if self._supervisor is not None:
                self.loop.inside(self._supervisor.cancel)
        elif record.kind is Kind.CANCEL:
            # Its own code has ended: there is nothing left to interrupt, but something to undo, if it ended well.
            self._stopped_by = (record.kind, self._origin(record))
            self._cancelled_late = True
            if self.ending is not None and self.ending.error is None:
                self._go_on_ending(asyncio.CancelledError(), True)

    def _go_on_ending(self, error: BaseException, is_cancelled: bool) -> None:
        """There is something to undo after all."""
        if self.ending is not None and self.ending.not_undone is not None:
            return  # it stands where a person has to look first
        self.ending = None
        end = self._end(None, error, is_cancelled)
        self._supervisor = self.loop.inside(partial(self.loop.create_task, end, context=contextvars.Context()))

    async def _settle(self) -> None:
        """End what the workflow left running, as ``asyncio.run`` does, before its end is recorded."""
        self._settled = True
        me = asyncio.current_task()
        for task in (others := [task for task in self.loop.live_tasks.values() if task is not me]):
            task.cancel()
        if others:
            await asyncio.wait(others)
        for generator in self.loop.async_generators:
            try:
                await generator.aclose()
            except RunParked:
                raise
            except BaseException as error:
                self.stray_error({"message": "closing an async generator failed", "exception": error})

    def _fire(self, record: Record) -> None:
        loop = self.loop
        timer = loop.timers.get(record.position)
        if record.position >= loop.timers_issued or (timer is not None and record.name != timer.name):
            self.fault = self._drift(record, timer=None if timer is None else timer.name)
            return
        loop.advance_time(record.at)
        loop.fire(record.position)

    def _resolve(self, record: Record, outcome: Outcome) -> None:
        loop = self.loop
        command = self.open.get(record.position)
        if command is None:
            hole = self._holes.get(record.position)
            if hole is None or hole != (record.kind, record.name):
                self.fault = self._drift(record)
                return
            loop.advance_time(record.at)
            self._note_hole(record)
            if record.kind is Kind.SIGNAL:
                self._deposit(record.name, outcome)
            return
        if command.kind is not record.kind or command.name != record.name:
            self.fault = self._drift(record, command)
            return
        loop.advance_time(record.at)
        future = self._close(command)
        assert future is not None
        self._note_failure(record, command.call)
        if record.kind in (Kind.STEP, Kind.COMPENSATION) and command.call is not None:
            self._undo.done(record, command.call)
        loop.inside(future.set_result, outcome)

    def _note_failure(self, record: Record, call: Any) -> None:
        # Not of a `once` step: whether that may run again is asked when it is what ended the run.
        if not (record.ok or record.kind is Kind.COMPENSATION or getattr(call, "is_once", False)):
            self._undo.failed(record)

    def _note_hole(self, record: Record) -> None:
        """What the workflow had cancelled has an outcome all the same."""
        call = self._step_holes.pop(record.position, None)
        self._note_failure(record, call)
        if call is not None:
            self._undo.done(record, call)

    def _deposit(self, name: str, outcome: Outcome) -> None:
        """A signal whose wait is gone goes to the oldest open wait for its name, else into the mailbox."""
        for command in self.open.values():
            if command.kind is Kind.SIGNAL and command.name == name:
                future = self._close(command)
                assert future is not None
                self._holes[command.position] = (Kind.SIGNAL, name)
                self._withdrawn.append(command)
                self.loop.inside(future.set_result, outcome)
                return
        self._mailbox.setdefault(name, deque()).append(outcome)

    def _check_idle(self) -> None:
        if self.fault is not None or self.ending is not None or self.open or self.loop.timers or self._undo_start:
            return
        self.fault = WorkflowStuck(
            f"run {self.run_id!r} waits for something that nothing recorded can wake{self._location()}. Workflow code "
            f"may wait only for steps, timers, signals and its own tasks: do this in a step."
        )

    def _location(self) -> str:
        place = self.loop.location()
        return f" (at {place})" if place else ""

    def _drift(self, record: Record, command: Command | None = None, timer: str | None = None) -> NonDeterminismError:
        return NonDeterminismError(
            describe_drift(
                run_id=self.run_id,
                record=record,
                before=list(self._history),
                issued=list(self._trail),
                command=command,
                timer=timer,
                ended=self.ending is not None,
                patches=self.patches,
                recorded_python=self._recorded_python,
            )
        )


def current_execution() -> Execution | None:
    """The execution whose workflow code is running now, if any."""
    loop = running_loop()
    return loop.owner if loop is not None else None
