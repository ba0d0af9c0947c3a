"""Waiting on a caller's behalf, with a timeout, and only until the server stops.

A wait occupies no thread and does not poll the store: the connection of the namespace watches the store once for all
waits, and reports changes and ends of runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.server.calls import Call

T = TypeVar("T")


class ClosingEvent(asyncio.Event):
    """Set when the server is about to stop: that ends all waits on callers' behalf."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: set[asyncio.Timeout] = set()
        """The time limits of the waits in progress. (A task for each wait, to watch the event, would cost more.)"""

    def set(self) -> None:
        """The server is about to stop."""
        super().set()
        for limit in list(self._limits):
            expire_limit(limit)

    @contextmanager
    def expiring(self, limit: asyncio.Timeout) -> Generator[None]:
        """Let the time limit expire when the event is set inside the block."""
        self._limits.add(limit)
        if self.is_set():
            expire_limit(limit)
        try:
            yield
        finally:
            self._limits.discard(limit)


def expire_limit(limit: asyncio.Timeout) -> None:
    """Let a time limit expire at once."""
    with suppress(RuntimeError):  # its block has just ended
        limit.reschedule(asyncio.get_running_loop().time())


async def wait_at_most(
    call: Call, timeout_s: float, awaited: Coroutine[Any, Any, T], stop_when: Coroutine[Any, Any, Any] | None = None
) -> T | None:
    """The result of ``awaited``, unless the timeout, the server's stop, or the end of ``stop_when`` comes first.

    In that case it is cancelled, and the result is ``None``. A result that it returns in spite of that is not lost.
    """
    limit = asyncio.timeout(timeout_s)
    stop = None if stop_when is None else asyncio.create_task(stop_when)
    try:
        async with limit:
            with call.platform.closing.expiring(limit):
                if stop is not None:
                    stop.add_done_callback(lambda _: expire_limit(limit))
                return await awaited
    except TimeoutError:
        if not limit.expired():
            raise
        return None
    finally:
        if stop is not None:
            stop.cancel()
            await asyncio.gather(stop, return_exceptions=True)
