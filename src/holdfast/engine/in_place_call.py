"""Calls that the program executes itself, where they are made.

A step runs on the engine's event loop, or in one of its threads. What belongs to the program's own loop or thread, such
as a tool of an agent or a streamed answer of a model, is executed in place: the step waits while the caller executes
it, and then records the outcome that the caller reports. A step with retries may ask the caller for another attempt.

Calls that such code makes are recorded, too, in a logical thread of their own. An *opaque* call is one step with all
that happens in it: the calls in it are not recorded.

A caller that does not report an outcome withdraws the call. If the program makes it again, it has the same position.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.core.program_calls import LogicalThread
from holdfast.engine.program_context import OUTSIDE, ProgramContext, current_program, get_owner
from holdfast.engine.step_context import StepContext, current_context

if TYPE_CHECKING:
    from holdfast.engine.program_run import CallContent, ProgramRun
    from holdfast.engine.step_run import StepRun
    from holdfast.telemetry.telemetry import StepTelemetry

T = TypeVar("T")

AnyFuture = asyncio.Future[Any] | ThreadFuture[Any]
StepFunction = Callable[..., Coroutine[Any, Any, Any]]
MakeStepCall = Callable[[StepFunction], Coroutine[Any, Any, Any]]
"""Makes the coroutine that calls the step, with this function in place of the step's own."""
BeforeCall = Callable[[], Awaitable[None]]
"""Awaited in the step, on the engine's event loop, before the caller executes the call."""


class NotRecorded(Exception):
    """Raised by a function that is executed in place, to withdraw the call and return this value to its caller."""

    def __init__(self, value: Any) -> None:
        super().__init__("the call is withdrawn")
        self.value = value


class _StartedCall(NamedTuple):
    """A call that the caller must execute."""

    context: StepContext
    position: int
    telemetry: StepTelemetry | None


