"""What a run used and may use: its own budget, the budgets of the runs above it, and the runs below it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.admission.usage import Budget, BudgetLimits
from holdfast.core.states import RunState
from holdfast.reports.run_usage import load_applicable_budgets, load_usage
from holdfast.services.json_form import UsageWithCost
from holdfast.services.lookup import find_run
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run

_MAX_CHILDREN = 20
"""Maximum number of child runs in a report."""


@dataclass(frozen=True, slots=True)
class RunBudget:
    """What a run used, with all the runs below it, and its own budget."""

    run_id: str
    workflow: str
    state: RunState
    used: UsageWithCost
    budget: Budget | None
    """``None``: it was started without one."""

    @classmethod
    def from_row(cls, run: Run, usage: RunUsage) -> RunBudget:
        """From a run's row and its usage."""
        return cls(run.id, run.workflow, run.state, usage.used, to_budget(usage.budget))


@dataclass(frozen=True, slots=True)
class BudgetInfo(RunBudget):
    """The budget of a run, with those of the runs above and below it."""

    ancestors: tuple[RunBudget, ...]
    """The runs above it that have a budget, the nearest one first: their budgets limit it, too."""
    children: tuple[RunBudget, ...]
    """The runs that it started, newest first, twenty at most."""
    has_more_children: bool


def to_budget(limits: BudgetLimits | None) -> Budget | None:
    """A budget of these limits; ``None`` if there are none."""
    return None if limits is None or limits == BudgetLimits() else Budget.from_limits(limits)


async def read_budget(store: Store, run_id: str) -> BudgetInfo:
    """What a run may use, and what it used. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    children = await store.list_runs(RunFilter(parent=run_id), limit=_MAX_CHILDREN + 1)
    usages = await load_usage(store, [run_id, *(child.id for child in children)])
    above = {id: usage for id, usage in await load_applicable_budgets(store, run) if id != run_id}
    runs = {ancestor.id: ancestor for ancestor in await store.get_runs(list(above))} if above else {}
    return BudgetInfo(
        run.id,
        run.workflow,
        run.state,
        usages[run_id].used,
        to_budget(usages[run_id].budget),
        ancestors=tuple(RunBudget.from_row(runs[id], usage) for id, usage in above.items() if id in runs),
        children=tuple(RunBudget.from_row(child, usages[child.id]) for child in children[:_MAX_CHILDREN]),
        has_more_children=len(children) > _MAX_CHILDREN,
    )
