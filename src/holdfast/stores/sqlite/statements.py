"""Statements that only the SQLite store has: those on the hot path, and those that other databases do differently.

On the hot path, lists are bound in batches of a fixed length, because ``json_each`` is too slow there.
"""

from __future__ import annotations

from holdfast.stores.sql.ready_states import READY_WHEN_DUE, ReadyState
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.statements.columns import MEMORY_COLUMNS, RECORD_COLUMNS, RUN_COLUMNS, USED
from holdfast.stores.sql.statements.usage import ADD_USED
from holdfast.stores.sqlite.dialect import SqliteDialect

STATEMENTS = Statements(SqliteDialect())

KEYS_PER_STATEMENT = 50
"""Keys that are bound in one statement."""

# The fence: what a batch needs to know about its runs

_SELECT_FENCES = (
    "SELECT key, id, epoch, state, cancel_state, paused_at IS NOT NULL, EXISTS (SELECT 1 FROM links WHERE link_state "
    "= 1 AND child = runs.key), has_budget, due_state > 1, is_delivery FROM runs"
)
FENCES_BY_KEY = f"{_SELECT_FENCES} WHERE key IN (?{', ?' * (KEYS_PER_STATEMENT - 1)})"
FENCE_BY_KEY = f"{_SELECT_FENCES} WHERE key = ?"
FENCE_BY_ID = f"{_SELECT_FENCES} WHERE id = ?"
FENCES_BY_ID = f"{_SELECT_FENCES} WHERE id IN (SELECT value FROM json_each(?))"

# Histories: most runs that are claimed are new

_HAS_HISTORY = (
    "EXISTS (SELECT 1 FROM records WHERE run = {run}) OR EXISTS (SELECT 1 FROM attempts WHERE run = {run}) "
    "OR EXISTS (SELECT 1 FROM signals WHERE run = {run}) OR EXISTS (SELECT 1 FROM links WHERE parent = {run})"
)
BEGUN_RUNS = f"SELECT value FROM json_each(?) WHERE {_HAS_HISTORY.format(run='value')}"

# Records

_RECORD_PLACEHOLDERS = f"(?{', ?' * RECORD_COLUMNS.count(',')})"
APPEND_FENCED = {
    count: f"INSERT INTO records ({RECORD_COLUMNS}) "
    f"WITH new ({RECORD_COLUMNS}) AS (VALUES {', '.join([_RECORD_PLACEHOLDERS] * count)}) SELECT new.* FROM new "
    "CROSS JOIN runs ON runs.key = new.run AND runs.epoch = new.epoch AND runs.state = 'running' "
    "AND runs.has_budget = 0"
    for count in (50, 10, 2, 1)
}
"""By the number of rows, largest first: one statement for many rows takes half the time of one for each. A record of a
run with a budget may release a reservation, so a batch appends it."""
ADD_USAGE = (
    f"INSERT INTO usages AS t (run, {USED}, seconds, reserved_calls, reserved_tokens, reserved_nano_usd, "
    "short_positions) SELECT key, ?3, ?4, ?5, ?6, ?7, ?8, ?10, 0, 0, 0, '' FROM runs WHERE key = ?9 AND parent = '' "
    f"AND due_state <= 1 ON CONFLICT (run) DO UPDATE SET {ADD_USED}, seconds = t.seconds + excluded.seconds"
)
"""Adds the usage of a record to the account of its run; the values are those of ``Database.append_fenced``."""
SAVE_OUTCOME = (
    "INSERT INTO attempts (run, position, attempt, intent, error, at, name, outcome) VALUES (?, ?, ?, 0, '', ?, ?, ?) "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = 0, progress = NULL, error = '', "
    "at = excluded.at, name = excluded.name, outcome = excluded.outcome"
)

# Keys of new runs: higher than those of deleted runs, because no key is ever reused

LAST_KEY = (
    "SELECT max(coalesce((SELECT max(key) FROM runs), 0), "
    "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'pruned'), 0))"
)

# Claims

PROMOTE_DUE = (
    f"UPDATE runs SET ready_state = {READY_WHEN_DUE} WHERE key IN (SELECT key FROM runs INDEXED BY runs_waking WHERE "
    f"ready_state = {ReadyState.TIMER} AND workflow = ? AND version = ? AND wake_at <= ? ORDER BY wake_at LIMIT ?)"
)
DUE_RUNS = (
    f"SELECT priority, key FROM runs INDEXED BY runs_due WHERE ready_state = {ReadyState.DUE} AND workflow = :workflow "
    "AND version = :version AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues))) "
    "ORDER BY priority DESC, key LIMIT :limit"
)

