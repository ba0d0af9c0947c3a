"""Packs the library of an earlier commit, for the test of upgrades to run next to today's.

    python scripts/pack_previous_release.py v0.2.0     # or any commit

The archive replaces the one in ``tests/processes/previous_release``. It is kept in the repository, because a shallow
clone has no earlier commits. It contains only what a worker and a client need on SQLite and Postgres.

Pack the last release again when you add the first migration after it, so that there is something to migrate.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests/processes/previous_release"
PACKAGES = (
    "admission", "authoring", "client", "codec", "core", "engine", "reports", "services", "stores", "telemetry",
    "webhooks",
)  # fmt: skip
"""What a worker and a client import, with the modules at the top."""


def is_needed(path: PurePosixPath) -> bool:
    """Whether the archive contains this file of ``src/holdfast``."""
    is_at_top = len(path.parts) == 1
    return path.suffix in (".py", ".pyi") and (is_at_top or path.parts[0] in PACKAGES)


def pack(commit: str) -> Path:
    """Write the archive of a commit, and delete the others."""
    name = run_git("describe", "--tags", "--always", "--abbrev=8", commit).decode().strip()
    content = io.BytesIO(run_git("archive", "--format=tar", commit, "src/holdfast"))
    for earlier in FOLDER.glob("*.tar.xz"):
        earlier.unlink()
    target = FOLDER / f"holdfast-{name}.tar.xz"
    with tarfile.open(fileobj=content) as source, tarfile.open(target, "w:xz", preset=9) as archive:
        for member in source:
            path = PurePosixPath(member.name).relative_to("src")
            if member.isfile() and is_needed(path.relative_to("holdfast")):
                entry = tarfile.TarInfo(str(path))  # without owners, so that the same commit gives the same bytes
                entry.size, entry.mtime = member.size, member.mtime
                archive.addfile(entry, source.extractfile(member))
    return target


def run_git(*arguments: str) -> bytes:
    """The output of a git command."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    packed = pack(sys.argv[1])
    print(f"{packed.relative_to(ROOT)}: {packed.stat().st_size:,} bytes")
