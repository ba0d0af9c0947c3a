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


async def poll_tenants(
    tenants: Tenants, poll: Callable[[Tenant], Awaitable[object]], *, interval_s: float, error_message: str
) -> NoReturn:
    """Look at all namespaces that were asked for, with so many seconds between two looks.

    ``error_message`` is logged if that fails.
    """
    while True:
        for tenant in tenants.list_open():
            await log_errors(poll(tenant), f"namespace {tenant.namespace!r}: {error_message}")
        await asyncio.sleep(interval_s)


async def log_errors(work: Awaitable[object], error_message: str) -> None:
    """Do it; if it fails, that is logged as ``error_message``."""
    try:
        await work
    except HoldfastError as error:
        log.warning("%s: %s", error_message, error)
    except Exception:
        log.exception("%s", error_message)


@asynccontextmanager
async def running_task(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    """As long as the block lasts, this is being done."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
