"""What a user gets by installing and importing the package."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import holdfast

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


def test_a_process_that_runs_a_workflow_loads_nothing_that_only_reports_schedules_and_classes_need(tmp_path: Path):
    """It decides how soon a restarted worker continues its runs."""
    (tmp_path / "app.py").write_text(
        "import asyncio, sys\n"
        "from holdfast import Runtime, step, workflow\n"
        "@step\n"
        "async def one(number: int) -> int:\n"
        "    return number\n"
        "@workflow\n"
        "async def flow(number: int) -> int:\n"
        "    return await one(number)\n"
        "async def main() -> None:\n"
        "    async with Runtime('sqlite:///runs.db'):\n"
        "        assert await flow(7) == 7\n"
        "asyncio.run(main())\n"
        "parts = 'reports', 'services.approvals', 'services.schedules', 'services.journal_files', 'authoring.classes'\n"
        "names = [name.removeprefix('holdfast.') for name in sys.modules if name.startswith('holdfast.')]\n"
        "print(sorted(name for name in names if name.startswith(parts)))\n"
    )
    done = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['reports', 'reports.agent_result']"


def test_the_extra_all_is_every_extra_that_users_may_want():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    frameworks = {folder.name.replace("_", "-") for folder in (ROOT / "tests" / "frameworks").iterdir()}
    others = {"all", "docs", "dev", *frameworks}  # the requirements of frameworks contradict each other
    wanted = ",".join(name for name in extras if name not in others)
    assert everything == f"holdfast-agents[{wanted}]"


def test_no_text_says_to_install_the_distribution_named_holdfast():
    """It belongs to an unrelated project; ours is `holdfast-agents`."""
    extra, command = re.compile(r"\bholdfast\\?\[[a-z{]"), re.compile(r"\binstall( -\S+)* [\"']?holdfast(?![\w/-])")
    ending = {"", ".py", ".md", ".toml", ".yml", ".js", ".html", ".sh"}
    places = [
        ROOT / name for name in ("src", "docs", "examples", "tests", "scripts", "benchmarks", "simulation", ".ci")
    ]
    files = [one for place in places for one in place.rglob("*") if one.is_file() and one.suffix in ending]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "mkdocs.yml", "test")]
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if extra.search(line) or command.search(line)
    ]
    assert found == []


def test_the_installed_package_is_typed_and_has_its_command():
    distribution = metadata.distribution("holdfast-agents")
    (command,) = [entry for entry in distribution.entry_points if entry.group == "console_scripts"]
    assert (command.name, command.value) == ("holdfast", "holdfast.cli:main")
    assert (ROOT / "src/holdfast/py.typed").exists()


def python(*args: str, first: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(first), str(Path(holdfast.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


def install_foreign(folder: Path, version: str = "0.5.1") -> Path:
    """The unrelated distribution, as pip leaves it: it has no entry points."""
    info = folder / f"holdfast-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: holdfast\nVersion: {version}\n")
    return info


def test_the_import_warns_of_an_unrelated_distribution_with_the_same_import_name(tmp_path: Path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    assert python("-c", "import holdfast", first=packages, cwd=tmp_path).stderr == ""
    install_foreign(packages)
    done = python("-c", "import holdfast; print(holdfast.Runtime.__name__)", first=packages, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Runtime\n")
    assert "<string>:1: RuntimeWarning: The distribution 'holdfast 0.5.1' is installed" in done.stderr
    assert "pip uninstall holdfast" in done.stderr


def test_an_installation_of_our_own_under_the_earlier_name_is_not_taken_for_a_foreign_one(tmp_path: Path):
    info = install_foreign(tmp_path / "site-packages", "0.1.0")
    (info / "entry_points.txt").write_text("[pytest11]\nholdfast = holdfast.testing.plugin\n")
    assert python("-c", "import holdfast", first=info.parent, cwd=tmp_path).stderr == ""


def test_doctor_warns_of_an_unrelated_distribution(tmp_path: Path):
    install_foreign(tmp_path / "site-packages")
    done = python("-m", "holdfast.cli", "doctor", "--json", first=tmp_path / "site-packages", cwd=tmp_path)
    (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "distribution"]
    assert check["status"] == "warn"
    assert "'holdfast 0.5.1'" in check["message"]
    assert "holdfast-agents" in check["advice"]


def test_the_command_explains_itself_when_the_other_distribution_has_overwritten_the_package(tmp_path: Path):
    packages = tmp_path / "site-packages"
    shutil.copytree(Path(holdfast.__file__).parent, packages / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "holdfast" / "__init__.py").write_text("class Contract: ...\n")
    install_foreign(packages)
    done = python("-m", "holdfast.cli", "doctor", first=packages, cwd=tmp_path)
    assert "error: The distribution 'holdfast 0.5.1'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "pip uninstall holdfast" in done.stdout


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


def test_the_test_script_says_what_it_does_before_it_does_it(tmp_path: Path):
    (tmp_path / "python").write_text('#!/bin/sh\necho "python $*"\n')
    (tmp_path / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("HOLDFAST_INSTALLED", None)
    done = subprocess.run(
        [ROOT / "test", "-q"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    told = [re.sub(r"^\d\d:\d\d:\d\d (\w+ \w+ \w+).*", r"\1", line) for line in done.stdout.splitlines()]
    assert told == [
        "Installing Holdfast and",
        "python -m pip install -q -e .[dev]",
        "Compiling the library",
        "python -m compileall -q src simulation tests/processes",
        "Compiling the tests",
        "Starting pytest in",
        "python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -q",
    ]
