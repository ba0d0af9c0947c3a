"""SQLite's errors in Holdfast's words: what happened to which file, and what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from holdfast.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaError,
    StoreUnavailable,
)

LITTLE_SPACE = 1 << 20


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock that is needed; nothing was changed, the same call may work now."""
    name = _code(error)
    return name.startswith("SQLITE_BUSY") or name in ("SQLITE_LOCKED", "SQLITE_PROTOCOL")


def is_not_text(error: sqlite3.Error) -> bool:
    """Whether a row holds text that is none: the row is damaged, and not the file."""
    return "decode to UTF-8" in str(error)


def store_error(error: sqlite3.Error, database: Path) -> StoreError:
    """The store error that tells what ``error`` means for ``database``."""
    code = _code(error)
    family = "_".join(code.split("_")[:2])
    told = f"{error} ({code})" if code else str(error)
    if is_busy(error):
        return StoreLocked(
            f"{database} is locked by another process ({told}). Holdfast's own processes hold it for milliseconds: "
            f"look for another program that has the file open in a transaction, such as a sqlite3 shell or a backup."
        )
    if family == "SQLITE_FULL" or (family in ("SQLITE_IOERR", "SQLITE_CANTOPEN") and _no_space(database)):
        return StoreFull(
            f"there is no room to write {database} ({told}). Free space on its device (or lift the file size limit); "
            f"nothing that was recorded is lost, and runs go on by themselves."
        )
    if family in ("SQLITE_READONLY", "SQLITE_PERM") or (family == "SQLITE_CANTOPEN" and _not_writable(database)):
        return StoreReadOnly(
            f"{database} is not writable for this process ({told}). Give it write access to the file and to its folder "
            f"(SQLite keeps its -wal and -shm files there), or point HOLDFAST_URL at another place."
        )
    if family == "SQLITE_NOTADB":
        return StoreCorrupt(
            f"{database} is not a SQLite database ({told}). Point HOLDFAST_URL at another file, or move this one away."
        )
    if family == "SQLITE_CORRUPT" or is_not_text(error):
        return StoreCorrupt(
            f"{database} is damaged ({told}). Stop all workers, copy the file with its -wal file, and try "
            f"`sqlite3 {database} .recover`, or go back to a backup."
        )
    if "no such module: fts5" in str(error):
        return StoreSchemaError(
            f"{database} cannot be used with the SQLite of this Python ({sqlite3.sqlite_version}): that was built "
            f"without full-text search (FTS5), by which memories are found. Use a Python whose SQLite has it, as those "
            f"from python.org and of current Linux distributions do."
        )
    if str(error).startswith("no such ") or "has no column" in str(error):
        return StoreSchemaError(
            f"{database} does not have the tables that its version number stands for ({told}): it was changed by hand, "
            f"or written by an unreleased Holdfast. Move it away, or go back to a backup."
        )
    if family == "SQLITE_CANTOPEN":
        return StoreUnavailable(
            f"{database} cannot be opened ({told}). Check that it is a file, that its folder exists, and that this "
            f"process is not out of file descriptors."
        )
    return StoreUnavailable(f"{database} cannot be used at the moment: {told}")


def _code(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _no_space(database: Path) -> bool:
    """Whether the device, or what this process may write to one file, is used up (SQLite hides the errno)."""
    try:
        space = os.statvfs(database.parent)
        if space.f_bavail * space.f_frsize < LITTLE_SPACE:
            return True
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        files = (database, Path(f"{database}-wal"))
        return limit != resource.RLIM_INFINITY and any(file.stat().st_size + LITTLE_SPACE > limit for file in files)
    except (OSError, AttributeError, ImportError):
        return False


def _not_writable(database: Path) -> bool:
    place = database if os.path.exists(database) else database.parent  # of a folder that may not be entered, too
    return os.path.exists(place) and not os.access(place, os.W_OK)
