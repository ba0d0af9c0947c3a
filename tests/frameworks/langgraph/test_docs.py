"""The page about LangGraph: its snippets run, and a worker serves what they define."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.worker.workflow_loader import load_workflows

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "frameworks" / "langgraph.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LOOK = {"calls": [{"tool": "look", "arguments": {"city": "Oslo"}}]}
ANSWERS = [[LOOK, {"text": "You will like Oslo."}], [{"text": "Take a boat."}], []]
EXPECTED = ["You will like Oslo.", "Take a boat.", "{'text': 'A report.', 'color': 'blue'}"]


@pytest.mark.parametrize(("code", "answers", "expected"), list(zip(SNIPPETS, ANSWERS, EXPECTED, strict=True)))
def test_a_snippet_of_the_page_runs(code: str, answers: list[Any], expected: str, tmp_path: Path, provider):
    provider.scripts = {"gpt-4o": answers}
    script = tmp_path / "snippet.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == expected


def test_a_worker_serves_a_graph_by_its_attribute(provider, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parent)
    assert load_workflows("graph_app:graph") == ("report",)
    assert {"report", "functional", "two_reports"} <= set(load_workflows("graph_app.py"))
