from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_project import Project
from click.testing import CliRunner
from provider_server import server_process

from holdfast.admission.usage import Usage
from holdfast.cli import main
from holdfast.cli.demo.dashboard import has_browser
from holdfast.cli.demo.effects import CallEvent, JournalTotals, RecordedWork
from holdfast.cli.demo.scenario import print_verdict, run_demo
from holdfast.cli.shared.formatting import create_console
from holdfast.core.states import RunState
from holdfast.errors import UsageError

PROMISE = (
    "The model was asked 13 times for 12 answers: only the call of turn 9, which was in flight when its worker was "
    "killed, was made twice. 13 tool calls ran, each once."
)


def find_processes(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


def read_traces(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "effects.log").read_text().splitlines()]


def test_the_demo_kills_a_worker_for_real_and_its_counts_hold(project: Project):
    done = project("demo", "--fast")
    assert done.code == 0, done.out + done.err
    assert PROMISE in done.out
    out = done.out
    answered = r"^ +[\d.]+ s +{}  model call +[\d,]+ tokens in, \d+ out, \$0\.\d+, asked by worker {}$"
    for turn in range(1, 13):
        assert re.search(answered.format(turn, "A" if turn < 9 else "B"), out, re.M), turn
    assert re.search(r"^ +[\d.]+ s +charge_card +done by worker A$", out, re.M)
    assert re.search(r"SIGKILL for worker A \(pid \d+\), in the middle of the model call of turn 9$", out, re.M)
    assert re.search(r"worker B takes the run over, \d[\d.]* m?s after the kill$", out, re.M)
    assert "turns 1-8 replayed from the journal by worker B, not paid for again" in out

    found = re.search(r"Counted in (\S+)/effects.log", out)
    assert found is not None
    folder = Path(found[1])
    try:
        traces = read_traces(folder)
        asked = Counter(trace["turn"] for trace in traces if trace["status"] == "started" and "turn" in trace)
        assert asked == {**dict.fromkeys(range(1, 13), 1), 9: 2}
        tools = Counter((trace["tool"], trace["call_id"], trace["status"]) for trace in traces if "tool" in trace)
        assert set(tools.values()) == {1}
        assert tools["charge_card", "call_8_1", "finished"] == 1

        # What was not paid twice is what the first eight answers used.
        answers = [trace for trace in traces if "turn" in trace and trace["status"] == "finished"]
        saved, total = (
            sum(trace["input_tokens"] + trace["output_tokens"] for trace in some) for some in (answers[:8], answers)
        )
        assert f"Not paid twice: 8 model calls, {saved:,} of {total:,} tokens and $0.0" in out

        # The command that it recommends works, and tells the same story.
        command = re.search(r"^  holdfast (show demo --url \S+)$", out, re.M)
        assert command is not None
        shown = project(*command[1].split(), "--json")
        assert shown.code == 0
        assert shown.json["usage"]["calls"] == 12
        assert shown.json["usage"]["input_tokens"] + shown.json["usage"]["output_tokens"] == total
        assert "report.md" in [path.name for path in folder.iterdir()]
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for another process")
def test_ctrl_c_ends_the_demo_and_its_workers(project: Project):
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo"],
        cwd=project.folder,
        env=project.environment(TMPDIR=str(project.folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "asked by worker A" in line:
            break
    assert len(find_processes(project.folder)) == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped; the workers are ended" in out
    assert "Traceback" not in err
    deadline = time.monotonic() + 5
    while find_processes(project.folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [path.name for path in project.folder.iterdir()] == ["app.py"]


def ledger(*more: CallEvent) -> list[CallEvent]:
    """Three turns, the second of which was asked for twice, and a tool call."""
    asked = [CallEvent(0.0, 1, "started", turn) for turn in (1, 2, 2, 3)]
    used = {"input_tokens": 10, "output_tokens": 5, "nano_usd": 7}
    answered = [CallEvent(0.0, 1, "finished", turn, **used) for turn in (1, 2, 3)]
    return [*asked, *answered, *charge(), *more]


def charge(pid: int = 1) -> list[CallEvent]:
    return [CallEvent(0.0, pid, what, tool="charge_card", call_id="c1") for what in ("started", "finished")]


JOURNAL = JournalTotals(
    RunState.COMPLETED, RecordedWork(Usage(1, 10, 5, 0, 7), ("charge_card",)), RecordedWork(Usage(2, 20, 10, 0, 14))
)


@pytest.mark.parametrize(
    "traces",
    [
        ledger(),
        ledger(
            CallEvent(0.0, 1, "started", 3), CallEvent(0.0, 1, "failed", 3)
        ),  # a provider's fault is no fault of ours
    ],
)
def test_the_demo_reports_what_was_not_paid_twice(capsys: pytest.CaptureFixture[str], traces: list[CallEvent]):
    assert (
        print_verdict(create_console(), Path("/nowhere"), "sqlite:////nowhere/runs.db", traces, JOURNAL, kill_turn=2)
        == 0
    )
    out = capsys.readouterr().out
    assert "Not paid twice: 1 model call, 15 of 45 tokens" in out
    assert "asked 4 times for 3 answers" in out


@pytest.mark.parametrize(
    ("traces", "journal", "problem"),
    [
        (
            ledger(CallEvent(0.0, 1, "started", 1), CallEvent(0.0, 1, "finished", 1)),
            JOURNAL,
            "for turn 1 the model was asked 2 and answered 2 times",
        ),
        (ledger(*charge(2)), JOURNAL, "the tool call charge_card c1 began 2 and ended 2 times"),
        (
            ledger(CallEvent(0.0, 2, "started", 4), CallEvent(0.0, 2, "finished", 4, input_tokens=9)),
            JOURNAL,
            "3 answers with 45 tokens are recorded, and 4 with 54 were given",
        ),
        (ledger(), replace(JOURNAL, state=RunState.FAILED), "the run is failed, not completed"),
        (
            ledger(),
            replace(JOURNAL, before_kill=JOURNAL.after_kill, after_kill=JOURNAL.before_kill),
            "2 answers were recorded before the kill, not 1",
        ),
    ],
)
def test_the_demo_fails_when_the_counts_are_not_as_promised(
    capsys: pytest.CaptureFixture[str], traces: list[CallEvent], journal: JournalTotals, problem: str
):
    assert (
        print_verdict(create_console(), Path("/nowhere"), "sqlite:////nowhere/runs.db", traces, journal, kill_turn=2)
        == 1
    )
    out = capsys.readouterr().out
    assert "this is not what Holdfast promises" in out
    assert problem in out
    assert "Not paid twice" not in out


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("openai:gpt-4o-mini", "OPENAI_API_KEY"),
        ("mistral:mistral-small", "holdfast-agents[mistral]"),
        ("gtp-4o", "gpt-4o"),
    ],
)
def test_a_model_that_cannot_be_called_is_an_error_before_anything_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch, model: str, word: str
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = project.here("demo", "--model", model)
    assert done.code == 1
    assert word in done.err
    assert done.out == "Loading Holdfast …\n"


def calling(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"text": "", "calls": [{"tool": tool, "arguments": arguments}], "delay": 0.3}


def test_a_real_model_decides_itself_how_many_turns_there_are(project: Project, monkeypatch: pytest.MonkeyPatch):
    """One that reads a page that is not there, calls a tool that is not there, and never sends what it has written."""
    script = {
        "gpt-4o-mini": [
            calling("web_search", query="tides"),
            calling("read_page", url="https://example.org/nowhere"),
            calling("read_newspaper", day="monday"),
            calling("write_report", text="The tides come and go."),
            {"text": "Done."},
        ]
    }
    with server_process(project.folder, script) as server:
        for name, value in {**server.environment, "TMPDIR": str(project.folder)}.items():
            monkeypatch.setenv(name, value)
        done = project("demo", "--model", "gpt-4o-mini")
        assert done.code == 0, done.out + done.err
        assert Counter(call.turn for call in server.calls) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    assert "One agent (openai:gpt-4o-mini), two worker processes, one SIGKILL in the middle of turn 3." in done.out
    assert "The model was asked 6 times for 5 answers" in done.out
    assert re.search(r"read_page +failed by worker A$", done.out, re.M)
    assert re.search(r"^Not paid twice: 2 model calls, .* and made 1 tool call again\.$", done.out, re.M)


def test_a_demo_that_cannot_start_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(_url: str) -> None:
        raise UsageError("uvicorn is not installed")

    monkeypatch.setattr("holdfast.cli.demo.scenario.DashboardServer", missing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError):
        run_demo(fast=True, in_browser=True)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_prints_its_first_line_before_it_loads_anything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "holdfast.cli.demo.scenario", None)  # importing it fails
    done = CliRunner().invoke(main, ["demo"])
    assert isinstance(done.exception, ImportError)
    assert done.output == "Loading Holdfast …\n"


