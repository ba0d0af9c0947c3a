"""What a user gets by installing and importing the package."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def test_import_holdfast_is_cheap():
    seconds("import holdfast")  # writes the .pyc files
    # The minimum is what the machine can do; everything above it is noise of other processes.
    bare = min(seconds("pass") for _ in range(7))
    full = min(seconds("import holdfast") for _ in range(7))
    assert full - bare < 0.150


def test_import_holdfast_loads_none_of_the_heavy_modules():
    heavy = ["pydantic", "asyncio", "sqlite3", "click", "rich", "starlette", "uvicorn"]
    code = f"import sys, holdfast; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"


def test_the_extra_all_is_every_extra_that_users_may_want():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"holdfast[{','.join(name for name in extras if name not in ('all', 'docs', 'dev'))}]"


def test_the_installed_package_is_typed_and_has_its_command():
    distribution = metadata.distribution("holdfast")
    (command,) = [entry for entry in distribution.entry_points if entry.group == "console_scripts"]
    assert (command.name, command.value) == ("holdfast", "holdfast.cli:main")
    assert (ROOT / "src/holdfast/py.typed").exists()


READER = """
import sys, time, urllib.request
address = sys.argv[1].partition("#")[0]
with urllib.request.urlopen(address) as page, urllib.request.urlopen(address + "v1/changes") as changes:
    assert b"/ui/js/main.js" in page.read() and changes.readline()
    time.sleep(1)
"""


def test_the_readmes_first_commands_work_in_a_new_environment(tmp_path: Path):
    commands = re.search(
        r"```bash\n(pip install '\.\[server\]')\n(holdfast demo --open)\n```", (ROOT / "README.md").read_text()
    )
    assert commands, "the README begins with the commands that this test runs"
    venv.create(tmp_path / "env", with_pip=True)
    (tmp_path / "reader.py").write_text(READER)
    shell = f"cd {shlex.quote(str(ROOT))} && . {shlex.quote(str(tmp_path))}/env/bin/activate && {commands[1]} && exec "
    demo = subprocess.Popen(
        ["bash", "-c", f"{shell}{commands[2]} --fast"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "BROWSER": f"{sys.executable} {tmp_path / 'reader.py'} %s", "PYTHONUNBUFFERED": "1"},
    )
    watchdog = threading.Timer(110, demo.kill)
    watchdog.start()
    assert demo.stdout is not None
    told: list[str] = []
    for line in demo.stdout:
        told.append(line)
        if line.startswith("The page stays until Ctrl-C: http://127.0.0.1:"):
            demo.send_signal(signal.SIGINT)
    watchdog.cancel()
    assert demo.wait() == 0, "".join(told)
    assert "each once" in "".join(told)
    assert "No browser came" not in "".join(told)
