"""The workflow's code: its main task, how it ends, and the compensation of its steps.

**Cancelling the run.** The record of the cancel request, live and in replay, cancels the workflow's main task. From
there on asyncio's rules apply: ``finally`` blocks run, open commands are withdrawn, and code that swallows the
cancellation completes. A second request changes nothing. If the code has ended, but its end is not recorded yet, the
run is cancelled and compensated all the same.

**Compensation.** When the workflow's code ends with an exception, its recorded steps are compensated, last record
first, one after the other. Compensations are commands of their own kind, so a step never takes the outcome of a
compensation, nor the reverse. They are replayed like any command, so a crash in between needs nothing more. A step that
was cancelled is compensated as well if its outcome reaches the journal. Such an outcome may still be on its way when
the code ends. So compensation waits until the engine says, with ``try_start_compensation``, that no more of them will
come. In replay, they are in the journal before the first compensation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from holdfast.core.commands import Outcome
from holdfast.core.compensations import CompensationLog
from holdfast.core.failure_origin import FailureOrigin, find_origins, has_origin, iter_exception_chain
from holdfast.core.loop import RunLoop
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.errors import HoldfastError, RunParked, RunTimedOut, UnreadableRecord, UsageError


class Hole(NamedTuple):
    """The position of a command that the workflow has cancelled."""

    kind: RecordKind
    name: str
    last_seq: int
    """``seq`` of the last record that the workflow had seen when it cancelled the command."""
    call: Any = None
    """The call of a step that has a compensation or is ``once``, and no record: it may have been executed anyway."""


class ExecutionResult(NamedTuple):
    """How the workflow's code ended: with a value, or with an exception."""

    value: Any
    error: BaseException | None
    is_cancelled: bool = False
    """The code ended because the run was cancelled."""
    failed_compensation: tuple[str, Record] | None = None
    """The name of the step whose compensation failed, and the record of that failure."""
    rewind: Rewind | None = None
    """What a retry removes from the journal."""