class InPlaceCall:
    """One call in place: ``start`` it, execute it unless it is recorded, ``report`` its outcome, and ``close`` it.

    Args:
        run: the program.
        thread: the logical thread that makes the call.
        content: the content of the call.
        make_step_call: makes the call of its step.
        before: see ``BeforeCall``.
        is_opaque: whether the calls in it are not recorded.
    """

    def __init__(
        self,
        run: ProgramRun,
        thread: LogicalThread,
        content: CallContent,
        make_step_call: MakeStepCall,
        *,
        before: BeforeCall | None = None,
        is_opaque: bool = False,
    ) -> None:
        self._run = run
        self._thread = thread
        self._content = content
        self._make_step_call = make_step_call
        self._before = before
        self._is_opaque = is_opaque
        self._next_attempt: AnyFuture = self._create_future()
        """The attempt that the caller must execute next, or ``None``: the call has an outcome."""
        self._attempt: _StartedCall | None = None
        """The attempt that the caller executes."""
        self._reported: asyncio.Future[Any] | None = None
        self._future: Any = None
        self._waiting: asyncio.Future[Any] | None = None

    # In the step, on the engine's event loop

    async def _make(self) -> Any:
        """The call."""
        try:
            return await self._make_step_call(self._wait_for_caller)
        finally:
            self._announce(None)  # a turn of the event loop before `_on_outcome`

    async def _wait_for_caller(self, *_: Any, **__: Any) -> Any:
        """The function of the step."""
        if self._before is not None:
            await self._before()
        context = current_context.get()
        step_run: StepRun = context._executor  # type: ignore[assignment]
        reported = self._reported = self._run.loop.create_future()
        self._announce(_StartedCall(context, step_run.command.position, step_run.telemetry))
        return await reported

    def _announce(self, attempt: _StartedCall | None) -> None:
        if not self._next_attempt.done():  # else the caller was cancelled, and withdraws the call
            self._next_attempt.set_result(attempt)

    def _on_outcome(self, _: object) -> None:
        self._announce(None)

    def _set_reported(self, value: Any, error: BaseException | None) -> None:
        reported = self._reported
        if reported is None or reported.done():
            return
        if error is None:
            reported.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            reported.set_exception(RuntimeError("the step raised StopIteration"))
        else:
            reported.set_exception(error)

    # For the caller

    async def start(self) -> bool:
        """Start the call from async code. Returns whether the caller must execute it: no outcome is recorded."""
        self._future, self._waiting = self._run.submit(self._thread, self._make, self._content)
        self._future.add_done_callback(self._on_outcome)
        return await self._wait_for_attempt()

    async def _wait_for_attempt(self) -> bool:
        """Whether the caller must execute an attempt, instead of waiting for the outcome."""
        if self._future.done():
            return False
        coming = self._next_attempt
        self._attempt = await (coming if isinstance(coming, asyncio.Future) else asyncio.wrap_future(coming))
        return self._attempt is not None

    def start_sync(self) -> bool:
        """Start the call from other code."""
        self._future = self._run.submit_from_thread(self._thread, self._make, self._content)
        self._future.add_done_callback(self._on_outcome)
        return self._wait_for_attempt_sync()

    def _wait_for_attempt_sync(self) -> bool:
        if self._future.done():
            return False
        coming = self._next_attempt
        assert isinstance(coming, ThreadFuture)
        self._attempt = coming.result()
        return self._attempt is not None

    def _create_future(self) -> AnyFuture:
        """A future that the caller waits for. Most callers run on the engine's event loop."""
        is_on_loop = events._get_running_loop() is self._run.loop
        return self._run.loop.create_future() if is_on_loop else ThreadFuture()

    @contextmanager
    def executing(self) -> Generator[StepContext]:
        """The block in which the caller executes the call; a stream has one for each of its parts."""
        started = self._attempt
        assert started is not None
        inner = OUTSIDE if self._is_opaque else ProgramContext(self._run, LogicalThread(started.position), get_owner())
        token, step_token = current_program.set(inner), current_context.set(started.context)
        telemetry = started.telemetry
        span_token = None if telemetry is None else telemetry.enter()
        try:
            yield started.context
        finally:
            if telemetry is not None:
                telemetry.leave(span_token)
            current_context.reset(step_token)
            current_program.reset(token)

    def report(self, value: Any, error: BaseException | None = None) -> None:
        """Report the outcome of an attempt, from any thread. It is then recorded, unless the step makes another one."""
        self._next_attempt = self._create_future()
        if events._get_running_loop() is self._run.loop:
            self._set_reported(value, error)
        else:
            self._run.loop.call_soon_threadsafe(self._set_reported, value, error)

    async def wait(self) -> Any:
        """The recorded outcome: the value, or an exception."""
        assert self._waiting is not None
        return await self._waiting

    def wait_sync(self) -> Any:
        """The same, from other code."""
        return self._future.result()

    def close(self) -> None:
        """Withdraw the call, unless it has an outcome."""
        if self._future is not None:
            self._run.abandon(self._future)

    def release(self) -> None:
        """The caller is done with the call. Its outcome may still be on its way to the store."""
        # Both refer back to this object: only the garbage collector would free it, with the request and the answer.
        self._attempt = self._future = None

    # A call of a function

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """The recorded outcome of the function."""
        origin: TracebackType | None = None
        try:
            must_execute = await self.start()
            while must_execute:
                with self.executing():
                    try:
                        value, error = await function(), None
                    except NotRecorded as unrecorded:
                        return unrecorded.value
                    except Exception as raised:
                        value, error, origin = None, raised, raised.__traceback__
                self.report(value, error)
                must_execute = await self._wait_for_attempt()
            return await self.wait()
        except Exception as recorded:
            if origin is not None:
                recorded.__traceback__ = origin  # where it was raised
            raise
        finally:
            self.close()
            self.release()

    def call_sync(self, function: Callable[[], T]) -> T:
        """The same, from other code."""
        origin: TracebackType | None = None
        try:
            must_execute = self.start_sync()
            while must_execute:
                with self.executing():
                    try:
                        value, error = function(), None
                    except NotRecorded as unrecorded:
                        return unrecorded.value
                    except Exception as raised:
                        value, error, origin = None, raised, raised.__traceback__
                self.report(value, error)
                must_execute = self._wait_for_attempt_sync()
            return self.wait_sync()
        except Exception as recorded:
            if origin is not None:
                recorded.__traceback__ = origin  # where it was raised
            raise
        finally:
            self.close()
            self.release()
