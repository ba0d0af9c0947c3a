"""The program of a held run: its task or thread, and the calls that it makes.

An async program is a task on the process's event loop; a plain function has a thread of its own. A program may start
further tasks, threads, and event loops. A call may come from any of them, so it moves to the engine's event loop,
becomes a task of the run there (``core.program_execution``), and the caller waits for it where it is.

**The end.** When the run leaves memory before its program has ended, the program is cancelled, and every call raises
``RunParked``. A thread cannot be stopped from outside: it ends at its next call.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.core.program_calls import LogicalThread
from holdfast.core.program_execution import CallSite, DescribeCall, ExplainChange, ProgramExecution
from holdfast.engine.program_context import (
    ProgramContext,
    copy_context_without_program,
    current_program,
    get_owner,
    propagate_to_threads,
)
from holdfast.errors import RunParked, UsageError

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import StepHost

log = logging.getLogger("holdfast.engine")

T = TypeVar("T")

MAX_NAMED_CALLS = 5
"""Calls that a warning names."""
CANCEL_AFTER_S = 2.0
"""A program that was cancelled in an earlier process is interrupted after this time at the latest."""

MakeCall = Callable[[], Coroutine[Any, Any, Any]]
"""Makes the coroutine of a call, which runs on the run's loop."""
AnyFuture = asyncio.Future[Any] | ThreadFuture[Any]


class CallContent(NamedTuple):
    """The content of a call, by which it is found again."""

    digest: str = ""
    describe: DescribeCall | None = None
    explain_change: ExplainChange | None = None


NO_CONTENT = CallContent()


