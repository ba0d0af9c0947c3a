"""How processes on one file notify each other of commits, so that they need not wait for their next poll.

A process that waits for changes has a FIFO. A process that has committed something that others may wait for writes a
byte to each FIFO. A notification carries no data and only shortens a wait: if one is lost, the next poll finds the
change. (There are none from an older Holdfast, in a folder that cannot be written, between containers, and on systems
without FIFOs, and a full FIFO takes no more.) Neither side ever blocks.

FIFOs are in the system's folder for temporary files, because programs that copy or search folders of data do not expect
them there. A small file next to the database says where a FIFO is. It is written after the FIFO was opened, so a FIFO
without a reader belongs to a process that has died, and the next process that notifies deletes both. If the database
has been deleted as well, no process finds the FIFO that way, so one that creates its own looks for such FIFOs first.

The kernel reports an error on the writing end of a FIFO that has lost its only reader. So a process that waits also
learns at once that another one has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import select
import stat
import tempfile
import time
from pathlib import Path

_SUFFIX = ".listener"
_FIFO_FOLDER_PREFIX = "holdfast-"
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_MAX_CLOCK_TICK_S = 0.1
"""Two changes of a folder within this time may leave the same modification time."""
_MAX_UNREACHABLE_AGE_S = 86400.0
"""The file of a FIFO that does not exist (or only for another container) is deleted after this time."""
_MAX_UNOPENED_AGE_S = 60.0
"""A FIFO without a reader that is younger than this may belong to a process that is about to open it."""


class ChangeListener:
    """The FIFO of a process that waits for changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: str | None = None
        self._fifo: str | None = None
        self._descriptor: int | None = None
        self._is_waiting = False
        self._is_unsupported = not hasattr(os, "mkfifo")

    @property
    def is_open(self) -> bool:
        """Whether this process gets notifications."""
        return self._descriptor is not None and not self._is_unsupported

    async def wait(self, timeout_s: float, also: int | None = None) -> bool:
        """Wait for a notification, at most ``timeout_s`` seconds. Returns whether there was one.

        It also returns when the descriptor ``also`` becomes readable.
        """
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
            if also is not None:
                loop.add_reader(also, _resolve, notified, False)
            is_notified = await notified
        except NotImplementedError:
            self._is_unsupported = True
            return await notified
        finally:
            timer.cancel()
            self._is_waiting = False
            if not self._is_unsupported:
                loop.remove_reader(descriptor)
                if also is not None:
                    loop.remove_reader(also)
        if is_notified:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)
        return is_notified

    def _open(self) -> int | None:
        """The descriptor of the FIFO, created at its first use; ``None``: there cannot be one."""
        if self._descriptor is None and not self._is_unsupported:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _delete_abandoned_fifos()
                self._fifo = f"{tempfile.mkdtemp(prefix=_FIFO_FOLDER_PREFIX)}/fifo"
                os.mkfifo(self._fifo, 0o600)
                # With a writer of its own, it is never at its end.
                self._descriptor = os.open(self._fifo, os.O_RDWR | _FLAGS)
                self._path = f"{self._folder}/{secrets.token_hex(8)}{_SUFFIX}"
                unfinished = Path(f"{self._path}.new")
                unfinished.write_text(self._fifo)
                os.rename(unfinished, self._path)
            except OSError:
                self.close()
                self._is_unsupported = True
        return self._descriptor

    def is_own(self, path: str) -> bool:
        """Whether this is the file of this FIFO."""
        return path == self._path

    def close(self) -> None:
        """Delete the FIFO."""
        if self._path is not None:
            _delete(self._path)
        if self._fifo is not None:
            _delete_fifo(self._fifo)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._path = self._fifo = None


class ChangeNotifier:
    """Notifies the other processes that wait for changes, and notices when one of them dies."""

    def __init__(self, folder: Path, own: ChangeListener) -> None:
        self._folder = folder
        self._own = own
        self._peers: dict[str, tuple[str, int]] = {}
        """The other processes' FIFOs: path and descriptor, by the path of the file next to the database."""
        self._listed_mtime_ns = 0
        self._lost_readers: select.epoll | None = None
        """Readable once a FIFO has lost its reader. Only on Linux; elsewhere, polls find dead workers."""

    def watch_peers(self) -> int | None:
        """The descriptor that becomes readable when another process dies, if there can be one."""
        self._find_peers()
        return None if self._lost_readers is None else self._lost_readers.fileno()

    def forget_dead_peers(self) -> bool:
        """Whether processes have died, or no longer wait, since this was last called."""
        if self._lost_readers is None:
            return False
        lost = {descriptor for descriptor, _ in self._lost_readers.poll(0)}
        for path, (fifo, descriptor) in list(self._peers.items()):
            if descriptor in lost:
                self._delete_peer(path, fifo)
        return bool(lost)

    def notify(self) -> None:
        """Notify all other processes."""
        self._find_peers()
        for path, (fifo, descriptor) in list(self._peers.items()):
            try:
                os.write(descriptor, b"\0")
            except BlockingIOError:
                pass  # it has not read the notifications before this one
            except OSError:  # its process has closed it, or has died
                self._delete_peer(path, fifo)

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
        fifo = ""
        try:
            fifo = _read_path(path)
            if stat.S_ISFIFO(os.lstat(fifo).st_mode):
                descriptor = os.open(fifo, os.O_WRONLY | _FLAGS)
                self._peers[path] = (fifo, descriptor)
                if self._lost_readers is None and hasattr(select, "epoll"):
                    self._lost_readers = select.epoll()
                if self._lost_readers is not None:
                    self._lost_readers.register(descriptor, 0)  # errors are always reported
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _MAX_UNREACHABLE_AGE_S:
                    os.unlink(path)
        except OSError as error:
            if error.errno == errno.ENXIO and fifo:  # it has no reader
                _delete(path)
                _delete_fifo(fifo)
        except ValueError:  # not a path
            pass

    def _delete_peer(self, path: str, fifo: str) -> None:
        self._forget(path)
        _delete(path)
        _delete_fifo(fifo)

    def _forget(self, path: str) -> None:
        _, descriptor = self._peers.pop(path)
        if self._lost_readers is not None:
            # Closing the descriptor is not enough if a forked child has it, too.
            self._lost_readers.unregister(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Disconnect."""
        if self._lost_readers is not None:
            self._lost_readers.close()
            self._lost_readers = None
        for path in list(self._peers):
            self._forget(path)
        self._listed_mtime_ns = 0


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


def _read_path(file: str) -> str:
    """The path in a file."""
    descriptor = os.open(file, os.O_RDONLY | _FLAGS)
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def _delete(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _delete_fifo(fifo: str) -> None:
    """Delete a FIFO, and the folder that was made for it."""
    _delete(fifo)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(fifo))


def _delete_abandoned_fifos() -> None:
    """Delete the FIFOs of this user's processes that have died: those without a reader."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(_FIFO_FOLDER_PREFIX) and entry.is_dir(follow_symlinks=False):
                _delete_if_abandoned(f"{entry.path}/fifo")


def _delete_if_abandoned(fifo: str) -> None:
    try:
        status = os.lstat(fifo)
        is_own = stat.S_ISFIFO(status.st_mode) and status.st_uid == os.getuid()
        if is_own and time.time() - status.st_mtime > _MAX_UNOPENED_AGE_S:
            os.close(os.open(fifo, os.O_WRONLY | _FLAGS))
    except OSError as error:
        if error.errno == errno.ENXIO:  # it has no reader
            _delete_fifo(fifo)
