"""Policies: how many runs an agent, a workflow, or an address may have in a day, and how much they may cost.

Days are in UTC. The cost is that of the model calls which its own runs made on that day, whenever the runs were
started; the calls of a sub-agent count for the sub-agent. Servers enforce policies: each server checks about once a
second, and when a limit is reached, it does what the policy says:

``notify``
    Nothing is stopped. The log, the audit log, and ``read_policy_info`` report the breach.
``refuse``
    Servers start no more runs of it until the day is over. Runs that have started continue.
``pause``
    It is disabled until the day is over: its runs stop at the next recorded point, and continue after that.
``disable``
    It is disabled until a person enables it.

Calls that are in flight when a limit is reached are still paid for, so a day may end slightly above its limit. For a
limit that is exact, give the runs budgets. People overrule policies: a workflow that a person enables again stays
enabled for the rest of the day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, get_args

from holdfast.admission.usage import NANO_PER_USD
from holdfast.errors import UsageError
from holdfast.services.documents import find_document, list_documents
from holdfast.services.json_form import UtcDatetime, from_json, to_json_bytes
from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import get_utc_day
from holdfast.stores.documents import Document

DOCUMENT_KIND = "policy"
"""The kind of document that holds a policy."""
BREACH_DOCUMENT_KIND = "policy-breach"
"""The kind of document that holds the last breach of a policy."""

OnBreach = Literal["notify", "refuse", "pause", "disable"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What an agent, a workflow, or an address may use in a day; ``None``: no limit."""

    runs_per_day: int | None = None
    usd_per_day: float | None = None
    on_breach: OnBreach = "refuse"


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that was reached."""

    day: str
    limit: Literal["runs", "usd"]
    on_breach: OnBreach
    at: UtcDatetime


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy, and what was used today."""

    name: str
    policy: Policy
    day: str
    run_count: int
    """Runs that were started on this day."""
    usd: float
    """Cost of this day."""
    breach: Breach | None
    """The recorded breach of this day, if there is one."""

    @property
    def reached_limit(self) -> Literal["runs", "usd"] | None:
        """The limit that is reached now, whether or not a server has recorded the breach."""
        if self.policy.runs_per_day is not None and self.run_count >= self.policy.runs_per_day:
            return "runs"
        if self.policy.usd_per_day is not None and self.usd >= self.policy.usd_per_day:
            return "usd"
        return None


def validate_policy(name: str, policy: Policy) -> Policy:
    """The policy, if it is valid. Raises ``UsageError``."""
    where = f"the policy of {name!r}"
    if policy.runs_per_day is None and policy.usd_per_day is None:
        raise UsageError(f"{where} limits nothing: give runs_per_day or usd_per_day")
    limits: dict[str, object] = {"runs_per_day": policy.runs_per_day, "usd_per_day": policy.usd_per_day}
    for word, given in limits.items():
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
            raise UsageError(f"{where}: {word}={given!r} must be a number, not below 0")
    if policy.on_breach not in get_args(OnBreach):
        raise UsageError(f"{where}: on_breach={policy.on_breach!r} is not one of {', '.join(get_args(OnBreach))}")
    return policy


async def put_policy(store: Store, name: str, policy: Policy) -> None:
    """Set or replace the policy of an agent, a workflow, or an address. Raises ``UsageError``."""
    data = to_json_bytes(validate_policy(name, policy))
    await store.documents.put(DOCUMENT_KIND, name, data)


async def delete_policy(store: Store, name: str) -> bool:
    """Delete a policy; false if there was none. A workflow that it disabled for the day is enabled."""
    was_deleted = await store.documents.delete(DOCUMENT_KIND, name)
    if was_deleted:
        await clear_breach(store, name)
    return was_deleted


async def list_policy_infos(store: Store) -> list[PolicyInfo]:
    """All policies in the order of their names, with what was used today."""
    found = [await read_policy_info(store, name) for name in sorted(await list_policies(store))]
    return [info for info in found if info is not None]


async def list_policies(store: Store) -> dict[str, Policy]:
    """All policies by name."""
    return {one.name: _policy_from_document(one) for one in await list_documents(store, DOCUMENT_KIND)}


async def read_policy_info(store: Store, name: str) -> PolicyInfo | None:
    """The policy with this name, and what was used today."""
    found = await find_document(store, DOCUMENT_KIND, name)
    if found is None:
        return None
    day = get_utc_day(store.now())
    spent = await store.daily_usage.get(day, day, workflow=name)
    runs = await store.daily_usage.get_run_counts(day, day, workflow=name)
    breach = await read_breach(store, name)
    return PolicyInfo(
        name=name,
        policy=_policy_from_document(found),
        day=day,
        run_count=sum(one.run_count for one in runs),
        usd=float(Decimal(sum(one.used.nano_usd for one in spent)) / NANO_PER_USD),
        breach=breach[0] if breach is not None and breach[0].day == day else None,
    )


# Breaches


async def read_breach(store: Store, name: str) -> tuple[Breach, int] | None:
    """The last breach, and the version of its document."""
    found = await find_document(store, BREACH_DOCUMENT_KIND, name)
    return None if found is None else (from_json(Breach, found.load_json()), found.version)


async def record_breach(store: Store, breach: Breach, name: str, version: int) -> bool:
    """Record a breach; false if another server was faster."""
    put = await store.documents.put(BREACH_DOCUMENT_KIND, name, to_json_bytes(breach), if_version=version)
    return put is not None


async def clear_breach(store: Store, name: str) -> None:
    """Enable what a policy disabled for the day, unless a person disabled it since."""
    breach = await read_breach(store, name)
    if (
        breach is not None
        and await store.documents.delete(BREACH_DOCUMENT_KIND, name)
        and breach[0].on_breach == "pause"
    ):
        await store.disabled_workflows.enable(name, only_temporary=True)


def end_of_day(day: str) -> datetime:
    """When the day is over."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)


def _policy_from_document(document: Document) -> Policy:
    return from_json(Policy, document.load_json())
