"""Opening the database file: whose it is, which schema it has, and how each connection is set up.

A process has four connections: one that writes (``synchronous=FULL``: what it commits survives a power cut), one for
the engine's reads, one for the lists that people ask for (a slow one must not hold up the engine), and one for lease
renewals, whose loss would do no harm (``synchronous=NORMAL``: no fsync). A transactional step has one of its own. None
of them waits for locks inside SQLite:
``retry_while_busy`` does, where waiting is allowed.

The file itself is never opened other than through SQLite: closing a descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
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
    split_statements,
)
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.errors import is_busy

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)

APPLICATION_ID = 0x486F6C64
"""``Hold``: marks the file as ours, so that another program's database is never taken over."""

LOCK_TIMEOUT_S = 5.0
"""How long to wait for another process's lock, in seconds."""
_PAGE_BYTES = 8192
"""Bytes of a page of a new file. A row does not share a page that it does not fit into as a whole: pages of SQLite's
usual 4096 bytes are half empty when rows have some 2 KB, as those of agents have."""

_RETRY_DELAY_S = 0.001
"""Between two tries: a busy neighbour lets go for a moment between its commits, and longer naps miss it for longer."""

OPEN_MODE = "rwc"
"""How the file is opened (SQLite's ``mode``); tests open it read-only, since a mode bit does not stop root."""


def retry_while_busy(action: Callable[[], T], timeout_s: float = LOCK_TIMEOUT_S) -> T:
    """Do ``action`` again while another process holds the lock it needs. Blocking."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_DELAY_S)


def prepare_folder(database: Path) -> None:
    """Make sure that the folder is there; the default one is for its owner's eyes only."""
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
    """The connection that writes; a new file gets its tables, an older one is migrated. Blocking."""
    connection = _connect(database)
    try:
        retry_while_busy(lambda: _run_preflight(connection, database))
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # without effect on a file that has its tables
        _use_wal(connection, database)
        connection.execute("PRAGMA synchronous = FULL")
        retry_while_busy(lambda: _migrate(connection, database))
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(database: Path) -> sqlite3.Connection:
    """The connection for reads."""
    connection = _connect(database)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_renewer(database: Path) -> sqlite3.Connection:
    """The connection for lease renewals."""
    connection = _connect(database)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def open_step_connection(database: Path, factory: type[C]) -> C:
    """A connection for a transactional step: as Python makes them, and durable."""
    connection = _connect(database, factory)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def validate_schema_version(connection: sqlite3.Connection, database: Path) -> int:
    """The version of the schema, 0 for a new file. Raises ``StoreSchemaError`` for one that cannot be used."""
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
    """Leave whatever transaction is open, so that the connection can be used again."""
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
    """Its version. Refuse a foreign database before anything of it is changed (setting the journal mode would be)."""
    connection.execute("BEGIN")  # one moment: another process may be making the tables right now
    try:
        return _validate_identity(connection, database)
    finally:
        roll_back(connection)


def _validate_identity(connection: sqlite3.Connection, database: Path) -> int:
    """The schema version of a database that is ours or still empty; anything else is refused and left as it is."""
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

    The version is set even when it is right, and then rolled back: that shows at once whether the file can be written.
    If somebody is writing to it just then, that is shown already, and nobody need wait for them.
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
            for statement in split_statements(render_sqlite(migration.statements + migration.indexes)):
                connection.execute(statement)
        connection.execute(sql.PUT_META, ("compatible_from", str(MIGRATIONS[-1].compatible_from)))
        connection.execute(sql.PROBE_SEARCH)  # with this Python's SQLite, too
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, latest)}")
        connection.execute("COMMIT" if version < latest else "ROLLBACK")
    except BaseException:
        roll_back(connection)
        raise


def render_sqlite(statements: str) -> str:
    """Statements of ``sql.schema`` as SQLite takes them."""
    return render(statements, "sqlite", lambda table: table)
