"""A run whose code is a program: it runs outside the run's loop, and its calls are matched by content.

The workflow code of such a run only waits for the program. Each call that the program makes is a task on the run's
loop (``start_call``), so a program may call what workflow code may call: steps, approvals, other runs. What differs is
how commands get their positions. ``program_calls`` decides it, so that it does not matter in which order the calls
come. A replay delivers the whole journal at once, and each call finds its outcome there.

The engine runs the program: see ``engine.program_run``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NamedTuple, NoReturn

from holdfast.core.commands import UNDECODED, Command, Outcome, make_outcome
from holdfast.core.execution import Execution
from holdfast.core.program_calls import CallLog, LoggedCall, LogicalThread, ProgramChanged
from holdfast.core.records import WAIT_KINDS, Record, RecordKind
from holdfast.errors import NonDeterminismError, UsageError

NOTHING_ISSUED_LATER = 1 << 53
"""A failure of a program is no reason to remove what was issued later: see ``Rewind``."""

_COMPENSATIONS = -2
"""The container of the logical thread that compensates the program's steps."""


DescribeCall = Callable[[int], str]
"""Returns the details of a call at this position, for its record. It is called also if the call is recorded already."""
ExplainChange = Callable[[LoggedCall, Callable[[int], LoggedCall | None]], str]
"""Describes how a call differs from the recorded one that is expected; it can look up calls by their positions."""


class CallSite(NamedTuple):
    """A call that the program makes."""

    thread: LogicalThread
    digest: str = ""
    describe: DescribeCall | None = None
    explain_change: ExplainChange | None = None


current_call_site: contextvars.ContextVar[CallSite] = contextvars.ContextVar("holdfast_call_site")
"""The program's call that the current task of the run's loop makes."""


