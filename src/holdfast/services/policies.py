"""Policies: how many runs an agent, a workflow or an address may have in a day, and what they may cost.

A day is one of UTC. What counts as cost is what the model calls of its own runs have cost on that day, whenever the
runs were started; those of sub-agents count for the sub-agents. A policy is kept by servers: each looks about once a
second, and does what the policy says when a limit is reached:

``notify``
    nothing is stopped: the breach is told, in the log, in the audit log, and by ``read_policy_info``.
``refuse``
    servers start no more runs of it until the day is over; those under way go on.
``pause``
    it is disabled until the day is over: its runs stop at the next recorded point, and continue by themselves then.
``disable``
    it is disabled until someone enables it.

What was in flight when a limit was reached is paid for as well, so that a day may end a little above its limit. For a
limit that holds to the cent, give the runs budgets. A person's word counts more than a policy: what somebody has
switched on again stays on for the rest of the day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, get_args

from holdfast.admission.usage import NANO_PER_USD
from holdfast.errors import UsageError
from holdfast.services.documents import list_documents
from holdfast.services.json_form import UtcDatetime, from_json, to_json_bytes
from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import get_utc_day
from holdfast.stores.documents import Document

DOCUMENT_KIND = "policy"
"""The kind of document that a policy is."""
BREACH_DOCUMENT_KIND = "policy-breach"
"""The kind of document that tells what was done about a breach, and on which day."""

OnBreach = Literal["notify", "refuse", "pause", "disable"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What one of them may use up in a day; what is ``None`` is not limited."""

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
    """A policy, and how the day is."""

    name: str
    policy: Policy
    day: str
    run_count: int
    """Started on this day."""
    usd: float
    """Spent on this day."""
    breach: Breach | None
    """The limit that was reached on this day."""

    @property
    def reached_limit(self) -> Literal["runs", "usd"] | None:
        """The limit that is reached."""
        if self.policy.runs_per_day is not None and self.run_count >= self.policy.runs_per_day:
            return "runs"
        if self.policy.usd_per_day is not None and self.usd >= self.policy.usd_per_day:
            return "usd"
        return None


def validate_policy(name: str, policy: Policy) -> Policy:
    """The same, if it makes sense. Raises ``UsageError``."""
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
    """Give an agent, a workflow or an address a policy, in place of the one that it has. Raises ``UsageError``."""
    data = to_json_bytes(validate_policy(name, policy))
    await store.documents.put(DOCUMENT_KIND, name, data)


async def delete_policy(store: Store, name: str) -> bool:
    """Let it have no policy; false when it had none. What the policy disabled for the day is enabled."""
    is_gone = await store.documents.delete(DOCUMENT_KIND, name)
    if is_gone:
        await clear_breach(store, name)
    return is_gone


async def list_policy_infos(store: Store) -> list[PolicyInfo]:
    """All policies in the order of their names, and how the day is for each."""
    found = [await read_policy_info(store, name) for name in sorted(await list_policies(store))]
    return [info for info in found if info is not None]


async def list_policies(store: Store) -> dict[str, Policy]:
    """All policies by name."""
    return {one.name: _policy_from_document(one) for one in await list_documents(store, DOCUMENT_KIND)}


async def read_policy_info(store: Store, name: str) -> PolicyInfo | None:
    """A policy, and how the day is."""
    found = await store.documents.list(DOCUMENT_KIND, [name])
    if not found:
        return None
    day = get_utc_day(store.now())
    spent = await store.daily_usage.get(day, day, workflow=name)
    runs = await store.daily_usage.get_run_counts(day, day, workflow=name)
    breach = await read_breach(store, name)
    return PolicyInfo(
        name=name,
        policy=_policy_from_document(found[0]),
        day=day,
        run_count=sum(one.run_count for one in runs),
        usd=float(Decimal(sum(one.used.nano_usd for one in spent)) / NANO_PER_USD),
        breach=breach[0] if breach is not None and breach[0].day == day else None,
    )


# Breaches


async def read_breach(store: Store, name: str) -> tuple[Breach, int] | None:
    """The last breach, and the version of the document that tells of it."""
    found = await store.documents.list(BREACH_DOCUMENT_KIND, [name])
    if not found:
        return None
    return from_json(Breach, found[0].load_json()), found[0].version


async def record_breach(store: Store, breach: Breach, name: str, version: int) -> bool:
    """Note a breach; false when somebody else was quicker."""
    put = await store.documents.put(BREACH_DOCUMENT_KIND, name, to_json_bytes(breach), if_version=version)
    return put is not None


async def clear_breach(store: Store, name: str) -> None:
    """Enable what a policy disabled for a day, unless a person has disabled it since."""
    breach = await read_breach(store, name)
    if (
        breach is not None
        and await store.documents.delete(BREACH_DOCUMENT_KIND, name)
        and breach[0].on_breach == "pause"
    ):
        await store.disabled_workflows.enable(name, only_temporary=True)


def end_of_day(day: str) -> datetime:
    """When a day is over."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)


def _policy_from_document(document: Document) -> Policy:
    return from_json(Policy, document.load_json())
