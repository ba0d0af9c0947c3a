"""``holdfast kill``: the switch that stops a workflow everywhere, and what is switched off."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from holdfast.cli.liveness import Surroundings, look_around, why_unserved
from holdfast.cli.opening import existing_store
from holdfast.cli.wording import ago, command, console, counted, echo_json, iso, one_line, printable
from holdfast.core.states import UNFINISHED, RunState
from holdfast.errors import UnknownWorkflow
from holdfast.stores.contract import Store

Counts = Mapping[tuple[str, RunState], int]


def unfinished(counts: Counts, workflow: str) -> int:
    """How many runs of a workflow have not ended."""
    return sum(count for (name, state), count in counts.items() if name == workflow and state in UNFINISHED)


# Switching


def switch(url: str | None, workflow: str, *, on: bool, as_json: bool) -> None:
    """Switch a workflow off, or on again, and say what that means for its runs."""
    changed, counts, around = asyncio.run(_switch(url, workflow, on))
    runs = unfinished(counts, workflow)
    if on:
        message = _switched_on(workflow, runs, changed)
    else:
        message = _switched_off(workflow, runs, counts.get((workflow, RunState.RUNNING), 0), changed)
    stalled = why_unserved(workflow, around.workers, around.now) if on and runs and changed else None
    if as_json:
        told = {"workflow": workflow, "switched_off": not on, "changed": changed, "runs": runs}
        print(json.dumps({**told, "stalled": stalled, "message": message}))
        return
    print(printable(message))
    if stalled:
        print(printable(stalled))


async def _switch(url: str | None, workflow: str, on: bool) -> tuple[bool, Counts, Surroundings]:
    async with existing_store(url) as store:
        await _check_known(store, workflow)
        changed = await (store.switch_on(workflow) if on else store.switch_off(workflow))
        return changed, await store.count_runs(), await look_around(store)


async def _check_known(store: Store, workflow: str) -> None:
    """A mistyped name must not look as if something had been stopped."""
    counted_names = {name for name, _ in await store.count_runs()}
    specs = await store.specs()
    known = {*(spec.name for spec in specs.values()), *await store.switched_off(), *counted_names}
    if workflow in known:
        return
    near = difflib.get_close_matches(workflow, sorted(known), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known)) or 'none yet'}."
    raise UnknownWorkflow(f"there is no workflow {workflow!r} in {store.url}, so nothing was switched: {hint}")


def _switched_on(workflow: str, runs: int, changed: bool) -> str:
    if not changed:
        return f"workflow {workflow!r} was not switched off: nothing changed"
    go_on = f"{counted(runs, 'run')} may go on" if runs else "none of its runs is unfinished"
    return f"workflow {workflow!r} is switched on again: {go_on}"


def _switched_off(workflow: str, runs: int, running: int, changed: bool) -> str:
    lift = f"`{command('kill', workflow, '--lift')}` switches it on again"
    still = f"{counted(runs, 'run')} {'stands' if runs == 1 else 'stand'} still" if runs else "no run stands still"
    if not changed:
        return f"workflow {workflow!r} was switched off before: nothing changed, {still}; {lift}"
    ends = f" once what {'it is' if running == 1 else 'they are'} doing is recorded" if running else ""
    return f"workflow {workflow!r} is switched off: {still}{ends}, and none is started; {lift}"


# Listing


def show_switched_off(url: str | None, *, as_json: bool) -> None:
    """Print which workflows are switched off."""
    off, counts, now = asyncio.run(_read(url))
    if as_json:
        echo_json([_as_json(name, since, counts) for name, since in sorted(off.items())])
        return
    out = console()
    if not off:
        out.print("no workflow is switched off")
        return
    rows = [
        (one_line(name), ago(now - since), counted(unfinished(counts, name), "run"))
        for name, since in sorted(off.items())
    ]
    head = ("workflow", "switched off", "standing still")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for number, row in enumerate((head, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        out.print(Text(line, "" if number else "bold"), soft_wrap=True)
    out.print(Text(f"{command('kill', 'WORKFLOW', '--lift')} switches one on again", "dim"), soft_wrap=True)


async def _read(url: str | None) -> tuple[Mapping[str, float], Counts, float]:
    async with existing_store(url) as store:
        return await store.switched_off(), await store.count_runs(), store.now()


def _as_json(workflow: str, since: float, counts: Counts) -> dict[str, Any]:
    return {"workflow": workflow, "since": iso(since), "runs": unfinished(counts, workflow)}
