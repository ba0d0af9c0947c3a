"""What ``doctor`` tells of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check, commit_check, namespace_check
from holdfast.cli.doctor.workload import work_checks
from holdfast.cli.formatting import bytes_in_words, counted, duration
from holdfast.cli.postgres_database import (
    ServerFacts,
    TableFacts,
    clock_offset,
    commit_times,
    connected,
    hears,
    namespaces,
    read_server,
    read_tables,
    tables_lacking_rights,
)
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.migrations import check, grants, quoted
from holdfast.stores.postgres.store import PgStore
from holdfast.stores.sql.schema import latest_version
from holdfast.stores.urls import store_url

FAR_OFF = 5.0
"""Seconds by which two clocks differ so much that somebody should know."""
_MANY_DEAD = 100_000
_SHOWN = 3


def postgres_checks(url: str | None, store: Store) -> Iterator[Check]:
    """How the database is; and if it has its tables, and nothing fails, what is in them."""
    assert isinstance(store, PgStore)
    found: list[Check] = []
    for one in _database(store_url(url), store):
        found.append(one)
        yield one
    is_there = any(one.name == "tables" for one in found)
    if is_there and all(one.status != FAIL for one in found):
        yield from work_checks(url)


def _database(target: str, store: PgStore) -> Iterator[Check]:
    try:
        with connected(target) as connection:
            yield from _checks(connection, store)
    except StoreError as error:
        yield Check("database", FAIL, str(error))


def _checks(connection: Connection, store: PgStore) -> Iterator[Check]:
    server, schema = read_server(connection), store.schema
    known = namespaces(connection)
    yield _server(server)
    yield namespace_check(
        store.namespace,
        f"the schema {schema} of {server.database}",
        [name for name in known if name != store.namespace],
    )
    version = check(connection, schema)
    yield _schema(version, schema, server)
    yield from _rights(connection, version, schema, server)
    yield _durability(server)
    yield commit_check(commit_times(connection), "a slow disk or a far server bounds steps a second")
    yield _news(connection)
    yield _clock(clock_offset(connection))
    if version:
        yield from _tables(read_tables(connection, schema), schema, server)


def _server(server: ServerFacts) -> Check:
    message = f"PostgreSQL {server.version}, {server.connections} of {server.max_connections} connections in use"
    if server.connections > 0.9 * server.max_connections:
        advice = "a worker needs four: raise max_connections, or put a pooler such as PgBouncer in front"
        return Check("server", WARN, message, advice)
    return Check("server", OK, message)


def _schema(version: int, schema: str, server: ServerFacts) -> Check:
    if not version:
        where = f"{schema} in {server.database}"
        return Check("database", OK, f"no tables are there yet: the first run, or `holdfast worker`, makes {where}")
    if version < latest_version():
        what = f"schema version {version} is from an older Holdfast"
        return Check("database", WARN, what, "the next worker or program that opens it brings it up to date")
    newer = " (from a newer Holdfast that this one can work with)" if version > latest_version() else ", up to date"
    return Check("database", OK, f"schema version {version}{newer}")


def _rights(connection: Connection, version: int, schema: str, server: ServerFacts) -> Iterator[Check]:
    may = f"user {server.user} may"
    if version < latest_version() and not server.may_create:
        what = "make" if not version else "bring up to date"
        advice = (
            f"GRANT CREATE ON DATABASE {quoted(server.database)} TO {quoted(server.user)}; or have somebody who may do "
            f'so run what this prints: python -c "from holdfast.stores.postgres.migrations import ddl; '
            f'print(ddl({schema!r}, {server.user!r}))"'
        )
        yield Check("rights", FAIL if not version else WARN, f"{may} not {what} the tables", advice)
    elif lacking := tables_lacking_rights(connection, schema):
        yield Check(
            "rights", FAIL, f"{may} not read and write {', '.join(lacking[:_SHOWN])}", grants(schema, server.user)
        )
    else:
        yield Check("rights", OK, f"{may} read and write the tables" if version else f"{may} make the tables")


def _durability(server: ServerFacts) -> Check:
    settings = {
        "fsync": "on" if server.fsync else "off",
        "full_page_writes": "on" if server.full_page_writes else "off",
        "synchronous_commit": server.synchronous_commit,
    }
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if server.fsync and server.full_page_writes:
        return Check("durability", OK, message)
    return Check("durability", WARN, message, "what was recorded can be lost with the server's power: switch them on")


def _news(connection: Connection) -> Check:
    if connection.is_pooled:
        return Check(
            "news",
            OK,
            "a pooler stands between: workers look for news by themselves, and a dead one is noticed by its lease",
            "a URL that leads to the server directly is quicker at both",
        )
    if hears(connection):
        return Check("news", OK, "notifications are heard, and a session shows at once that its worker is dead")
    return Check("news", WARN, "no notification is heard", "something between here and the server swallows LISTEN")


def _clock(offset: float) -> Check:
    how = "ahead of" if offset > 0 else "behind"
    message = f"the server's is {duration(abs(offset))} {how} this machine's; the server's counts"
    if abs(offset) > FAR_OFF:
        return Check("clock", WARN, message, "let NTP set both: times that your own code records come from here")
    return Check("clock", OK, message)


def _tables(tables: Sequence[TableFacts], schema: str, server: ServerFacts) -> Iterator[Check]:
    largest = ", ".join(f"{table.name} {bytes_in_words(table.size)}" for table in tables[:_SHOWN])
    yield Check("tables", OK, f"{bytes_in_words(sum(table.size for table in tables))} in all ({largest}, …)")
    if not server.autovacuum:
        advice = "switch autovacuum on: without it, tables grow with every change"
        yield Check("vacuum", WARN, "autovacuum is off", advice)
    for table in tables:
        if table.dead > max(_MANY_DEAD, table.live):
            message = f"{schema}.{table.name} holds {counted(table.dead, 'dead row')} beside {table.live:,} live ones"
            advice = (
                "vacuum does not keep up: look in pg_stat_activity for a transaction that has been open for long, and "
                f"run VACUUM {quoted(schema)}.{quoted(table.name)}"
            )
            yield Check("vacuum", WARN, message, advice)
