"""The SQL of the PostgreSQL store, but for what stands beside it by its subject; the tables are in ``schema``.

Changes and questions come in numbers: a thousand runs that end, a hundred records that may be there. Statements that
are ``Bulk`` take all of them at once, as one array for each value, so that the text never depends on the data, and one
round trip does for any number.

**Plans.** Every statement is made so that each of its steps is one descent of an index, whatever the planner believes:
it is not asked to guess how long an array is. Where rows are read, the array drives a ``LATERAL`` query that is kept
apart by ``OFFSET 0``. Rows that are to be changed are found in the same way, and then changed where they stand
(``ctid``): a join of the table itself could be turned round. ``EXISTS`` beside ``OR`` could be answered by reading all
that there is, and a single row that is not NULL cannot. ``PLANNING`` rules out the rest. Plans are kept, and one that
was made while a table was empty may be a bad one when it has grown, so now and then they are made anew (see
``database``).

**Locks.** In ``READ COMMITTED`` a statement sees what was committed before it began. One that waits for a row looks at
that row again afterwards, but at nothing else. So rows are locked by statements that decide nothing, in the order of
their keys, and whatever is to be decided is read by those that follow. Whatever is changed belongs to a run that is
locked: so it stays where it stands until it is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.stores.postgres import pages
from holdfast.stores.postgres.archives import ARCHIVES
from holdfast.stores.postgres.asking import APPROVAL_CONDITIONS, ASKING
from holdfast.stores.postgres.bulk import Bulk, changes, delete, given, insert, insert_last, questions, single, update
from holdfast.stores.postgres.keeping import KEEPING
from holdfast.stores.postgres.migrations import quoted
from holdfast.stores.postgres.pruning import PRUNING
from holdfast.stores.postgres.queueing import DUE_AS, LIMITED_AT, QUEUEING, due_as
from holdfast.stores.postgres.reopening import REOPENING
from holdfast.stores.postgres.schedules import SCHEDULING
from holdfast.stores.sql.statements import Statements

PLANNING: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Settings of every connection that keeps plans. One that plans each statement anew does as well without them."""

_RUN = (
    "key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, wake_at, waits_for, priority, "
    "deadline, inputs, digest, seed, output, error, tags, python, created_at, finished_at, began_at, cancel, "
    "paused_at, rewind, parent, forked_from, rewound, session, previous, has_budget, version, queue_key, due_as, "
    "by_delivery, suspicion"
)
_RECORD = "seq, kind, position, name, ok, payload, at, started_at, attempts, worker, epoch, preview"
_RECORD_VALUES = (
    "run:i seq:i kind:i position:i ok:i at:f started_at:f attempts:i worker:i epoch:i name:t preview:t payload:b"
)
_RECORD_COLUMNS = ", ".join(value.split(":")[0] for value in _RECORD_VALUES.split())
_SUMS = "calls, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced, seconds"
_ACCOUNT = f"above, {_SUMS}, reserved_calls, reserved_tokens, reserved_nano_usd, budget, short"
_MEMORY = "namespace, key, value, text, created_at, updated_at"
_WORKER = "id, name, host, pid, state, workflows, queues, started_at, lease_until, beat_at, by_lease"

# Whoever started a run with a made-up id is there to take its result when it ends, unless it was taken down before.
_CLAIMED = (
    "unclaimed = CASE WHEN unclaimed = 1 AND NOT EXISTS "
    "(SELECT 1 FROM {s}.workers w WHERE w.id = runs.starter AND w.state = 'dead') THEN 2 ELSE unclaimed END"
)
_NO_MORE = f"owner = NULL, ready = NULL, wake_at = NULL, waits_for = '', paused_at = NULL, parked_by = NULL, {_CLAIMED}"
_FREED_AS = "state = 'pending', owner = NULL, ready = CASE WHEN paused_at IS NULL THEN {} END"
_FREED = _FREED_AS.format(DUE_AS)
_WOKEN = f"ready = CASE WHEN ready IN (4, 5) THEN ready ELSE {DUE_AS} END"  # one that is set aside stays so
_ASKED = "cancel = CASE cancel WHEN '' THEN 'asked' ELSE cancel END"

# Those that are still being restored are let alone.
_OVERDUE = "by_delivery = 1 AND deadline <= %s AND finished_at IS NULL AND paused_at IS DISTINCT FROM 0"

