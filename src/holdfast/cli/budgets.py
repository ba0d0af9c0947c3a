"""``holdfast budget``: what a run may use, what it has used, and giving it more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.liveness import look_around
from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.spending import (
    Share,
    brief_cost,
    budget_as_json,
    budgets_over,
    in_words,
    left_as_json,
    left_in_words,
    shares,
    tell_shares,
    usage_of,
)
from holdfast.cli.wording import STATE_STYLES, command, console, counted, listed, one_line, printable
from holdfast.client.client import Client
from holdfast.client.recorded_reply import usage_as_json
from holdfast.core.states import RunState
from holdfast.core.usage import NANO, Budget, Limits
from holdfast.errors import BudgetExceeded, HoldfastError, UsageError
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run

_PAGE = 500
_MOST = 5_000
"""So many runs below a run are looked at, to say which of them go on."""
_SHOWN = 20
"""So many of the runs that a run has started are listed."""


def how_to_go_on(run_id: str, refusal: BudgetExceeded, budgets: Mapping[str, RunUsage]) -> str:
    """What lets a run go on whose next model call was refused."""
    whose = refusal.run_id
    short = next((one for one in shares(budgets.get(whose, RunUsage())) if one.name == refusal.limit), None)
    if short is None:
        return f"run {run_id!r} waits for a higher budget: `{command('budget', whose)}` tells which"
    given = command("budget", whose, f"--{short.name}", short.enough)
    through = "" if whose == run_id else f" of run {whose!r}, which is above it"
    return f"run {run_id!r} waits for a higher budget{through}: `{given}` gives it more, and lets it go on"


# Telling


@dataclass(frozen=True, slots=True)
class _Books:
    """What there is to tell of a run."""

    run: Run
    told: RunUsage
    above: Sequence[tuple[str, RunUsage]]
    """The runs above it that have a budget, the nearest one first."""
    children: Sequence[tuple[Run, RunUsage]]
    """Those that it has started, newest first."""
    has_more: bool


def show_budget(url: str | None, run_id: str, *, as_json: bool) -> int:
    """Print a run's budget and what is used, for the run and those that it has started."""
    if as_json:
        return report([asyncio.run(_as_outcome(url, run_id))], as_json=True)
    _tell(console(), asyncio.run(_look(url, run_id)))
    return 0


async def _look(url: str | None, run_id: str) -> _Books:
    async with existing_store(url) as store:
        return await _read(store, await find_run(store, run_id))


async def _as_outcome(url: str | None, run_id: str) -> Outcome:
    async with existing_store(url) as store:
        try:
            books = await _read(store, await find_run(store, run_id))
            around = await look_around(store, [books.run])
        except HoldfastError as error:
            return await failure(store, run_id, error)
        message = f"run {run_id!r}: {in_words(books.told.used)}"
        return Outcome.of(books.run, around, changed=False, message=message, **_as_json(books))


async def _read(store: Store, run: Run) -> _Books:
    started = await store.list_runs(RunFilter(parent=run.id), limit=_SHOWN + 1)
    usages = await usage_of(store, [run.id, *(one.id for one in started)])
    above = [(run_id, told) for run_id, told in await budgets_over(store, run) if run_id != run.id]
    children = [(one, usages[one.id]) for one in started[:_SHOWN]]
    return _Books(run, usages[run.id], above, children, len(started) > _SHOWN)


def _as_json(books: _Books) -> dict[str, Any]:
    return {
        "used": usage_as_json(books.told.used),
        "budget": budget_as_json(books.told),
        "left": left_as_json(books.told),
        "above": [
            {"id": run_id, "used": usage_as_json(told.used), "budget": budget_as_json(told), "left": left_as_json(told)}
            for run_id, told in books.above
        ],
        "children": [
            {
                "id": run.id,
                "workflow": run.workflow,
                "state": run.state.value,
                "used": usage_as_json(told.used),
                "budget": budget_as_json(told),
                "left": left_as_json(told),
            }
            for run, told in books.children
        ],
    }


def _tell(out: Console, books: _Books) -> None:
    run, told = books.run, books.told
    out.print(
        Text.assemble(
            (one_line(run.id), "bold"), f" ({one_line(run.workflow)}), ", (run.state, STATE_STYLES[run.state])
        ),
        soft_wrap=True,
    )
    below = ", with the runs below it" if books.children else ""
    out.print(Text(f"used{below}: {in_words(told.used)}"), soft_wrap=True)
    if told.budget is not None:
        out.print()
        tell_shares(out, told)
    elif not books.above:
        out.print(Text("no budget: nothing limits what it uses", "dim"), soft_wrap=True)
    for run_id, over in books.above:
        out.print(
            Text(f"\nit keeps to the budget of run {printable(run_id)!r}, which is above it", "bold"), soft_wrap=True
        )
        tell_shares(out, over)
    _tell_children(out, books)


