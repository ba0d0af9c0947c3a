"""``holdfast events``: as a story for people, as lines of JSON for programs, from any offset on, and live."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

from cli_project import Project

import forked_python


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_events_of_an_agent_are_printed_in_order(lab: Project):
    out = lab.here("events", "research-1").out
    assert re.search(
        r"^\d\d:\d\d:\d\d  #1 says:\n"
        r"I will look it up\.\n"
        r"\d\d:\d\d:\d\d  #1 model call answered by openai:gpt-4o \(1,200 tokens in, 60 out\), calls web_search and "
        r"read_page\n",
        out,
        re.M,
    )
    assert re.search(r"#3 read_page failed: ConnectionError: no route", out)
    assert re.search(r"#5 archaeologist done: It has two faults: 1\. it is old$", out, re.M)
    assert re.search(r"  the run is completed: Two particles share one state\. Measuring", out)


def test_each_event_is_a_line_of_json_and_its_offset_leads_on(lab: Project):
    events = lines(lab.here("events", "research-1", "--json").out)
    assert list(events[0]) == ["offset", "kind", "at", "run_id", "step", "name", "text", "data"]
    assert [one["kind"] for one in events[:2]] == ["text", "answered"]
    assert events[-1]["kind"] == "ended"
    for at in (0, len(events) // 2, len(events) - 1):
        rest = lab.here("events", "research-1", "--json", "--follow", "--after", events[at]["offset"])
        assert lines(rest.out) == events[at + 1 :]


def test_a_run_of_which_nothing_has_happened_yet_and_one_that_failed(history: Project):
    output = history.here("events", "order-8")
    assert (output.code, output.out, output.err) == (0, "", "")
    [failed] = [one["id"] for one in history.here("runs", "--state", "failed", "--json").json]
    output = history.here("events", failed)
    assert re.search(r"  the run is failed: \w+: ", output.out)
    assert output.err == ""


def test_an_invalid_offset_and_an_unknown_run_are_errors(lab: Project):
    output = lab.here("events", "research-1", "--after", "7")
    assert (output.code, output.out) == (1, "")
    assert "error: '7' is not an offset" in output.err
    output = lab.here("events", "reserch-1")
    assert output.code == 1
    assert "Did you mean research-1" in output.err


def follow(project: Project, run_id: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast.cli", "events", run_id, "--follow"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked_python.start(command, cwd=project.folder, env=project.environment(), text=True, **pipes)


def test_events_are_followed_until_the_run_has_ended(seeded: Project):
    process = follow(seeded, "order-7")
    worker = seeded.worker("app:order")
    try:
        assert seeded.here("signal", "order-7", "approved", '{"by": "ann"}').code == 0
        out, err = process.communicate(timeout=30)
    finally:
        worker.terminate()
        worker.wait()
    assert (process.returncode, err) == (0, "")
    came, ended = out.splitlines()
    assert came.endswith('#1 approved came: {"by": "ann"}')
    assert ended.endswith('the run is completed: {"approved": {"by": "ann"}}')


def test_a_reader_that_stops_following_gets_the_command_to_continue(lab: Project):
    [waiting, *_] = [one["id"] for one in lab.here("runs", "--state", "waiting", "--json").json]
    process = follow(lab, waiting)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() != ""
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    error_text = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    found = re.fullmatch(rf"continue from here: holdfast events {waiting} --follow --after (\S+)\n", error_text)
    assert found, error_text
    assert lab.here("events", waiting, "--after", found[1]).code == 0