_SERVED = "(%(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[]))"
_WANTED = "unnest(%(workflows)s::text[], %(versions)s::text[]) w (name, version)"
_ON = f"{_WANTED} WHERE NOT EXISTS (SELECT 1 FROM {{s}}.switches o WHERE o.workflow = w.name)"
_READY = f"FROM {{s}}.runs WHERE ready = 1 AND workflow = w.name AND version = w.version AND {_SERVED}"
_TIMERS = f"FROM {{s}}.runs WHERE ready = 0 AND workflow = w.name AND version = w.version AND {_SERVED}"
_SUSPECTS = f"FROM {{s}}.runs WHERE ready = 7 AND workflow = w.name AND version = w.version AND {_SERVED}"

_RUNS: Final[dict[str, str]] = {
    "GET_RUN": questions("id:t", f"SELECT {_RUN} FROM {{s}}.runs WHERE id = q.id"),
    "GET_RUNS_BY_ID": (
        "SELECT r.* FROM (SELECT DISTINCT unnest(%s::text[]) AS id) q "
        f"CROSS JOIN LATERAL (SELECT {_RUN} FROM {{s}}.runs WHERE id = q.id OFFSET 0) r"
    ),
    "GET_RUNS_BY_KEY": (
        "SELECT r.* FROM (SELECT DISTINCT unnest(%s::bigint[]) AS key) q "
        f"CROSS JOIN LATERAL (SELECT {_RUN} FROM {{s}}.runs WHERE key = q.key OFFSET 0) r"
    ),
    "GET_RUN_BY_KEY": questions("key:i", f"SELECT {_RUN} FROM {{s}}.runs WHERE key = q.key"),
    "ID": questions("key:i", "SELECT id FROM {s}.runs WHERE key = q.key"),
    "ID_BYTES": "SELECT convert_to(id, 'UTF8') FROM {s}.runs WHERE key = %s",
    "SEED": questions("key:i", "SELECT seed FROM {s}.runs WHERE key = q.key"),
    "START_RUN": changes(
        "key:i id:t workflow:t queue:t state:t epoch:i owner:i starter:i max_deliveries:i ready:i wake_at:f "
        "priority:i deadline:f unclaimed:i python:t created_at:f began_at:f parent:t forked_from:t rewound:t digest:b "
        "seed:b tags:t inputs:b session:t previous:t has_budget:i version:t queue_key:t due_as:i turn:i dedup:t "
        "debounced:i by_delivery:i",
        "INSERT INTO {s}.runs (key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, "
        "ready, wake_at, waits_for, priority, deadline, unclaimed, cancel, python, created_at, began_at, parent, "
        "forked_from, rewound, digest, seed, tags, inputs, session, previous, has_budget, version, queue_key, due_as, "
        "turn, dedup, debounced, by_delivery) "
        "SELECT key, id, workflow, queue, state, epoch, owner, starter, 0, max_deliveries, "
        "ready, wake_at, '', priority, deadline, unclaimed, '', python, created_at, began_at, parent, "
        "forked_from, rewound, digest, seed, tags, inputs, session, previous, has_budget, version, queue_key, due_as, "
        "turn, dedup, debounced, by_delivery FROM {q} ORDER BY id",
    ),
    "TAG_RUN": insert("run_tags", "tag:t run:i", " ON CONFLICT DO NOTHING"),
    "RESET_DELIVERIES": update("key:i", "deliveries = 0, suspicion = 0"),
    "FINISH_RUN": update(
        "state:t output:b error:b finished_at:f rewind:t key:i",
        "state = q.state, output = q.output, error = q.error, finished_at = q.finished_at, rewind = q.rewind, "
        + _NO_MORE,
    ),
    "PARK_RUN": update(
        "ready:i wake_at:f waits_for:t by_holder:i key:i",
        "state = 'waiting', owner = NULL, ready = q.ready, wake_at = q.wake_at, waits_for = q.waits_for, "
        "suspicion = 0, parked_by = CASE WHEN q.by_holder = 1 THEN runs.owner END",
    ),
    "RELEASE_RUN": update("wake_at:f key:i", f"{_FREED}, wake_at = q.wake_at"),
    "RELEASE_LATER": update(
        "wake_at:f counted:i key:i",
        f"{_FREED_AS.format('CASE WHEN suspicion > 1 THEN 7 ELSE 0 END')}, wake_at = q.wake_at, "
        "deliveries = deliveries + q.counted",
    ),
    "DELIVERIES": questions("key:i", "SELECT deliveries, max_deliveries, suspicion FROM {s}.runs WHERE key = q.key"),
    "WAKE_RUN": update(
        "wake_at:f key:i",
        f"{_WOKEN}, wake_at = q.wake_at",
        " AND runs.state = 'waiting' AND runs.paused_at IS NULL",
    ),
    "CANCEL_HELD": update("key:i", f"{_ASKED}, paused_at = NULL"),
    "CANCEL_SLEEPING": update(
        "wake_at:f key:i",
        f"{_ASKED}, paused_at = NULL, ready = {due_as(cancelled='true')}, wake_at = q.wake_at",
    ),
    "CANCEL_AT_ONCE": update(
        "finished_at:f key:i", f"{_ASKED}, state = 'cancelled', finished_at = q.finished_at, {_NO_MORE}"
    ),
    "CANCEL_RECORDED": update("key:i", "cancel = 'recorded'"),
    "PAUSE_RUN": update("paused_at:f key:i", "paused_at = q.paused_at, ready = NULL"),
    "RESUME_HELD": update("key:i", "paused_at = NULL"),
    "RESUME_SLEEPING": update("wake_at:f key:i", f"paused_at = NULL, ready = {DUE_AS}, wake_at = q.wake_at"),
    "RESUME_UNBEGUN": update(
        "now:f key:i", "paused_at = NULL, ready = CASE WHEN runs.wake_at > q.now THEN 0 ELSE due_as END"
    ),
    "CLAIM": update(
        "owner:i key:i",
        "state = 'running', epoch = epoch + 1, owner = q.owner, ready = NULL, wake_at = NULL, waits_for = '', "
        "due_as = CASE due_as WHEN 2 THEN 3 ELSE due_as END, dedup = CASE debounced WHEN 1 THEN '' ELSE dedup END",
    ),
    "FREE_RUN": update(
        "wake_at:f deliveries:i suspicion:i key:i",
        f"{_FREED_AS.format(due_as('q.suspicion'))}, wake_at = q.wake_at, deliveries = q.deliveries, "
        "suspicion = q.suspicion",
    ),
    "KILL_RUN": update(
        "deliveries:i error:b finished_at:f key:i",
        f"state = 'dead', deliveries = q.deliveries, error = q.error, finished_at = q.finished_at, {_NO_MORE}",
    ),
    "ADOPT_ORPHAN": (
        "UPDATE {s}.runs SET starter = %s, unclaimed = CASE WHEN finished_at IS NULL THEN 1 ELSE 2 END WHERE key = %s"
    ),
    "FAIL_UNREADABLE": (
        f"UPDATE {{s}}.runs SET state = 'failed', error = %s, finished_at = %s, {_NO_MORE} "
        "WHERE key = %s AND state = 'running'"
    ),
    # One that is locked just now is waited for: it is joined rather than started once more.
    "FIND_ORPHAN": (
        f"SELECT {_RUN} FROM {{s}}.runs WHERE unclaimed = 1 AND workflow = %s AND digest = %s AND version = %s "
        "AND starter IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM {s}.workers w WHERE w.id = runs.starter AND w.state = 'live') "
        "ORDER BY workflow, digest, key LIMIT 1 FOR NO KEY UPDATE OF runs"
    ),
    "NEWEST_OF_SESSION": questions(
        "workflow:t session:t",
        "SELECT id FROM {s}.runs WHERE workflow = q.workflow AND session = q.session AND session <> '' "
        "ORDER BY key DESC LIMIT 1",
    ),
    "OVERDUE": f"SELECT key FROM {{s}}.runs WHERE {_OVERDUE} ORDER BY deadline, key LIMIT %s",
    "STILL_OVERDUE": (
        "SELECT r.key, r.id FROM (SELECT %s::float8 AS now, %s::bigint[] AS keys) t CROSS JOIN unnest(t.keys) q (key) "
        "CROSS JOIN LATERAL (SELECT key, id, deadline FROM {s}.runs WHERE key = q.key AND by_delivery + 0 = 1 "
        "AND deadline <= t.now AND finished_at IS NULL AND paused_at IS DISTINCT FROM 0 OFFSET 0) r "
        "ORDER BY r.deadline, r.key"
    ),
    "REQUESTS": (
        "SELECT key, cancel = 'asked', paused_at IS NOT NULL FROM {s}.runs WHERE owner = %s AND owner IS NOT NULL "
        "AND (cancel = 'asked' OR paused_at IS NOT NULL) AND state = 'running' ORDER BY key"
    ),
}

