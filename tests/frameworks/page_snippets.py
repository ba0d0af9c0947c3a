"""The Python snippets of a framework's page, each executed as a file in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def list_snippets(page: str) -> list[str]:
    """The snippets of ``docs/frameworks/PAGE.md``."""
    return _FENCE.findall((PROJECT / "docs" / "frameworks" / f"{page}.md").read_text())


def run_snippet(code: str, folder: Path, **environment: str) -> str:
    """Run a snippet, and return what it prints."""
    script = folder / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
