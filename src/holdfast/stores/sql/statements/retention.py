"""Deleting ended runs: see ``stores.retention``, and ``sql.retention`` for how these statements are used.

Partial indexes tell whether a large value is still needed: they have only the rows with a reference, or with a payload
of the same length. On PostgreSQL, a transaction that is about to refer to a large value locks its row until the commit
(``PUT_BLOB``). A transaction that wants to delete one locks it first, which waits for the others, and looks for
references in a later statement.
"""

from __future__ import annotations

from holdfast.stores.sql.statements.columns import PAYLOAD_COLUMNS
from holdfast.stores.sql.statements.queues import lock_listed
from holdfast.stores.sql.templates import Catalog, Delete, Insert, InsertSelected, Lookup, Query, Write
from holdfast.stores.workers import WORKER_RETENTION_S

_RUN_SIZE = "octet_length(inputs) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0)"


def _select_references(table: str, *columns: str) -> Query:
    """The references in some columns of the rows of runs."""
    found = f"SELECT {', '.join(columns)} FROM @{table} WHERE run IN :runs"
    each = " UNION ".join(f"SELECT {column} FROM found WHERE octet_length({column}) = 33" for column in columns)
    values = ", ".join(f"(t.{column})" for column in columns)
    return Query(
        "runs:i[]",
        sqlite=f"WITH found AS MATERIALIZED ({found}) {each}",
        postgres="SELECT v.reference FROM unnest(:runs) q (run) CROSS JOIN LATERAL "
        f"(SELECT {', '.join(columns)} FROM @{table} WHERE run = q.run OFFSET 0) t "
        f"CROSS JOIN LATERAL (VALUES {values}) v (reference) WHERE octet_length(v.reference) = 33",
    )


def _delete_workers(by_lease: int, index: str, oldest_sqlite: str, oldest_postgres: str) -> Query:
    """Delete retired and dead workers whose lease ended before a time, and before the oldest of some runs existed."""
    found = (
        f"SELECT id, lease_expires_at FROM @workers[{index}] WHERE is_listener = {by_lease} AND state <> 'live' ORDER "
        "BY id LIMIT :max_rows"
    )
    unneeded = (
        "w.lease_expires_at < least(:before, coalesce(({oldest}), :now)) AND (SELECT 1 FROM @runs[runs_started] "
        "WHERE starter = w.id AND starter IS NOT NULL AND finished_at IS NULL LIMIT 1) IS NULL"
    )
    return Query(
        "max_rows:i before:f now:f",
        sqlite=f"DELETE FROM @workers WHERE id IN (SELECT id FROM ({found}) w "
        f"WHERE {unneeded.format(oldest=oldest_sqlite)})",
        postgres=f"DELETE FROM @workers WHERE id = ANY(ARRAY(SELECT w.id FROM ({found} FOR UPDATE SKIP LOCKED) w "
        f"WHERE {unneeded.format(oldest=oldest_postgres)}))",
    )


