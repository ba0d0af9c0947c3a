"""Usage of runs: accounts, reservations, and daily sums; and large values.

On PostgreSQL, the usage of a day is summed up in several rows. All runs of a workflow use the same model on the same
day, so every worker would lock a single row, each until its commit is on disk. So there are several rows, by *slots*,
and a transaction writes to the slot of its connection's process id: connections that are open at the same time rarely
share one. Rows are locked in order, and after all other rows, so that transactions cannot deadlock.
"""

from __future__ import annotations

from holdfast.stores.sql.statements.columns import ACCOUNT_COLUMNS, MEMORY_COLUMNS, USED
from holdfast.stores.sql.templates import (
    Catalog,
    Delete,
    Insert,
    Lookup,
    NamedQuery,
    Query,
    Upsert,
    Write,
    get_names,
    get_placeholders,
)

SLOTS = 32
"""The maximum number of rows for one day, workflow, and model."""

_USED = USED.split(", ")
ADD_USED = ", ".join(f"{name} = t.{name} + excluded.{name}" for name in _USED)
USED_SUMS = ", ".join(f"sum({name})" for name in _USED)


class UsageStatements(Catalog):
    """Statements about usage and budgets."""

    ACCOUNT = Lookup("run:i", f"SELECT {ACCOUNT_COLUMNS} FROM @usages WHERE run = :run")
    PARENT_KEY = Lookup(
        "run:i",
        "SELECT p.key FROM @runs r CROSS JOIN @runs p ON p.id = r.parent WHERE r.key = :run AND r.parent <> ''",
    )
    PUT_ACCOUNT = Upsert(
        "usages",
        "run:i parent_key:i calls:i input_tokens:i output_tokens:i cached_tokens:i nano_usd:i unpriced:i seconds:f "
        "reserved_calls:i reserved_tokens:i reserved_nano_usd:i budget:t short_positions:t",
        "run",
    )
    SHORT_RUNS = Query("", "SELECT run FROM @usages WHERE short_positions <> '' ORDER BY run")
    USAGES = Query(
        "ids:t[]",
        sqlite=f"SELECT r.id, {USED}, seconds, u.budget FROM json_each(:ids) CROSS JOIN @runs r ON r.id = value "
        "CROSS JOIN @usages u ON u.run = r.key",
        postgres=f"SELECT r.id, {USED}, seconds, u.budget FROM (SELECT DISTINCT unnest(:ids) AS id) q "
        "CROSS JOIN @runs r ON r.id = q.id CROSS JOIN @usages u ON u.run = r.key",
    )
    RESERVATIONS = Lookup("run:i", "SELECT position, calls, tokens, nano_usd FROM @reservations WHERE run = :run")
    PUT_RESERVATION = Upsert("reservations", "run:i position:i calls:i tokens:i nano_usd:i", "run, position")
    DELETE_RESERVATION = Delete("reservations", "run:i position:i")

    ADD_DAILY_USAGE = Write(
        f"day:t model:t {' '.join(f'{name}:i' for name in _USED)} run:i",
        sqlite=f"INSERT INTO @spending AS t (day, model, {USED}, workflow) "
        f"SELECT :day, :model, {', '.join(f':{name}' for name in _USED)}, workflow FROM @runs WHERE key = :run "
        f"ON CONFLICT (day, workflow, model) DO UPDATE SET {ADD_USED}",
        postgres=f"INSERT INTO @spending AS t (day, workflow, model, slot, {USED}) "
        f"SELECT q.day, r.workflow, q.model, mod(pg_backend_pid(), {SLOTS}), {USED_SUMS} "
        "FROM @rows CROSS JOIN @runs r ON r.key = q.run "
        "GROUP BY q.day, r.workflow, q.model ORDER BY q.day, r.workflow, q.model "
        f"ON CONFLICT (day, workflow, model, slot) DO UPDATE SET {ADD_USED}",
    )
    DAILY_USAGE = Query(
        "since:t until:t workflow:t",
        f"SELECT day, workflow, model, {', '.join(f'CAST(sum({name}) AS bigint)' for name in _USED)} FROM @spending "
        "WHERE day >= :since AND day <= :until AND workflow = coalesce(:workflow, workflow) "
        "GROUP BY day, workflow, model ORDER BY day, workflow, model",
    )
    DAILY_RUNS = Query(
        "first:i last:i workflow:t",
        "SELECT day, workflow, CAST(sum(run_count) AS bigint) FROM @daily_runs WHERE day >= :first AND day <= :last "
        "AND workflow = coalesce(:workflow, workflow) GROUP BY day, workflow HAVING sum(run_count) > 0 "
        "ORDER BY day, workflow",
    )


