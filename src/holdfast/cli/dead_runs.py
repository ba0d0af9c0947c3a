"""``holdfast dead``: runs whose workers died too often, and how to let them go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    create_console,
    format_ago,
    format_count,
    format_local_time,
    make_printable,
    print_json,
    to_one_line,
)
from holdfast.cli.options import DEFAULT_LIMIT
from holdfast.cli.retry import RunSelection, retry_runs, retry_selected
from holdfast.cli.store_access import format_store_command, open_client
from holdfast.core.states import RunState
from holdfast.reports.dead_runs import DeadRun


def show_dead_runs(url: str | None, workflow: str | None, limit: int, before: str | None, *, as_json: bool) -> None:
    """Print the dead runs."""
    found = run_in_loop(_fetch_dead_runs(url, workflow, limit + 1, before))
    runs, now = found[:limit], time.time()
    if as_json:
        print_json([_dead_run_to_json(run) for run in runs])
        return
    out = create_console()
    if not runs:
        out.print(_describe_none(workflow))
        return
    for run in runs:
        since = run.since.timestamp()
        out.print(Text.assemble((to_one_line(run.id), "bold red"), f"  {to_one_line(run.workflow)}"), soft_wrap=True)
        out.print(f"    dead since  {format_ago(now - since)} ({format_local_time(since)})", soft_wrap=True)
        last = f", the last one {run.worker}" if run.worker else ""
        out.print(
            f"    deaths      {format_count(run.death_count, 'worker')} that held no other run{to_one_line(last)}",
            soft_wrap=True,
        )
        out.print(f"    in flight   {_format_in_flight(run)}", soft_wrap=True)
        after = f", the last one of {to_one_line(run.last_step_name)}" if run.last_step_name else ""
        out.print(f"    recorded    {format_count(run.record_count, 'record')}{after}", soft_wrap=True)
    if len(found) > limit:
        narrowed = ("--workflow", workflow) if workflow else ()
        limited = () if limit == DEFAULT_LIMIT else ("--limit", str(limit))
        more = format_store_command(url, "dead", *narrowed, *limited, "--before", runs[-1].id)
        out.print(Text(f"more: {more}", "dim"), soft_wrap=True)
    out.print(
        Text(f"see to the cause, then: {format_store_command(url, 'dead', 'retry', runs[0].id)}", "dim"), soft_wrap=True
    )


def _describe_none(workflow: str | None) -> str:
    return "no run is dead" if workflow is None else make_printable(f"no run of workflow {workflow!r} is dead")


def _format_in_flight(run: DeadRun) -> str:
    if not run.in_flight:
        return "not known: whatever comes behind the last record"
    return ", ".join(f"step {step.number} ({to_one_line(step.name)}), attempt {step.attempt}" for step in run.in_flight)


def _dead_run_to_json(run: DeadRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "since": run.since.isoformat(),
        "death_count": run.death_count,
        "worker": run.worker or None,
        "in_flight": [
            {
                "name": step.name,
                "number": step.number,
                "attempt": step.attempt,
                "since": None if step.since is None else step.since.isoformat(),
            }
            for step in run.in_flight
        ],
        "record_count": run.record_count,
        "last_step_name": run.last_step_name or None,
        "parent": run.parent,
        "reason": run.reason,
    }


async def _fetch_dead_runs(url: str | None, workflow: str | None, limit: int, before: str | None) -> list[DeadRun]:
    async with open_client(url) as client:
        return await client.dead(workflow=workflow, limit=limit, before=before)


def retry_dead_runs(
    url: str | None, run_ids: Sequence[str], workflow: str | None, *, run_again: bool, yes: bool, as_json: bool
) -> int:
    """Let dead runs go on: these, those of a workflow, or all."""
    if run_ids:
        return retry_runs(url, run_ids, run_again=run_again, as_json=as_json)
    selection = RunSelection((RunState.DEAD,), workflow)
    return retry_selected(url, selection, run_again=run_again, yes=yes or workflow is not None, as_json=as_json)
