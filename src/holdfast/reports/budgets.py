"""What runs have used and may use: a run's own budget, those above it that it has to keep to, and the runs below it."""

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
"""So many of the runs that a run has started are told of."""


@dataclass(frozen=True, slots=True)
class RunBudget:
    """What a run has used, with all the runs below it, and its own budget."""

    run_id: str
    workflow: str
    state: RunState
    used: UsageWithCost
    budget: Budget | None
    """``None``: it was started without one."""

    @classmethod
    def from_row(cls, run: Run, usage: RunUsage) -> RunBudget:
        """From a run's row, and what is kept of its usage."""
        return cls(run.id, run.workflow, run.state, usage.used, to_budget(usage.budget))


@dataclass(frozen=True, slots=True)
class BudgetInfo(RunBudget):
    """The same, with the runs around it."""

    ancestors: tuple[RunBudget, ...]
    """The runs above it that have a budget, the nearest one first: it keeps to theirs as well."""
    children: tuple[RunBudget, ...]
    """Those that it has started, newest first, twenty at most."""
    has_more_children: bool
    """It has started more."""


def to_budget(limits: BudgetLimits | None) -> Budget | None:
    """Limits as people give them; ``None`` if nothing is limited."""
    return None if limits is None or limits == BudgetLimits() else Budget.from_limits(limits)


async def read_budget(store: Store, run_id: str) -> BudgetInfo:
    """What a run may use, and has used. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    started = await store.list_runs(RunFilter(parent=run_id), limit=_MAX_CHILDREN + 1)
    usages = await load_usage(store, [run_id, *(one.id for one in started)])
    own, above = RunBudget.from_row(run, usages[run_id]), await load_applicable_budgets(store, run)
    runs = {one.id: one for one in await store.get_runs([id for id, _ in above])} if above else {}
    return BudgetInfo(
        own.run_id,
        own.workflow,
        own.state,
        own.used,
        own.budget,
        ancestors=tuple(RunBudget.from_row(runs[id], told) for id, told in above if id != run_id and id in runs),
        children=tuple(RunBudget.from_row(one, usages[one.id]) for one in started[:_MAX_CHILDREN]),
        has_more_children=len(started) > _MAX_CHILDREN,
    )
