"""``holdfast runs``: a list of runs, newest first, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    create_console,
    format_ago,
    format_command,
    format_duration,
    format_error,
    print_json,
    to_one_line,
)
from holdfast.cli.options import DEFAULT_LIMIT
from holdfast.cli.store_access import format_store_command, get_run, open_client, store_options, with_store_options
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.reports.recorded_reply import usage_to_json
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import format_brief_cost
from holdfast.services.stalls import describe_disabled, is_waiting_for_budget

_HEADER = ("id", "workflow", "state", "started", "took")
_DETAIL_HEADER = "waiting for / error"
_MAX_DETAIL_WIDTH, _MIN_DETAIL_WIDTH = 120, 30
_APPROVAL_PREFIX = "approval "
"""So the wait for an answer is told: see ``engine.park_operation``."""

_FLOAT_ROUNDING = timedelta(microseconds=1)
"""What a float loses when it is told: a time that was copied from ``--json`` is that of its run."""


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list, as it was asked for."""

    states: Sequence[str] = ()
    workflow: str | None = None
    tag: str | None = None
    text: str | None = None
    parent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = DEFAULT_LIMIT
    before: str | None = None

    async def fetch(self, client: Client, extra: int = 1) -> list[RunInfo]:
        """Those that match, and so many more, which tell that there are some."""
        return await client.list(
            state=self.states,
            workflow=self.workflow,
            tag=self.tag,
            text=self.text,
            parent=self.parent,
            created_after=None if self.since is None else self.since - _FLOAT_ROUNDING,
            created_before=None if self.until is None else self.until - _FLOAT_ROUNDING,
            limit=self.limit + extra,
            before=self.before,
        )

    @property
    def is_filtered(self) -> bool:
        """Whether some runs are left out on purpose."""
        return replace(self, states=tuple(self.states), limit=DEFAULT_LIMIT) != RunQuery()

    def format_next_page_command(self, last_run_id: str, url: str | None) -> str:
        """The command that goes on behind the run ``last_run_id``.

        Moments are fixed: ``2h`` ago is another one by then.
        """
        given: list[tuple[str, str | None]] = [
            *(("--state", state) for state in self.states),
            ("--workflow", self.workflow),
            ("--tag", self.tag),
            ("--text", self.text),
            ("--parent", self.parent),
            ("--since", _format_datetime(self.since)),
            ("--until", _format_datetime(self.until)),
            ("--limit", None if self.limit == DEFAULT_LIMIT else str(self.limit)),
            *store_options(url),
            ("--before", last_run_id),
        ]
        return format_command(
            "runs", *(word for name, value in given if value is not None for word in _format_option(name, value))
        )


def _format_option(name: str, value: str) -> tuple[str, ...]:
    return (f"{name}={value}",) if value.startswith("-") else (name, value)  # an id may look like an option


