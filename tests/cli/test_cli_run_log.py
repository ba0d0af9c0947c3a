"""What workers, servers and scripts say about retries, failures and takeovers while they run."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest
from cli_project import Project

from waits import wait_until_sync

SCRIPT = """
import asyncio
import logging
import app
from holdfast import RunFailed

{setup}
try:
    asyncio.run(app.etl("bad"))
except RunFailed:
    print("caught")
"""

RETRIED = "step 'load' of run 'etl-bad' failed (attempt 1 of 3), retrying in "
FAILED = "run 'etl-bad' of workflow 'etl' failed: ValueError: [red]no such[/red] customer \\x1b[31m"


def read_lines_until(worker: subprocess.Popen[str], wanted: str) -> list[str]:
    assert worker.stderr is not None
    found: list[str] = []
    for line in worker.stderr:
        found.append(line.rstrip("\n"))
        if wanted in line:
            break
    worker.send_signal(signal.SIGTERM)
    found += [line.rstrip("\n") for line in worker.stderr]
    assert worker.wait(timeout=20) == 0
    return found


def seeded_project(project: Project) -> Project:
    """With a run that waits for a worker."""
    assert project.python("-c", "import app, asyncio, holdfast\nasyncio.run(holdfast.Runtime().open())").code == 0
    project.start("etl", "bad")
    return project


def test_a_worker_shows_retries_and_failures(project: Project):
    output = read_lines_until(seeded_project(project).worker("app"), " failed: ValueError")
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    assert sum(bool(re.match(f"{stamp}WARNING holdfast.runs: {re.escape(RETRIED)}", line)) for line in output) == 3
    assert sum(bool(re.match(f"{stamp}ERROR holdfast.runs: {re.escape(FAILED)}", line)) for line in output) == 1


def test_with_json_every_line_of_a_worker_is_an_object(project: Project):
    data = read_lines_until(seeded_project(project).worker("app", "--log-format", "json"), " failed: ValueError")
    rows = [json.loads(line) for line in data]
    assert {"time", "level", "logger", "message"} <= rows[0].keys()
    assert "serves" in rows[0]["message"]
    retried = [row for row in rows if "retry_in_s" in row]
    assert len(retried) == 3
    fields = {"level": "warning", "logger": "holdfast.runs", "run_id": "etl-bad", "workflow": "etl", "step": "load"}
    assert all(fields.items() <= row.items() and row["attempt"] == 1 for row in retried)
    assert all(row["error_type"] == "builtins.ConnectionError" for row in retried)
    assert len({row["worker"] for row in retried}) == 1
    assert retried[0]["worker"]


def test_the_level_of_a_workers_log_can_be_chosen(project: Project):
    error_text = read_lines_until(seeded_project(project).worker("app", "--log-level", "error"), " failed: ValueError")
    assert len([line for line in error_text if "holdfast.runs" in line]) == 1


def test_a_module_that_sets_up_logging_keeps_its_own_format(project: Project):
    app = project.folder / "app.py"
    app.write_text(app.read_text() + "\nimport logging\nlogging.basicConfig(format='mine: %(message)s')\n")
    output = read_lines_until(seeded_project(project).worker("app"), " failed: ValueError")
    assert f"mine: {FAILED}" in output


def test_a_script_on_a_terminal_shows_them_too(project: Project):
    text = project.python_on_a_terminal("-c", SCRIPT.format(setup=""))
    assert len(re.findall(rf"(?m)^\d\d:\d\d:\d\d holdfast: {re.escape(RETRIED)}", text)) == 3
    assert re.search(rf"(?m)^\d\d:\d\d:\d\d holdfast: {re.escape(FAILED)}$", text)
    assert text.endswith("caught\n")


@pytest.mark.parametrize(
    "setup", ["logging.basicConfig(format='mine: %(message)s')", "logging.getLogger('holdfast').setLevel('CRITICAL')"]
)
def test_a_script_that_sets_up_logging_decides_itself(project: Project, setup: str):
    text = project.python_on_a_terminal("-c", SCRIPT.format(setup=setup))
    assert " holdfast: " not in text
    assert (text.count(f"mine: {FAILED}") == 1) == ("mine" in setup)


def test_a_script_that_sets_up_logging_after_its_first_run_sees_no_line_twice(project: Project):
    late = "asyncio.run(app.etl('good'))\nlogging.basicConfig(format='mine: %(message)s')"
    text = project.python_on_a_terminal("-c", SCRIPT.format(setup=late))
    assert text.count(FAILED) == 1
    assert f"mine: {FAILED}" in text


def test_a_takeover_is_shown(project: Project):
    app = project.folder / "app.py"
    app.write_text(
        app.read_text()
        + """
@step
def hang() -> None:
    open("begun", "a").close()
    if not os.path.exists("second"):
        time.sleep(60)


@workflow(id="long")
async def long() -> None:
    await extract("acme")
    await hang()
"""
    )
    first = project.worker("app:long")
    assert first.stderr is not None
    assert "serves long" in first.stderr.readline()
    project.start("long")
    wait_until_sync(lambda: (project.folder / "begun").exists())
    first.kill()
    first.wait()
    (project.folder / "second").touch()
    output = read_lines_until(project.worker("app:long"), "is taken over")
    assert any(line.endswith(" died: 1 of its runs can be taken over") for line in output)
    wanted = "run 'long' of workflow 'long' is taken over after its worker died (1 recorded outcome is kept)"
    assert any(line.endswith(wanted) for line in output)
