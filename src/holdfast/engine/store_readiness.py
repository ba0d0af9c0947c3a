"""A worker that starts waits for the store, like a running one.

A running worker holds its writes until the store takes them. A worker that is just starting has nothing to hold yet,
but should not give up either. A process that is suspended in the middle of a write (a debugger, a frozen container)
holds the lock of an embedded database meanwhile, and a database server is unreachable for a few seconds during a
restart or a failover. Otherwise all workers that start in that time would be gone afterwards.

The problem is logged at once, because it may be a wrong URL, which only a person can fix. For the same reason, the
worker waits less long for a store that is unreachable than for one that is locked. A wrong password or a missing
database does not go away by waiting, and is raised at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.engine.clock import Clock
from holdfast.errors import StoreFull, StoreLocked, StoreUnavailable

log = logging.getLogger("holdfast.engine")

LOCKED_TIMEOUT_S = 30.0
"""Seconds after which the error is raised that the store is locked. The store itself waits a while each time."""
UNREACHABLE_TIMEOUT_S = 10.0
"""Seconds after which the error is raised that the store cannot be reached."""
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0


async def retry_until_store_ready(action: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Do ``action``, and repeat it while the store is locked by another process, or unreachable.

    ``action`` must be idempotent: a server that could not answer may have done it.
    """
    started_at, pause, logged = clock.monotonic(), MIN_PAUSE_S, ""
    while True:
        try:
            await action()
            return
        except StoreFull:
            raise
        except StoreUnavailable as error:
            timeout_s = LOCKED_TIMEOUT_S if isinstance(error, StoreLocked) else UNREACHABLE_TIMEOUT_S
            if clock.monotonic() >= started_at + timeout_s:
                raise
            if str(error) != logged:
                logged = str(error)
                log.warning("waiting for the store: %s", error)
        await clock.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE_S)
