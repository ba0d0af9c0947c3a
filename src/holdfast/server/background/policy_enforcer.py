"""Enforces policies: about once a second, it checks each policy, and acts on a breach.

Several servers may check at the same time. The one that records a breach first acts on it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.server.background.tasks import poll_tenants, running_task
from holdfast.services.policies import (
    Breach,
    PolicyInfo,
    clear_breach,
    end_of_day,
    list_policies,
    read_breach,
    read_policy_info,
    record_breach,
)
from holdfast.services.problems import Problem
from holdfast.services.timestamps import to_datetime
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.server.app import Platform
    from holdfast.server.tenants import Tenant

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
RUN_BATCH_SIZE = 500


async def run_policy_enforcer(platform: Platform) -> AsyncGenerator[None]:
    """Enforce the policies of all namespaces that the server serves, until it stops."""
    polling = poll_tenants(
        platform.tenants,
        enforce_policies,
        interval_s=POLL_INTERVAL_S,
        error_message="its policies could not be looked at",
    )
    async with running_task(polling):
        yield


async def enforce_policies(tenant: Tenant) -> None:
    """Check all policies of a namespace once."""
    for name in await list_policies(tenant.store):
        info = await read_policy_info(tenant.store, name)
        if info is not None:
            await _enforce_policy(tenant.store, info)


async def _enforce_policy(store: Store, info: PolicyInfo) -> None:
    known = await read_breach(store, info.name)
    if known is not None and known[0].day != info.day:
        await clear_breach(store, info.name)  # another day
        known = None
    if known is not None or info.reached_limit is None:
        return
    now = store.now()
    on_breach = info.policy.on_breach
    breach = Breach(info.day, info.reached_limit, on_breach, to_datetime(now))
    if not await record_breach(store, breach, info.name, 0):
        return
    if on_breach in ("pause", "disable"):
        reason = f"it reached its limit of {_format_reached_limit(info)} for {info.day}"
        await store.disabled_workflows.disable(info.name, "policy", reason, is_temporary=on_breach == "pause")
    entry = AuditEvent(now, "", "policy", f"policy_{on_breach}", info.name, "allowed", "")
    await store.audit_log.append([entry])
    log.warning(
        "%r has reached its limit of %s for %s: %s",
        info.name,
        _format_reached_limit(info),
        info.day,
        _ACTION_DESCRIPTIONS[on_breach],
    )


_ACTION_DESCRIPTIONS = {
    "notify": "its policy only says so",
    "refuse": "no more runs of it are started through servers until the day is over",
    "pause": "it is disabled until the day is over",
    "disable": "it is disabled until someone enables it",
}


def _format_reached_limit(info: PolicyInfo) -> str:
    policy = info.policy
    return f"{policy.runs_per_day} runs" if info.reached_limit == "runs" else f"${policy.usd_per_day:g}"


async def check_start_allowed(tenant: Tenant, name: str, run_ids: Iterable[str | None], start_count: int = 1) -> None:
    """Raise ``Problem`` if a policy refuses to start ``start_count`` more runs of ``name`` today.

    Runs among ``run_ids`` that exist are joined, and not started. The store is asked for them only if it matters.
    """
    if not await tenant.limited_workflows.has(name):
        return
    store = tenant.store
    info = await read_policy_info(store, name)
    if info is None or info.policy.on_breach != "refuse" or not _is_limit_exceeded(info, start_count):
        return
    if not _is_limit_exceeded(info, start_count - await _count_existing(store, run_ids)):
        return
    until = end_of_day(info.day)
    retry_after_s = max(1, round(until.timestamp() - store.now()))
    raise Problem(
        429,
        "policy-limit",
        "The policy allows no more today",
        f"{name!r} has {info.run_count} runs and has spent ${info.usd:.2f} on {info.day} (UTC), and its policy allows "
        f"{_format_limits(info)} a day. Try again at {until:%Y-%m-%d %H:%M} UTC, or have an admin change the policy.",
        headers={"Retry-After": str(retry_after_s)},
        limit=info.reached_limit or "runs",
    )


def _is_limit_exceeded(info: PolicyInfo, start_count: int) -> bool:
    max_runs = info.policy.runs_per_day
    return start_count > 0 and (
        info.reached_limit is not None or (max_runs is not None and info.run_count + start_count > max_runs)
    )


async def _count_existing(store: Store, run_ids: Iterable[str | None]) -> int:
    remaining, count = (id for id in run_ids if id is not None), 0
    while batch := list(islice(remaining, RUN_BATCH_SIZE)):
        count += len(await store.get_runs(batch))
    return count


def _format_limits(info: PolicyInfo) -> str:
    policy = info.policy
    parts = [
        *([] if policy.runs_per_day is None else [f"{policy.runs_per_day} runs"]),
        *([] if policy.usd_per_day is None else [f"${policy.usd_per_day:g}"]),
    ]
    return " and ".join(parts)
