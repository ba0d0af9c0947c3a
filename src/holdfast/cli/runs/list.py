"""``holdfast runs``: a list of runs, newest first, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.shared.formatting import (
    STATE_STYLES,
    create_console,
    format_ago,
    format_command,
    format_duration,
    format_error,
    print_json,
    to_one_line,
)
from holdfast.cli.shared.options import (
    DEFAULT_LIMIT,
    before_option,
    command,
    json_option,
    limit_option,
    states_option,
    tag_option,
    url_option,
    workflow_option,
)
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import (
    format_store_command,
    run_client,
    store_options,
    with_store_options,
)
from holdfast.cli.shared.tables import Cell, layout_rows
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_usage import format_brief_cost
from holdfast.services.json_form import to_json
from holdfast.services.stalls import describe_disabled, is_waiting_for_budget

_HEADER = ("id", "workflow", "state", "started", "took")
_DETAIL_HEADER = "waiting for / error"
_MAX_DETAIL_WIDTH, _MIN_DETAIL_WIDTH = 120, 30
_APPROVAL_PREFIX = "approval "
"""How the wait for an answer is recorded: see ``engine.park_operation``."""

_FLOAT_ROUNDING = timedelta(microseconds=1)
"""What a float loses when it is printed: a time that was copied from ``--json`` must still match its run."""


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The options of ``holdfast runs``."""

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
        """The runs that match, and ``extra`` more, which show that there is another page."""
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
        """Whether an option leaves runs out."""
        return replace(self, states=tuple(self.states), limit=DEFAULT_LIMIT) != RunQuery()

    def format_next_page_command(self, last_run_id: str, url: str | None) -> str:
        """The command that continues after the run ``last_run_id``.

        Times are absolute in it, because ``2h`` ago is a different time by then.
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
    questions: Mapping[str, str]
    """The open approvals, by the ids of their runs."""


@command("holdfast runs --state failed --state dead --since 2h", "holdfast runs --workflow etl --text acme --json")
@states_option
@workflow_option
@tag_option
@click.option("--text", metavar="TEXT", help="Only runs with this text in their id, workflow, tags, or error.")
@click.option("--parent", metavar="ID", help="Only runs that this run started.")
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Only runs created at or after this time: 2026-11-15, 2026-11-15T08:30, or 90m, 2h, 3d ago.",
)
@click.option("--until", type=parse_past_datetime, metavar="WHEN", help="Only runs created before this time.")
@limit_option
@before_option
@json_option("A JSON array of runs, each as in `GET /v1/runs`.")
@url_option
def runs(as_json: bool, url: str | None, **options: Any) -> None:
    """List runs, newest first.

    If there are more runs than fit on a page, the list ends with the command that shows the next one.
    """
    query = RunQuery(**options)
    page = run_client(url, lambda client: _fetch_page(client, query))
    if as_json:
        print_json(to_json(page.runs))
        return
    out = create_console()
    if not page.runs:
        out.print("no run matches" if query.is_filtered else "no runs yet")
    else:
        _print_page(out, page)
    if page.questions:
        out.print(Text(f"open approvals: see `{format_store_command(url, 'approvals')}`", "yellow"))
    if page.has_more:
        next_page = f"more: {query.format_next_page_command(page.runs[-1].id, url)}"
        out.print(Text(next_page, "dim"))
    for workflow in page.disabled_workflows:
        if query.workflow in (None, workflow):
            out.print(Text(to_one_line(with_store_options(url, describe_disabled(workflow))), "yellow"))


async def _fetch_page(client: Client, query: RunQuery) -> _Page:
    if query.before is not None:
        await client.get(query.before)  # an unknown run has no next page, but is an error
    found = await query.fetch(client)
    runs = found[: query.limit]
    off = sorted(await client.disabled_workflows())
    return _Page(runs, len(found) > query.limit, off, await _fetch_questions(client, runs))


async def _fetch_questions(client: Client, runs: Sequence[RunInfo]) -> dict[str, str]:
    """The questions of open approvals, by the ids of their runs."""
    asking = {run.id for run in runs if _may_wait_for_approval(run)}
    approvals = await client.approvals() if asking else []
    return {one.run_id: f"{_APPROVAL_PREFIX}{one.id}: {one.question}" for one in approvals if one.run_id in asking}


def _may_wait_for_approval(run: RunInfo) -> bool:
    """Whether it may have an open approval. A program waits in memory, so it is running."""
    return run.state is RunState.RUNNING or (run.state is RunState.WAITING and _APPROVAL_PREFIX in run.waits_for)


def _print_page(out: Console, page: _Page) -> None:
    """Print a table. The last column moves to a line of its own if there is no room for it. Ids are never cut."""
    now = datetime.now(UTC)
    header, rows = _HEADER, [_build_row(run, now) for run in page.runs]
    costs = [format_brief_cost(run.usage or Usage()) for run in page.runs]
    if any(costs):
        header, rows = (*header, "cost"), [(*row, cost) for row, cost in zip(rows, costs, strict=True)]
    titles, *lines = layout_rows([header, *rows])
    room = out.width - len(titles) - 2
    has_room = room >= _MIN_DETAIL_WIDTH
    titles.append(f"  {_DETAIL_HEADER}" if has_room else "").rstrip()
    out.print(titles, style="bold")
    for run, line in zip(page.runs, lines, strict=True):
        detail, style = _describe_status(run, now, page.questions.get(run.id))
        if has_room:
            line.append("  ").append(to_one_line(detail, min(room, _MAX_DETAIL_WIDTH)), style)
        line.rstrip()
        out.print(line)
        if detail and not has_room:
            out.print(Text(f"    {to_one_line(detail, out.width - 4)}", style))


def _build_row(run: RunInfo, now: datetime) -> tuple[Cell, ...]:
    took = "" if run.finished_at is None else format_duration((run.finished_at - run.created_at).total_seconds())
    state = Text(run.state.value, STATE_STYLES[run.state])
    return to_one_line(run.id), to_one_line(run.workflow), state, _format_age(run.created_at, now), took


def _format_age(at: datetime, now: datetime) -> str:
    return format_ago((now - at).total_seconds())


def _describe_status(run: RunInfo, now: datetime, question: str | None) -> tuple[str, str]:
    """What the run waits for, what holds it up, or why it ended without a result; with a style."""
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
    """What a run waits for, unless its budget is the reason; with the question of an approval."""
    if is_waiting_for_budget(run):
        return []
    if question is not None:
        return [question]
    if run.state is not RunState.WAITING or not run.waits_for:
        return []
    return [run.waits_for + ("" if run.wake_at is None else f" ({_format_age(run.wake_at, now)})")]
