"""A virtual environment for each family of peers, created when it is first needed, in the project's folder.

Their dependencies conflict with each other and with ours. A peer that cannot be installed is reported with the reason,
and not measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalog import NODE_PACKAGES, PACKAGES
from benchmarks.sqlite_benchmarks import ROOT

ENVIRONMENTS_FOLDER = ROOT / ".bench-peers"
INSTALL_TIMEOUT_S = 900
"""Seconds that an installation may take."""


class PeerUnavailable(Exception):
    """A peer that cannot be installed here, and why."""


def ensure_python(family: str) -> str:
    """The interpreter that runs this family's programs, with its packages installed."""
    if family not in PACKAGES:
        return sys.executable
    folder = ENVIRONMENTS_FOLDER / family
    interpreter = folder / "bin" / "python"
    wanted = "\n".join([*PACKAGES[family], NODE_PACKAGES.get(family, "")])
    done = folder / "installed"
    if not done.exists() or done.read_text() != wanted:
        _run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run_command([str(interpreter), "-m", "pip", "install", "--quiet", *PACKAGES[family]])
        if family in NODE_PACKAGES:
            _run_command(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), NODE_PACKAGES[family]])
        done.write_text(wanted)
    return str(interpreter)


def find_command(family: str, name: str) -> str:
    """A command that this family's packages brought along."""
    folder = ENVIRONMENTS_FOLDER / family
    for place in (folder / "bin" / name, folder / "node_modules" / ".bin" / name):
        if place.exists():
            return str(place)
    raise PeerUnavailable(f"its packages bring no command {name}")


def build_variables(family: str) -> dict[str, str]:
    """The environment variables of the programs: ours can import the project, the others cannot."""
    own = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} if family not in PACKAGES else {"PYTHONPATH": ""}
    return {**os.environ, "LANGSMITH_TRACING": "false", **own}


def describe_versions(family: str) -> str:
    """All that is pinned, in words."""
    if family not in PACKAGES:
        from holdfast import __version__

        return f"{family} {__version__}"
    told = [re.sub(r"(\[.*\])?==", " ", package) for package in PACKAGES[family]]
    if family in NODE_PACKAGES:
        told.append(" ".join(NODE_PACKAGES[family].rsplit("@", 1)))
    return ", ".join(told)


def _run_command(command_line: list[str]) -> None:
    shown = " ".join(Path(word).name if word.startswith("/") else word for word in command_line)
    try:
        done = subprocess.run(command_line, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"`{shown}`: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise PeerUnavailable(f"`{shown}`: {lines[-1]}")
