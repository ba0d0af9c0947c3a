"""``holdfast export`` and ``holdfast replay``: a run in a file, and what the code of today makes of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.authoring.registry import definitions
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import console, counted, one_line, printable
from holdfast.cli.store_access import get_run, reached
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import UsageError
from holdfast.services.journal_files import Journal
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import served_name
from holdfast.testing.journal_replay import Replayed, replay
from holdfast.worker.workflow_loader import load

_SHOWN_WAITS = 5


def write_journal(url: str | None, run_id: str, output: str | None) -> None:
    """Write a run's journal to a file, or to stdout."""
    journal = in_loop(_read(url, run_id))
    if output is None:
        # As bytes: the terminal's encoding must not change what is recorded.
        sys.stdout.buffer.write(journal.dumps().encode())
        return
    journal.write(output)
    told = (
        f"wrote run {printable(run_id)!r} ({journal.run.state}, {counted(len(journal.records), 'record')}) to {output}"
    )
    click.echo(told, err=True)


async def _read(url: str | None, run_id: str) -> Journal:
    async with reached(url) as client:
        await get_run(client, run_id)
        return await client.export(run_id)


def replay_file(file: str, target: str, *, as_json: bool) -> int:
    """Replay a journal with the target's code, tell what came of it, and return the exit code."""
    if file == "-":
        journal = Journal.loads(sys.stdin.buffer.read(), "what was read from stdin")
    else:
        journal = Journal.read(file)
    replayed = replay(journal, _code_for(journal.run, target))
    if as_json:
        print(json.dumps(_as_json(replayed, len(journal.records))))
    else:
        _tell(console(), replayed, len(journal.records))
    return 0 if replayed.fits else 1


def _code_for(run: Run, target: str) -> WorkflowDefinition:
    """The target's code of the run's version; or other code of its workflow, if there is no more than that."""
    found = {name: definitions[name] for name in load(target)}
    exact = found.get(served_name(run.workflow, run.version))
    others = {id(one): one for one in found.values() if one.name == run.workflow}
    if exact is None and len(others) != 1:
        of = f"version {run.version!r} of workflow {run.workflow!r}" if others else f"workflow {run.workflow!r}"
        raise UsageError(f"the journal is that of a run of {of}, which is not in {target} (there: {', '.join(found)}).")
    return exact or others.popitem()[1]


def _as_json(replayed: Replayed, records: int) -> dict[str, Any]:
    fault = replayed.fault
    return {
        "run_id": replayed.run_id,
        "workflow": replayed.workflow,
        "recorded": str(replayed.recorded),
        "fits": replayed.fits,
        "state": replayed.state,
        "replayed": replayed.replayed if fault is not None else records,
        "records": records,
        "waits_for": list(replayed.waits_for),
        "problem": f"{type(fault).__name__}: {fault}" if fault is not None else replayed.differs or None,
    }


def _tell(out: Console, replayed: Replayed, records: int) -> None:
    run = f"run {replayed.run_id!r} of workflow {replayed.workflow!r} (recorded as {replayed.recorded})"
    some = (
        counted(records, "record") if replayed.fault is None else f"{replayed.replayed} of {counted(records, 'record')}"
    )
    out.print(printable(f"{run}: {some} replayed, nothing executed"), soft_wrap=True)
    if replayed.fault is not None:
        out.print(Text(f"the code does not fit: {type(replayed.fault).__name__}", "red"), soft_wrap=True)
        out.print(printable(str(replayed.fault)), soft_wrap=True)
    elif replayed.differs:
        out.print(Text("the code does not fit: it comes to another end", "red"), soft_wrap=True)
        out.print(printable(replayed.differs), soft_wrap=True)
    else:
        out.print(Text(f"the code fits: it {_whereabouts(replayed)}", "green"), soft_wrap=True)


def _whereabouts(replayed: Replayed) -> str:
    if replayed.state == "waiting":
        shown = list(replayed.waits_for[:_SHOWN_WAITS])
        if more := len(replayed.waits_for) - len(shown):
            shown.append(f"{more} more")
        return one_line(f"goes on, and waits for {' or '.join(shown)}")
    same = replayed.recorded == replayed.state
    if replayed.state == "completed":
        return "ends completed, with the recorded result" if same else "ends completed"
    if replayed.state == "cancelled":
        return "ends cancelled, as recorded" if same else "ends cancelled"
    what = one_line(f"{type(replayed.error).__name__}: {replayed.error}")
    return f"fails as recorded, with {what}" if same else f"fails with {what}"