class RetentionStatements(Catalog):
    """Statements that delete runs, and what belongs to them."""

    LIST_ENDED = Query(
        "workflow:t state:t after:i last:i before:f max_rows:i",
        sqlite="SELECT key FROM @runs[runs_listed] WHERE workflow = :workflow AND state = :state AND key > :after "
        "AND key <= :last AND finished_at < :before ORDER BY key LIMIT :max_rows",
        postgres="SELECT key FROM (SELECT :workflow AS w, :state AS s, :after AS low, :last AS high, :before AS t) q "
        "CROSS JOIN @runs WHERE (workflow, state, key) > (q.w, q.s, q.low) AND (workflow, state, key) <= (q.w, q.s, "
        "q.high) AND finished_at < q.t ORDER BY workflow, state, key LIMIT :max_rows",
    )
    GROUP_MEMBER = Lookup(
        "key:i",
        "SELECT key, id, workflow, state, finished_at, parent, session, previous_run, result_claim FROM @runs "
        "WHERE key = :key",
    )
    CHILDREN = Lookup("id:t", "SELECT key FROM @runs WHERE parent = :id AND parent <> ''")
    CONTINUATIONS = Lookup("id:t", "SELECT key FROM @runs WHERE previous_run = :id AND previous_run <> ''")
    SESSION_RUNS = Lookup(
        "workflow:t session:t",
        "SELECT key FROM @runs WHERE workflow = :workflow AND session = :session AND session <> ''",
    )
    IS_AWAITED = Lookup(
        "key:i",
        "SELECT 1 FROM @links l CROSS JOIN @runs r ON r.key = l.parent WHERE l.child = :key AND r.finished_at IS NULL "
        "LIMIT 1",
    )
    AWAITED_RUNS = Lookup("key:i", "SELECT child FROM @links WHERE parent = :key")
    JOURNAL_SIZE = Lookup(
        "run:i",
        f"SELECT count(*), coalesce(sum(octet_length(payload)), 0) + (SELECT {_RUN_SIZE} FROM @runs WHERE key = :run) "
        "FROM @records WHERE run = :run",
    )
    LOCK_ENDED = lock_listed("key", "finished_at IS NOT NULL", "FOR UPDATE SKIP LOCKED")

    # Runs, and the rows that are swept later

    ADD_PRUNED = InsertSelected(
        "pruned",
        "key, size, inputs, output, error",
        "key:i",
        f"SELECT key, {_RUN_SIZE}, reference(inputs), reference(output), reference(error) FROM @runs WHERE key = :key",
    )
    ADD_REPLACED_INPUTS = Insert("pruned", "key:i inputs:b")
    DELETE_RUN = Delete("runs", "key:i")
    DELETE_LINKS = Delete("links", "parent:i")
    DELETE_ACCOUNT = Delete("usages", "run:i")
    LOCK_NEXT_PRUNED = Query(
        "max_rows:i",
        "SELECT key, size, inputs, output, error FROM @pruned ORDER BY key LIMIT :max_rows",
        lock="FOR UPDATE SKIP LOCKED",
    )
    DELETE_RECORDS = Query(
        "run:i max_rows:i",
        sqlite="DELETE FROM @records WHERE rowid IN (SELECT rowid FROM @records WHERE run = :run ORDER BY seq "
        "LIMIT :max_rows) RETURNING coalesce(octet_length(payload), 0), reference(payload)",
        postgres="DELETE FROM @records WHERE ctid = ANY(ARRAY(SELECT ctid FROM @records WHERE run = :run "
        "ORDER BY run, seq LIMIT :max_rows)) RETURNING coalesce(octet_length(payload), 0), reference(payload)",
    )
    SIGNAL_REFERENCES = _select_references("signals", "payload")
    APPROVAL_REFERENCES = _select_references("approvals", "form_schema", "arguments", "answer")
    DELETE_ATTEMPTS = Delete("attempts", "run:i")
    DELETE_SIGNALS = Delete("signals", "run:i")
    DELETE_SIGNAL_KEYS = Delete("signal_keys", "run:i")
    # SQLite finds tags only by tag, so the tags of a run are read from its row.
    DELETE_TAGS = Write(
        "run:i",
        sqlite="DELETE FROM @run_tags WHERE run = :run AND tag IN (SELECT value FROM json_each("
        "(SELECT CASE WHEN json_valid(tags) THEN tags ELSE '[]' END FROM @runs WHERE key = :run)))",
        postgres="DELETE FROM @run_tags WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM @rows CROSS JOIN LATERAL "
        "(SELECT ctid FROM @run_tags WHERE run = :run OFFSET 0) t))",
    )
    DELETE_RESERVATIONS = Delete("reservations", "run:i")
    DELETE_APPROVALS = Delete("approvals", "run:i")
    DELETE_LIVE_EVENTS = Delete("live_events", "run:i")
    DELETE_PRUNED = Delete("pruned", "key:i")

    # Large values

    LOCK_BLOB = Lookup("hash:b", "SELECT octet_length(data) FROM @blobs WHERE hash = :hash", lock="FOR UPDATE")
    IS_BLOB_REFERENCED = Lookup(
        "reference:b",
        "SELECT 1 WHERE "
        + " OR ".join(
            f"(SELECT 1 FROM @{table} WHERE {column} = :reference AND octet_length({column}) = 33 LIMIT 1) IS NOT NULL"
            for table, column in PAYLOAD_COLUMNS
        ),
    )
    DELETE_BLOB = Delete("blobs", "hash:b")

    # Workers

    DELETE_OLD_LISTENERS = _delete_workers(
        1,
        "workers_ended_listeners",
        "SELECT min(created_at) FROM @runs[runs_delivered] WHERE is_delivery = 1",
        "SELECT min(created_at) FROM @runs WHERE is_delivery + 0 = 1",
    )
    DELETE_OLD_WORKERS = _delete_workers(
        0,
        "workers_ended",
        f"SELECT min(created_at) - {WORKER_RETENTION_S} FROM @runs[runs_created]",
        f"SELECT created_at - {WORKER_RETENTION_S} FROM @runs ORDER BY created_at, key LIMIT 1",
    )