def _format_datetime(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class _Page:
    runs: Sequence[RunInfo]
    has_more: bool
    disabled_workflows: Sequence[str]
    """The disabled workflows."""
    questions: Mapping[str, str]
    """What people are asked by those that wait for an answer, by their ids."""


def show_runs(url: str | None, query: RunQuery, *, as_json: bool) -> None:
    """Print the runs that match."""
    page = run_in_loop(_fetch_page(url, query))
    if as_json:
        print_json([run_to_json(run) for run in page.runs])
        return
    out = create_console()
    if not page.runs:
        out.print("no run matches" if query.is_filtered else "no runs yet")
    else:
        _print_page(out, page)
    if page.questions:
        out.print(
            Text(f"answers are waited for: see `{format_store_command(url, 'approvals')}`", "yellow"), soft_wrap=True
        )
    if page.has_more:
        more = f"more: {query.format_next_page_command(page.runs[-1].id, url)}"
        out.print(Text(more, "dim"), soft_wrap=True)
    for workflow in page.disabled_workflows:
        if query.workflow in (None, workflow):
            out.print(Text(to_one_line(with_store_options(url, describe_disabled(workflow))), "yellow"), soft_wrap=True)


async def _fetch_page(url: str | None, query: RunQuery) -> _Page:
    async with open_client(url) as client:
        if query.before is not None:
            await get_run(client, query.before)  # it names runs that are called alike
        found = await query.fetch(client)
        runs = found[: query.limit]
        off = sorted(await client.disabled_workflows())
        return _Page(runs, len(found) > query.limit, off, await _fetch_questions(client, runs))


async def _fetch_questions(client: Client, runs: Sequence[RunInfo]) -> dict[str, str]:
    """What people are asked, by the ids of the runs that wait for an answer."""
    asking = {run.id for run in runs if run.state is RunState.WAITING and _APPROVAL_PREFIX in run.waits_for}
    asked = await client.approvals() if asking else []
    return {one.run_id: f"{_APPROVAL_PREFIX}{one.id}: {one.question}" for one in asked if one.run_id in asking}


def _print_page(out: Console, page: _Page) -> None:
    """A table; the last column moves to a line of its own where there is no room for it. Ids are never cut."""
    now = datetime.now(UTC)
    head, rows = _HEADER, [_build_row(run, now) for run in page.runs]
    costs = [format_brief_cost(run.usage or Usage()) for run in page.runs]
    if any(costs):
        head, rows = (*head, "cost"), [(*row, cost) for row, cost in zip(rows, costs, strict=True)]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    room = out.width - sum(widths) - 2 * len(widths)
    beside = room >= _MIN_DETAIL_WIDTH
    titles = "  ".join(title.ljust(width) for title, width in zip(head, widths, strict=True))
    out.print(f"{titles}  {_DETAIL_HEADER}" if beside else titles.rstrip(), style="bold", soft_wrap=True)
    for run, row in zip(page.runs, rows, strict=True):
        line = Text()
        for title, cell, width in zip(head, row, widths, strict=True):
            line.append(cell.ljust(width), STATE_STYLES[run.state] if title == "state" else "").append("  ")
        detail, style = _describe_status(run, now, page.questions.get(run.id))
        if beside:
            line.append(to_one_line(detail, min(room, _MAX_DETAIL_WIDTH)), style)
        line.rstrip()
        out.print(line, soft_wrap=True)
        if detail and not beside:
            out.print(Text(f"    {to_one_line(detail, out.width - 4)}", style), soft_wrap=True)


def _build_row(run: RunInfo, now: datetime) -> tuple[str, ...]:
    took = "" if run.finished_at is None else format_duration((run.finished_at - run.created_at).total_seconds())
    return to_one_line(run.id), to_one_line(run.workflow), run.state.value, _format_age(run.created_at, now), took


def _format_age(at: datetime, now: datetime) -> str:
    return format_ago((now - at).total_seconds())


def _describe_status(run: RunInfo, now: datetime, question: str | None) -> tuple[str, str]:
    """What the run waits for, what keeps it from going on, or why it ended without a result; with its style."""
    if run.error is not None:
        return format_error(run.error), "red"
    hindrances = ["cancelling"] if run.is_cancelling else []
    if is_waiting_for_budget(run):
        hindrances.append("waits for a higher budget")
    if run.paused_at is not None:
        since = f"paused ({_format_age(run.paused_at, now)})"
        hindrances.append("paused, once its steps in flight have ended" if run.is_claimed else since)
    elif run.stall_summary is not None:
        hindrances.append(run.stall_summary)
    awaited = _describe_wait(run, now, question)
    if awaited or hindrances:
        return "; ".join([*awaited, *hindrances]), "yellow" if hindrances else ""
    if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        return f"its start, {_format_age(run.wake_at, now)}", ""
    return "", ""


def _describe_wait(run: RunInfo, now: datetime, question: str | None) -> list[str]:
    """What a run waits for, unless that is said otherwise: with the question, if people are asked one."""
    if run.state is not RunState.WAITING or is_waiting_for_budget(run):
        return []
    if question is not None or not run.waits_for:
        return [question] if question else []
    return [run.waits_for + ("" if run.wake_at is None else f" ({_format_age(run.wake_at, now)})")]


def run_to_json(run: RunInfo) -> dict[str, Any]:
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
        "duration_s": took,
        "waits_for": run.waits_for if run.state is RunState.WAITING else None,
        "wake_at": None if run.wake_at is None else run.wake_at.isoformat(),
        "is_paused": run.is_paused,
        "is_cancelling": run.is_cancelling,
        "parent": run.parent,
        "forked_from": run.forked_from,
        "usage": None if run.usage is None else usage_to_json(run.usage),
        "error": None if run.error is None else asdict(run.error),
    }
