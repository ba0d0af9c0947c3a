"""``holdfast runs``: a list of runs, newest first, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import STATE_STYLES, ago, brief_error, command, console, duration, echo_json, one_line
from holdfast.cli.options import PAGE
from holdfast.cli.store_access import command_at, get_run, placed, reached, where
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.reports.recorded_reply import usage_as_json
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import brief_cost
from holdfast.services.stalls import how_to_switch_on, is_short

_HEAD = ("id", "workflow", "state", "started", "took")
_DETAIL_HEAD = "waiting for / error"
_DETAIL, _LEAST_DETAIL = 120, 30
_APPROVAL = "approval "
"""So the wait for an answer is told: see ``engine.park_operation``."""

_ROUNDING = timedelta(microseconds=1)
"""What a float loses when it is told: a time that was copied from ``--json`` is that of its run."""


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
    limit: int = PAGE
    before: str | None = None

    async def read(self, client: Client, more: int = 1) -> list[RunInfo]:
        """Those that match, and so many more, which tell that there are some."""
        return await client.list(
            state=self.states,
            workflow=self.workflow,
            tag=self.tag,
            text=self.text,
            parent=self.parent,
            created_after=None if self.since is None else self.since - _ROUNDING,
            created_before=None if self.until is None else self.until - _ROUNDING,
            limit=self.limit + more,
            before=self.before,
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether some runs are left out on purpose."""
        return replace(self, states=tuple(self.states), limit=PAGE) != Wanted()

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
            ("--limit", None if self.limit == PAGE else str(self.limit)),
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
    runs: Sequence[RunInfo]
    has_more: bool
    off: Sequence[str]
    """The workflows that are switched off."""
    questions: Mapping[str, str]
    """What people are asked by those that wait for an answer, by their ids."""


def show_runs(url: str | None, wanted: Wanted, *, as_json: bool) -> None:
    """Print the runs that match."""
    page = in_loop(_read(url, wanted))
    if as_json:
        echo_json([run_as_json(run) for run in page.runs])
        return
    out = console()
    if not page.runs:
        out.print("no run matches" if wanted.is_narrowed else "no runs yet")
    else:
        _tell(out, page)
    if page.questions:
        out.print(Text(f"answers are waited for: see `{command_at(url, 'approvals')}`", "yellow"), soft_wrap=True)
    if page.has_more:
        more = f"more: {wanted.next_page(page.runs[-1].id, url)}"
        out.print(Text(more, "dim"), soft_wrap=True)
    for workflow in page.off:
        if wanted.workflow in (None, workflow):
            out.print(Text(one_line(placed(url, how_to_switch_on(workflow))), "yellow"), soft_wrap=True)


async def _read(url: str | None, wanted: Wanted) -> _Page:
    async with reached(url) as client:
        if wanted.before is not None:
            await get_run(client, wanted.before)  # it names runs that are called alike
        found = await wanted.read(client)
        runs = found[: wanted.limit]
        off = sorted(await client.switched_off())
        return _Page(runs, len(found) > wanted.limit, off, await _questions(client, runs))


async def _questions(client: Client, runs: Sequence[RunInfo]) -> dict[str, str]:
    """What people are asked, by the ids of the runs that wait for an answer."""
    asking = {run.id for run in runs if run.state is RunState.WAITING and _APPROVAL in run.waits_for}
    asked = await client.approvals() if asking else []
    return {one.run_id: f"{_APPROVAL}{one.id}: {one.question}" for one in asked if one.run_id in asking}


def _tell(out: Console, page: _Page) -> None:
    """A table; the last column moves to a line of its own where there is no room for it. Ids are never cut."""
    now = datetime.now(UTC)
    head, rows = _HEAD, [_row(run, now) for run in page.runs]
    costs = [brief_cost(run.usage or Usage()) for run in page.runs]
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
        detail, style = _detail(run, now, page.questions.get(run.id))
        if beside:
            line.append(one_line(detail, min(room, _DETAIL)), style)
        line.rstrip()
        out.print(line, soft_wrap=True)
        if detail and not beside:
            out.print(Text(f"    {one_line(detail, out.width - 4)}", style), soft_wrap=True)


def _row(run: RunInfo, now: datetime) -> tuple[str, ...]:
    took = "" if run.finished_at is None else duration((run.finished_at - run.created_at).total_seconds())
    return one_line(run.id), one_line(run.workflow), run.state.value, _ago(run.created_at, now), took


def _ago(at: datetime, now: datetime) -> str:
    return ago((now - at).total_seconds())


def _detail(run: RunInfo, now: datetime, question: str | None) -> tuple[str, str]:
    """What the run waits for, what keeps it from going on, or why it ended without a result; with its style."""
    if run.error is not None:
        return brief_error(run.error), "red"
    hindrances = ["cancelling"] if run.cancelling else []
    if is_short(run):
        hindrances.append("waits for a higher budget")
    if run.paused_at is not None:
        since = f"paused ({_ago(run.paused_at, now)})"
        hindrances.append("paused, once its steps in flight have ended" if run.held else since)
    elif run.hindrance is not None:
        hindrances.append(run.hindrance)
    awaited = _awaited(run, now, question)
    if awaited or hindrances:
        return "; ".join([*awaited, *hindrances]), "yellow" if hindrances else ""
    if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        return f"its start, {_ago(run.wake_at, now)}", ""
    return "", ""


def _awaited(run: RunInfo, now: datetime, question: str | None) -> list[str]:
    """What a run waits for, unless that is said otherwise: with the question, if people are asked one."""
    if run.state is not RunState.WAITING or is_short(run):
        return []
    if question is not None or not run.waits_for:
        return [question] if question else []
    return [run.waits_for + ("" if run.wake_at is None else f" ({_ago(run.wake_at, now)})")]


def run_as_json(run: RunInfo) -> dict[str, Any]:
    """What a list tells of a run, under stable names."""
    took = None if run.finished_at is None else (run.finished_at - run.created_at).total_seconds()
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version or None,
        "state": run.state.value,
        "queue": run.queue,
        "queue_key": run.queue_key or None,
        "tags": list(run.tags),
        "created_at": run.created_at.isoformat(),
        "finished_at": None if run.finished_at is None else run.finished_at.isoformat(),
        "seconds": took,
        "waits_for": run.waits_for if run.state is RunState.WAITING else None,
        "wake_at": None if run.wake_at is None else run.wake_at.isoformat(),
        "paused": run.paused,
        "cancelling": run.cancelling,
        "parent": run.parent,
        "forked_from": run.forked_from,
        "usage": None if run.usage is None else usage_as_json(run.usage),
        "error": None if run.error is None else asdict(run.error),
    }