class WorkflowCode:
    """The code of one run. An ``Execution`` delivers its outcomes."""

    def __init__(self, run_id: str, main: Callable[[], Coroutine[Any, Any, Any]], start_time: float) -> None:
        self.run_id = run_id
        self.loop = RunLoop(run_id, start_time)
        self.result: ExecutionResult | None = None
        self.fatal_error: HoldfastError | None = None
        """Why the run cannot continue with this code; its journal stays as it is."""
        self._main = main
        self._last_seq = -1
        """``seq`` of the last delivered record."""
        self._issued_count: int = 0
        """How many commands the workflow has issued."""
        self._holes: dict[int, Hole] = {}
        self.is_compensation_held = False
        """Whether the workflow's code has ended, and compensation waits for ``try_start_compensation``."""
        self._compensation_start: asyncio.Future[None] | None = None
        """Done when compensation may start; until then, outcomes of cancelled steps may come."""
        self._main_task: asyncio.Task[None] | None = None
        self._interrupted_by: tuple[RecordKind, FailureOrigin] | None = None
        """The deadline or the cancellation that interrupted the workflow, whichever came first."""
        self._is_cancelled_late = False
        """The cancellation came after the workflow's own code had ended."""
        self._has_code_ended = False
        self._failure_origins: Sequence[FailureOrigin] = ()
        """The records that ended the workflow's code."""
        self._is_compensated = False

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """A new command at the next position; await the future for its outcome."""
        raise NotImplementedError

    def add_unhandled_error(self, context: dict[str, Any]) -> None:
        """An exception that no workflow code has seen."""
        raise NotImplementedError

    # The workflow's main task

    async def _run_main(self) -> None:
        is_cancelled = False
        try:
            value, error = await self._main(), None
        except (RunParked, GeneratorExit):
            raise
        except asyncio.CancelledError as cancelled:
            value, error = None, cancelled
            if self._interrupted_by is not None and self._interrupted_by[0] is RecordKind.DEADLINE:
                error = RunTimedOut(f"run {self.run_id!r} did not end within its workflow's time-out")
            is_cancelled = self._interrupted_by is not None and self._interrupted_by[0] is RecordKind.CANCEL
        except (SystemExit, KeyboardInterrupt) as stop:
            # If these left the loop, they would take the worker down with all its other runs. Their own `str()` is not
            # called, because it may raise the same. Most exit codes are a number.
            code = f"({stop.code})" if isinstance(stop, SystemExit) and type(stop.code) is int else ""
            name = f"{type(stop).__name__}{code}"
            stopped = UsageError(f"workflow code raised {name}; raise an ordinary exception to fail the run")
            value, error = None, stopped
        except UnreadableRecord as unreadable:
            if not has_origin(unreadable):
                # Not the failure of a step, but a record that this code cannot decode: no reason to compensate.
                self.fatal_error = self.fatal_error or unreadable
                return
            value, error = None, unreadable
        except BaseException as raised:
            value, error = None, raised
        await self._cancel_remaining_tasks()
        if error is None and self._is_cancelled_late:
            value, error, is_cancelled = None, asyncio.CancelledError(), True
        await self._compensate_and_finish(value, error, is_cancelled)

    async def _compensate_and_finish(self, value: Any, error: BaseException | None, is_cancelled: bool) -> None:
        """The workflow's code has ended: compensate its steps if it failed, and set the result."""
        if error is None:
            self.result = ExecutionResult(value, None)
            return
        if any(hole.call is not None for hole in self._holes.values()):
            self._compensation_start, self.is_compensation_held = self.loop.create_future(), True
            await self._compensation_start
        failed: tuple[str, Outcome] | None = None
        while self._compensations and failed is None:
            record, call = self._compensations.pop_step()
            try:
                undo = call.build_compensation(record.payload or b"null")
            except HoldfastError as unfit:  # the code no longer fits the journal
                if record.is_settled:
                    continue  # a person settled it with an invalid value: its outcome is still unknown
                self.fatal_error = unfit
                return
            if undo is None:
                continue
            outcome = await self.issue(RecordKind.COMPENSATION, *undo)
            if outcome.record.ok:
                self._compensations.compensated_count += 1
            else:
                failed = record.name, outcome  # earlier steps may depend on it: a person has to look first
        if failed is not None:
            self._failure_origins = [failed[1].origin]
        elif isinstance(error, asyncio.CancelledError | RunTimedOut) and self._interrupted_by is not None:
            self._failure_origins = [self._interrupted_by[1]]
        else:
            self._failure_origins = find_origins(error) or self._find_interruption(error)
        self._is_compensated = failed is None and self._compensations.compensated_count > 0
        self.result = ExecutionResult(
            None,
            error,
            is_cancelled,
            None if failed is None else (failed[0], failed[1].record),
            self._build_rewind(),
        )

    def _find_interruption(self, error: BaseException) -> list[FailureOrigin]:
        """The deadline or the cancellation, if the code turned it into another exception."""
        if self._interrupted_by is None:
            return []
        is_cause = any(isinstance(one, asyncio.CancelledError) for one in iter_exception_chain(error))
        return [self._interrupted_by[1]] if is_cause else []

    def _build_rewind(self) -> Rewind | None:
        children = {at: hole.last_seq for at, hole in self._holes.items() if hole.kind is RecordKind.CHILD}
        return self._compensations.build_rewind(self._failure_origins, children, is_compensated=self._is_compensated)

    def _interrupt(self, record: Record) -> None:
        """The run's deadline has passed, or the run was cancelled."""
        if self._interrupted_by is not None:
            return  # it is being interrupted already; a second interruption would hit its cleanup
        if not self._has_code_ended:
            self._interrupted_by = (record.kind, self._make_origin(record))
            if self._main_task is not None:
                self.loop.call_inside(self._main_task.cancel)
        elif record.kind is RecordKind.CANCEL:
            # The code has ended: there is nothing to interrupt, but steps to compensate if it ended successfully.
            self._interrupted_by = (record.kind, self._make_origin(record))
            self._is_cancelled_late = True
            if self.result is not None and self.result.error is None:
                self._compensate_after_end(asyncio.CancelledError(), True)

    def _compensate_after_end(self, error: BaseException, is_cancelled: bool) -> None:
        """There is something to compensate after all."""
        if self.result is not None and self.result.failed_compensation is not None:
            return  # a compensation has failed, so a person has to look first
        self.result = None
        self._main_task = self.loop.create_main_task(self._compensate_and_finish(None, error, is_cancelled))

    async def _cancel_remaining_tasks(self) -> None:
        """End the tasks that the workflow left running, as ``asyncio.run`` does, before its end is recorded."""
        self._has_code_ended = True
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
                self.add_unhandled_error({"message": "closing an async generator failed", "exception": error})

    # Compensation

    def is_unrecorded_cancelled_step(self, position: int, name: str) -> bool:
        """Whether this is a cancelled step without a record that has a compensation or is ``once``.

        It may have been executed anyway.
        """
        hole = self._holes.get(position)
        return hole is not None and hole.call is not None and hole.name == name

    def try_start_compensation(
        self, upcoming: Iterable[Record] = (), *, expected_positions: Collection[int] = ()
    ) -> bool:
        """Start a compensation that is held, unless outcomes of cancelled steps may still come.

        Call it whenever the workflow is idle. ``upcoming`` are the records that are not delivered yet, in order;
        ``expected_positions`` are positions with outcomes that may be recorded later. True when the workflow has
        something to do.
        """
        if self._compensation_start is None:
            return False
        awaited = {position for position, hole in self._holes.items() if hole.call is not None}
        if not awaited.isdisjoint(expected_positions):
            return False
        for record in upcoming:
            if record.kind is RecordKind.COMPENSATION:
                break
            if record.kind is RecordKind.STEP and record.position in awaited:
                return False
        start, self._compensation_start, self.is_compensation_held = self._compensation_start, None, False
        self.loop.call_inside(start.set_result, None)
        return True

    def _revise_result(self) -> None:
        """A record came after the workflow ended: it may need compensation, or removal by a retry."""
        ending = self.result
        if ending is None or ending.error is None:
            return
        self.result = ending._replace(rewind=self._build_rewind())
        if self._compensations:
            self._compensate_after_end(ending.error, ending.is_cancelled)

    def _note_failure(self, record: Record, call: Any) -> None:
        # Not of a `once` step: whether that may run again is decided only if it ended the run.
        if not (record.ok or record.kind is RecordKind.COMPENSATION or getattr(call, "is_once", False)):
            self._compensations.add_failure(record)

    def _note_late_outcome(self, record: Record) -> None:
        """A command that the workflow had cancelled has an outcome all the same."""
        hole = self._holes[record.position]
        self._note_failure(record, hole.call)
        if hole.call is not None:
            self._holes[record.position] = hole._replace(call=None)
            self._compensations.add_outcome(record, hole.call)

    def _make_origin(self, record: Record) -> FailureOrigin:
        return FailureOrigin(record.seq, self._issued_count, self.loop.issued_timer_count)

    @cached_property
    def _compensations(self) -> CompensationLog:
        """What can be compensated. Most runs need none."""
        return CompensationLog()