_JOURNALS: Final[dict[str, str]] = {
    "APPEND": insert("records", _RECORD_VALUES),
    "RECORD_EPOCH": questions("run:i seq:i", "SELECT epoch FROM {s}.records WHERE run = q.run AND seq = q.seq"),
    "JOURNAL": questions("run:i", f"SELECT {_RECORD} FROM {{s}}.records WHERE run = q.run ORDER BY seq"),
    "JOURNAL_PLACES": "SELECT seq, position, convert_to(name, 'UTF8') FROM {s}.records WHERE run = %s ORDER BY seq",
    "JOURNAL_ENTRY": f"SELECT {_RECORD} FROM {{s}}.records WHERE run = %s AND seq = %s",
    "NEW_RECORDS": f"SELECT {_RECORD} FROM {{s}}.records WHERE run = %s AND seq > %s ORDER BY seq LIMIT %s",
    "JOURNAL_PARTS": (
        "SELECT epoch, worker, kind, count(*), min(seq), max(seq) FROM {s}.records WHERE run = %s "
        "GROUP BY epoch, worker, kind ORDER BY min(seq)"
    ),
    "LAST_SEQ": "SELECT coalesce(max(seq), -1) FROM {s}.records WHERE run = %s",
    "LAST_RECORD": (
        f"SELECT {_RECORD} FROM {{s}}.records WHERE run = (SELECT key FROM {{s}}.runs WHERE id = %s) AND name = %s "
        "AND ok = 1 ORDER BY seq DESC LIMIT 1"
    ),
    "COPY_JOURNAL": (
        f"INSERT INTO {{s}}.records ({_RECORD_COLUMNS}) SELECT %s::bigint, {_RECORD_COLUMNS.removeprefix('run, ')} "
        "FROM {s}.records WHERE run = %s AND seq < %s ORDER BY seq"
    ),
    "NOTE_ATTEMPT": insert_last(
        "attempts",
        "run:i position:i attempt:i intent:i progress:b error:t at:f name:t retry_at:f failing_since:f",
        "run, position",
    ),
    "CLEAR_ATTEMPT": delete("attempts", "run:i position:i", "run = q.run AND position = q.position"),
    "ATTEMPTS": questions(
        "run:i",
        "SELECT position, attempt, intent, progress, error, at, name, outcome, retry_at, failing_since "
        "FROM {s}.attempts WHERE run = q.run",
    ),
    "OUTCOME": "SELECT 1 FROM {s}.attempts WHERE run = %s AND position = %s AND name = %s AND outcome IS NOT NULL",
}

