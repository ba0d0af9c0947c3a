"""The SQL of the SQLite store, but for what stands beside it by its subject; the tables themselves are in ``schema``.

Lists of keys, ids and names are bound as one JSON text and unfolded by ``json_each``, so the text of a statement never
depends on its data and stays in the statement cache. On the hot path, where that is too slow, lists are bound in pieces
of a fixed length.
"""

from __future__ import annotations

from holdfast.stores.sql.statements import Statements
from holdfast.stores.sqlite.archives import ARCHIVES
from holdfast.stores.sqlite.asking import APPROVAL_CONDITIONS, ASKING
from holdfast.stores.sqlite.keeping import KEEPING
from holdfast.stores.sqlite.pruning import PRUNING
from holdfast.stores.sqlite.queueing import DUE_AS, LIMITED_AT, QUEUEING, due_as
from holdfast.stores.sqlite.schedules import SCHEDULING

AT_ONCE = 50
"""How many keys are bound in one piece."""

# Runs, one at a time

RUN_COLUMNS = (
    "key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, wake_at, waits_for, priority, "
    "deadline, inputs, digest, seed, output, error, tags, python, created_at, finished_at, began_at, cancel, "
    "paused_at, rewind, parent, forked_from, rewound, session, previous, has_budget, version, queue_key, due_as, "
    "by_delivery, suspicion"
)
GET_RUN = f"SELECT {RUN_COLUMNS} FROM runs WHERE id = ?"
GET_RUNS_BY_ID = f"SELECT {RUN_COLUMNS} FROM runs WHERE id IN (SELECT value FROM json_each(?))"
GET_RUNS_BY_KEY = f"SELECT {RUN_COLUMNS} FROM runs WHERE key IN (SELECT value FROM json_each(?))"
GET_RUN_BY_KEY = f"SELECT {RUN_COLUMNS} FROM runs WHERE key = ?"
ID = "SELECT id FROM runs WHERE key = ?"
ID_BYTES = "SELECT CAST(id AS BLOB) FROM runs WHERE key = ?"
SEED = "SELECT seed FROM runs WHERE key = ?"

# The fence: what a batch needs to know of the runs that it touches

_PIECE = f"(?{', ?' * (AT_ONCE - 1)})"
_FENCE = (
    "SELECT key, id, epoch, state, cancel, paused_at IS NOT NULL, "
    "EXISTS (SELECT 1 FROM links WHERE awaited = 1 AND child = runs.key), has_budget, due_as > 1, by_delivery FROM runs"
)
FENCES_BY_KEY = f"{_FENCE} WHERE key IN {_PIECE}"
FENCE = f"{_FENCE} WHERE key = ?"
FENCES_BY_ID = f"{_FENCE} WHERE id IN (SELECT value FROM json_each(?))"

# Records

_RECORD_COLUMNS = "run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview, payload"
_RECORD_VALUES = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
APPEND = f"INSERT INTO records ({_RECORD_COLUMNS}) VALUES {_RECORD_VALUES}"
APPEND_FENCED = {
    count: f"INSERT INTO records ({_RECORD_COLUMNS}) "
    f"WITH new ({_RECORD_COLUMNS}) AS (VALUES {', '.join([_RECORD_VALUES] * count)}) SELECT new.* FROM new "
    "CROSS JOIN runs ON runs.key = new.run AND runs.epoch = new.epoch AND runs.state = 'running' "
    "AND runs.has_budget = 0"
    for count in (50, 10, 1)
}
"""By the number of rows, largest first: one statement for many rows takes half the time of one for each. What runs with
a budget record may give back a reservation, which is the business of a batch."""
RECORD_EPOCH = "SELECT epoch FROM records WHERE run = ? AND seq = ?"
_JOURNAL = "seq, kind, position, name, ok, payload, at, started_at, attempts, worker, epoch, preview"
JOURNAL = f"SELECT {_JOURNAL} FROM records WHERE run = ? ORDER BY seq"
JOURNAL_PLACES = "SELECT seq, position, CAST(name AS BLOB) FROM records WHERE run = ? ORDER BY seq"
JOURNAL_ENTRY = f"SELECT {_JOURNAL} FROM records WHERE run = ? AND seq = ?"
NEW_RECORDS = f"SELECT {_JOURNAL} FROM records WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
JOURNAL_PARTS = (
    "SELECT epoch, worker, kind, count(*), min(seq), max(seq) FROM records WHERE run = ? GROUP BY epoch, worker, kind "
    "ORDER BY min(seq)"
)
LAST_SEQ = "SELECT coalesce(max(seq), -1) FROM records WHERE run = ?"
LAST_RECORD = (
    f"SELECT {_JOURNAL} FROM records WHERE run = (SELECT key FROM runs WHERE id = ?) AND name = ? AND ok = 1 "
    "ORDER BY seq DESC LIMIT 1"
)
COPY_JOURNAL = (
    f"INSERT INTO records ({_RECORD_COLUMNS}) "
    f"SELECT ?, {_RECORD_COLUMNS.removeprefix('run, ')} FROM records WHERE run = ? AND seq < ? ORDER BY seq"
)

