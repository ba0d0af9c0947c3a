"""The SQL about queues with limits: see ``stores.queues``, and ``sql.queueing`` for how a claim uses it.

The row of a queue is what claims take turns by: whoever takes runs from it holds the row (``NO KEY UPDATE``), and
passes over those that others hold. Starts only want to be sure that the row stays (``KEY SHARE``), which is in no
claim's way, nor in each other's; deleting it waits for them. So no run is put into a limited queue that is none any
more. Claims wait for nobody: runs that others have locked are left for the next one.
"""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.bulk import changes, insert, insert_last, questions, update


def due_as(suspicion: str = "suspicion", cancelled: str = "cancel <> ''") -> str:
    """What ``ready`` is when a run is due: see ``schema``."""
    return f"CASE WHEN {suspicion} > 1 THEN 7 WHEN due_as > 1 AND {cancelled} THEN 6 ELSE due_as END"


DUE_AS = due_as()

_OF_VERSION = "queue = {o} AND workflow = {w} AND version = {v} AND ready"
_OF_KEY = "queue = {o} AND queue_key = {k} AND ready"
_EXECUTED = "SELECT count(*) FROM {s}.runs WHERE queue = o.name AND state = 'running' AND due_as > 1"


def _any_of_version(ready: int, value: str) -> str:
    """A value, if there is such a run in the queue ``o`` of the version ``w``."""
    where = _OF_VERSION.format(o="o.name", w="w.name", v="w.version")
    return f"(SELECT {value} FROM {{s}}.runs WHERE {where} = {ready} LIMIT 1)"


def _is_any_aside(ready: int, queue: str, key: str, version: str = "") -> str:
    where = _OF_KEY.format(o=queue, k=key)
    return f"(SELECT 1 FROM {{s}}.runs WHERE {where} = {ready}{version} LIMIT 1) IS NOT NULL"


_THIS_VERSION = " AND workflow = w.name AND version = w.version"
# Keys that have no place come first, of which there are no more than runs that are executed; then those that wait for
# their rate, the next one first: so the first that has something for this worker is as good as all of them.
_ASIDE_AT = (
    "(SELECT CASE WHEN b.begun THEN 0 ELSE greatest(k.open_at, o.open_at) END FROM {s}.queue_keys k CROSS JOIN LATERAL "
    f"(SELECT {_is_any_aside(5, 'o.name', 'k.key', _THIS_VERSION)} AS begun, "
    f"{_is_any_aside(4, 'o.name', 'k.key', _THIS_VERSION)} AS unbegun OFFSET 0) b "
    "WHERE k.queue = o.name AND k.aside = 1 AND (o.key_concurrency IS NULL "
    f"OR ({_EXECUTED} AND queue_key = k.key) < o.key_concurrency) AND (b.begun OR b.unbegun) "
    "ORDER BY k.queue, k.open_at LIMIT 1)"
)
LIMITED_AT: Final = (
    f"SELECT min(CASE WHEN {_any_of_version(6, '1')} IS NOT NULL THEN 0 WHEN p.has_places THEN "
    f"least({_any_of_version(3, '0')}, {_any_of_version(2, 'o.open_at')}, {_ASIDE_AT}) END)::float8 "
    "FROM {s}.queues o CROSS JOIN LATERAL (SELECT CASE WHEN o.concurrency IS NULL THEN true "
    f"ELSE ({_EXECUTED}) < o.concurrency END AS has_places OFFSET 0) p "
    "CROSS JOIN unnest(%(workflows)s::text[], %(versions)s::text[]) w (name, version) "
    "WHERE o.paused_at IS NULL AND (%(queues)s::text[] IS NULL OR o.name = ANY(%(queues)s::text[])) "
    "AND NOT EXISTS (SELECT 1 FROM {s}.switches x WHERE x.workflow = w.name)"
)
"""When the first of the runs in limited queues can be taken, as far as is known; NULL: not before something else
happens. The values are those of the other statements about claims."""

_QUEUE = "name, limits, turns, used, open_at, extract(epoch FROM clock_timestamp())::float8"
_KEPT = "name, limits, declared, by_hand, paused_at, settled, used"
_FENCE = "key, id, epoch, state, cancel, (paused_at IS NOT NULL)::int, 1, has_budget, (due_as > 1)::int, by_delivery"
_REFERENCE = "CASE WHEN octet_length(inputs) = 33 THEN inputs END"
_CANDIDATE = "key, queue_key, priority, turn, ready"
_TAKEN_IN_TURN = "FOR NO KEY UPDATE SKIP LOCKED"

