"""An environment for each framework, because their requirements contradict each other.

An environment has the framework, the library's dependencies, and what the tests need. It is kept for the next test run,
in ``HOLDFAST_TEST_ENVIRONMENTS`` (default: a folder in the user's cache), under a name that changes with any of these,
and removed when no test has used it for a week.
The library itself is not in it: tests put their checkout on ``PYTHONPATH``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements"
COMMON = REQUIREMENTS / "common.txt"
MAX_UNUSED_S = 7 * 86400.0


def get_requirements(framework: str) -> Path:
    """The file with a framework's requirements."""
    return REQUIREMENTS / f"{framework}.txt"


def list_requirements() -> list[Path]:
    """The files with the requirements of all frameworks."""
    return sorted(path for path in REQUIREMENTS.glob("*.txt") if path != COMMON)


def is_environment_of(framework: str) -> bool:
    """Whether this interpreter is that of the framework's environment."""
    prefix = Path(sys.prefix)
    return prefix.name.startswith(f"{framework}-") and (prefix / "complete").exists()


def get_python(framework: str) -> Path:
    """The interpreter of a framework's environment, which is built if there is none."""
    requirements = _read_requirements(framework)
    digest = hashlib.blake2b("\n".join([sys.version, *requirements]).encode(), digest_size=6).hexdigest()
    root = Path(os.environ.get("HOLDFAST_TEST_ENVIRONMENTS") or _get_cache() / "holdfast" / "test-environments")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{framework}-{digest}"
    with (root / f"{framework}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may build it
        if not (folder / "complete").exists():
            _remove_unused(root)
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
            install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", *requirements]
            subprocess.run(install, check=True, timeout=600)
        (folder / "complete").touch()
    return folder / "bin" / "python"


def _remove_unused(root: Path) -> None:
    for marker in root.glob("*/complete"):
        if time.time() - marker.stat().st_mtime > MAX_UNUSED_S:
            shutil.rmtree(marker.parent)


def _read_requirements(framework: str) -> list[str]:
    lines = [line for file in (COMMON, get_requirements(framework)) for line in file.read_text().splitlines()]
    given = [line for line in lines if line and not line.startswith("#")]
    library = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [*library, *given]


def _get_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


if __name__ == "__main__":
    for name in sys.argv[1:] or [path.stem for path in list_requirements()]:
        print(get_python(name))
