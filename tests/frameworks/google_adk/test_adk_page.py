"""The snippets of the page on Google ADK, run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from provider_server import ProviderServer

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "frameworks" / "google-adk.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def call(tool: str, **arguments: str) -> dict[str, object]:
    return {"calls": [{"tool": tool, "arguments": arguments}]}


SCRIPTS = [
    [call("look", city="Oslo"), {"text": "It said: {results}."}],
    [{"text": "A long plan."}, {"text": "A plan."}],
    [call("charge", card="42"), {"text": "Done."}],
]
OUTPUTS = ["It said: rain in Oslo.", "A plan.", "cashier"]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, provider: ProviderServer, tmp_path: Path):
    provider.scripts = {"gemini-2.5-flash": SCRIPTS[number]}
    script = tmp_path / "snippet.py"
    script.write_text(SNIPPETS[number])
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == OUTPUTS[number], done.stdout + done.stderr


def test_the_page_has_these_snippets():
    assert len(SNIPPETS) == len(SCRIPTS)