QUEUEING: Final[dict[str, str]] = {
    # Claims
    "LIMITED": questions(
        "name:t", f"SELECT {_QUEUE} FROM {{s}}.queues WHERE name = q.name AND paused_at IS NULL", f" {_TAKEN_IN_TURN}"
    ),
    "LIMITED_ALL": f"SELECT {_QUEUE} FROM {{s}}.queues WHERE paused_at IS NULL ORDER BY name {_TAKEN_IN_TURN}",
    "EXECUTED": questions(
        "queue:t",
        "SELECT queue_key, count(*) FROM {s}.runs WHERE queue = q.queue AND state = 'running' AND due_as > 1 "
        "GROUP BY queue_key",
    ),
    "STRETCH": questions(
        "queue:t workflow:t version:t ready:i few:i",
        f"SELECT {_CANDIDATE} FROM {{s}}.runs WHERE {_OF_VERSION.format(o='q.queue', w='q.workflow', v='q.version')} "
        "= q.ready AND ready IN (2, 3, 6) ORDER BY queue, workflow, version, ready, priority DESC, turn, key "
        "LIMIT q.few",
    ),
    "ASIDE_KEYS": questions(
        "queue:t now:f few:i",
        "SELECT key, used FROM {s}.queue_keys WHERE queue = q.queue AND aside = 1 AND open_at <= q.now "
        "ORDER BY queue, open_at LIMIT q.few",
    ),
    "ASIDE_RUNS": questions(
        "queue:t key:t ready:i workflow:t version:t few:i",
        f"SELECT {_CANDIDATE} FROM {{s}}.runs WHERE {_OF_KEY.format(o='q.queue', k='q.key')} = q.ready "
        "AND ready IN (2, 3, 4, 5) AND workflow = q.workflow AND version = q.version "
        "ORDER BY queue, queue_key, ready, workflow, version, priority DESC, turn, key LIMIT q.few",
    ),
    "KEY_USED": questions("queue:t key:t", "SELECT used FROM {s}.queue_keys WHERE queue = q.queue AND key = q.key"),
    "TAKE_CHARGES": (
        "WITH gone AS (DELETE FROM {s}.queue_charges WHERE queue = %s RETURNING key, tokens, at) "
        "SELECT key, tokens, at FROM gone"
    ),
    "LOCK_DUE": (
        "SELECT r.key FROM (SELECT unnest(%s::bigint[]) AS key ORDER BY key OFFSET 0) q CROSS JOIN LATERAL "
        f"(SELECT key FROM {{s}}.runs WHERE key = q.key AND ready + 0 > 1 OFFSET 0 {_TAKEN_IN_TURN}) r"
    ),
    "SET_ASIDE": changes(
        "queue:t key:t ready:i few:i",
        "UPDATE {s}.runs SET ready = ready + 2 WHERE key = ANY(ARRAY(SELECT t.key FROM {q} CROSS JOIN LATERAL "
        f"(SELECT key FROM {{s}}.runs WHERE {_OF_KEY.format(o='q.queue', k='q.key')} = q.ready "
        f"AND ready IN (2, 3, 4, 5) LIMIT q.few {_TAKEN_IN_TURN}) t))",
    ),
    "KEEP_QUEUE": changes(
        "turns:t used:t open_at:f name:t",
        "UPDATE {s}.queues o SET turns = q.turns, used = q.used, open_at = q.open_at FROM {q} WHERE o.name = q.name",
    ),
    "KEEP_KEY": changes(
        "queue:t key:t used:t open_at:f until:f",
        "INSERT INTO {s}.queue_keys (queue, key, aside, open_at, used, until) SELECT q.queue, q.key, "
        "CASE WHEN a.begun OR a.unbegun THEN 1 ELSE 0 END, CASE WHEN a.begun THEN 0 ELSE q.open_at END, q.used, "
        f"q.until FROM {{q}} CROSS JOIN LATERAL (SELECT {_is_any_aside(5, 'q.queue', 'q.key')} AS begun, "
        f"{_is_any_aside(4, 'q.queue', 'q.key')} AS unbegun OFFSET 0) a ON CONFLICT (queue, key) DO UPDATE SET "
        "aside = excluded.aside, open_at = excluded.open_at, used = excluded.used, until = excluded.until",
    ),
    # Starts
    "QUEUE_TURN": questions("name:t", "SELECT turns FROM {s}.queues WHERE name = q.name", " FOR KEY SHARE"),
    "KEY_TURN": questions(
        "queue:t priority:i key:t",
        "SELECT turn FROM {s}.queue_turns WHERE queue = q.queue AND priority = q.priority AND key = q.key",
    ),
    # In order, so that two who start runs of the same keys do not wait for each other in a circle.
    "LOCK_TURNS": (
        "INSERT INTO {s}.queue_turns AS t (queue, priority, key, turn, at) SELECT q.queue, q.priority, q.key, -1, 0 "
        "FROM (SELECT DISTINCT u.queue, u.priority, u.key FROM unnest(%s::text[], %s::bigint[], %s::text[]) "
        "u (queue, priority, key)) q CROSS JOIN LATERAL "
        "(SELECT 1 FROM {s}.queues WHERE name = q.queue OFFSET 0 FOR KEY SHARE) o ORDER BY q.queue, q.priority, q.key "
        "ON CONFLICT (queue, priority, key) DO UPDATE SET at = t.at RETURNING queue, priority, key, turn"
    ),
    "KEEP_TURN": insert_last("queue_turns", "queue:t priority:i key:t turn:i at:f", "queue, priority, key"),
    "DEDUP": questions(
        "queue:t dedup:t",
        f"SELECT {_FENCE}, debounced, workflow, created_at, {_REFERENCE} FROM {{s}}.runs "
        "WHERE queue = q.queue AND dedup = q.dedup AND dedup <> '' AND finished_at IS NULL",
        " FOR NO KEY UPDATE",
    ),
    "REPLACE_INPUTS": update(
        "inputs:b digest:b version:t deadline:f wake_at:f now:f key:i",
        "inputs = q.inputs, digest = q.digest, version = q.version, deadline = q.deadline, wake_at = q.wake_at, "
        "ready = CASE WHEN paused_at IS NOT NULL THEN NULL WHEN q.wake_at > q.now THEN 0 ELSE due_as END",
    ),
    "NOTE_REPLACED": changes(
        "key:i reference:b", "INSERT INTO {s}.pruned (key, size, inputs) SELECT q.key, 0, q.reference FROM {q}"
    ),
    "CHARGE": changes(
        "tokens:i at:f run:i",
        "INSERT INTO {s}.queue_charges (queue, key, tokens, at) SELECT r.queue, r.queue_key, q.tokens, q.at FROM {q} "
        "CROSS JOIN LATERAL (SELECT queue, queue_key FROM {s}.runs WHERE key = q.run OFFSET 0) r "
        "CROSS JOIN LATERAL (SELECT 1 FROM {s}.queues WHERE name = r.queue AND counts_tokens = 1 OFFSET 0) o",
    ),
    "KEEP_QUEUE_OF": (
        "SELECT 1 FROM {s}.queues WHERE name = (SELECT queue FROM {s}.runs WHERE key = %s) FOR KEY SHARE"
    ),
    # What code and people say of queues
    "QUEUE": f"SELECT {_KEPT} FROM {{s}}.queues WHERE name = %s FOR UPDATE",
    "QUEUES": f"SELECT {_KEPT} FROM {{s}}.queues ORDER BY name",
    "ADD_QUEUE": insert(
        "queues",
        "name:t limits:t by_hand:i counts_tokens:i turns:t used:t open_at:f settled:i",
        " ON CONFLICT DO NOTHING",
    ),
    "PUT_QUEUE": (
        "UPDATE {s}.queues SET limits = %s, declared = %s, by_hand = %s, paused_at = %s::float8, concurrency = %s, "
        "key_concurrency = %s, counts_tokens = %s, open_at = 0 WHERE name = %s"
    ),
    "OPEN_KEYS": "UPDATE {s}.queue_keys SET open_at = 0 WHERE queue = %s AND aside = 1",
    "SETTLE_QUEUE": "UPDATE {s}.queues SET settled = 1 WHERE name = %s",
    "QUEUE_CONTENT": (
        "SELECT queue_key, count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state <> 'running' "
        "AND paused_at IS NULL AND wake_at <= %s::float8) FROM {s}.runs WHERE queue = %s AND due_as > 1 "
        "AND finished_at IS NULL GROUP BY queue_key"
    ),
    "SEE_CHARGES": "SELECT key, tokens, at FROM {s}.queue_charges WHERE queue = %s",
    "UNLIMITED_STRETCH": (
        "SELECT key FROM (SELECT %s::text AS w, %s::text AS s, %s::bigint AS k, %s::text AS name) q "
        "CROSS JOIN {s}.runs WHERE (workflow, state, key) > (q.w, q.s, q.k) AND (workflow, state) <= (q.w, q.s) "
        "AND queue || '' = q.name AND due_as + 0 = 1 ORDER BY workflow, state, key LIMIT %s"
    ),
    "LOCK_UNLIMITED": (
        "SELECT r.* FROM (SELECT unnest(%s::bigint[]) AS key ORDER BY key OFFSET 0) q CROSS JOIN LATERAL "
        "(SELECT key, queue_key, epoch, priority FROM {s}.runs WHERE key = q.key AND due_as + 0 = 1 "
        "AND (finished_at + 0) IS NULL OFFSET 0 FOR NO KEY UPDATE) r"
    ),
    "LIMIT_RUN": update(
        "due_as:i turn:i key:i",
        "due_as = q.due_as, turn = q.turn, ready = CASE WHEN ready = 1 THEN CASE WHEN cancel <> '' THEN 6 "
        "ELSE q.due_as END ELSE ready END",
    ),
    "LIMITED_RUNS": (
        "SELECT r.key FROM (SELECT c.key FROM (SELECT key FROM {s}.runs WHERE queue = %s AND due_as > 1 "
        "AND finished_at IS NULL ORDER BY queue, queue_key, key LIMIT %s) c ORDER BY c.key OFFSET 0) c "
        "CROSS JOIN LATERAL (SELECT key FROM {s}.runs WHERE key = c.key OFFSET 0 FOR NO KEY UPDATE) r"
    ),
    "UNLIMIT_RUN": update(
        "key:i", "due_as = 1, turn = 0, ready = CASE WHEN ready BETWEEN 2 AND 6 THEN 1 ELSE ready END"
    ),
    "DROP_QUEUE": "DELETE FROM {s}.queues WHERE name = %s",
    "DROP_TURNS": "DELETE FROM {s}.queue_turns WHERE queue = %s",
    "DROP_KEYS": "DELETE FROM {s}.queue_keys WHERE queue = %s",
    "DROP_CHARGES": "DELETE FROM {s}.queue_charges WHERE queue = %s",
    # Keys that are in no use any more
    "OLD_TURNS": (
        "SELECT t.queue, t.priority, t.key, ((SELECT 1 FROM {s}.runs WHERE queue = t.queue AND queue_key = t.key "
        "AND due_as > 1 AND finished_at IS NULL LIMIT 1) IS NOT NULL)::int FROM {s}.queue_turns t WHERE t.at < %s "
        "ORDER BY t.at LIMIT %s FOR UPDATE OF t SKIP LOCKED"
    ),
    "KEEP_TURN_LONGER": changes(
        "at:f queue:t priority:i key:t",
        "UPDATE {s}.queue_turns t SET at = q.at FROM {q} "
        "WHERE t.queue = q.queue AND t.priority = q.priority AND t.key = q.key",
    ),
    "DROP_TURN": changes(
        "queue:t priority:i key:t",
        "DELETE FROM {s}.queue_turns t USING {q} WHERE t.queue = q.queue AND t.priority = q.priority AND t.key = q.key",
    ),
    "OLD_KEYS": (
        f"SELECT k.queue, k.key, ({_is_any_aside(5, 'k.queue', 'k.key')} OR {_is_any_aside(4, 'k.queue', 'k.key')})"
        "::int FROM {s}.queue_keys k WHERE k.until < %s ORDER BY k.until LIMIT %s FOR UPDATE OF k SKIP LOCKED"
    ),
    "KEEP_KEY_LONGER": changes(
        "until:f queue:t key:t",
        "UPDATE {s}.queue_keys k SET until = q.until FROM {q} WHERE k.queue = q.queue AND k.key = q.key",
    ),
    "DROP_KEY": changes(
        "queue:t key:t", "DELETE FROM {s}.queue_keys k USING {q} WHERE k.queue = q.queue AND k.key = q.key"
    ),
}
