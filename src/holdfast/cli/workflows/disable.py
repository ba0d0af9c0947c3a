"""``holdfast disable`` and ``holdfast enable``."""

from __future__ import annotations

import json
import time

import click

from holdfast.cli.shared.formatting import (
    create_console,
    format_ago,
    format_count,
    make_printable,
    print_json,
    to_one_line,
)
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.cli.shared.store_access import format_store_command, run_client, with_store_options
from holdfast.cli.shared.tables import print_table
from holdfast.client.client import Client
from holdfast.core.states import UNFINISHED_STATES, RunState
from holdfast.services.health import Health
from holdfast.services.json_form import to_json
from holdfast.services.stalls import explain_unserved


@command("holdfast disable researcher", 'holdfast disable researcher --reason "wrong prices"', "holdfast disable")
@click.argument("workflow", required=False)
@click.option("--reason", default="", help="Why, for others to read.")
@click.option("--allow-unknown", is_flag=True, help="Accept a name that no worker has announced yet.")
@json_option(
    "A JSON object: workflow, disabled, changed, run_count (unfinished runs), stall_reason, message; without a "
    "WORKFLOW, an array, as from `GET /v1/disabled`."
)
@url_option
def disable(workflow: str | None, reason: str, allow_unknown: bool, as_json: bool, url: str | None) -> None:
    """Disable a workflow or an agent, everywhere.

    Its runs stop at the next recorded point: a step in flight ends and is recorded, nothing else starts (`holdfast
    cancel` interrupts a step as well). No run starts or continues until you enable the workflow. Nothing that was
    recorded is lost. Without a WORKFLOW, lists the disabled ones.
    """
    if workflow is None:
        _list_disabled(url, as_json=as_json)
    else:
        _set_enabled(url, workflow, enabled=False, reason=reason, allow_unknown=allow_unknown, as_json=as_json)


@command("holdfast enable researcher")
@click.argument("workflow")
@json_option("A JSON object: workflow, disabled, changed, run_count (unfinished runs), stall_reason, message.")
@url_option
def enable(workflow: str, as_json: bool, url: str | None) -> None:
    """Enable a workflow or an agent that was disabled: its runs continue."""
    _set_enabled(url, workflow, enabled=True, as_json=as_json)


def _set_enabled(
    url: str | None, workflow: str, *, enabled: bool, reason: str = "", allow_unknown: bool = False, as_json: bool
) -> None:
    async def change(client: Client) -> tuple[bool, Health]:
        if enabled:
            changed = await client.enable(workflow)
        else:
            changed = await client.disable(workflow, reason=reason, allow_unknown=allow_unknown)
        [health] = [one for one in await client.health() if one.name == workflow]
        return changed, health

    changed, health = run_client(url, change)
    run_count = count_unfinished_runs(health)
    if enabled:
        message = _describe_enabled(workflow, run_count, changed)
    else:
        running_count = health.run_counts.get(RunState.RUNNING, 0)
        message = _describe_disabled(workflow, run_count, running_count, changed, url)
    is_stalled = enabled and run_count and changed and not health.worker_count
    stall_reason = explain_unserved(workflow, [], 0.0) if is_stalled else None
    if as_json:
        fields = {"workflow": workflow, "disabled": not enabled, "changed": changed, "run_count": run_count}
        print(json.dumps({**fields, "stall_reason": stall_reason, "message": message}))
        return
    print(make_printable(message))
    if stall_reason:
        print(make_printable(with_store_options(url, stall_reason)))


def count_unfinished_runs(health: Health) -> int:
    """The number of runs of a workflow that have not ended."""
    return sum(count for state, count in health.run_counts.items() if state in UNFINISHED_STATES)


def _describe_enabled(workflow: str, run_count: int, changed: bool) -> str:
    if not changed:
        return f"workflow {workflow!r} was not disabled: nothing changed"
    effect = f"{format_count(run_count, 'run')} can continue" if run_count else "it has no unfinished runs"
    return f"workflow {workflow!r} is enabled: {effect}"


def _describe_disabled(workflow: str, run_count: int, running_count: int, changed: bool, url: str | None) -> str:
    enable = f"`{format_store_command(url, 'enable', workflow)}` enables it again"
    runs = format_count(run_count, "run")
    if not changed:
        stopped = f"{runs} {'is' if run_count == 1 else 'are'} stopped" if run_count else "it has no unfinished runs"
        return f"workflow {workflow!r} was already disabled: nothing changed, {stopped}; {enable}"
    stops = f"{runs} {'stops' if run_count == 1 else 'stop'}" if run_count else "it has no unfinished runs"
    ends = f" once what {'it is' if running_count == 1 else 'they are'} doing is recorded" if running_count else ""
    return f"workflow {workflow!r} is disabled: {stops}{ends}, and no new run starts; {enable}"


def _list_disabled(url: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json(to_json([*run_client(url, lambda client: client.disabled_workflows()).values()]))
        return
    found = run_client(url, lambda client: client.health())
    off = [(one, one.disabled_at) for one in found if one.disabled_at is not None]
    out = create_console()
    if not off:
        out.print("no workflow is disabled")
        return
    now = time.time()
    rows = [
        (
            to_one_line(one.name),
            format_ago(now - since.timestamp()),
            to_one_line(one.disabled_by),
            to_one_line(one.disabled_reason),
            format_count(count_unfinished_runs(one), "run"),
        )
        for one, since in off
    ]
    print_table(("workflow", "disabled", "by", "reason", "unfinished"), rows)
    out.print(f"`{format_store_command(url, 'enable', 'WORKFLOW')}` enables one again", style="dim")
