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


async def within(call: Call, seconds: float, awaited: Coroutine[Any, Any, T]) -> T | None:
    """What is awaited, if it comes within so many seconds and before the server closes; else ``None``."""
    work = asyncio.ensure_future(awaited)
    closing = asyncio.ensure_future(call.platform.closing.wait())
    try:
        await asyncio.wait((work, closing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        await _stop(work, closing)


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
