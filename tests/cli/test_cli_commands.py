from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from cli_project import Project

import holdfast
from holdfast.cli import main
from holdfast.cli.shared.formatting import format_ago
from holdfast.cli.shared.group import COMMAND_HINTS

CHANGING = ["approve", "deny", "cancel", "pause", "resume", "budget", "retry", "settle", "fork", "disable", "enable"]
LISTING = ["agents", "approvals", "schedules", "queues", "costs", "addresses", "policies"]
READING = ["runs", "show", "events", "tail", *LISTING]
KEEPING = ["dead", "prune", "export", "import"]
SERVING = ["send", "serve", "keys", "encryption-key", "audit", "mcp"]
COMMANDS = ["demo", "worker", "start", *READING, "signal", *CHANGING, *KEEPING, *SERVING, "replay", "check", "doctor"]


def test_help_lists_the_commands_and_loads_nothing_heavy(project: Project):
    code = (
        "import sys\n"
        "from holdfast.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print([name for name in ('rich', 'pydantic', 'asyncio', 'sqlite3', 'starlette') if name in sys.modules])\n"
    )
    done = project.python("-c", code, is_fresh=True)
    assert done.code == 0
    assert done.out.splitlines()[-1] == "[]"
    for command in COMMANDS:
        assert f"\n  {command} " in done.out
    assert "holdfast demo" in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(project: Project, command: str):
    done = project(command, "--help")
    assert done.code == 0
    assert f"Example:\n    holdfast {command}" in done.out


@pytest.mark.parametrize("command", CHANGING)
def test_every_changing_command_documents_its_json(project: Project, command: str):
    output = " ".join(project.here(command, "--help").out.split())
    assert "--json A JSON object" in output
    assert "changed" in output
    assert "stall_reason" in output


def test_the_version_is_printed(project: Project):
    assert project("--version").out == f"holdfast, version {holdfast.__version__}\n"


@pytest.mark.parametrize(("word", "instead"), [("list", "runs"), ("init", "demo"), ("status", "show ID")])
def test_a_command_of_another_tool_gets_a_hint(project: Project, word: str, instead: str):
    done = project.here(word, "x")
    assert done.code == 2
    assert f"No such command {word!r}. Use `holdfast {instead}`." in done.err


def test_every_recommended_command_exists_and_no_command_is_hidden():
    names = set(main.list_commands(click.Context(main)))
    assert {recommended.split()[0] for recommended in COMMAND_HINTS.values()} <= names
    assert not set(COMMAND_HINTS) & names


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.5, "now"), (90, "1 min ago"), (2.9 * 86400, "2 d ago"), (-59, "in 59 s"), (-90, "in 1 min"),
        (-5400, "in 1 h 30 min"), (-86400, "in 1 d"), (-(3 * 86400 - 1), "in 2 d 23 h"),
    ],
)  # fmt: skip
def test_a_future_time_is_shown_in_two_units(seconds: float, words: str):
    assert format_ago(seconds) == words


def test_an_unknown_command_is_a_usage_error_with_a_suggestion(project: Project):
    done = project("shw")
    assert done.code == 2
    assert "No such command 'shw'. Did you mean 'show'?" in done.err
    assert "No such command 'xyzzy'.\n" in project.here("xyzzy").err


WITHOUT_JSON = {
    "demo": "it is to be watched",
    "worker": "it runs until it is told to stop, and logs",
    "serve": "it runs until it is told to stop, and logs",
    "mcp": "it speaks a protocol of its own, in JSON",
    "export": "what it writes is JSON",
    "run": "its output is that of a script",
    "encryption-key": "it prints the key, and nothing else",
}


def every_command(
    group: click.Group = main, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = (*before, name)
        if not isinstance(command, click.Group):
            yield words, command
            continue
        if command.invoke_without_command:
            yield words, command
        yield from every_command(command, words)


def test_every_command_has_json_unless_there_is_a_reason():
    without = {
        " ".join(words)
        for words, command in every_command()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without == set(WITHOUT_JSON)


def test_the_summary_in_the_main_help_is_the_first_sentence_of_the_command_s_own():
    context = click.Context(main)
    for name, lazy in ((name, one) for section in main.sections.values() for name, one in section.items()):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert lazy.summary.removesuffix(".") == command.get_short_help_str(200).removesuffix("."), name


def test_names_of_commands_are_completed_and_no_command_is_imported_for_that(project: Project):
    code = (
        "import sys, click\n"
        "from holdfast.cli import main\n"
        "print([item.value for item in main.shell_complete(click.Context(main), 'app')], 'rich' in sys.modules)\n"
    )
    assert project.python("-c", code, is_fresh=True).out == "['approvals', 'approve'] False\n"


def test_the_help_of_every_command_says_what_it_does_and_gives_an_example():
    for words, command in every_command():
        assert command.help, words
        assert command.epilog, words
        assert command.epilog.startswith("\b\nExample:\n"), words
        assert f"holdfast {' '.join(words)}" in command.epilog, words


def test_every_command_about_a_store_has_the_store_options():
    without = {
        " ".join(words) for words, command in every_command() if not any("--url" in one.opts for one in command.params)
    }
    assert without == {"demo", "replay", "check", "encryption-key"}
