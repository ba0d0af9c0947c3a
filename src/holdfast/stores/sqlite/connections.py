"""Opening the database file: whether it is ours, its schema, and how each connection is set up.

A process has four connections: one that writes (``synchronous=FULL``: commits survive a power cut), one for the
engine's reads, one for clients' lists (a slow list must not hold up the engine), and one for lease renewals, which may
be lost without harm (``synchronous=NORMAL``: no fsync). Each transactional step has a connection of its own. None of
them waits for locks inside SQLite: ``retry_while_busy`` does, where waiting is allowed.

The file is opened only through SQLite: closing any other descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreError, StoreReadOnly, StoreSchemaError
from holdfast.stores.sql.schema import (
    BASELINE_VERSION,
    MIGRATIONS,
    latest_version,
    missing_migrations,
    render,
)
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.errors import is_busy

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)

APPLICATION_ID = 0x486F6C64
"""``Hold``: marks the file as ours, so that Holdfast never writes to another program's database."""

LOCK_TIMEOUT_S = 5.0
"""How long to wait for another process's lock, in seconds."""
_PAGE_BYTES = 8192
"""The page size of a new file. SQLite puts a row only on a page that has room for all of it, so its usual pages of 4096
bytes stay half empty with rows of about 2 KB, the size of agents' rows."""

_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S, _RETRY_DELAY_GROWTH = 0.00005, 0.001, 1.2
"""A commit takes a fraction of a millisecond, and a busy process releases the lock for a moment between its commits:
longer delays would miss it. They reach the maximum after 6 ms."""

OPEN_MODE = "rwc"
"""How the file is opened (SQLite's ``mode``); tests open it read-only, since a mode bit does not stop root."""


def retry_while_busy(action: Callable[[], T], timeout_s: float = LOCK_TIMEOUT_S) -> T:
    """Do ``action`` again while another process holds the lock it needs. Blocking."""
    deadline = time.monotonic() + timeout_s
    delay_s = _MIN_RETRY_DELAY_S
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(delay_s)
        delay_s = min(delay_s * _RETRY_DELAY_GROWTH, _MAX_RETRY_DELAY_S)


def prepare_folder(database: Path) -> None:
    """Create the folder if it is missing. Only its owner may read the default one."""
    folder = database.parent
    try:
        folder.mkdir(mode=0o700 if folder.name == ".holdfast" else 0o777, parents=True, exist_ok=True)
    except PermissionError as error:
        raise StoreReadOnly(
            f"the folder {folder} for {database.name} cannot be created ({error.strerror}). Create it for this user, "
            f"or point HOLDFAST_URL at another place."
        ) from error
    except OSError as error:
        raise StoreError(f"the folder {folder} for {database.name} cannot be created: {error}") from error


def open_writer(database: Path) -> sqlite3.Connection:
    """Open the connection that writes. A new file gets its tables, an older one is migrated. Blocking."""
    connection = _connect(database)
    try:
        retry_while_busy(lambda: _run_preflight(connection, database))
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # no effect on a file with tables
        _use_wal(connection, database)
        connection.execute("PRAGMA synchronous = FULL")
        retry_while_busy(lambda: _migrate(connection, database))
        # A statement that changes more than eight pages, such as a start, would write their old content to a new
        # temporary file. (A migration may sort large tables, and does use files.)
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(database: Path) -> sqlite3.Connection:
    """Open a connection for reads."""
    connection = _connect(database)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_renewer(database: Path) -> sqlite3.Connection:
    """Open the connection for lease renewals."""
    connection = _connect(database)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def open_step_connection(database: Path, factory: type[C]) -> C:
    """Open a durable connection for a transactional step."""
    connection = _connect(database, factory)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def validate_schema_version(connection: sqlite3.Connection, database: Path) -> int:
    """The version of the schema; 0: a new file. Raises ``StoreSchemaError`` for one that cannot be used."""
    version, known = _read_user_version(connection), latest_version(MIGRATIONS)
    if version <= known:
        if 0 < version < BASELINE_VERSION:
            raise StoreSchemaError(
                f"{database} was made by a Holdfast before version 0.2, whose files this one cannot read. Use another "
                f"file; the version that made it can still finish its runs."
            )
        return version
    compatible_from = int(connection.execute(sql.GET_META, ("compatible_from",)).fetchone()[0])
    if compatible_from > known:
        raise SchemaTooNew(
            f"{database} has schema version {version}, which can be used by a Holdfast that knows version "
            f"{compatible_from} or higher, and this one knows versions up to {known}: a newer Holdfast has migrated "
            f"it. Upgrade this one (pip install -U holdfast-agents) and start the process again, or use another file."
        )
    return version