def test_the_demo_on_a_page_does_not_wait_for_a_browser_that_cannot_come(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    (project.folder / "bin").mkdir()
    (project.folder / "bin" / "lynx").symlink_to("/bin/true")  # a text browser would take over the terminal
    monkeypatch.setenv("PATH", str(project.folder / "bin"))
    demo = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo", "--open", "--fast"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if "The page stays until Ctrl-C" in line:
            demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=20) == 0, lines
    output = "".join(lines)
    assert lines[:2] == [
        "Loading Holdfast …\n",
        "One agent (12 turns), two worker processes, one SIGKILL in the middle of turn 9.\n",
    ]
    assert "Starting the worker processes …\n" in lines
    assert re.search(r"Watch it on http://\S+/#/runs/demo\nNo browser was found here, so the run starts now", output)
    assert "Waiting up to" not in output
    shutil.rmtree(re.findall(r"Counted in (\S+)/effects.log", output)[0])


@pytest.mark.parametrize(
    ("found", "environment", "expected"),
    [
        (webbrowser.BackgroundBrowser("xdg-open"), "", True),
        (webbrowser.GenericBrowser("w3m"), "", False),
        (webbrowser.GenericBrowser("w3m"), "w3m", True),  # the user has chosen it
        (None, "", False),
    ],
)
def test_a_browser_counts_if_it_has_a_window_or_was_chosen(
    monkeypatch: pytest.MonkeyPatch, found: Any, environment: str, expected: bool
):
    def get() -> Any:
        if found is None:
            raise webbrowser.Error("could not locate runnable browser")
        return found

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setenv("BROWSER", environment)
    assert has_browser() is expected