_MAILBOXES: Final[dict[str, str]] = {
    "SEND_SIGNAL": insert("signals", "run:i name:t sent_at:f payload:b position:i"),
    "NOTE_SIGNAL_KEY": insert("signal_keys", "run:i dedup:t", " ON CONFLICT DO NOTHING"),
    "HAS_SIGNAL_KEY": questions("run:i dedup:t", "SELECT 1 FROM {s}.signal_keys WHERE run = q.run AND dedup = q.dedup"),
    "CONSUME_SIGNAL": delete("signals", "id:i run:i", "run = q.run AND id = q.id"),
    "SENT": questions("run:i", "SELECT name, position FROM {s}.signals WHERE run = q.run"),
    "MAILBOX": questions(
        "run:i", "SELECT id, name, payload, sent_at, position FROM {s}.signals WHERE run = q.run ORDER BY id"
    ),
    "DROP_END": delete(
        "signals", "run:i position:i", "run = q.run AND position = q.position AND name NOT LIKE 'answer:%%'"
    ),
    "DROP_ANSWER": delete(
        "signals", "run:i position:i", "run = q.run AND position = q.position AND name LIKE 'answer:%%'"
    ),
    # There is always a row, so that whoever asks comes to know where to go on: nothing that is not committed yet is
    # older than the oldest transaction that is still open now.
    "NEW_SIGNALS": (
        "SELECT s.run, s.id, s.name, s.payload, s.sent_at, s.position, c.cursor FROM "
        "(SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS cursor) c LEFT JOIN LATERAL "
        "(SELECT t.* FROM {s}.signals t CROSS JOIN (SELECT %s::bigint AS seen, %s::bigint AS worker) q "
        "CROSS JOIN LATERAL (SELECT 1 FROM {s}.runs r WHERE r.key = t.run AND r.owner + 0 = q.worker "
        "AND r.state || '' = 'running' OFFSET 0) r WHERE t.xid >= least(q.seen, c.cursor)::text::xid8) s "
        "ON true ORDER BY s.id"
    ),
    "LINK": insert_last("links", "parent:i position:i child:i awaited:i", "parent, position"),
    "UNLINK": delete("links", "parent:i position:i", "parent = q.parent AND position = q.position"),
    "LINKS": questions(
        "parent:i low:i high:i",
        "SELECT position, child, awaited FROM {s}.links WHERE parent = q.parent AND position BETWEEN q.low AND q.high",
    ),
    "LINKED": questions(  # whatever is not ``rules.Told.LATE``
        "parent:i",
        "SELECT l.position, c.id, c.digest FROM {s}.links l CROSS JOIN LATERAL "
        "(SELECT id, digest FROM {s}.runs WHERE key = l.child OFFSET 0) c WHERE l.parent = q.parent AND l.awaited <> 2",
    ),
    "WAITING": questions(
        "child:i",
        "SELECT parent, position FROM {s}.links WHERE awaited = 1 AND child = q.child ORDER BY parent, position",
    ),
}

