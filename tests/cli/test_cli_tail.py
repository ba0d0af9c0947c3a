"""``holdfast tail``: a line for each thing that happens, in any run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

from cli_project import Project

from holdfast.cli.runs.events import describe_event, is_problem
from holdfast.cli.runs.tail import _format_line
from holdfast.core.states import RunState
from holdfast.reports.events import Event
from holdfast.reports.tail import TailEvent


def follow(project: Project, *args: str, until: str) -> list[str]:
    """The lines of ``holdfast tail`` up to one with this in it; then Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "tail", *args],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if until in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    return lines


def test_tail_prints_what_happens_and_stops_with_ctrl_c(seeded: Project):
    lines = follow(seeded, "--since", "1d", "--workflow", "etl", until="the run is failed")
    texts = [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in lines]
    assert texts[0].startswith("etl-acme (etl)  created, completed")
    assert any(re.match(r"etl-acme \(etl\)  #1 extract done: \[1, 2, 3\]  \[.+\]$", line) for line in texts)
    assert any(line.startswith('etl-acme (etl)  the run is completed: {"sum": 6}') for line in texts)
    assert "ValueError: [red]no such[/red] customer" in texts[-1]
    assert not any("order-7" in line for line in texts)


def test_tail_json_has_stable_names(seeded: Project):
    lines = follow(seeded, "--since", "1d", "--state", "completed", "--tag", "nightly", "--json", until='"ended"')
    found = [json.loads(line) for line in lines]
    assert {one["run_id"] for one in found} == {"etl-acme"}
    assert [one["kind"] for one in found if one["step"] is None] == ["created", "timer", "ended"]
    assert list(found[-1]) == [
        "at", "run_id", "workflow", "state", "kind", "step", "name", "worker", "usd", "data",
    ]  # fmt: skip
    assert (found[-1]["data"], found[-1]["usd"]) == ({"state": "completed", "output": {"sum": 6}}, None)


def format_entry(kind: str, **more: object) -> str:
    at = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
    known = {"step": None, "name": "", "worker": "", "usd": None, "data": {}}
    return _format_line(TailEvent(at, "r-1", "agent", RunState.RUNNING, kind, **{**known, **more})).plain[10:]  # pyright: ignore


def test_takeovers_answers_and_questions_have_words_of_their_own():
    assert format_entry("taken over", worker="two", data={"died": "one", "epoch": 2}) == (
        "r-1 (agent)  continues with another worker: one died  [two]"
    )
    usage = {"input_tokens": 1200, "output_tokens": 5}
    answer = {"model": "m", "usage": usage, "tool_calls": [{"name": "look"}], "text": "I look."}
    assert format_entry("answered", step=3, name="model call", worker="one", usd=0.0012, data=answer) == (
        "r-1 (agent)  #3 model call answered by m (1,200 tokens in, 5 out), calls look  [one, $0.0012]"
    )
    asked = {"state": "requested", "id": "3mkj", "question": "May I?"}
    assert (
        format_entry("approval", step=4, name="approval", data=asked)
        == "r-1 (agent)  #4 approval 3mkj requested: May I?"
    )
    plan = {"plan": [{"task": "a", "status": "done"}, {"task": "b", "status": "open"}]}
    assert format_entry("plan", step=5, data=plan) == "r-1 (agent)  #5 plan: 1 of 2 done"


def test_a_call_that_waits_for_a_person_has_not_failed():
    error = {"type": "holdfast.errors.ApprovalRequired", "message": "tool 'pay' was not called: a person must approve"}
    event = Event("", "step", datetime.now(UTC), "r", 4, "pay", "", {"error": error})
    assert describe_event(event) == "tool 'pay' was not called: a person must approve"
    assert not is_problem(event)
