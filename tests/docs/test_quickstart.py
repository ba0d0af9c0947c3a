"""The quickstart, as a newcomer follows it: its files and its commands, one after the other, in one folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from free_ports import free_port

PAGE = (Path(__file__).parents[2] / "docs/quickstart.md").read_text()
CITIES = ["Oslo", "Rome", "Lima", "Cairo"]


def blocks(heading: str) -> list[str]:
    """The commands under a heading, block by block."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    return re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    files = re.findall(r"[Ss]ave (?:this|it) as `(\w+\.py)`[^`]*?:\n\n```python\n(.*?)^```", PAGE, re.M | re.S)
    assert [name for name, _ in files] == ["report.py", "agent.py"]
    for name, code in files:
        (folder / name).write_text(code)
    return folder


def bash(folder: Path, commands: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the worker and the server that it has started
            process.wait()


def test_a_killed_report_continues_and_can_be_shown(folder: Path):
    kill, again = blocks("Kill it")
    outputs = [bash(folder, kill), bash(folder, again), bash(folder, again)]
    fetched = Counter(re.findall(r"^fetched (\w+)$", "".join(outputs), re.M))
    assert set(fetched) == set(CITIES)
    assert fetched.total() <= len(CITIES) + 1, "only what was in flight at the kill may be fetched twice"
    assert outputs[1].endswith("total: 17\n")
    assert outputs[2] == "total: 17\n"

    (look,) = blocks("Look")
    shown = bash(folder, look)
    assert "completed" in shown
    assert [shown.count(f"city='{city}'") for city in CITIES] == [1] * len(CITIES)


def test_the_agent_answers_and_its_conversation_is_stored(folder: Path):
    (commands,) = blocks("An agent")
    output = bash(folder, commands)
    assert output.startswith("Rome is larger.")
    assert output.count("Rome is larger.") >= 2


def test_a_run_is_started_over_http_and_executed_by_the_worker(folder: Path):
    start, ask = blocks("Workers and a server")
    port = str(free_port())
    start = start.replace("holdfast serve", f"holdfast serve --port {port} >serve.log 2>&1")
    start = start.replace("report:report", "report:report >worker.log 2>&1")
    ready = f"until curl -s localhost:{port}/v1/agents | grep -q report; do sleep 0.1; done\n"
    output = bash(folder, f"{start}{ready}{ask.replace('7100', port)}kill %1 %2; wait")
    assert '"output":8' in output, output + (folder / "serve.log").read_text() + (folder / "worker.log").read_text()
