"""Waiting for something on a caller's behalf: for so long, and no longer than the server stays.

Nobody who waits here holds a thread or asks the store by itself: ends of runs and news of them are heard of through the
namespace's connection, which watches the store once for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.server.calls import Call

T = TypeVar("T")


async def wait_at_most(
    call: Call, timeout_s: float, awaited: Coroutine[Any, Any, T], stop_when: Coroutine[Any, Any, Any] | None = None
) -> T | None:
    """What is awaited, if it comes within so many seconds, before the server closes, and before ``stop_when`` ends.

    Else it is cancelled, and ``None`` is returned; but if it comes all the same, it is not lost.
    """
    work = asyncio.create_task(awaited)
    closing = asyncio.create_task(call.platform.closing.wait())
    ends: list[asyncio.Task[Any]] = [closing] if stop_when is None else [closing, asyncio.create_task(stop_when)]
    try:
        await asyncio.wait([work, *ends], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, *ends):
            task.cancel()
        await asyncio.gather(work, *ends, return_exceptions=True)
    return None if work.cancelled() else work.result()
