"""Worker file locks: how other processes notice at once that a worker's process has died.

Each worker holds an exclusive POSIX lock on its own file, in a folder next to the database. The kernel drops the lock
when the process ends, however it ends. POSIX record locks have three properties that shape this module:

- Forked children do not inherit them, so a tool's child process that outlives its worker does not keep it alive.
- They do not conflict within one process, so a process cannot test its own locks: the registry below is checked first.
- Closing *any* descriptor of the file drops the process's lock on it, so a file in the registry is never opened again.

Without ``fcntl``, nothing is locked and no lock is ever found free: the lease alone decides.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None

_descriptors: dict[str, int] = {}
"""The locks of this process: token -> descriptor."""
_guard = threading.Lock()


def _close_inherited_locks() -> None:
    """In a forked child: the locks stay with the parent. Closing the child's descriptors does not drop them."""
    global _guard
    _guard = threading.Lock()
    for descriptor in _descriptors.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)


def get_process_folder(database: Path) -> Path:
    """The folder with the files of the processes that use a database."""
    return Path(f"{database}-workers")


class WorkerLocks:
    """The lock files of the workers on one database."""

    def __init__(self, database: Path) -> None:
        self.folder = get_process_folder(database)

    def acquire(self, token: str) -> None:
        """Create a worker's file and lock it, before other processes can see the worker's row."""
        if fcntl is None:  # pragma: no cover - Windows
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with _guard:
            descriptor = os.open(self._get_path(token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
            _descriptors[token] = descriptor

    def release(self, token: str) -> None:
        """Release this process's lock, if it has it. The file stays, so that other processes find its lock free."""
        with _guard:
            descriptor = _descriptors.pop(token, None)
            if descriptor is not None:
                os.close(descriptor)

    def remove(self, token: str) -> None:
        """Delete the file of a worker whose row says that it is retired or dead."""
        self.release(token)
        with contextlib.suppress(OSError):
            os.unlink(self._get_path(token))

    def is_free(self, token: str) -> bool:
        """Whether the file exists and no process holds its lock: then the worker's process has ended.

        A missing or unreadable file says nothing. Once this is true it stays true, because a worker locks its file
        once, before its row is visible.
        """
        if fcntl is None:  # pragma: no cover - Windows
            return False
        with _guard:
            if token in _descriptors:
                return False
            try:
                descriptor = os.open(self._get_path(token), os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return False
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # held, or a file system without locks: the lease decides
                return False
            finally:
                os.close(descriptor)
            return True

    def _get_path(self, token: str) -> str:
        return f"{self.folder}/{token}.lock"
