"""``holdfast budget``: what a run may use, what it has used, and giving it more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Budget
from holdfast.cli.budget_table import tell_shares
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import STATE_STYLES, command, console, counted, listed, one_line, printable
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.store_access import command_at, get_run, reached
from holdfast.cli.tables import print_table
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.reports.budgets import Allowance, BudgetInfo
from holdfast.reports.recorded_reply import usage_as_json
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import Share, brief_cost, budget_as_json, in_words, left_as_json, left_in_words, shares

_PAGE = 500
_MOST = 5_000
"""So many runs below a run are looked at, to say which of them go on."""


# Telling


def show_budget(url: str | None, run_id: str, *, as_json: bool) -> int:
    """Print a run's budget and what is used, for the run and those that it has started."""
    if as_json:
        return report(url, [in_loop(_as_outcome(url, run_id))], as_json=True)
    _tell(console(), in_loop(_look(url, run_id)), url)
    return 0


async def _look(url: str | None, run_id: str) -> BudgetInfo:
    async with reached(url) as client:
        await get_run(client, run_id)
        return await client.budget(run_id)


async def _as_outcome(url: str | None, run_id: str) -> Outcome:
    async with reached(url) as client:
        try:
            run = await get_run(client, run_id)
            books = await client.budget(run_id)
        except HoldfastError as error:
            return await failure(client, run_id, error)
        message = f"run {run_id!r}: {in_words(books.used)}"
        return Outcome.of(run, changed=False, message=message, **_as_json(books))


def _as_json(books: BudgetInfo) -> dict[str, Any]:
    return {
        **_allowance_as_json(books),
        "above": [{"id": one.run_id, **_allowance_as_json(one)} for one in books.above],
        "children": [
            {"id": one.run_id, "workflow": one.workflow, "state": one.state.value, **_allowance_as_json(one)}
            for one in books.children
        ],
    }


def _allowance_as_json(one: Allowance) -> dict[str, Any]:
    return {"used": usage_as_json(one.used), "budget": budget_as_json(one), "left": left_as_json(one)}


def _tell(out: Console, books: BudgetInfo, url: str | None) -> None:
    out.print(
        Text.assemble(
            (one_line(books.run_id), "bold"),
            f" ({one_line(books.workflow)}), ",
            (books.state, STATE_STYLES[books.state]),
        ),
        soft_wrap=True,
    )
    below = ", with the runs below it" if books.children else ""
    out.print(Text(f"used{below}: {in_words(books.used)}"), soft_wrap=True)
    if books.budget is not None:
        out.print()
        tell_shares(out, books)
    elif not books.above:
        out.print(Text("no budget: nothing limits what it uses", "dim"), soft_wrap=True)
    for over in books.above:
        out.print(
            Text(f"\nit keeps to the budget of run {printable(over.run_id)!r}, which is above it", "bold"),
            soft_wrap=True,
        )
        tell_shares(out, over)
    _tell_children(out, books, url)


def _tell_children(out: Console, books: BudgetInfo, url: str | None) -> None:
    if not books.children:
        return
    out.print("\nruns it started, each with those below it", style="bold")
    rows = [
        (
            one_line(one.run_id),
            one.state.value,
            counted(one.used.calls, "turn"),
            counted(one.used.tokens, "token"),
            brief_cost(one.used),
            f"{left_in_words(one)} left" if one.budget is not None else "",
        )
        for one in books.children
    ]
    print_table((), rows, numbers=(2, 3, 4), indent=6)
    if books.has_more:
        out.print(Text(f"      more: `{command_at(url, 'runs', '--parent', books.run_id)}`", "dim"), soft_wrap=True)


# Changing


def set_budget(url: str | None, run_id: str, given: Mapping[str, Any], *, as_json: bool) -> int:
    """Give a run another budget, and say what is left of it and which runs go on."""
    return report(url, [in_loop(_set(url, run_id, given))], as_json=as_json)


async def _set(url: str | None, run_id: str, given: Mapping[str, Any]) -> Outcome:
    async with reached(url) as client:
        try:
            run = await get_run(client, run_id)
            before = await client.budget(run_id)
            if before.budget is None and not run.state.is_terminal:
                raise UsageError(_no_budget(before))
            waiting = [one.id for one in await _below(client, run) if one.state is RunState.WAITING]
            await client.set_budget(run_id, _merged(before.budget, given))
            run, after = await client.get(run_id), await client.budget(run_id)
            woken = await _woken(client, run, waiting)
        except HoldfastError as error:
            return await failure(client, run_id, error)
        message = f"run {run_id!r} has {left_in_words(after)} left (used: {in_words(after.used)})"
        return Outcome.of(
            run,
            changed=before.budget != after.budget,
            message=message + _then(after, woken),
            goes_on=woken,
            **_as_json(after),
        )


def _no_budget(books: BudgetInfo) -> str:
    told = f"run {books.run_id!r} was started without a budget of its own, and cannot be given one now"
    if not books.above:
        return f"{told}: nothing limits what it uses. A budget is given with the start of a run, or to its agent."
    over, *_ = books.above
    first: Share = shares(over)[0]
    return (
        f"{told}. It keeps to the budget of run {over.run_id!r}, which is above it: "
        f"`{command('budget', over.run_id, f'--{first.name}', first.enough)}` gives that one more."
    )


def _merged(budget: Budget | None, given: Mapping[str, Any]) -> Budget:
    """The budget with what is given in place of what was; the rest stays."""
    return Budget(**given) if budget is None else replace(budget, **given)


def _then(told: BudgetInfo, woken: Sequence[str]) -> str:
    """What happens next."""
    spent = [one for one in shares(told) if one.left <= 0]
    if spent:
        what = listed([one.name for one in spent])
        return f": nothing is left of {what}, so its next model call waits for a higher budget"
    if woken == [told.run_id]:
        return ": it goes on"
    if woken:
        return f": {listed([f'run {run_id!r}' for run_id in woken])} {'goes' if len(woken) == 1 else 'go'} on"
    return ""


async def _below(client: Client, run: RunInfo) -> list[RunInfo]:
    """This run and those below it, as many as there are to be looked at."""
    found, above = [run], [run.id]
    while above and len(found) < _MOST:
        started = await client.list(parent=above.pop(), limit=_PAGE)
        found += started
        above += [one.id for one in started]
    return found


async def _woken(client: Client, run: RunInfo, waiting: Sequence[str]) -> list[str]:
    """Those of them that wait no longer, or are to be woken: whoever was refused a call is, by another budget."""
    if not waiting:
        return []
    now = datetime.now(UTC)
    woken = [one for one in await _below(client, run) if one.id in waiting and not _waits(one, now)]
    return [one.id for one in sorted(woken, key=lambda one: one.created_at)]


def _waits(run: RunInfo, now: datetime) -> bool:
    return run.state is RunState.WAITING and (run.wake_at is None or run.wake_at > now)
