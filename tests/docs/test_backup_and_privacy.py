"""The pages about backups and privacy, as a reader follows them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_python import LIBRARY
from forked_python import run as run_python

DOCS = Path(__file__).parents[2] / "docs"


class Reader:
    """Someone who follows a page in a folder."""

    def __init__(self, page: str, folder: Path) -> None:
        text = (DOCS / page).read_text()
        self.commands = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
        [self.program] = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        self.folder = folder
        (folder / "app.py").write_text(self.program)
        scripts = folder / "bin"
        scripts.mkdir()
        (scripts / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n')
        (scripts / "holdfast").chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    def run_program(self) -> str:
        done = run_python([sys.executable, "app.py"], library=LIBRARY, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bash(self, commands: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", commands], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def work_until(self, run_id: str, state: str) -> str:
        """Run a worker until the run has this state; returns what is known about it."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "worker", "app:order"], cwd=self.folder, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while f"state      {state}" not in (shown := self.bash(f"holdfast show {run_id}")):
                assert time.monotonic() < deadline, shown
                time.sleep(0.2)
            return shown
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
def test_the_page_about_backups(tmp_path: Path):
    reader = Reader("backup.md", tmp_path)
    back_up, restore, settle = reader.commands
    assert reader.run_program() == "order-17 waits to be confirmed\n"
    assert "copied" in reader.bash(back_up)
    reader.bash("holdfast signal order-17 confirmed")
    reader.work_until("order-17", "completed")
    restored = reader.bash(restore)
    assert "1 run may have continued after that" in restored
    assert "runs.db.before-restore-" in restored
    reader.bash("holdfast signal order-17 confirmed")
    shown = " ".join(reader.work_until("order-17", "failed").split())
    assert "restored the backup of " in shown
    assert "has no outcome in the backup of " in shown
    reader.bash(settle)
    assert '"receipt 42"' in reader.work_until("order-17", "completed")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
def test_the_page_about_privacy(tmp_path: Path):
    reader = Reader("privacy.md", tmp_path)
    [erase] = reader.commands
    assert reader.run_program() == "would erase 1 run, 2 records, 1 memory\n"
    said = reader.bash(erase)
    assert said.startswith("would erase 1 run (2 records) and 1 memory\nerased 1 run (2 records) and 1 memory\n")
    assert re.search(r"inputs +\W<erased>", said)
    database = tmp_path / ".holdfast"
    assert b"declined" not in b"".join(path.read_bytes() for path in database.rglob("*") if path.is_file())
