"""Access to the files in one folder, and to no others.

A model names the files that it wants, and text that it reads can make it name any file. So a path from a model is never
joined with the folder's path and passed to the system: between a check of the joined path and its use, a process that
may write in the folder can replace a directory by a link. ``SandboxedFolder`` walks instead. It opens every name
relative to the directory that it opened before (``dir_fd``), with ``O_NOFOLLOW``. So it opens what it checked, whatever
is renamed in the meantime.

- **Paths** are relative, with ``/``; ``..``, a leading ``/``, ``~``, a drive letter, and ``\\`` are refused, and
  nothing is decoded or expanded.
- **Symbolic links** below the root are refused everywhere, also if they lead to another file inside. The root's own
  path may contain some: they are resolved once, when the ``SandboxedFolder`` is made.
- **Only plain files** are opened. A pipe, a socket, or a device is refused without waiting for it.
- **Hard links** are plain files: whoever put one into the folder had access to the file. It can be read. A write never
  goes through it: it replaces the file as a whole, and the other names keep the old content.
- **Writing** is atomic and durable: a temporary file next to the old one, ``fsync``, and a rename. The file keeps its
  permissions, and the writer becomes its owner. A file without any write permission is not replaced.

Not covered: a directory that is moved out of the root, or mounted into it, while it is in use. A process that can do
that can write there anyway.

All errors are ``PathRefused``. Their messages are for the model, and never contain the path of the root.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Literal

from holdfast.errors import PathRefused, UsageError

try:
    import fcntl
except ImportError:  # Windows, where `SandboxedFolder` is refused
    fcntl = None

log = logging.getLogger("holdfast.agents")

MAX_PATH_CHARS = 2000
MAX_DEPTH = 32
"""Maximum levels of a walk, which has one directory open for each."""
MAX_NAMES = 10_000
"""Maximum number of names that are read from one directory."""
LOCK_TIMEOUT_S = 10.0
"""How long to wait for another process that is replacing a file in the same directory."""
_LOCK_POLL_S = 0.005
TEMPORARY_NAME = ".holdfast-writing"
"""The name of a file while it is written. There is one per directory, so a crash leaves at most one."""

_INVALID_CHARS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and surrogates, which are not text."""
_DRIVE_PREFIX = re.compile(r"[A-Za-z]:")

EntryKind = Literal["file", "folder", "link", "other"]

_OPEN_DIRECTORY_FLAGS = 0 if os.name == "nt" else os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE_FLAGS = 0 if os.name == "nt" else os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FILE_FLAGS = 0 if os.name == "nt" else os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_fallback_lock = threading.Lock()
"""For filesystems that cannot lock a directory: excludes at least other threads of this process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder."""

    path: str
    """Relative to the root, with ``/``."""
    kind: EntryKind
    size: int
    """The size of a file; 0 for everything else."""
    is_truncated: bool = False
    """A folder, repeated after its entries because it has more names than are read."""


