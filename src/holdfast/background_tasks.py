"""Tasks of the process's own event loop: those that run for as long as something is open, and those that run user code.

Nothing awaits a task in the background, so nothing hears of an exception that ends it. ``keep_running`` is what every
such task does: an exception is logged, and the work begins again after a pause.
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
    """Do the work until it returns. When it raises, log that with its ``description``, and begin again after a pause.

    ``stop_on`` is an exception that ends it for good: it says that what the work needs was closed.
    """
    now = asyncio.get_running_loop().time
    pause = MIN_PAUSE_S
    while True:
        began = now()
        try:
            await work()
            return
        except stop_on:
            return
        except Exception:
            if now() - began > PAUSE_RESET_AFTER_S:
                pause = MIN_PAUSE_S
            log.exception("%s failed; it begins again in %g s", description, pause)
        await sleep(pause)
        pause = min(MAX_PAUSE_S, 2 * pause)


async def forget_cancel_requests() -> None:
    """Forget the requests to cancel the current task that user code in it has left behind.

    Else the next ``await`` would raise ``CancelledError``, and time-outs would not be recognized. A request of somebody
    else that comes at this moment is forgotten as well, so look afterwards whether the work is still wanted.
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
