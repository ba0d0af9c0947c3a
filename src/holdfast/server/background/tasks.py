"""What runs next to the requests: tasks that poll every namespace that the server serves.

Nothing awaits these polls, so one that fails is logged, and the next one runs as usual. A namespace that cannot be
polled, for any reason, does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.server.tenants import Tenant, Tenants

log = logging.getLogger("holdfast.server")


async def poll_tenants(
    tenants: Tenants, poll: Callable[[Tenant], Awaitable[object]], *, interval_s: float, error_message: str
) -> NoReturn:
    """Poll all open namespaces, again and again. ``error_message`` is logged if a poll fails."""
    while True:
        for tenant in tenants.list_open():
            await log_errors(poll(tenant), f"namespace {tenant.namespace!r}: {error_message}")
        await asyncio.sleep(interval_s)


async def log_errors(work: Awaitable[object], error_message: str) -> None:
    """Await some work. If it fails, log that as ``error_message``."""
    try:
        await work
    except HoldfastError as error:
        log.warning("%s: %s", error_message, error)
    except Exception:
        log.exception("%s", error_message)


@asynccontextmanager
async def running_task(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    """Run a task until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
