"""Sync variants of async methods, for code without an event loop.

``cancel_sync = sync_method(cancel)`` has the arguments and the result of ``cancel``, which the object's ``_run_sync``
runs to its end. Editors and type checkers see its signature; subclasses override only the async method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from holdfast.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class SyncRunner(Protocol):
    """Runs a coroutine to its end where no event loop is running."""

    def __call__(self, coroutine: Coroutine[Any, Any, R], /) -> R:
        """The coroutine's result."""
        ...


class SyncCapable(Protocol):
    """An object whose async methods can be called without an event loop."""

    @property
    def _run_sync(self) -> SyncRunner: ...


def sync_method(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """A method that calls the async one of this name and waits for it."""
    name = method.__name__

    @wraps(method, updated=())  # the method may be abstract, and this one is not
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # pytest shows the caller's stack only
        run = cast(SyncCapable, self)._run_sync  # pyright: ignore[reportPrivateUsage]
        return run(getattr(self, name)(*args, **kwargs))

    call.__name__ = f"{name}_sync"
    call.__qualname__ = f"{method.__qualname__}_sync"
    call.__doc__ = f"``{name}`` without an event loop."
    return call


def run_sync(coroutine: Coroutine[Any, Any, R], /) -> R:
    """Run a coroutine to its end where no event loop is running."""
    if not is_loop_running():
        return asyncio.run(coroutine)  # not in an `except` block, which would add a context to the call's exceptions
    coroutine.close()
    raise UsageError("an event loop is running in this thread: use the async form and `await` it")


def is_loop_running() -> bool:
    """Whether the current thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
