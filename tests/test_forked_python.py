"""Processes that are forked are as those that an interpreter is started for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
TELL = """
import os, sys
sys.path = [path for path in sys.path if "quick" in path or path == ""]
print(__name__, sys.argv, sys.path, os.getcwd(), sorted(name for name in os.environ if name.startswith("GIVEN")))
print(vars().get("__file__"), sys.stdin.read(), file=sys.stderr)
"""
ENDS = {
    "in good order": "import atexit; atexit.register(print, 'bye')",
    "with a code": "import sys; sys.exit(7)",
    "with a message": "raise SystemExit('no')",
    "with an error": "def fall():\n    1 / 0\nfall()",
    "with a warning that is an error": "import warnings; warnings.warn('beware')",
    "behind a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()",
    "killed": "import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "by hand": "import os; print('lost'); os._exit(3)",
}


def outcomes(folder: Path, *words: Any, **options: Any) -> list[tuple[int, str, str]]:
    """What comes of a command that is forked, and of one that is started."""
    told: list[tuple[int, str, str]] = []
    for run in (forked_python.run, subprocess.run):
        done = run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60, **options)
        told.append((done.returncode, done.stdout, done.stderr))
    return told


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_a_process_that_was_started(how: str, tmp_path: Path):
    forked, started = outcomes(tmp_path, "-W", "error", "-c", ENDS[how])
    assert forked == started


@pytest.mark.parametrize(
    "command", [["quick_script.py"], ["-m", "quick_script"], ["-c", TELL]], ids=["script", "-m", "-c"]
)
def test_it_finds_the_world_as_a_process_that_was_started(command: list[str], tmp_path: Path):
    (tmp_path / "quick_script.py").write_text(TELL)
    environment = {"PATH": os.environ["PATH"], "GIVEN": "1", "PYTHONPATH": str(tmp_path / "quick-library")}
    forked, started = outcomes(tmp_path, *command, "one", env=environment, stdin=subprocess.DEVNULL)
    assert forked == started
    assert "['GIVEN']" in forked[1]


def test_processes_of_one_origin_share_nothing_that_they_change():
    code = "import holdfast; print(hasattr(holdfast, 'changed')); holdfast.changed = True"
    for _ in range(2):
        assert forked_python.run([sys.executable, "-c", code], capture_output=True).stdout == b"False\n"


def test_it_answers_on_its_pipes_and_its_death_is_recognized():
    pipe = subprocess.PIPE
    code = "print(input(), flush=True)\nwhile True: pass"
    process = forked_python.start([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hello\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=60) == process.poll() == -signal.SIGKILL
    process.communicate()
