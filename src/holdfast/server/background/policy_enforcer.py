"""Keeping policies: a look at every one of them about once a second, and what is done about a breach.

Several servers may look at the same time: whoever notes a breach first acts on it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.server.background.tasks import look_after, meanwhile
from holdfast.server.http.problems import Problem
from holdfast.server.tenants import Tenant
from holdfast.services.policies import (
    Breach,
    PolicyInfo,
    end_of_day,
    lift,
    list_policies,
    note_breach,
    read_breach,
    read_policy,
)
from holdfast.services.timestamps import moment
from holdfast.stores.audit_log import NewAudit
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")

EVERY = 1.0
"""Seconds between two looks."""
AT_ONCE = 500
"""Runs that are read together."""


async def policeman(platform: Platform) -> AsyncGenerator[None]:
    """Keeps the policies of all namespaces that the server speaks for, as long as it runs."""
    looks = look_after(platform.tenants, keep_policies, every=EVERY, what="its policies could not be looked at")
    async with meanwhile(looks):
        yield


async def keep_policies(tenant: Tenant) -> None:
    """One look at the policies of a namespace."""
    store = await tenant.store()
    for name in await list_policies(store):
        info = await read_policy(store, name)
        if info is not None:
            await _keep(store, info)


async def _keep(store: Store, info: PolicyInfo) -> None:
    known = await read_breach(store, info.name)
    if known is not None and known[0].day != info.day:
        await lift(store, info.name)  # another day
        known = None
    if known is not None or info.reached is None:
        return
    now = store.now()
    on_breach = info.policy.on_breach
    breach = Breach(info.day, info.reached, on_breach, moment(now))
    if not await note_breach(store, breach, info.name, 0):
        return
    if on_breach in ("pause", "kill"):
        reason = f"it reached its limit of {_limit_in_words(info)} for {info.day}"
        await store.switch_off(info.name, "policy", reason, temporary=on_breach == "pause")
    entry = NewAudit(now, "", "policy", f"policy_{on_breach}", info.name, "allowed", "")
    await store.note_audit([entry])
    log.warning(
        "%r has reached its limit of %s for %s: %s", info.name, _limit_in_words(info), info.day, _DONE[on_breach]
    )


_DONE = {
    "notify": "its policy only says so",
    "refuse": "no more runs of it are started through servers until the day is over",
    "pause": "it is switched off until the day is over",
    "kill": "it is switched off until somebody lifts that",
}


def _limit_in_words(info: PolicyInfo) -> str:
    policy = info.policy
    return f"{policy.runs_per_day} runs" if info.reached == "runs" else f"${policy.usd_per_day:g}"


async def refuse_starts(store: Store, name: str, ids: Iterable[str | None], starts: int = 1) -> None:
    """Refuse to start so many runs of what has reached a limit, and whose policy says so. Raises ``Problem``.

    Those of ``ids`` that are there are not started, but found. They are only asked for when there would be too many.
    """
    info = await read_policy(store, name)
    if info is None or info.policy.on_breach != "refuse" or not _is_over(info, starts):
        return
    if not _is_over(info, starts - await _number_of(store, ids)):
        return
    until = end_of_day(info.day)
    wait = max(1, round(until.timestamp() - store.now()))
    raise Problem(
        429,
        "policy-limit",
        "The policy allows no more today",
        f"{name!r} has {info.runs} runs and has spent ${info.usd:.2f} on {info.day} (UTC), and its policy allows "
        f"{_allowed(info)} a day. Try again at {until:%Y-%m-%d %H:%M} UTC, or have an admin change the policy.",
        headers={"Retry-After": str(wait)},
        limit=info.reached or "runs",
    )


def _is_over(info: PolicyInfo, starts: int) -> bool:
    most = info.policy.runs_per_day
    return starts > 0 and (info.reached is not None or (most is not None and info.runs + starts > most))


async def _number_of(store: Store, ids: Iterable[str | None]) -> int:
    """How many of these runs are there."""
    left, found = iter([id for id in ids if id is not None]), 0
    while some := list(islice(left, AT_ONCE)):
        found += len(await store.get_many(some))
    return found


def _allowed(info: PolicyInfo) -> str:
    policy = info.policy
    parts = [
        *([] if policy.runs_per_day is None else [f"{policy.runs_per_day} runs"]),
        *([] if policy.usd_per_day is None else [f"${policy.usd_per_day:g}"]),
    ]
    return " and ".join(parts)
