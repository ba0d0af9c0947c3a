"""``holdfast kill``: the switch that stops a workflow everywhere, and what is switched off."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from rich.text import Text

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, console, counted, echo_json, one_line, printable
from holdfast.cli.store_access import command_at, placed, reached
from holdfast.cli.tables import print_table
from holdfast.core.states import UNFINISHED, RunState
from holdfast.errors import UnknownWorkflow
from holdfast.services.health import Health
from holdfast.services.lookup import alike
from holdfast.services.stalls import why_unserved

# Switching


def switch(url: str | None, workflow: str, *, on: bool, reason: str, as_json: bool) -> None:
    """Switch a workflow off, or on again, and say what that means for its runs."""
    changed, one = in_loop(_switch(url, workflow, on, reason))
    runs = unfinished(one)
    if on:
        message = _switched_on(workflow, runs, changed)
    else:
        message = _switched_off(workflow, runs, one.runs.get(RunState.RUNNING, 0), changed, url)
    nobody = why_unserved(workflow, [], 0.0) if not one.workers else None
    stalled = nobody if on and runs and changed else None
    if as_json:
        told = {"workflow": workflow, "switched_off": not on, "changed": changed, "runs": runs}
        print(json.dumps({**told, "stalled": stalled, "message": message}))
        return
    print(printable(message))
    if stalled:
        print(printable(placed(url, stalled)))


def unfinished(one: Health) -> int:
    """How many runs of a workflow have not ended."""
    return sum(count for state, count in one.runs.items() if state in UNFINISHED)


async def _switch(url: str | None, workflow: str, on: bool, reason: str) -> tuple[bool, Health]:
    async with reached(url) as client:
        _check_known(client.url, workflow, [one.name for one in await client.health()])
        changed = await (client.switch_on(workflow) if on else client.switch_off(workflow, reason=reason))
        [one] = [one for one in await client.health() if one.name == workflow]
        return changed, one


def _check_known(url: str, workflow: str, known: Sequence[str]) -> None:
    """A mistyped name must not look as if something had been stopped."""
    if workflow in known:
        return
    raise UnknownWorkflow(
        f"there is no workflow {workflow!r} in {url}, so nothing was switched: {alike(workflow, known)}"
    )


def _switched_on(workflow: str, runs: int, changed: bool) -> str:
    if not changed:
        return f"workflow {workflow!r} was not switched off: nothing changed"
    go_on = f"{counted(runs, 'run')} may go on" if runs else "none of its runs is unfinished"
    return f"workflow {workflow!r} is switched on again: {go_on}"


def _switched_off(workflow: str, runs: int, running: int, changed: bool, url: str | None) -> str:
    lift = f"`{command_at(url, 'kill', workflow, '--lift')}` switches it on again"
    still = f"{counted(runs, 'run')} {'stands' if runs == 1 else 'stand'} still" if runs else "no run stands still"
    if not changed:
        return f"workflow {workflow!r} was switched off before: nothing changed, {still}; {lift}"
    ends = f" once what {'it is' if running == 1 else 'they are'} doing is recorded" if running else ""
    return f"workflow {workflow!r} is switched off: {still}{ends}, and none is started; {lift}"


# Listing


def show_switched_off(url: str | None, *, as_json: bool) -> None:
    """Print which workflows are switched off."""
    off = [(one, one.off_since) for one in in_loop(_read(url)) if one.off_since is not None]
    if as_json:
        echo_json(
            [
                {"workflow": one.name, "since": since.isoformat(), "by": one.off_by, "reason": one.off_reason,
                 "runs": unfinished(one)}
                for one, since in off
            ]
        )  # fmt: skip
        return
    out = console()
    if not off:
        out.print("no workflow is switched off")
        return
    now = time.time()
    rows = [
        (
            one_line(one.name),
            ago(now - since.timestamp()),
            one_line(one.off_by),
            one_line(one.off_reason),
            counted(unfinished(one), "run"),
        )
        for one, since in off
    ]
    print_table(("workflow", "switched off", "by", "reason", "unfinished"), rows)
    out.print(Text(f"`{command_at(url, 'kill', 'WORKFLOW', '--lift')}` switches one on again", "dim"), soft_wrap=True)


async def _read(url: str | None) -> list[Health]:
    async with reached(url) as client:
        return await client.health()