_REST: Final[dict[str, str]] = {
    "GET_MEMORY": f"SELECT {_MEMORY} FROM {{s}}.memories WHERE namespace = %s AND key = %s",
    "LIST_MEMORIES": (f"SELECT {_MEMORY} FROM {{s}}.memories WHERE namespace = %s AND key > %s ORDER BY key LIMIT %s"),
    # A new one has no size yet: who asks is told the size as it was.
    "PUT_MEMORY": (
        "INSERT INTO {s}.memories (namespace, key, value, text, created_at, updated_at, size) "
        "VALUES (%s, %s, %s, %s, %s, %s, 0) ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, "
        "text = excluded.text, updated_at = excluded.updated_at RETURNING id, size"
    ),
    "DELETE_MEMORY": "DELETE FROM {s}.memories WHERE namespace = %s AND key = %s RETURNING id, size",
    "PUT_SIZE": "UPDATE {s}.memories SET size = %s WHERE id = %s",
    "PUT_WORDS": insert("memory_words", "word:t space:b memory:i times:i"),
    "DELETE_WORDS": delete("memory_words", "memory:i", "memory = q.memory"),
    "ADD_TOTALS": (
        "INSERT INTO {s}.memory_totals AS t (slot, memories, size) VALUES (%s, %s, %s) ON CONFLICT (slot) DO UPDATE "
        "SET memories = t.memories + excluded.memories, size = t.size + excluded.size"
    ),
    # ``words.best`` in SQL. The parts of a score are added in the order of the words, so that equal ones are equal.
    "SEARCH_MEMORIES": (
        "WITH wanted AS MATERIALIZED (SELECT q.n, q.word, t.size / t.memories AS average, "
        "greatest(ln((t.memories - h.hits + 0.5) / (h.hits + 0.5)), 1e-6) AS weight "
        "FROM (SELECT sum(memories)::float8 AS memories, sum(size)::float8 AS size FROM {s}.memory_totals) t "
        "CROSS JOIN unnest(%(words)s::text[]) WITH ORDINALITY AS q (word, n) "
        "CROSS JOIN LATERAL (SELECT count(*) AS hits FROM {s}.memory_words WHERE word = q.word) h "
        "WHERE t.memories > 0) "
        f"SELECT {_MEMORY} FROM (SELECT p.memory, sum(w.weight * p.times * 2.2 "
        "/ (p.times + 1.2 * (1 - 0.75 + 0.75 * m.size / w.average)) ORDER BY w.n) AS score FROM wanted w "
        "CROSS JOIN LATERAL (SELECT memory, times FROM {s}.memory_words WHERE word = w.word AND space = %(space)s "
        "OFFSET 0) p "
        "CROSS JOIN LATERAL (SELECT size FROM {s}.memories WHERE id = p.memory OFFSET 0) m GROUP BY p.memory) f "
        f"CROSS JOIN LATERAL (SELECT {_MEMORY} FROM {{s}}.memories WHERE id = f.memory OFFSET 0) m "
        "WHERE namespace = %(namespace)s ORDER BY f.score DESC, key LIMIT %(limit)s"
    ),
    "ACCOUNT": questions("run:i", f"SELECT {_ACCOUNT} FROM {{s}}.usages WHERE run = q.run"),
    "ABOVE": questions(
        "run:i",
        "SELECT p.key FROM {s}.runs r CROSS JOIN LATERAL (SELECT key FROM {s}.runs WHERE id = r.parent OFFSET 0) p "
        "WHERE r.key = q.run AND r.parent <> ''",
    ),
    "KEEP_ACCOUNT": insert_last(
        "usages",
        "run:i above:i calls:i input_tokens:i output_tokens:i cached_tokens:i nano_usd:i unpriced:i seconds:f "
        "reserved_calls:i reserved_tokens:i reserved_nano_usd:i budget:t short:t",
        "run",
    ),
    "SHORT": "SELECT run FROM {s}.usages WHERE short <> '' ORDER BY run",
    "RESERVATIONS": questions(
        "run:i", "SELECT position, calls, tokens, nano_usd FROM {s}.reservations WHERE run = q.run"
    ),
    "RESERVE": insert_last("reservations", "run:i position:i calls:i tokens:i nano_usd:i", "run, position"),
    "GIVE_BACK": delete("reservations", "run:i position:i", "run = q.run AND position = q.position"),
    "USAGES": (
        f"SELECT r.id, {_SUMS}, u.budget FROM (SELECT DISTINCT unnest(%s::text[]) AS id) q "
        "CROSS JOIN LATERAL (SELECT key, id FROM {s}.runs WHERE id = q.id OFFSET 0) r "
        "CROSS JOIN LATERAL (SELECT * FROM {s}.usages WHERE run = r.key OFFSET 0) u"
    ),
    "SWITCHES": "SELECT workflow, off_since, set_by, reason, is_temporary FROM {s}.switches",
    "SWITCH_OFF": """
        INSERT INTO {s}.switches AS old (workflow, off_since, set_by, reason, is_temporary) VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (workflow) DO UPDATE SET set_by = excluded.set_by, reason = excluded.reason, is_temporary = 0
        WHERE old.is_temporary = 1 AND excluded.is_temporary = 0
        """,
    "SWITCH_ON": "DELETE FROM {s}.switches WHERE workflow = %s AND is_temporary >= %s",
    # One that is there is locked: nobody deletes it before the commit (see ``pruning``).
    "KEEP_BLOB": insert(
        "blobs", "hash:b size:i data:b", " ORDER BY q.hash ON CONFLICT (hash) DO UPDATE SET size = excluded.size"
    ),
    "BLOBS": questions("hash:b", "SELECT hash, data FROM {s}.blobs WHERE hash = q.hash"),
    "BLOB_SIZES": questions("hash:b", "SELECT hash, size FROM {s}.blobs WHERE hash = q.hash"),
    "PUBLISH": insert_last(
        "workflows",
        "name:t parameters:t id_template:t queue:t timeout:f tags:t budget:t is_agent:i max_deliveries:i "
        "announced_at:f queue_key:t by_delivery:i inputs_schema:t",
        "name",
    ),
    "SPECS": (
        "SELECT name, parameters, id_template, queue, timeout, tags, budget, is_agent, max_deliveries, announced_at, "
        "queue_key, by_delivery, inputs_schema FROM {s}.workflows"
    ),
}

