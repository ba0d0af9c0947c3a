"""``holdfast dead``: runs whose workers died too often, and how to let them go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, clock_time, console, counted, echo_json, one_line, printable
from holdfast.cli.options import PAGE
from holdfast.cli.retry import Selection, retry_runs, retry_selected
from holdfast.cli.store_access import command_at, reached
from holdfast.core.states import RunState
from holdfast.reports.dead_runs import DeadRun


def show_dead(url: str | None, workflow: str | None, limit: int, before: str | None, *, as_json: bool) -> None:
    """Print the dead runs."""
    found = in_loop(_read(url, workflow, limit + 1, before))
    runs, now = found[:limit], time.time()
    if as_json:
        echo_json([_as_json(run) for run in runs])
        return
    out = console()
    if not runs:
        out.print(_none(workflow))
        return
    for run in runs:
        since = run.since.timestamp()
        out.print(Text.assemble((one_line(run.id), "bold red"), f"  {one_line(run.workflow)}"), soft_wrap=True)
        out.print(f"    dead since  {ago(now - since)} ({clock_time(since)})", soft_wrap=True)
        last = f", the last one {run.worker}" if run.worker else ""
        out.print(
            f"    deaths      {counted(run.deaths, 'worker')} that held no other run{one_line(last)}", soft_wrap=True
        )
        out.print(f"    in flight   {_in_flight(run)}", soft_wrap=True)
        after = f", the last one of {one_line(run.last_recorded)}" if run.last_recorded else ""
        out.print(f"    recorded    {counted(run.records, 'record')}{after}", soft_wrap=True)
    if len(found) > limit:
        narrowed = ("--workflow", workflow) if workflow else ()
        limited = () if limit == PAGE else ("--limit", str(limit))
        more = command_at(url, "dead", *narrowed, *limited, "--before", runs[-1].id)
        out.print(Text(f"more: {more}", "dim"), soft_wrap=True)
    out.print(Text(f"see to the cause, then: {command_at(url, 'dead', 'retry', runs[0].id)}", "dim"), soft_wrap=True)


def _none(workflow: str | None) -> str:
    return "no run is dead" if workflow is None else printable(f"no run of workflow {workflow!r} is dead")


def _in_flight(run: DeadRun) -> str:
    if not run.in_flight:
        return "not known: whatever comes behind the last record"
    return ", ".join(f"step {step.number} ({one_line(step.name)}), attempt {step.attempt}" for step in run.in_flight)


def _as_json(run: DeadRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "since": run.since.isoformat(),
        "deaths": run.deaths,
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
        "records": run.records,
        "last_recorded": run.last_recorded or None,
        "parent": run.parent,
        "reason": run.reason,
    }


async def _read(url: str | None, workflow: str | None, limit: int, before: str | None) -> list[DeadRun]:
    async with reached(url) as client:
        return await client.dead(workflow=workflow, limit=limit, before=before)


def retry_dead_runs(
    url: str | None, run_ids: Sequence[str], workflow: str | None, *, run_again: bool, yes: bool, as_json: bool
) -> int:
    """Let dead runs go on: these, those of a workflow, or all."""
    if run_ids:
        return retry_runs(url, run_ids, run_again=run_again, as_json=as_json)
    selection = Selection((RunState.DEAD,), workflow)
    return retry_selected(url, selection, run_again=run_again, yes=yes or workflow is not None, as_json=as_json)
