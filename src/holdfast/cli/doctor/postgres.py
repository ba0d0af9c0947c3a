"""Checks of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.cli.doctor.checks import FAIL, CheckResult, diagnose_commit, diagnose_namespace, fail, ok, warn
from holdfast.cli.doctor.workload import diagnose_workload
from holdfast.cli.shared.formatting import format_bytes, format_count, format_duration
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.inspection import (
    ServerFacts,
    TableFacts,
    can_receive_notifications,
    find_inaccessible_tables,
    list_namespaces,
    measure_clock_offset,
    measure_commit_times,
    open_connection,
    read_server_facts,
    read_table_facts,
)
from holdfast.stores.postgres.migrations import make_grants, quote_identifier, validate_schema_version
from holdfast.stores.postgres.store import PgStore
from holdfast.stores.sql.schema import latest_version
from holdfast.stores.urls import resolve_store_url

MAX_CLOCK_SKEW_S = 5.0
"""The difference between two clocks from which there is a warning."""
_MAX_DEAD_ROWS = 100_000
_MAX_SHOWN_TABLES = 3


def diagnose_postgres(url: str | None, store: Store) -> Iterator[CheckResult]:
    """Check the database; and if it has its tables and nothing fails, the work in it."""
    assert isinstance(store, PgStore)
    results = list(_diagnose_database(resolve_store_url(url), store))
    yield from results
    if any(one.name == "tables" for one in results) and all(one.status != FAIL for one in results):
        yield from diagnose_workload(url)


def _diagnose_database(url: str, store: PgStore) -> Iterator[CheckResult]:
    try:
        with open_connection(url) as connection:
            yield from _diagnose_connection(connection, store)
    except StoreError as error:
        yield fail("database", str(error))


def _diagnose_connection(connection: Connection, store: PgStore) -> Iterator[CheckResult]:
    server, schema = read_server_facts(connection), store.schema
    known = list_namespaces(connection)
    yield _diagnose_server(server)
    yield diagnose_namespace(
        store.namespace,
        f"the schema {schema} of {server.database}",
        [name for name in known if name != store.namespace],
    )
    version = validate_schema_version(connection, schema)
    yield _diagnose_schema(version, schema, server)
    yield from _diagnose_privileges(connection, version, schema, server)
    yield _diagnose_durability(server)
    yield diagnose_commit(measure_commit_times(connection), "a slow disk or a far server bounds steps a second")
    yield _diagnose_notifications(connection)
    yield _diagnose_clock(measure_clock_offset(connection))
    if version:
        yield from _diagnose_tables(read_table_facts(connection, schema), schema, server)


def _diagnose_server(server: ServerFacts) -> CheckResult:
    message = f"PostgreSQL {server.version}, {server.connection_count} of {server.max_connections} connections in use"
    if server.connection_count > 0.9 * server.max_connections:
        advice = "a worker needs four: raise max_connections, or put a pooler such as PgBouncer in front"
        return warn("server", message, advice)
    return ok("server", message)


def _diagnose_schema(version: int, schema: str, server: ServerFacts) -> CheckResult:
    if not version:
        where = f"{schema} in {server.database}"
        return ok("database", f"no tables are there yet: the first run, or `holdfast worker`, makes {where}")
    if version < latest_version():
        problem = f"schema version {version} is from an older Holdfast"
        return warn("database", problem, "the next worker or program that opens it brings it up to date")
    newer = " (from a newer Holdfast that this one can work with)" if version > latest_version() else ", up to date"
    return ok("database", f"schema version {version}{newer}")


def _diagnose_privileges(
    connection: Connection, version: int, schema: str, server: ServerFacts
) -> Iterator[CheckResult]:
    may = f"user {server.user} may"
    if version < latest_version() and not server.can_create:
        action = "make" if not version else "bring up to date"
        advice = (
            f"GRANT CREATE ON DATABASE {quote_identifier(server.database)} TO {quote_identifier(server.user)}; or have "
            "someone who may do "
            f'so run what this prints: python -c "from holdfast.stores.postgres.migrations import ddl; '
            f'print(ddl({schema!r}, {server.user!r}))"'
        )
        yield (warn if version else fail)("privileges", f"{may} not {action} the tables", advice)
    elif lacking := find_inaccessible_tables(connection, schema):
        yield fail(
            "privileges",
            f"{may} not read and write {', '.join(lacking[:_MAX_SHOWN_TABLES])}",
            make_grants(schema, server.user),
        )
    else:
        yield ok("privileges", f"{may} read and write the tables" if version else f"{may} make the tables")


def _diagnose_durability(server: ServerFacts) -> CheckResult:
    settings = {
        "fsync": "on" if server.fsync else "off",
        "full_page_writes": "on" if server.full_page_writes else "off",
        "synchronous_commit": server.synchronous_commit,
    }
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if server.fsync and server.full_page_writes:
        return ok("durability", message)
    return warn("durability", message, "what was recorded can be lost with the server's power: switch them on")


def _diagnose_notifications(connection: Connection) -> CheckResult:
    if connection.is_pooled:
        return ok(
            "notifications",
            "there is a pooler: workers poll for changes, and a dead worker is noticed by its lease",
            "a URL that leads to the server directly is quicker at both",
        )
    if can_receive_notifications(connection):
        return ok("notifications", "notifications are heard, and a session shows at once that its worker is dead")
    return warn("notifications", "no notification is heard", "something between here and the server swallows LISTEN")


def _diagnose_clock(offset_s: float) -> CheckResult:
    direction = "ahead of" if offset_s > 0 else "behind"
    message = f"the server's is {format_duration(abs(offset_s))} {direction} this machine's; the server's counts"
    if abs(offset_s) > MAX_CLOCK_SKEW_S:
        return warn("clock", message, "let NTP set both: times that your own code records come from here")
    return ok("clock", message)


def _diagnose_tables(tables: Sequence[TableFacts], schema: str, server: ServerFacts) -> Iterator[CheckResult]:
    largest = ", ".join(f"{table.name} {format_bytes(table.size)}" for table in tables[:_MAX_SHOWN_TABLES])
    yield ok("tables", f"{format_bytes(sum(table.size for table in tables))} in all ({largest}, …)")
    if not server.autovacuum:
        advice = "switch autovacuum on: without it, tables grow with every change"
        yield warn("vacuum", "autovacuum is off", advice)
    for table in tables:
        if table.dead_row_count > max(_MAX_DEAD_ROWS, table.live_row_count):
            message = (
                f"{schema}.{table.name} holds {format_count(table.dead_row_count, 'dead row')} beside "
                f"{table.live_row_count:,} live ones"
            )
            advice = (
                "vacuum does not keep up: look in pg_stat_activity for a transaction that has been open for long, and "
                f"run VACUUM {quote_identifier(schema)}.{quote_identifier(table.name)}"
            )
            yield warn("vacuum", message, advice)
