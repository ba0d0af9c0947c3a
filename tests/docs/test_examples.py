"""Every example runs as a user would run it: as a script, in an empty folder, offline, and killed half-way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from run_log_lines import without_run_log

import forked_python

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOLDFAST_URL")
ARCHAEOLOGIST = ("-m", "code_archaeologist", "--pace", "0.05")


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in KEYS}
    return {**inherited, "PYTHONPATH": str(EXAMPLES)}


def python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run(
        [sys.executable, "-W", "error", *args],
        library=forked_python.AGENTS,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(folder: Path, *args: str) -> str:
    done = python(folder, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not without_run_log(done.stderr), done.stderr
    return done.stdout


def test_the_research_agent_hands_in_a_report(tmp_path: Path):
    out = run(tmp_path, str(EXAMPLES / "research_agent.py"), "--pace", "0")
    assert sorted(re.findall(r"^  reads (\w+)$", out, re.M)) == ["dances", "landmarks", "sun"]
    assert "How bees find their way" in out
    assert len(re.findall(r"^- .+ \[(?:sun|landmarks|dances)\]$", out, re.M)) == 3
    assert re.search(r"^4 model calls, \d+ tokens in, \d+ out, \$0\.0", out, re.M)


def test_the_code_archaeologist_is_killed_and_its_agents_continue(tmp_path: Path):
    process = forked_python.start(
        [sys.executable, "-W", "error", *ARCHAEOLOGIST],
        library=forked_python.AGENTS,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    first: list[str] = []
    for line in process.stdout:
        first.append(line.strip())
        if line.strip() == "modernizer reads sales.py":
            process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, first
    assert first[:2] == ["renews sales.py", "archaeologist reads sales.py"]
    old = (tmp_path / "sales.py").read_text()
    assert "has_key" in old

    second = run(tmp_path, *ARCHAEOLOGIST)
    assert "archaeologist reads" not in second
    did = re.findall(r"^  (\w+ (?:reads|writes) [\w.]+)$", second, re.M)
    # The call in flight is made again, unless its outcome was recorded just before the kill.
    assert [one for one in did if one != "modernizer reads sales.py"] == [
        "modernizer writes sales.py",
        "documenter reads sales.py",
        "documenter writes sales.md",
    ]
    assert re.search(r"^13 model calls, .* sub-agents included$", second, re.M)
    assert "sales.py compiles, and prints the same as sales.py.old." in second
    assert (tmp_path / "sales.py.old").read_text() == old
    assert "@dataclass" in (tmp_path / "sales.py").read_text()
    assert (tmp_path / "sales.md").read_text().startswith("# sales.py")
    assert not list(tmp_path.glob(".*.draft"))


def test_the_pipeline_is_killed_at_step_47_and_continues_from_there(tmp_path: Path):
    script = str(EXAMPLES / "data_pipeline.py")
    killed = python(tmp_path, script, "--pace", "0", "--die-at", "47")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert not (tmp_path / "report.md").exists()

    out = run(tmp_path, script, "--pace", "0")
    assert "4 of 50 steps ran in this process" in out
    assert re.search(r"^sent report\.md \(key \w{8}\): Oslo leads the week \(Oslo is best\)$", out, re.M)
    lines = [line.split() for line in (tmp_path / "steps.log").read_text().splitlines()]
    assert Counter(int(number) for number, _, _ in lines) == {**dict.fromkeys(range(1, 51), 1), 47: 2}
    assert [int(number) for number, _, pid in lines if pid != lines[0][2]] == [47, 48, 49, 50]
    assert "- Oslo: 621.41 EUR" in (tmp_path / "report.md").read_text()


def test_the_class_workflow_reports_who_answered_and_why_the_other_did_not(tmp_path: Path):
    script = str(EXAMPLES / "class_workflow.py")
    out = run(tmp_path, script, "--pace", "0")
    assert out.startswith("Yes: it is 14 °C in Oslo")
    assert "2 model calls" in out
    command = re.search(r"^holdfast (show agent-monday)$", out, re.M)
    assert command is not None
    shown = run(tmp_path, "-m", "holdfast.cli", *command[1].split())
    assert re.search(r"^ +openai:gpt-4o: \d+ tokens in", shown, re.M)
    assert "anthropic:claude-sonnet-5 gave no answer: status 401: invalid x-api-key" in shown


def test_the_release_notes_are_written_by_plan_and_the_plan_is_shown(tmp_path: Path):
    script = str(EXAMPLES / "release_notes.py")
    out = run(tmp_path, script, "--pace", "0.1")
    assert re.search(r"^\[[x>]\] Read the changes$", out, re.M)  # which of its states are seen is a matter of time
    assert re.search(r"^  publishes RELEASE_NOTES\.md$", out, re.M)
    assert "9 model calls" in out
    assert "## Breaks" in (tmp_path / "RELEASE_NOTES.md").read_text()
    shown = run(tmp_path, "-m", "holdfast.cli", "show", "release-2.0")
    assert "plan, 3 of 3 done\n  [x] Read the changes\n" in shown
    assert re.search(r"^ +\d+  load_skill .* ok\n +name='release-notes'$", shown, re.M)


def test_examples_use_only_scripted_models_from_the_testing_package():
    users = {path.stem for path in EXAMPLES.rglob("*.py") if "holdfast.testing" in path.read_text()}
    assert users == {"clerk", "offline", "scripts", "script"}


def test_the_readme_of_the_examples_has_a_command_for_each_of_them():
    text = (EXAMPLES / "README.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (EXAMPLES / target).exists(), target
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S))
    for example in (
        "research_agent.py",
        "code_archaeologist",
        "data_pipeline.py",
        "class_workflow.py",
        "release_notes.py",
    ):
        assert example in commands
