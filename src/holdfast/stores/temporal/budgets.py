"""Budgets of runs that Temporal keeps: the account of each, and how it is asked and told.

The account of a budget has a keeper (``entity_workflows``). Before a step uses something, it reserves that with the
account of every budget that its run is under, the nearest first; what it has used, it tells each of them before its
outcome is recorded, and that takes the place of what was reserved. Which budgets those are is handed down from run to
run (see ``run_memo.BudgetOwner``).

**What is left behind.** A step whose worker dies is carried out by another one, and reserves again in place of its
first reservation. But if nobody carries it out again, because its run was cancelled or terminated, what it had reserved
stays. That stands in nobody's way until a call has to wait for it. So whoever waits for long looks whether those are
still at work that it waits for, and tells the account of those who are not (``is_in_flight``).

An attempt that has told what it has used, and dies before Temporal has its outcome, was paid for, and the next one is
as well: both count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage, find_shortage
from holdfast.stores import rules
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import EntityWorkflow, read_entity_memo, signal_entity, update_entity
from holdfast.stores.temporal.run_memo import BudgetOwner

BUDGET_KEY = "budget"
"""The entry of an account's memo with what may be used now."""


class StepRef(NamedTuple):
    """A step that uses something. In a retry of its run, there may be another one at the same position."""

    run_id: str
    execution_id: str
    position: int


@dataclass(slots=True)
class BudgetAccount:
    """What a run and those below it may use, have used, and may use by what is in flight."""

    run_id: str
    limits: BudgetLimits
    used: Usage = field(default_factory=Usage)
    reserved: dict[StepRef, Usage] = field(default_factory=dict[StepRef, Usage])
    waiting_steps: list[StepRef] = field(default_factory=list[StepRef])
    """Whose calls were refused until there is more, and who have not been told since that there is."""

    def reserve(self, step: StepRef, expected: Usage) -> BudgetShortage | None:
        """Reserve for a step, in place of what was reserved for it; or say why not."""
        self.reserved.pop(step, None)
        others = sum(self.reserved.values(), Usage())
        refused = find_shortage(self.run_id, self.limits, self.used, others, expected)
        if refused is None:
            self.reserved[step] = expected
        self.waiting_steps = [one for one in self.waiting_steps if one != step]
        if refused is not None and refused.is_exhausted:
            self.waiting_steps.append(step)
        return refused

    def record_usage(self, step: StepRef, used: Usage) -> None:
        """A step has used so much, and nothing is reserved for it any more."""
        self.reserved.pop(step, None)
        self.used += used

    def set_limits(self, limits: BudgetLimits) -> list[StepRef]:
        """Another budget: who was refused, and is to ask again."""
        self.limits = limits
        short, self.waiting_steps = self.waiting_steps, []
        return short

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run_id": self.run_id,
            "limits": list(self.limits),
            "used": asdict(self.used),
            "reserved": [[*asker, asdict(expected)] for asker, expected in self.reserved.items()],
            "short": [list(asker) for asker in self.waiting_steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BudgetAccount:
        """The same, read back."""
        return cls(
            data["run_id"],
            BudgetLimits(*data["limits"]),
            usage_from_json(data["used"]),
            {StepRef(*asker): usage_from_json(expected) for *asker, expected in data["reserved"]},
            [StepRef(*asker) for asker in data["short"]],
        )


def usage_from_json(data: Mapping[str, Any]) -> Usage:
    """What was told by somebody, perhaps with a newer version than ours, which counts more."""
    return Usage(**{name: data[name] for name in Usage.__dataclass_fields__ if name in data})


def get_account_entity(owner: BudgetOwner) -> EntityWorkflow:
    """What keeps the account of a budget."""
    kept = BudgetAccount(owner.run_id, owner.limits).to_json()
    return EntityWorkflow(
        identifiers.ACCOUNT_TYPE, identifiers.format_account_id(owner.run_id), kept, {BUDGET_KEY: list(owner.limits)}
    )


async def reserve_usage(
    client: Client, owners: Sequence[BudgetOwner], step: StepRef, expected: Usage
) -> BudgetShortage | None:
    """Reserve with every one of these budgets, or with none; then say which would be passed.

    The nearest comes first for everybody. So of two that share budgets, one gets ahead of the other in all of them.
    """
    refused: BudgetShortage | None = None
    granted: list[BudgetOwner] = []
    for owner in owners:
        answer = await update_entity(
            client, get_account_entity(owner), identifiers.RESERVE_UPDATE, list(step), asdict(expected)
        )
        if answer is None:
            granted.append(owner)
            continue
        short = BudgetShortage(**answer)
        if refused is None or not short.is_temporary:
            refused = short
        if not short.is_temporary:
            break
    if refused is not None:
        await report_usage(client, granted, step, Usage())
    return refused


async def report_usage(client: Client, owners: Sequence[BudgetOwner], step: StepRef, used: Usage) -> None:
    """Tell every one of these budgets what a step has used, and that it will use no more."""
    for owner in owners:
        await signal_entity(client, get_account_entity(owner), identifiers.USED_SIGNAL, list(step), asdict(used))


async def release_orphaned(client: Client, owner: BudgetOwner) -> int:
    """Give back what is reserved with a budget for steps that nobody carries out any more: for how many."""
    given_back = 0
    for told in await client.get_workflow_handle(identifiers.format_account_id(owner.run_id)).query(
        identifiers.IN_FLIGHT_QUERY
    ):
        asker = StepRef(*told)
        if not await is_in_flight(client, asker):
            await report_usage(client, [owner], asker, Usage())
            given_back += 1
    return given_back


async def is_in_flight(client: Client, step: StepRef) -> bool:
    """Whether a step may still have an outcome: its execution is open, and so is its activity."""
    try:
        handle = client.get_workflow_handle(step.run_id, run_id=step.execution_id)
        known = await handle.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    wanted = identifiers.format_activity_id(step.position)
    return known.status is WorkflowExecutionStatus.RUNNING and any(
        pending.activity_id == wanted for pending in known.raw_description.pending_activities
    )


async def set_budget(client: Client, run: Run, own: BudgetLimits | None, budget: BudgetLimits) -> OpStatus:
    """Give a run another budget in place of its ``own``. Whoever is short is told by the account."""
    answer = rules.decide_budget(run.state, own)
    if answer is OpStatus.DONE:
        assert own is not None
        await signal_entity(
            client, get_account_entity(BudgetOwner(run.id, own)), identifiers.SET_BUDGET_SIGNAL, list(budget)
        )
    return answer


async def read_current_budget(client: Client, run_id: str, own: BudgetLimits | None) -> BudgetLimits | None:
    """What a run may use now, if it was started with a budget of its ``own``."""
    if own is None:
        return None
    told = (await read_entity_memo(client, identifiers.format_account_id(run_id))).get(BUDGET_KEY)
    return own if told is None else BudgetLimits(*told)
