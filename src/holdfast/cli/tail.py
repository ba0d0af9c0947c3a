"""``holdfast tail``: what happens in all runs, a line for each thing, as it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import NANO
from holdfast.cli.event_loop import in_loop
from holdfast.cli.events import in_words, is_bad
from holdfast.cli.formatting import console, one_line, printable
from holdfast.cli.store_access import reached
from holdfast.reports.events import Event
from holdfast.reports.run_usage import money
from holdfast.reports.tail import Happening

_LONGEST = 160
"""Characters of what is told of one thing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is followed, as it was asked for."""

    workflow: str | None = None
    states: Sequence[str] = ()
    tag: str | None = None
    since: datetime | None = None


def follow_runs(url: str | None, wanted: Wanted, *, as_json: bool) -> None:
    """Print what happens, until somebody presses Ctrl-C."""
    out = console()
    try:
        in_loop(_follow(url, wanted, None if as_json else out))
    except KeyboardInterrupt:
        pass  # the usual way to stop following


async def _follow(url: str | None, wanted: Wanted, out: Console | None) -> None:
    async with reached(url) as client:
        happenings = client.tail(workflow=wanted.workflow, tag=wanted.tag, state=wanted.states, since=wanted.since)
        async with aclosing(happenings):
            async for one in happenings:
                if out is None:
                    print(json.dumps(one.as_json()), flush=True)  # whoever reads may be a program in a pipe
                else:
                    out.print(_line(one), soft_wrap=True)


def _line(one: Happening) -> Text:
    event = Event("", one.kind, one.at, one.run_id, one.step, one.name, str(one.data.get("text", "")), one.data)
    number = "" if one.step is None else f"#{one.step} "
    name = f"{printable(one.name)} " if one.name else ""
    line = Text.assemble(
        (f"{one.at.astimezone():%H:%M:%S}  ", "dim"),
        (one_line(one.run_id), "bold"),
        f" ({one_line(one.workflow)})  ",
        (number, "dim"),
        name,
        (one_line(_what(one, event), _LONGEST), "red" if is_bad(event) or one.kind == "taken over" else ""),
    )
    beside = [*([one.worker] if one.worker else []), *([] if one.usd is None else [money(round(one.usd * NANO))])]
    return line.append(f"  [{', '.join(map(one_line, beside))}]", "dim") if beside else line


def _what(one: Happening, event: Event) -> str:
    if one.kind == "created":
        return f"is there, {one.state.value}"
    if one.kind == "taken over":
        return f"goes on with another worker: {one.data['died']} died"
    if one.kind == "plan":
        done = sum(item["status"] == "done" for item in one.data["plan"])
        return f"plan: {done} of {len(one.data['plan'])} done"
    return in_words(event)
