"""``holdfast budget``: what a run may use, what it has used, and giving it more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Budget
from holdfast.cli.budget_table import print_budget_table
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    create_console,
    format_command,
    format_count,
    format_list,
    make_printable,
    to_one_line,
)
from holdfast.cli.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.store_access import format_store_command, get_run, open_client
from holdfast.cli.tables import print_table
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.reports.budgets import BudgetInfo, RunBudget
from holdfast.reports.recorded_reply import usage_to_json
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import (
    BudgetLimit,
    budget_to_json,
    format_brief_cost,
    format_remaining,
    format_usage,
    list_budget_limits,
    remaining_to_json,
)

_PAGE_SIZE = 500
_MAX_RUNS = 5_000
"""So many runs below a run are looked at, to say which of them go on."""


# Telling


def show_budget(url: str | None, run_id: str, *, as_json: bool) -> int:
    """Print a run's budget and what is used, for the run and those that it has started."""
    if as_json:
        return print_outcomes(url, [run_in_loop(_fetch_outcome(url, run_id))], as_json=True)
    _print_budget(create_console(), run_in_loop(_fetch_budget(url, run_id)), url)
    return 0


async def _fetch_budget(url: str | None, run_id: str) -> BudgetInfo:
    async with open_client(url) as client:
        await get_run(client, run_id)
        return await client.budget(run_id)


async def _fetch_outcome(url: str | None, run_id: str) -> Outcome:
    async with open_client(url) as client:
        try:
            run = await get_run(client, run_id)
            books = await client.budget(run_id)
        except HoldfastError as error:
            return await outcome_from_error(client, run_id, error)
        message = f"run {run_id!r}: {format_usage(books.used)}"
        return Outcome.from_run(run, changed=False, message=message, **_budget_info_to_json(books))


def _budget_info_to_json(info: BudgetInfo) -> dict[str, Any]:
    return {
        **_allowance_to_json(info),
        "ancestors": [{"id": one.run_id, **_allowance_to_json(one)} for one in info.ancestors],
        "children": [
            {"id": one.run_id, "workflow": one.workflow, "state": one.state.value, **_allowance_to_json(one)}
            for one in info.children
        ],
    }


def _allowance_to_json(allowance: RunBudget) -> dict[str, Any]:
    return {
        "used": usage_to_json(allowance.used),
        "budget": budget_to_json(allowance),
        "budget_remaining": remaining_to_json(allowance),
    }


def _print_budget(out: Console, info: BudgetInfo, url: str | None) -> None:
    out.print(
        Text.assemble(
            (to_one_line(info.run_id), "bold"),
            f" ({to_one_line(info.workflow)}), ",
            (info.state, STATE_STYLES[info.state]),
        ),
        soft_wrap=True,
    )
    below = ", with the runs below it" if info.children else ""
    out.print(Text(f"used{below}: {format_usage(info.used)}"), soft_wrap=True)
    if info.budget is not None:
        out.print()
        print_budget_table(out, info)
    elif not info.ancestors:
        out.print(Text("no budget: nothing limits what it uses", "dim"), soft_wrap=True)
    for over in info.ancestors:
        out.print(
            Text(f"\nit keeps to the budget of run {make_printable(over.run_id)!r}, which is above it", "bold"),
            soft_wrap=True,
        )
        print_budget_table(out, over)
    _print_children(out, info, url)


def _print_children(out: Console, info: BudgetInfo, url: str | None) -> None:
    if not info.children:
        return
    out.print("\nruns it started, each with those below it", style="bold")
    rows = [
        (
            to_one_line(one.run_id),
            one.state.value,
            format_count(one.used.calls, "turn"),
            format_count(one.used.tokens, "token"),
            format_brief_cost(one.used),
            f"{format_remaining(one)} left" if one.budget is not None else "",
        )
        for one in info.children
    ]
    print_table((), rows, number_columns=(2, 3, 4), indent=6)
    if info.has_more_children:
        out.print(
            Text(f"      more: `{format_store_command(url, 'runs', '--parent', info.run_id)}`", "dim"), soft_wrap=True
        )


