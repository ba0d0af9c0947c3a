"""``holdfast replay``."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.authoring.registry import definitions
from holdfast.cli.shared.formatting import create_console, format_count, make_printable, to_one_line
from holdfast.cli.shared.group import report_error
from holdfast.cli.shared.options import command, json_option
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import HoldfastError, UsageError
from holdfast.services.journal_files import Journal
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import make_served_name
from holdfast.testing.journal_replay import ReplayResult
from holdfast.testing.journal_replay import replay as replay_journal
from holdfast.worker.workflow_loader import load_workflows

_MAX_SHOWN_WAITS = 5


@command("holdfast replay etl-acme.json app:etl", "holdfast export etl-acme | holdfast replay - app.py")
@click.argument("file")
@click.argument("target")
@json_option(
    "A JSON object: run_id, workflow, recorded_state, is_match, state, replayed_count, record_count, waits_for, "
    "problem."
)
def replay(file: str, target: str, as_json: bool) -> None:
    """Check the code in TARGET against a recorded run.

    FILE is what `holdfast export` wrote (`-`: stdin). TARGET is `module`, `module:workflow`, `path/to/app.py`, or
    `app.py:workflow`. The workflow's code runs through the journal as it does when a worker takes the run over:
    no step is executed, and no store is touched. Exits with 0 if the code still does what was recorded, with 1 if it
    does not, and with 2 if there is nothing to compare.
    """
    try:
        if file == "-":
            journal = Journal.loads(sys.stdin.buffer.read(), "what was read from stdin")
        else:
            journal = Journal.read(file)
        replayed = replay_journal(journal, _find_definition(journal.run, target))
    except HoldfastError as error:
        report_error(error)
        sys.exit(2)
    if as_json:
        print(json.dumps(_replay_to_json(replayed, len(journal.records))))
    else:
        _print_replay(create_console(), replayed, len(journal.records))
    sys.exit(0 if replayed.is_match else 1)


def _find_definition(run: Run, target: str) -> WorkflowDefinition:
    """The target's code of the run's version, or the only other code of its workflow."""
    found = {name: definitions[name] for name in load_workflows(target)}
    exact = found.get(make_served_name(run.workflow, run.version))
    others = {id(one): one for one in found.values() if one.name == run.workflow}
    if exact is None and len(others) != 1:
        of = f"version {run.version!r} of workflow {run.workflow!r}" if others else f"workflow {run.workflow!r}"
        raise UsageError(f"the journal is that of a run of {of}, which is not in {target} (there: {', '.join(found)}).")
    return exact or others.popitem()[1]


def _replay_to_json(result: ReplayResult, record_count: int) -> dict[str, Any]:
    fault = result.replay_error
    return {
        "run_id": result.run_id,
        "workflow": result.workflow,
        "recorded_state": str(result.recorded_state),
        "is_match": result.is_match,
        "state": result.state,
        "replayed_count": result.replayed_count if fault is not None else record_count,
        "record_count": record_count,
        "waits_for": list(result.waits_for),
        "problem": f"{type(fault).__name__}: {fault}" if fault is not None else result.difference or None,
    }


def _print_replay(out: Console, result: ReplayResult, record_count: int) -> None:
    run = f"run {result.run_id!r} of workflow {result.workflow!r} (recorded as {result.recorded_state})"
    some = (
        format_count(record_count, "record")
        if result.replay_error is None
        else f"{result.replayed_count} of {format_count(record_count, 'record')}"
    )
    out.print(make_printable(f"{run}: {some} replayed, nothing executed"))
    if result.replay_error is not None:
        out.print(Text(f"the code does not match: {type(result.replay_error).__name__}", "red"))
        out.print(make_printable(str(result.replay_error)))
    elif result.difference:
        out.print(Text("the code does not match: it ends differently", "red"))
        out.print(make_printable(result.difference))
    else:
        out.print(Text(f"the code matches: it {_describe_end(result)}", "green"))


def _describe_end(result: ReplayResult) -> str:
    if result.state == "waiting":
        shown = list(result.waits_for[:_MAX_SHOWN_WAITS])
        if hidden_count := len(result.waits_for) - len(shown):
            shown.append(f"{hidden_count} more")
        return to_one_line(f"continues, and waits for {' or '.join(shown)}")
    same = result.recorded_state == result.state
    if result.state == "completed":
        return "ends completed, with the recorded result" if same else "ends completed"
    if result.state == "cancelled":
        return "ends cancelled, as recorded" if same else "ends cancelled"
    error_text = to_one_line(f"{type(result.error).__name__}: {result.error}")
    return f"fails as recorded, with {error_text}" if same else f"fails with {error_text}"
