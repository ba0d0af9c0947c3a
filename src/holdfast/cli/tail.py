"""``holdfast tail``: what happens in all runs, a line for each thing, as it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import NANO_PER_USD
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.events import describe_event, is_problem
from holdfast.cli.formatting import create_console, make_printable, to_one_line
from holdfast.cli.store_access import open_client
from holdfast.reports.events import Event
from holdfast.reports.run_usage import format_money
from holdfast.reports.tail import TailEvent
from holdfast.services.json_form import to_json

_MAX_TEXT_CHARS = 160
"""Characters of what is told of one thing."""


@dataclass(frozen=True, slots=True)
class TailQuery:
    """What is followed, as it was asked for."""

    workflow: str | None = None
    states: Sequence[str] = ()
    tag: str | None = None
    since: datetime | None = None


def follow_runs(url: str | None, query: TailQuery, *, as_json: bool) -> None:
    """Print what happens, until somebody presses Ctrl-C."""
    out = create_console()
    try:
        run_in_loop(_follow(url, query, None if as_json else out))
    except KeyboardInterrupt:
        pass  # the usual way to stop following


async def _follow(url: str | None, query: TailQuery, out: Console | None) -> None:
    async with open_client(url) as client:
        happenings = client.tail(workflow=query.workflow, tag=query.tag, state=query.states, since=query.since)
        async with aclosing(happenings):
            async for one in happenings:
                if out is None:
                    print(json.dumps(to_json(one)), flush=True)  # whoever reads may be a program in a pipe
                else:
                    out.print(_format_line(one), soft_wrap=True)


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
    beside = [
        *([entry.worker] if entry.worker else []),
        *([] if entry.usd is None else [format_money(round(entry.usd * NANO_PER_USD))]),
    ]
    return line.append(f"  [{', '.join(map(to_one_line, beside))}]", "dim") if beside else line


def _describe_entry(entry: TailEvent, event: Event) -> str:
    if entry.kind == "created":
        return f"is there, {entry.state.value}"
    if entry.kind == "taken over":
        return f"goes on with another worker: {entry.data['died']} died"
    if entry.kind == "plan":
        done = sum(item["status"] == "done" for item in entry.data["plan"])
        return f"plan: {done} of {len(entry.data['plan'])} done"
    return describe_event(event)
