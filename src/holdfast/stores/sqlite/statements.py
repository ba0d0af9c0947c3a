"""All SQL of the SQLite store (the tables themselves are in ``schema``).

Lists of keys, ids and names are bound as one JSON text and unfolded by ``json_each``, so the text of a statement never
depends on its data and stays in the statement cache. On the hot path, where that is too slow, lists are bound in pieces
of a fixed length.
"""

from __future__ import annotations

# Runs, one at a time

RUN_COLUMNS = (
    "key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, wake_at, waits_for, priority, "
    "deadline, inputs, digest, seed, output, error, tags, python, created_at, finished_at"
)
GET_RUN = f"SELECT {RUN_COLUMNS} FROM runs WHERE id = ?"
GET_RUNS_BY_ID = f"SELECT {RUN_COLUMNS} FROM runs WHERE id IN (SELECT value FROM json_each(?))"
GET_RUNS_BY_KEY = f"SELECT {RUN_COLUMNS} FROM runs WHERE key IN (SELECT value FROM json_each(?))"

# The fence: what a batch needs to know of the runs that it touches

FENCES_AT_ONCE = 50
FENCES_BY_KEY = f"SELECT key, id, epoch, state FROM runs WHERE key IN (?{', ?' * (FENCES_AT_ONCE - 1)})"
FENCE = "SELECT key, id, epoch, state FROM runs WHERE key = ?"
FENCES_BY_ID = "SELECT key, id, epoch, state FROM runs WHERE id IN (SELECT value FROM json_each(?))"

# Records

_RECORD_COLUMNS = "run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview, payload"
_RECORD_VALUES = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
APPEND = f"INSERT INTO records ({_RECORD_COLUMNS}) VALUES {_RECORD_VALUES}"
APPEND_FENCED = {
    count: f"INSERT INTO records ({_RECORD_COLUMNS}) "
    f"WITH new ({_RECORD_COLUMNS}) AS (VALUES {', '.join([_RECORD_VALUES] * count)}) SELECT new.* FROM new "
    "CROSS JOIN runs ON runs.key = new.run AND runs.epoch = new.epoch AND runs.state = 'running'"
    for count in (50, 10, 1)
}
"""By the number of rows, largest first: one statement for many rows takes half the time of one for each."""
RECORD_EPOCH = "SELECT epoch FROM records WHERE run = ? AND seq = ?"
LAST_RECORD = "SELECT seq, kind, ok, payload FROM records WHERE run = ? ORDER BY seq DESC LIMIT 1"
REMOVE_RECORD = "DELETE FROM records WHERE run = ? AND seq = ?"

_JOURNAL = "seq, kind, position, name, ok, payload, at, started_at, attempts, worker, epoch, preview"
JOURNAL = f"SELECT {_JOURNAL} FROM records WHERE run = ? ORDER BY seq"

# Attempts

NOTE_ATTEMPT = (
    "INSERT INTO attempts (run, position, attempt, intent, progress, error, at, name) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = excluded.intent, "
    "progress = excluded.progress, error = excluded.error, at = excluded.at, name = excluded.name"
)
CLEAR_ATTEMPT = "DELETE FROM attempts WHERE run = ? AND position = ?"
ATTEMPTS = "SELECT position, attempt, intent, progress, error, at, name FROM attempts WHERE run = ?"

# Signals

SEND_SIGNAL = "INSERT INTO signals (run, name, sent_at, payload) VALUES (?, ?, ?, ?)"
NOTE_SIGNAL_KEY = "INSERT INTO signal_keys (run, dedup) VALUES (?, ?) ON CONFLICT DO NOTHING"
HAS_SIGNAL_KEY = "SELECT 1 FROM signal_keys WHERE run = ? AND dedup = ?"
CONSUME_SIGNAL = "DELETE FROM signals WHERE id = ? AND run = ?"
HAS_SIGNAL = "SELECT 1 FROM signals WHERE run = ? AND name IN (SELECT value FROM json_each(?)) LIMIT 1"
MAILBOX = "SELECT id, name, payload, sent_at FROM signals WHERE run = ? ORDER BY id"
NEW_SIGNALS = (
    "SELECT s.run, s.id, s.name, s.payload, s.sent_at FROM signals s CROSS JOIN runs r ON r.key = s.run "
    "WHERE s.id > ? AND r.owner = ? AND r.state = 'running' ORDER BY s.id"
)

