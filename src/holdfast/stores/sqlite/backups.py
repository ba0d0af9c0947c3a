"""Copies of a SQLite file: making one while processes write to the file, and putting one in its place.

A copy is one snapshot: the transaction that reads it stays open, so what is written meanwhile is not in it, and writers
do not wait. It is made under another name, flushed to disk, and renamed. So a file under the final name is complete.

A file that is replaced stays under another name: it knows what happened after the backup, and somebody may need to look
that up. A file is not replaced while a process uses it. The process would go on in the old file, and SQLite would apply
the write-ahead log of the old file to the new one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.errors import is_busy, to_store_error
from holdfast.stores.sqlite.inspection import is_holdfast_file, read_facts

T = TypeVar("T")

BACKUP_TIME = "backup_at"
"""The name in ``meta`` of the time at which a backup was made: seconds since 1970, as text."""
_PAGES_PER_STEP, _PAUSE_S = 1000, 0.001
"""After so many pages, other processes get the disk for a moment."""


def back_up(source: Path, target: Path, *, overwrite: bool = False) -> None:
    """Copy a database, as it is now, while other processes write to it.

    Raises ``UsageError`` if ``target`` exists, unless ``overwrite``, and ``StoreError``.
    """
    if target.exists() and (not overwrite or target.samefile(source)):
        what = "is the database itself" if target.samefile(source) else "exists"
        raise UsageError(f"{target} {what}: nothing was copied. Name another file, or replace one with --overwrite.")
    with _unfinished_copy(source, target, source.stat().st_mode) as unfinished:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute(sql.PUT_META, (BACKUP_TIME, str(time.time())))
        _move_into_place(unfinished, target, overwrite=overwrite)


def restore(source: Path, target: Path, prepare: Callable[[Path], T]) -> tuple[T, Path | None]:
    """Put a copy of ``source`` in the place of ``target``, after ``prepare`` was called with the copy.

    Returns what that returned, and the new name of the file that was there before, if there was one. Raises
    ``UsageError`` or ``StoreError``, and then nothing has changed.
    """
    if not source.is_file():
        raise UsageError(f"there is no file {source}")
    if not is_holdfast_file(facts := read_facts(source)) or not facts.schema_version:
        raise UsageError(f"{source} is not a database of Holdfast")
    is_replaced = target.exists()
    if is_replaced and target.samefile(source):
        raise UsageError(f"{source} is the database itself. `holdfast mark-restored` marks it as restored.")
    with _unfinished_copy(source, target, (target if is_replaced else source).stat().st_mode) as unfinished:
        result = prepare(unfinished)
        _close_log(unfinished)
        previous = _set_aside(target) if is_replaced else None
        _move_into_place(unfinished, target, overwrite=True)
        return result, previous


def read_backup_time(database: Path) -> float | None:
    """When ``back_up`` made this file, or the one that it was restored from."""
    with closing(_connect_read_only(database)) as connection:
        row = connection.execute(sql.GET_META, (BACKUP_TIME,)).fetchone()
        return None if row is None else float(row[0])


@contextmanager
def _unfinished_copy(source: Path, target: Path, mode: int) -> Generator[Path]:
    """A copy of ``source`` next to ``target``, checked. It is deleted unless it is renamed."""
    unfinished = target.with_name(f"{target.name}.unfinished-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o777))
        with closing(_connect_read_only(source)) as connection, closing(sqlite3.connect(unfinished)) as copy:
            connection.execute("BEGIN")
            connection.execute(sql.GET_META, ("compatible_from",)).fetchone()  # the snapshot begins here
            connection.backup(copy, pages=_PAGES_PER_STEP, sleep=_PAUSE_S)
            [(problem,)] = copy.execute("PRAGMA quick_check(1)").fetchall()
        if problem != "ok":
            raise StoreError(f"{source} is damaged, and so is a copy of it: {problem}")
        yield unfinished
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, source) from error
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                os.unlink(f"{unfinished}{suffix}")


def _connect_read_only(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fspath(database))}?mode=ro", uri=True, timeout=5, isolation_level=None)


def _close_log(database: Path) -> None:
    """Move the content of the write-ahead log to the database, and delete the log.

    Raises ``StoreUnavailable`` if another process uses the database.
    """
    try:
        with closing(sqlite3.connect(database, isolation_level=None, timeout=0)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        raise StoreUnavailable(
            f"{database} is in use, and was not replaced: stop all workers, servers, and other programs that use it."
        ) from error


def _set_aside(database: Path) -> Path:
    """Give a database a second name, under which it stays when another file takes its place."""
    _close_log(database)
    aside = database.with_name(f"{database.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        os.link(database, aside)
    except OSError:  # a file system without links, where no file has the database's name for a moment
        os.rename(database, aside)
    return aside


def _move_into_place(unfinished: Path, target: Path, *, overwrite: bool) -> None:
    _flush(unfinished)
    if overwrite:
        os.replace(unfinished, target)
    else:
        os.link(unfinished, target)  # raises if another process has created it meanwhile
    if os.name == "posix":
        _flush(target.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
