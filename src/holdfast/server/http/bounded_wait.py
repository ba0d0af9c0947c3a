"""Waiting on a caller's behalf, with a timeout, and only until the server stops.

A wait occupies no thread and does not poll the store: the connection of the namespace watches the store once for all
waits, and reports changes and ends of runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final, TypeVar

from holdfast.server.calls import Call

T = TypeVar("T")


async def wait_at_most(
    call: Call, timeout_s: float, awaited: Coroutine[Any, Any, T], stop_when: Coroutine[Any, Any, Any] | None = None
) -> T | None:
    """The result of ``awaited``, unless the timeout, the server's stop, or the end of ``stop_when`` comes first.

    In that case it is cancelled, and the result is ``None``. A result that it returns in spite of that is not lost.
    """
    work = asyncio.create_task(awaited)
    stops: list[asyncio.Task[Any]] = [asyncio.create_task(call.platform.closing.wait())]
    if stop_when is not None:
        stops.append(asyncio.create_task(stop_when))
    try:
        await asyncio.wait([work, *stops], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, *stops):
            task.cancel()
        await asyncio.gather(work, *stops, return_exceptions=True)
    return None if work.cancelled() else work.result()


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
