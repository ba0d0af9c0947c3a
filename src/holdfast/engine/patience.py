"""A worker that starts waits for the store, as one that runs does.

What a running worker writes is held until the store takes it. One that is just starting has nothing to hold yet, but
giving up would be no better: a process that is suspended in the middle of a write (a debugger, a frozen container)
holds the lock of an embedded database for as long as that lasts, and the workers that start meanwhile would all be gone
by then.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.engine.clock import Clock
from holdfast.errors import StoreLocked

log = logging.getLogger("holdfast.engine")

OPENING_PATIENCE = 30.0
"""Seconds after which whoever starts is told that the store is locked. The store waits a while by itself each time."""
PAUSE = 0.1


async def when_unlocked(action: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Do ``action``, again while another process holds the store's lock. It has changed nothing when it fails so."""
    until = clock.monotonic() + OPENING_PATIENCE
    while True:
        try:
            await action()
            return
        except StoreLocked as error:
            if clock.monotonic() >= until:
                raise
            log.warning("waiting for the store: %s", error)
        await clock.sleep(PAUSE)