# A run's life

START_RUN = (
    "INSERT INTO runs (id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, ready, wake_at, "
    "waits_for, priority, deadline, unclaimed, python, created_at, digest, seed, tags, inputs) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
FIND_ORPHAN = (
    f"SELECT {RUN_COLUMNS} FROM runs WHERE unclaimed = 1 AND workflow = ? AND digest = ? "
    "AND starter IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = runs.starter AND w.state = 'live') "
    "ORDER BY key LIMIT 1"
)
ADOPT_ORPHAN = "UPDATE runs SET starter = ?, unclaimed = 1 + (finished_at IS NOT NULL) WHERE key = ?"
RESET_DELIVERIES = "UPDATE runs SET deliveries = 0 WHERE key = ?"
# Whoever started a run with a made-up id is there to take its result when it ends, unless it was taken down before.
_CLAIMED = (
    "unclaimed = CASE WHEN unclaimed = 1 AND NOT EXISTS "
    "(SELECT 1 FROM workers w WHERE w.id = runs.starter AND w.state = 'dead') THEN 2 ELSE unclaimed END"
)
FINISH_RUN = (
    "UPDATE runs SET state = ?, output = ?, error = ?, finished_at = ?, owner = NULL, ready = NULL, wake_at = NULL, "
    f"{_CLAIMED} WHERE key = ?"
)
PARK_RUN = "UPDATE runs SET state = 'waiting', owner = NULL, ready = ?, wake_at = ?, waits_for = ? WHERE key = ?"
RELEASE_RUN = "UPDATE runs SET state = 'pending', owner = NULL, ready = 1, wake_at = ? WHERE key = ?"
WAKE_RUN = "UPDATE runs SET ready = 1, wake_at = ? WHERE key = ? AND state = 'waiting'"
REOPEN_RUN = (
    "UPDATE runs SET state = 'pending', owner = NULL, deliveries = 0, output = NULL, error = NULL, finished_at = NULL, "
    "ready = 1, wake_at = ?, deadline = CASE WHEN deadline > ? THEN deadline END, unclaimed = min(unclaimed, 1) "
    "WHERE key = ?"
)

# Claims

_SERVED = "(:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))"
HAS_DUE = (
    "SELECT EXISTS (SELECT 1 FROM json_each(:workflows) w WHERE "
    f"EXISTS (SELECT 1 FROM runs WHERE ready = 1 AND workflow = w.value AND {_SERVED}) "
    f"OR EXISTS (SELECT 1 FROM runs WHERE ready = 0 AND workflow = w.value AND wake_at <= :now AND {_SERVED}))"
)
PROMOTE_DUE = (
    "UPDATE runs SET ready = 1 WHERE key IN "
    "(SELECT key FROM runs WHERE ready = 0 AND workflow = ? AND wake_at <= ? ORDER BY wake_at LIMIT ?)"
)
DUE = (
    f"SELECT priority, key FROM runs WHERE ready = 1 AND workflow = :workflow AND {_SERVED} "
    "ORDER BY priority DESC, key LIMIT :limit"
)
CLAIM = (
    "UPDATE runs SET state = 'running', epoch = epoch + 1, owner = ?, ready = NULL, wake_at = NULL, waits_for = '' "
    "WHERE key = ?"
)
NEXT_READY = (
    "SELECT min((SELECT wake_at FROM runs WHERE ready = 1 AND workflow = w.value "
    f"AND {_SERVED} LIMIT 1)) FROM json_each(:workflows) w"
)
NEXT_TIMER = (
    "SELECT min((SELECT wake_at FROM runs WHERE ready = 0 AND workflow = w.value "
    f"AND {_SERVED} ORDER BY wake_at LIMIT 1)) FROM json_each(:workflows) w"
)

# Lists of runs (``{filters}`` is made of the constant conditions below)

LIST_RUNS = f"SELECT {RUN_COLUMNS} FROM runs WHERE key < ?{{filters}} ORDER BY key DESC LIMIT ?"
LIST_KEYS = "SELECT key FROM runs WHERE workflow = ? AND state = ? AND key < ?{filters} ORDER BY key DESC LIMIT ?"
FILTERS = {
    "tag": " AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)",
    "id_prefix": " AND id >= ? AND id < ? || char(1114111)",
    "created_after": " AND created_at >= ?",
    "created_before": " AND created_at < ?",
}
KNOWN_WORKFLOWS = (
    "WITH RECURSIVE w (name) AS (SELECT min(workflow) FROM runs UNION ALL "
    "SELECT (SELECT min(workflow) FROM runs WHERE workflow > w.name) FROM w WHERE w.name IS NOT NULL) "
    "SELECT name FROM w WHERE name IS NOT NULL"
)
COUNT_RUNS = "SELECT workflow, state, count(*) FROM runs GROUP BY workflow, state"

# Workers

WORKER_COLUMNS = "id, name, host, pid, state, workflows, queues, started_at, lease_until"
REGISTER_WORKER = (
    "INSERT INTO workers (token, name, host, pid, state, workflows, queues, started_at, lease_until) "
    "VALUES (?, ?, ?, ?, 'live', ?, ?, ?, ?)"
)
WORKER = f"SELECT {WORKER_COLUMNS} FROM workers WHERE id = ?"
SERVE = "UPDATE workers SET workflows = ? WHERE id = ?"
RENEW_LEASE = "UPDATE workers SET lease_until = ? WHERE id = ? AND state = 'live'"
IS_LIVE = "SELECT 1 FROM workers WHERE id = ? AND state = 'live'"
LIVE_WORKERS = "SELECT id, token, name, host, pid, lease_until FROM workers WHERE state = 'live'"
END_WORKER = "UPDATE workers SET state = ? WHERE id = ? AND state = 'live'"
LEASE = "SELECT lease_until FROM workers WHERE id = ? AND state = 'live'"
WORKERS = (
    f"SELECT {WORKER_COLUMNS} FROM workers w WHERE state = 'live' "
    "OR EXISTS (SELECT 1 FROM runs WHERE owner = w.id) "
    "OR EXISTS (SELECT 1 FROM runs WHERE starter = w.id AND finished_at IS NULL) "
    "OR id IN (SELECT value FROM json_each(?)) ORDER BY id"
)
HELD_RUNS = "SELECT key, id, deliveries, max_deliveries FROM runs WHERE owner = ? AND state = 'running' ORDER BY key"
FREE_RUN = "UPDATE runs SET state = 'pending', owner = NULL, ready = 1, wake_at = ?, deliveries = ? WHERE key = ?"
KILL_RUN = (
    "UPDATE runs SET state = 'dead', owner = NULL, ready = NULL, wake_at = NULL, deliveries = ?, error = ?, "
    f"finished_at = ?, {_CLAIMED} WHERE key = ?"
)
RELEASE_ALL = (
    "UPDATE runs SET state = 'pending', owner = NULL, ready = 1, wake_at = ? WHERE owner = ? AND state = 'running'"
)

# Workflows

PUBLISH = (
    "INSERT INTO workflows (name, parameters, id_template, queue, timeout, tags) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET parameters = excluded.parameters, id_template = excluded.id_template, "
    "queue = excluded.queue, timeout = excluded.timeout, tags = excluded.tags"
)
SPECS = "SELECT name, parameters, id_template, queue, timeout, tags FROM workflows"
