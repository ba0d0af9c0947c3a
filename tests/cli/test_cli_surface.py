from __future__ import annotations

import pytest
from cli_project import Project

import holdfast

CHANGING = ["approve", "deny", "cancel", "pause", "resume", "budget", "retry", "fork", "kill"]
READING = ["runs", "show", "agents", "approvals", "schedules", "queues", "costs", "addresses", "policies"]
KEEPING = ["dead", "prune", "export", "import"]
SERVING = ["send", "serve", "keys", "encryption-key", "audit"]
COMMANDS = ["demo", "worker", *READING, "signal", *CHANGING, *KEEPING, *SERVING, "replay", "check", "doctor"]


def test_help_lists_the_commands_and_loads_nothing_heavy(project: Project):
    code = (
        "import sys\n"
        "from holdfast.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print([name for name in ('rich', 'pydantic', 'asyncio', 'sqlite3', 'starlette') if name in sys.modules])\n"
    )
    done = project.python("-c", code)
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
def test_every_changing_command_tells_what_its_json_is(project: Project, command: str):
    told = " ".join(project.here(command, "--help").out.split())
    assert "--json A JSON object" in told
    assert "changed" in told
    assert "stalled" in told


def test_the_version_is_told(project: Project):
    assert project("--version").out == f"holdfast, version {holdfast.__version__}\n"


def test_an_unknown_command_is_a_usage_error(project: Project):
    assert project("shw").code == 2
