"""``holdfast tail``: what happens in all runs, one line per event, as it happens."""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import datetime

import click
from rich.text import Text

from holdfast.admission.usage import NANO_PER_USD
from holdfast.cli.runs.events import describe_event, is_problem
from holdfast.cli.shared.formatting import create_console, make_printable, to_one_line
from holdfast.cli.shared.options import command, json_option, states_option, tag_option, url_option, workflow_option
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import run_client
from holdfast.client.client import Client
from holdfast.reports.events import Event
from holdfast.reports.run_usage import format_money
from holdfast.reports.tail import TailEvent
from holdfast.services.json_form import to_json

_MAX_TEXT_CHARS = 160
"""How much of an event is shown."""


@command(
    "holdfast tail", "holdfast tail --state failed --state dead", "holdfast tail --workflow research --since 1h --json"
)
@workflow_option
@states_option
@tag_option
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Also what happened since this time: 10m, 2h, or 2026-11-15T08:30.",
)
@json_option("A JSON object for each, one per line: at, run_id, workflow, state, kind, step, name, worker, usd, data.")
@url_option
def tail(
    workflow: str | None,
    states: tuple[str, ...],
    tag: str | None,
    since: datetime | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Follow what happens in all runs, one line per event, until Ctrl-C.

    Started runs, finished steps, answers with their cost, approvals, failures, takeovers, and ends. For one run,
    `holdfast events` shows more. Over HTTP it continues where it was after the server was away.
    """
    out = create_console()

    async def follow(client: Client) -> None:
        async with aclosing(client.tail(workflow=workflow, tag=tag, state=states, since=since)) as entries:
            async for entry in entries:
                if as_json:
                    print(json.dumps(to_json(entry)), flush=True)  # the reader may be a program in a pipe
                else:
                    out.print(_format_line(entry))

    try:
        run_client(url, follow)
    except KeyboardInterrupt:
        pass  # the usual way to stop following


def _format_line(entry: TailEvent) -> Text:
    event = Event(
        "", entry.kind, entry.at, entry.run_id, entry.step, entry.name, str(entry.data.get("text", "")), entry.data
    )
    number = "" if entry.step is None else f"#{entry.step} "
    name = f"{make_printable(entry.name)} " if entry.name else ""
    line = Text.assemble(
        (f"{entry.at.astimezone():%H:%M:%S}  ", "dim"),
        (to_one_line(entry.run_id), "bold"),
        f" ({to_one_line(entry.workflow)})  ",
        (number, "dim"),
        name,
        (
            to_one_line(_describe_entry(entry, event), _MAX_TEXT_CHARS),
            "red" if is_problem(event) or entry.kind == "taken over" else "",
        ),
    )
    notes = [
        *([entry.worker] if entry.worker else []),
        *([] if entry.usd is None else [format_money(round(entry.usd * NANO_PER_USD))]),
    ]
    return line.append(f"  [{', '.join(map(to_one_line, notes))}]", "dim") if notes else line


def _describe_entry(entry: TailEvent, event: Event) -> str:
    if entry.kind == "created":
        return f"created, {entry.state.value}"
    if entry.kind == "taken over":
        return f"continues with another worker: {entry.data['died']} died"
    if entry.kind == "plan":
        done = sum(item["status"] == "done" for item in entry.data["plan"])
        return f"plan: {done} of {len(entry.data['plan'])} done"
    return describe_event(event)
