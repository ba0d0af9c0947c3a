"""Facts about a PostgreSQL database, for the people who operate it. Nothing here changes it.

Commits are timed with a message in the server's write-ahead log that no consumer reads: it is as durable as any other
commit, and leaves no trace in a table.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple, cast

import psycopg

from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.postgres.connections import Connection, connect
from holdfast.stores.postgres.errors import to_store_error
from holdfast.stores.urls import split_namespace

_COMMIT_COUNT = 12
_SERVER_QUERY = """
SELECT current_setting('server_version'), current_user::text, current_database()::text,
    current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'), current_setting('autovacuum') = 'on',
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::int, has_database_privilege(current_database(), 'CREATE')
"""
_NAMESPACES_QUERY = """
SELECT n.nspname::text FROM pg_catalog.pg_namespace n
WHERE (n.nspname = 'holdfast' OR n.nspname LIKE 'holdfast\\_%%') AND EXISTS
    (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'meta')
ORDER BY n.nspname
"""
_MISSING_PRIVILEGES_QUERY = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND NOT (
    has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY c.relname
"""
_TABLES_QUERY = """
SELECT c.relname::text, pg_total_relation_size(c.oid), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY 2 DESC, 1
"""


class ServerFacts(NamedTuple):
    """The server, its settings, and this user."""

    version: str
    user: str
    database: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    connection_count: int
    max_connections: int
    can_create: bool
    """Whether this user may create schemas."""


class TableFacts(NamedTuple):
    """A table with its indexes and large values."""

    name: str
    size: int
    live_row_count: int
    """The server's estimate."""
    dead_row_count: int
    """Old versions of changed and deleted rows."""


@contextmanager
def open_connection(url: str) -> Generator[Connection]:
    """A connection that creates and migrates nothing. Its errors are store errors."""
    libpq_url, _ = split_namespace(url)
    with connect(libpq_url, application_name="holdfast cli") as connection:
        try:
            yield connection
        except psycopg.Error as error:
            raise to_store_error(error, connection.display_url) from error


def read_server_facts(connection: Connection) -> ServerFacts:
    """Read the facts about the server."""
    return ServerFacts(*_fetch_rows(connection, _SERVER_QUERY)[0])


def measure_clock_offset(connection: Connection) -> float:
    """How far the server's clock is ahead of this machine's, in seconds."""
    before = time.time()
    server_time = _fetch_rows(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    return server_time - (before + time.time()) / 2


def list_namespaces(connection: Connection) -> list[str]:
    """The namespaces of the database, the default one first."""
    schemas = [row[0] for row in _fetch_rows(connection, _NAMESPACES_QUERY)]
    return [schema.removeprefix("holdfast_") if schema != "holdfast" else DEFAULT_NAMESPACE for schema in schemas]


def fetch_namespaces(url: str) -> list[str]:
    """The namespaces of the database at ``url``. Blocking."""
    with open_connection(url) as connection:
        return list_namespaces(connection)


def find_inaccessible_tables(connection: Connection, schema: str) -> list[str]:
    """Tables that this user may not read and write."""
    return [row[0] for row in _fetch_rows(connection, _MISSING_PRIVILEGES_QUERY, schema)]


def read_table_facts(connection: Connection, schema: str) -> list[TableFacts]:
    """The tables, largest first."""
    return [TableFacts(*row) for row in _fetch_rows(connection, _TABLES_QUERY, schema)]


def can_receive_notifications(connection: Connection) -> bool:
    """Whether a notification comes back. The server sends it at the end of its transaction."""
    channel = f"holdfast_doctor_{secrets.token_hex(4)}"
    received: list[psycopg.Notify] = []
    connection.add_notify_handler(received.append)
    connection.execute(cast("LiteralString", f"LISTEN {channel}"))
    connection.execute("SELECT pg_notify(%s, '')", (channel,))
    connection.execute(cast("LiteralString", f"UNLISTEN {channel}"))
    connection.remove_notify_handler(received.append)
    return bool(received)


def measure_commit_times(connection: Connection) -> list[float]:
    """Seconds that each of a few small durable commits took."""
    times: list[float] = []
    for _ in range(_COMMIT_COUNT):
        started_at = time.perf_counter()
        connection.execute("SELECT pg_logical_emit_message(true, 'holdfast doctor', repeat('x', 500))")
        times.append(time.perf_counter() - started_at)
    return times


def _fetch_rows(connection: Connection, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, parameters).fetchall()
