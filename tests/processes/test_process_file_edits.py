"""An edit of a file is made once, wherever its process is killed.

The edit of these tests doubles every x. Made a second time, it would double them again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from app_processes import HERE

import forked_python

DONE = "Replaced it in 'file.txt'."


class Editor:
    """Processes that edit one file, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.file = self.work / "file.txt"
        self.file.write_text("x and x")
        self._environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{folder}/runs.db"}

    def run(self, kill: str) -> tuple[int, str]:
        """How it ended, and what it says the tool answered."""
        program = [sys.executable, str(HERE / "apps" / "edit_and_die.py"), str(self.work), kill]
        done = forked_python.run(
            program, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout.strip() or done.stderr


@pytest.fixture
def editor(folder: Path) -> Editor:
    return Editor(folder)


@pytest.mark.parametrize(("kill", "left"), [("before", "x and x"), ("after", "xx and xx")])
def test_an_edit_is_made_once_although_its_process_is_killed(editor: Editor, kill: str, left: str):
    assert editor.run(kill) == (-signal.SIGKILL, "")
    assert editor.file.read_text() == left
    assert editor.run("never") == (0, DONE)
    assert editor.file.read_text() == "xx and xx"
    assert os.listdir(editor.work) == ["file.txt"]


def test_an_edit_before_another_write_is_reported_as_uncertain(editor: Editor):
    assert editor.run("after") == (-signal.SIGKILL, "")
    editor.file.write_text("xx and xx, and more")
    code, told = editor.run("never")
    assert (code, editor.file.read_text()) == (0, "xx and xx, and more")
    assert "may have been made or not: read the file" in told
