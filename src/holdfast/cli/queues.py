"""``holdfast queues``: what limits there are, what they hold up, and what people do about it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Literal

from rich.text import Text

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    create_console,
    format_ago,
    format_count,
    format_iso,
    format_local_time,
    make_printable,
    print_json,
    to_one_line,
)
from holdfast.cli.store_access import format_store_command, open_client
from holdfast.cli.tables import print_table
from holdfast.services.queues import QueueInfo

# Listing


def show_queues(url: str | None, *, as_json: bool) -> None:
    """Print all queues with limits."""
    found, now = run_in_loop(_fetch_queues(url)), time.time()
    if as_json:
        print_json([_queue_to_json(one) for one in found])
        return
    out = create_console()
    if not found:
        out.print(
            'no queue has limits yet: `@workflow(queue=Queue("llm", concurrency=10))` gives one some, and so does '
            "`holdfast queues set llm --concurrency 10`",
            soft_wrap=True,
        )
        return
    print_table(
        ("queue", "limits", "running", "waiting", "now"),
        [
            (
                to_one_line(one.name),
                one.limits_text,
                f"{one.running_count:,}",
                f"{one.waiting_count:,}",
                _describe_status(one, now),
            )
            for one in found
        ],
        number_columns=(2, 3),
        styles={4: ["yellow" if one.blocked_reason else "" for one in found]},
    )
    for one in found:
        for note in _build_notes(one, now, url):
            out.print(Text(make_printable(f"{one.name!r} {note}")), soft_wrap=True)


async def _fetch_queues(url: str | None) -> list[QueueInfo]:
    async with open_client(url) as client:
        return await client.queues.list()


def _describe_status(queue: QueueInfo, now: float) -> str:
    """Whether runs begin now, and if not, why, in a few words."""
    if queue.paused_at is not None:
        return "paused"
    if queue.concurrency is not None and queue.running_count >= queue.concurrency:
        return f"full: {queue.running_count} of {queue.concurrency} running"
    if queue.next_start_at is not None:
        at = queue.next_start_at.timestamp()
        return f"rate is used up until {format_local_time(at).split()[1]}, {format_ago(now - at)}"
    if queue.blocked_reason is not None:
        return f"keys that wait are full: {queue.key_concurrency} of each"
    return "lets runs begin"


def _build_notes(queue: QueueInfo, now: float, url: str | None) -> list[str]:
    """What somebody should know, or do."""
    notes: list[str] = []
    if queue.paused_at is not None:
        resume = format_store_command(url, "queues", "resume", queue.name)
        notes.append(
            f"was paused {format_ago(now - queue.paused_at.timestamp())}: `{resume}` lets its runs begin again"
        )
    if queue.is_overridden:
        says = "code says nothing of it" if queue.declared_limits is None else f"code says: {queue.declared_limits}"
        reset = format_store_command(url, "queues", "reset", queue.name)
        notes.append(f"has limits that were set by hand ({says}); `{reset}` takes them back")
    return notes


# One


def show_queue(url: str | None, name: str, *, as_json: bool) -> None:
    """Print all that is known of a queue."""
    one, now = run_in_loop(_fetch_queue(url, name)), time.time()
    if as_json:
        print_json(_queue_to_json(one))
        return
    out = create_console()
    out.print(Text.assemble(("queue ", ""), (to_one_line(one.name), "bold")), soft_wrap=True)
    facts = [("limits", one.limits_text), ("running", f"{one.running_count:,}"), ("waiting", f"{one.waiting_count:,}")]
    for word, told in [*facts, ("now", _describe_status(one, now))]:
        out.print(Text(f"  {word:8} {make_printable(told)}"), soft_wrap=True)
    if any(key.key for key in one.keys):
        _print_keys(one)
    for note in _build_notes(one, now, url):
        out.print(Text(make_printable(f"it {note}")), soft_wrap=True)


def _print_keys(queue: QueueInfo) -> None:
    out = create_console()
    rows = [
        (to_one_line(key.key) or "(none)", f"{key.running_count:,}", f"{key.waiting_count:,}") for key in queue.keys
    ]
    print_table(("key", "running", "waiting"), rows, number_columns=(1, 2), indent=2)
    rest = queue.running_count + queue.waiting_count - sum(key.running_count + key.waiting_count for key in queue.keys)
    if rest > 0:
        out.print(Text(f"  … {format_count(rest, 'run')} of other keys", "dim"), soft_wrap=True)


async def _fetch_queue(url: str | None, name: str) -> QueueInfo:
    async with open_client(url) as client:
        return await client.queues.get(name)


# Changing

QueueAction = Literal["reset", "pause", "resume"]


def set_queue(url: str | None, name: str, limits: Mapping[str, Any], *, as_json: bool) -> None:
    """Set limits of a queue, and say which hold now."""
    _print_change(run_in_loop(_set_limits(url, name, limits)), as_json)


def change_queue(url: str | None, action: QueueAction, name: str, *, as_json: bool) -> None:
    """Do something with a queue, and say what that means."""
    _print_change(run_in_loop(_change(url, action, name)), as_json)


def _print_change(change: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(change) if as_json else make_printable(change["message"]))


async def _set_limits(url: str | None, name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    async with open_client(url) as client:
        known = await client.queues.names()
        changed = await client.queues.set(name, **limits)
        one = await client.queues.get(name)
        is_so = "has these limits now" if changed else "had these limits before, set by hand: nothing changed"
        reset = format_store_command(url, "queues", "reset", name)
        message = f"queue {name!r} {is_so}: {one.limits_text}; `{reset}` lets it have those of the code"
        return _change_to_json(one.name, changed, message + _format_unknown_note(name, known), one.limits_text)


async def _change(url: str | None, action: QueueAction, name: str) -> dict[str, Any]:
    async with open_client(url) as client:
        known, queues = await client.queues.names(), client.queues
        if action == "pause":
            changed = await queues.pause(name)
            is_so = "is paused" if changed else "was paused before: nothing changed"
            message = (
                f"queue {name!r} {is_so}; `{format_store_command(url, 'queues', 'resume', name)}` lets its runs "
                "begin again"
            )
            message += _format_unknown_note(name, known)
        elif action == "resume":
            changed = await queues.resume(name)
            message = f"queue {name!r} {'is resumed' if changed else 'was not paused, and nothing changed'}"
        else:
            changed = await queues.reset(name)
            message = f"queue {name!r} {'is as code says' if changed else 'was as code says before'}"
        after = next((one for one in await queues.list() if one.name == name), None)
        limits = "no limits" if after is None else after.limits_text
        if action != "pause":
            held_up = f"; {_describe_status(after, time.time())}" if after is not None and after.blocked_reason else ""
            message += f": {limits}{held_up}"
        return _change_to_json(name, changed, message, limits)


def _format_unknown_note(name: str, known: Collection[str]) -> str:
    """That a name may be mistyped: nothing was known of such a queue."""
    return "" if name in known else f"\nnote: no workflow that was announced has a queue {name!r}"


def _change_to_json(name: str, changed: bool, message: str, limits: str) -> dict[str, Any]:
    return {"name": name, "changed": changed, "message": message, "limits_text": limits}


def _queue_to_json(queue: QueueInfo) -> dict[str, Any]:
    told = dataclasses.asdict(queue)
    return {
        word: format_iso(value.timestamp()) if isinstance(value, datetime) else value for word, value in told.items()
    }
