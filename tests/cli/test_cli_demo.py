from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cli_project import Project

PROMISE = (
    "11 steps ran once; only step 9, which was in flight when its worker was killed, "
    "ran twice (started twice, finished once)."
)


def processes_about(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


def test_the_demo_kills_a_worker_for_real_and_its_counts_hold(project: Project):
    done = project("demo", "--fast")
    assert done.code == 0, done.out + done.err
    assert PROMISE in done.out
    out = done.out
    for number in range(1, 9):
        assert re.search(rf"^ +[\d.]+ s +{number}  \w+ +done by worker A$", out, re.M)
    assert re.search(r"SIGKILL for worker A \(pid \d+\), in the middle of step 9$", out, re.M)
    assert re.search(r"worker B takes the run over, \d[\d.]* m?s after the kill$", out, re.M)
    assert "steps 1-8 replayed from the journal by worker B, not run again" in out
    for number in range(9, 13):
        assert re.search(rf"^ +[\d.]+ s +{number}  \w+ +done by worker B$", out, re.M)

    found = re.search(r"Counted in (\S+)/effects.log", out)
    assert found is not None
    folder = Path(found[1])
    try:
        traces = [line.split()[2:4] for line in (folder / "effects.log").read_text().splitlines()]
        assert traces.count(["started", "9"]) == 2
        assert len(traces) == 25
        assert sorted(path.name for path in folder.iterdir()) == ["effects.log", "runs.db", "runs.db-workers"]

        # The command that it recommends works, and tells the same story.
        command = re.search(r"^  holdfast (show demo --url \S+)$", out, re.M)
        assert command is not None
        shown = project(*command[1].split())
        assert shown.code == 0
        assert len(re.findall(r" ok, replayed ×1$", shown.out, re.M)) == 8
        assert re.search(r"^ +\d+  \S+:\d+, dead, 8 records$", shown.out, re.M)
        assert re.search(r"^ +\d+  \S+:\d+, retired, 4 records$", shown.out, re.M)
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
        if "done by worker A" in line:
            break
    assert len(processes_about(project.folder)) == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped; the workers are ended" in out
    assert "Traceback" not in err
    deadline = time.monotonic() + 5
    while processes_about(project.folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [path.name for path in project.folder.iterdir()] == ["app.py"]


def test_the_demo_fails_when_a_step_ran_more_often_than_promised(project: Project):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from holdfast.cli.demo import conclude\n"
        "from holdfast.cli.demo.job import STEPS\n"
        "from holdfast.cli.demo.progress import Count\n"
        "from holdfast.cli.wording import console\n"
        "counts = [Count(n, name, 2 if n in (8, 9) else 1, 1) for n, name in enumerate(STEPS, 1)]\n"
        "sys.exit(conclude(console(), Path('/nowhere'), 'sqlite:////nowhere/runs.db', counts, []))\n"
    )
    done = project.python("-c", code)
    assert done.code == 1
    assert "this is not what Holdfast promises" in done.out
    assert "step 8 (charge_card) started 2 and finished 1 times" in done.out
    assert PROMISE not in done.out
