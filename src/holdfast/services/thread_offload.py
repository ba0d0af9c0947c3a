"""Work on large values in threads, so that it does not block an event loop that serves others.

The threads are separate from those that stores use: a store must not wait until some large value is decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, islice
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from holdfast.core.execution import get_current_execution

T = TypeVar("T")

LARGE_BYTES = 16 * 1024
"""Bytes of a value; below this, a thread costs more than it saves."""
THREAD_COUNT = 4
"""Python runs one of them at a time. More threads would only make the event loop wait longer for its turn."""


class OffLoopRunner(Protocol):
    """``run_off_loop``, or a function like it that also limits how much runs at once."""

    def __call__(self, size: int, work: Callable[[], T], /) -> Awaitable[T]:
        """The result of ``work``, which handles ``size`` bytes."""
        ...


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Run ``work``, in a thread if it handles more than ``LARGE_BYTES`` bytes.

    Workflow code has no threads, so there it always runs at once.
    """
    if size <= LARGE_BYTES or get_current_execution() is not None:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_get_executor(), work)


def estimate_size(value: Any) -> int:
    """About how many bytes plain data takes.

    It stops counting above ``LARGE_BYTES``, to visit little of a large value.
    """
    left, waiting = LARGE_BYTES, [value]
    while waiting and left >= 0:
        one = waiting.pop()
        left -= len(one) if isinstance(one, str | bytes) else 8
        if isinstance(one, dict):
            entries = cast("dict[Any, Any]", one)
            waiting += islice(chain(entries, entries.values()), LARGE_BYTES)
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += islice(cast("list[Any]", one), LARGE_BYTES)
    return LARGE_BYTES - left


class TenantLocks:
    """Locks by name, so that no tenant can occupy all threads."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, tenant: str) -> asyncio.Lock:
        """The lock to hold while the work runs."""
        return self._locks.setdefault(tenant, asyncio.Lock())


@cache
def _get_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="holdfast-large-value")
