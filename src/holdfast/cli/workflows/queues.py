"""``holdfast queues``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click
from rich.text import Text

from holdfast.cli.shared.formatting import (
    create_console,
    format_ago,
    format_count,
    format_local_time,
    make_printable,
    print_field,
    print_json,
    to_one_line,
)
from holdfast.cli.shared.options import format_example, json_option, listing_group, name_argument, url_option
from holdfast.cli.shared.outcomes import print_change
from holdfast.cli.shared.store_access import format_store_command, run_client
from holdfast.cli.shared.tables import print_lines, print_listing, print_table
from holdfast.client.client import Client
from holdfast.services.json_form import to_json
from holdfast.services.queues import QueueInfo

_json_change_option = json_option("A JSON object: name, changed, message, limits_text.")


@listing_group("holdfast queues", "holdfast queues show llm", "holdfast queues set llm --concurrency 20")
@json_option("A JSON array of queues, each as in `GET /v1/queues`.")
@url_option
def queues(as_json: bool, url: str | None) -> None:
    """List queues with limits: what is running and waiting in each, and why nothing starts.

    Limits of a queue are declared in code, as in `Queue("llm", concurrency=10, rate="100/min")`, or set here. Limits
    set here apply at once, for all workers, and override those in code until they are reset.
    """
    found, now = run_client(url, lambda client: client.queues.list()), time.time()
    rows = [
        (
            to_one_line(one.name),
            one.limits_text,
            f"{one.running_count:,}",
            f"{one.waiting_count:,}",
            Text(_describe_status(one, now), "yellow" if one.blocked_reason else ""),
        )
        for one in found
    ]
    header = ("queue", "limits", "running", "waiting", "now")
    empty_text = (
        'no queue has limits yet: `@workflow(queue=Queue("llm", concurrency=10))` gives one some, and so does '
        "`holdfast queues set llm --concurrency 10`"
    )
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text, right_columns=(2, 3))
    if not as_json:
        print_lines([f"{one.name!r} {note}" for one in found for note in _build_notes(one, now, url)])


def _describe_status(queue: QueueInfo, now: float) -> str:
    """Whether runs start now, and if not, why."""
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
    """What to know about the queue, or to do."""
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


@queues.command(epilog=format_example("holdfast queues show llm"))
@name_argument
@json_option("A JSON object, as from `GET /v1/queues/{name}`.")
@url_option
def show(name: str, as_json: bool, url: str | None) -> None:
    """Show everything known about a queue: its limits, what is in it, and the keys of its runs."""
    one, now = run_client(url, lambda client: client.queues.get(name)), time.time()
    if as_json:
        print_json(to_json(one))
        return
    out = create_console()
    out.print(Text.assemble(("queue ", ""), (to_one_line(one.name), "bold")))
    facts = [("limits", one.limits_text), ("running", f"{one.running_count:,}"), ("waiting", f"{one.waiting_count:,}")]
    for label, text in [*facts, ("now", _describe_status(one, now))]:
        print_field(out, label, make_printable(text), indent=2, label_width=9)
    if any(key.key for key in one.keys):
        _print_keys(one)
    print_lines([f"it {note}" for note in _build_notes(one, now, url)])


def _print_keys(queue: QueueInfo) -> None:
    out = create_console()
    rows = [
        (to_one_line(key.key) or "(none)", f"{key.running_count:,}", f"{key.waiting_count:,}") for key in queue.keys
    ]
    print_table(("key", "running", "waiting"), rows, right_columns=(1, 2), indent=2)
    rest = queue.running_count + queue.waiting_count - sum(key.running_count + key.waiting_count for key in queue.keys)
    if rest > 0:
        out.print(Text(f"  … {format_count(rest, 'run')} of other keys", "dim"))


# Changing


@queues.command(
    name="set",
    epilog=format_example(
        "holdfast queues set llm --concurrency 20 --rate 100/min --rate '50000 tokens/min'",
        "holdfast queues set llm --key-concurrency 2 --no-rate",
    ),
)
@name_argument
@click.option("--concurrency", type=int, metavar="N", help="Maximum number of its runs executed at once.")
@click.option("--no-concurrency", is_flag=True, help="Remove that limit.")
@click.option(
    "--rate", "rates", multiple=True, metavar="R", help="How many start, or how many tokens they use; may be repeated."
)
@click.option("--no-rate", is_flag=True, help="Remove those limits.")
@click.option("--key-concurrency", type=int, metavar="N", help="Maximum number of runs of each key executed at once.")
@click.option("--no-key-concurrency", is_flag=True, help="Remove that limit.")
@click.option("--key-rate", "key_rates", multiple=True, metavar="R", help="A rate for each key; may be repeated.")
@click.option("--no-key-rate", is_flag=True, help="Remove those limits.")
@_json_change_option
@url_option
def set_(
    name: str,
    concurrency: int | None,
    no_concurrency: bool,
    rates: tuple[str, ...],
    no_rate: bool,
    key_concurrency: int | None,
    no_key_concurrency: bool,
    key_rates: tuple[str, ...],
    no_key_rate: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Set limits of a queue, for all workers and at once. Only the limits that you give change.

    They override those in code until `holdfast queues reset`.
    """
    limits: dict[str, Any] = {}
    for option, value, is_unlimited in (
        ("concurrency", concurrency, no_concurrency),
        ("rate", list(rates) or None, no_rate),
        ("key-concurrency", key_concurrency, no_key_concurrency),
        ("key-rate", list(key_rates) or None, no_key_rate),
    ):
        if value is not None and is_unlimited:
            raise click.UsageError(f"--{option} and --no-{option} say the opposite: give one of them.")
        if value is not None or is_unlimited:
            limits[option.replace("-", "_")] = value
    if not limits:
        raise click.UsageError("what is to be set? Give --concurrency, --rate, --key-concurrency or --key-rate.")

    change = _change_queue(url, name, lambda client: client.queues.set(name, **limits))
    result = "has these limits now" if change.changed else "had these limits before, set by hand: nothing changed"
    reset = format_store_command(url, "queues", "reset", name)
    change.print(as_json, f"{result}: {change.limits_text}; `{reset}` lets it have those of the code{change.name_note}")


