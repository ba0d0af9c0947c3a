"""``holdfast schedules``."""

from __future__ import annotations

import dataclasses
import json
import time
import zoneinfo
from datetime import UTC, datetime

from rich.text import Text

from holdfast.cli.shared.formatting import (
    STATE_STYLES,
    create_console,
    format_ago,
    format_local_time,
    make_printable,
    print_field,
    print_json,
    to_one_line,
    value_to_json,
)
from holdfast.cli.shared.options import format_example, json_option, listing_group, name_argument, url_option
from holdfast.cli.shared.outcomes import print_change
from holdfast.cli.shared.store_access import format_store_command, run_client, try_get_run, with_store_options
from holdfast.cli.shared.tables import print_lines, print_listing
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.run_info import RunInfo
from holdfast.services.json_form import to_json
from holdfast.services.schedules import ScheduleInfo
from holdfast.stores.schedules import parse_timing

_SHOWN_TICK_COUNT = 3
"""How many future ticks are shown."""


_json_change_option = json_option("A JSON object: name, changed, message, run_id (of `trigger`).")


@listing_group("holdfast schedules", "holdfast schedules show nightly", "holdfast schedules pause nightly")
@json_option("A JSON array of schedules, each as in `GET /v1/schedules`.")
@url_option
def schedules(as_json: bool, url: str | None) -> None:
    """List schedules: when each fires next, and the state of its last run.

    A schedule is declared in code (`Schedule(...)`), or created by a client (`client.schedules.create`). Its runs have
    the tag `schedule:NAME`.
    """
    found, now = run_client(url, lambda client: client.schedules.list()), time.time()
    rows = [
        (
            to_one_line(one.name),
            to_one_line(one.workflow),
            _describe_timing(one.timing),
            _format_next(one, now),
            "" if one.last_run_state is None else Text(one.last_run_state.value, STATE_STYLES[one.last_run_state]),
            one.catch_up,
        )
        for one in found
    ]
    header = ("schedule", "workflow", "when", "next", "last run", "catch-up")
    empty_text = (
        'there is no schedule yet: `@workflow(schedule=Schedule(cron="0 2 * * *"))` declares one, '
        "`client.schedules.create(...)` makes one"
    )
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text)
    if not as_json:
        print_lines([f"{one.name!r} {note}" for one in found for note in _build_notes(one, now, url)])


def _describe_timing(timing: str) -> str:
    """A timing in words; one that cannot be parsed here, as it is."""
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
    """A tick in the time zone of the schedule, or of this machine if it has none."""
    if not zone:
        return format_local_time(at.timestamp())
    try:
        clock = UTC if zone == "UTC" else zoneinfo.ZoneInfo(zone)  # UTC needs no data
    except zoneinfo.ZoneInfoNotFoundError:  # a bare machine has no data; the server has
        return format_local_time(at.timestamp())
    return at.astimezone(clock).strftime("%Y-%m-%d %H:%M:%S %Z")


def _build_notes(schedule: ScheduleInfo, now: float, url: str | None) -> list[str]:
    """What to know about the schedule, or to do."""
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


@schedules.command(epilog=format_example("holdfast schedules show nightly"))
@name_argument
@json_option("A JSON object, as from `GET /v1/schedules/{name}`.")
@url_option
def show(name: str, as_json: bool, url: str | None) -> None:
    """Show everything known about a schedule, and when it fires next."""
    one, now = run_client(url, lambda client: client.schedules.get(name)), time.time()
    if as_json:
        print_json(to_json(one))
        return
    out = create_console()
    out.print(Text.assemble((to_one_line(one.name), "bold"), f" starts {to_one_line(one.workflow)}"))
    last_state = "deleted" if one.last_run_state is None else one.last_run_state.value
    budget = {} if one.budget is None else dataclasses.asdict(one.budget)
    created = format_local_time(one.created_at.timestamp())
    skipped = "" if one.skipped_at is None else f"last {_format_tick(one.skipped_at, one.zone)}: a run was under way"
    facts: list[tuple[str, str | None]] = [
        ("when", f"{_describe_timing(one.timing)}; as written: {one.timing}"),
        ("next", "\n".join(_list_next_ticks(one, now))),
        ("inputs", json.dumps(value_to_json(one.inputs), ensure_ascii=False)),
        ("queue", one.queue),
        ("key", one.key),
        ("priority", str(one.priority or "")),
        ("tags", ", ".join(one.tags)),
        ("budget", ", ".join(f"{name} {limit}" for name, limit in budget.items() if limit is not None)),
        ("deaths", "" if one.max_deliveries is None else f"{one.max_deliveries} without a new record"),
        ("missed", _describe_catch_up(one)),
        ("overlap", "starts nothing while the run before is under way" if one.overlap == "skip" else "allowed"),
        ("last run", f"{one.last_run_id} ({last_state})" if one.last_run_id else "none yet"),
        ("skipped", skipped),
        ("declared", "by code" if one.is_declared_in_code else f"by a client, {created}"),
        ("its runs", format_store_command(url, "runs", "--tag", one.tag)),
    ]
    for label, text in facts:
        if text:
            print_field(out, label, make_printable(text), indent=2, label_width=10)
    print_lines([f"it {note}" for note in _build_notes(one, now, url)])


