"""The SQL about queues with limits: see ``stores.queues``, and ``sql.queueing`` for how a claim uses it."""

from __future__ import annotations

from typing import Final


def due_as(suspicion: str = "suspicion", cancelled: str = "cancel != ''") -> str:
    """What ``ready`` is when a run is due: see ``schema``."""
    return f"CASE WHEN {suspicion} > 1 THEN 7 WHEN due_as > 1 AND {cancelled} THEN 6 ELSE due_as END"


DUE_AS = due_as()

_NEVER = "9e999"
_WORKFLOW, _VERSION = "json_extract(w.value, '$[0]')", "json_extract(w.value, '$[1]')"
_THIS_VERSION = f"workflow = {_WORKFLOW} AND version = {_VERSION}"
_EXECUTED = "FROM runs INDEXED BY runs_executed WHERE state = 'running' AND due_as > 1"


def _any_of_version(ready: int, value: str) -> str:
    """A value, if there is such a run in the queue ``o`` of the version ``w``."""
    return (
        f"(SELECT {value} FROM runs INDEXED BY runs_queued WHERE queue = o.name AND {_THIS_VERSION} "
        f"AND ready IN (2, 3, 6) AND ready = {ready} LIMIT 1)"
    )


def _is_any_aside(ready: int, queue: str, key: str, version: str = "") -> str:
    return (
        f"EXISTS (SELECT 1 FROM runs INDEXED BY runs_of_keys WHERE queue = {queue} AND queue_key = {key} "
        f"AND ready = {ready} AND ready IN (2, 3, 4, 5){version})"
    )


_ASIDE_5 = _is_any_aside(5, "o.name", "k.key", f" AND {_THIS_VERSION}")
_ASIDE_4 = _is_any_aside(4, "o.name", "k.key", f" AND {_THIS_VERSION}")
# Keys that have no place come first, of which there are no more than runs that are executed; then those that wait for
# their rate, the next one first: so the first that has something for this worker is as good as all of them.
_ASIDE_AT = (
    f"(SELECT CASE WHEN {_ASIDE_5} THEN 0.0 ELSE max(k.open_at, o.open_at) END "
    "FROM queue_keys k INDEXED BY queue_keys_aside WHERE k.queue = o.name AND k.aside = 1 "
    f"AND (o.key_concurrency IS NULL OR (SELECT count(*) {_EXECUTED} AND queue = o.name AND queue_key = k.key) "
    f"< o.key_concurrency) AND ({_ASIDE_5} OR {_ASIDE_4}) ORDER BY k.open_at LIMIT 1)"
)
LIMITED_AT: Final = (
    f"SELECT nullif(min(CASE WHEN {_any_of_version(6, '1')} THEN 0.0 WHEN o.concurrency IS NULL "
    f"OR (SELECT count(*) {_EXECUTED} AND queue = o.name) < o.concurrency THEN "
    f"min(coalesce({_any_of_version(3, '0.0')}, {_NEVER}), coalesce({_any_of_version(2, 'o.open_at')}, {_NEVER}), "
    f"coalesce({_ASIDE_AT}, {_NEVER})) ELSE {_NEVER} END), {_NEVER}) "
    "FROM queues o CROSS JOIN json_each(:workflows) w WHERE o.paused_at IS NULL "
    "AND (:queues IS NULL OR o.name IN (SELECT value FROM json_each(:queues))) "
    f"AND {_WORKFLOW} NOT IN (SELECT workflow FROM switches)"
)
"""When the first of the runs in limited queues can be taken, as far as is known; NULL: not before something else
happens. The values are those of the other statements about claims."""

_QUEUE = "SELECT name, limits, turns, used, open_at, NULL FROM queues WHERE paused_at IS NULL"
_KEPT = "SELECT name, limits, declared, by_hand, paused_at, settled, used FROM queues"
_CANDIDATE = "SELECT key, queue_key, priority, turn, ready FROM runs INDEXED BY"
_IS_ASIDE = f"{_is_any_aside(4, '{0}', '{1}')} OR {_is_any_aside(5, '{0}', '{1}')}"

