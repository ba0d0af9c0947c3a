"""Worker file locks: how the kernel tells at once that a worker's process is gone.

Each worker holds an exclusive POSIX lock on a file of its own beside the database. The kernel drops it when the process
ends, however it ends. POSIX record locks have three properties that shape this module:

- They are not inherited by forked children (a tool's child process that outlives its worker does not keep it alive).
- They do not conflict within one process, so a process cannot test its own locks: the registry below is asked first.
- Closing *any* descriptor of the file drops the process's lock on it: a file in the registry is never opened again.

Where there is no ``fcntl`` nothing is locked and nothing can be found free: the lease alone decides.
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
    """In a forked child: the locks stayed with the parent. Closing our copies of the descriptors does not drop them."""
    global _guard
    _guard = threading.Lock()
    for descriptor in _descriptors.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)


class WorkerLocks:
    """The lock files of the workers on one database."""

    def __init__(self, database: Path) -> None:
        self.folder = Path(f"{database}-workers")

    def acquire(self, token: str) -> None:
        """Create this worker's file and lock it; to be done before its row can be seen by others."""
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
        """Let go of this process's lock, if it has it; the file stays, for others to find it free."""
        with _guard:
            descriptor = _descriptors.pop(token, None)
            if descriptor is not None:
                os.close(descriptor)

    def remove(self, token: str) -> None:
        """Delete the file of a worker that is retired or dead (its row says so already)."""
        self.release(token)
        with contextlib.suppress(OSError):
            os.unlink(self._get_path(token))

    def is_free(self, token: str) -> bool:
        """Whether the file is there and nobody holds its lock: then its worker's process is gone for good.

        A missing or unreadable file says nothing. The answer stays true once it is true, because a worker locks its
        file once, before it is announced.
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