class ProgramExecution(Execution):
    """The run of a program at one point of its journal."""

    def __init__(
        self,
        run_id: str,
        encode_result: Callable[[Any], bytes],
        *,
        intended_positions: Collection[int] = (),
        **options: Any,
    ) -> None:
        super().__init__(run_id, self._await_program, **options)
        self.calls = CallLog(intended_positions)
        self.unsaved_calls = ()
        self.cancel_program: Callable[[], None] = lambda: None
        """Interrupts the program, which then ends by itself."""
        self.passes_over_changes = False
        """Whether the program may take another path than the recorded one."""
        self.on_answered: Callable[[Record], object] = lambda _: None
        """Called when a call gets its outcome from the journal."""
        self._encode_result = encode_result
        self._program_end: asyncio.Future[Any] | None = None
        self._new_commands: list[Command] = []
        self._open_calls: dict[int, tuple[LogicalThread, LoggedCall]] = {}
        """The calls of open commands, by position."""
        self._compensation_site = CallSite(LogicalThread(_COMPENSATIONS))
        self.loop.call_at = self._refuse_timer

    # The program

    async def _await_program(self) -> bytes:
        end = self._program_end = self.loop.create_future()
        try:
            value = await asyncio.shield(end)
        except asyncio.CancelledError:
            if end.done():
                raise
            self.cancel_program()
            value = await end
        return self._encode_result(value)

    def end_program(self, value: Any, error: BaseException | None) -> None:
        """The program has returned this value, or raised this error; call ``turn`` until idle after it."""
        end, loop = self._program_end, self.loop
        if end is None or end.done() or loop.is_closing:
            return
        if error is None:
            loop.call_inside(end.set_result, value)
        elif isinstance(error, asyncio.CancelledError):
            loop.call_inside(end.cancel)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            loop.call_inside(end.set_exception, RuntimeError("the program raised StopIteration"))
        else:
            loop.call_inside(end.set_exception, error)

    def start_call(
        self,
        site: CallSite,
        context: contextvars.Context,
        call: Callable[[], Coroutine[Any, Any, Any]],
        on_done: Callable[[asyncio.Task[Any]], object],
    ) -> asyncio.Task[Any]:
        """Make a call of the program, in this context; call ``turn`` until idle after it."""
        context.run(current_call_site.set, site)
        return self.loop.create_call_task(call(), context, on_done)

    def unload(self) -> None:
        """Take the run out of memory, at any point."""
        if self.loop.is_closing:
            return
        super().unload()
        # These refer back to this object: only the garbage collector would free it, with the program's calls.
        del self._main, self.cancel_program, self.loop.call_at

    # What differs from a workflow

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """A new command, at the position of the recorded call that it repeats, else at the next one."""
        loop = self.loop
        if loop.is_closing:
            return loop.refuse_command()
        site = current_call_site.get(self._compensation_site)
        logged = self._find_logged(site, kind, name, is_once=getattr(call, "is_once", False))
        position = self.calls.next_position if logged is None else logged.position
        details = "" if site.describe is None else site.describe(position)
        if logged is None:
            logged = self.calls.add(site.thread, kind, name, site.digest, details)
            self.unsaved_calls = (*self.unsaved_calls, logged)
            self._issued_count = self.calls.next_position
        command = Command(loop, self, kind, logged.position, name, call)
        if logged.outcome is not None:
            command.close()
            self._note_outcome(logged.outcome.record, call)
            self.on_answered(logged.outcome.record)
            command.set_result(logged.outcome)
            logged.outcome = None
            return command
        self._holes.pop(logged.position, None)
        self.open_commands[logged.position] = command
        self.wait_count += kind in WAIT_KINDS
        self._open_calls[logged.position] = (site.thread, logged)
        self._new_commands.append(command)
        return command

    def _find_logged(self, site: CallSite, kind: RecordKind, name: str, *, is_once: bool) -> LoggedCall | None:
        """The recorded call that this call repeats; ``None``: it is new."""
        try:
            return self.calls.find(site.thread, kind, name, site.digest, is_once=is_once)
        except ProgramChanged as changed:
            recorded = changed.recorded
        patch = f"another path at call #{recorded.position + 1}"
        if self.passes_over_changes:
            self.patches.add(patch)
        if not self.patches.is_active(patch):
            self.fatal_error = self.fatal_error or self._make_change_error(recorded, name, site)
            raise self.fatal_error
        is_elsewhere = recorded not in site.thread.unmatched
        if is_elsewhere:
            self.calls.take_from_unstarted(recorded)  # a `once` call: also on another path, it happens once
        self.calls.skip_unmatched(site.thread)
        return recorded if is_elsewhere else None

    @property
    def next_position(self) -> int:
        """The position of the command that the current call issues next."""
        site = current_call_site.get(self._compensation_site)
        return self.calls.peek_position(site.thread, site.digest)

    def withdraw(self, command: Command) -> None:
        """The program cancelled this call. If it makes the call again, it has the same position."""
        if (found := self._open_calls.get(command.position)) is not None:
            self.calls.put_back(*found)
        super().withdraw(command)

    def take_issued(self) -> list[Command]:
        """Commands issued since the last call that are still open, in order."""
        new, self._new_commands = self._new_commands, []
        return [command for command in new if self.open_commands.get(command.position) is command]

    def deliver(self, record: Record, value: Any = UNDECODED) -> None:
        """Deliver one record; call ``turn`` until idle after it."""
        if record.kind is not RecordKind.CALL:
            super().deliver(record, value)
        elif self.loop.is_replaying:
            self.calls.add_recorded(record)
            self._issued_count = self.calls.next_position

    def deliver_after_end(self, record: Record) -> None:
        """The program has ended, but its journal continues: with outcomes of calls that it no longer waited for."""
        if record.kind is RecordKind.CANCEL or (record.kind.has_position and record.position in self._holes):
            super().deliver_after_end(record)

    def _resolve_command(self, record: Record, value: Any) -> None:
        position = record.position
        command, logged = self.open_commands.get(position), self.calls.get(position)
        if logged is None or logged.identity.kind is not record.kind or logged.name != record.name:
            self._stop_on_drift(record, command)
            return
        self.loop.advance_time(record.at)
        outcome = make_outcome((record, value, NOTHING_ISSUED_LATER, NOTHING_ISSUED_LATER))
        if command is None:
            logged.outcome = outcome
            if self.loop.is_replaying:
                logged.record = record
            if position in self._holes:
                self._note_late_outcome(record)
            return
        self._close_command(command)
        self._note_outcome(record, command.call)
        self.loop.call_inside(command.set_result, outcome)

    def _note_outcome(self, record: Record, call: Any) -> None:
        if not record.ok:
            self._note_failure(record, call)
        if call is not None and record.kind in (RecordKind.STEP, RecordKind.COMPENSATION) and call.is_noted:
            self._compensations.add_outcome(record, call)

    def _close_command(self, command: Command) -> None:
        super()._close_command(command)
        self._open_calls.pop(command.position, None)

    def _check_not_stuck(self) -> None:
        """A program may wait for anything."""

    def _refuse_timer(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            f"run {self.run_id!r}: the calls of a program cannot have time limits, reminders, or delays, because its "
            "waits are not recorded. Wait in a @workflow, which can call the program."
        )

    def _make_change_error(self, recorded: LoggedCall, name: str, site: CallSite) -> NonDeterminismError:
        explanation = "" if site.explain_change is None else site.explain_change(recorded, self.calls.get)
        if not explanation:
            what = "other arguments" if recorded.name == name else f"a call of {recorded.name!r}"
            explanation = f"  recorded: {what}"
        return NonDeterminismError(
            f"run {self.run_id!r} cannot continue: its program calls {name!r} where the journal has call "
            f"#{recorded.position + 1} ({recorded.name}) with other content.\n\n{explanation}\n\n"
            "The journal is untouched. A program must make the same calls when it runs again: put what changes each "
            "time (the time, random ids) into a step. To continue with the earlier code or input, run "
            f"`holdfast retry {self.run_id}` first, then start the program again."
        )
