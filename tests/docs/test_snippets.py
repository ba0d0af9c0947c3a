"""Every Python snippet of the README and the docs runs as a user would run it: as a file, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_log_lines import without_run_log

import forked_python

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```python( test)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTEST = [
    "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:schemathesis",
    "-o", "asyncio_default_fixture_loop_scope=function",
]  # fmt: skip


def snippets() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        if page.parent.name == "frameworks":
            continue  # tests/frameworks runs them, with the frameworks
        for number, match in enumerate(FENCE.finditer(page.read_text()), 1):
            name = f"{page.relative_to(ROOT)}#{number}"
            found.append(pytest.param(match.group(2), "test_snippet.py" if match.group(1) else "snippet.py", id=name))
    return found


@pytest.mark.parametrize(("code", "file"), snippets())
def test_a_snippet_of_the_docs_runs(code: str, file: str, tmp_path: Path) -> None:
    """A snippet that is marked as a test runs under pytest, any other as a script."""
    script = tmp_path / file
    script.write_text(code)
    if file == "snippet.py":
        library = forked_python.AGENTS if "Agent" in code or "pydantic_ai" in code else forked_python.LIBRARY
        done = forked_python.run(
            [sys.executable, "-W", "error", script], library=library, cwd=tmp_path, capture_output=True, text=True
        )
    else:  # pytest changes modules as they are imported
        command = [sys.executable, "-m", "pytest", *PYTEST, script]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not without_run_log(done.stderr), done.stderr
    assert done.stdout, "a snippet shows something"


def test_the_docs_have_snippets() -> None:
    assert len(snippets()) >= 7


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
