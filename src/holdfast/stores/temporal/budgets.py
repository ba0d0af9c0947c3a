"""Budgets of runs that Temporal keeps: the account of each, and how it is asked and told.

The account of a budget has a keeper (``entity_workflows``). Before a step uses something, it reserves that with the
account of every budget that its run is under, the nearest first; what it has used, it tells each of them before its
outcome is recorded, and that takes the place of what was reserved. Which budgets those are is handed down from run to
run (see ``heads.Owner``).

**What is left behind.** A step whose worker dies is carried out by another one, and reserves again in place of its
first reservation. But if nobody carries it out again, because its run was cancelled or terminated, what it had reserved
stays. That stands in nobody's way until a call has to wait for it. So whoever waits for long looks whether those are
still at work that it waits for, and tells the account of those who are not (``at_work``).

An attempt that has told what it has used, and dies before Temporal has its outcome, was paid for, and the next one is
as well: both count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from holdfast.admission.usage import Limits, Shortage, Usage, shortage
from holdfast.stores import rules
from holdfast.stores.operations import Run, Verdict
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import Keeper, ask, memo_of, tell
from holdfast.stores.temporal.run_memo import Owner

BUDGET = "budget"
"""The entry of an account's memo with what may be used now."""


class Asker(NamedTuple):
    """A step that uses something. In a retry of its run, there may be another one at the same position."""

    run_id: str
    execution: str
    position: int


@dataclass(slots=True)
class BudgetAccount:
    """What a run and those below it may use, have used, and may use by what is in flight."""

    run_id: str
    limits: Limits
    used: Usage = field(default_factory=Usage)
    reserved: dict[Asker, Usage] = field(default_factory=dict[Asker, Usage])
    short: list[Asker] = field(default_factory=list[Asker])
    """Whose calls were refused until there is more, and who have not been told since that there is."""

    def reserve(self, asker: Asker, expected: Usage) -> Shortage | None:
        """Reserve for a step, in place of what was reserved for it; or say why not."""
        self.reserved.pop(asker, None)
        others = sum(self.reserved.values(), Usage())
        refused = shortage(self.run_id, self.limits, self.used, others, expected)
        if refused is None:
            self.reserved[asker] = expected
        self.short = [one for one in self.short if one != asker]
        if refused is not None and refused.needs_more:
            self.short.append(asker)
        return refused

    def use(self, asker: Asker, used: Usage) -> None:
        """A step has used so much, and nothing is reserved for it any more."""
        self.reserved.pop(asker, None)
        self.used += used

    def give(self, limits: Limits) -> list[Asker]:
        """Another budget: who was refused, and is to ask again."""
        self.limits = limits
        short, self.short = self.short, []
        return short

    def kept(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run_id": self.run_id,
            "limits": list(self.limits),
            "used": asdict(self.used),
            "reserved": [[*asker, asdict(expected)] for asker, expected in self.reserved.items()],
            "short": [list(asker) for asker in self.short],
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> BudgetAccount:
        """The same, read back."""
        return cls(
            kept["run_id"],
            Limits(*kept["limits"]),
            usage_of(kept["used"]),
            {Asker(*asker): usage_of(expected) for *asker, expected in kept["reserved"]},
            [Asker(*asker) for asker in kept["short"]],
        )


def usage_of(told: Mapping[str, Any]) -> Usage:
    """What was told by somebody, perhaps with a newer version than ours, which counts more."""
    return Usage(**{name: told[name] for name in Usage.__dataclass_fields__ if name in told})


def keeper_of(owner: Owner) -> Keeper:
    """What keeps the account of a budget."""
    kept = BudgetAccount(owner.run_id, owner.limits).kept()
    return Keeper(identifiers.ACCOUNT, identifiers.account_id(owner.run_id), kept, {BUDGET: list(owner.limits)})


async def reserve(client: Client, owners: Sequence[Owner], asker: Asker, expected: Usage) -> Shortage | None:
    """Reserve with every one of these budgets, or with none; then say which would be passed.

    The nearest comes first for everybody. So of two that share budgets, one gets ahead of the other in all of them.
    """
    refused: Shortage | None = None
    granted: list[Owner] = []
    for owner in owners:
        answer = await ask(client, keeper_of(owner), identifiers.RESERVE, list(asker), asdict(expected))
        if answer is None:
            granted.append(owner)
            continue
        short = Shortage(**answer)
        if refused is None or not short.passing:
            refused = short
        if not short.passing:
            break
    if refused is not None:
        await use(client, granted, asker, Usage())
    return refused


async def use(client: Client, owners: Sequence[Owner], asker: Asker, used: Usage) -> None:
    """Tell every one of these budgets what a step has used, and that it will use no more."""
    for owner in owners:
        await tell(client, keeper_of(owner), identifiers.USED, list(asker), asdict(used))


async def give_back_left(client: Client, owner: Owner) -> int:
    """Give back what is reserved with a budget for steps that nobody carries out any more: for how many."""
    given_back = 0
    for told in await client.get_workflow_handle(identifiers.account_id(owner.run_id)).query(identifiers.IN_FLIGHT):
        asker = Asker(*told)
        if not await at_work(client, asker):
            await use(client, [owner], asker, Usage())
            given_back += 1
    return given_back


async def at_work(client: Client, asker: Asker) -> bool:
    """Whether a step may still have an outcome: its execution is open, and so is its activity."""
    try:
        handle = client.get_workflow_handle(asker.run_id, run_id=asker.execution)
        known = await handle.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    wanted = identifiers.activity_id(asker.position)
    return known.status is WorkflowExecutionStatus.RUNNING and any(
        pending.activity_id == wanted for pending in known.raw_description.pending_activities
    )


async def set_budget(client: Client, run: Run, own: Limits | None, budget: Limits) -> Verdict:
    """Give a run another budget in place of its ``own``. Whoever is short is told by the account."""
    answer = rules.answer_to_budget(run.state, own)
    if answer is Verdict.DONE:
        assert own is not None
        await tell(client, keeper_of(Owner(run.id, own)), identifiers.BUDGET, list(budget))
    return answer


async def current_budget(client: Client, run_id: str, own: Limits | None) -> Limits | None:
    """What a run may use now, if it was started with a budget of its ``own``."""
    if own is None:
        return None
    told = (await memo_of(client, identifiers.account_id(run_id))).get(BUDGET)
    return own if told is None else Limits(*told)
