"""Bringing a schema up to date while older workers use it. The migrations themselves are in ``sql.schema``.

A process that opens a store applies the missing migrations, all in one transaction. An advisory lock admits one process
at a time, so a whole fleet can start at once; the others find that it is done. Processes that know only schemas before
``compatible_from`` are refused when they open the store or reconnect, and a worker finds out with its next poll (see
``workers``).

A migration holds its locks until it is committed, so it must be quick whatever is in the tables, and rewrites none.
Indexes on a large table are created ``CONCURRENTLY``, which is not possible in a transaction: after the rest is
committed, and before the version is raised. A ``backfill`` reads a large table at that time, too. If the process is
interrupted in between, nothing has changed that others would notice, and the next process repeats it. Creating such an
index waits for all transactions with an older view of the database. So no process may wait for the advisory lock in a
transaction; a process that does not get the lock tries again.

**Whose schema it is.** The table ``meta`` marks a schema of Holdfast. A schema that has tables but no ``meta`` belongs
to another program, and is left alone.

Where workers may not create tables, a person runs what ``ddl`` returns, once for each new version.
"""

from __future__ import annotations

import logging
import time
from typing import Any, LiteralString, cast

import psycopg
from psycopg import errors, sql

from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreError, StoreReadOnly, StoreSchemaError
from holdfast.stores.sql.schema import (
    BASELINE_VERSION,
    MIGRATIONS,
    Migration,
    latest_version,
    missing_migrations,
    render,
)

log = logging.getLogger("holdfast.stores")


