"""Bringing a schema up to date, while older workers are at work. The migrations themselves are in ``sql.schema``.

A process that opens a store runs those that are missing, all of them in one transaction. An advisory lock lets one
process at a time do that, so that a whole fleet may be started at once; the others find that it is done. Processes that
know only of schemas before ``compatible_from`` are refused when they open the store or connect again, and a worker
finds out with its next poll (see ``workers``).

A migration holds its locks until it is committed, so it must be quick whatever is in the tables, and rewrites none.
Indexes on a table that is large already are made ``CONCURRENTLY``, which no transaction can do: after the rest is
committed, and before the version is raised. Whoever is interrupted in between has changed nothing that others would
notice, and does it again. Such an index waits for all transactions that see the database as it was; so nobody may wait
for the lock in one, and those who do not get it ask again.

**Whose schema it is.** The table ``meta`` marks it as ours. A schema that has tables but no ``meta`` is somebody
else's, and left alone.

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
"""Bytes of the table of runs from which on its indexes are made while others write; below, that is a matter of a
second."""
_APPLIED_VERSION_KEY = "made"
"""What ``meta`` tells of a version whose indexes may still be missing."""
_LOCK_RETRY_DELAY_S = 0.05
_LOG_WAIT_AFTER_S = 2.0
"""Seconds of waiting for somebody else after which that is said: indexes of large tables take minutes."""
_SELECT_USER = "SELECT current_user::text, current_database()::text"
_UPSERT_META = (
    "INSERT INTO {}.meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)

Connection = psycopg.Connection[Any]


def migrate(connection: Connection, schema: str, *, is_pooled: bool = False) -> None:
    """Bring ``schema`` up to date. Blocking; the connection is in autocommit mode, and in no transaction.

    Through a pooler (``is_pooled``) there is no session of our own, and everything is done in one transaction. Raises
    ``StoreSchemaError``, ``StoreCorrupt``, ``StoreReadOnly`` or what psycopg has to say.
    """
    lock = (f"holdfast {schema}",)
    version, began, is_told = 0, time.monotonic(), False
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
                        version = validate_schema_version(connection, schema)  # somebody else may have been quicker
                        if version < latest_version(MIGRATIONS):
                            _migrate_in_transaction(connection, schema, version)
                        return
            if not is_told and time.monotonic() - began >= _LOG_WAIT_AFTER_S:
                log.warning("waiting for another process that brings the schema %s up to date", schema)
                is_told = True
            time.sleep(_LOCK_RETRY_DELAY_S)
    except errors.InsufficientPrivilege as error:
        raise _permission_error(connection, schema, version, error) from error


def validate_schema_version(connection: Connection, schema: str) -> int:
    """The version of ``schema``, 0 if there is none yet. One that this Holdfast cannot use is refused."""
    tables = [row[0] for row in connection.execute(_SELECT_TABLES, (schema,))]
    if not tables:
        return 0
    told = _read_meta(connection, schema) if tables[0] == "meta" else {}
    try:
        version, compatible_from = int(told["version"]), int(told["compatible_from"])
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
    """The version that a Holdfast must know to use ``schema``, which has its tables."""
    return int(_read_meta(connection, schema)["compatible_from"])


def check_compatible(schema: str, compatible_from: int) -> None:
    """Raises ``SchemaTooNew`` if a schema needs a Holdfast that knows a higher version."""
    known = latest_version(MIGRATIONS)
    if compatible_from > known:
        raise SchemaTooNew(
            f"the schema {schema} can be used by a Holdfast that knows version {compatible_from} or higher of it, and "
            f"this one knows versions up to {known}: a newer Holdfast has migrated it. Upgrade this one "
            f"(pip install -U holdfast-agents) and start the process again, or choose another namespace."
        )


def ddl(schema: str, role: str | None = None, version: int = 0) -> str:
    """All statements that make a new ``schema`` as text, for somebody who may run them.

    ``role`` is the user that Holdfast connects as, if it is another one: it gets the rights that it needs. If the
    schema is there, and has some ``version``, they bring it up to date.
    """
    name = quote_identifier(schema)
    lines = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {name};"]
    for migration in missing_migrations(version, MIGRATIONS):
        lines += [_qualify(migration.statements, schema).strip(), _qualify(migration.indexes, schema).strip()]
    lines += [
        f"INSERT INTO {name}.meta (name, value) VALUES ('{key}', '{value}') "
        f"ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
        for key, value in _make_version_rows()
    ]
    if role is not None:
        lines.append(make_grants(schema, role))
    return "\n".join([*lines, "COMMIT;", ""])


def make_grants(schema: str, role: str) -> str:
    """The rights that a user needs who did not make the tables."""
    name, to = quote_identifier(schema), quote_identifier(role)
    return "\n".join(
        [
            f"GRANT USAGE ON SCHEMA {name} TO {to};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {to};",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {to};",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {name} TO {to};",
        ]
    )


def quote_identifier(name: str) -> str:
    """A name as it stands in a statement."""
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


def _migrate_in_transaction(connection: Connection, schema: str, version: int) -> None:
    name = sql.Identifier(schema)
    if (
        version == 0
        and not connection.execute("SELECT to_regnamespace(%s)", (quote_identifier(schema),)).fetchall()[0][0]
    ):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    made = _read_applied_version(connection, schema, version)
    for number, migration in enumerate(missing_migrations(version, MIGRATIONS), max(version + 1, BASELINE_VERSION)):
        if number > made:
            connection.execute(cast(LiteralString, _qualify(migration.statements, schema)))
        for statement in _split_indexes(migration, "IF NOT EXISTS"):
            connection.execute(cast(LiteralString, _qualify(statement, schema)))
    for mark in _make_version_rows():
        connection.execute(sql.SQL(_UPSERT_META).format(name), mark)


def _migrate_online(connection: Connection, schema: str) -> None:
    """The same for a schema with much in it, while others use it; they have no other reason to wait for this."""
    name = sql.Identifier(schema)
    version = validate_schema_version(connection, schema)
    with connection.transaction():
        for migration in missing_migrations(_read_applied_version(connection, schema, version), MIGRATIONS):
            connection.execute(cast(LiteralString, _qualify(migration.statements, schema)))
        connection.execute(sql.SQL(_UPSERT_META).format(name), (_APPLIED_VERSION_KEY, str(latest_version(MIGRATIONS))))
    patience = _fetch_value(connection, "SHOW lock_timeout", ())
    connection.execute("SET lock_timeout = 0")  # the transactions that an index waits for may take their time
    try:
        _create_indexes(connection, schema, version)
    finally:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (patience,))
    with connection.transaction():
        for mark in _make_version_rows():
            connection.execute(sql.SQL(_UPSERT_META).format(name), mark)


def _create_indexes(connection: Connection, schema: str, version: int) -> None:
    for row in connection.execute(_SELECT_INVALID_INDEXES, (schema,)).fetchall():  # somebody was interrupted
        connection.execute(
            sql.SQL("DROP INDEX CONCURRENTLY {}.{}").format(sql.Identifier(schema), sql.Identifier(row[0]))
        )
    for migration in missing_migrations(version, MIGRATIONS):
        for statement in _split_indexes(migration, "CONCURRENTLY IF NOT EXISTS"):
            connection.execute(cast(LiteralString, _qualify(statement, schema)))


def _read_applied_version(connection: Connection, schema: str, version: int) -> int:
    """How far the schema has come, but for indexes."""
    return max(version, int(_read_meta(connection, schema).get(_APPLIED_VERSION_KEY, 0))) if version else 0


def _split_indexes(migration: Migration, modifier: str) -> list[str]:
    """The statements that make its indexes, one by one."""
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
    what = error.diag.message_primary or str(error)
    since = f", {version}" if version else ""
    return StoreReadOnly(
        f"the user {user} may not make or use the tables of Holdfast in the schema {schema} of the database {database} "
        f"({what}). Either let it make them:\n    GRANT CREATE ON DATABASE {quote_identifier(database)} TO "
        f"{quote_identifier(user)};\n"
        f"or have somebody who may do so run what this prints:\n"
        f'    python -c "from holdfast.stores.postgres.migrations import ddl; '
        f'print(ddl({schema!r}, {user!r}{since}))"\n'
        f"If the tables are there already, what is missing is this:\n"
        + "\n".join(f"    {line}" for line in make_grants(schema, user).splitlines())
    )
