"""Sync variants of async methods, for code without an event loop.

``cancel_sync = sync_method(cancel)`` has the arguments and the result of ``cancel``, which the object's ``_run_sync``
runs to its end; ``sync_iterator`` does the same for an async generator. Editors and type checkers see the signature;
subclasses override only the async method.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from holdfast.errors import UsageError

P = ParamSpec("P")
Q = TypeVar("Q")
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


class SyncIterable(Protocol):
    """An object whose async generators can be read without an event loop."""

    def _iterate_sync(self, events: AsyncGenerator[R]) -> Iterator[R]: ...


@overload
def sync_method(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]: ...
@overload
def sync_method(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]], convert: Callable[[R], Q]
) -> Callable[Concatenate[S, P], Q]: ...
def sync_method(method: Callable[..., Coroutine[Any, Any, Any]], convert: Callable[[Any], Any] | None = None) -> Any:
    """A method that calls the async one of this name and waits for it; ``convert`` is applied to its result."""
    name = method.__name__

    def call(self: object, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest shows the caller's stack only
        run = cast(SyncCapable, self)._run_sync  # pyright: ignore[reportPrivateUsage]
        result = run(getattr(self, name)(*args, **kwargs))
        return result if convert is None else convert(result)

    return _document(call, method)


def sync_iterator(method: Callable[Concatenate[S, P], AsyncGenerator[R]]) -> Callable[Concatenate[S, P], Iterator[R]]:
    """A method that reads the async generator of this name, for a plain ``for``."""
    name = method.__name__

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        if is_loop_running():
            raise UsageError(f"an event loop is running in this thread: use `async for event in client.{name}(...)`")
        events: AsyncGenerator[R] = getattr(self, name)(*args, **kwargs)
        return cast(SyncIterable, self)._iterate_sync(events)  # pyright: ignore[reportPrivateUsage]

    return _document(call, method)


def _document(call: Callable[P, R], method: Callable[..., object]) -> Callable[P, R]:
    """Give a sync method the name, the annotations, and the signature of its async form."""
    call = wraps(method, updated=())(call)  # the method may be abstract, and this one is not
    call.__name__ = f"{method.__name__}_sync"
    call.__qualname__ = f"{method.__qualname__}_sync"
    call.__doc__ = f"``{method.__name__}`` without an event loop."
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
