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
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    create_console,
    format_ago,
    format_iso,
    format_local_time,
    make_printable,
    print_json,
    to_one_line,
    value_to_json,
)
from holdfast.cli.store_access import format_store_command, open_client, try_get_run, with_store_options
from holdfast.cli.tables import print_table
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.services.schedules import ScheduleInfo
from holdfast.stores.schedules import parse_timing

_SHOWN_TICK_COUNT = 3
"""So many ticks to come are shown."""


# Listing


def show_schedules(url: str | None, *, as_json: bool) -> None:
    """Print all schedules."""
    found, now = run_in_loop(_fetch_schedules(url)), time.time()
    if as_json:
        print_json([_schedule_to_json(one) for one in found])
        return
    out = create_console()
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
            to_one_line(one.name),
            to_one_line(one.workflow),
            describe_timing(one.timing),
            _format_next(one, now),
            "" if one.last_run_state is None else one.last_run_state.value,
            one.catch_up,
        )
        for one in found
    ]
    styles = ["" if one.last_run_state is None else STATE_STYLES[one.last_run_state] for one in found]
    print_table(head, rows, styles={4: styles})
    for one in found:
        for note in _build_notes(one, now, url):
            out.print(Text(make_printable(f"{one.name!r} {note}")), soft_wrap=True)


async def _fetch_schedules(url: str | None) -> list[ScheduleInfo]:
    async with open_client(url) as client:
        return await client.schedules.list()


def describe_timing(timing: str) -> str:
    """A timing for people; one that cannot be read here, as it is."""
    try:
        return parse_timing(timing).describe()
    except HoldfastError:
        return to_one_line(timing)


def _format_next(schedule: ScheduleInfo, now: float) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if schedule.next_at is None:
        return "never"
    return f"{_format_tick(schedule.next_at, schedule.zone)}, {format_ago(now - schedule.next_at.timestamp())}"


def _format_tick(at: datetime, zone: str) -> str:
    """A tick, by the clock that the schedule goes by; by that of this machine if it goes by none."""
    if not zone:
        return format_local_time(at.timestamp())
    try:
        clock = UTC if zone == "UTC" else zoneinfo.ZoneInfo(zone)  # UTC needs no data
    except zoneinfo.ZoneInfoNotFoundError:  # a bare machine has none, and may ask a server that has
        return format_local_time(at.timestamp())
    return at.astimezone(clock).strftime("%Y-%m-%d %H:%M:%S %Z")


def _build_notes(schedule: ScheduleInfo, now: float, url: str | None) -> list[str]:
    """What somebody should know, or do."""
    notes: list[str] = []
    if schedule.paused_at is not None:
        resume = format_store_command(url, "schedules", "resume", schedule.name)
        notes.append(f"was paused {format_ago(now - schedule.paused_at.timestamp())}: `{resume}` lets it fire again")
    elif schedule.next_at is not None and schedule.next_at.timestamp() < now - 60:
        notes.append("is late: no live worker fires it; `holdfast worker MODULE` starts one")
    if schedule.is_declared_in_code and not schedule.is_announced:
        delete = format_store_command(url, "schedules", "delete", schedule.name)
        notes.append(
            f"is declared by code, no live worker announces it: if it was removed from the code, `{delete}` deletes it"
        )
    return notes


# One


def show_schedule(url: str | None, name: str, *, as_json: bool) -> None:
    """Print all that is known of a schedule."""
    one, now = run_in_loop(_fetch_schedule(url, name)), time.time()
    if as_json:
        print_json(_schedule_to_json(one))
        return
    out = create_console()
    out.print(Text.assemble((to_one_line(one.name), "bold"), f" starts {to_one_line(one.workflow)}"), soft_wrap=True)
    last = (
        one.last_run_id
        and f"{one.last_run_id} ({'deleted' if one.last_run_state is None else one.last_run_state.value})"
    )
    options = {
        "queue": one.queue,
        "key": one.key or None,
        "priority": one.priority or None,
        "tags": ", ".join(one.tags) or None,
        "budget": one.budget and ", ".join(f"{word} {most}" for word, most in _list_limits(one.budget)),
        "deaths": None if one.max_deliveries is None else f"{one.max_deliveries} without a new record",
    }
    facts: list[tuple[str, str]] = [
        ("when", f"{describe_timing(one.timing)}; as written: {one.timing}"),
        *(("next" if not number else "", line) for number, line in enumerate(_list_next_ticks(one, now))),
        ("inputs", json.dumps(value_to_json(one.inputs), ensure_ascii=False)),
        *((word, str(value)) for word, value in options.items() if value is not None),
        ("missed", _describe_catch_up(one)),
        ("overlap", "starts nothing while the run before is under way" if one.overlap == "skip" else "allowed"),
        ("last run", last or "none yet"),
        ("skipped", "" if one.skipped_at is None else f"last {_format_tick(one.skipped_at, one.zone)}: a run was under "
        "way"),
        ("declared", "by code" if one.is_declared_in_code else f"by a client, "
        f"{format_local_time(one.created_at.timestamp())}"),
        ("its runs", _format_runs_command(one, url)),
    ]  # fmt: skip
    for word, told in facts:
        if told:
            out.print(Text(f"  {word:9} {make_printable(told)}"), soft_wrap=True)
    for note in _build_notes(one, now, url):
        out.print(Text(make_printable(f"it {note}")), soft_wrap=True)


