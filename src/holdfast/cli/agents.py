"""``holdfast agents``: which agents there are, and how it is with them."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.text import Text

from holdfast.cli.liveness import is_alive
from holdfast.cli.opening import existing_store
from holdfast.cli.wording import ago, command, console, counted, echo_json, one_line, printable
from holdfast.client.health import Health, HealthState, read_health
from holdfast.core.states import RunState

_STYLES = {
    HealthState.SERVING: "green",
    HealthState.SILENT: "red",
    HealthState.UNSERVED: "yellow",
    HealthState.OFF: "red",
}

_SHOWN = (RunState.RUNNING, RunState.WAITING, RunState.PENDING, RunState.FAILED, RunState.DEAD)
"""What needs somebody, or soon will."""


def show_agents(url: str | None, *, everything: bool, as_json: bool) -> None:
    """Print the health of agents; of workflows, too, if ``everything``."""
    found, now = asyncio.run(_read(url))
    found = [one for one in found if everything or one.is_agent]
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    out = console()
    if not found:
        what = "workflow or agent" if everything else "agent"
        out.print(f"no worker has announced any {what} yet: `holdfast worker module:agent` serves one", soft_wrap=True)
        return
    head = ("workflow" if everything else "agent", "state", "workers", "last heartbeat", "runs")
    rows = [(one_line(one.name), one.state.value, str(one.workers), _beat(one, now), _runs(one)) for one in found]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for number, row in enumerate((head, *rows)):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = Text("  ".join(cells).rstrip(), "" if number else "bold")
        if number:
            begin = widths[0] + 2
            line.stylize(_STYLES[found[number - 1].state], begin, begin + len(row[1]))
        out.print(line, soft_wrap=True)
    for one in found:
        if (advice := _advice(one)) is not None:
            out.print(printable(advice), soft_wrap=True)


async def _read(url: str | None) -> tuple[list[Health], float]:
    async with existing_store(url) as store:
        return await read_health(store, is_alive), store.now()


def _beat(one: Health, now: float) -> str:
    return "" if one.beat_at is None else ago(now - one.beat_at.timestamp())


def _runs(one: Health) -> str:
    told = [f"{one.runs[state]} {state.value}" for state in _SHOWN if state in one.runs]
    ended = sum(one.runs.get(state, 0) for state in (RunState.COMPLETED, RunState.CANCELLED))
    return ", ".join([*told, *([f"{ended} ended"] if ended else [])]) or "none"


def _advice(one: Health) -> str | None:
    waiting = sum(count for state, count in one.runs.items() if not state.is_terminal)
    if one.state is HealthState.OFF:
        return f"{one.name!r} is switched off: `{command('kill', one.name, '--lift')}` lets its runs go on"
    if one.state is HealthState.SERVING or not waiting:
        return None
    why = "its workers have fallen silent" if one.state is HealthState.SILENT else "no worker serves it"
    return (
        f"{one.name!r}: {counted(waiting, 'run')} to go on, and {why}: `holdfast worker module:{one.name}` starts one"
    )


def _as_json(one: Health) -> dict[str, Any]:
    return {
        "name": one.name,
        "is_agent": one.is_agent,
        "state": one.state.value,
        "workers": one.workers,
        "versions": list(one.versions),
        "beat_at": None if one.beat_at is None else one.beat_at.isoformat(),
        "off_since": None if one.off_since is None else one.off_since.isoformat(),
        "runs": {state.value: count for state, count in one.runs.items()},
    }