class SandboxedFolder:
    """A folder whose files may be opened by untrusted paths.

    Each call opens the folder again: it need not exist yet, and may disappear and come back.

    Args:
        path: the folder. A relative path is relative to the current directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if fcntl is None or not {os.open, os.stat, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd:
            raise UsageError(
                "this system cannot open files relative to an open directory (dir_fd), without which nothing keeps a "
                "model inside a folder: the file tools and skills from folders need Linux, macOS or another Unix"
            )
        self._path = os.path.realpath(path)

    def __repr__(self) -> str:
        return f"<root {self._path!r}>"

    # Reading

    def open(self, path: str) -> BinaryIO:
        """A plain file, opened for reading bytes. The caller closes it."""
        *folders, name = self._split_file_path(path)
        with self._open_folder(folders, path) as folder:
            return os.fdopen(_open_file(folder, name, path), "rb")

    def get_kind(self, path: str) -> EntryKind:
        """The kind of the entry at a path."""
        names = _split_path(path)
        if not names:
            return "folder"
        with self._open_folder(names[:-1], path) as folder, _translate_os_errors(path):
            return _kind_from_mode(os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode)

    def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a plain file. Refuses a file of more than ``max_bytes`` bytes."""
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            # The size may have changed since, and is always 0 in /proc.
            content = file.read(max_bytes + 1) if size <= max_bytes else b""
        if size > max_bytes or len(content) > max_bytes:
            raise PathRefused(
                f"{format_path(path)} is too large: it has {max(size, len(content)):,} bytes, and {max_bytes:,} are "
                f"allowed."
            )
        return content

    def list(self, path: str = ".") -> list[Entry]:
        """The entries of a folder, sorted by name; of a larger folder, the first 10,000 names from the system."""
        return list(self.walk(path, max_depth=1))

    def walk(self, path: str = ".", *, max_depth: int = MAX_DEPTH, exclude: Collection[str] = ()) -> Iterator[Entry]:
        """All entries of a folder and its subfolders, down to ``max_depth``. A folder comes before its entries.

        Folders with a name in ``exclude`` are listed, but not entered. The walk is lazy: it reads only while the caller
        iterates. Links are listed, but not followed. Folders that cannot be entered, and names that are not text, are
        skipped.
        """
        names = _split_path(path)
        with self._open_folder(names, path) as folder:
            yield from _walk(folder, "/".join(names), min(max_depth, MAX_DEPTH), exclude)

    # Writing

    def write(self, path: str, content: bytes) -> None:
        """Replace a file's content atomically. Creates missing folders."""
        self._replace(path, content, None)

    def compare_and_swap(self, path: str, expected: bytes, content: bytes) -> bool:
        """Replace a file's content if it is ``expected`` now. Returns whether it was."""
        return self._replace(path, content, expected)

    def _replace(self, path: str, content: bytes, expected: bytes | None) -> bool:
        *folders, name = self._split_file_path(path)
        with self._open_folder(folders, path, should_create=expected is None) as folder, _translate_os_errors(path):
            mode = _get_existing_mode(folder, name, path)
            with _lock_directory(folder, path):
                if expected is not None and not _has_content(folder, name, path, expected):
                    return False
                _write_atomically(folder, name, content, mode)
            _fsync_directory(folder)
            return True

    # Opening folders

    def _split_file_path(self, path: str) -> list[str]:
        names = _split_path(path)
        if not names or path.endswith("/"):
            raise PathRefused(f"{format_path(path)} names a folder, not a file.")
        return names

    @contextmanager
    def _open_folder(self, names: list[str], path: str, *, should_create: bool = False) -> Generator[int]:
        """The open directory at the end of ``names``."""
        folder = self._open_root()
        try:
            for name in names:
                inner = _open_subfolder(folder, name, path, should_create=should_create)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _open_root(self) -> int:
        try:
            return os.open(self._path, _OPEN_DIRECTORY_FLAGS)
        except OSError as error:
            log.warning("the folder %s, which tools work in, cannot be opened: %s", self._path, error)
            raise PathRefused(
                "The folder that this tool works in is not there, or cannot be opened: no path will do until a person "
                "has put that right."
            ) from None


def format_path(path: str) -> str:
    """A path for messages: quoted and truncated."""
    return repr(path if len(path) <= 200 else f"{path[:199]}…")


def _split_path(path: str) -> list[str]:
    """The names in a path. Refuses a path that could lead out of the folder."""
    if len(path) > MAX_PATH_CHARS:
        raise PathRefused(f"The path {format_path(path)} is too long.")
    if invalid := _INVALID_CHARS.search(path):
        raise PathRefused(f"The path {format_path(path)} has a character that no path may have: {invalid[0]!r}.")
    if "\\" in path:
        raise PathRefused(f"The path {format_path(path)} has a backslash: write / between names.")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or _DRIVE_PREFIX.match(path) or names[:1] == ["~"]:
        raise PathRefused(
            f"The path {format_path(path)} is absolute: give one from the folder that you work in, as 'a/b.txt'."
        )
    if ".." in names:
        raise PathRefused(
            f"The path {format_path(path)} has '..' in it: give the path from the folder that you work in."
        )
    if TEMPORARY_NAME in names:
        raise PathRefused(f"The name {TEMPORARY_NAME!r} is taken: files are called so while they are written.")
    return names


def _open_subfolder(dir_fd: int, name: str, path: str, *, should_create: bool) -> int:
    with _translate_os_errors(path, dir_fd, name):
        if should_create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=dir_fd)
                _fsync_directory(dir_fd)
        return os.open(name, _OPEN_DIRECTORY_FLAGS, dir_fd=dir_fd)


def _open_file(dir_fd: int, name: str, path: str) -> int:
    with _translate_os_errors(path):
        # Checked before it is opened, because opening some devices has effects; and after, because it may have been
        # replaced in between.
        _check_regular_file(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), path)
        opened = os.open(name, _OPEN_FILE_FLAGS, dir_fd=dir_fd)
        try:
            _check_regular_file(os.fstat(opened), path)
        except BaseException:
            os.close(opened)
            raise
        return opened


def _check_regular_file(file_info: os.stat_result, path: str) -> None:
    if stat.S_ISREG(file_info.st_mode):
        return
    if stat.S_ISDIR(file_info.st_mode):
        raise PathRefused(f"{format_path(path)} is a folder, not a file.")
    if stat.S_ISLNK(file_info.st_mode):
        raise PathRefused(f"{format_path(path)} is a symbolic link, which is never followed.")
    raise PathRefused(f"{format_path(path)} is no plain file (a pipe, a socket or a device).")


def _get_existing_mode(dir_fd: int, name: str, path: str) -> int | None:
    """The permissions of the existing file; ``None`` if there is none."""
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular_file(found, path)
    if not found.st_mode & 0o222:
        raise PathRefused(f"{format_path(path)} is read-only, and was left as it is.")
    return stat.S_IMODE(found.st_mode) & 0o777


