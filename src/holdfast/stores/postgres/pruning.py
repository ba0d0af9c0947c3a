"""The SQL by which runs are deleted: see ``stores.pruning``, and ``sql.pruning`` for how it is used.

Whoever is about to refer to a large value holds its row until the commit (``KEEP_BLOB``). Whoever wants to delete one
locks it first, which waits for the others, and looks for references in a statement of its own after that.
"""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.bulk import changes, delete, questions
from holdfast.stores.rules import WORKERS_KEPT
from holdfast.stores.sql import blobs

_REFERENCE = "CASE WHEN octet_length({0}) = 33 AND get_byte({0}, 0) = 0 THEN {0} END"


def _of_runs(table: str, *columns: str) -> str:
    """The references in some columns of the rows that belong to runs."""
    values = ", ".join(f"(t.{column})" for column in columns)
    return (
        "SELECT v.reference FROM unnest(%s::bigint[]) q (run) CROSS JOIN LATERAL "
        f"(SELECT {', '.join(columns)} FROM {{s}}.{table} WHERE run = q.run OFFSET 0) t "
        f"CROSS JOIN LATERAL (VALUES {values}) v (reference) WHERE octet_length(v.reference) = 33"
    )


def _forget(table: str, column: str = "run") -> str:
    return delete(table, "key:i", f"{column} = q.key")


def _forget_workers(by_lease: int, oldest: str) -> str:
    """Those that have left or are dead, whose lease has ended before a time and before any of these runs was there."""
    return (
        "DELETE FROM {s}.workers WHERE id = ANY(ARRAY(SELECT w.id FROM (SELECT id, lease_until FROM {s}.workers "
        f"WHERE by_lease = {by_lease} AND state <> 'live' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) w "
        f"WHERE w.lease_until < least(%s::float8, coalesce(({oldest}), %s::float8)) "
        "AND (SELECT 1 FROM {s}.runs WHERE starter = w.id AND starter IS NOT NULL AND finished_at IS NULL LIMIT 1) "
        "IS NULL))"
    )


PRUNING: Final[dict[str, str]] = {
    "ENDED_STRETCH": (
        "SELECT key FROM (SELECT %s::text AS w, %s::text AS s, %s::bigint AS low, %s::bigint AS high, %s::float8 AS t) "
        "q CROSS JOIN {s}.runs WHERE (workflow, state, key) > (q.w, q.s, q.low) "
        "AND (workflow, state, key) <= (q.w, q.s, q.high) AND finished_at < q.t ORDER BY workflow, state, key LIMIT %s"
    ),
    "KIN": questions(
        "key:i",
        "SELECT key, id, workflow, state, finished_at, parent, session, previous, unclaimed FROM {s}.runs "
        "WHERE key = q.key",
    ),
    "KEY_OF": questions("id:t", "SELECT key FROM {s}.runs WHERE id = q.id"),
    "CHILDREN": questions("id:t", "SELECT key FROM {s}.runs WHERE parent = q.id AND parent <> ''"),
    "CONTINUED": questions("id:t", "SELECT key FROM {s}.runs WHERE previous = q.id AND previous <> ''"),
    "SESSION_RUNS": questions(
        "workflow:t session:t",
        "SELECT key FROM {s}.runs WHERE workflow = q.workflow AND session = q.session AND session <> ''",
    ),
    "IS_AWAITED": questions(
        "key:i",
        "SELECT 1 FROM {s}.links l CROSS JOIN LATERAL (SELECT finished_at FROM {s}.runs WHERE key = l.parent OFFSET 0) "
        "r WHERE l.child = q.key AND r.finished_at IS NULL LIMIT 1",
    ),
    "AWAITED_RUNS": questions("key:i", "SELECT child FROM {s}.links WHERE parent = q.key"),
    "JOURNAL_SIZE": questions(
        "run:i",
        "SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint + (SELECT octet_length(inputs) "
        "+ coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0) FROM {s}.runs WHERE key = q.run) "
        "FROM {s}.records WHERE run = q.run",
    ),
    "LOCK_ENDED": (
        "SELECT r.key FROM (SELECT unnest(%s::bigint[]) AS key ORDER BY key OFFSET 0) q CROSS JOIN LATERAL "
        "(SELECT key FROM {s}.runs WHERE key = q.key AND finished_at IS NOT NULL OFFSET 0 FOR UPDATE SKIP LOCKED) r"
    ),
    "NOTE_PRUNED": changes(
        "key:i",
        "INSERT INTO {s}.pruned (key, size, inputs, output, error) SELECT r.* FROM {q} CROSS JOIN LATERAL (SELECT key, "
        "octet_length(inputs) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0), "
        f"{', '.join(_REFERENCE.format(column) for column in ('inputs', 'output', 'error'))} "
        "FROM {s}.runs WHERE key = q.key OFFSET 0) r",
    ),
    "FORGET_RUN": _forget("runs", "key"),
    "FORGET_LINKS": _forget("links", "parent"),
    "FORGET_ACCOUNT": _forget("usages"),
    "FORGET_TAGS": _forget("run_tags"),
    "NEXT_PRUNED": (
        "SELECT key, size, inputs, output, error FROM {s}.pruned ORDER BY key LIMIT %s FOR UPDATE SKIP LOCKED"
    ),
    "FORGET_RECORDS": (
        "DELETE FROM {s}.records WHERE ctid = ANY(ARRAY(SELECT ctid FROM {s}.records WHERE run = %s ORDER BY run, seq "
        f"LIMIT %s)) RETURNING coalesce(octet_length(payload), 0), {_REFERENCE.format('payload')}"
    ),
    "LARGE_SIGNALS": _of_runs("signals", "payload"),
    "LARGE_APPROVALS": _of_runs("approvals", "form", "arguments", "answer"),
    "FORGET_ATTEMPTS": _forget("attempts"),
    "FORGET_SIGNALS": _forget("signals"),
    "FORGET_SIGNAL_KEYS": _forget("signal_keys"),
    "FORGET_RESERVATIONS": _forget("reservations"),
    "FORGET_APPROVALS": _forget("approvals"),
    "FORGET_NOTICES": _forget("notices"),
    "FORGET_PRUNED": _forget("pruned", "key"),
    "LOCK_BLOB": questions("hash:b", "SELECT octet_length(data) FROM {s}.blobs WHERE hash = q.hash", " FOR UPDATE"),
    "IS_REFERRED_TO": questions(
        "reference:b",
        "SELECT 1 WHERE "
        + " OR ".join(
            f"(SELECT 1 FROM {{s}}.{table} WHERE {column} = q.reference AND octet_length({column}) = 33 LIMIT 1) "
            "IS NOT NULL"
            for table, column in blobs.COLUMNS
        ),
    ),
    "FORGET_BLOB": delete("blobs", "hash:b", "hash = q.hash"),
    "FORGET_LISTENERS": _forget_workers(1, "SELECT min(created_at) FROM {s}.runs WHERE by_delivery + 0 = 1"),
    "FORGET_WORKERS": _forget_workers(
        0, f"SELECT created_at - {WORKERS_KEPT} FROM {{s}}.runs ORDER BY created_at, key LIMIT 1"
    ),
}
