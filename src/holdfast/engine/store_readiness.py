"""A worker that starts waits for the store, as one that runs does.

What a running worker writes is held until the store takes it. One that is just starting has nothing to hold yet, but
giving up would be no better. A process that is suspended in the middle of a write (a debugger, a frozen container)
holds the lock of an embedded database for as long as that lasts; a database server is away for a few seconds when it is
restarted, or when another one takes over for it. The workers that start meanwhile would all be gone by then.

What is in the way is logged at once, because it may be a wrong URL, which only a person can put right; for the same
reason a store that cannot be reached is not waited for as long as one that is locked. A wrong password, or a database
that is not there, is no matter of time, and is told at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.engine.clock import Clock
from holdfast.errors import StoreFull, StoreLocked, StoreUnavailable

log = logging.getLogger("holdfast.engine")

LOCKED_TIMEOUT_S = 30.0
"""Seconds after which whoever starts is told that the store is locked. The store waits a while by itself each time."""
UNREACHABLE_TIMEOUT_S = 10.0
"""Seconds after which whoever starts is told that the store cannot be reached."""
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0


async def retry_until_store_ready(action: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Do ``action``, again while another process holds the store's lock, or it cannot be reached.

    To do it twice must be harmless: a server that could not answer may have done it.
    """
    began, pause, told = clock.monotonic(), MIN_PAUSE_S, ""
    while True:
        try:
            await action()
            return
        except StoreFull:
            raise
        except StoreUnavailable as error:
            patience = LOCKED_TIMEOUT_S if isinstance(error, StoreLocked) else UNREACHABLE_TIMEOUT_S
            if clock.monotonic() >= began + patience:
                raise
            if str(error) != told:
                told = str(error)
                log.warning("waiting for the store: %s", error)
        await clock.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE_S)
