"""A folder with a user's modules, and processes that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_python
import holdfast

SOURCE = str(Path(holdfast.__file__).parents[1])


@dataclass(frozen=True)
class Project:
    folder: Path

    def write(self, name: str, code: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": SOURCE, "HOLDFAST_URL": f"sqlite:///{self.folder / 'runs.db'}"}

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return forked_python.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def client(self, expression: str) -> Any:
        """The value of an expression about ``client``."""
        done = self.python(f"from holdfast import Client; client = Client(); print(repr({expression}))")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def worker(self, *args: str) -> subprocess.Popen[str]:
        return forked_python.start(
            [sys.executable, "-m", "holdfast.cli", "worker", *args],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )


def line_with(worker: subprocess.Popen[str], words: str) -> str:
    """The next line of a worker's messages that contains these words."""
    assert worker.stderr is not None
    for line in worker.stderr:
        if words in line:
            return line
    raise AssertionError(f"the worker ended without saying {words!r}")
