"""``holdfast schedules``: what is started at set times, and what people do with it."""

from __future__ import annotations

import dataclasses
import json
import time
import zoneinfo
from datetime import UTC, datetime
from typing import Any, Literal

from rich.text import Text

from holdfast.admission.usage import Budget
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    ago,
    clock_time,
    console,
    echo_json,
    iso,
    jsonable,
    one_line,
    printable,
)
from holdfast.cli.store_access import command_at, placed, reached, seen
from holdfast.cli.tables import print_table
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.services.schedules import ScheduleInfo
from holdfast.stores.schedules import timing_of

_SEVERAL = 3
"""So many ticks to come are shown."""


# Listing


def show_schedules(url: str | None, *, as_json: bool) -> None:
    """Print all schedules."""
    found, now = in_loop(_read(url)), time.time()
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    out = console()
    if not found:
        out.print(
            'there is no schedule yet: `@workflow(schedule=Schedule(cron="0 2 * * *"))` declares one, '
            "`client.schedules.create(...)` makes one",
            soft_wrap=True,
        )
        return
    head = ("schedule", "workflow", "when", "next", "last run", "catch-up")
    rows = [
        (
            one_line(one.name),
            one_line(one.workflow),
            in_words(one.timing),
            _next(one, now),
            "" if one.last_state is None else one.last_state.value,
            one.catch_up,
        )
        for one in found
    ]
    styles = ["" if one.last_state is None else STATE_STYLES[one.last_state] for one in found]
    print_table(head, rows, styles={4: styles})
    for one in found:
        for note in _notes(one, now, url):
            out.print(Text(printable(f"{one.name!r} {note}")), soft_wrap=True)


async def _read(url: str | None) -> list[ScheduleInfo]:
    async with reached(url) as client:
        return await client.schedules.list()


def in_words(timing: str) -> str:
    """A timing for people; one that cannot be read here, as it is."""
    try:
        return timing_of(timing).in_words()
    except HoldfastError:
        return one_line(timing)


def _next(one: ScheduleInfo, now: float) -> str:
    if one.paused_at is not None:
        return "paused"
    if one.next_at is None:
        return "never"
    return f"{_moment(one.next_at, one.zone)}, {ago(now - one.next_at.timestamp())}"


def _moment(at: datetime, zone: str) -> str:
    """A tick, by the clock that the schedule goes by; by that of this machine if it goes by none."""
    if not zone:
        return clock_time(at.timestamp())
    try:
        clock = UTC if zone == "UTC" else zoneinfo.ZoneInfo(zone)  # UTC needs no data
    except zoneinfo.ZoneInfoNotFoundError:  # a bare machine has none, and may ask a server that has
        return clock_time(at.timestamp())
    return at.astimezone(clock).strftime("%Y-%m-%d %H:%M:%S %Z")


def _notes(one: ScheduleInfo, now: float, url: str | None) -> list[str]:
    """What somebody should know, or do."""
    notes: list[str] = []
    if one.paused_at is not None:
        resume = command_at(url, "schedules", "resume", one.name)
        notes.append(f"was paused {ago(now - one.paused_at.timestamp())}: `{resume}` lets it fire again")
    elif one.next_at is not None and one.next_at.timestamp() < now - 60:
        notes.append("is late: no live worker fires it; `holdfast worker MODULE` starts one")
    if one.by_code and not one.announced:
        delete = command_at(url, "schedules", "delete", one.name)
        notes.append(
            f"is declared by code, no live worker announces it: if it was removed from the code, `{delete}` deletes it"
        )
    return notes


# One


def show_schedule(url: str | None, name: str, *, as_json: bool) -> None:
    """Print all that is known of a schedule."""
    one, now = in_loop(_read_one(url, name)), time.time()
    if as_json:
        echo_json(_as_json(one))
        return
    out = console()
    out.print(Text.assemble((one_line(one.name), "bold"), f" starts {one_line(one.workflow)}"), soft_wrap=True)
    last = one.last_run and f"{one.last_run} ({'deleted' if one.last_state is None else one.last_state.value})"
    options = {
        "queue": one.queue,
        "key": one.key or None,
        "priority": one.priority or None,
        "tags": ", ".join(one.tags) or None,
        "budget": one.budget and ", ".join(f"{word} {most}" for word, most in _budget(one.budget)),
        "deaths": None if one.max_deliveries is None else f"{one.max_deliveries} without a new record",
    }
    facts: list[tuple[str, str]] = [
        ("when", f"{in_words(one.timing)}; as written: {one.timing}"),
        *(("next" if not number else "", line) for number, line in enumerate(_coming(one, now))),
        ("inputs", json.dumps(jsonable(one.inputs), ensure_ascii=False)),
        *((word, str(value)) for word, value in options.items() if value is not None),
        ("missed", _missed(one)),
        ("overlap", "starts nothing while the run before is under way" if one.overlap == "skip" else "allowed"),
        ("last run", last or "none yet"),
        ("skipped", "" if one.skipped_at is None else f"last {_moment(one.skipped_at, one.zone)}: a run was under way"),
        ("declared", "by code" if one.by_code else f"by a client, {clock_time(one.created_at.timestamp())}"),
        ("its runs", _runs_command(one, url)),
    ]  # fmt: skip
    for word, told in facts:
        if told:
            out.print(Text(f"  {word:9} {printable(told)}"), soft_wrap=True)
    for note in _notes(one, now, url):
        out.print(Text(printable(f"it {note}")), soft_wrap=True)


