"""``holdfast disable`` and ``holdfast enable``: stop a workflow everywhere, and list what is disabled."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from rich.text import Text

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_ago, format_count, make_printable, print_json, to_one_line
from holdfast.cli.store_access import format_store_command, open_client, with_store_options
from holdfast.cli.tables import print_table
from holdfast.core.states import UNFINISHED_STATES, RunState
from holdfast.errors import UnknownWorkflow
from holdfast.services.health import Health
from holdfast.services.lookup import suggest_name
from holdfast.services.stalls import explain_unserved

# Disabling and enabling


def set_workflow_enabled(url: str | None, workflow: str, *, enabled: bool, reason: str, as_json: bool) -> None:
    """Disable or enable a workflow, and print what that means for its runs."""
    changed, one = run_in_loop(_set_enabled(url, workflow, enabled, reason))
    runs = count_unfinished_runs(one)
    if enabled:
        message = _describe_enabled(workflow, runs, changed)
    else:
        message = _describe_disabled(workflow, runs, one.run_counts.get(RunState.RUNNING, 0), changed, url)
    nobody = explain_unserved(workflow, [], 0.0) if not one.worker_count else None
    stalled = nobody if enabled and runs and changed else None
    if as_json:
        told = {"workflow": workflow, "disabled": not enabled, "changed": changed, "run_count": runs}
        print(json.dumps({**told, "stall_reason": stalled, "message": message}))
        return
    print(make_printable(message))
    if stalled:
        print(make_printable(with_store_options(url, stalled)))


def count_unfinished_runs(health: Health) -> int:
    """How many runs of a workflow have not ended."""
    return sum(count for state, count in health.run_counts.items() if state in UNFINISHED_STATES)


async def _set_enabled(url: str | None, workflow: str, enabled: bool, reason: str) -> tuple[bool, Health]:
    async with open_client(url) as client:
        _check_known(client.url, workflow, [one.name for one in await client.health()])
        changed = await (client.enable(workflow) if enabled else client.disable(workflow, reason=reason))
        [one] = [one for one in await client.health() if one.name == workflow]
        return changed, one


def _check_known(url: str, workflow: str, known: Sequence[str]) -> None:
    """A mistyped name must not look as if something had been stopped."""
    if workflow in known:
        return
    raise UnknownWorkflow(
        f"there is no workflow {workflow!r} in {url}, so nothing changed: {suggest_name(workflow, known)}"
    )


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


# Listing


def show_disabled_workflows(url: str | None, *, as_json: bool) -> None:
    """Print which workflows are disabled."""
    off = [(one, one.disabled_at) for one in run_in_loop(_fetch_health(url)) if one.disabled_at is not None]
    if as_json:
        print_json(
            [
                {"workflow": one.name, "since": since.isoformat(), "by": one.disabled_by, "reason": one.disabled_reason,
                 "run_count": count_unfinished_runs(one)}
                for one, since in off
            ]
        )  # fmt: skip
        return
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
    out.print(
        Text(f"`{format_store_command(url, 'enable', 'WORKFLOW')}` enables one again", "dim"),
        soft_wrap=True,
    )


async def _fetch_health(url: str | None) -> list[Health]:
    async with open_client(url) as client:
        return await client.health()
