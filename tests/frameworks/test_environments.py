"""The tests of each framework, in the framework's own environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from environments import HERE, PROJECT, get_python, list_frameworks

TIMEOUT_S = 900


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.skipif(sys.platform == "win32", reason="kill tests need SIGKILL")
@pytest.mark.parametrize("framework", list_frameworks())
def test_framework(framework: str, request: pytest.FixtureRequest):
    options = [f"{name}={request.config.getoption(name)}" for name in ("--kills", "--kill-stores")]
    command = [get_python(framework), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, HERE / framework]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, timeout=TIMEOUT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    summary = done.stdout.strip().splitlines()[-1]
    assert " passed" in summary, f"no test of {framework} ran: {summary}"