def _budget(budget: Budget) -> list[tuple[str, Any]]:
    return [(word, most) for word, most in dataclasses.asdict(budget).items() if most is not None]


def _missed(one: ScheduleInfo) -> str:
    told = {"skip": "left out", "last": "made up for once", "all": f"each fires, {one.most} at most"}
    return f"{told[one.catch_up]} ({one.catch_up})"


async def _read_one(url: str | None, name: str) -> ScheduleInfo:
    async with reached(url) as client:
        return await client.schedules.get(name)


def _coming(one: ScheduleInfo, now: float) -> list[str]:
    if one.next_at is None:
        return [_next(one, now)]
    is_due = one.next_at.timestamp() <= now
    try:
        ticks = timing_of(one.timing).ticks(now, float("inf"), _SEVERAL)
    except HoldfastError:  # it cannot be read here: see `in_words`
        return [_next(one, now)]
    coming = [f"{_moment(datetime.fromtimestamp(tick).astimezone(), one.zone)}, {ago(now - tick)}" for tick in ticks]
    return [f"now: due since {_moment(one.next_at, one.zone)}", *coming] if is_due else coming


def _runs_command(one: ScheduleInfo, url: str | None) -> str:
    return command_at(url, "runs", "--tag", one.tag)


# Changing

Change = Literal["pause", "resume", "trigger", "delete"]


def change_schedule(url: str | None, change: Change, name: str, *, as_json: bool) -> None:
    """Do something with a schedule, and say what that means."""
    told = in_loop(_change(url, change, name))
    if as_json:
        print(json.dumps(told))
    else:
        print(printable(told["message"]))


async def _change(url: str | None, change: Change, name: str) -> dict[str, Any]:
    async with reached(url) as client:
        schedules = client.schedules
        if change == "trigger":
            return await _trigger(client, name, url)
        before = await schedules.get(name)
        if change == "delete":
            changed = await schedules.delete(name)
            return _told(name, changed, _deleted(before))
        changed = await (schedules.pause(name) if change == "pause" else schedules.resume(name))
        after = await schedules.get(name)
        message = _paused(after, changed, url) if change == "pause" else _resumed(before, after, changed, time.time())
        return _told(name, changed, message)


async def _trigger(client: Client, name: str, url: str | None) -> dict[str, Any]:
    run_id = await client.schedules.trigger(name)
    run = await seen(client, run_id)
    message = f"schedule {name!r}: run {run_id!r} is started; `{command_at(url, 'show', run_id)}` tells of it"
    stalled = None if run is None else run.stalled
    return _told(name, True, f"{message}\n{placed(url, stalled)}" if stalled else message, run_id)


def _told(name: str, changed: bool, message: str, run: str | None = None) -> dict[str, Any]:
    return {"name": name, "changed": changed, "message": message, "run": run}


def _deleted(one: ScheduleInfo) -> str:
    back = "; it is declared by code: a worker that starts with that code brings it back, so remove it there, too"
    return f"schedule {one.name!r} is deleted, its runs stay{back if one.by_code else ''}"


def _paused(one: ScheduleInfo, changed: bool, url: str | None) -> str:
    is_so = "is paused" if changed else "was paused before: nothing changed"
    return f"schedule {one.name!r} {is_so}; `{command_at(url, 'schedules', 'resume', one.name)}` lets it fire again"


def _resumed(before: ScheduleInfo, one: ScheduleInfo, changed: bool, now: float) -> str:
    if not changed:
        return f"schedule {one.name!r} was not paused: nothing changed; next: {_next(one, now)}"
    if one.next_at is None or one.next_at.timestamp() > now:
        return f"schedule {one.name!r} is resumed; next: {_next(one, now)}"
    missed = {
        "skip": "what it missed is left out",
        "last": "what it missed is made up for once",
        "all": f"what it missed fires now, {before.most} ticks at most",
    }
    return f"schedule {one.name!r} is resumed: {missed[one.catch_up]}"


def _as_json(one: ScheduleInfo) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        told[field.name] = iso(value.timestamp()) if isinstance(value, datetime) else jsonable(value)
    return {**told, "tag": one.tag}
