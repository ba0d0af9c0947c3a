"""Budgets of runs in Temporal: the account of each, and the requests to it.

An entity workflow holds the account of a budget (``entity_workflows``). Before a step uses something, it makes a
reservation with the account of every budget that its run is under, the nearest first. Before its outcome is recorded,
it reports its usage to each of them, which replaces the reservation. A run passes the list of budgets on to the runs
that it starts (see ``run_memo.BudgetOwner``).

**Orphaned reservations.** If a step's worker dies, another worker executes the step, and its reservation replaces the
first one. But if no worker executes it again, because its run was cancelled or terminated, the reservation stays. That
does no harm until another call has to wait for it. So a call that waits for long checks whether the steps that it waits
for are still in flight, and releases the reservations of those that are not (``is_in_flight``).

An attempt that reported its usage and dies before Temporal has its outcome was paid for, and so is the next one: both
count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from temporalio.client import Client, WorkflowExecutionStatus

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage, find_shortage
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.entity_workflows import EntityWorkflow, read_entity_memo, signal_entity, update_entity
from holdfast.stores.temporal.errors import suppress_not_found
from holdfast.stores.temporal.run_memo import BudgetOwner

BUDGET_KEY = "budget"
"""The entry of an account's memo with its current limits."""


class StepRef(NamedTuple):
    """A step with usage. A retry of its run may have another step at the same position."""

    run_id: str
    execution_id: str
    position: int


@dataclass(slots=True)
class BudgetAccount:
    """The limits, the usage, and the reservations of a run and the runs below it."""

    run_id: str
    limits: BudgetLimits
    used: Usage = field(default_factory=Usage)
    reserved: dict[StepRef, Usage] = field(default_factory=dict[StepRef, Usage])
    waiting_steps: list[StepRef] = field(default_factory=list[StepRef])
    """Steps that were refused, and that ask again when the budget is raised."""

    def reserve(self, step: StepRef, expected: Usage) -> BudgetShortage | None:
        """Make a reservation for a step, in place of an earlier one; or say why not."""
        self.reserved.pop(step, None)
        others = sum(self.reserved.values(), Usage())
        shortage = find_shortage(self.run_id, self.limits, self.used, others, expected)
        if shortage is None:
            self.reserved[step] = expected
        self.waiting_steps = [waiting for waiting in self.waiting_steps if waiting != step]
        if shortage is not None and shortage.is_exhausted:
            self.waiting_steps.append(step)
        return shortage

    def record_usage(self, step: StepRef, used: Usage) -> None:
        """Replace a step's reservation by its usage."""
        self.reserved.pop(step, None)
        self.used += used

    def set_limits(self, limits: BudgetLimits) -> list[StepRef]:
        """Replace the limits. Returns the steps that were refused and may ask again."""
        self.limits = limits
        waiting, self.waiting_steps = self.waiting_steps, []
        return waiting

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {
            "run_id": self.run_id,
            "limits": list(self.limits),
            "used": asdict(self.used),
            "reserved": [[*step, asdict(expected)] for step, expected in self.reserved.items()],
            "waiting_steps": [list(step) for step in self.waiting_steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BudgetAccount:
        """Read the stored form."""
        return cls(
            data["run_id"],
            BudgetLimits(*data["limits"]),
            usage_from_json(data["used"]),
            {StepRef(*step): usage_from_json(expected) for *step, expected in data["reserved"]},
            [StepRef(*step) for step in data["waiting_steps"]],
        )


def usage_from_json(data: Mapping[str, Any]) -> Usage:
    """Usage that another process reported, perhaps a newer version that counts more."""
    return Usage(**{name: data[name] for name in Usage.__dataclass_fields__ if name in data})


def get_account_entity(owner: BudgetOwner) -> EntityWorkflow:
    """The entity workflow with the account of a budget."""
    initial_state = BudgetAccount(owner.run_id, owner.limits).to_json()
    id = identifiers.format_account_id(owner.run_id)
    return EntityWorkflow(identifiers.ACCOUNT_TYPE, id, initial_state, {BUDGET_KEY: list(owner.limits)})


async def reserve_usage(
    client: Client, owners: Sequence[BudgetOwner], step: StepRef, expected: Usage
) -> BudgetShortage | None:
    """Make a reservation with each of these budgets, or with none; then return the shortage.

    Every step asks the nearest budget first. So of two steps that share budgets, one is ahead in all of them.
    """
    shortage: BudgetShortage | None = None
    granted: list[BudgetOwner] = []
    for owner in owners:
        answer = await update_entity(
            client, get_account_entity(owner), identifiers.RESERVE_UPDATE, list(step), asdict(expected)
        )
        if answer is None:
            granted.append(owner)
            continue
        refusal = BudgetShortage(**answer)
        if shortage is None or not refusal.is_temporary:
            shortage = refusal
        if not refusal.is_temporary:
            break
    if shortage is not None:
        await report_usage(client, granted, step, Usage())
    return shortage


async def report_usage(client: Client, owners: Sequence[BudgetOwner], step: StepRef, used: Usage) -> None:
    """Report the final usage of a step to each of these budgets."""
    for owner in owners:
        await signal_entity(client, get_account_entity(owner), identifiers.USED_SIGNAL, list(step), asdict(used))


async def release_orphaned(client: Client, owner: BudgetOwner) -> int:
    """Release the reservations of steps that no worker executes any more. Returns their number."""
    released_count = 0
    account = client.get_workflow_handle(identifiers.format_account_id(owner.run_id))
    for reference in await account.query(identifiers.IN_FLIGHT_QUERY):
        step = StepRef(*reference)
        if not await is_in_flight(client, step):
            await report_usage(client, [owner], step, Usage())
            released_count += 1
    return released_count


async def is_in_flight(client: Client, step: StepRef) -> bool:
    """Whether a step may still have an outcome: its execution is open, and so is its activity."""
    with suppress_not_found():
        execution = await client.get_workflow_handle(step.run_id, run_id=step.execution_id).describe()
        activity_id = identifiers.format_activity_id(step.position)
        return execution.status is WorkflowExecutionStatus.RUNNING and any(
            pending.activity_id == activity_id or pending.activity_type.name == identifiers.PROGRAM_ACTIVITY
            for pending in execution.raw_description.pending_activities
        )
    return False


async def set_budget(client: Client, owner: BudgetOwner, budget: BudgetLimits) -> None:
    """Replace a budget. The account tells the steps that were refused."""
    await signal_entity(client, get_account_entity(owner), identifiers.SET_BUDGET_SIGNAL, list(budget))


async def read_current_budget(client: Client, run_id: str, own: BudgetLimits | None) -> BudgetLimits | None:
    """The current budget of a run that was started with a budget of its ``own``."""
    if own is None:
        return None
    limits = (await read_entity_memo(client, identifiers.format_account_id(run_id))).get(BUDGET_KEY)
    return own if limits is None else BudgetLimits(*limits)