class ProgramRun:
    """The program of a driver's run."""

    def __init__(
        self,
        host: StepHost,
        driver: Driver,
        execution: ProgramExecution,
        function: Callable[[], Any],
        *,
        is_async: bool,
    ) -> None:
        self.execution = execution
        self.is_closed = False
        """Whether the run has left memory."""
        self.owns_process = False
        """Whether all code of this process belongs to it (``holdfast run``)."""
        self.extras: dict[str, object] = {}
        """What adapters for frameworks remember about this run, by their names."""
        self.once_calls: dict[str, ThreadFuture[Any]] = {}
        """The calls of ``once`` in this process, by their keys."""
        self._host = host
        self._driver = driver
        self.loop = host.loop
        """The engine's event loop."""
        self._function = function
        self._is_async = is_async
        self._is_launched = self._has_ended = False
        self.thread: threading.Thread | None = None
        """The thread of a plain function."""
        self._task: asyncio.Task[None] | None = None
        self._cancels_at_new_call = False
        self._cancels_next_call = False
        """A plain function makes no call now: the next one raises ``CancelledError``."""
        self._calls: dict[AnyFuture, asyncio.Task[Any]] = {}
        """The calls in flight, by the future that the caller waits for."""
        execution.cancel_program = self.cancel

    @property
    def is_blocked(self) -> bool:
        """Whether the program waits for a call, has not begun, or has ended."""
        return bool(self._calls) or not self._is_launched or self._has_ended

    # Its life

    def launch(self) -> None:
        """Start the program, once."""
        if self._is_launched:
            return
        self._is_launched = True
        propagate_to_threads()
        if self._cancels_at_new_call:
            self.loop.call_later(CANCEL_AFTER_S, self._interrupt_waiting)
        # An empty context: variables in the starter's context would be missing when the program runs again.
        context = contextvars.Context()
        if self._is_async:
            self._task = self.loop.create_task(self._run_async(), context=context)
        else:
            target = partial(context.run, self._run_in_thread)
            self.thread = threading.Thread(target=target, name=f"program {self._driver.run.id}", daemon=True)
            self.thread.start()

    async def _run_async(self) -> None:
        value = error = None
        self._enter()
        try:
            value = await self._function()
        except BaseException as raised:
            error = raised
        self._task = None
        self._end(value, error)

    def _run_in_thread(self) -> None:
        value = error = None
        self._enter()
        try:
            value = self._function()
        except BaseException as raised:
            error = raised
        try:
            self.loop.call_soon_threadsafe(self._end, value, error)
        except RuntimeError:
            log.debug("the program of run %r has ended after its event loop", self._driver.run.id)

    def _enter(self) -> None:
        current_program.set(ProgramContext(self, self.execution.calls.main_thread, get_owner()))

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._has_ended = True
        if isinstance(error, asyncio.CancelledError) and self._host.is_stopping:
            return  # the end of `asyncio.run` cancels every task: the run leaves memory, and has not ended
        if not self.is_closed:
            if error is None and self.execution.fatal_error is None:
                self._warn_of_another_path()
            self.execution.end_program(value, error)
            self._driver.advance()

    def _warn_of_another_path(self) -> None:
        """Say so if the program has ended without calls that it made before a crash."""
        left = [call for call in self.execution.calls.list_calls() if call.is_unrepeated]
        if left:
            names = ", ".join(f"{call.name} (#{call.position + 1})" for call in left[:MAX_NAMED_CALLS])
            log.warning(
                "run %r: its program has ended without repeating %d recorded %s: %s%s. It has taken another path than "
                "before, and what it did there was done in addition. A program must make the same calls when it runs "
                "again: put what changes each time into a step",
                self._driver.run.id, len(left), "call" if len(left) == 1 else "calls", names,
                ", ..." if len(left) > MAX_NAMED_CALLS else "",
            )  # fmt: skip

    def cancel(self) -> None:
        """Interrupt the program.

        If that has happened in an earlier process, that process may have recorded what the program did afterwards. So
        the program is interrupted when it makes the first call without a recorded outcome.
        """
        if self._is_launched:
            self.loop.call_soon(self._interrupt)  # not now: the run's loop is in a turn
        else:
            self._cancels_at_new_call = True

    def _interrupt_waiting(self) -> None:
        if self._cancels_at_new_call and not self.is_closed:
            self._interrupt()

    def _interrupt(self) -> None:
        self._cancels_at_new_call = False
        if self._task is not None:
            self._task.cancel()
        elif not self._is_async:
            self._cancels_next_call = not self._calls
            for call in list(self._calls.values()):
                self._cancel_call(call)

    def close(self) -> None:
        """The run leaves memory."""
        if self.is_closed:
            return
        self.is_closed = True
        calls, self._calls = self._calls, {}
        for future in calls:
            if not future.done():
                future.set_exception(self._make_parked_error())
                future.exception()  # a caller that is cancelled does not look at it
        if self._task is not None:
            lingering = self._host.lingering_tasks
            lingering.add(self._task)
            self._task.add_done_callback(lingering.discard)
            self._task.cancel()

    def _make_parked_error(self) -> RunParked:
        reason = "is leaving memory" if (error := self.execution.fatal_error) is None else f"has failed: {error}"
        return RunParked(f"run {self._driver.run.id!r} {reason}")

    # Its calls

    async def call(self, thread: LogicalThread, make: MakeCall, content: CallContent = NO_CONTENT) -> Any:
        """Make a call, from async code of the program."""
        future, waiting = self.submit(thread, make, content)
        try:
            return await waiting
        finally:
            self.abandon(future)

    def call_sync(self, thread: LogicalThread, make: MakeCall, content: CallContent = NO_CONTENT) -> Any:
        """Make a call, from other code of the program."""
        future = self.submit_from_thread(thread, make, content)
        try:
            return future.result()
        finally:
            self.abandon(future)

    def submit(
        self, thread: LogicalThread, make: MakeCall, content: CallContent
    ) -> tuple[AnyFuture, asyncio.Future[Any]]:
        """Start a call from async code. Returns the future of the call, and the one to wait for on this loop."""
        context = copy_context_without_program()
        if events._get_running_loop() is self.loop:
            future: asyncio.Future[Any] = self.loop.create_future()
            self._start_call(thread, make, content, context, future)
            return future, future
        elsewhere: ThreadFuture[Any] = ThreadFuture()
        self.loop.call_soon_threadsafe(self._start_call, thread, make, content, context, elsewhere)
        return elsewhere, asyncio.wrap_future(elsewhere)

    def submit_from_thread(self, thread: LogicalThread, make: MakeCall, content: CallContent) -> ThreadFuture[Any]:
        """Start a call from other code."""
        if events._get_running_loop() is self.loop:
            raise UsageError(
                f"run {self._driver.run.id!r}: a blocking call cannot be recorded here, because recording it needs the "
                "event loop that it blocks. Await the async form of the call, or move it to a thread: "
                "`await asyncio.to_thread(...)`"
            )
        future: ThreadFuture[Any] = ThreadFuture()
        context = copy_context_without_program()
        self.loop.call_soon_threadsafe(self._start_call, thread, make, content, context, future)
        return future

    def _start_call(
        self,
        thread: LogicalThread,
        make: MakeCall,
        content: CallContent,
        context: contextvars.Context,
        future: AnyFuture,
    ) -> None:
        """Start a call, on the engine's event loop."""
        if self.is_closed:
            future.set_exception(self._make_parked_error())
            return
        if self._cancels_next_call:
            self._cancels_next_call = False
            future.set_exception(asyncio.CancelledError())
            return
        execution = self.execution
        call = execution.start_call(CallSite(thread, *content), context, make, partial(self._on_call_done, future))
        self._calls[future] = call
        if self._cancels_at_new_call:
            while not execution.turn():
                pass
            if not call.done():
                self._interrupt()
        self._driver.advance()

    def _on_call_done(self, future: AnyFuture, call: asyncio.Task[Any]) -> None:
        self._calls.pop(future, None)
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if future.done():
            return
        if self.execution.fatal_error is not None and error is self.execution.fatal_error:
            error = self._make_parked_error()  # the run has failed, and code that catches exceptions must not go on
        if error is None:
            future.set_result(call.result())
        else:
            future.set_exception(error)
            if isinstance(error, RunParked):
                future.exception()  # a caller that is cancelled does not look at it

    def abandon(self, future: AnyFuture) -> None:
        """The caller no longer waits: withdraw the call, unless it is done."""
        if events._get_running_loop() is self.loop:
            if (call := self._calls.pop(future, None)) is not None:
                future.cancel()  # else asyncio reports an exception that was never retrieved
                self._cancel_call(call)
        elif future in self._calls:
            self.loop.call_soon_threadsafe(self.abandon, future)

    def _cancel_call(self, call: asyncio.Task[Any]) -> None:
        if not (self.is_closed or call.done()):
            self.execution.loop.call_inside(call.cancel)
            self._driver.advance()
