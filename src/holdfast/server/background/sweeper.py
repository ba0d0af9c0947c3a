"""The sweeper finds dead listeners, passed deadlines, and old entries of the audit log.

Leases of listeners count only while this server could renew them: since its start, and since the database last came
back (see ``stores.leases``).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from holdfast.run_log import RunLog
from holdfast.server.background.tasks import log_errors, poll_tenants, running_task
from holdfast.services.api_keys import list_keys
from holdfast.stores.clocks import monotonic
from holdfast.stores.leases import LeaseWindow

if TYPE_CHECKING:
    from holdfast.server.app import Platform
    from holdfast.server.tenants import Tenant

SWEEP_INTERVAL_S = 1.0
AUDIT_TRIM_INTERVAL_S = 600.0


async def run_sweeper(platform: Platform) -> AsyncGenerator[None]:
    """Sweep all namespaces that the server serves, until it stops."""
    async with running_task(_sweep_forever(platform)):
        yield


async def _sweep_forever(platform: Platform) -> None:
    # By namespace: when its audit log was last trimmed, by this process's own clock.
    trimmed_at: defaultdict[str, float] = defaultdict(lambda: float("-inf"))

    async def poll(tenant: Tenant) -> None:
        now = asyncio.get_running_loop().time()
        should_trim = now - trimmed_at[tenant.namespace] >= AUDIT_TRIM_INTERVAL_S
        await sweep_once(platform, tenant, should_trim_audit=should_trim)
        if should_trim:
            trimmed_at[tenant.namespace] = now

    await log_errors(_open_tenants(platform), "the keys could not be read")
    await poll_tenants(platform.tenants, poll, interval_s=SWEEP_INTERVAL_S, error_message="it could not be swept")


async def sweep_once(platform: Platform, tenant: Tenant, *, should_trim_audit: bool) -> None:
    """Sweep one namespace; leases count while this server could have renewed them."""
    lease_tracker, started_at = tenant.listeners.lease_tracker, monotonic()
    try:
        await sweep(platform, tenant, lease_tracker.get_window(), should_trim_audit=should_trim_audit)
    except BaseException:
        lease_tracker.note_failure()
        raise
    lease_tracker.note_success(started_at)


async def sweep(platform: Platform, tenant: Tenant, window: LeaseWindow, *, should_trim_audit: bool) -> None:
    """Sweep one namespace; leases count within ``window``."""
    store = tenant.store
    reaped = await store.workers.reap_dead(window=window, include_listeners=True)
    expired = await store.claims.expire_runs()
    run_log = RunLog.from_store(store)
    run_log.log_deaths(reaped, "listener")
    run_log.log_expired(expired)
    if reaped.worker_ids or expired:
        tenant.dispatcher.notify()
    if should_trim_audit:
        while await store.audit_log.trim(store.now() - platform.settings.audit_retention_s):
            pass


async def _open_tenants(platform: Platform) -> None:
    """Open the namespaces of all valid keys: a deadline may pass there before the first request."""
    now = platform.settings.now()
    keys = await list_keys(await platform.tenants.get_default_store())
    for namespace in sorted({key.namespace for key in keys if key.is_valid(now)}):
        await log_errors(platform.tenants.get_tenant(namespace), f"namespace {namespace!r} could not be opened")