_CLAIMS: Final[dict[str, str]] = {
    "HAS_DUE": (
        f"SELECT EXISTS (SELECT 1 FROM {_ON} AND ((SELECT 1 {_READY} LIMIT 1) IS NOT NULL "
        f"OR (SELECT 1 {_TIMERS} AND wake_at <= %(now)s LIMIT 1) IS NOT NULL "
        f"OR (SELECT 1 {_SUSPECTS} AND wake_at <= %(now)s LIMIT 1) IS NOT NULL)) "
        f"OR coalesce(({LIMITED_AT}) <= %(now)s, false)"
    ),
    "NEXT_READY": (
        f"SELECT min((SELECT wake_at {_READY} ORDER BY workflow, version, priority DESC, key LIMIT 1)), "
        f"({LIMITED_AT}), min((SELECT wake_at {_SUSPECTS} ORDER BY workflow, version, wake_at LIMIT 1)) FROM {_ON}"
    ),
    "SUSPECTS": questions(
        "workflow:t version:t before:f few:i",
        "SELECT key, queue, queue_key, priority, suspicion, (due_as > 1)::int, (cancel <> '')::int FROM {s}.runs "
        "WHERE ready = 7 AND workflow = q.workflow AND version = q.version AND wake_at <= q.before "
        "ORDER BY suspicion DESC, priority DESC, key LIMIT q.few",
    ),
    "NEXT_TIMER": f"SELECT min((SELECT wake_at {_TIMERS} ORDER BY workflow, version, wake_at LIMIT 1)) FROM {_ON}",
}


def _each(column: str, order: str, condition: str) -> str:
    """The different values of a column, found by one step through its index for each."""
    first = f"SELECT {column} FROM {{s}}.runs WHERE {condition}"
    return (
        f"WITH RECURSIVE e (id) AS (({first} ORDER BY {order} LIMIT 1) UNION ALL "
        f"SELECT ({first} AND {column} > e.id ORDER BY {order} LIMIT 1) FROM e WHERE e.id IS NOT NULL) "
        "SELECT id FROM e WHERE id IS NOT NULL"
    )