# Attempts

NOTE_ATTEMPT = (
    "INSERT INTO attempts (run, position, attempt, intent, progress, error, at, name, retry_at, failing_since) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = excluded.intent, "
    "progress = excluded.progress, error = excluded.error, at = excluded.at, name = excluded.name, "
    "retry_at = excluded.retry_at, failing_since = excluded.failing_since"
)
CLEAR_ATTEMPT = "DELETE FROM attempts WHERE run = ? AND position = ?"
ATTEMPTS = (
    "SELECT position, attempt, intent, progress, error, at, name, outcome, retry_at, failing_since FROM attempts "
    "WHERE run = ?"
)
OUTCOME = "SELECT 1 FROM attempts WHERE run = ? AND position = ? AND name = ? AND outcome IS NOT NULL"
KEEP_OUTCOME = (
    "INSERT INTO attempts (run, position, attempt, intent, error, at, name, outcome) VALUES (?, ?, ?, 0, '', ?, ?, ?) "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = 0, progress = NULL, error = '', "
    "at = excluded.at, name = excluded.name, outcome = excluded.outcome"
)

# Signals

SEND_SIGNAL = "INSERT INTO signals (run, name, sent_at, payload, position) VALUES (?, ?, ?, ?, ?)"
NOTE_SIGNAL_KEY = "INSERT INTO signal_keys (run, dedup) VALUES (?, ?) ON CONFLICT DO NOTHING"
HAS_SIGNAL_KEY = "SELECT 1 FROM signal_keys WHERE run = ? AND dedup = ?"
CONSUME_SIGNAL = "DELETE FROM signals WHERE id = ? AND run = ?"
SENT = "SELECT DISTINCT name, position FROM signals WHERE run = ?"
DROP_END = "DELETE FROM signals WHERE run = ? AND position = ? AND name NOT GLOB 'answer:*'"
MAILBOX = "SELECT id, name, payload, sent_at, position FROM signals WHERE run = ? ORDER BY id"
# The last row tells where to go on: behind all signals that there are, also those to runs of others.
NEW_SIGNALS = (
    "SELECT s.run, s.id, s.name, s.payload, s.sent_at, s.position, s.id FROM signals s "
    "CROSS JOIN runs r ON r.key = s.run WHERE s.id > ?1 AND r.owner = ?2 AND r.state = 'running' "
    "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, max(?1, coalesce((SELECT max(id) FROM signals), 0)) "
    "ORDER BY 2"
)

# Links

LINK = (
    "INSERT INTO links (parent, position, child, awaited) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (parent, position) DO UPDATE SET child = excluded.child, awaited = excluded.awaited"
)
UNLINK = "DELETE FROM links WHERE parent = ? AND position = ?"
LINKS = "SELECT position, child, awaited FROM links WHERE parent = ? AND position BETWEEN ? AND ?"
LINKED = (  # whatever is not ``rules.Told.LATE``
    "SELECT l.position, c.id, c.digest FROM links l CROSS JOIN runs c ON c.key = l.child "
    "WHERE l.parent = ? AND l.awaited <> 2"
)
WAITING = "SELECT parent, position FROM links WHERE awaited = 1 AND child = ? ORDER BY parent, position"

# A run's life