IS_CLAIM_EXTRAORDINARY = (
    "SELECT EXISTS (SELECT 1 FROM disabled_workflows WHERE workflow = :workflow) OR EXISTS (SELECT 1 FROM queues) OR "
    f"EXISTS (SELECT 1 FROM runs INDEXED BY runs_suspects WHERE ready_state = {ReadyState.SUSPECT} AND workflow = "
    ":workflow AND version = :version AND wake_at <= :now) OR EXISTS (SELECT 1 FROM runs INDEXED BY runs_waking WHERE "
    f"ready_state = {ReadyState.TIMER} AND workflow = :workflow AND version = :version AND wake_at <= :now)"
)
FIRST_DUE_RUNS = (
    f"SELECT {_HAS_HISTORY.format(run='key')}, {RUN_COLUMNS} FROM runs INDEXED BY runs_due WHERE ready_state = "
    f"{ReadyState.DUE} AND workflow = :workflow AND version = :version ORDER BY priority DESC, key LIMIT :limit"
)
LIVE_AMONG_WORKERS = "SELECT id FROM workers WHERE state = 'live' AND id IN (SELECT value FROM json_each(?))"

# Memories; FTS5 stores their words

PUT_MEMORY = (
    f"INSERT INTO memories ({MEMORY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, key) DO UPDATE "
    "SET value = excluded.value, text = excluded.text, updated_at = excluded.updated_at RETURNING id"
)
DELETE_MEMORY = "DELETE FROM memories WHERE namespace = ? AND key = ? RETURNING id"
PUT_MEMORY_WORDS = "INSERT OR REPLACE INTO memory_words (rowid, namespace_word, words) VALUES (?, ?, ?)"
DELETE_MEMORY_WORDS = "DELETE FROM memory_words WHERE rowid = ?"
SEARCH_MEMORIES = (
    "SELECT m.namespace, m.key, m.value, m.text, m.created_at, m.updated_at "
    "FROM memory_words CROSS JOIN memories m ON m.id = memory_words.rowid "
    "WHERE memory_words MATCH ? AND m.namespace = ? ORDER BY bm25(memory_words, 0.0, 1.0), m.key LIMIT ?"
)
PROBE_SEARCH = "SELECT 1 FROM memory_words LIMIT 0"

# Workers

REGISTER_WORKER = (
    "INSERT INTO workers (token, name, host, pid, state, workflows, queues, is_listener, started_at, lease_expires_at, "
    "heartbeat_at) VALUES (?, ?, ?, ?, 'live', ?, ?, ?, ?, ?, ?) RETURNING id"
)
RENEW_LEASE = "UPDATE workers SET lease_expires_at = ?, heartbeat_at = ? WHERE id = ? AND state = 'live'"
RENEW_LISTENER_LEASE = f"{RENEW_LEASE} AND is_listener = 1"
LIVE_WORKERS = (
    "SELECT id, token, name, host, pid, heartbeat_at, lease_expires_at FROM workers WHERE state = 'live' AND "
    "is_listener = 0"
)
EXPIRED_LISTENERS = (
    "SELECT id, name, host, pid FROM workers WHERE state = 'live' AND is_listener = 1 "
    "AND max(heartbeat_at, ?) + lease_expires_at - heartbeat_at < ?"
)

# The schema

GET_META = "SELECT value FROM meta WHERE name = ?"
PUT_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


def make_text_condition(predicate: str, *, is_plain: bool) -> str:
    """The condition that a run mentions some text; ``predicate`` is the test of one column, written as ``{}``.

    ``is_plain`` text looks the same in JSON, so most lists of tags need not be parsed.
    """
    tagged = predicate.format("tags") if is_plain else "tags != '[]'"
    tags = "json_each(CASE WHEN json_valid(tags) THEN tags ELSE '[]' END)"
    error = "CAST(error AS TEXT)"
    words = f"json_extract({error}, '$.type') || ' ' || json_extract({error}, '$.message')"
    return (
        f" AND ({predicate.format('id')} OR {predicate.format('workflow')} "
        f"OR ({tagged} AND EXISTS (SELECT 1 FROM {tags} WHERE {predicate.format('value')})) "
        f"OR (error IS NOT NULL AND {predicate.format(f'CASE WHEN json_valid({error}) THEN {words} END')}))"
    )
