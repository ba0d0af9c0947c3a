"""A small event loop on which workflow code runs, and on which nothing happens that is not in the journal.

It is a real ``asyncio`` loop as far as tasks, futures, timers, and callbacks go, so ``gather``, ``TaskGroup``,
``wait``, ``timeout``, ``Queue``, and the rest work unchanged. But only outcomes that the engine delivers can wake it.
Between two deliveries it runs until nothing is ready, so the order of everything it does is a function of the journal
alone.

This needs all of the following; without each one, some replay went wrong:

- **Time** advances only with deliveries: ``time()`` is the largest time among the delivered records. A deadline is
  therefore a function of the journal, and arming a timer needs no write.
- **Tasks and futures hash by number**, not by address: ``asyncio.wait`` and ``TaskGroup`` keep them in sets, and a
  set's order is the order of its hashes. The numbers are salted by the run, because asyncio keeps all tasks of the
  process in one weak set, where equal hashes collide.
- **Cancellations made in one callback take effect in the order in which their futures were created**, not in the order
  of the calls: anyio keeps its cancel scopes in sets ordered by address.
- **Everything is held strongly** (tasks, async generators), so that the garbage collector never decides when a
  ``finally`` block runs.
- **Everything else that a loop can do is refused**, and the refusal also *poisons* the run: code that catches
  ``Exception`` around a network call would otherwise hide that it made one.

Leaving memory (parking, a lost fence, shutdown) is ``unwind``: ``RunParked`` is thrown into every task, newest first,
with commands refused meanwhile. If a run were merely dropped, the collector would close it at a random moment, inside
another run's turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
import warnings
import zlib
from _thread import get_ident  # the core starts no thread
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from holdfast.core.forbidden_methods import find_unordered_caller, forbid_undefined_methods
from holdfast.core.interruption import InterruptWindow, WorkflowBlocked
from holdfast.core.run_tasks import RunFuture, RunTask, get_current_task
from holdfast.core.run_timer import RunTimer
from holdfast.core.source_location import is_library_code, locate_await, locate_task_origin, locate_user_code
from holdfast.errors import ForbiddenInWorkflow, HoldfastError, RunParked

T = TypeVar("T")

_cancel_future = asyncio.Future[Any].cancel

MAX_CALLBACKS_PER_TURN = 2_000
"""How many callbacks one turn runs before other tasks of the process get a turn."""

MAX_CLOSE_ATTEMPTS = 8
"""How often ``RunParked`` is thrown into a task that continues in spite of it."""

MAX_REFUSED_COMMANDS = 50
"""How many commands of a run that leaves memory raise ``RunParked``."""

leaked_tasks: list[object] = []
"""Tasks that survived ``unwind``. Kept forever: collecting them would run their ``finally`` blocks somewhere else."""


class RunLoop(asyncio.AbstractEventLoop):
    """The loop of one run. The module's docstring says what it guarantees."""

    def __init__(self, run_id: str, start_time: float) -> None:
        self.run_id = run_id
        self.is_replaying = True
        """Whether outcomes still come from the journal; logging is suppressed meanwhile."""
        self.is_retracing = False
        """Whether an engine with its own history (Temporal) is replaying it. The run treats the outcomes as new, but
        its log messages were already written, so they are suppressed."""
        self.is_closing = False
        self.interrupt_window = InterruptWindow()
        """The time in which another thread may interrupt the run's code."""
        self.fatal_error: HoldfastError | None = None
        """The first forbidden thing that workflow code did; it fails the run, caught or not."""
        self.execution: Any = None
        """The ``Execution`` that this loop belongs to."""
        self.timers: dict[int, RunTimer] = {}
        self.issued_timer_count = 0
        self.callback_count = 0
        """Callbacks run since the last delivery."""
        self.live_tasks: dict[int, RunTask[Any]] = {}
        self.swallowed_task_numbers: list[int] = []
        """Numbers of tasks that caught ``RunParked`` and returned."""
        self.async_generators: list[AsyncGenerator[Any, Any]] = []
        self._time = start_time
        self.ready: deque[asyncio.Handle] = deque()
        self.cancellations: list[tuple[int, list[asyncio.Handle]]] = []
        """Futures cancelled by the running callback, by number, each with the callbacks that this made ready."""
        self._timer_heap: list[tuple[float, int]] = []
        self.last_number = zlib.crc32(run_id.encode()) << 16
        """The last number of a task or future: the same in every replay, and rarely that of a task of another run."""
        self._is_running = False
        self._refused_count = 0
        self._thread_id = get_ident()

    def allocate_number(self) -> int:
        """The number of a new task or future."""
        self.last_number += 1
        return self.last_number

    @property
    def is_logging_suppressed(self) -> bool:
        """Whether the code's log messages were logged before, or come from a run that leaves memory."""
        return self.is_replaying or self.is_retracing or self.is_closing

    def bind_to_current_thread(self) -> None:
        """Move the loop to the calling thread."""
        self._thread_id = get_ident()

    # Running

    def turn(self, max_callbacks: int = MAX_CALLBACKS_PER_TURN) -> bool:
        """Run what is ready, at most ``max_callbacks`` callbacks; true when nothing is left to run."""
        if not self.ready:
            return True
        outer = self.enter()
        try:
            return self.drain(max_callbacks)
        finally:
            self.leave(outer)

    def drain(self, max_callbacks: int = MAX_CALLBACKS_PER_TURN) -> bool:
        """Like ``turn``, on a loop that was entered."""
        ready, cancellations, window = self.ready, self.cancellations, self.interrupt_window
        cancellations.clear()
        self._is_running = True
        count = 0
        try:
            try:
                window.is_open = True
                while ready and count < max_callbacks:
                    handle = ready.popleft()
                    count += 1
                    if not handle._cancelled:  # type: ignore[attr-defined]
                        try:
                            handle._run()  # type: ignore[attr-defined]
                        except (SystemExit, KeyboardInterrupt):
                            # asyncio lets these leave a loop, which would take the worker down with all its runs. The
                            # task that raised one keeps it as its outcome, for code that awaits the task.
                            pass
                        if cancellations:
                            self._order_cancellations()
            finally:
                window.is_open = False
                if window.is_interrupted:
                    window.absorb_interrupt()
        except WorkflowBlocked:
            pass  # between two callbacks: the interrupting thread has poisoned the run, so this turn was its last
        finally:
            handle = None  # an exception's traceback holds this frame, so the frame must not hold the exception's task
            self._is_running = False
            self.callback_count += count
        return not ready

    def _order_cancellations(self) -> None:
        """Order the cancellations of one callback by the number of their future, not by the order of the calls."""
        cancellations = self.cancellations
        if len(cancellations) > 1:
            woken = {id(handle) for _, handles in cancellations for handle in handles}
            in_order = iter(
                [handle for _, handles in sorted(cancellations, key=lambda one: one[0]) for handle in handles]
            )
            ready = list(self.ready)
            self.ready.clear()
            self.ready.extend(next(in_order) if id(handle) in woken else handle for handle in ready)
        cancellations.clear()

    def call_inside(self, call: Callable[..., T], *args: Any) -> T:
        """Call something that makes callbacks ready: a future's ``set_result``, a task's ``cancel``."""
        was_running, self._is_running = self._is_running, True
        try:
            return call(*args)
        finally:
            self._is_running = was_running

    def enter(self) -> tuple[Any, Any, Any]:
        """Make this the running loop; returns what ``leave`` restores. Only code of the run may be called meanwhile."""
        # Python 3.14 requires this order: leave the outer task, then swap loops; and the reverse on the way out.
        outer = events._get_running_loop()
        task = get_current_task(outer) if outer is not None else None
        if task is not None:
            tasks._leave_task(outer, task)  # type: ignore[attr-defined]
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._on_first_iteration, finalizer=_never_finalize)
        return outer, task, hooks

    def leave(self, before: tuple[Any, Any, Any]) -> None:
        """Make the loop before this one the running one again."""
        outer, task, hooks = before
        sys.set_asyncgen_hooks(*hooks)
        events._set_running_loop(outer)
        if task is not None:
            tasks._enter_task(outer, task)  # type: ignore[attr-defined]

    def advance_time(self, at: float) -> None:
        """Advance the time to ``at``; it never goes back."""
        if at > self._time:
            self._time = at

    # Timers

    def get_next_timer(self) -> RunTimer | None:
        """The open timer that is due first."""
        heap = self._timer_heap
        while heap:
            timer = self.timers.get(heap[0][1])
            if timer is not None:
                return timer
            heapq.heappop(heap)
        return None

    def take_due_timers(self, now: float) -> list[RunTimer]:
        """The open timers due at ``now``, in the order they are due. Each is returned once."""
        due: list[RunTimer] = []
        while (timer := self.get_next_timer()) is not None and timer.when() <= now:
            heapq.heappop(self._timer_heap)
            due.append(timer)
        return due

    def fire_timer(self, position: int) -> bool:
        """Make a timer's callback ready; false when the timer is not open."""
        timer = self.timers.pop(position, None)
        if timer is None:
            return False
        timer._scheduled = False  # type: ignore[attr-defined]
        self.ready.append(timer)
        return True

    # Methods that asyncio calls

    def time(self) -> float:
        """The run's time: the largest among the records delivered so far."""
        return self._time

    get_debug = staticmethod(bool)  # pyright: ignore[reportAssignmentType]
    """Always false. Each future and each handle calls it: so it is not a function in Python."""

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return RunFuture(self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        if self.is_closing:
            # The coroutine never runs; closing it here avoids the warning that it was never awaited.
            coro.close()
            raise RunParked(f"run {self.run_id!r} is leaving memory")
        if (offender := find_unordered_caller()) is not None:
            coro.close()
            self.refuse(
                f"asyncio.{offender} was imported before holdfast and starts its coroutines in an order that differs "
                f"from run to run",
                f"write `import asyncio` and call `asyncio.{offender}(...)`, or import holdfast first",
            )
        task = RunTask(coro, self, name, context if context is not None else contextvars.copy_context())
        if is_library_code(coro):
            task.origin = locate_task_origin(coro, sys._getframe(1), self._get_current_origin())  # pyright: ignore[reportPrivateUsage]
        self.live_tasks[task.number] = task
        task.add_done_callback(self._on_task_done)
        return task

    def create_main_task(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Between turns, create a task of the execution itself. It counts as live until the run leaves memory."""
        # An empty context: variables in the starter's context would be missing on replay.
        task = self.call_inside(RunTask, coro, self, None, contextvars.Context())
        self.live_tasks[task.number] = task
        return task

    def create_call_task(
        self,
        coro: Coroutine[Any, Any, T],
        context: contextvars.Context,
        on_done: Callable[[asyncio.Task[T]], object],
    ) -> asyncio.Task[T]:
        """Between turns, create a task for a call from outside the loop."""
        task = self.call_inside(RunTask, coro, self, None, context)
        self.live_tasks[task.number] = task
        task.add_done_callback(self._on_task_done)
        task.add_done_callback(on_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self.live_tasks.pop(hash(task), None)

    def get_task_factory(self) -> None:
        return None

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if not self._is_running or get_ident() != self._thread_id:
            self._refuse_external_call(callback)
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if when <= self._time:
            # Due already by the run's own time: no outcome to wait for, so no position in the stream of timers.
            timer = RunTimer(-1, when, callback, args, self, context)
            self.ready.append(timer)
            return timer
        position = self.issued_timer_count
        self.issued_timer_count += 1
        timer = RunTimer(position, when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self.timers[position] = timer
        heapq.heappush(self._timer_heap, (when, position))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, RunTimer):
            self.timers.pop(handle.position, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback failed, or no code has seen a task's exception: pass it to the execution, to be logged."""
        if not self.is_closing and self.execution is not None:
            self.execution.add_unhandled_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        return None

    # Async generators

    def _on_first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.async_generators.append(generator)

    # Refusing

    def refuse(self, action: str, advice: str) -> NoReturn:
        """Raise, and fail the run even if the workflow catches it."""
        location = ""
        if self._is_running and get_ident() == self._thread_id:
            location = locate_user_code(sys._getframe(1), self._get_current_origin())  # pyright: ignore[reportPrivateUsage]
        if location:
            location = f" (at {location})"
        elif wait := self.locate_wait():
            location = f" (the run waits at {wait})"
        error = ForbiddenInWorkflow(
            f"run {self.run_id!r}: {action}{location}. Workflow code must do only what can be replayed: {advice}."
        )
        if self.fatal_error is None:
            self.fatal_error = error
        raise error

    def _get_current_origin(self) -> str:
        task = tasks.current_task(self)
        return task.origin if isinstance(task, RunTask) else ""

    def locate_wait(self) -> str:
        """Where in the user's code the run waits; empty if that is unknown."""
        for task in self.live_tasks.values():
            if not task.done() and (location := locate_await(task.get_coro())):
                return location
        return ""

    def _refuse_external_call(self, callback: Callable[..., object]) -> NoReturn:
        if self.is_closing:
            raise RunParked(f"run {self.run_id!r} is leaving memory")
        self.refuse(
            f"something outside the workflow (another thread or event loop) called into it with {callback!r}",
            "await a step that does the waiting, or send the run a signal",
        )

    # Leaving

    def refuse_command(self) -> asyncio.Future[Any]:
        """Refuse a command while the run leaves memory.

        Raises ``RunParked``, or after ``MAX_REFUSED_COMMANDS`` returns a future that is never done.
        """
        self._refused_count += 1
        if self._refused_count > MAX_REFUSED_COMMANDS:
            return RunFuture(self)  # code that retries forever waits for a future that is never done
        raise RunParked(f"run {self.run_id!r} is leaving memory")

    def unwind(self) -> None:
        """End every task, so that nothing of this run is left to be collected later. Issues and records nothing."""
        if self.is_closing:
            return
        self.is_closing = True
        pending_tasks = [task for task in self.live_tasks.values() if not task.done()]
        leaked_count = self._end_tasks(pending_tasks) if pending_tasks else 0
        self.ready.clear()
        self.timers.clear()
        self._timer_heap.clear()
        self.live_tasks.clear()
        if leaked_count:
            self._warn_leaked_task()

    def _end_tasks(self, pending_tasks: list[RunTask[Any]]) -> int:
        """End these tasks, the newest first; returns how many continue in spite of all attempts."""
        outer = self.enter()
        self._is_running = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                ended = [task for task in reversed(pending_tasks) if self._end_task(task)]
            for task in ended:
                waited_for: Any = task._fut_waiter  # type: ignore[attr-defined]
                if isinstance(waited_for, asyncio.Future):
                    # The two refer to each other, so only the garbage collector would free them. (Not the future's own
                    # `cancel`, which is for workflow code.)
                    _cancel_future(waited_for)  # pyright: ignore[reportUnknownArgumentType]
                    if sys.version_info >= (3, 14):
                        asyncio.future_discard_from_awaited_by(waited_for, task)
            return len(pending_tasks) - len(ended)
        finally:
            self._is_running = False
            self.leave(outer)

    def _end_task(self, task: RunTask[Any]) -> bool:
        """End one task; false when it continues in spite of all attempts."""
        coro: Any = task.get_coro()
        if coro is None or task.done():
            return True
        for _ in range(MAX_CLOSE_ATTEMPTS):
            parked = RunParked(f"run {self.run_id!r} is leaving memory")
            try:
                task.run_context.run(coro.throw, parked)
            except StopIteration:
                self.swallowed_task_numbers.append(task.number)
                return True
            except BaseException as raised:
                # This exception, usually `RunParked`, is dropped with its traceback, which holds the frames.
                raised.__traceback__ = None
                return True
        leaked_tasks.append(task)
        return False

    def _warn_leaked_task(self) -> None:
        message = "a task goes on although its run left memory; let RunParked (a BaseException) pass"
        try:
            warnings.warn(f"run {self.run_id!r}: {message}", ResourceWarning, stacklevel=3)
        except ResourceWarning as raised:
            # Warnings are errors in this process, but must not stop the unloading of a run: report it without raising.
            unraisable = SimpleNamespace(
                exc_type=ResourceWarning, exc_value=raised, exc_traceback=None, err_msg=None, object=self
            )
            sys.unraisablehook(unraisable)  # pyright: ignore[reportArgumentType]


def _never_finalize(_: AsyncGenerator[Any, Any]) -> None:
    """The run closes its generators itself, at a moment that the journal determines."""


forbid_undefined_methods(RunLoop)


def get_run_loop() -> RunLoop | None:
    """The run's loop, when the caller is workflow code."""
    loop = events._get_running_loop()
    return loop if isinstance(loop, RunLoop) else None
