"""Helpers for tasks on the process's own event loop: background tasks, and tasks that run user code.

Nothing awaits a background task, so nothing would notice an exception that ends it. So every such task runs in
``keep_running``, which logs an exception and starts the work again after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

MIN_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
"""Seconds before work that failed begins again; each pause is twice as long as the one before."""
PAUSE_RESET_AFTER_S = 60.0
"""Seconds of work without an exception after which the pauses are short again."""


async def keep_running(
    work: Callable[[], Awaitable[None]],
    description: str,
    log: logging.Logger,
    *,
    stop_on: type[Exception] | tuple[()] = (),
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run ``work`` until it returns. If it raises, log that with its ``description``, and start again after a pause.

    ``stop_on`` is an exception that ends it for good, because what the work needs was closed.
    """
    now = asyncio.get_running_loop().time
    pause = MIN_PAUSE_S
    while True:
        started_at = now()
        try:
            await work()
            return
        except stop_on:
            return
        except Exception:
            if now() - started_at > PAUSE_RESET_AFTER_S:
                pause = MIN_PAUSE_S
            log.exception("%s failed; it begins again in %g s", description, pause)
        await sleep(pause)
        pause = min(MAX_PAUSE_S, 2 * pause)


async def forget_cancel_requests() -> None:
    """Forget cancel requests for the current task that user code has left behind.

    Otherwise, the next ``await`` would raise ``CancelledError``, and timeouts would not be recognized. This also
    forgets a cancel request from elsewhere that arrives at this moment, so check afterwards whether the work is still
    wanted.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)  # before Python 3.13, `uncancel` leaves a cancellation that has not been raised yet
    except asyncio.CancelledError:
        pass