START_RUN = (
    "INSERT INTO runs (key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, ready, "
    "wake_at, waits_for, priority, deadline, unclaimed, cancel, python, created_at, began_at, parent, forked_from, "
    "rewound, digest, seed, tags, inputs, session, previous, has_budget, version, queue_key, due_as, turn, dedup, "
    "debounced, by_delivery) VALUES "
    "(?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, '', ?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Also behind those that are deleted: no key is ever used again.
LAST_KEY = (
    "SELECT max(coalesce((SELECT max(key) FROM runs), 0), "
    "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'pruned'), 0))"
)
NEWEST_OF_SESSION = "SELECT id FROM runs WHERE workflow = ? AND session = ? AND session != '' ORDER BY key DESC LIMIT 1"
TAG_RUN = "INSERT OR IGNORE INTO run_tags (tag, run) VALUES (?, ?)"
FIND_ORPHAN = (
    f"SELECT {RUN_COLUMNS} FROM runs WHERE unclaimed = 1 AND workflow = ? AND digest = ? AND version = ? "
    "AND starter IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = runs.starter AND w.state = 'live') "
    "ORDER BY key LIMIT 1"
)
ADOPT_ORPHAN = "UPDATE runs SET starter = ?, unclaimed = 1 + (finished_at IS NOT NULL) WHERE key = ?"
RESET_DELIVERIES = "UPDATE runs SET deliveries = 0, suspicion = 0 WHERE key = ?"
# Whoever started a run with a made-up id is there to take its result when it ends, unless it was taken down before.
_CLAIMED = (
    "unclaimed = CASE WHEN unclaimed = 1 AND NOT EXISTS "
    "(SELECT 1 FROM workers w WHERE w.id = runs.starter AND w.state = 'dead') THEN 2 ELSE unclaimed END"
)
_NO_MORE = f"owner = NULL, ready = NULL, wake_at = NULL, waits_for = '', paused_at = NULL, parked_by = NULL, {_CLAIMED}"
FINISH_RUN = f"UPDATE runs SET state = ?, output = ?, error = ?, finished_at = ?, rewind = ?, {_NO_MORE} WHERE key = ?"
PARK_RUN = (
    "UPDATE runs SET state = 'waiting', owner = NULL, ready = ?, wake_at = ?, waits_for = ?, suspicion = 0, "
    "parked_by = CASE WHEN ? = 1 THEN owner END WHERE key = ?"
)
_FREED_AS = "state = 'pending', owner = NULL, ready = CASE WHEN paused_at IS NULL THEN {} END"
_FREED = _FREED_AS.format(DUE_AS)
RELEASE_RUN = f"UPDATE runs SET {_FREED}, wake_at = ? WHERE key = ?"
RELEASE_LATER = (
    f"UPDATE runs SET {_FREED_AS.format('CASE WHEN suspicion > 1 THEN 7 ELSE 0 END')}, wake_at = ?, "
    "deliveries = deliveries + ? WHERE key = ?"
)
DELIVERIES = "SELECT deliveries, max_deliveries, suspicion FROM runs WHERE key = ?"
_WOKEN = f"ready = CASE WHEN ready IN (4, 5) THEN ready ELSE {DUE_AS} END"  # one that is set aside stays so
WAKE_RUN = f"UPDATE runs SET {_WOKEN}, wake_at = ? WHERE key = ? AND state = 'waiting' AND paused_at IS NULL"

# Requests

_ASKED = "cancel = CASE cancel WHEN '' THEN 'asked' ELSE cancel END"
CANCEL_HELD = f"UPDATE runs SET {_ASKED}, paused_at = NULL WHERE key = ?"
CANCEL_SLEEPING = (
    f"UPDATE runs SET {_ASKED}, paused_at = NULL, ready = {due_as(cancelled='true')}, wake_at = ? WHERE key = ?"
)
CANCEL_AT_ONCE = f"UPDATE runs SET {_ASKED}, state = 'cancelled', finished_at = ?, {_NO_MORE} WHERE key = ?"
CANCEL_RECORDED = "UPDATE runs SET cancel = 'recorded' WHERE key = ?"
PAUSE_RUN = "UPDATE runs SET paused_at = ?, ready = NULL WHERE key = ?"
RESUME_HELD = "UPDATE runs SET paused_at = NULL WHERE key = ?"
RESUME_SLEEPING = f"UPDATE runs SET paused_at = NULL, ready = {DUE_AS}, wake_at = ? WHERE key = ?"
RESUME_UNBEGUN = "UPDATE runs SET paused_at = NULL, ready = CASE WHEN wake_at > ? THEN 0 ELSE due_as END WHERE key = ?"
REQUESTS = (
    "SELECT key, cancel = 'asked', paused_at IS NOT NULL FROM runs INDEXED BY runs_asked "
    "WHERE owner = ? AND owner IS NOT NULL AND (cancel = 'asked' OR paused_at IS NOT NULL) AND state = 'running' "
    "ORDER BY key"
)

# Runs by delivery whose deadline has passed (those that are still being restored are let alone)

_OVERDUE = "by_delivery = 1 AND deadline <= ? AND finished_at IS NULL AND paused_at IS NOT 0"
OVERDUE = f"SELECT key FROM runs INDEXED BY runs_expiring WHERE {_OVERDUE} ORDER BY deadline, key LIMIT ?"
STILL_OVERDUE = (
    f"SELECT key, id FROM runs WHERE {_OVERDUE} AND key IN (SELECT value FROM json_each(?)) ORDER BY deadline, key"
)

# Reopening

REOPENED = "SELECT id, state, rewind FROM runs WHERE key = ?"
# As ``Rewind.takes``: what has no position goes, and what was issued after the first failure was seen.
_TAKEN = (
    "run = :run AND seq >= :first AND (seq IN (SELECT value FROM json_each(:failed)) OR kind IN (4, 8) "
    "OR records.position >= CASE WHEN kind = 2 THEN :timers ELSE :positions END)"
)
# The runs that a run waits for, and will have no end of; and whether it had one.
OPEN_ENDS = (
    "SELECT l.position, c.key, c.state, c.parent, "
    f"l.position IN (SELECT records.position FROM records WHERE kind = 5 AND {_TAKEN}) "
    "FROM links l JOIN runs c ON c.key = l.child WHERE l.parent = :run AND l.position NOT IN "
    f"(SELECT records.position FROM records WHERE kind = 5 AND run = :run AND NOT ({_TAKEN})) ORDER BY l.position"
)
PUT_BACK = (
    "INSERT INTO signals (run, name, sent_at, payload) SELECT run, name, started_at, coalesce(payload, x'6e756c6c') "
    f"FROM records WHERE kind = 3 AND {_TAKEN} ORDER BY seq"
)
TAKE_BACK = f"DELETE FROM records WHERE {_TAKEN}"
TAKE_BACK_ATTEMPTS = "DELETE FROM attempts WHERE run = :run AND position >= :positions AND intent = 0"
NOTE_REWOUND = "UPDATE runs SET rewound = json_insert(rewound, '$[#]', ?) WHERE key = ?"
_IS_CANCELLED = "EXISTS (SELECT 1 FROM records WHERE run = runs.key AND kind = 8)"
# Whether its queue has limits is decided anew.
_REOPENED_AS = (
    "CASE WHEN EXISTS (SELECT 1 FROM queues WHERE name = runs.queue) "
    "THEN CASE epoch WHEN 0 THEN 2 ELSE 3 END ELSE 1 END"
)
REOPEN_RUN = (
    "UPDATE runs SET state = 'pending', owner = NULL, deliveries = 0, suspicion = 0, output = NULL, error = NULL, "
    f"finished_at = NULL, due_as = {_REOPENED_AS}, ready = CASE WHEN {_REOPENED_AS} > 1 AND {_IS_CANCELLED} THEN 6 "
    f"ELSE {_REOPENED_AS} END, dedup = '', "
    "wake_at = ?, deadline = CASE WHEN deadline > ? THEN deadline END, unclaimed = min(unclaimed, 1), "
    f"cancel = CASE WHEN {_IS_CANCELLED} THEN 'recorded' ELSE '' END, "
    "paused_at = NULL, rewind = NULL WHERE key = ?"
)
SET_VERSION = "UPDATE runs SET version = ? WHERE key = ?"
# Answers in the journal, and to questions that were asked because of what is taken back.
DROP_ANSWERS = "DELETE FROM signals WHERE run = :run AND position >= :positions AND name GLOB 'answer:*'"
TAKE_BACK_ANSWERS = (
    "UPDATE approvals SET state = 'withdrawn' WHERE run = :run AND (approvals.position >= :positions "
    f"OR approvals.position IN (SELECT records.position FROM records WHERE kind = 9 AND {_TAKEN}))"
)

# Memories

_MEMORY = "m.namespace, m.key, m.value, m.text, m.created_at, m.updated_at"
PUT_MEMORY = (
    "INSERT INTO memories (namespace, key, value, text, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, text = excluded.text, "
    "updated_at = excluded.updated_at RETURNING id"
)
DELETE_MEMORY = "DELETE FROM memories WHERE namespace = ? AND key = ? RETURNING id"
PUT_WORDS = "INSERT OR REPLACE INTO memory_words (rowid, space, words) VALUES (?, ?, ?)"
DELETE_WORDS = "DELETE FROM memory_words WHERE rowid = ?"
GET_MEMORY = f"SELECT {_MEMORY} FROM memories m WHERE namespace = ? AND key = ?"
LIST_MEMORIES = f"SELECT {_MEMORY} FROM memories m WHERE namespace = ? AND key > ? ORDER BY key LIMIT ?"
SEARCH_MEMORIES = (
    f"SELECT {_MEMORY} FROM memory_words CROSS JOIN memories m ON m.id = memory_words.rowid "
    "WHERE memory_words MATCH ? AND m.namespace = ? ORDER BY bm25(memory_words, 0.0, 1.0), m.key LIMIT ?"
)
CAN_SEARCH = "SELECT 1 FROM memory_words LIMIT 0"

# Usage

_SUMS = "calls, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced, seconds"
_ACCOUNT = f"above, {_SUMS}, reserved_calls, reserved_tokens, reserved_nano_usd, budget, short"
ACCOUNT = f"SELECT {_ACCOUNT} FROM usages WHERE run = ?"
ABOVE = "SELECT p.key FROM runs r CROSS JOIN runs p ON p.id = r.parent WHERE r.key = ? AND r.parent != ''"
KEEP_ACCOUNT = (
    f"INSERT INTO usages (run, {_ACCOUNT}) VALUES (?{', ?' * len(_ACCOUNT.split(','))}) "
    f"ON CONFLICT (run) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _ACCOUNT.split(', '))}"
)
SHORT = "SELECT run FROM usages WHERE short != '' ORDER BY run"
RESERVATIONS = "SELECT position, calls, tokens, nano_usd FROM reservations WHERE run = ?"
RESERVE = (
    "INSERT INTO reservations (run, position, calls, tokens, nano_usd) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, position) DO UPDATE SET calls = excluded.calls, tokens = excluded.tokens, "
    "nano_usd = excluded.nano_usd"
)
GIVE_BACK = "DELETE FROM reservations WHERE run = ? AND position = ?"
USAGES = (
    f"SELECT r.id, {_SUMS}, u.budget FROM json_each(?) CROSS JOIN runs r ON r.id = value "
    "CROSS JOIN usages u ON u.run = r.key"
)

# The switch

SWITCHES = "SELECT workflow, off_since, set_by, reason, is_temporary FROM switches"
SWITCH_OFF = """
INSERT INTO switches (workflow, off_since, set_by, reason, is_temporary) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (workflow) DO UPDATE SET set_by = excluded.set_by, reason = excluded.reason, is_temporary = 0
WHERE is_temporary = 1 AND excluded.is_temporary = 0
"""
SWITCH_ON = "DELETE FROM switches WHERE workflow = ? AND is_temporary >= ?"

# Large values

KEEP_BLOB = "INSERT INTO blobs (hash, size, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
BLOBS = "SELECT hash, data FROM blobs WHERE hash = ?"
BLOB_SIZES = "SELECT hash, size FROM blobs WHERE hash = ?"

# Claims (their indexes are named, because SQLite takes one that holds every run of a workflow for as good)

_SERVED = "(:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))"
_WORKFLOW = "json_extract(w.value, '$[0]')"
_ON = f"{_WORKFLOW} NOT IN (SELECT workflow FROM switches)"
_THESE = f"workflow = {_WORKFLOW} AND version = json_extract(w.value, '$[1]') AND {_SERVED}"
HAS_DUE = (
    f"SELECT EXISTS (SELECT 1 FROM json_each(:workflows) w WHERE {_ON} AND ("
    f"EXISTS (SELECT 1 FROM runs INDEXED BY runs_due WHERE ready = 1 AND {_THESE}) "
    f"OR EXISTS (SELECT 1 FROM runs INDEXED BY runs_waking WHERE ready = 0 AND wake_at <= :now AND {_THESE}) "
    f"OR EXISTS (SELECT 1 FROM runs INDEXED BY runs_suspects WHERE ready = 7 AND wake_at <= :now AND {_THESE}))) "
    f"OR coalesce(({LIMITED_AT}) <= :now, 0)"
)
PROMOTE_DUE = (
    f"UPDATE runs SET ready = {DUE_AS} WHERE key IN (SELECT key FROM runs INDEXED BY runs_waking "
    "WHERE ready = 0 AND workflow = ? AND version = ? AND wake_at <= ? ORDER BY wake_at LIMIT ?)"
)
DUE = (
    "SELECT priority, key FROM runs INDEXED BY runs_due WHERE ready = 1 AND workflow = :workflow "
    f"AND version = :version AND {_SERVED} ORDER BY priority DESC, key LIMIT :limit"
)
SUSPECTS = (
    "SELECT key, queue, queue_key, priority, suspicion, due_as > 1, cancel != '' FROM runs INDEXED BY runs_suspects "
    "WHERE ready = 7 AND workflow = ? AND version = ? AND wake_at <= ? "
    "ORDER BY suspicion DESC, priority DESC, key LIMIT ?"
)
CLAIM = (
    "UPDATE runs SET state = 'running', epoch = epoch + 1, owner = ?, ready = NULL, wake_at = NULL, waits_for = '', "
    "due_as = CASE due_as WHEN 2 THEN 3 ELSE due_as END, dedup = CASE debounced WHEN 1 THEN '' ELSE dedup END "
    "WHERE key = ?"
)
FAIL_UNREADABLE = (
    f"UPDATE runs SET state = 'failed', error = ?, finished_at = ?, {_NO_MORE} WHERE key = ? AND state = 'running'"
)
NEXT_READY = (
    f"SELECT min((SELECT wake_at FROM runs INDEXED BY runs_due WHERE ready = 1 AND {_THESE} LIMIT 1)), "
    f"({LIMITED_AT}), min((SELECT wake_at FROM runs INDEXED BY runs_suspects WHERE ready = 7 AND {_THESE} "
    f"ORDER BY wake_at LIMIT 1)) FROM json_each(:workflows) w WHERE {_ON}"
)
NEXT_TIMER = (
    f"SELECT min((SELECT wake_at FROM runs INDEXED BY runs_waking WHERE ready = 0 AND {_THESE} "
    f"ORDER BY wake_at LIMIT 1)) FROM json_each(:workflows) w WHERE {_ON}"
)

# Lists of runs: the keys of a page (``{filters}`` is made of the constant conditions below)

LIST_BY_KEY = "SELECT key FROM runs NOT INDEXED WHERE key < ? AND key >= ?{filters} ORDER BY key DESC LIMIT ?"
LIST_STRETCH = (
    "SELECT key FROM runs INDEXED BY runs_listed WHERE workflow = ? AND state = ? AND key < ? "
    "AND key >= ?{filters} ORDER BY key DESC LIMIT ?"
)
LIST_STATE = (
    "SELECT key FROM runs INDEXED BY runs_in_state WHERE state || '.' = ? || '.' AND key < ? "
    "AND key >= ?{filters} ORDER BY key DESC LIMIT ?"
)
_NARROW = {
    "owner": ("key", "runs INDEXED BY runs_held", "owner = ?"),
    "parent": ("key", "runs INDEXED BY runs_children", "runs.parent = ? AND runs.parent != ''"),
    "tag": ("run", "run_tags", "tag = ?"),
    "id_prefix": ("key", "runs INDEXED BY sqlite_autoindex_runs_1", "id >= ? AND id < ?"),
    "created": ("key", "runs INDEXED BY runs_created", "created_at >= ? AND created_at < ?"),
}
LIST_BY = {
    name: f"SELECT {key} AS key FROM {index}{' CROSS JOIN runs ON key = run' if key == 'run' else ''} "
    f"WHERE {condition} AND {key} < ? AND {key} >= ?{{filters}} ORDER BY {key} DESC LIMIT ?"
    for name, (key, index, condition) in _NARROW.items()
}
"""By what narrows the list."""
HOW_MANY = {
    name: f"SELECT count(*) FROM (SELECT 1 FROM {index} WHERE {condition} LIMIT ?)"
    for name, (_, index, condition) in _NARROW.items()
}
NEWEST_CREATED = "SELECT max(key) FROM runs INDEXED BY runs_created WHERE created_at >= ? AND created_at < ?"
CREATED_BELOW = (
    "SELECT 1 FROM runs INDEXED BY runs_created WHERE created_at >= ? AND created_at < ? AND key < ? "
    "ORDER BY created_at LIMIT 1"
)
FILTERS = {
    "states": " AND state IN (SELECT value FROM json_each(?))",
    "workflow": " AND workflow = ?",
    "owner": " AND owner = ?",
    "parent": " AND runs.parent = ? AND runs.parent != ''",
    "tag": " AND EXISTS (SELECT 1 FROM run_tags t WHERE t.tag = ? AND t.run = runs.key)",
    "id_prefix": " AND id >= ? AND id < ?",
    "created": " AND created_at >= ? AND created_at < ?",
}
KNOWN_WORKFLOWS = (
    "WITH RECURSIVE w (name) AS (SELECT min(workflow) FROM runs UNION ALL "
    "SELECT (SELECT min(workflow) FROM runs WHERE workflow > w.name) FROM w WHERE w.name IS NOT NULL) "
    "SELECT name FROM w WHERE name IS NOT NULL"
)
COUNT_SOME = (
    f"SELECT w.name, s.value, (SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY runs_listed "
    f"WHERE workflow = w.name AND state = s.value LIMIT ?2)) FROM ({KNOWN_WORKFLOWS}) w CROSS JOIN json_each(?1) s"
)
COUNT_RUNS = "SELECT workflow, state, count(*) FROM runs GROUP BY workflow, state"
COUNT_UNFINISHED = (
    "SELECT workflow, version, count(*) FROM json_each(?) w "
    "CROSS JOIN (VALUES ('pending'), ('running'), ('waiting')) s "
    "CROSS JOIN runs INDEXED BY runs_listed ON workflow = w.value AND state = s.column1 GROUP BY workflow, version"
)

# The schema

GET_META = "SELECT value FROM meta WHERE name = ?"
PUT_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"

# Workers

WORKER_COLUMNS = "id, name, host, pid, state, workflows, queues, started_at, lease_until, beat_at, by_lease"
REGISTER_WORKER = (
    "INSERT INTO workers (token, name, host, pid, state, workflows, queues, by_lease, started_at, lease_until, "
    "beat_at) VALUES (?, ?, ?, ?, 'live', ?, ?, ?, ?, ?, ?) RETURNING id"
)
WORKER = f"SELECT {WORKER_COLUMNS} FROM workers WHERE id = ?"
SERVE = "UPDATE workers SET workflows = ? WHERE id = ?"
RENEW_LEASE = "UPDATE workers SET lease_until = ?, beat_at = ? WHERE id = ? AND state = 'live'"
KEEP_WORKER = f"{RENEW_LEASE} AND by_lease = 1"
IS_LIVE = "SELECT 1 FROM workers WHERE id = ? AND state = 'live'"
# Workers of a release that did not keep `beat_at` have 0 there.
BEAT_AT = "max(beat_at, started_at)"
LIVE_WORKERS = (
    f"SELECT id, token, name, host, pid, {BEAT_AT}, lease_until FROM workers WHERE state = 'live' AND by_lease = 0"
)
LISTENERS_OVER = (
    "SELECT id, name, host, pid FROM workers WHERE state = 'live' AND by_lease = 1 "
    "AND max(beat_at, ?) + lease_until - beat_at < ?"
)
END_WORKER = "UPDATE workers SET state = ? WHERE id = ? AND state = 'live'"
LEASE = f"SELECT {BEAT_AT}, lease_until FROM workers WHERE id = ? AND state = 'live'"


def _each(column: str, index: str, condition: str) -> str:
    """The different values of a column, found by one step through an index for each."""
    source = f"FROM runs INDEXED BY {index} WHERE {condition}"
    return (
        f"SELECT id FROM (WITH RECURSIVE e (id) AS (SELECT min({column}) {source} UNION ALL "
        f"SELECT (SELECT min({column}) {source} AND {column} > e.id) FROM e WHERE e.id IS NOT NULL) SELECT id FROM e)"
    )


WORKERS = (
    f"SELECT {WORKER_COLUMNS} FROM workers WHERE id IN ("
    "SELECT id FROM workers INDEXED BY workers_live WHERE state = 'live' UNION "
    f"{_each('owner', 'runs_held', 'owner IS NOT NULL')} UNION "
    f"{_each('starter', 'runs_started', 'starter IS NOT NULL AND finished_at IS NULL')} UNION "
    "SELECT value FROM json_each(?)) ORDER BY id"
)
HELD_RUNS = (
    "SELECT key, id, deliveries, max_deliveries, suspicion FROM runs WHERE owner = ? AND state = 'running' ORDER BY key"
)
HELD_WITH_BUDGET = "SELECT key FROM runs WHERE owner = ? AND state = 'running' AND has_budget = 1"
FREE_RUN = (
    f"UPDATE runs SET {_FREED_AS.format(due_as('?3'))}, wake_at = ?1, deliveries = ?2, suspicion = ?3 WHERE key = ?4"
)
KILL_RUN = f"UPDATE runs SET state = 'dead', deliveries = ?, error = ?, finished_at = ?, {_NO_MORE} WHERE key = ?"
RELEASE_ALL = f"UPDATE runs SET {_FREED}, wake_at = ? WHERE owner = ? AND state = 'running'"
WAKE_PARKED_BY = (
    f"UPDATE runs SET {_WOKEN}, wake_at = ? WHERE parked_by = ? AND state = 'waiting' AND paused_at IS NULL"
)

# Workflows

_SPEC = (
    "name, parameters, id_template, queue, timeout, tags, budget, is_agent, max_deliveries, announced_at, queue_key, "
    "by_delivery, inputs_schema"
)
PUBLISH = (
    f"INSERT INTO workflows ({_SPEC}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET parameters = excluded.parameters, id_template = excluded.id_template, "
    "queue = excluded.queue, timeout = excluded.timeout, tags = excluded.tags, budget = excluded.budget, "
    "is_agent = excluded.is_agent, max_deliveries = excluded.max_deliveries, announced_at = excluded.announced_at, "
    "queue_key = excluded.queue_key, by_delivery = excluded.by_delivery, inputs_schema = excluded.inputs_schema"
)
SPECS = f"SELECT {_SPEC} FROM workflows"

STATEMENTS = Statements.of(
    {**globals(), **ARCHIVES, **ASKING, **KEEPING, **PRUNING, **QUEUEING, **SCHEDULING}
    | {"APPROVAL_CONDITIONS": APPROVAL_CONDITIONS}
)


def containing(test: str, *, plain: bool) -> str:
    """The condition that a run mentions some text; ``test`` is what is asked of each place, written as ``{}``.

    ``plain`` text looks the same in JSON, so most lists of tags need not be taken apart.
    """
    tagged = test.format("tags") if plain else "tags != '[]'"
    tags = "json_each(CASE WHEN json_valid(tags) THEN tags ELSE '[]' END)"
    error = "CAST(error AS TEXT)"
    words = f"json_extract({error}, '$.type') || ' ' || json_extract({error}, '$.message')"
    return (
        f" AND ({test.format('id')} OR {test.format('workflow')} "
        f"OR ({tagged} AND EXISTS (SELECT 1 FROM {tags} WHERE {test.format('value')})) "
        f"OR (error IS NOT NULL AND {test.format(f'CASE WHEN json_valid({error}) THEN {words} END')}))"
    )
