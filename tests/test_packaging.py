"""What a user gets by installing and importing the package."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
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


def test_the_extra_all_is_every_extra_but_dev():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"holdfast[{','.join(name for name in extras if name not in ('all', 'dev'))}]"


def test_the_installed_package_is_typed_and_has_its_command():
    distribution = metadata.distribution("holdfast")
    (command,) = [entry for entry in distribution.entry_points if entry.group == "console_scripts"]
    assert (command.name, command.value) == ("holdfast", "holdfast.cli:main")
    assert (ROOT / "src/holdfast/py.typed").exists()


def test_the_readmes_first_command_works_in_a_new_environment(tmp_path: Path):
    command = re.search(r"```bash\n(pip install \. && holdfast demo)\n```", (ROOT / "README.md").read_text())
    assert command, "the README begins with the command that this test runs"
    venv.create(tmp_path / "env", with_pip=True)
    shell = f"cd {shlex.quote(str(ROOT))} && . {shlex.quote(str(tmp_path))}/env/bin/activate && {command[1]} --fast"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turn 9" in done.stdout
