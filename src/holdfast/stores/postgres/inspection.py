"""Facts about a PostgreSQL database, for people who look after it. Nothing here changes it.

A commit is timed with a message in the server's log of changes that nobody reads: that is as durable as any other
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
    """Whether this user may make schemas."""


class TableFacts(NamedTuple):
    """A table, with all that belongs to it."""

    name: str
    size: int
    live_row_count: int
    """Rows, as the server guesses."""
    dead_row_count: int
    """What is left of rows that were changed or deleted."""


@contextmanager
def open_connection(url: str) -> Generator[Connection]:
    """A connection that makes and changes nothing; errors are those of a store."""
    place, _ = split_namespace(url)
    with connect(place, application_name="holdfast cli") as connection:
        try:
            yield connection
        except psycopg.Error as error:
            raise to_store_error(error, connection.display_url) from error


def read_server_facts(connection: Connection) -> ServerFacts:
    """What there is to know of the server."""
    return ServerFacts(*_fetch_rows(connection, _SERVER_QUERY)[0])


def measure_clock_offset(connection: Connection) -> float:
    """How far the server's clock is ahead of this machine's, in seconds."""
    before = time.time()
    theirs = _fetch_rows(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    return theirs - (before + time.time()) / 2


def list_namespaces(connection: Connection) -> list[str]:
    """The namespaces of the database, the default one first."""
    schemas = [row[0] for row in _fetch_rows(connection, _NAMESPACES_QUERY)]
    return [schema.removeprefix("holdfast_") if schema != "holdfast" else DEFAULT_NAMESPACE for schema in schemas]


def fetch_namespaces(url: str) -> list[str]:
    """The namespaces of the database at ``url``, for whoever has no connection. Blocking."""
    with open_connection(url) as connection:
        return list_namespaces(connection)


def find_inaccessible_tables(connection: Connection, schema: str) -> list[str]:
    """Tables that this user may not read and write as it must."""
    return [row[0] for row in _fetch_rows(connection, _MISSING_PRIVILEGES_QUERY, schema)]


def read_table_facts(connection: Connection, schema: str) -> list[TableFacts]:
    """The tables, the largest first."""
    return [TableFacts(*row) for row in _fetch_rows(connection, _TABLES_QUERY, schema)]


def can_receive_notifications(connection: Connection) -> bool:
    """Whether a notification comes back. The server sends it at the end of the transaction that it is part of."""
    channel = f"holdfast_doctor_{secrets.token_hex(4)}"
    heard: list[psycopg.Notify] = []
    connection.add_notify_handler(heard.append)
    connection.execute(cast("LiteralString", f"LISTEN {channel}"))
    connection.execute("SELECT pg_notify(%s, '')", (channel,))
    connection.execute(cast("LiteralString", f"UNLISTEN {channel}"))
    connection.remove_notify_handler(heard.append)
    return bool(heard)


def measure_commit_times(connection: Connection) -> list[float]:
    """Seconds that each of a few small durable commits took."""
    times: list[float] = []
    for _ in range(_COMMIT_COUNT):
        began = time.perf_counter()
        connection.execute("SELECT pg_logical_emit_message(true, 'holdfast doctor', repeat('x', 500))")
        times.append(time.perf_counter() - began)
    return times


def _fetch_rows(connection: Connection, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, parameters).fetchall()
