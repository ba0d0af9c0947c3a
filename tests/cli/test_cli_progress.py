"""Commands that may take long say how far they are, on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys

import pytest
from cli_project import Project

from holdfast.cli.shared import event_loop


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "expected"), [(Terminal(), "1 so far\n2 so far\n"), (io.StringIO(), "")])
def test_progress_is_printed_while_a_command_works_and_stderr_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, expected: str
):
    monkeypatch.setattr(event_loop, "_PROGRESS_DELAY_S", 0)
    monkeypatch.setattr(event_loop, "_PROGRESS_INTERVAL_S", 0)
    monkeypatch.setattr(sys, "stderr", stderr)
    is_printed, numbers = asyncio.Event(), [1, 2]

    def progress() -> str:
        number = numbers.pop(0)
        if not numbers:
            is_printed.set()
        return f"{number} so far"

    async def work() -> str:
        if expected:
            await is_printed.wait()
        return "done"

    assert event_loop.run_in_loop(work(), format_progress=progress) == "done"
    assert stderr.getvalue() == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["prune", "--older-than", "1d", "--dry-run"], "found 0 runs so far …"),
        (["prune", "--older-than", "1d", "--yes"], "deleted 0 runs so far …"),
        (["retry", "--workflow", "nothing"], "found 0 runs so far …"),
        (["export", "--all", "--output", "all.jsonl"], "wrote 0 lines so far …"),
        (["import", "all.jsonl", "--skip-existing"], "imported 0 runs so far …"),
    ],
)
def test_a_command_over_many_runs_says_how_far_it_is(history: Project, command: list[str], expected: str):
    code = f"""
from holdfast.cli import main
from holdfast.cli.shared import event_loop
event_loop._PROGRESS_DELAY_S = 0
main({json.dumps(command)})
"""
    assert history.here("export", "--all", "--output", str(history.folder / "all.jsonl")).code == 0  # for the import
    assert expected in history.python_on_a_terminal("-c", code)


def test_a_command_says_that_it_waits_for_a_server_that_does_not_answer(project: Project):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        code = f"""
from holdfast.cli import main
from holdfast.cli.shared import event_loop, store_access
event_loop._PROGRESS_DELAY_S, store_access.OPEN_TIMEOUT_S = 0, 0.1
try:
    main(["runs", "--url", "{address}"])
except SystemExit as stop:
    assert stop.code == 1
"""
        text = project.python_on_a_terminal("-c", code)
    assert text.startswith(f"waiting for {address} …\n"), text
