"""What the declarations of commands share: the group that shows errors, options, and the form of examples."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, UsageError
from holdfast.installation import REINSTALL_HINT, describe_clash, find_foreign_distribution, is_overwritten
from holdfast.log_output import FORMATS, LEVELS

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_LIMIT = 50
"""How many things a list shows at once, unless told otherwise."""
STATES = tuple(state.value for state in RunState)
TERMINAL_STATES = tuple(state.value for state in RunState if state.is_terminal)
RETRYABLE_STATES = tuple(state for state in TERMINAL_STATES if state != RunState.COMPLETED)

YES_HELP = "Do not ask first; needed where nobody can answer."

_MAX_HELP_CHARS = 200
"""More characters than any first sentence has: none is cut."""

_STORE_OR_SERVER_HELP = "The store, or a server (https://...)"
_STORE_OPTION_NAMES = ("url", "namespace")
"""What says where; it may stand before the name of a command in a group as well as behind it."""


_COMMAND_HINTS = {
    "backup": "export --all",
    "describe": "show ID",
    "init": "demo",
    "inspect": "show ID",
    "kill": "disable WORKFLOW",
    "list": "runs",
    "logs": "events ID",
    "ls": "runs",
    "ps": "runs",
    "reject": "deny ID",
    "restore": "import FILE",
    "run": "start WORKFLOW",
    "status": "show ID",
    "stop": "cancel ID",
}
"""What to use instead of commands that other tools have."""


class CommandGroup(click.Group):
    """Lists its commands in the order in which one meets them, each with the whole first sentence of its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_MAX_HELP_CHARS)) for name, one in self.commands.items()])


class MainGroup(CommandGroup):
    """Shows errors of Holdfast in red on stderr."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named."""
        if args[0] in _COMMAND_HINTS:
            ctx.fail(f"No such command {args[0]!r}. Use `holdfast {_COMMAND_HINTS[args[0]]}`.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a narrow terminal encoding is no reason to fail
        if is_overwritten() and (found := find_foreign_distribution()):
            report_error(HoldfastError(f"{describe_clash(found)} {REINSTALL_HINT}"))  # and go on: `doctor` still works
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            report_error(error)
            ctx.exit(1)


def report_error(error: HoldfastError) -> None:
    """One message, without a traceback."""
    from holdfast.cli.formatting import print_error

    print_error(str(error))


def list_by_default(command: F) -> F:
    """For a group that lists, unless one of its commands is named.

    What stands before that command's name says where (``url_option``). Anything else would be lost there: of `dead
    --workflow etl purge --all`, the half that matters.
    """

    @functools.wraps(command)
    def listed(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            return command(*args, **kwargs)
        for option in context.command.params:
            name = option.name or ""
            if name not in _STORE_OPTION_NAMES and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                named = context.invoked_subcommand
                raise click.UsageError(
                    f"{option.opts[0]} before `{named}` is for the list alone: give it behind that, if "
                    f"`{context.command_path} {named} --help` knows it."
                )
        return None

    return cast("F", listed)


def database_option(command: F, url_help: str = _STORE_OR_SERVER_HELP) -> F:
    """For a command that is about all namespaces of a database; ``url_help`` says what the URL names."""
    told = f"{url_help}; HOLDFAST_URL or ./.holdfast/runs.db unless given."
    return click.option("--url", metavar="URL", help=told)(command)


def url_option(command: F, url_help: str = _STORE_OR_SERVER_HELP) -> F:
    """For a command that needs the store; what it is handed as ``url`` says the namespace as well, if one was given."""

    @click.option(
        "--namespace", metavar="NAME", help="Whose runs; what the URL says or HOLDFAST_NAMESPACE unless given."
    )
    @functools.wraps(command)
    def located(*args: Any, url: str | None, namespace: str | None, **kwargs: Any) -> Any:
        around = click.get_current_context().parent
        before: dict[str, Any] = {} if around is None else around.params
        url = before.get("url") if url is None else url
        namespace = before.get("namespace") if namespace is None else namespace
        return command(*args, url=_apply_namespace(url, namespace), **kwargs)

    return cast("F", database_option(located, url_help))


def _apply_namespace(url: str | None, namespace: str | None) -> str | None:
    if namespace is None:
        return url
    from holdfast.client.http.server_endpoint import is_server_url, make_namespace_error
    from holdfast.stores.urls import resolve_store_url

    if is_server_url(url):
        raise make_namespace_error(namespace, f"--namespace {namespace}")
    return resolve_store_url(url, namespace)


def store_only_option(alternative: str, option: Callable[[F, str], F] = url_option) -> Callable[[F], F]:
    """For a command that no server can carry out; ``alternative`` says what to do in place of asking one."""

    def declare(command: F) -> F:
        @functools.wraps(command)
        def checked(*args: Any, url: str | None, **kwargs: Any) -> Any:
            refuse_server(url, alternative)
            return command(*args, url=url, **kwargs)

        return option(cast("F", checked), "The store")

    return declare


def refuse_server(url: str | None, alternative: str) -> None:
    """Raises ``UsageError`` if ``url``, or ``HOLDFAST_URL``, is a server's, and the store itself is needed."""
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


def json_option(help_text: str) -> Callable[[F], F]:
    """``--json``; ``help_text`` says what is printed then."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


json_changes_option = json_option(
    "A JSON object for each run, one to a line: id, workflow, state, changed, is_paused, is_cancelling, stall_reason "
    "(why it does not go on), message, error, and what only this command has to tell."
)
"""For a command that changes runs."""

limit_option = click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="At most so many.",
)
run_ids_argument = click.argument("run_ids", metavar="ID...", nargs=-1, required=True)


def format_example(*lines: str) -> str:
    """An example for the end of a help text, as it stands."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