_SELECT_TABLES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY c.relname <> 'meta', c.relname LIMIT 4
"""
_SELECT_INVALID_INDEXES = """
SELECT c.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT i.indisvalid
"""
_SELECT_TABLE_SIZE = "SELECT pg_relation_size(%s::regclass)"
LARGE_TABLE_BYTES = 64 * 1024 * 1024
"""If the table of runs has more bytes than this, its indexes are created while others write. Below, it takes a
second."""
_APPLIED_VERSION_KEY = "made"
"""The key in ``meta`` of a version whose indexes may still be missing."""
_LOCK_RETRY_DELAY_S = 0.05
_LOG_WAIT_AFTER_S = 2.0
"""Seconds after which waiting for another process is logged: indexes of large tables take minutes."""
_SELECT_USER = "SELECT current_user::text, current_database()::text"
_UPSERT_META = (
    "INSERT INTO {}.meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)

Connection = psycopg.Connection[Any]


def migrate(connection: Connection, schema: str, *, is_pooled: bool = False) -> None:
    """Bring ``schema`` up to date. Blocking; the connection is in autocommit mode, and in no transaction.

    Through a pooler (``is_pooled``) there is no session that lasts, and everything is done in one transaction. Raises
    ``StoreSchemaError``, ``StoreCorrupt``, ``StoreReadOnly``, or psycopg's errors.
    """
    lock = (f"holdfast {schema}",)
    version, started_at, has_warned = 0, time.monotonic(), False
    try:
        while (version := validate_schema_version(connection, schema)) < latest_version(MIGRATIONS):
            if version and not is_pooled and _is_large(connection, schema):
                if _fetch_value(connection, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", lock):
                    try:
                        _migrate_online(connection, schema)
                    finally:
                        connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
                    return
            else:
                with connection.transaction():
                    if _fetch_value(connection, "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", lock):
                        version = validate_schema_version(connection, schema)  # another process may have been faster
                        if version < latest_version(MIGRATIONS):
                            _migrate_in_transaction(connection, schema, version)
                        return
            if not has_warned and time.monotonic() - started_at >= _LOG_WAIT_AFTER_S:
                log.warning("waiting for another process that brings the schema %s up to date", schema)
                has_warned = True
            time.sleep(_LOCK_RETRY_DELAY_S)
    except errors.InsufficientPrivilege as error:
        raise _permission_error(connection, schema, version, error) from error


def validate_schema_version(connection: Connection, schema: str) -> int:
    """The version of ``schema``, 0 if it does not exist yet. Raises if this Holdfast cannot use it."""
    tables = [row[0] for row in connection.execute(_SELECT_TABLES, (schema,))]
    if not tables:
        return 0
    meta = _read_meta(connection, schema) if tables[0] == "meta" else {}
    try:
        version, compatible_from = int(meta["version"]), int(meta["compatible_from"])
    except (KeyError, ValueError):
        raise StoreCorrupt(
            f"the schema {schema} belongs to another program: it holds {', '.join(tables)}, and no table of Holdfast's "
            f"that tells its version. Holdfast keeps its runs in a schema of their own: choose another namespace, or "
            f"another database."
        ) from None
    if version < BASELINE_VERSION:
        raise StoreSchemaError(
            f"the schema {schema} was made by a Holdfast before version 0.2, whose tables this one cannot read. Use "
            f"another namespace; the version that made it can still finish its runs."
        )
    check_compatible(schema, compatible_from)
    return version


def read_compatible_from(connection: Connection, schema: str) -> int:
    """The schema version that a Holdfast must know to use ``schema``, which must have its tables."""
    return int(_read_meta(connection, schema)["compatible_from"])


def check_compatible(schema: str, compatible_from: int) -> None:
    """Raise ``SchemaTooNew`` if a schema needs a Holdfast that knows a higher version."""
    known_version = latest_version(MIGRATIONS)
    if compatible_from > known_version:
        raise SchemaTooNew(
            f"the schema {schema} can be used by a Holdfast that knows version {compatible_from} or higher of it, and "
            f"this one knows versions up to {known_version}: a newer Holdfast has migrated it. Upgrade this one "
            f"(pip install -U holdfast-agents) and start the process again, or choose another namespace."
        )


def ddl(schema: str, role: str | None = None, version: int = 0) -> str:
    """The statements that create ``schema``, or bring it up to date from ``version``, for a privileged user to run.

    ``role`` is the user that Holdfast connects as, if it is another one: it is granted the rights that it needs.
    """
    name = quote_identifier(schema)
    lines = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {name};"]
    for migration in missing_migrations(version, MIGRATIONS):
        parts = (migration.statements, migration.backfill, migration.indexes)
        lines += [_qualify(part, schema).strip() for part in parts]
    lines += [
        f"INSERT INTO {name}.meta (name, value) VALUES ('{key}', '{value}') "
        f"ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
        for key, value in _make_version_rows()
    ]
    if role is not None:
        lines.append(make_grants(schema, role))
    return "\n".join([*lines, "COMMIT;", ""])


def make_grants(schema: str, role: str) -> str:
    """Statements that grant the rights that a user needs who does not own the tables."""
    name, to = quote_identifier(schema), quote_identifier(role)
    return (
        f"GRANT USAGE ON SCHEMA {name} TO {to};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {to};\n"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {to};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {name} TO {to};"
    )


def quote_identifier(name: str) -> str:
    """A name, quoted for use in a statement."""
    return sql.Identifier(name).as_string(None)


def _make_version_rows() -> list[tuple[str, str]]:
    return [("version", str(latest_version(MIGRATIONS))), ("compatible_from", str(MIGRATIONS[-1].compatible_from))]


def _read_meta(connection: Connection, schema: str) -> dict[str, str]:
    try:
        return dict(connection.execute(sql.SQL("SELECT name, value FROM {}.meta").format(sql.Identifier(schema))))
    except errors.UndefinedColumn:
        return {}
    except errors.InsufficientPrivilege as error:
        raise _permission_error(connection, schema, 0, error) from error


def _write_meta(connection: Connection, schema: str, rows: list[tuple[str, str]]) -> None:
    for row in rows:
        connection.execute(sql.SQL(_UPSERT_META).format(sql.Identifier(schema)), row)


def _migrate_in_transaction(connection: Connection, schema: str, version: int) -> None:
    name = (quote_identifier(schema),)
    if version == 0 and not _fetch_value(connection, "SELECT to_regnamespace(%s)", name):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    applied_version = _read_applied_version(connection, schema, version)
    for number, migration in enumerate(missing_migrations(version, MIGRATIONS), max(version + 1, BASELINE_VERSION)):
        if number > applied_version:
            connection.execute(cast(LiteralString, _qualify(migration.statements, schema)))
        for statement in (migration.backfill, *_split_indexes(migration, "IF NOT EXISTS")):
            connection.execute(cast(LiteralString, _qualify(statement, schema)))
    _write_meta(connection, schema, _make_version_rows())


def _migrate_online(connection: Connection, schema: str) -> None:
    """The same for a large schema that others use meanwhile. They wait only for its short transactions."""
    version = validate_schema_version(connection, schema)
    with connection.transaction():
        for migration in missing_migrations(_read_applied_version(connection, schema, version), MIGRATIONS):
            connection.execute(cast(LiteralString, _qualify(migration.statements, schema)))
        _write_meta(connection, schema, [(_APPLIED_VERSION_KEY, str(latest_version(MIGRATIONS)))])
    lock_timeout = _fetch_value(connection, "SHOW lock_timeout", ())
    connection.execute("SET lock_timeout = 0")  # an index may wait long for other transactions
    try:
        _backfill_and_index(connection, schema, version)
    finally:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (lock_timeout,))
    with connection.transaction():
        _write_meta(connection, schema, _make_version_rows())


def _backfill_and_index(connection: Connection, schema: str, version: int) -> None:
    for row in connection.execute(_SELECT_INVALID_INDEXES, (schema,)).fetchall():  # left by an interrupted migration
        connection.execute(
            sql.SQL("DROP INDEX CONCURRENTLY {}.{}").format(sql.Identifier(schema), sql.Identifier(row[0]))
        )
    for migration in missing_migrations(version, MIGRATIONS):
        for statement in (migration.backfill, *_split_indexes(migration, "CONCURRENTLY IF NOT EXISTS")):
            connection.execute(cast(LiteralString, _qualify(statement, schema)))


def _read_applied_version(connection: Connection, schema: str, version: int) -> int:
    """The version that the schema has, apart from indexes."""
    return max(version, int(_read_meta(connection, schema).get(_APPLIED_VERSION_KEY, 0))) if version else 0


def _split_indexes(migration: Migration, modifier: str) -> list[str]:
    """The statements that create its indexes, one by one."""
    parts = [part.strip() for part in migration.indexes.split(";")]
    return [part.replace(" INDEX ", f" INDEX {modifier} ", 1) for part in parts if part]


def _is_large(connection: Connection, schema: str) -> bool:
    return _fetch_value(connection, _SELECT_TABLE_SIZE, (f"{quote_identifier(schema)}.runs",)) > LARGE_TABLE_BYTES


def _fetch_value(connection: Connection, query: LiteralString, values: tuple[Any, ...]) -> Any:
    return connection.execute(query, values).fetchall()[0][0]


def _qualify(statements: str, schema: str) -> str:
    return render(statements, "postgres", lambda table: f"{quote_identifier(schema)}.{table}")


def _permission_error(
    connection: Connection, schema: str, version: int, error: errors.InsufficientPrivilege
) -> StoreError:
    user, database = connection.execute(_SELECT_USER).fetchall()[0]
    reason = error.diag.message_primary or str(error)
    since = f", {version}" if version else ""
    return StoreReadOnly(
        f"the user {user} may not make or use the tables of Holdfast in the schema {schema} of the database {database} "
        f"({reason}). Either let it make them:\n    GRANT CREATE ON DATABASE {quote_identifier(database)} TO "
        f"{quote_identifier(user)};\n"
        f"or have somebody who may do so run what this prints:\n"
        f'    python -c "from holdfast.stores.postgres.migrations import ddl; '
        f'print(ddl({schema!r}, {user!r}{since}))"\n'
        f"If the tables are there already, what is missing is this:\n"
        + "\n".join(f"    {line}" for line in make_grants(schema, user).splitlines())
    )
