"""What runs have used and may use: a run's own budget, those above it that it has to keep to, and the runs below it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.admission.usage import Budget, Limits, Usage
from holdfast.core.states import RunState
from holdfast.reports.run_usage import budgets_over, usage_of
from holdfast.services.lookup import find_run
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run

_SHOWN = 20
"""So many of the runs that a run has started are told of."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run has used, with all the runs below it, and its own budget."""

    run_id: str
    workflow: str
    state: RunState
    used: Usage
    budget: Budget | None
    """``None``: it was started without one."""

    @classmethod
    def of(cls, run: Run, told: RunUsage) -> Allowance:
        """From a run's row, and what is kept of its usage."""
        return cls(run.id, run.workflow, run.state, told.used, as_budget(told.budget))


@dataclass(frozen=True, slots=True)
class BudgetInfo(Allowance):
    """The same, with the runs around it."""

    above: tuple[Allowance, ...]
    """The runs above it that have a budget, the nearest one first: it keeps to theirs as well."""
    children: tuple[Allowance, ...]
    """Those that it has started, newest first, twenty at most."""
    has_more: bool
    """It has started more."""


def as_budget(limits: Limits | None) -> Budget | None:
    """Limits as people give them; ``None`` if nothing is limited."""
    return None if limits is None or limits == Limits() else Budget.of(limits)


async def read_budget(store: Store, run_id: str) -> BudgetInfo:
    """What a run may use, and has used. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    started = await store.list_runs(RunFilter(parent=run_id), limit=_SHOWN + 1)
    usages = await usage_of(store, [run_id, *(one.id for one in started)])
    own, above = Allowance.of(run, usages[run_id]), await budgets_over(store, run)
    runs = {one.id: one for one in await store.get_many([id for id, _ in above])} if above else {}
    return BudgetInfo(
        own.run_id,
        own.workflow,
        own.state,
        own.used,
        own.budget,
        above=tuple(Allowance.of(runs[id], told) for id, told in above if id != run_id and id in runs),
        children=tuple(Allowance.of(one, usages[one.id]) for one in started[:_SHOWN]),
        has_more=len(started) > _SHOWN,
    )