def _list_limits(budget: Budget) -> list[tuple[str, Any]]:
    return [(word, most) for word, most in dataclasses.asdict(budget).items() if most is not None]


def _describe_catch_up(schedule: ScheduleInfo) -> str:
    told = {"skip": "left out", "last": "made up for once", "all": f"each fires, {schedule.max_catch_up} at most"}
    return f"{told[schedule.catch_up]} ({schedule.catch_up})"


async def _fetch_schedule(url: str | None, name: str) -> ScheduleInfo:
    async with open_client(url) as client:
        return await client.schedules.get(name)


def _list_next_ticks(schedule: ScheduleInfo, now: float) -> list[str]:
    if schedule.next_at is None:
        return [_format_next(schedule, now)]
    is_due = schedule.next_at.timestamp() <= now
    try:
        ticks = parse_timing(schedule.timing).list_ticks(now, float("inf"), _SHOWN_TICK_COUNT)
    except HoldfastError:  # it cannot be read here: see `in_words`
        return [_format_next(schedule, now)]
    coming = [
        f"{_format_tick(datetime.fromtimestamp(tick).astimezone(), schedule.zone)}, {format_ago(now - tick)}"
        for tick in ticks
    ]
    return [f"now: due since {_format_tick(schedule.next_at, schedule.zone)}", *coming] if is_due else coming


def _format_runs_command(schedule: ScheduleInfo, url: str | None) -> str:
    return format_store_command(url, "runs", "--tag", schedule.tag)


# Changing

ScheduleAction = Literal["pause", "resume", "trigger", "delete"]


def change_schedule(url: str | None, action: ScheduleAction, name: str, *, as_json: bool) -> None:
    """Do something with a schedule, and say what that means."""
    told = run_in_loop(_change(url, action, name))
    if as_json:
        print(json.dumps(told))
    else:
        print(make_printable(told["message"]))


async def _change(url: str | None, action: ScheduleAction, name: str) -> dict[str, Any]:
    async with open_client(url) as client:
        schedules = client.schedules
        if action == "trigger":
            return await _trigger(client, name, url)
        before = await schedules.get(name)
        if action == "delete":
            changed = await schedules.delete(name)
            return _change_to_json(name, changed, _describe_delete(before))
        changed = await (schedules.pause(name) if action == "pause" else schedules.resume(name))
        after = await schedules.get(name)
        message = (
            _describe_pause(after, changed, url)
            if action == "pause"
            else _describe_resume(before, after, changed, time.time())
        )
        return _change_to_json(name, changed, message)


async def _trigger(client: Client, name: str, url: str | None) -> dict[str, Any]:
    run_id = await client.schedules.trigger(name)
    run = await try_get_run(client, run_id)
    message = f"schedule {name!r}: run {run_id!r} is started; `{format_store_command(url, 'show', run_id)}` tells of it"
    stalled = None if run is None else run.stall_advice
    return _change_to_json(name, True, f"{message}\n{with_store_options(url, stalled)}" if stalled else message, run_id)


def _change_to_json(name: str, changed: bool, message: str, run_id: str | None = None) -> dict[str, Any]:
    return {"name": name, "changed": changed, "message": message, "run_id": run_id}


def _describe_delete(schedule: ScheduleInfo) -> str:
    back = "; it is declared by code: a worker that starts with that code brings it back, so remove it there, too"
    return f"schedule {schedule.name!r} is deleted, its runs stay{back if schedule.is_declared_in_code else ''}"


def _describe_pause(schedule: ScheduleInfo, changed: bool, url: str | None) -> str:
    is_so = "is paused" if changed else "was paused before: nothing changed"
    return (
        f"schedule {schedule.name!r} {is_so}; `{format_store_command(url, 'schedules', 'resume', schedule.name)}` "
        "lets it fire again"
    )


def _describe_resume(before: ScheduleInfo, schedule: ScheduleInfo, changed: bool, now: float) -> str:
    if not changed:
        return f"schedule {schedule.name!r} was not paused: nothing changed; next: {_format_next(schedule, now)}"
    if schedule.next_at is None or schedule.next_at.timestamp() > now:
        return f"schedule {schedule.name!r} is resumed; next: {_format_next(schedule, now)}"
    missed = {
        "skip": "what it missed is left out",
        "last": "what it missed is made up for once",
        "all": f"what it missed fires now, {before.max_catch_up} ticks at most",
    }
    return f"schedule {schedule.name!r} is resumed: {missed[schedule.catch_up]}"


def _schedule_to_json(schedule: ScheduleInfo) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for field in dataclasses.fields(schedule):
        value = getattr(schedule, field.name)
        told[field.name] = format_iso(value.timestamp()) if isinstance(value, datetime) else value_to_json(value)
    return {**told, "tag": schedule.tag}
