"""``holdfast run``: what it prints about a script's run."""

from __future__ import annotations

from pathlib import Path

from cli_project import Project

INTERRUPTED = """
from holdfast import step

@step
def count() -> int:
    return 1

print(count())
raise KeyboardInterrupt
"""


def test_an_interrupted_script_reports_only_its_run(tmp_path: Path):
    (tmp_path / "script.py").write_text(INTERRUPTED)
    done = Project(tmp_path).python("-m", "holdfast.cli", "run", "--id", "counting", "script.py")
    assert (done.code, done.out) == (130, "1\n"), done.err
    assert done.err.splitlines() == [
        "holdfast: recording run counting",
        "holdfast: run counting is interrupted; the same command continues it",
    ]
