"""The page about the command line tells of every command, in the words of its help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def rows(group: click.Group = main, before: str = "holdfast") -> Iterator[str]:
    """A row of the table for each command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{before} {name}"
        if not isinstance(command, click.Group) or command.invoke_without_command:
            first = re.split(r"(?<=[.])\s|\n\n", (command.help or "").strip())[0]
            json = any("--json" in option.opts for option in command.params)
            yield f"| `{words}` | {' '.join(first.split())} | {'yes' if json else ''} |"
        if isinstance(command, click.Group):
            yield from rows(command, words)


def test_the_table_of_commands_is_what_they_say_themselves():
    found = [line for line in PAGE.splitlines() if line.startswith("| `holdfast ")]
    assert found == list(rows())
