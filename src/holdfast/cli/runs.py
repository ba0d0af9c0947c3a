"""``holdfast runs``: a list of runs, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.liveness import why_stalled
from holdfast.cli.opening import existing_store
from holdfast.cli.recorded import error_of
from holdfast.cli.wording import STATE_STYLES, ago, console, duration, echo_json, iso, one_line
from holdfast.core.states import RunState
from holdfast.stores.contract import Run, RunFilter, Worker

_HEAD = ("id", "workflow", "state", "started", "took")
_DETAIL_HEAD = "waiting for / error"
_DETAIL, _LEAST_DETAIL = 120, 30


def show_runs(
    url: str | None, *, states: Sequence[str], workflow: str | None, tag: str | None, limit: int, as_json: bool
) -> None:
    """Print the runs that match."""
    where = RunFilter(states=[RunState(state) for state in states], workflow=workflow, tag=tag)
    found, workers, now = asyncio.run(_read(url, where, limit))
    if as_json:
        echo_json([_as_json(run) for run in found])
        return
    out = console()
    if not found:
        narrowed = bool(states or workflow or tag)
        out.print("no run matches" if narrowed else "no runs yet")
        return
    _tell(out, found, workers, now)
    if len(found) == limit:
        out.print(f"the newest {limit}; see more with --limit", style="dim")


async def _read(url: str | None, where: RunFilter, limit: int) -> tuple[list[Run], list[Worker], float]:
    async with existing_store(url) as store:
        return await store.list_runs(where, limit=limit), await store.workers(), store.now()


def _tell(out: Console, runs: Sequence[Run], workers: Sequence[Worker], now: float) -> None:
    """A table; the last column moves to a line of its own where there is no room for it. Ids are never cut."""
    rows = [_row(run, now) for run in runs]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD))]
    room = out.width - sum(widths) - 2 * len(widths)
    beside = room >= _LEAST_DETAIL
    head = "  ".join(title.ljust(width) for title, width in zip(_HEAD, widths, strict=True))
    out.print(f"{head}  {_DETAIL_HEAD}" if beside else head, style="bold", soft_wrap=True)
    for run, row in zip(runs, rows, strict=True):
        line = Text()
        for cell, width, style in zip(row, widths, ("", "", STATE_STYLES[run.state], "", ""), strict=True):
            line.append(cell.ljust(width), style).append("  ")
        detail, style = _detail(run, workers, now)
        if beside:
            line.append(one_line(detail, min(room, _DETAIL)), style)
        line.rstrip()
        out.print(line, soft_wrap=True)
        if detail and not beside:
            out.print(Text(f"    {one_line(detail, out.width - 4)}", style), soft_wrap=True)


def _row(run: Run, now: float) -> tuple[str, ...]:
    took = "" if run.finished_at is None else duration(run.finished_at - run.created_at)
    return one_line(run.id), one_line(run.workflow), run.state.value, ago(now - run.created_at), took


def _detail(run: Run, workers: Sequence[Worker], now: float) -> tuple[str, str]:
    """What the run waits for, or why it ended without a result; with the style to show it in."""
    if error := error_of(run.error):
        return error.in_short, "red"
    if why_stalled(run, workers, now):
        return "no live worker serves it", "yellow"
    if run.state is RunState.WAITING:
        return run.waits_for + ("" if run.wake_at is None else f" ({ago(now - run.wake_at)})"), ""
    if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        return f"its start, {ago(now - run.wake_at)}", ""
    return "", ""


def _as_json(run: Run) -> dict[str, Any]:
    error = error_of(run.error)
    return {
        "id": run.id,
        "workflow": run.workflow,
        "state": run.state.value,
        "queue": run.queue,
        "tags": list(run.tags),
        "created_at": iso(run.created_at),
        "finished_at": iso(run.finished_at),
        "seconds": None if run.finished_at is None else round(run.finished_at - run.created_at, 6),
        "waits_for": run.waits_for if run.state is RunState.WAITING else None,
        "wake_at": iso(run.wake_at),
        "error": None if error is None else {"type": error.type, "message": error.message},
    }