@queues.command(epilog=format_example("holdfast queues reset llm"))
@name_argument
@_json_change_option
@url_option
def reset(name: str, as_json: bool, url: str | None) -> None:
    """Reset a queue to the limits declared in code; none, if code declares none."""
    change = _change_queue(url, name, lambda client: client.queues.reset(name))
    result = "is as code says" if change.changed else "was as code says before"
    change.print(as_json, f"{result}: {change.limits_text}{change.blocked_note}")


@queues.command(epilog=format_example("holdfast queues pause llm"))
@name_argument
@click.option("--allow-unknown", is_flag=True, help="Accept a name that no worker has announced yet.")
@_json_change_option
@url_option
def pause(name: str, allow_unknown: bool, as_json: bool, url: str | None) -> None:
    """Let no run of a queue start or continue until you resume it; restarts and deployments do not change that.

    Runs that are being executed are not affected: use `holdfast pause` for those.
    """
    change = _change_queue(url, name, lambda client: client.queues.pause(name, allow_unknown=allow_unknown))
    result = "is paused" if change.changed else "was paused before: nothing changed"
    resume = format_store_command(url, "queues", "resume", name)
    change.print(as_json, f"{result}; `{resume}` lets its runs begin again{change.name_note}")


@queues.command(epilog=format_example("holdfast queues resume llm"))
@name_argument
@_json_change_option
@url_option
def resume(name: str, as_json: bool, url: str | None) -> None:
    """Let the runs of a queue start again."""
    change = _change_queue(url, name, lambda client: client.queues.resume(name))
    result = "is resumed" if change.changed else "was not paused, and nothing changed"
    change.print(as_json, f"{result}: {change.limits_text}{change.blocked_note}")


class _QueueChange(NamedTuple):
    name: str
    changed: bool
    is_known: bool
    queue: QueueInfo | None
    """The queue afterwards; ``None`` if it has no limits and is not paused."""

    @property
    def limits_text(self) -> str:
        return "no limits" if self.queue is None else self.queue.limits_text

    @property
    def blocked_note(self) -> str:
        """Why no run starts, if none does."""
        if self.queue is None or not self.queue.blocked_reason:
            return ""
        return f"; {_describe_status(self.queue, time.time())}"

    @property
    def name_note(self) -> str:
        """A note that the name may be mistyped, if no workflow has such a queue."""
        return "" if self.is_known else f"\nnote: no workflow that was announced has a queue {self.name!r}"

    def print(self, as_json: bool, text: str) -> None:
        message = f"queue {self.name!r} {text}"
        print_change(as_json, name=self.name, changed=self.changed, message=message, limits_text=self.limits_text)


def _change_queue(url: str | None, name: str, action: Callable[[Client], Awaitable[bool]]) -> _QueueChange:
    async def change(client: Client) -> _QueueChange:
        is_known = name in await client.queues.names()
        changed = await action(client)
        queue = next((one for one in await client.queues.list() if one.name == name), None)
        return _QueueChange(name, changed, is_known, queue)

    return run_client(url, change)
