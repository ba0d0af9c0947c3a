"""Groups of commands: the main one, which imports a command when it is used, and those such as ``holdfast queues``."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from holdfast.errors import HoldfastError
from holdfast.installation import REINSTALL_HINT, describe_clash, find_foreign_distribution, is_overwritten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

STORE_OPTION_NAMES = ("url", "namespace")
"""Options that say which store. In a group, they may come before or after the name of a command."""

_MAX_HELP_CHARS = 200
"""Longer than the first sentence of any command's help: none is cut."""

COMMAND_HINTS = {
    "describe": "show ID",
    "init": "demo",
    "inspect": "show ID",
    "kill": "disable WORKFLOW",
    "list": "runs",
    "logs": "events ID",
    "ls": "runs",
    "ps": "runs",
    "reject": "deny ID",
    "status": "show ID",
    "stop": "cancel ID",
}
"""What to use instead of commands that other tools have."""


class CommandGroup(click.Group):
    """Lists its commands in the order of their definition, each with the whole first sentence of its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, not sorted."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list, with no summary cut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_MAX_HELP_CHARS)) for name, one in self.commands.items()])


class LazyCommand(NamedTuple):
    """A command that is imported when it is used."""

    location: str
    """``module:attribute``, in ``holdfast.cli``."""
    summary: str
    """The first sentence of its help, so that ``holdfast --help`` imports no command."""


class MainGroup(click.Group):
    """Imports a command when it is used, lists commands in sections, and shows errors of Holdfast in red on stderr."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, LazyCommand]], **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.sections = sections
        self._lazy_commands = {name: one for commands in sections.values() for name, one in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, section by section."""
        return list(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, if it is not imported yet."""
        if cmd_name not in self._lazy_commands:
            return None
        if cmd_name not in self.commands:
            module, _, attribute = self._lazy_commands[cmd_name].location.partition(":")
            self.add_command(getattr(import_module(f"holdfast.cli.{module}"), attribute), cmd_name)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; no command is imported."""
        width = max(map(len, self._lazy_commands))
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), one.summary) for name, one in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing any."""
        from click.shell_completion import CompletionItem

        found = [(name, one) for name, one in self._lazy_commands.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=one.summary) for name, one in found), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command for a mistyped one, and for one that other tools have."""
        name = args[0]
        if name not in self._lazy_commands and not name.startswith("-") and not ctx.resilient_parsing:
            similar = get_close_matches(name, self._lazy_commands)
            if name in COMMAND_HINTS:
                ctx.fail(f"No such command {name!r}. Use `holdfast {COMMAND_HINTS[name]}`.")
            elif similar:
                ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(map(repr, similar))}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Execute a command; an error of Holdfast is one message, and exit code 1."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a narrow terminal encoding is no reason to fail
        if is_overwritten() and (found := find_foreign_distribution()):
            report_error(HoldfastError(f"{describe_clash(found)} {REINSTALL_HINT}"))  # continue: `doctor` still works
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            report_error(error)
            ctx.exit(1)


def report_error(error: HoldfastError) -> None:
    """Print one message, without a traceback."""
    from holdfast.cli.shared.formatting import print_error  # it imports rich, which `--help` does not need

    print_error(str(error))


def list_by_default(command: F) -> F:
    """For the callback of a group: call it only if none of the group's commands is named.

    Options that say which store (``url_option``) may come before the name of a command. Any other option would be lost
    there: of ``dead --workflow etl purge --all``, the half that matters.
    """

    @functools.wraps(command)
    def call_without_subcommand(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            return command(*args, **kwargs)
        for option in context.command.params:
            name = option.name or ""
            if name not in STORE_OPTION_NAMES and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                named = context.invoked_subcommand
                raise click.UsageError(
                    f"{option.opts[0]} before `{named}` is for the list alone: give it after that, if "
                    f"`{context.command_path} {named} --help` lists it."
                )
        return None

    return cast("F", call_without_subcommand)