_WORKERS: Final[dict[str, str]] = {
    # Whoever declares it dead locks its row against this; renewing a lease does not.
    "IS_LIVE": questions(
        "worker:i", "SELECT 1 FROM {s}.workers WHERE id = q.worker AND state = 'live'", " FOR KEY SHARE"
    ),
    "WORKER": f"SELECT {_WORKER} FROM {{s}}.workers WHERE id = %s",
    "WORKERS": (
        f"SELECT {_WORKER} FROM {{s}}.workers WHERE id = ANY(ARRAY(SELECT id FROM {{s}}.workers WHERE state = 'live') "
        f"|| ARRAY({_each('owner', 'owner, key', 'owner IS NOT NULL')}) "
        f"|| ARRAY({_each('starter', 'starter', 'starter IS NOT NULL AND finished_at IS NULL')}) "
        "|| %s::bigint[]) ORDER BY id"
    ),
    "SERVE": "UPDATE {s}.workers SET workflows = %s WHERE id = %s",
    "LEASE": "SELECT beat_at, lease_until FROM {s}.workers WHERE id = %s AND state = 'live' FOR UPDATE",
    "END_WORKER": "UPDATE {s}.workers SET state = %s WHERE id = %s",
    "HELD_RUNS": (
        "SELECT key, id, deliveries, max_deliveries, suspicion FROM {s}.runs WHERE owner = %s AND owner IS NOT NULL "
        "AND state || '' = 'running' ORDER BY key FOR NO KEY UPDATE"
    ),
    "HELD_WITH_BUDGET": (
        "SELECT key FROM {s}.runs WHERE owner = %s AND owner IS NOT NULL AND state || '' = 'running' AND has_budget = 1"
    ),
    "RELEASE_ALL": (
        f"UPDATE {{s}}.runs SET {_FREED}, wake_at = %s WHERE key = ANY(ARRAY(SELECT key FROM {{s}}.runs "
        "WHERE owner = %s AND owner IS NOT NULL AND state || '' = 'running' ORDER BY key FOR NO KEY UPDATE))"
    ),
    "WAKE_PARKED_BY": (
        f"UPDATE {{s}}.runs SET {_WOKEN}, wake_at = %s WHERE key = ANY(ARRAY(SELECT key FROM {{s}}.runs "
        "WHERE parked_by = %s AND parked_by IS NOT NULL AND state || '' = 'waiting' AND paused_at IS NULL "
        "ORDER BY key FOR NO KEY UPDATE))"
    ),
}

# What ``database`` does in its own way

_FENCE = "key, id, epoch, state, cancel, (paused_at IS NOT NULL)::int, 1, has_budget, (due_as > 1)::int, by_delivery"
_ABOVE = (
    "WITH RECURSIVE above (run, parent) AS ("
    "SELECT r.key, r.parent FROM unnest(%s::bigint[]) q (key) "
    "CROSS JOIN LATERAL (SELECT key, parent FROM {s}.runs WHERE key = q.key OFFSET 0) r "
    "UNION SELECT p.key, p.parent FROM above a "
    "CROSS JOIN LATERAL (SELECT key, parent FROM {s}.runs WHERE id = a.parent AND key < a.run OFFSET 0) p "
    "WHERE a.parent <> '') "
)
_OWN: Final[dict[str, str]] = {
    # Who waits for those that end is locked as well, so that all locks are taken in one order.
    "FENCES": (
        "SELECT r.* FROM (SELECT key FROM ("
        "SELECT unnest(%s::bigint[]) AS key UNION "
        "SELECT r.key FROM unnest(%s::text[]) q (id) "
        "CROSS JOIN LATERAL (SELECT key FROM {s}.runs WHERE id = q.id OFFSET 0) r UNION "
        "SELECT l.parent FROM unnest(%s::bigint[]) q (child) "
        "CROSS JOIN LATERAL (SELECT parent FROM {s}.links WHERE child = q.child AND awaited = 1 OFFSET 0) l"
        ") w ORDER BY key OFFSET 0) w "
        f"CROSS JOIN LATERAL (SELECT {_FENCE} FROM {{s}}.runs WHERE key = w.key OFFSET 0 FOR NO KEY UPDATE) r"
    ),
    # All of them or none: a record is appended only if every run that is written to is held under its epoch.
    "APPEND_FENCED": (
        "WITH held AS MATERIALIZED (SELECT r.key FROM unnest(%s::bigint[], %s::bigint[]) q (run, epoch) "
        "CROSS JOIN LATERAL (SELECT key FROM {s}.runs WHERE key = q.run AND epoch = q.epoch AND state = 'running' "
        "AND has_budget = 0 OFFSET 0 FOR SHARE) r) "
        f"INSERT INTO {{s}}.records ({_RECORD_COLUMNS}) SELECT {_RECORD_COLUMNS} FROM {given(_RECORD_VALUES)[0]} "
        "WHERE (SELECT count(*) FROM held) = %s"
    ),
    # One record alone, as a sequential run appends them: without arrays, the server has half the work.
    "APPEND_ONE": (
        f"INSERT INTO {{s}}.records ({_RECORD_COLUMNS}) SELECT {single(_RECORD_VALUES)} FROM {{s}}.runs "
        "WHERE key = %s AND epoch = %s AND state = 'running' AND has_budget = 0 FOR SHARE"
    ),
    "NEW_KEYS": "SELECT nextval('{s}.run_keys') FROM generate_series(1, %s)",
    "LOCK_SESSIONS": (
        "SELECT pg_advisory_xact_lock(h) FROM (SELECT DISTINCT hashtextextended(w || chr(1) || s, "
        "hashtextextended(%s, 0)) AS h FROM unnest(%s::text[], %s::text[]) q (w, s) ORDER BY h OFFSET 0) q"
    ),
    "OPEN_ACCOUNTS": (
        f"{_ABOVE}INSERT INTO {{s}}.usages (run, {_ACCOUNT}) "
        "SELECT a.run, p.key, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, '' FROM above a LEFT JOIN LATERAL "
        "(SELECT key FROM {s}.runs WHERE id = a.parent AND a.parent <> '' AND key < a.run OFFSET 0) p ON true "
        "ORDER BY a.run ON CONFLICT (run) DO NOTHING"
    ),
    "LOCK_ACCOUNTS": (
        f"{_ABOVE}SELECT u.* FROM (SELECT run FROM above ORDER BY run OFFSET 0) a CROSS JOIN LATERAL "
        f"(SELECT run, {_ACCOUNT} FROM {{s}}.usages WHERE run = a.run OFFSET 0 FOR NO KEY UPDATE) u"
    ),
    "PROMOTE_DUE": (
        f"UPDATE {{s}}.runs SET ready = {DUE_AS} WHERE key = ANY(ARRAY(SELECT t.key FROM "
        "unnest(%s::text[], %s::text[]) w (name, version) CROSS JOIN LATERAL (SELECT key FROM {s}.runs "
        "WHERE ready = 0 AND workflow = w.name AND version = w.version AND wake_at <= %s "
        "ORDER BY workflow, version, wake_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) t))"
    ),
    # The best ones of each version are looked at without a lock; of all those, as many are locked as are wanted.
    "DUE": (
        f"SELECT c.priority, r.key FROM (SELECT c.* FROM {_WANTED} CROSS JOIN LATERAL "
        f"(SELECT priority, key {_READY} ORDER BY workflow, version, priority DESC, key LIMIT %(few)s) c "
        "ORDER BY c.priority DESC, c.key OFFSET 0) c CROSS JOIN LATERAL "
        "(SELECT key FROM {s}.runs WHERE key = c.key AND ready + 0 = 1 OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) r "
        "LIMIT %(limit)s"
    ),
}