def roll_back(connection: sqlite3.Connection) -> None:
    """Leave an open transaction, so that the connection can be used again."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _connect(database: Path, factory: type[C] = sqlite3.Connection) -> C:
    return sqlite3.connect(
        f"file:{quote(os.fspath(database))}?mode={OPEN_MODE}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=factory,
    )


def _run_preflight(connection: sqlite3.Connection, database: Path) -> int:
    """The schema version. Refuses a foreign database before anything changes it, such as setting the journal mode."""
    connection.execute("BEGIN")  # a snapshot: another process may be creating the tables
    try:
        return _validate_identity(connection, database)
    finally:
        roll_back(connection)


def _validate_identity(connection: sqlite3.Connection, database: Path) -> int:
    """The schema version of a database that is ours or still empty. Any other database is refused."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = (
        validate_schema_version(connection, database)
        if application == APPLICATION_ID
        else _read_user_version(connection)
    )
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 4")]
    if application != APPLICATION_ID and (application or version or tables):
        held = f"with the tables {', '.join(tables)}" if tables else f"with application_id {application}"
        raise StoreCorrupt(
            f"{database} is the SQLite database of another program, {held}. Holdfast keeps its runs in a file of their "
            f"own: point HOLDFAST_URL at another file."
        )
    return version


def _read_user_version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _use_wal(connection: sqlite3.Connection, database: Path) -> None:
    mode = retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    if mode != "wal":
        raise StoreError(
            f"{database} cannot use a write-ahead log (journal mode stays {mode!r}). It needs a local file system with "
            f"shared memory; a network share has none. Point HOLDFAST_URL at a local disk."
        )


def _migrate(connection: sqlite3.Connection, database: Path) -> None:
    """Bring the schema up to date, in one ``IMMEDIATE`` transaction: the second of two processes finds nothing to do.

    The version is set even if it is right, and then rolled back, to find out whether the file can be written. If
    another process is writing to it, that is known already, and there is no need to wait.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if not is_busy(error) or _run_preflight(connection, database) < latest_version(MIGRATIONS):
            raise
        connection.execute(sql.PROBE_SEARCH)
        return
    try:
        version, latest = _validate_identity(connection, database), latest_version(MIGRATIONS)
        for migration in missing_migrations(version, MIGRATIONS):
            for statement in split_statements(migration.statements + migration.backfill + migration.indexes):
                connection.execute(statement)
        connection.execute(sql.PUT_META, ("compatible_from", str(MIGRATIONS[-1].compatible_from)))
        connection.execute(sql.PROBE_SEARCH)  # this Python's SQLite must support it
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, latest)}")
        connection.execute("COMMIT" if version < latest else "ROLLBACK")
    except BaseException:
        roll_back(connection)
        raise


def split_statements(statements: str) -> Iterator[str]:
    """Statements of ``sql.tables``, one by one in SQLite's SQL. The body of a trigger contains semicolons."""
    statement = ""
    for part in render_sqlite(statements).split(";"):
        statement = f"{statement}{part};".lstrip()
        if sqlite3.complete_statement(statement):
            if statement != ";":
                yield statement
            statement = ""


def render_sqlite(statements: str) -> str:
    """Statements of ``sql.tables`` in SQLite's SQL."""
    return render(statements, "sqlite", lambda table: table)
