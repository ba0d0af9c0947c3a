"""Options and arguments that several commands have, and the form of examples in their help."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, cast

import click

from holdfast.cli.shared.group import CommandGroup, F, list_by_default
from holdfast.cli.shared.parsing import DurationType
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.log_output import FORMATS, LEVELS, configure_logging

DEFAULT_LIMIT = 50
"""Default of ``--limit``."""
STATES = tuple(state.value for state in RunState)
TERMINAL_STATES = tuple(state.value for state in RunState if state.is_terminal)
RETRYABLE_STATES = tuple(state for state in TERMINAL_STATES if state != RunState.COMPLETED)

_STORE_OR_SERVER_HELP = "The store, or a server (https://...)"


def database_option(command: F, url_help: str = _STORE_OR_SERVER_HELP) -> F:
    """``--url``, for a command about all namespaces of a database; ``url_help`` says what the URL names."""
    return click.option("--url", metavar="URL", help=f"{url_help}. Default: HOLDFAST_URL, or ./.holdfast/runs.db.")(
        command
    )


def url_option(command: F, url_help: str = _STORE_OR_SERVER_HELP) -> F:
    """``--url`` and ``--namespace``. The command gets a ``url`` that includes the namespace if one was given."""

    @click.option(
        "--namespace", metavar="NAME", help="The namespace. Default: the one in the URL, or HOLDFAST_NAMESPACE."
    )
    @functools.wraps(command)
    def call_with_url(*args: Any, url: str | None, namespace: str | None, **kwargs: Any) -> Any:
        group = click.get_current_context().parent
        before: dict[str, Any] = {} if group is None else group.params
        url = before.get("url") if url is None else url
        namespace = before.get("namespace") if namespace is None else namespace
        return command(*args, url=_apply_namespace(url, namespace), **kwargs)

    return cast("F", database_option(call_with_url, url_help))


def _apply_namespace(url: str | None, namespace: str | None) -> str | None:
    if namespace is None:
        return url
    from holdfast.client.http.server_endpoint import is_server_url, make_namespace_error
    from holdfast.stores.urls import resolve_store_url

    if is_server_url(url):
        raise make_namespace_error(namespace, f"--namespace {namespace}")
    return resolve_store_url(url, namespace)


def store_only_option(alternative: str, option: Callable[[F, str], F] = url_option) -> Callable[[F], F]:
    """The options of a command that a server cannot execute; ``alternative`` says what to do instead."""

    def declare(command: F) -> F:
        @functools.wraps(command)
        def call_with_store(*args: Any, url: str | None, **kwargs: Any) -> Any:
            refuse_server(url, alternative)
            return command(*args, url=url, **kwargs)

        return option(cast("F", call_with_store), "The store")

    return declare


def refuse_server(url: str | None, alternative: str) -> None:
    """Raise ``UsageError`` if ``url``, or ``HOLDFAST_URL``, is that of a server."""
    from holdfast.client.http.server_endpoint import is_server_url
    from holdfast.stores.urls import redact_url

    if is_server_url(url):
        place, name = redact_url(url or os.environ["HOLDFAST_URL"]), click.get_current_context().command_path
        raise UsageError(f"{place} is a Holdfast server, and `{name}` needs the store itself: {alternative}")


def log_options(command: F) -> F:
    """``--log-level`` and ``--log-format``, for a command that runs until it is stopped."""
    command = click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        help="How log lines look on stderr; json: one object per line. Replaces a logging setup of your module.",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        help="Log from this level. Default: info for Holdfast itself, warning for everything else.",
    )(command)


def set_up_log(name: str, level: str | None, log_format: str | None) -> Callable[[str], None]:
    """Set up the log, and return what prints the command's own lines: to stderr, because stdout belongs to the steps.

    In a JSON log these lines are log records, because a line of plain text would break it.
    """
    configure_logging(level, log_format)
    return logging.getLogger(name).info if log_format == "json" else functools.partial(click.echo, err=True)


def duration_option(
    *names: str, help: str, default: str | None = None, min_s: float | None = None, max_s: float | None = None
) -> Callable[[F], F]:
    """An option for a duration, which the command gets in seconds."""
    return click.option(
        *names, type=DurationType(min_s=min_s, max_s=max_s), default=default, show_default=True, help=help
    )


def count_option(name: str, *, default: int, help: str) -> Callable[[F], F]:
    """An option for a number of things, at least 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=help)


def json_option(help_text: str) -> Callable[[F], F]:
    """``--json``; ``help_text`` says what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


json_changes_option = json_option(
    "A JSON object for each run, one per line: id, workflow, state, changed, is_paused, is_cancelling, stall_reason "
    "(why it does not continue), message, error, and the fields of this command."
)
"""For a command that changes runs."""

limit_option = count_option("--limit", default=DEFAULT_LIMIT, help="Maximum number of results.")
workflow_option = click.option("--workflow", metavar="W", help="Only runs of this workflow.")
states_option = click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only runs in this state; may be repeated."
)
tag_option = click.option("--tag", metavar="T", help="Only runs with this tag.")
before_option = click.option(
    "--before", metavar="ID", help="Continue after this run, the last one of the previous page."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Delete nothing; only report what would be deleted.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required where nobody can answer.")
name_argument = click.argument("name")
run_ids_argument = click.argument("run_ids", metavar="ID...", nargs=-1, required=True)


def command(*examples: str, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with these examples in its help. By default its name is that of the function."""
    return click.command(name, epilog=format_example(*examples))


def listing_group(*examples: str) -> Callable[[Callable[..., Any]], CommandGroup]:
    """A group of commands that lists what there is if no command is named. It needs ``url_option``."""

    def declare(command: Callable[..., Any]) -> CommandGroup:
        group = click.group(cls=CommandGroup, invoke_without_command=True, epilog=format_example(*examples))
        return group(list_by_default(command))

    return declare


def format_example(*lines: str) -> str:
    """The epilog of a command: examples, not wrapped."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
