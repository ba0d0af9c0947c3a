"""What a server does beside its requests: it finds listeners that are dead, deadlines that have passed, and old audits.

Leases of listeners count only in the time in which this server could renew them: from its start, and from when the
database was last back (see ``stores.leases``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from holdfast.run_log import RunLog
from holdfast.server.background.tasks import log_errors, poll_tenants, running_task
from holdfast.server.tenants import Tenant
from holdfast.services.api_keys import list_keys
from holdfast.stores.clocks import monotonic
from holdfast.stores.leases import LeaseWindow

if TYPE_CHECKING:
    from holdfast.server.app import Platform

SWEEP_INTERVAL_S = 1.0
"""Seconds between two sweeps."""
AUDIT_TRIM_INTERVAL_S = 600.0
"""Seconds between two looks at the audit log."""


async def run_sweeper(platform: Platform) -> AsyncGenerator[None]:
    """Sweeps all namespaces that the server speaks for, as long as it runs."""
    try:
        async with running_task(_sweep_forever(platform)):
            yield
    finally:
        await platform.dispatchers.close()


async def _sweep_forever(platform: Platform) -> None:
    trimmed: dict[str, float] = {}
    """When the audit log of a namespace was last looked at, by this process's own clock."""

    async def look(tenant: Tenant) -> None:
        now = asyncio.get_running_loop().time()
        trims = now - trimmed.get(tenant.namespace, float("-inf")) >= AUDIT_TRIM_INTERVAL_S
        await sweep_once(platform, tenant, should_trim_audit=trims)
        if trims:
            trimmed[tenant.namespace] = now

    await log_errors(_open_tenants(platform), "the keys could not be read")
    await poll_tenants(platform.tenants, look, interval_s=SWEEP_INTERVAL_S, error_message="it could not be swept")


async def sweep_once(platform: Platform, tenant: Tenant, *, should_trim_audit: bool) -> None:
    """One sweep of one namespace, in which leases count as far as this server could have renewed them."""
    contact, asked = platform.listeners.get_contact(tenant, await tenant.store()), monotonic()
    try:
        await sweep(platform, tenant, contact.get_window(), should_trim_audit=should_trim_audit)
    except BaseException:
        contact.note_failure()
        raise
    contact.note_success(asked)


async def sweep(platform: Platform, tenant: Tenant, window: LeaseWindow, *, should_trim_audit: bool) -> None:
    """One sweep of one namespace; leases count within ``window``."""
    store = await tenant.store()
    reaped = await store.workers.reap_dead(window=window, include_listeners=True)
    expired = await store.claims.expire_runs()
    run_log = RunLog.from_store(store)
    run_log.log_deaths(reaped, "listener")
    run_log.log_expired(expired)
    if reaped.worker_ids or expired:
        platform.dispatchers.get(tenant).notify()
    if should_trim_audit:
        while await store.audit_log.trim(store.now() - platform.settings.audit_retention_s):
            pass


async def _open_tenants(platform: Platform) -> None:
    """Namespaces of valid keys are served from the start: a deadline passes also if nobody asks."""
    now = platform.settings.now()
    keys = await list_keys(await platform.tenants.get_home_store())
    for namespace in sorted({key.namespace for key in keys if key.is_valid(now)}):
        await log_errors(platform.tenants.get_tenant(namespace), f"namespace {namespace!r} could not be opened")
