"""``holdfast events``: what happens in a run, as it happens."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import console, counted, listed, one_line, printable
from holdfast.cli.plans import MARKS
from holdfast.cli.store_access import command_at, get_run, reached
from holdfast.reports.events import Event

_LONGEST = 200
"""Characters of a value that are shown."""


def show_events(url: str | None, run_id: str, *, follow: bool, after: str | None, as_json: bool) -> None:
    """Print the events of a run; with ``follow``, until it has ended or somebody presses Ctrl-C."""
    teller = _Lines() if as_json else _Story(console())
    try:
        in_loop(_read(url, run_id, follow, after, teller))
    except KeyboardInterrupt:
        pass  # the usual way to stop following
    finally:
        teller.close()
    if not as_json and teller.last is not None and teller.last.kind != "ended":
        again = command_at(url, "events", run_id, "--follow", "--after", teller.last.offset)
        click.echo(f"go on from here: {again}", err=True)


async def _read(url: str | None, run_id: str, follow: bool, after: str | None, teller: _Lines | _Story) -> None:
    async with reached(url) as client:
        await get_run(client, run_id)  # it names runs that are called alike
        async for event in client.events(run_id, after, follow=follow):
            teller.tell(event)
            teller.last = event


class _Lines:
    """A JSON object for each event, one to a line, written at once: whoever reads may be a program in a pipe."""

    def __init__(self) -> None:
        self.last: Event | None = None

    def tell(self, event: Event) -> None:
        print(json.dumps(event.as_json()), flush=True)

    def close(self) -> None:
        """Nothing is left open."""


class _Story:
    """For people: answers word by word as they come, and a line for everything else."""

    def __init__(self, out: Console) -> None:
        self.last: Event | None = None
        self._out = out
        self._speaking: int | None = None
        """The step whose text is being written: the line is open."""

    def tell(self, event: Event) -> None:
        if event.kind == "text":
            if self._speaking != event.step:
                self.close()
                self._say(event, "says:")
            self._speaking = event.step
            self._out.print(printable(event.text), end="", soft_wrap=True)
            self._out.file.flush()
            return
        self.close()
        self._say(event, in_words(event), "red" if is_bad(event) else "")

    def close(self) -> None:
        """End the open line."""
        if self._speaking is not None:
            self._speaking = None
            self._out.print()

    def _say(self, event: Event, what: str, style: str = "") -> None:
        number = "" if event.step is None else f"#{event.step} "
        name = f"{printable(event.name)} " if event.name else ""
        at = event.at.astimezone().strftime("%H:%M:%S")
        line = Text.assemble((f"{at}  ", "dim"), (number, "dim"), name, (printable(what), style))
        self._out.print(line, soft_wrap=True)


def in_words(event: Event) -> str:
    """What has happened, behind the name of what it happened to."""
    return _WORDS.get(event.kind, _in_general)(event, event.data)


def is_bad(event: Event) -> bool:
    """Whether somebody should look."""
    return event.kind == "retracted" or ("error" in event.data and not _is_put_off(event.data))


def _is_put_off(data: dict[str, Any]) -> bool:
    """Whether a call was not made because people are to be asked first: that is recorded as an error, and is none."""
    return "error" in data and data["error"]["type"] == "holdfast.errors.ApprovalRequired"


def _begun(event: Event, data: dict[str, Any]) -> str:
    again = f", attempt {data['attempt']}" if data.get("attempt", 1) > 1 else ""
    given = f"({one_line(data['arguments'], _LONGEST)})" if data.get("arguments") else ""
    return f"begins {given}{again}".rstrip() if "run" not in data else f"begins, as run {data['run']}"


def _retracted(event: Event, data: dict[str, Any]) -> str:
    return f"takes back what it said ({counted(data['characters'], 'character')}): it was cut off, and begins anew"


def _answered(event: Event, data: dict[str, Any]) -> str:
    used = data["usage"]
    took = f"{counted(used['input_tokens'], 'token')} in, {used['output_tokens']:,} out"
    calls = [call["name"] for call in data["calls"]]
    return f"answered by {data['model']} ({took}){f', calls {listed(calls)}' if calls else ''}"


def _plan(event: Event, data: dict[str, Any]) -> str:
    return "\n".join(
        ["", *(f"    {MARKS.get(item['status'], '[ ]')} {one_line(item['task'])}" for item in data["plan"])]
    )


def _approval(event: Event, data: dict[str, Any]) -> str:
    if data["state"] == "answered":
        reason = f": {one_line(data['reason'], _LONGEST)}" if data.get("reason") else ""
        return (
            f"{data['id']} {'approved' if data.get('approved') else 'denied'} by {data.get('by') or 'somebody'}{reason}"
        )
    asked = f": {one_line(data['question'], _LONGEST)}" if data.get("question") else ""
    return f"{data['id']} {data['state']}{asked}"


def _ended(event: Event, data: dict[str, Any]) -> str:
    outcome = _error(data["error"]) if "error" in data else _value(data.get("output"))
    return f"the run is {data['state']}: {outcome}"


def _in_general(event: Event, data: dict[str, Any]) -> str:
    if _is_put_off(data):
        return one_line(data["error"]["message"], _LONGEST)
    if "error" in data:
        return f"failed: {_error(data['error'])}"
    if "value" in data:
        return f"{'came' if event.kind == 'signal' else 'done'}: {_value(data['value'])}"
    words = {"start": "started", "timer": "rang", "reopened": "the run was reopened", "compacted": "summed up"}
    return words.get(event.kind, event.kind)


def _error(error: dict[str, str]) -> str:
    return one_line(f"{error['type'].rpartition('.')[2]}: {error['message']}", _LONGEST)


def _value(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _LONGEST)


_WORDS = {
    "begun": _begun,
    "retracted": _retracted,
    "answered": _answered,
    "plan": _plan,
    "approval": _approval,
    "ended": _ended,
}
