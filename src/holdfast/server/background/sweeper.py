"""What a server does beside its requests: it finds listeners that are dead, deadlines that have passed, and old audits.

Leases of listeners count only in the time in which this server could renew them: from its start, and from when the
database was last back (see ``stores.leases``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from holdfast.run_log import RunLog
from holdfast.server.background.tasks import look_after, meanwhile, tried
from holdfast.server.tenants import Tenant
from holdfast.services.api_keys import read_keys
from holdfast.stores.clocks import elapsed
from holdfast.stores.leases import LeaseWindow

if TYPE_CHECKING:
    from holdfast.server.app import Platform

EVERY = 1.0
"""Seconds between two sweeps."""
TRIMMED_EVERY = 600.0
"""Seconds between two looks at the audit log."""


async def sweeper(platform: Platform) -> AsyncGenerator[None]:
    """Sweeps all namespaces that the server speaks for, as long as it runs."""
    try:
        async with meanwhile(_sweep_for_ever(platform)):
            yield
    finally:
        await platform.desks.close()


async def _sweep_for_ever(platform: Platform) -> None:
    trimmed: dict[str, float] = {}
    """When the audit log of a namespace was last looked at, by this process's own clock."""

    async def look(tenant: Tenant) -> None:
        now = asyncio.get_running_loop().time()
        trims = now - trimmed.get(tenant.namespace, float("-inf")) >= TRIMMED_EVERY
        await sweep_once(platform, tenant, trims=trims)
        if trims:
            trimmed[tenant.namespace] = now

    await tried(_open_all(platform), "the keys could not be read")
    await look_after(platform.tenants, look, every=EVERY, what="it could not be swept")


async def sweep_once(platform: Platform, tenant: Tenant, *, trims: bool) -> None:
    """One sweep of one namespace, in which leases count as far as this server could have renewed them."""
    contact, asked = platform.listeners.contact(tenant, await tenant.store()), elapsed()
    try:
        await sweep(platform, tenant, contact.window(), trims=trims)
    except BaseException:
        contact.lost()
        raise
    contact.made(asked)


async def sweep(platform: Platform, tenant: Tenant, window: LeaseWindow, *, trims: bool) -> None:
    """One sweep of one namespace; leases count within ``window``."""
    store = await tenant.store()
    reaped = await store.reap(window=window, by_lease=True)
    expired = await store.expire()
    run_log = RunLog.of_store(store)
    run_log.log_deaths(reaped, "listener")
    run_log.log_expired(expired)
    if reaped.workers or expired:
        platform.desks.of(tenant).nudge()
    if trims:
        while await store.trim_audit(store.now() - platform.settings.keep_audit):
            pass


async def _open_all(platform: Platform) -> None:
    """Namespaces of valid keys are served from the start: a deadline passes also if nobody asks."""
    now = platform.settings.now()
    keys = await read_keys(await platform.tenants.home())
    for namespace in sorted({key.namespace for key in keys if key.is_valid(now)}):
        await tried(platform.tenants.tenant(namespace), f"namespace {namespace!r} could not be opened")
