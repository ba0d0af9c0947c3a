"""``holdfast events``: what happens in a run, as it happens."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.shared.formatting import (
    PLAN_MARKS,
    create_console,
    format_count,
    format_list,
    make_printable,
    to_one_line,
)
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.cli.shared.store_access import format_store_command, run_client
from holdfast.client.client import Client
from holdfast.reports.events import Event

_MAX_VALUE_CHARS = 200
"""How much of a value is shown."""


@command("holdfast events research-7 --follow", "holdfast events research-7 --follow --json --after WzEs...")
@click.argument("run_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Continue with new events, until the run has ended.")
@click.option("--after", metavar="OFFSET", help="Only events after the one with this offset.")
@json_option("A JSON object for each event, one per line, with its offset.")
@url_option
def events(run_id: str, follow: bool, after: str | None, as_json: bool, url: str | None) -> None:
    """Show what happens in a run, as it happens: answers word by word, tool calls, steps, plans, approvals.

    You can follow a run from any process and at any time. A reader that was away continues after the last event that it
    received, without loss and without repeats. If an answer is cut off because its process died, its text is retracted.
    """
    printer = _EventPrinter(create_console())
    last_event: Event | None = None

    async def print_events(client: Client) -> None:
        nonlocal last_event
        async for event in client.events(run_id, after, follow=follow):
            if as_json:
                print(json.dumps(event.to_json()), flush=True)  # the reader may be a program in a pipe
            else:
                printer.print_event(event)
            last_event = event

    try:
        run_client(url, print_events)
    except KeyboardInterrupt:
        pass  # the usual way to stop following
    finally:
        printer.close()
    if not as_json and last_event is not None and last_event.kind != "ended":
        again = format_store_command(url, "events", run_id, "--follow", "--after", last_event.offset)
        click.echo(f"continue from here: {again}", err=True)


class _EventPrinter:
    """Prints answers word by word as they arrive, and a line for everything else."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._open_step: int | None = None
        """The step whose text is being printed. Its line is open."""

    def print_event(self, event: Event) -> None:
        if event.kind == "text":
            if self._open_step != event.step:
                self.close()
                self._print_line(event, "says:")
            self._open_step = event.step
            self._out.print(make_printable(event.text), end="")
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
        self._out.print(line)


def describe_event(event: Event) -> str:
    """What happened, to print after the name of the step."""
    return _DESCRIBERS.get(event.kind, _describe_other)(event, event.data)


def is_problem(event: Event) -> bool:
    """Whether the event is printed in red."""
    return event.kind == "retracted" or ("error" in event.data and not _is_awaiting_approval(event.data))


def _is_awaiting_approval(data: dict[str, Any]) -> bool:
    """Whether a call waits for an approval. That is recorded as an error, but is none."""
    return "error" in data and data["error"]["type"] == "holdfast.errors.ApprovalRequired"


def _describe_started(event: Event, data: dict[str, Any]) -> str:
    again = f", attempt {data['attempt']}" if data.get("attempt", 1) > 1 else ""
    given = f"({to_one_line(data['arguments'], _MAX_VALUE_CHARS)})" if data.get("arguments") else ""
    return f"starts {given}{again}".rstrip() if "run_id" not in data else f"starts as run {data['run_id']}"


def _describe_retracted(event: Event, data: dict[str, Any]) -> str:
    return f"retracts its text ({format_count(data['characters'], 'character')}): it was cut off, and starts again"


def _describe_answered(event: Event, data: dict[str, Any]) -> str:
    used = data["usage"]
    took = f"{format_count(used['input_tokens'], 'token')} in, {used['output_tokens']:,} out"
    calls = [call["name"] for call in data["tool_calls"]]
    return f"answered by {data['model']} ({took}){f', calls {format_list(calls)}' if calls else ''}"


def _describe_plan(event: Event, data: dict[str, Any]) -> str:
    return "\n".join(
        ["", *(f"    {PLAN_MARKS.get(item['status'], '[ ]')} {to_one_line(item['task'])}" for item in data["plan"])]
    )


def _describe_approval(event: Event, data: dict[str, Any]) -> str:
    if data["state"] == "answered":
        reason = f": {to_one_line(data['reason'], _MAX_VALUE_CHARS)}" if data.get("reason") else ""
        answer = "approved" if data.get("approved") else "denied"
        return f"{data['id']} {answer} by {data.get('answered_by') or 'someone'}{reason}"
    question = f": {to_one_line(data['question'], _MAX_VALUE_CHARS)}" if data.get("question") else ""
    return f"{data['id']} {data['state']}{question}"


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
    words = {"start": "started", "timer": "fired", "reopened": "the run was reopened"}
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