def _write_atomically(dir_fd: int, name: str, content: bytes, mode: int | None) -> None:
    """Write a temporary file, and rename it to ``name``. The caller has locked the directory."""
    with suppress(FileNotFoundError):
        os.unlink(TEMPORARY_NAME, dir_fd=dir_fd)  # from a process that was killed
    # Always a new file (O_EXCL): it never writes to one that another process puts there.
    written = os.open(TEMPORARY_NAME, _CREATE_FILE_FLAGS, 0o666 if mode is None else 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(written, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(TEMPORARY_NAME, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(TEMPORARY_NAME, dir_fd=dir_fd)
        raise


def _fsync_directory(dir_fd: int) -> None:
    """Make a directory's names durable, if the filesystem supports it."""
    try:
        os.fsync(dir_fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def _has_content(dir_fd: int, name: str, path: str, content: bytes) -> bool:
    try:
        with os.fdopen(_open_file(dir_fd, name, path), "rb") as file:
            return file.read(len(content) + 1) == content
    except PathRefused:
        return False


def _walk(dir_fd: int, prefix: str, max_depth: int, exclude: Collection[str]) -> Iterator[Entry]:
    names, is_cut = _list_names(dir_fd)
    for name in names:
        try:
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError:
            continue  # it was removed since
        path = f"{prefix}/{name}" if prefix else name
        kind = _kind_from_mode(found.st_mode)
        if kind != "folder":
            yield Entry(path, kind, found.st_size if kind == "file" else 0)
            continue
        yield Entry(path, kind, 0)
        if max_depth > 1 and name not in exclude:
            try:
                inner = os.open(name, _OPEN_DIRECTORY_FLAGS, dir_fd=dir_fd)
            except OSError:
                continue  # it was removed, is a link now, or may not be entered
            try:
                yield from _walk(inner, path, max_depth - 1, exclude)
            finally:
                os.close(inner)
    if is_cut:
        yield Entry(prefix or ".", "folder", 0, is_truncated=True)


def _list_names(dir_fd: int) -> tuple[list[str], bool]:
    """The sorted names in a directory, and whether there are more than were read."""
    with os.scandir(dir_fd) as entries:
        names = [entry.name for entry in islice(entries, MAX_NAMES + 1)]
    valid = (name for name in names[:MAX_NAMES] if name != TEMPORARY_NAME and not _INVALID_CHARS.search(name))
    return sorted(valid), len(names) > MAX_NAMES


def _kind_from_mode(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


@contextmanager
def _lock_directory(dir_fd: int, path: str) -> Generator[None]:
    """Keep other holders of this lock from replacing a file in the directory.

    The lock is on the directory itself, so it leaves no file behind. It is released when the directory is closed or the
    process dies.
    """
    assert fcntl is not None
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(dir_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PathRefused(
                    f"{format_path(path)} was not written: somebody else keeps its folder locked."
                ) from None
            time.sleep(_LOCK_POLL_S)
        except OSError:
            with _fallback_lock:
                yield
            return
        else:
            break
    try:
        yield
    finally:
        fcntl.flock(dir_fd, fcntl.LOCK_UN)


@contextmanager
def _translate_os_errors(path: str, dir_fd: int | None = None, name: str = "") -> Generator[None]:
    """Turn errors of the system into ``PathRefused``, with messages that contain no path but the given one.

    With a ``dir_fd``, the error is about entering ``name`` in that directory.
    """
    try:
        yield
    except OSError as error:
        raise PathRefused(_describe_os_error(error, path, dir_fd, name)) from None


def _describe_os_error(error: OSError, path: str, dir_fd: int | None, name: str) -> str:
    part = f" ({format_path(name)})" if name and name != path else ""
    match error.errno:
        case errno.ENOENT:
            return f"There is no {format_path(path)}{part and f': it has no folder {format_path(name)}'}."
        case errno.ELOOP | errno.ENOTDIR | errno.EMLINK:
            if dir_fd is None or _is_link(dir_fd, name):
                return f"{format_path(path)} leads through a symbolic link{part}, which is never followed."
            return f"{format_path(path)}{part and f': a part of it{part}'} is no folder."
        case errno.EACCES | errno.EPERM:
            return f"{format_path(path)} may not be opened: permission denied."
        case errno.ENAMETOOLONG:
            return f"{format_path(path)} has a name that is too long."
        case errno.ENOSPC | errno.EDQUOT:
            return f"{format_path(path)} was not written: the disk is full."
        case errno.EROFS:
            return f"{format_path(path)} was not written: the disk is read-only."
        case errno.ENXIO | errno.ENODEV:
            return f"{format_path(path)} is no plain file (a pipe, a socket or a device)."
        case _:
            return f"{format_path(path)} cannot be opened: {os.strerror(error.errno or 0)}."


def _is_link(dir_fd: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False