def _describe_catch_up(schedule: ScheduleInfo) -> str:
    texts = {"skip": "skipped", "last": "the newest one fires", "all": f"each fires, {schedule.max_catch_up} at most"}
    return f"{texts[schedule.catch_up]} ({schedule.catch_up})"


def _list_next_ticks(schedule: ScheduleInfo, now: float) -> list[str]:
    if schedule.next_at is None:
        return [_format_next(schedule, now)]
    is_due = schedule.next_at.timestamp() <= now
    try:
        ticks = parse_timing(schedule.timing).list_ticks(now, float("inf"), _SHOWN_TICK_COUNT)
    except HoldfastError:  # it cannot be parsed here: see `_describe_timing`
        return [_format_next(schedule, now)]
    coming = [
        f"{_format_tick(datetime.fromtimestamp(tick).astimezone(), schedule.zone)}, {format_ago(now - tick)}"
        for tick in ticks
    ]
    return [f"now: due since {_format_tick(schedule.next_at, schedule.zone)}", *coming] if is_due else coming


# Changing


@schedules.command(epilog=format_example("holdfast schedules pause nightly"))
@name_argument
@_json_change_option
@url_option
def pause(name: str, as_json: bool, url: str | None) -> None:
    """Keep a schedule from firing until you resume it; restarts and deployments do not change that."""
    changed = run_client(url, lambda client: client.schedules.pause(name))
    result = "is paused" if changed else "was paused before: nothing changed"
    resume = format_store_command(url, "schedules", "resume", name)
    message = f"schedule {name!r} {result}; `{resume}` lets it fire again"
    print_change(as_json, name=name, changed=changed, message=message, run_id=None)


@schedules.command(epilog=format_example("holdfast schedules resume nightly"))
@name_argument
@_json_change_option
@url_option
def resume(name: str, as_json: bool, url: str | None) -> None:
    """Let a schedule fire again. Missed ticks are handled by its catch-up setting."""

    async def resume_schedule(client: Client) -> tuple[bool, ScheduleInfo]:
        return await client.schedules.resume(name), await client.schedules.get(name)

    changed, schedule = run_client(url, resume_schedule)
    message = _describe_resume(schedule, changed, time.time())
    print_change(as_json, name=name, changed=changed, message=message, run_id=None)


@schedules.command(epilog=format_example("holdfast schedules trigger nightly"))
@name_argument
@_json_change_option
@url_option
def trigger(name: str, as_json: bool, url: str | None) -> None:
    """Start a run of a schedule now, in addition to those that it starts itself."""

    async def trigger_schedule(client: Client) -> tuple[str, RunInfo | None]:
        run_id = await client.schedules.trigger(name)
        return run_id, await try_get_run(client, run_id)

    run_id, run = run_client(url, trigger_schedule)
    show = format_store_command(url, "show", run_id)
    message = f"schedule {name!r}: run {run_id!r} is started; `{show}` shows it"
    if run is not None and run.stall_advice:
        message += f"\n{with_store_options(url, run.stall_advice)}"
    print_change(as_json, name=name, changed=True, message=message, run_id=run_id)


@schedules.command(epilog=format_example("holdfast schedules delete nightly"))
@name_argument
@_json_change_option
@url_option
def delete(name: str, as_json: bool, url: str | None) -> None:
    """Delete a schedule; its runs stay.

    A schedule that is declared in code returns as soon as a worker with that code starts: remove it there, too.
    """

    async def delete_schedule(client: Client) -> tuple[ScheduleInfo, bool]:
        return await client.schedules.get(name), await client.schedules.delete(name)

    before, changed = run_client(url, delete_schedule)
    back = "; it is declared by code: a worker that starts with that code brings it back, so remove it there, too"
    message = f"schedule {name!r} is deleted, its runs stay{back if before.is_declared_in_code else ''}"
    print_change(as_json, name=name, changed=changed, message=message, run_id=None)


def _describe_resume(schedule: ScheduleInfo, changed: bool, now: float) -> str:
    if not changed:
        return f"schedule {schedule.name!r} was not paused: nothing changed; next: {_format_next(schedule, now)}"
    if schedule.next_at is None or schedule.next_at.timestamp() > now:
        return f"schedule {schedule.name!r} is resumed; next: {_format_next(schedule, now)}"
    missed = {
        "skip": "missed ticks are skipped",
        "last": "the newest missed tick fires",
        "all": f"missed ticks fire now, {schedule.max_catch_up} at most",
    }
    return f"schedule {schedule.name!r} is resumed: {missed[schedule.catch_up]}"
