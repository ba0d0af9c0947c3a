"""The snippets of the page in the docs run as a user would run them: as files, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_parts import call

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "frameworks" / "openai-agents.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

DONE = {"text": "Done: {results}"}
ANSWERS: dict[str, tuple[list[Any], str]] = {
    "Travel": ([{"calls": [call("search", query="Oslo")]}, DONE], "Done: Three hotels in Oslo.\n"),
    "Writer": ([{"text": "A text."}, {"text": "A better text."}], "A better text.\n"),
    "Cashier": ([{"calls": [call("charge", amount=5)]}, DONE], "Done: Charged 5 euros.\n"),
    "Support": ([{"text": "It is on its way."}], "True\n"),
    "Seller": ([{"calls": [call("price", product="tent")]}, DONE], "Done: tent: 20 euros\n"),
    "Refunds": ([], "Refunds\n"),
}
"""By the first agent of a snippet: the model's answers, and what it prints."""


@pytest.mark.parametrize("code", SNIPPETS, ids=[str(number) for number in range(1, len(SNIPPETS) + 1)])
def test_a_snippet_runs(code: str, provider: Any, tmp_path: Path):
    name = re.findall(r'name="(\w+)"', code)[0]
    answers, printed = ANSWERS[name]
    provider.script(**{"gpt-4o": answers})
    script = tmp_path / "snippet.py"
    script.write_text(code)
    environment = {**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1", "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == printed, done.stderr