QUEUEING: Final[dict[str, str]] = {
    # Claims
    "LIMITED": f"{_QUEUE} AND name = ?",
    "LIMITED_ALL": f"{_QUEUE} ORDER BY name",
    "EXECUTED": f"SELECT queue_key, count(*) {_EXECUTED} AND queue = ? GROUP BY queue_key",
    "STRETCH": (
        f"{_CANDIDATE} runs_queued WHERE queue = ? AND workflow = ? AND version = ? AND ready = ? "
        "AND ready IN (2, 3, 6) ORDER BY priority DESC, turn, key LIMIT ?"
    ),
    "ASIDE_KEYS": (
        "SELECT key, used FROM queue_keys INDEXED BY queue_keys_aside WHERE queue = ? AND aside = 1 AND open_at <= ? "
        "ORDER BY open_at LIMIT ?"
    ),
    "ASIDE_RUNS": (
        f"{_CANDIDATE} runs_of_keys WHERE queue = ? AND queue_key = ? AND ready = ? AND ready IN (2, 3, 4, 5) "
        "AND workflow = ? AND version = ? ORDER BY priority DESC, turn, key LIMIT ?"
    ),
    "KEY_USED": "SELECT used FROM queue_keys WHERE queue = ? AND key = ?",
    "TAKE_CHARGES": "DELETE FROM queue_charges WHERE queue = ? RETURNING key, tokens, at",
    "LOCK_DUE": "SELECT key FROM runs WHERE key IN (SELECT value FROM json_each(?)) AND ready > 1",
    "SET_ASIDE": (
        "UPDATE runs SET ready = ready + 2 WHERE key IN (SELECT key FROM runs INDEXED BY runs_of_keys "
        "WHERE queue = ? AND queue_key = ? AND ready = ? AND ready IN (2, 3, 4, 5) LIMIT ?)"
    ),
    "KEEP_QUEUE": "UPDATE queues SET turns = ?, used = ?, open_at = ? WHERE name = ?",
    "KEEP_KEY": (
        "INSERT INTO queue_keys (queue, key, used, open_at, until, aside) SELECT ?1, ?2, ?3, "
        f"CASE WHEN {_is_any_aside(5, '?1', '?2')} THEN 0 ELSE ?4 END, ?5, {_IS_ASIDE.format('?1', '?2')} WHERE true "
        "ON CONFLICT (queue, key) DO UPDATE SET used = excluded.used, open_at = excluded.open_at, "
        "until = excluded.until, aside = excluded.aside"
    ),
    # Starts
    "QUEUE_TURN": "SELECT turns FROM queues WHERE name = ?",
    "KEY_TURN": "SELECT turn FROM queue_turns WHERE queue = ? AND priority = ? AND key = ?",
    "KEEP_TURN": (
        "INSERT INTO queue_turns (queue, priority, key, turn, at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (queue, priority, key) DO UPDATE SET turn = excluded.turn, at = excluded.at"
    ),
    "DEDUP": (
        "SELECT key, id, epoch, state, cancel, paused_at IS NOT NULL, 1, has_budget, due_as > 1, by_delivery, "
        "debounced, workflow, created_at, CASE WHEN length(inputs) = 33 THEN inputs END "
        "FROM runs INDEXED BY runs_dedup WHERE queue = ? AND dedup = ? AND dedup != '' AND finished_at IS NULL"
    ),
    "REPLACE_INPUTS": (
        "UPDATE runs SET inputs = ?1, digest = ?2, version = ?3, deadline = ?4, wake_at = ?5, "
        "ready = CASE WHEN paused_at IS NOT NULL THEN NULL WHEN ?5 > ?6 THEN 0 ELSE due_as END WHERE key = ?7"
    ),
    "NOTE_REPLACED": "INSERT INTO pruned (key, size, inputs) VALUES (?, 0, ?)",
    "CHARGE": (
        "INSERT INTO queue_charges (queue, key, tokens, at) SELECT r.queue, r.queue_key, ?1, ?2 FROM runs r "
        "CROSS JOIN queues o ON o.name = r.queue AND o.counts_tokens = 1 WHERE r.key = ?3"
    ),
    "KEEP_QUEUE_OF": "SELECT 1 FROM queues WHERE name = (SELECT queue FROM runs WHERE key = ?)",
    # What code and people say of queues
    "QUEUE": f"{_KEPT} WHERE name = ?",
    "QUEUES": f"{_KEPT} ORDER BY name",
    "ADD_QUEUE": (
        "INSERT INTO queues (name, limits, by_hand, counts_tokens, turns, used, open_at, settled) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    ),
    "PUT_QUEUE": (
        "UPDATE queues SET limits = ?, declared = ?, by_hand = ?, paused_at = ?, concurrency = ?, "
        "key_concurrency = ?, counts_tokens = ?, open_at = 0 WHERE name = ?"
    ),
    "OPEN_KEYS": "UPDATE queue_keys SET open_at = 0 WHERE queue = ? AND aside = 1",
    "SETTLE_QUEUE": "UPDATE queues SET settled = 1 WHERE name = ?",
    "QUEUE_CONTENT": (
        "SELECT queue_key, sum(state = 'running'), sum(state != 'running' AND paused_at IS NULL "
        "AND coalesce(wake_at <= ?, 0)) FROM runs INDEXED BY runs_limited WHERE queue = ? AND due_as > 1 "
        "AND finished_at IS NULL GROUP BY queue_key"
    ),
    "SEE_CHARGES": "SELECT key, tokens, at FROM queue_charges WHERE queue = ?",
    "UNLIMITED_STRETCH": (
        "SELECT key FROM runs INDEXED BY runs_listed WHERE workflow = ? AND state = ? AND key > ? AND queue = ? "
        "AND due_as = 1 ORDER BY key LIMIT ?"
    ),
    "LOCK_UNLIMITED": (
        "SELECT key, queue_key, epoch, priority FROM runs WHERE key IN (SELECT value FROM json_each(?)) AND due_as = 1 "
        "AND finished_at IS NULL ORDER BY key"
    ),
    "LIMIT_RUN": (
        "UPDATE runs SET due_as = ?1, turn = ?2, ready = CASE WHEN ready = 1 THEN CASE WHEN cancel != '' THEN 6 "
        "ELSE ?1 END ELSE ready END WHERE key = ?3"
    ),
    "LIMITED_RUNS": (
        "SELECT key FROM runs INDEXED BY runs_limited WHERE queue = ? AND due_as > 1 AND finished_at IS NULL LIMIT ?"
    ),
    "UNLIMIT_RUN": (
        "UPDATE runs SET due_as = 1, turn = 0, ready = CASE WHEN ready BETWEEN 2 AND 6 THEN 1 ELSE ready END "
        "WHERE key = ?"
    ),
    "DROP_QUEUE": "DELETE FROM queues WHERE name = ?",
    "DROP_TURNS": "DELETE FROM queue_turns WHERE queue = ?",
    "DROP_KEYS": "DELETE FROM queue_keys WHERE queue = ?",
    "DROP_CHARGES": "DELETE FROM queue_charges WHERE queue = ?",
    # Keys that are in no use any more
    "OLD_TURNS": (
        "SELECT queue, priority, key, EXISTS (SELECT 1 FROM runs INDEXED BY runs_limited WHERE queue = t.queue "
        "AND queue_key = t.key AND due_as > 1 AND finished_at IS NULL) FROM queue_turns t WHERE at < ? "
        "ORDER BY at LIMIT ?"
    ),
    "KEEP_TURN_LONGER": "UPDATE queue_turns SET at = ? WHERE queue = ? AND priority = ? AND key = ?",
    "DROP_TURN": "DELETE FROM queue_turns WHERE queue = ? AND priority = ? AND key = ?",
    "OLD_KEYS": (
        f"SELECT queue, key, {_IS_ASIDE.format('k.queue', 'k.key')} FROM queue_keys k WHERE until < ? "
        "ORDER BY until LIMIT ?"
    ),
    "KEEP_KEY_LONGER": "UPDATE queue_keys SET until = ? WHERE queue = ? AND key = ?",
    "DROP_KEY": "DELETE FROM queue_keys WHERE queue = ? AND key = ?",
}
