"""Tasks and futures of workflow code: their order in a set does not depend on their addresses (see ``loop``)."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import tasks
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from holdfast.core.loop import RunLoop

T = TypeVar("T")

if sys.version_info >= (3, 12):
    get_current_task = asyncio.current_task
else:  # there, `asyncio.current_task` is written in Python, and takes ten times as long
    get_current_task = cast("Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None]", tasks._current_tasks.get)  # type: ignore[attr-defined]
"""The running task of a loop."""


class RunFuture(asyncio.Future[T]):
    """A future whose hash does not depend on its address."""

    __slots__ = ("number",)  # without slots, each future has a dictionary for the garbage collector to visit

    def __init__(self, loop: RunLoop) -> None:
        self.number = loop.last_number = loop.last_number + 1
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel, and tell the loop which callbacks that makes ready."""
        loop = cast("RunLoop", self.get_loop())
        ready = loop.ready
        before = len(ready)
        cancelled = super().cancel(msg)
        if len(ready) > before:
            loop.cancellations.append((self.number, [ready[at] for at in range(before, len(ready))]))
        return cancelled


class RunTask(asyncio.Task[T]):
    """A task whose hash does not depend on its address, and that remembers its context."""

    __slots__ = ("number", "origin", "run_context")

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: RunLoop,
        name: str | None,
        context: contextvars.Context,
    ) -> None:
        self.number = loop.last_number = loop.last_number + 1
        self.run_context = context
        self.origin = ""
        """Where the user's code created the task, if its coroutine is a library's (``locate_task_origin``)."""
        super().__init__(coro, loop=loop, name=name or f"Task-{self.number & 0xFFFF}", context=context)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        """Request cancellation; while the run leaves memory this does nothing."""
        return False if self.get_loop().is_closing else super().cancel(msg)

    def get_loop(self) -> RunLoop:
        """The run's loop."""
        return cast("RunLoop", super().get_loop())