def _tell_children(out: Console, books: _Books) -> None:
    if not books.children:
        return
    out.print("\nruns it started, each with those below it", style="bold")
    rows = [
        (
            one_line(run.id),
            run.state.value,
            counted(told.used.calls, "turn"),
            counted(told.used.tokens, "token"),
            brief_cost(told.used),
            f"{left_in_words(told)} left" if told.budget is not None else "",
        )
        for run, told in books.children
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        cells = [cell.rjust(width) if column in (2, 3, 4) else cell.ljust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        out.print(Text("      " + "  ".join(cells).rstrip()), soft_wrap=True)
    if books.has_more:
        out.print(Text(f"      more: `{command('runs', '--parent', books.run.id)}`", "dim"), soft_wrap=True)


# Changing


def set_budget(url: str | None, run_id: str, given: Mapping[str, Any], *, as_json: bool) -> int:
    """Give a run another budget, and say what is left of it and which runs go on."""
    return report([asyncio.run(_set(url, run_id, given))], as_json=as_json)


async def _set(url: str | None, run_id: str, given: Mapping[str, Any]) -> Outcome:
    async with existing_store(url) as store, Client(url) as client:
        try:
            run = await find_run(store, run_id)
            before = await _read(store, run)
            if before.told.budget is None and not run.state.is_terminal:
                raise UsageError(_no_budget(before))
            waiting = await _below(store, run)
            await client.set_budget(run_id, _merged(before.told.budget or Limits(), given))
            run = await find_run(store, run_id)
            around = await look_around(store, [run])
            after = await _read(store, run)
            woken = await _woken(store, waiting)
        except HoldfastError as error:
            return await failure(store, run_id, error)
        message = f"run {run_id!r} has {left_in_words(after.told)} left (used: {in_words(after.told.used)})"
        changed = before.told.budget != after.told.budget
        return Outcome.of(
            run,
            around,
            changed=changed,
            message=message + _then(run, after.told, woken),
            goes_on=woken,
            **_as_json(after),
        )


def _no_budget(books: _Books) -> str:
    told = f"run {books.run.id!r} was started without a budget of its own, and cannot be given one now"
    if not books.above:
        return f"{told}: nothing limits what it uses. A budget is given with the start of a run, or to its agent."
    (run_id, over), *_ = books.above
    first: Share = shares(over)[0]
    return (
        f"{told}. It keeps to the budget of run {run_id!r}, which is above it: "
        f"`{command('budget', run_id, f'--{first.name}', first.enough)}` gives that one more."
    )


def _merged(limits: Limits, given: Mapping[str, Any]) -> Budget:
    """The budget with what is given in place of what was; the rest stays."""
    known: dict[str, Any] = {
        "usd": None if limits.nano_usd is None else Decimal(limits.nano_usd) / NANO,
        "tokens": limits.tokens,
        "turns": limits.calls,
        "seconds": limits.seconds,
    }
    return Budget(**{**known, **given})


def _then(run: Run, told: RunUsage, woken: Sequence[str]) -> str:
    """What happens next."""
    spent = [one for one in shares(told) if one.left <= 0]
    if spent:
        what = listed([one.name for one in spent])
        return f": nothing is left of {what}, so its next model call waits for a higher budget"
    if woken == [run.id]:
        return ": it goes on"
    if woken:
        return f": {listed([f'run {run_id!r}' for run_id in woken])} {'goes' if len(woken) == 1 else 'go'} on"
    return ""


async def _below(store: Store, run: Run) -> list[str]:
    """The runs that wait for something: this one, and those below it."""
    found = [run.id] if run.state is RunState.WAITING else []
    above, looked = [run.id], 0
    while above and looked < _MOST:
        started = await store.list_runs(RunFilter(parent=above.pop()), limit=_PAGE)
        looked += len(started)
        above += [one.id for one in started]
        found += [one.id for one in started if one.state is RunState.WAITING]
    return found


async def _woken(store: Store, waiting: Sequence[str]) -> list[str]:
    """Those of them that wait no longer, or are to be woken: whoever was refused a call is, by another budget."""
    woken: list[str] = []
    for at in range(0, len(waiting), _PAGE):
        runs = {run.id: run for run in await store.get_many(waiting[at : at + _PAGE])}
        now = store.now()
        woken += [run_id for run_id, run in runs.items() if not _waits(run, now)]
    return woken


def _waits(run: Run, now: float) -> bool:
    return run.state is RunState.WAITING and (run.wake_at is None or run.wake_at > now)
