"""``holdfast schedules``, and what it can do with one."""

from __future__ import annotations

import click

from holdfast.cli.options import CommandGroup, format_example, json_option, list_by_default, url_option

_json_change_option = json_option("A JSON object: name, changed, message, run_id (of `trigger`).")
_name_argument = click.argument("name")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=format_example("holdfast schedules", "holdfast schedules show nightly", "holdfast schedules pause nightly"),
)
@json_option("A JSON array of objects: all that `show --json` tells of each.")
@url_option
@list_by_default
def schedules(as_json: bool, url: str | None) -> None:
    """List what is started at set times: when it fires next, and how its last run is.

    A schedule is declared in code (`Schedule(...)`), or made by a client (`client.schedules.create`). Its runs have
    the tag `schedule:NAME`.
    """
    from holdfast.cli.schedules import show_schedules

    show_schedules(url, as_json=as_json)


@schedules.command(epilog=format_example("holdfast schedules show nightly"))
@_name_argument
@json_option(
    "A JSON object: name, workflow, timing, zone, inputs, catch_up, max_catch_up, overlap, queue, key, priority, "
    "tags, tag, created_at, next_at, processed_until, paused_at, last_run_id, last_run_state, skipped_at, "
    "is_declared_in_code, is_announced, budget, max_deliveries."
)
@url_option
def show(name: str, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a schedule, and when it fires next."""
    from holdfast.cli.schedules import show_schedule

    show_schedule(url, name, as_json=as_json)


@schedules.command(epilog=format_example("holdfast schedules pause nightly"))
@_name_argument
@_json_change_option
@url_option
def pause(name: str, as_json: bool, url: str | None) -> None:
    """Keep a schedule from firing until it is resumed; restarts and deployments do not change that."""
    from holdfast.cli.schedules import change_schedule

    change_schedule(url, "pause", name, as_json=as_json)


@schedules.command(epilog=format_example("holdfast schedules resume nightly"))
@_name_argument
@_json_change_option
@url_option
def resume(name: str, as_json: bool, url: str | None) -> None:
    """Let a schedule fire again. What it missed is dealt with as its catch-up says."""
    from holdfast.cli.schedules import change_schedule

    change_schedule(url, "resume", name, as_json=as_json)


@schedules.command(epilog=format_example("holdfast schedules trigger nightly"))
@_name_argument
@_json_change_option
@url_option
def trigger(name: str, as_json: bool, url: str | None) -> None:
    """Start a run of a schedule now, beside those that it starts by itself."""
    from holdfast.cli.schedules import change_schedule

    change_schedule(url, "trigger", name, as_json=as_json)


@schedules.command(epilog=format_example("holdfast schedules delete nightly"))
@_name_argument
@_json_change_option
@url_option
def delete(name: str, as_json: bool, url: str | None) -> None:
    """Forget a schedule; its runs stay.

    One that is declared in code is back as soon as a worker with that code starts: remove it there, too.
    """
    from holdfast.cli.schedules import change_schedule

    change_schedule(url, "delete", name, as_json=as_json)
