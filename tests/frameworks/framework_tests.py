"""The tests of a framework as one test, which runs them in the framework's own environment.

It is collected from the file with the framework's requirements, so that each framework is a test file of its own, which
a test process of its own can take.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from environments import HERE, PROJECT, get_python

TIMEOUT_S = 900
KILL_TIMEOUT_S = 2 * 3600
"""For more than the usual kills."""
OPTIONS = ("--kills", "--kill-stores")


class FrameworkTestsFailed(Exception):
    """Its text is what the tests printed."""


class FrameworkFile(pytest.File):
    """The requirements of a framework."""

    def collect(self) -> Iterator[pytest.Item]:
        test = FrameworkTest.from_parent(self, name=self.path.stem)
        test.add_marker(pytest.mark.timeout(test.timeout_s + 60))
        yield test


class FrameworkTest(pytest.Item):
    """All tests of a framework."""

    @property
    def timeout_s(self) -> int:
        return TIMEOUT_S if self.config.getoption("--kills") <= 2 else KILL_TIMEOUT_S

    def runtest(self) -> None:
        options = [f"{name}={self.config.getoption(name)}" for name in OPTIONS]
        command = [get_python(self.name), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, HERE / self.name]
        # What a process imports is compiled once, for all of them: the environment is installed without.
        dropped = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        done = subprocess.run(
            command, cwd=PROJECT, env={**kept, "PYTHONPATH": str(PROJECT / "src")}, timeout=self.timeout_s,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise FrameworkTestsFailed(done.stdout)
        if not re.search(r"^\d+ passed", done.stdout, re.MULTILINE):
            raise FrameworkTestsFailed(f"no test of {self.name} ran:\n{done.stdout}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What the other pytest printed: a traceback of this one would only hide it."""
        if isinstance(excinfo.value, FrameworkTestsFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)
