"""What runs beside the requests: a look at every namespace that the server speaks for, again and again.

Nobody waits for these looks, so nobody would hear of one that fails: that is in the log, and the next one is taken all
the same. A namespace that cannot be looked at, whatever the reason, holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from holdfast.errors import HoldfastError
from holdfast.server.tenants import Tenant, Tenants

log = logging.getLogger("holdfast.server")


async def look_after(
    tenants: Tenants, look: Callable[[Tenant], Awaitable[object]], *, every: float, what: str
) -> NoReturn:
    """Look at all namespaces that were asked for, with so many seconds between two looks; ``what`` is what fails."""
    while True:
        for tenant in tenants.known():
            await tried(look(tenant), f"namespace {tenant.namespace!r}: {what}")
        await asyncio.sleep(every)


async def tried(work: Awaitable[object], what: str) -> None:
    """Do it; if it fails, that is in the log, with ``what`` it was."""
    try:
        await work
    except HoldfastError as error:
        log.warning("%s: %s", what, error)
    except Exception:
        log.exception("%s", what)


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    """As long as the block lasts, this is being done."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
