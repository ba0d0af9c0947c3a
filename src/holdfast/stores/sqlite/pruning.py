"""The SQL by which runs are deleted: see ``stores.pruning``, and ``sql.pruning`` for how it is used.

Whether a large value is still needed is found by indexes that have only the rows with a reference in them, or with a
payload that happens to be as long as one.
"""

from __future__ import annotations

from typing import Final

from holdfast.stores.rules import WORKERS_KEPT
from holdfast.stores.sql import blobs

_REFERENCE = "CASE WHEN length({0}) = 33 AND substr({0}, 1, 1) = x'00' THEN {0} END"
_IN = "IN (SELECT value FROM json_each(?))"


def _references(table: str, column: str) -> str:
    return f"SELECT {column} FROM {table} WHERE run {_IN} AND length({column}) = 33"


def _forget_workers(by_lease: int, index: str, oldest: str) -> str:
    """Those that have left or are dead, whose lease has ended before a time and before any of these runs was there."""
    return (
        f"DELETE FROM workers WHERE id IN (SELECT id FROM (SELECT id, lease_until FROM workers INDEXED BY {index} "
        f"WHERE by_lease = {by_lease} AND state != 'live' ORDER BY id LIMIT ?) w WHERE lease_until < min(?, "
        f"coalesce(({oldest}), ?)) AND NOT EXISTS "
        "(SELECT 1 FROM runs WHERE starter = w.id AND starter IS NOT NULL AND finished_at IS NULL))"
    )


PRUNING: Final[dict[str, str]] = {
    "ENDED_STRETCH": (
        "SELECT key FROM runs INDEXED BY runs_listed WHERE workflow = ? AND state = ? AND key > ? AND key <= ? "
        "AND finished_at < ? ORDER BY key LIMIT ?"
    ),
    "KIN": (
        "SELECT key, id, workflow, state, finished_at, parent, session, previous, unclaimed FROM runs WHERE key = ?"
    ),
    "KEY_OF": "SELECT key FROM runs WHERE id = ?",
    "CHILDREN": "SELECT key FROM runs WHERE parent = ? AND parent != ''",
    "CONTINUED": "SELECT key FROM runs WHERE previous = ? AND previous != ''",
    "SESSION_RUNS": "SELECT key FROM runs WHERE workflow = ? AND session = ? AND session != ''",
    "IS_AWAITED": (
        "SELECT 1 FROM links l CROSS JOIN runs r ON r.key = l.parent "
        "WHERE l.child = ? AND r.finished_at IS NULL LIMIT 1"
    ),
    "AWAITED_RUNS": "SELECT child FROM links WHERE parent = ?",
    "JOURNAL_SIZE": (
        "SELECT count(*), coalesce(sum(length(payload)), 0) + (SELECT length(inputs) + coalesce(length(output), 0) "
        "+ coalesce(length(error), 0) FROM runs WHERE key = ?1) FROM records WHERE run = ?1"
    ),
    "LOCK_ENDED": f"SELECT key FROM runs WHERE key {_IN} AND finished_at IS NOT NULL",
    "NOTE_PRUNED": (
        "INSERT INTO pruned (key, size, inputs, output, error) SELECT key, "
        "length(inputs) + coalesce(length(output), 0) + coalesce(length(error), 0), "
        f"{', '.join(_REFERENCE.format(column) for column in ('inputs', 'output', 'error'))} FROM runs WHERE key = ?"
    ),
    "FORGET_RUN": "DELETE FROM runs WHERE key = ?",
    "FORGET_LINKS": "DELETE FROM links WHERE parent = ?",
    "FORGET_ACCOUNT": "DELETE FROM usages WHERE run = ?",
    "NEXT_PRUNED": "SELECT key, size, inputs, output, error FROM pruned ORDER BY key LIMIT ?",
    "FORGET_RECORDS": (
        "DELETE FROM records WHERE rowid IN (SELECT rowid FROM records WHERE run = ? ORDER BY seq LIMIT ?) "
        f"RETURNING coalesce(length(payload), 0), {_REFERENCE.format('payload')}"
    ),
    "LARGE_SIGNALS": _references("signals", "payload"),
    "LARGE_APPROVALS": (
        "WITH gone AS MATERIALIZED (SELECT form, arguments, answer FROM approvals "
        f"WHERE run {_IN}) SELECT form FROM gone WHERE length(form) = 33 UNION SELECT arguments FROM gone "
        "WHERE length(arguments) = 33 UNION SELECT answer FROM gone WHERE length(answer) = 33"
    ),
    "FORGET_ATTEMPTS": "DELETE FROM attempts WHERE run = ?",
    "FORGET_SIGNALS": "DELETE FROM signals WHERE run = ?",
    "FORGET_SIGNAL_KEYS": "DELETE FROM signal_keys WHERE run = ?",
    "FORGET_TAGS": (
        "DELETE FROM run_tags WHERE run = ?1 AND tag IN (SELECT value FROM json_each("
        "(SELECT CASE WHEN json_valid(tags) THEN tags ELSE '[]' END FROM runs WHERE key = ?1)))"
    ),
    "FORGET_RESERVATIONS": "DELETE FROM reservations WHERE run = ?",
    "FORGET_APPROVALS": "DELETE FROM approvals WHERE run = ?",
    "FORGET_NOTICES": "DELETE FROM notices WHERE run = ?",
    "FORGET_PRUNED": "DELETE FROM pruned WHERE key = ?",
    "LOCK_BLOB": "SELECT length(data) FROM blobs WHERE hash = ?",
    "IS_REFERRED_TO": " UNION ALL ".join(
        f"SELECT 1 FROM {table} WHERE {column} = ?1 AND length({column}) = 33" for table, column in blobs.COLUMNS
    )
    + " LIMIT 1",
    "FORGET_BLOB": "DELETE FROM blobs WHERE hash = ?",
    "FORGET_LISTENERS": _forget_workers(
        1, "workers_gone", "SELECT min(created_at) FROM runs INDEXED BY runs_delivered WHERE by_delivery = 1"
    ),
    "FORGET_WORKERS": _forget_workers(
        0, "workers_left", f"SELECT min(created_at) - {WORKERS_KEPT} FROM runs INDEXED BY runs_created"
    ),
}