class ValueStatements(Catalog):
    """Large values and memories."""

    # An existing one is locked, so that it is not deleted before the commit (see ``retention``).
    PUT_BLOB = Insert(
        "blobs",
        "hash:b size:i data:b",
        " ON CONFLICT DO NOTHING",
        postgres=" ON CONFLICT (hash) DO UPDATE SET size = excluded.size",
        order="hash",
    )
    BLOBS = Lookup("hash:b", "SELECT hash, data FROM @blobs WHERE hash = :hash")
    BLOB_SIZES = Lookup("hash:b", "SELECT hash, size FROM @blobs WHERE hash = :hash")

    GET_MEMORY = Query(
        "namespace:t key:t",
        f"SELECT {MEMORY_COLUMNS} FROM @memories WHERE namespace = :namespace AND key = :key",
    )
    LIST_MEMORIES = Query(
        "namespace:t key:t max_rows:i",
        f"SELECT {MEMORY_COLUMNS} FROM @memories "
        "WHERE namespace = :namespace AND key > :key ORDER BY key LIMIT :max_rows",
    )
    # One lookup in the index for each namespace, however many memories it has.
    LIST_MEMORY_NAMESPACES = NamedQuery(
        "after:t first:t last:t max_rows:i",
        "WITH RECURSIVE found (namespace) AS (SELECT min(namespace) FROM @memories "
        "WHERE namespace > :after AND namespace >= :first AND namespace < :last UNION ALL "
        "SELECT (SELECT min(m.namespace) FROM @memories m WHERE m.namespace > found.namespace AND m.namespace < :last) "
        "FROM found WHERE found.namespace IS NOT NULL) "
        "SELECT namespace FROM found WHERE namespace IS NOT NULL LIMIT :max_rows",
    )


_DOCUMENT = "kind, name, data, version, created_at, updated_at"
_DOCUMENT_VALUES = "kind:t name:t created_at:f updated_at:f data:b"
_ADD_DOCUMENT = (
    f"INSERT INTO @documents AS d ({get_names(_DOCUMENT_VALUES)}, version) "
    f"VALUES ({get_placeholders(_DOCUMENT_VALUES)}, 1) ON CONFLICT"
)
_AUDIT_VALUES = "at:f key_id:t key_name:t action:t target:t outcome:t remote_address:t"
_AUDIT = get_names(_AUDIT_VALUES)


class ServerStatements(Catalog):
    """Documents and the audit log of servers."""

    PUT_DOCUMENT = Query(
        _DOCUMENT_VALUES,
        f"{_ADD_DOCUMENT} (kind, name) DO UPDATE SET data = excluded.data, version = d.version + 1, "
        f"updated_at = excluded.updated_at RETURNING {_DOCUMENT}",
    )
    ADD_DOCUMENT = Query(_DOCUMENT_VALUES, f"{_ADD_DOCUMENT} DO NOTHING RETURNING {_DOCUMENT}")
    UPDATE_DOCUMENT = Query(
        "data:b updated_at:f kind:t name:t version:i",
        "UPDATE @documents SET data = :data, version = version + 1, updated_at = :updated_at "
        f"WHERE kind = :kind AND name = :name AND version = :version RETURNING {_DOCUMENT}",
    )
    DOCUMENTS = Query(
        "kind:t after:t max_rows:i",
        f"SELECT {_DOCUMENT} FROM @documents WHERE kind = :kind AND name > :after ORDER BY kind, name LIMIT :max_rows",
    )
    DOCUMENTS_NAMED = Query(
        "kind:t after:t names:t[] max_rows:i",
        f"SELECT {_DOCUMENT} FROM @documents WHERE kind = :kind AND name > :after AND name IN :names "
        "ORDER BY kind, name LIMIT :max_rows",
    )
    DELETE_DOCUMENT = Query("kind:t name:t", "DELETE FROM @documents WHERE kind = :kind AND name = :name")

    APPEND_AUDIT = Insert("audit", _AUDIT_VALUES, order="n")
    AUDIT = Query(
        "before:i max_rows:i", f"SELECT id, {_AUDIT} FROM @audit WHERE id < :before ORDER BY id DESC LIMIT :max_rows"
    )
    TRIM_AUDIT = Query(
        "before:f max_rows:i",
        sqlite="DELETE FROM @audit WHERE id IN (SELECT id FROM @audit WHERE at < :before ORDER BY at, id "
        "LIMIT :max_rows)",
        postgres="DELETE FROM @audit WHERE id = ANY(ARRAY(SELECT id FROM @audit WHERE at < :before ORDER BY at, id "
        "LIMIT :max_rows FOR UPDATE SKIP LOCKED))",
    )
