"""``holdfast queues``: what limits there are, what they hold up, and what people do about it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Literal

from rich.text import Text

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, clock_time, console, counted, echo_json, iso, one_line, printable
from holdfast.cli.store_access import command_at, reached
from holdfast.cli.tables import print_table
from holdfast.services.queues import QueueInfo

# Listing


def show_queues(url: str | None, *, as_json: bool) -> None:
    """Print all queues with limits."""
    found, now = in_loop(_read(url)), time.time()
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    out = console()
    if not found:
        out.print(
            'no queue has limits yet: `@workflow(queue=Queue("llm", concurrency=10))` gives one some, and so does '
            "`holdfast queues set llm --concurrency 10`",
            soft_wrap=True,
        )
        return
    print_table(
        ("queue", "limits", "running", "waiting", "now"),
        [(one_line(one.name), one.limits, f"{one.running:,}", f"{one.waiting:,}", _now(one, now)) for one in found],
        numbers=(2, 3),
        styles={4: ["yellow" if one.held_up else "" for one in found]},
    )
    for one in found:
        for note in _notes(one, now, url):
            out.print(Text(printable(f"{one.name!r} {note}")), soft_wrap=True)


async def _read(url: str | None) -> list[QueueInfo]:
    async with reached(url) as client:
        return await client.queues.list()


def _now(one: QueueInfo, now: float) -> str:
    """Whether runs begin now, and if not, why, in a few words."""
    if one.paused_at is not None:
        return "paused"
    if one.concurrency is not None and one.running >= one.concurrency:
        return f"full: {one.running} of {one.concurrency} running"
    if one.next_at is not None:
        at = one.next_at.timestamp()
        return f"rate is used up until {clock_time(at).split()[1]}, {ago(now - at)}"
    if one.held_up is not None:
        return f"keys that wait are full: {one.key_concurrency} of each"
    return "lets runs begin"


def _notes(one: QueueInfo, now: float, url: str | None) -> list[str]:
    """What somebody should know, or do."""
    notes: list[str] = []
    if one.paused_at is not None:
        resume = command_at(url, "queues", "resume", one.name)
        notes.append(f"was paused {ago(now - one.paused_at.timestamp())}: `{resume}` lets its runs begin again")
    if one.by_hand:
        says = "code says nothing of it" if one.declared is None else f"code says: {one.declared}"
        reset = command_at(url, "queues", "reset", one.name)
        notes.append(f"has limits that were set by hand ({says}); `{reset}` takes them back")
    return notes


# One


def show_queue(url: str | None, name: str, *, as_json: bool) -> None:
    """Print all that is known of a queue."""
    one, now = in_loop(_read_one(url, name)), time.time()
    if as_json:
        echo_json(_as_json(one))
        return
    out = console()
    out.print(Text.assemble(("queue ", ""), (one_line(one.name), "bold")), soft_wrap=True)
    facts = [("limits", one.limits), ("running", f"{one.running:,}"), ("waiting", f"{one.waiting:,}")]
    for word, told in [*facts, ("now", _now(one, now))]:
        out.print(Text(f"  {word:8} {printable(told)}"), soft_wrap=True)
    if any(key.key for key in one.keys):
        _tell_keys(one)
    for note in _notes(one, now, url):
        out.print(Text(printable(f"it {note}")), soft_wrap=True)


def _tell_keys(one: QueueInfo) -> None:
    out = console()
    rows = [(one_line(key.key) or "(none)", f"{key.running:,}", f"{key.waiting:,}") for key in one.keys]
    print_table(("key", "running", "waiting"), rows, numbers=(1, 2), indent=2)
    rest = one.running + one.waiting - sum(key.running + key.waiting for key in one.keys)
    if rest > 0:
        out.print(Text(f"  … {counted(rest, 'run')} of other keys", "dim"), soft_wrap=True)


async def _read_one(url: str | None, name: str) -> QueueInfo:
    async with reached(url) as client:
        return await client.queues.get(name)


# Changing

Change = Literal["reset", "pause", "resume"]


def set_queue(url: str | None, name: str, limits: Mapping[str, Any], *, as_json: bool) -> None:
    """Set limits of a queue, and say which hold now."""
    _tell(in_loop(_set(url, name, limits)), as_json)


def change_queue(url: str | None, change: Change, name: str, *, as_json: bool) -> None:
    """Do something with a queue, and say what that means."""
    _tell(in_loop(_change(url, change, name)), as_json)


def _tell(told: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(told) if as_json else printable(told["message"]))


async def _set(url: str | None, name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    async with reached(url) as client:
        known = await client.queues.names()
        changed = await client.queues.set(name, **limits)
        one = await client.queues.get(name)
        is_so = "has these limits now" if changed else "had these limits before, set by hand: nothing changed"
        reset = command_at(url, "queues", "reset", name)
        message = f"queue {name!r} {is_so}: {one.limits}; `{reset}` lets it have those of the code"
        return _told(one.name, changed, message + _stranger(name, known), one.limits)


async def _change(url: str | None, change: Change, name: str) -> dict[str, Any]:
    async with reached(url) as client:
        known, queues = await client.queues.names(), client.queues
        if change == "pause":
            changed = await queues.pause(name)
            is_so = "is paused" if changed else "was paused before: nothing changed"
            message = f"queue {name!r} {is_so}; `{command_at(url, 'queues', 'resume', name)}` lets its runs begin again"
            message += _stranger(name, known)
        elif change == "resume":
            changed = await queues.resume(name)
            message = f"queue {name!r} {'is resumed' if changed else 'was not paused, and nothing changed'}"
        else:
            changed = await queues.reset(name)
            message = f"queue {name!r} {'is as code says' if changed else 'was as code says before'}"
        after = next((one for one in await queues.list() if one.name == name), None)
        limits = "no limits" if after is None else after.limits
        if change != "pause":
            held_up = f"; {_now(after, time.time())}" if after is not None and after.held_up else ""
            message += f": {limits}{held_up}"
        return _told(name, changed, message, limits)


def _stranger(name: str, known: Collection[str]) -> str:
    """That a name may be mistyped: nothing was known of such a queue."""
    return "" if name in known else f"\nnote: no workflow that was announced has a queue {name!r}"


def _told(name: str, changed: bool, message: str, limits: str) -> dict[str, Any]:
    return {"name": name, "changed": changed, "message": message, "limits": limits}


def _as_json(one: QueueInfo) -> dict[str, Any]:
    told = dataclasses.asdict(one)
    return {word: iso(value.timestamp()) if isinstance(value, datetime) else value for word, value in told.items()}
