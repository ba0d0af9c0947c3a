"""What a server does beside its requests: it finds listeners that are dead, deadlines that have passed, and old audits.

Leases of listeners count from the start of this server at the earliest: while no server was there, nobody could renew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from holdfast.client.keys import read_keys
from holdfast.errors import HoldfastError
from holdfast.server.tenants import Tenant

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")

EVERY = 1.0
"""Seconds between two sweeps."""
TRIMMED_EVERY = 600
"""Sweeps between two looks at the audit log."""


async def sweeper(platform: Platform) -> AsyncGenerator[None]:
    """Sweeps all namespaces that the server speaks for, as long as it runs."""
    task = asyncio.create_task(_sweep_for_ever(platform))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await platform.desks.close()


async def _sweep_for_ever(platform: Platform) -> None:
    since: dict[str, float] = {}
    """Since when this server has been there for a namespace, by the clock of its store."""
    await _open_all(platform)
    turn = 0
    while True:
        for tenant in platform.tenants.known():
            try:
                await sweep(platform, tenant, since, trims=turn % TRIMMED_EVERY == 0)
            except HoldfastError as error:
                log.warning("namespace %r could not be swept: %s", tenant.namespace, error)
        turn += 1
        await asyncio.sleep(EVERY)


async def sweep(platform: Platform, tenant: Tenant, since: dict[str, float], *, trims: bool) -> None:
    """One sweep of one namespace."""
    store = await tenant.store()
    up_since = since.setdefault(tenant.namespace, store.now())
    reaped = await store.reap(by_lease=up_since)
    expired = await store.expire()
    if reaped.workers or expired:
        platform.desks.of(tenant).nudge()
    if trims:
        while await store.trim_audit(store.now() - platform.settings.keep_audit):
            pass


async def _open_all(platform: Platform) -> None:
    """Namespaces of valid keys are served from the start: a deadline passes also if nobody asks."""
    try:
        now = platform.settings.now()
        for key in await read_keys(await platform.tenants.home()):
            if key.is_valid(now):
                await platform.tenants.tenant(key.namespace)
    except HoldfastError as error:
        log.warning("the namespaces of the keys could not be opened: %s", error)
