"""Waiting on a caller's behalf, with a timeout, and only until the server stops.

A wait occupies no thread and does not poll the store: the connection of the namespace watches the store once for all
waits, and reports changes and ends of runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
            _expire(limit)

    @contextmanager
    def expiring(self, limit: asyncio.Timeout) -> Generator[None]:
        """Let the time limit expire when the event is set inside the block."""
        self._limits.add(limit)
        if self.is_set():
            _expire(limit)
        try:
            yield
        finally:
            self._limits.discard(limit)


def _expire(limit: asyncio.Timeout) -> None:
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
                    stop.add_done_callback(lambda _: _expire(limit))
                return await awaited
    except TimeoutError:
        if not limit.expired():
            raise
        return None
    finally:
        if stop is not None:
            stop.cancel()
            await asyncio.gather(stop, return_exceptions=True)


async def with_ticks(
    items: AsyncGenerator[T], interval_s: float, *, stop: asyncio.Event | None = None
) -> AsyncGenerator[T | None]:
    """The items of a generator, and ``None`` whenever none has come for ``interval_s`` seconds, until ``stop`` is set.

    Close it: that closes the generator as well.
    """
    stopping = [] if stop is None else [asyncio.ensure_future(stop.wait())]
    upcoming: asyncio.Future[Any] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(items, _END))
            await asyncio.wait([upcoming, *stopping], timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            if upcoming.done():
                item, upcoming = upcoming.result(), None
                if item is _END:
                    return
                yield item
            elif any(wait.done() for wait in stopping):
                return
            else:
                yield None
    finally:
        waits = stopping if upcoming is None else [*stopping, upcoming]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await items.aclose()


_END: Final[Any] = object()
