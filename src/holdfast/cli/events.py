"""``holdfast events``: what happens in a run, as it happens."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_count, format_list, make_printable, to_one_line
from holdfast.cli.plans import STATUS_MARKS
from holdfast.cli.store_access import format_store_command, get_run, open_client
from holdfast.reports.events import Event

_MAX_VALUE_CHARS = 200
"""Characters of a value that are shown."""


def show_events(url: str | None, run_id: str, *, follow: bool, after: str | None, as_json: bool) -> None:
    """Print the events of a run; with ``follow``, until it has ended or somebody presses Ctrl-C."""
    teller = _JsonEventPrinter() if as_json else _TextEventPrinter(create_console())
    try:
        run_in_loop(_print_events(url, run_id, follow, after, teller))
    except KeyboardInterrupt:
        pass  # the usual way to stop following
    finally:
        teller.close()
    if not as_json and teller.last_event is not None and teller.last_event.kind != "ended":
        again = format_store_command(url, "events", run_id, "--follow", "--after", teller.last_event.offset)
        click.echo(f"go on from here: {again}", err=True)


async def _print_events(
    url: str | None, run_id: str, follow: bool, after: str | None, printer: _JsonEventPrinter | _TextEventPrinter
) -> None:
    async with open_client(url) as client:
        await get_run(client, run_id)  # it names runs that are called alike
        async for event in client.events(run_id, after, follow=follow):
            printer.print_event(event)
            printer.last_event = event


class _JsonEventPrinter:
    """A JSON object for each event, one to a line, written at once: whoever reads may be a program in a pipe."""

    def __init__(self) -> None:
        self.last_event: Event | None = None

    def print_event(self, event: Event) -> None:
        print(json.dumps(event.to_json()), flush=True)

    def close(self) -> None:
        """Nothing is left open."""


class _TextEventPrinter:
    """For people: answers word by word as they come, and a line for everything else."""

    def __init__(self, out: Console) -> None:
        self.last_event: Event | None = None
        self._out = out
        self._open_step: int | None = None
        """The step whose text is being written: the line is open."""

    def print_event(self, event: Event) -> None:
        if event.kind == "text":
            if self._open_step != event.step:
                self.close()
                self._print_line(event, "says:")
            self._open_step = event.step
            self._out.print(make_printable(event.text), end="", soft_wrap=True)
            self._out.file.flush()
            return
        self.close()
        self._print_line(event, describe_event(event), "red" if is_problem(event) else "")

    def close(self) -> None:
        """End the open line."""
        if self._open_step is not None:
            self._open_step = None
            self._out.print()

    def _print_line(self, event: Event, text: str, style: str = "") -> None:
        number = "" if event.step is None else f"#{event.step} "
        name = f"{make_printable(event.name)} " if event.name else ""
        at = event.at.astimezone().strftime("%H:%M:%S")
        line = Text.assemble((f"{at}  ", "dim"), (number, "dim"), name, (make_printable(text), style))
        self._out.print(line, soft_wrap=True)


def describe_event(event: Event) -> str:
    """What has happened, behind the name of what it happened to."""
    return _DESCRIBERS.get(event.kind, _describe_other)(event, event.data)


def is_problem(event: Event) -> bool:
    """Whether somebody should look."""
    return event.kind == "retracted" or ("error" in event.data and not _is_awaiting_approval(event.data))


def _is_awaiting_approval(data: dict[str, Any]) -> bool:
    """Whether a call was not made because people are to be asked first: that is recorded as an error, and is none."""
    return "error" in data and data["error"]["type"] == "holdfast.errors.ApprovalRequired"


def _describe_started(event: Event, data: dict[str, Any]) -> str:
    again = f", attempt {data['attempt']}" if data.get("attempt", 1) > 1 else ""
    given = f"({to_one_line(data['arguments'], _MAX_VALUE_CHARS)})" if data.get("arguments") else ""
    return f"starts {given}{again}".rstrip() if "run_id" not in data else f"starts as run {data['run_id']}"


def _describe_retracted(event: Event, data: dict[str, Any]) -> str:
    return f"takes back what it said ({format_count(data['characters'], 'character')}): it was cut off, and begins anew"


def _describe_answered(event: Event, data: dict[str, Any]) -> str:
    used = data["usage"]
    took = f"{format_count(used['input_tokens'], 'token')} in, {used['output_tokens']:,} out"
    calls = [call["name"] for call in data["tool_calls"]]
    return f"answered by {data['model']} ({took}){f', calls {format_list(calls)}' if calls else ''}"


def _describe_plan(event: Event, data: dict[str, Any]) -> str:
    return "\n".join(
        ["", *(f"    {STATUS_MARKS.get(item['status'], '[ ]')} {to_one_line(item['task'])}" for item in data["plan"])]
    )


def _describe_approval(event: Event, data: dict[str, Any]) -> str:
    if data["state"] == "answered":
        reason = f": {to_one_line(data['reason'], _MAX_VALUE_CHARS)}" if data.get("reason") else ""
        answer = "approved" if data.get("approved") else "denied"
        return f"{data['id']} {answer} by {data.get('answered_by') or 'somebody'}{reason}"
    asked = f": {to_one_line(data['question'], _MAX_VALUE_CHARS)}" if data.get("question") else ""
    return f"{data['id']} {data['state']}{asked}"


def _describe_ended(event: Event, data: dict[str, Any]) -> str:
    outcome = _format_error(data["error"]) if "error" in data else _format_value(data.get("output"))
    return f"the run is {data['state']}: {outcome}"


def _describe_other(event: Event, data: dict[str, Any]) -> str:
    if _is_awaiting_approval(data):
        return to_one_line(data["error"]["message"], _MAX_VALUE_CHARS)
    if "error" in data:
        return f"failed: {_format_error(data['error'])}"
    if "value" in data:
        return f"{'came' if event.kind == 'signal' else 'done'}: {_format_value(data['value'])}"
    words = {"start": "started", "timer": "rang", "reopened": "the run was reopened", "compacted": "summed up"}
    return words.get(event.kind, event.kind)


def _format_error(error: dict[str, str]) -> str:
    return to_one_line(f"{error['type'].rpartition('.')[2]}: {error['message']}", _MAX_VALUE_CHARS)


def _format_value(value: Any) -> str:
    return to_one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _MAX_VALUE_CHARS)


_DESCRIBERS = {
    "started": _describe_started,
    "retracted": _describe_retracted,
    "answered": _describe_answered,
    "plan": _describe_plan,
    "approval": _describe_approval,
    "ended": _describe_ended,
}
