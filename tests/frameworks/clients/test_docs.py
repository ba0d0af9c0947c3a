"""The snippets of the page in the docs run as a user would run them: as files, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from provider_server import ProviderServer

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "frameworks" / "clients.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SCRIPTS = {
    "gpt-4o": [{"text": "Fjords are deep."}],
    "claude-sonnet-4-5": [{"calls": [{"tool": "refund", "arguments": {}}]}, {"text": "Done: {results}"}],
}
PRINTED = ["Fjords are deep.\n", "Done: Refunded A-17.\n", "Model calls and prices are recorded in programs.\n"]


@pytest.mark.parametrize(
    ("code", "printed"), list(zip(SNIPPETS, PRINTED, strict=True)), ids=["lines", "loop", "install"]
)
def test_a_snippet_runs(code: str, printed: str, tmp_path: Path):
    (tmp_path / "snippet.py").write_text(code)
    with ProviderServer(SCRIPTS, tmp_path / "ledger") as provider:
        done = subprocess.run(
            [sys.executable, "snippet.py"],
            cwd=tmp_path,
            env={**os.environ, **provider.address.environment, "PYTHONPATH": str(PROJECT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == printed, done.stderr
