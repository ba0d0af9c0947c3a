"""SQLite's errors as store errors: what happened to which file, and what to do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from holdfast.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaError,
    StoreUnavailable,
)

MIN_FREE_BYTES = 1 << 20
INTEGRITY_CHECK_TIMEOUT_S = 0.5
"""The maximum time to check a file that SQLite calls damaged: the caller waits for it."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock. Nothing was changed, and the same call may work later."""
    name = _get_error_name(error)
    return name.startswith("SQLITE_BUSY") or name in ("SQLITE_LOCKED", "SQLITE_PROTOCOL")


def is_interrupted(error: sqlite3.Error) -> bool:
    """Whether the statement took longer than it was allowed to."""
    return _get_error_name(error) == "SQLITE_INTERRUPT"


def is_invalid_text(error: sqlite3.Error) -> bool:
    """Whether a row holds bytes that are not UTF-8: the row is damaged, not the file."""
    return "decode to UTF-8" in str(error)


def to_store_error(error: sqlite3.Error, database: Path) -> StoreError:
    """The store error that explains ``error``."""
    code = _get_error_name(error)
    family = "_".join(code.split("_")[:2])
    info = f"{error} ({code})" if code else str(error)
    if is_busy(error):
        return StoreLocked(
            f"{database} is locked by another connection ({info}). Look for steps with transaction=True that take long "
            f"or come in great numbers, and for another program with an open transaction, such as a sqlite3 shell or a "
            f"backup. Holdfast itself holds the lock for milliseconds."
        )
    if family == "SQLITE_FULL" or (family in ("SQLITE_IOERR", "SQLITE_CANTOPEN") and _is_out_of_space(database)):
        return StoreFull(
            f"there is no room to write {database} ({info}). Free space on its device (or lift the file size limit); "
            f"nothing that was recorded is lost, and runs go on by themselves."
        )
    if family in ("SQLITE_READONLY", "SQLITE_PERM") or (family == "SQLITE_CANTOPEN" and _is_read_only(database)):
        return StoreReadOnly(
            f"{database} is not writable for this process ({info}). Give it write access to the file and to its folder "
            f"(SQLite keeps its -wal and -shm files there), or point HOLDFAST_URL at another place."
        )
    if family == "SQLITE_NOTADB":
        return StoreCorrupt(
            f"{database} is not a SQLite database ({info}). Point HOLDFAST_URL at another file, or move this one away."
        )
    if family == "SQLITE_IOERR":
        return _device_error(database, info)
    if family == "SQLITE_CORRUPT" or is_invalid_text(error):
        if code == "SQLITE_CORRUPT" and (finding := _explain_false_corruption(database)):
            return _device_error(database, f"{info}; {finding}")
        return StoreCorrupt(
            f"{database} is damaged ({info}); `sqlite3 {database} 'PRAGMA integrity_check'` shows where. Stop all "
            f"workers, copy the file with its -wal file, and try `sqlite3 {database} .recover`, or go back to a backup."
        )
    if "no such module: fts5" in str(error):
        return StoreSchemaError(
            f"{database} cannot be used with the SQLite of this Python ({sqlite3.sqlite_version}): that was built "
            f"without full-text search (FTS5), by which memories are found. Use a Python whose SQLite has it, as those "
            f"from python.org and of current Linux distributions do."
        )
    if str(error).startswith("no such ") or "has no column" in str(error):
        return StoreSchemaError(
            f"{database} does not have the tables that its version number stands for ({info}): it was changed by hand, "
            f"or written by an unreleased Holdfast. Move it away, or go back to a backup."
        )
    if family == "SQLITE_CANTOPEN":
        return StoreUnavailable(
            f"{database} cannot be opened ({info}). Check that it is a file, that its folder exists, and that this "
            f"process is not out of file descriptors."
        )
    return StoreUnavailable(f"{database} cannot be used at the moment: {info}")


def _device_error(database: Path, detail: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the device of {database} reports an error ({detail}). Look for it in the system's log. Runs go on by "
        f"themselves when the device works again; what was recorded is still in the file, so do not try to repair it "
        f"unless `PRAGMA integrity_check` finds damage."
    )


def _explain_false_corruption(database: Path) -> str:
    """The evidence that a file is sound although SQLite calls it damaged; ``""``: there is none.

    SQLite reports the same error for a page that it could not read while it was writing. The check uses a new
    connection, which has read nothing yet. It must be one of SQLite's: closing any other descriptor of the file would
    drop this process's locks.
    """
    deadline = time.monotonic() + INTEGRITY_CHECK_TIMEOUT_S
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(os.fspath(database))}?mode=ro", uri=True)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
            is_sound = connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
            return "a check of the file finds no damage, so a read must have failed" if is_sound else ""
    except sqlite3.Error as error:
        name = _get_error_name(error)
        return f"the file cannot be read: {name}" if name.startswith("SQLITE_IOERR") else ""


def _get_error_name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _is_out_of_space(database: Path) -> bool:
    """Whether the device is full, or the file has reached this process's size limit (SQLite hides the errno)."""
    try:
        space = os.statvfs(database.parent)
        if space.f_bavail * space.f_frsize < MIN_FREE_BYTES:
            return True
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        files = (database, Path(f"{database}-wal"))
        return limit != resource.RLIM_INFINITY and any(file.stat().st_size + MIN_FREE_BYTES > limit for file in files)
    except (OSError, AttributeError, ImportError):
        return False


def _is_read_only(database: Path) -> bool:
    path = database if os.path.exists(database) else database.parent  # also if the folder may not be entered
    return os.path.exists(path) and not os.access(path, os.W_OK)
