"""What the declarations of commands share: the group that shows errors, options, and the form of examples."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from holdfast.errors import HoldfastError

F = TypeVar("F", bound=Callable[..., Any])

STATES = ("pending", "running", "waiting", "completed", "failed", "cancelled", "dead")


class Group(click.Group):
    """Shows errors of Holdfast in red on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a narrow terminal encoding is no reason to fail
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            show_error(error)
            ctx.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all."""
        return list(self.commands)  # in the order in which one meets them


def show_error(error: HoldfastError) -> None:
    """One message, without a traceback."""
    from holdfast.cli.wording import tell_error

    tell_error(error)


def database_option(command: F) -> F:
    """For a command that is about all namespaces of a database."""
    told = "The store, or a server (https://...); HOLDFAST_URL or ./.holdfast/runs.db unless given."
    return click.option("--url", metavar="URL", help=told)(command)


def url_option(command: F) -> F:
    """For a command that needs the store; what it is handed as ``url`` says the namespace as well, if one was given."""

    @database_option
    @click.option(
        "--namespace", metavar="NAME", help="Whose runs; what the URL says or HOLDFAST_NAMESPACE unless given."
    )
    @functools.wraps(command)
    def located(*args: Any, url: str | None, namespace: str | None, **kwargs: Any) -> Any:
        if namespace is not None:
            from holdfast.client.choosing import is_server, refuse_namespace
            from holdfast.stores.urls import store_url

            if is_server(url):
                refuse_namespace(namespace, f"--namespace {namespace}")
            url = store_url(url, namespace)
        return command(*args, url=url, **kwargs)

    return cast("F", located)


def store_option(instead: str, option: Callable[[F], F] = url_option) -> Callable[[F], F]:
    """For a command that no server can carry out; ``instead`` says what to do in place of asking one."""

    def declare(command: F) -> F:
        @functools.wraps(command)
        def checked(*args: Any, url: str | None, **kwargs: Any) -> Any:
            refuse_server(url, instead)
            return command(*args, url=url, **kwargs)

        return option(cast("F", checked))

    return declare


def refuse_server(url: str | None, instead: str) -> None:
    """Raises ``UsageError`` if ``url``, or ``HOLDFAST_URL``, is a server's, and the store itself is needed."""
    from holdfast.client.choosing import is_server
    from holdfast.errors import UsageError
    from holdfast.stores.urls import shown_url

    if is_server(url):
        place, name = shown_url(url or os.environ["HOLDFAST_URL"]), click.get_current_context().command_path
        raise UsageError(f"{place} is a Holdfast server, and `{name}` needs the store itself: {instead}")


def json_option(command: F) -> F:
    """For a command that changes runs."""
    option = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="A JSON object for each run, one to a line: id, workflow, state, changed, paused, cancelling, stalled "
        "(why it does not go on), message, error, and what only this command has to tell.",
    )
    return option(command)


run_ids = click.argument("run_ids", metavar="ID...", nargs=-1, required=True)


def example(*lines: str) -> str:
    """An example for the end of a help text, as it stands."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
