"""``holdfast agents``: which agents there are, and how it is with them."""

from __future__ import annotations

import time
from typing import Any

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, command, console, counted, echo_json, one_line, printable
from holdfast.cli.store_access import placed, reached
from holdfast.cli.tables import print_table
from holdfast.core.states import RunState
from holdfast.services.health import Health, HealthState

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
    found = [one for one in in_loop(_read(url)) if everything or one.is_agent]
    now = time.time()
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
    print_table(head, rows, styles={1: [_STYLES[one.state] for one in found]})
    for one in found:
        if (advice := _advice(one)) is not None:
            out.print(printable(placed(url, advice)), soft_wrap=True)


async def _read(url: str | None) -> list[Health]:
    async with reached(url) as client:
        return await client.health()


def _beat(one: Health, now: float) -> str:
    return "" if one.beat_at is None else ago(now - one.beat_at.timestamp())


def _runs(one: Health) -> str:
    told = [f"{_counted(one, state)} {state.value}" for state in _SHOWN if state in one.runs]
    ended = [state for state in (RunState.COMPLETED, RunState.CANCELLED) if state in one.runs]
    return ", ".join([*told, *([f"{_counted(one, *ended)} ended"] if ended else [])]) or "none"


def _counted(one: Health, *states: RunState) -> str:
    """How many runs are in these states; with a plus if there may be more than were counted."""
    return f"{sum(one.runs[state] for state in states)}{'+' if any(state in one.more for state in states) else ''}"


def _advice(one: Health) -> str | None:
    waiting = sum(count for state, count in one.runs.items() if not state.is_terminal)
    if one.state is HealthState.OFF:
        return f"{one.name!r} is switched off: `{command('kill', one.name, '--lift')}` lets its runs go on"
    if one.state is HealthState.SERVING or not waiting:
        return None
    why = "its workers have fallen silent" if one.state is HealthState.SILENT else "no worker serves it"
    start = command("worker", f"module:{one.name}")
    return f"{one.name!r}: {counted(waiting, 'run')} to go on, and {why}: `{start}` starts one"


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
        "more": [state.value for state in one.more],
    }