_PARTS = (
    _RUNS, _JOURNALS, _MAILBOXES, _REST, _CLAIMS, _WORKERS, _OWN, pages.LISTS, ARCHIVES, ASKING, KEEPING, PRUNING,
    QUEUEING, REOPENING, SCHEDULING, {"CONTAINING": pages.CONTAINING},
)  # fmt: skip


class PgStatements(Statements):
    """The statements for the tables of one schema."""

    FENCES: str  # keys, ids, keys of those that are likely to end -> see ``Database.fences``
    APPEND_FENCED: str  # keys and epochs of the runs, the columns of APPEND, the number of runs
    APPEND_ONE: str  # the values of APPEND, key, epoch
    NEW_KEYS: str  # count -> key
    LOCK_SESSIONS: str  # schema, workflows, sessions
    OPEN_ACCOUNTS: str  # keys
    LOCK_ACCOUNTS: str  # keys -> run, the columns of ACCOUNT
    PROMOTE_DUE: str  # workflows, versions, now, limit
    DUE: str  # a mapping with workflows, versions, queues, limit, how few of each are looked at -> priority, key
    LOCK_TURNS: str  # queues, keys -> queue, key, turn
    CONTAINING: str  # with {test}
    PUT_MEMORY: str  # namespace, key, value, text, created_at, updated_at -> id, size
    DELETE_MEMORY: str  # namespace, key -> id, size
    PUT_SIZE: str  # size, id
    PUT_WORDS: Bulk  # word, space, memory, times
    DELETE_WORDS: Bulk  # memory
    ADD_TOTALS: str  # slot, memories, size
    SEARCH_MEMORIES: str  # a mapping with words, space, namespace, limit -> the fields of ``Memory``

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._name = quoted(schema)
        for part in _PARTS:
            for name, text in part.items():
                setattr(self, name, self._in_schema(text))
        self.APPROVAL_CONDITIONS = {name: self._in_schema(text) for name, text in APPROVAL_CONDITIONS.items()}
        self.LIST_BY = {name: self._in_schema(text) for name, text in pages.LIST_BY.items()}
        self.HOW_MANY = {name: self._in_schema(text) for name, text in pages.HOW_MANY.items()}
        self.FILTERS = {name: self._in_schema(text) for name, text in pages.FILTERS.items()}

    def _in_schema(self, text: str) -> str:
        placed = text.replace("{s}", self._name.replace("%", "%%"))
        return type(text)(placed, text.columns) if isinstance(text, Bulk) else placed
