"""How processes on one file notify each other of commits, so that they need not wait for their next poll.

A process that waits for changes has a FIFO in the folder next to the database. A process that has committed something
that others may wait for writes a byte to each FIFO. A notification carries no data and only shortens a wait: if one is
lost, the next poll finds the change. (There are none from an older Holdfast, in a folder that cannot be written, and on
systems without FIFOs, and a full FIFO takes no more.) Neither side ever blocks.

A FIFO gets its name only after its reader has opened it. So a FIFO without a reader belongs to a process that has died,
and whoever finds it deletes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path

_SUFFIX = ".fifo"
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_MAX_CLOCK_TICK_S = 0.1
"""Two changes of a folder within this time may leave the same modification time."""


class ChangeListener:
    """The FIFO of a process that waits for changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: str | None = None
        self._descriptor: int | None = None
        self._is_waiting = False
        self._is_unsupported = not hasattr(os, "mkfifo")

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, at most ``timeout_s`` seconds. Returns whether there was one."""
        descriptor = self._open()
        if descriptor is None or self._is_waiting:
            await asyncio.sleep(timeout_s)
            return False
        loop = asyncio.get_running_loop()
        notified: asyncio.Future[bool] = loop.create_future()
        self._is_waiting = True
        timer = loop.call_later(timeout_s, _resolve, notified, False)
        try:
            loop.add_reader(descriptor, _resolve, notified, True)
            is_notified = await notified
        except NotImplementedError:
            self._is_unsupported = True
            return await notified
        finally:
            timer.cancel()
            self._is_waiting = False
            if not self._is_unsupported:
                loop.remove_reader(descriptor)
        if is_notified:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)
        return is_notified

    def _open(self) -> int | None:
        """The descriptor of the FIFO, created at its first use; ``None``: there cannot be one."""
        if self._descriptor is None and not self._is_unsupported:
            path = f"{self._folder}/{secrets.token_hex(8)}"
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                os.mkfifo(path, 0o600)
                self._descriptor = os.open(path, os.O_RDWR | _FLAGS)  # with a writer of its own, it is never at its end
                os.rename(path, path + _SUFFIX)
                self._path = path + _SUFFIX
            except OSError:
                self.close()
                self._is_unsupported = True
        return self._descriptor

    def is_own(self, path: str) -> bool:
        """Whether this is the path of this FIFO."""
        return path == self._path

    def close(self) -> None:
        """Delete the FIFO."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        if self._path is not None:
            _delete(self._path)
        self._descriptor = self._path = None


class ChangeNotifier:
    """Notifies the other processes that wait for changes."""

    def __init__(self, folder: Path, own: ChangeListener) -> None:
        self._folder = folder
        self._own = own
        self._peers: dict[str, int] = {}
        """Descriptors of the other processes' FIFOs, by path."""
        self._listed_mtime_ns = 0

    def notify(self) -> None:
        """Notify all other processes."""
        self._find_peers()
        for path, descriptor in list(self._peers.items()):
            try:
                os.write(descriptor, b"\0")
            except BlockingIOError:
                pass  # it has not read the notifications before this one
            except OSError:  # its process has closed it, or has died
                self._forget(path)
                _delete(path)

    def _find_peers(self) -> None:
        """List the folder if it has changed since it was last listed."""
        try:
            mtime_ns = os.stat(self._folder).st_mtime_ns
            if mtime_ns == self._listed_mtime_ns:
                return
            found = {entry.path for entry in os.scandir(self._folder) if entry.name.endswith(_SUFFIX)}
        except OSError:
            return
        if time.time() - mtime_ns / 1e9 > _MAX_CLOCK_TICK_S:
            self._listed_mtime_ns = mtime_ns
        for path in self._peers.keys() - found:
            self._forget(path)
        for path in found - self._peers.keys():
            if not self._own.is_own(path):
                self._connect(path)

    def _connect(self, path: str) -> None:
        try:
            if stat.S_ISFIFO(os.lstat(path).st_mode):
                self._peers[path] = os.open(path, os.O_WRONLY | _FLAGS)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has no reader
                _delete(path)

    def _forget(self, path: str) -> None:
        os.close(self._peers.pop(path))

    def close(self) -> None:
        """Disconnect."""
        for path in list(self._peers):
            self._forget(path)
        self._listed_mtime_ns = 0


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


def _delete(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
