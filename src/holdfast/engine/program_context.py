"""Which program the running code belongs to, and in which logical thread of it the code makes its calls.

A context variable says it. A task inherits it from the task that starts it, and a thread from the code that starts it.
Each of these that makes a call becomes a logical thread of its own (see ``core.program_calls``).

**Threads.** A thread starts with an empty context unless its starter copies its own: ``asyncio.to_thread`` does, and so
do some frameworks, but neither ``threading.Thread`` (before Python 3.14) nor ``ThreadPoolExecutor``. Calls made in such
a thread would not be recorded, and nobody would notice. So once a program runs in this process, threads that code of a
program starts, and functions that it submits to a pool, run in a copy of its context. Nothing changes for other code.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from asyncio import base_events, events
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.program_calls import LogicalThread
from holdfast.engine import process_program
from holdfast.engine.step_context import current_context

if TYPE_CHECKING:
    from holdfast.engine.program_run import ProgramRun


Owner = int | weakref.ref[asyncio.Task[Any]]
"""The number of a thread, or a task. The task's own context refers to it: only the garbage collector would free it."""


class ProgramContext(NamedTuple):
    """The program that code belongs to."""

    run: ProgramRun
    thread: LogicalThread
    owner: Owner
    """What ``thread`` stands for."""


class _Outside:
    """Marks code that belongs to no program, also where the whole process belongs to one."""


OUTSIDE = _Outside()
current_program: contextvars.ContextVar[ProgramContext | _Outside | None] = contextvars.ContextVar(
    "holdfast_program", default=None
)
"""``None``: nothing is set, and the code belongs to the program of the process, if it has one."""


def find_program() -> ProgramContext | None:
    """The program that the calling code belongs to, with its logical thread; ``None``: it belongs to none."""
    found = current_program.get()
    if found is None:
        find = process_program.find_process_program
        if find is None or current_context.get(None) is not None:
            return None  # what happens in a step of another run is a part of that step
        owner, run = get_owner(), find()
        is_main = threading.current_thread() is threading.main_thread() and _is_thread_or_root_task(owner)
        found = ProgramContext(run, run.execution.calls.main_thread if is_main else LogicalThread(), owner)
        current_program.set(found)
        return found
    if isinstance(found, _Outside):
        return None
    owner = get_owner()
    if found.owner is not owner and found.owner != owner:
        # Code that runs an event loop continues in the loop's root task, and waits for it.
        is_continued = found.owner == threading.get_ident() and _is_thread_or_root_task(owner)
        thread = found.thread if is_continued else LogicalThread(found.thread.container)
        found = ProgramContext(found.run, thread, owner)
        current_program.set(found)
    return found


def _is_thread_or_root_task(owner: Owner) -> bool:
    """Whether this is a thread, or the task that an event loop runs until it is done, as in ``asyncio.run``."""
    if isinstance(owner, int):
        return True
    callbacks: Any = getattr(owner(), "_callbacks", None)
    return any(callback is base_events._run_until_complete_cb for callback, _ in callbacks or ())  # type: ignore[attr-defined]


def get_owner() -> Owner:
    """What distinguishes the running task, or else the running thread, from others."""
    loop = events._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return threading.get_ident() if task is None else weakref.ref(task)


def name_thread(name: str) -> None:
    """Name the logical thread of the calling task or thread, if it has made no calls (see ``core.program_calls``)."""
    program = find_program()
    if program is not None and program.thread.number < 0:
        thread = program.run.execution.calls.get_named_thread(program.thread.container, name)
        current_program.set(program._replace(thread=thread))


@contextmanager
def in_thread(thread: LogicalThread) -> Generator[None]:
    """The block makes its calls in this logical thread of the calling program."""
    program = find_program()
    assert program is not None
    token = current_program.set(ProgramContext(program.run, thread, get_owner()))
    try:
        yield
    finally:
        current_program.reset(token)


def copy_context_without_program() -> contextvars.Context:
    """The caller's context for code that is executed as a part of one call."""
    context = contextvars.copy_context()
    context.run(current_program.set, OUTSIDE)
    return context


_is_propagated = False


def propagate_to_threads() -> None:
    """Let threads that code of a program starts inherit its context, from now on."""
    global _is_propagated
    if _is_propagated:
        return
    _is_propagated = True
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    @wraps(start)
    def start_in_context(thread: threading.Thread) -> None:
        if isinstance(current_program.get(), ProgramContext):
            thread.run = partial(contextvars.copy_context().run, thread.run)  # type: ignore[method-assign]
        start(thread)

    @wraps(submit)
    def submit_in_context(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if not isinstance(current_program.get(), ProgramContext):
            return submit(pool, function, *args, **kwargs)
        function = partial(contextvars.copy_context().run, function)
        # In a context without the program: the pool may start a thread, which others will use as well.
        return copy_context_without_program().run(submit, pool, function, *args, **kwargs)

    threading.Thread.start = start_in_context  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_in_context  # type: ignore[method-assign]
