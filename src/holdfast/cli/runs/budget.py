"""``holdfast budget``: what a run may use, what it has used, and giving it more."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Budget
from holdfast.cli.shared.formatting import (
    STATE_STYLES,
    create_console,
    format_command,
    format_count,
    format_list,
    make_printable,
    to_one_line,
)
from holdfast.cli.shared.options import command, duration_option, json_changes_option, url_option
from holdfast.cli.shared.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.shared.store_access import format_store_command, run_client
from holdfast.cli.shared.tables import Cell, print_table
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.reports.budgets import BudgetInfo, RunBudget
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import (
    BudgetLimit,
    format_brief_cost,
    format_remaining,
    format_usage,
    list_budget_limits,
)
from holdfast.services.json_form import to_json
from holdfast.stores.contract import RunUsage

_PAGE_SIZE = 500
_MAX_RUNS = 5_000
"""How many runs below a run are read, to say which of them continue."""


@command("holdfast budget research-7", "holdfast budget research-7 --usd 5 --turns 40")
@click.argument("run_id", metavar="ID")
@click.option("--usd", type=click.FloatRange(min=0.0, min_open=True), metavar="DOLLARS", help="Maximum cost.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Maximum input and output tokens.")
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Maximum model calls.")
@duration_option("--seconds", help="Maximum time in model calls and tools; the time that a run waits does not count.")
@json_changes_option
@url_option
def budget(run_id: str, as_json: bool, url: str | None, **limits: float | None) -> None:
    """Show what a run has used of its budget, or give it another one.

    A budget covers a run together with all the runs below it, from the start of the run: what is used already counts.
    Limits that you do not give stay as they are. Runs whose next model call was refused ask again, and continue.
    """
    changes = {name: limit for name, limit in limits.items() if limit is not None}
    if changes or as_json:
        outcome = run_client(
            url, lambda client: _change_budget(client, run_id, changes) if changes else _fetch_outcome(client, run_id)
        )
        sys.exit(print_outcomes(url, [outcome], as_json=as_json))
    _print_budget(create_console(), run_client(url, lambda client: client.budget(run_id)), url)


def print_budget_table(usage: RunUsage | RunBudget) -> None:
    """Print each limit of a budget, with what is used and what is left."""
    rows: list[Sequence[Cell]] = []
    for limit in list_budget_limits(usage):
        maximum, used, left = map(limit.format_amount, (limit.max_amount, limit.used, limit.remaining))
        rows.append((limit.name, maximum, used, Text(left, "yellow" if limit.remaining <= 0 else "")))
    print_table(("", "budget", "used", "left"), rows, right_columns=(1, 2, 3), header_style="dim", indent=6)


async def _fetch_outcome(client: Client, run_id: str) -> Outcome:
    try:
        run = await client.get(run_id)
        info = await client.budget(run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    message = f"run {run_id!r}: {format_usage(info.used)}"
    return Outcome.from_run(run, changed=False, message=message, **to_json(info))


def _print_budget(out: Console, info: BudgetInfo, url: str | None) -> None:
    out.print(
        Text.assemble(
            (to_one_line(info.run_id), "bold"),
            f" ({to_one_line(info.workflow)}), ",
            (info.state, STATE_STYLES[info.state]),
        )
    )
    below = ", with the runs below it" if info.children else ""
    out.print(Text(f"used{below}: {format_usage(info.used)}"))
    if info.budget is not None:
        out.print()
        print_budget_table(info)
    elif not info.ancestors:
        out.print(Text("no budget: nothing limits what it uses", "dim"))
    for over in info.ancestors:
        out.print(Text(f"\nit keeps to the budget of run {make_printable(over.run_id)!r}, which is above it", "bold"))
        print_budget_table(over)
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
    print_table((), rows, right_columns=(2, 3, 4), indent=6)
    if info.has_more_children:
        out.print(Text(f"      more: `{format_store_command(url, 'runs', '--parent', info.run_id)}`", "dim"))


# Changing


async def _change_budget(client: Client, run_id: str, changes: Mapping[str, Any]) -> Outcome:
    try:
        run = await client.get(run_id)
        before = await client.budget(run_id)
        if before.budget is None and not run.state.is_terminal:
            raise UsageError(_explain_no_budget(before))
        waiting = [one.id for one in await _fetch_run_tree(client, run) if one.state is RunState.WAITING]
        budget = Budget(**changes) if before.budget is None else replace(before.budget, **changes)
        await client.set_budget(run_id, budget)
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
        **to_json(after),
    )


def _explain_no_budget(info: BudgetInfo) -> str:
    refusal = f"run {info.run_id!r} was started without a budget of its own, and cannot be given one now"
    if not info.ancestors:
        return f"{refusal}: nothing limits what it uses. A budget is given with the start of a run, or to its agent."
    over, *_ = info.ancestors
    first: BudgetLimit = list_budget_limits(over)[0]
    return (
        f"{refusal}. It keeps to the budget of run {over.run_id!r}, which is above it: "
        f"`{format_command('budget', over.run_id, f'--{first.name}', first.suggested_limit)}` gives that one more."
    )


def _describe_effect(info: BudgetInfo, woken: Sequence[str]) -> str:
    """What happens next."""
    spent = [one for one in list_budget_limits(info) if one.remaining <= 0]
    if spent:
        what = format_list([one.name for one in spent])
        return f": nothing is left of {what}, so its next model call waits for a higher budget"
    if woken == [info.run_id]:
        return ": it continues"
    if woken:
        return (
            f": {format_list([f'run {run_id!r}' for run_id in woken])} {'continues' if len(woken) == 1 else 'continue'}"
        )
    return ""


async def _fetch_run_tree(client: Client, run: RunInfo) -> list[RunInfo]:
    """This run and those below it, up to a maximum."""
    found, above = [run], [run.id]
    while above and len(found) < _MAX_RUNS:
        started = await client.list(parent=above.pop(), limit=_PAGE_SIZE)
        found += started
        above += [one.id for one in started]
    return found


async def _find_woken_runs(client: Client, run: RunInfo, waiting: Sequence[str]) -> list[str]:
    """The runs that wait no longer, or are about to be woken because the budget changed."""
    if not waiting:
        return []
    now = datetime.now(UTC)
    woken = [one for one in await _fetch_run_tree(client, run) if one.id in waiting and not _is_waiting(one, now)]
    return [one.id for one in sorted(woken, key=lambda one: one.created_at)]


def _is_waiting(run: RunInfo, now: datetime) -> bool:
    return run.state is RunState.WAITING and (run.wake_at is None or run.wake_at > now)
