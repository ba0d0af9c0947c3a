"""A limit for the memory of processes that ends in SIGKILL, as in a container.

``RLIMIT_AS`` would not do: Python raises ``MemoryError``, which a step survives. Where this process may create memory
cgroups (version 1 or 2), the kernel's OOM killer enforces the limit. Elsewhere, a thread kills each process whose
resident memory exceeds it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.drills.process_samples import MB, read_sample

CGROUPS = Path("/sys/fs/cgroup")
WATCH_INTERVAL_S = 0.02


class MemoryLimit:
    """Limits processes to ``max_mb``, while the context lasts: together in a cgroup, or else each of them."""

    def __init__(self, name: str, max_mb: int, list_pids: Callable[[], Sequence[int]]) -> None:
        self._max_mb = max_mb
        self._list_pids = list_pids
        self._folder = _create_cgroup(f"{name}-{os.getpid()}", max_mb)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory limit")

    @property
    def enforced_by(self) -> str:
        return "a watcher's SIGKILL" if self._folder is None else "the kernel's OOM killer"

    def __enter__(self) -> MemoryLimit:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        if self._folder is not None:
            self._remove_cgroup(self._folder)

    def _remove_cgroup(self, folder: Path) -> None:
        """Move the processes that still live out of the group, and remove it."""
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has died
                (folder.parent / "cgroup.procs").write_text(f"{pid}\n")
        folder.rmdir()

    def _run(self) -> None:
        limited: set[int] = set()
        while not self._has_ended.wait(WATCH_INTERVAL_S):
            for pid in self._list_pids():
                if self._folder is None:
                    sample = read_sample(pid)
                    if sample is not None and sample.rss_mb > self._max_mb:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                elif pid not in limited:
                    limited.add(pid)
                    with suppress(OSError):  # it has died
                        (self._folder / "cgroup.procs").write_text(f"{pid}\n")


def _create_cgroup(name: str, max_mb: int) -> Path | None:
    """A cgroup with this limit; ``None`` if this process may not create one."""
    for parent, limit_file in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        folder = parent / name
        try:
            if not (parent / "cgroup.procs").exists():
                continue
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit_file).exists():
                (folder / limit_file).write_text(f"{max_mb * MB}\n")
                return folder
        except OSError:
            pass
        folder.rmdir()
    return None
