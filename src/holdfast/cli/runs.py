"""``holdfast runs``: a list of runs, newest first, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.liveness import (
    Surroundings,
    how_to_switch_on,
    is_cancelling,
    is_held,
    is_paused,
    is_short,
    look_around,
    stall_of,
)
from holdfast.cli.opening import existing_store, find_run, where
from holdfast.cli.recorded import error_of
from holdfast.cli.spending import brief_cost, usage_of
from holdfast.cli.wording import STATE_STYLES, ago, command, console, duration, echo_json, iso, one_line
from holdfast.client.recorded_reply import usage_as_json
from holdfast.core.states import RunState
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.contract import RunFilter, RunUsage, Store
from holdfast.stores.operations import Run

_HEAD = ("id", "workflow", "state", "started", "took")
_DETAIL_HEAD = "waiting for / error"
_DETAIL, _LEAST_DETAIL = 120, 30
_APPROVAL = "approval "
"""So the wait for an answer is told: see ``engine.driver``."""

_ROUNDING = 0.6e-6
"""Half a microsecond, and what a float loses: a time that was copied from ``--json`` is that of its run."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs to list, as it was asked for."""

    states: Sequence[str] = ()
    workflow: str | None = None
    tag: str | None = None
    text: str | None = None
    parent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    before: str | None = None

    @property
    def where(self) -> RunFilter:
        """The same, for the store."""
        return RunFilter(
            states=[RunState(state) for state in self.states],
            workflow=self.workflow,
            tag=self.tag,
            text=self.text,
            parent=self.parent,
            created_after=None if self.since is None else self.since.timestamp() - _ROUNDING,
            created_before=None if self.until is None else self.until.timestamp() - _ROUNDING,
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether some runs are left out on purpose."""
        return self.where != RunFilter(states=[]) or self.before is not None

    def next_page(self, last: str, url: str | None) -> str:
        """The command that goes on behind the run ``last``. Moments are fixed: ``2h`` ago is another one by then."""
        given: list[tuple[str, str | None]] = [
            *(("--state", state) for state in self.states),
            ("--workflow", self.workflow),
            ("--tag", self.tag),
            ("--text", self.text),
            ("--parent", self.parent),
            ("--since", _moment(self.since)),
            ("--until", _moment(self.until)),
            ("--limit", None if self.limit == 50 else str(self.limit)),
            *where(url),
            ("--before", last),
        ]
        return command("runs", *(word for name, value in given if value is not None for word in _option(name, value)))


def _option(name: str, value: str) -> tuple[str, ...]:
    return (f"{name}={value}",) if value.startswith("-") else (name, value)  # an id may look like an option


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class _Page:
    runs: Sequence[Run]
    has_more: bool
    around: Surroundings
    usages: Mapping[str, RunUsage]
    questions: Mapping[str, str]
    """What people are asked by those that wait for an answer, by their ids."""


def show_runs(url: str | None, wanted: Wanted, *, as_json: bool) -> None:
    """Print the runs that match."""
    page = asyncio.run(_read(url, wanted))
    if as_json:
        echo_json([run_as_json(run, page.usages[run.id]) for run in page.runs])
        return
    out = console()
    if not page.runs:
        out.print("no run matches" if wanted.is_narrowed else "no runs yet")
    else:
        _tell(out, page)
    if page.questions:
        out.print(Text(f"answers are waited for: see `{command('approvals')}`", "yellow"), soft_wrap=True)
    if page.has_more:
        more = f"more: {wanted.next_page(page.runs[-1].id, url)}"
        out.print(Text(more, "dim"), soft_wrap=True)
    for workflow in sorted(page.around.off):
        if wanted.workflow in (None, workflow):
            out.print(Text(one_line(how_to_switch_on(workflow)), "yellow"), soft_wrap=True)


async def _read(url: str | None, wanted: Wanted) -> _Page:
    async with existing_store(url) as store:
        before = None if wanted.before is None else (await find_run(store, wanted.before)).key
        found = await store.list_runs(wanted.where, limit=wanted.limit + 1, before=before)
        runs = found[: wanted.limit]
        around = await look_around(store, runs)
        usages = await usage_of(store, [run.id for run in runs])
        return _Page(runs, len(found) > wanted.limit, around, usages, await _questions(store, runs))


async def _questions(store: Store, runs: Sequence[Run]) -> dict[str, str]:
    """What people are asked, by the ids of the runs that wait for an answer."""
    asking = {run.id for run in runs if run.state is RunState.WAITING and _APPROVAL in run.waits_for}
    rows = await store.approvals(ApprovalFilter()) if asking else []
    return {row.run_id: f"{_APPROVAL}{row.id}: {row.question.text}" for row in rows if row.run_id in asking}


def _tell(out: Console, page: _Page) -> None:
    """A table; the last column moves to a line of its own where there is no room for it. Ids are never cut."""
    head, rows = _HEAD, [_row(run, page.around.now) for run in page.runs]
    costs = [brief_cost(page.usages[run.id].used) for run in page.runs]
    if any(costs):
        head, rows = (*head, "cost"), [(*row, cost) for row, cost in zip(rows, costs, strict=True)]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    room = out.width - sum(widths) - 2 * len(widths)
    beside = room >= _LEAST_DETAIL
    titles = "  ".join(title.ljust(width) for title, width in zip(head, widths, strict=True))
    out.print(f"{titles}  {_DETAIL_HEAD}" if beside else titles.rstrip(), style="bold", soft_wrap=True)
    for run, row in zip(page.runs, rows, strict=True):
        line = Text()
        for title, cell, width in zip(head, row, widths, strict=True):
            line.append(cell.ljust(width), STATE_STYLES[run.state] if title == "state" else "").append("  ")
        detail, style = _detail(run, page.around, page.questions.get(run.id))
        if beside:
            line.append(one_line(detail, min(room, _DETAIL)), style)
        line.rstrip()
        out.print(line, soft_wrap=True)
        if detail and not beside:
            out.print(Text(f"    {one_line(detail, out.width - 4)}", style), soft_wrap=True)


def _row(run: Run, now: float) -> tuple[str, ...]:
    took = "" if run.finished_at is None else duration(run.finished_at - run.created_at)
    return one_line(run.id), one_line(run.workflow), run.state.value, ago(now - run.created_at), took


def _detail(run: Run, around: Surroundings, question: str | None) -> tuple[str, str]:
    """What the run waits for, what keeps it from going on, or why it ended without a result; with its style."""
    if error := error_of(run.error):
        return error.in_short, "red"
    now = around.now
    hindrances = ["cancelling"] if is_cancelling(run) else []
    asks = [question] if question is not None else []
    if is_short(run):
        hindrances.append("waits for a higher budget")
    if run.paused_at is not None and is_paused(run):
        since = f"paused ({ago(now - run.paused_at)})"
        hindrances.append("paused, once its steps in flight have ended" if is_held(run, around) else since)
    elif stall := stall_of(run, around):
        hindrances.append(stall.short)
    if hindrances:
        return "; ".join([*asks, *hindrances]), "yellow"
    if run.state is RunState.WAITING:
        if asks:
            return asks[0], ""
        return run.waits_for + ("" if run.wake_at is None else f" ({ago(now - run.wake_at)})"), ""
    if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        return f"its start, {ago(now - run.wake_at)}", ""
    return "", ""


def run_as_json(run: Run, told: RunUsage) -> dict[str, Any]:
    """What a list tells of a run, under stable names."""
    error = error_of(run.error)
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version or None,
        "state": run.state.value,
        "queue": run.queue,
        "queue_key": run.queue_key or None,
        "tags": list(run.tags),
        "created_at": iso(run.created_at),
        "finished_at": iso(run.finished_at),
        "seconds": None if run.finished_at is None else round(run.finished_at - run.created_at, 6),
        "waits_for": run.waits_for if run.state is RunState.WAITING else None,
        "wake_at": iso(run.wake_at),
        "paused": is_paused(run),
        "cancelling": is_cancelling(run),
        "parent": run.parent or None,
        "forked_from": run.forked_from or None,
        "usage": usage_as_json(told.used) if told.used.calls else None,
        "error": None if error is None else {"type": error.type, "message": error.message},
    }
