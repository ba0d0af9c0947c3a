"""``holdfast queues``, and what it can do with one."""

from __future__ import annotations

import click

from holdfast.cli.options import CommandGroup, format_example, json_option, list_by_default, url_option

_json_change_option = json_option("A JSON object: name, changed, message, limits_text.")
_name_argument = click.argument("name")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=format_example("holdfast queues", "holdfast queues show llm", "holdfast queues set llm --concurrency 20"),
)
@json_option("A JSON array of objects: all that `show --json` tells of each.")
@url_option
@list_by_default
def queues(as_json: bool, url: str | None) -> None:
    """List queues with limits: what is running and waiting in each, and why nothing begins.

    A queue is given limits in code, as in `Queue("llm", concurrency=10, rate="100/min")`, or here. Those that are set
    here hold at once, for all workers, and stay until they are reset, whatever code says.
    """
    from holdfast.cli.queues import show_queues

    show_queues(url, as_json=as_json)


@queues.command(epilog=format_example("holdfast queues show llm"))
@_name_argument
@json_option(
    "A JSON object: name, limits_text, concurrency, rate, key_concurrency, key_rate, is_overridden, declared_limits, "
    "paused_at, running_count, waiting_count, next_start_at, blocked_reason, keys (an array of objects: key, "
    "running_count, waiting_count)."
)
@url_option
def show(name: str, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a queue: its limits, what is in it, and whose runs these are."""
    from holdfast.cli.queues import show_queue

    show_queue(url, name, as_json=as_json)


@queues.command(
    name="set",
    epilog=format_example(
        "holdfast queues set llm --concurrency 20 --rate 100/min --rate '50000 tokens/min'",
        "holdfast queues set llm --key-concurrency 2 --no-rate",
    ),
)
@_name_argument
@click.option("--concurrency", type=int, metavar="N", help="So many of its runs are executed at once.")
@click.option("--no-concurrency", is_flag=True, help="Any number of them.")
@click.option(
    "--rate", "rates", multiple=True, metavar="R", help="How many begin, or how many tokens they use; may be repeated."
)
@click.option("--no-rate", is_flag=True, help="However many begin.")
@click.option("--key-concurrency", type=int, metavar="N", help="So many of each key are executed at once.")
@click.option("--no-key-concurrency", is_flag=True, help="Any number of them.")
@click.option("--key-rate", "key_rates", multiple=True, metavar="R", help="A rate for each key; may be repeated.")
@click.option("--no-key-rate", is_flag=True, help="However many of a key begin.")
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
    """Set limits of a queue, for all workers and at once. Only what is given changes.

    They stay, whatever code says, until `holdfast queues reset`.
    """
    from holdfast.cli.queues import set_queue

    given = {
        "concurrency": _resolve_limit("--concurrency", concurrency, no_concurrency),
        "rate": _resolve_limit("--rate", list(rates) or None, no_rate),
        "key_concurrency": _resolve_limit("--key-concurrency", key_concurrency, no_key_concurrency),
        "key_rate": _resolve_limit("--key-rate", list(key_rates) or None, no_key_rate),
    }
    limits = {word: value for word, (is_given, value) in given.items() if is_given}
    if not limits:
        raise click.UsageError("what is to be set? Give --concurrency, --rate, --key-concurrency or --key-rate.")
    set_queue(url, name, limits, as_json=as_json)


def _resolve_limit(option: str, value: object, is_unlimited: bool) -> tuple[bool, object]:
    if value is not None and is_unlimited:
        raise click.UsageError(f"{option} and --no-{option[2:]} say the opposite: give one of them.")
    return value is not None or is_unlimited, value


@queues.command(epilog=format_example("holdfast queues reset llm"))
@_name_argument
@_json_change_option
@url_option
def reset(name: str, as_json: bool, url: str | None) -> None:
    """Let a queue have the limits again that code says; none, if it says nothing."""
    from holdfast.cli.queues import change_queue

    change_queue(url, "reset", name, as_json=as_json)


@queues.command(epilog=format_example("holdfast queues pause llm"))
@_name_argument
@_json_change_option
@url_option
def pause(name: str, as_json: bool, url: str | None) -> None:
    """Let no run of a queue begin or go on until it is resumed; restarts and deployments do not change that.

    Runs that are being executed are left alone: `holdfast pause` is for those.
    """
    from holdfast.cli.queues import change_queue

    change_queue(url, "pause", name, as_json=as_json)


@queues.command(epilog=format_example("holdfast queues resume llm"))
@_name_argument
@_json_change_option
@url_option
def resume(name: str, as_json: bool, url: str | None) -> None:
    """Let the runs of a queue begin again."""
    from holdfast.cli.queues import change_queue

    change_queue(url, "resume", name, as_json=as_json)
