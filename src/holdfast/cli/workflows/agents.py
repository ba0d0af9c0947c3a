"""``holdfast agents``."""

from __future__ import annotations

import time

import click
from rich.text import Text

from holdfast.cli.shared.formatting import (
    format_ago,
    format_command,
    format_count,
    to_one_line,
)
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.cli.shared.store_access import run_client, with_store_options
from holdfast.cli.shared.tables import print_lines, print_listing
from holdfast.core.states import RunState
from holdfast.services.health import Health, HealthState

_HEALTH_STYLES = {
    HealthState.SERVING: "green",
    HealthState.SILENT: "red",
    HealthState.UNSERVED: "yellow",
    HealthState.DISABLED: "red",
}

_SHOWN_STATES = (RunState.RUNNING, RunState.WAITING, RunState.PENDING, RunState.FAILED, RunState.DEAD)
"""States that need attention, or soon will. Ended runs are counted together."""


@command("holdfast agents", "holdfast agents --all --json")
@click.option("--all", "include_workflows", is_flag=True, help="Workflows as well.")
@json_option("A JSON array of agents, each as in `GET /v1/agents`.")
@url_option
def agents(include_workflows: bool, as_json: bool, url: str | None) -> None:
    """List agents, and whether live workers serve them.

    An agent is `serving` if a worker that serves it sent a heartbeat within its lease, `silent` if its workers stopped
    sending any, `unserved` if it has none, and `off` if it was disabled (see `holdfast disable`).
    """
    found = [one for one in run_client(url, lambda client: client.health()) if include_workflows or one.is_agent]
    now = time.time()
    header = ("workflow" if include_workflows else "agent", "state", "workers", "last heartbeat", "runs")
    rows = [
        (
            to_one_line(one.name),
            Text(one.state.value, _HEALTH_STYLES[one.state]),
            str(one.worker_count),
            "" if one.heartbeat_at is None else format_ago(now - one.heartbeat_at.timestamp()),
            _format_runs(one),
        )
        for one in found
    ]
    what = "workflow or agent" if include_workflows else "agent"
    empty_text = f"no worker has announced any {what} yet: `holdfast worker module:agent` serves one"
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text)
    if not as_json:
        print_lines(with_store_options(url, advice) for one in found if (advice := _build_advice(one)))


def _format_runs(health: Health) -> str:
    counts = [
        f"{_format_run_count(health, state)} {state.value}" for state in _SHOWN_STATES if state in health.run_counts
    ]
    ended = [state for state in (RunState.COMPLETED, RunState.CANCELLED) if state in health.run_counts]
    return ", ".join([*counts, *([f"{_format_run_count(health, *ended)} ended"] if ended else [])]) or "none"


def _format_run_count(health: Health, *states: RunState) -> str:
    """How many runs are in these states, with a plus if there may be more."""
    is_capped = any(state in health.capped_states for state in states)
    return f"{sum(health.run_counts[state] for state in states)}{'+' if is_capped else ''}"


def _build_advice(health: Health) -> str | None:
    waiting = sum(count for state, count in health.run_counts.items() if not state.is_terminal)
    if health.state is HealthState.DISABLED:
        return f"{health.name!r} is disabled: `{format_command('enable', health.name)}` lets its runs continue"
    if health.state is HealthState.SERVING or not waiting:
        return None
    why = "its workers are silent" if health.state is HealthState.SILENT else "no worker serves it"
    start = format_command("worker", f"module:{health.name}")
    return f"{health.name!r}: {format_count(waiting, 'run')} to continue, and {why}: `{start}` starts one"