# Changing


def set_budget(url: str | None, run_id: str, changes: Mapping[str, Any], *, as_json: bool) -> int:
    """Give a run another budget, and say what is left of it and which runs go on."""
    return print_outcomes(url, [run_in_loop(_change_budget(url, run_id, changes))], as_json=as_json)


async def _change_budget(url: str | None, run_id: str, changes: Mapping[str, Any]) -> Outcome:
    async with open_client(url) as client:
        try:
            run = await get_run(client, run_id)
            before = await client.budget(run_id)
            if before.budget is None and not run.state.is_terminal:
                raise UsageError(_explain_no_budget(before))
            waiting = [one.id for one in await _fetch_run_tree(client, run) if one.state is RunState.WAITING]
            await client.set_budget(run_id, _merge_budget(before.budget, changes))
            run, after = await client.get(run_id), await client.budget(run_id)
            woken = await _find_woken_runs(client, run, waiting)
        except HoldfastError as error:
            return await outcome_from_error(client, run_id, error)
        message = f"run {run_id!r} has {format_remaining(after)} left (used: {format_usage(after.used)})"
        return Outcome.from_run(
            run,
            changed=before.budget != after.budget,
            message=message + _describe_effect(after, woken),
            resumed_runs=woken,
            **_budget_info_to_json(after),
        )


def _explain_no_budget(info: BudgetInfo) -> str:
    told = f"run {info.run_id!r} was started without a budget of its own, and cannot be given one now"
    if not info.ancestors:
        return f"{told}: nothing limits what it uses. A budget is given with the start of a run, or to its agent."
    over, *_ = info.ancestors
    first: BudgetLimit = list_budget_limits(over)[0]
    return (
        f"{told}. It keeps to the budget of run {over.run_id!r}, which is above it: "
        f"`{format_command('budget', over.run_id, f'--{first.name}', first.suggested_limit)}` gives that one more."
    )


def _merge_budget(budget: Budget | None, changes: Mapping[str, Any]) -> Budget:
    """The budget with what is given in place of what was; the rest stays."""
    return Budget(**changes) if budget is None else replace(budget, **changes)


def _describe_effect(info: BudgetInfo, woken: Sequence[str]) -> str:
    """What happens next."""
    spent = [one for one in list_budget_limits(info) if one.remaining <= 0]
    if spent:
        what = format_list([one.name for one in spent])
        return f": nothing is left of {what}, so its next model call waits for a higher budget"
    if woken == [info.run_id]:
        return ": it goes on"
    if woken:
        return f": {format_list([f'run {run_id!r}' for run_id in woken])} {'goes' if len(woken) == 1 else 'go'} on"
    return ""


async def _fetch_run_tree(client: Client, run: RunInfo) -> list[RunInfo]:
    """This run and those below it, as many as there are to be looked at."""
    found, above = [run], [run.id]
    while above and len(found) < _MAX_RUNS:
        started = await client.list(parent=above.pop(), limit=_PAGE_SIZE)
        found += started
        above += [one.id for one in started]
    return found


async def _find_woken_runs(client: Client, run: RunInfo, waiting: Sequence[str]) -> list[str]:
    """Those of them that wait no longer, or are to be woken: whoever was refused a call is, by another budget."""
    if not waiting:
        return []
    now = datetime.now(UTC)
    woken = [one for one in await _fetch_run_tree(client, run) if one.id in waiting and not _is_waiting(one, now)]
    return [one.id for one in sorted(woken, key=lambda one: one.created_at)]


def _is_waiting(run: RunInfo, now: datetime) -> bool:
    return run.state is RunState.WAITING and (run.wake_at is None or run.wake_at > now)
