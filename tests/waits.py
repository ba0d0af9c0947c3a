"""Waiting for what another task, thread or process does, with a time limit."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Real seconds after which something is taken never to happen."""
FIRST_INTERVAL_S = 0.001
MAX_INTERVAL_S = 0.02


async def wait_until(condition: Callable[[], Any], what: str = "", *, timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until the condition, which may be a coroutine function, returns something true, and return that."""
    interval_s = FIRST_INTERVAL_S
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if inspect.isawaitable(result):
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                result = await result
        if result:
            return result
        _check_deadline(deadline, what, timeout_s)
        await asyncio.sleep(interval_s)
        interval_s = min(interval_s * 1.5, MAX_INTERVAL_S)


def wait_until_sync(
    condition: Callable[[], T], what: str = "", *, timeout_s: float = TIMEOUT_S, describe: Callable[[], Any] = str
) -> T:
    """Wait until the condition returns something true, and return that. Blocks the thread.

    Args:
        describe: what to add to the error if the condition stays false.
    """
    interval_s = FIRST_INTERVAL_S
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        _check_deadline(deadline, what, timeout_s, describe)
        time.sleep(interval_s)
        interval_s = min(interval_s * 1.5, MAX_INTERVAL_S)
    return result


def _check_deadline(deadline: float, what: str, timeout_s: float, describe: Callable[[], Any] = str) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"{what or 'the condition is still false'}: not within {timeout_s:g} s. {describe()}")
