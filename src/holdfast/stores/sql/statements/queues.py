"""Queues with limits: see ``stores.queues``, and ``limited_queues`` for how a claim uses them.

On PostgreSQL, claims from a queue take turns by its row: a claim locks the row (``NO KEY UPDATE``), and skips queues
that other claims have locked. Starts only need the row to stay (``KEY SHARE``), which blocks neither claims nor other
starts; deleting the row waits for them. So no run gets a turn in a queue that has lost its limits. Claims never wait:
they leave runs that other transactions have locked to the next claim.
"""

from __future__ import annotations

from holdfast.stores.sql.ready_states import KEYED_READY, LIMITED_READY, ReadyState
from holdfast.stores.sql.templates import (
    Catalog,
    Delete,
    Insert,
    InsertSelected,
    Lookup,
    Query,
    Update,
    Upsert,
    Write,
    assign,
    flag,
)

_SKIP_LOCKED = "FOR NO KEY UPDATE SKIP LOCKED"
_QUEUE_SETTINGS = "SELECT name, limits, declared_limits, is_overridden, paused_at, is_complete, rate_usage FROM @queues"
_SETTINGS = "limits:t declared_limits:t is_overridden:i paused_at:f concurrency:i key_concurrency:i has_token_rate:i"
_QUEUE_STATE = "turns:t rate_usage:t next_start_at:f"
_IS_RUNNING = flag("state = 'running'")
_IS_WAITING = flag("state <> 'running' AND paused_at IS NULL AND wake_at <= :now")
_CANDIDATE = "SELECT key, queue_key, priority, turn, ready_state"


def _queue(condition: str, order: str = "") -> dict[str, str]:
    """A queue that is not paused, with the database's clock if that is not the worker's."""
    text = (
        "SELECT name, limits, turns, rate_usage, next_start_at, {clock} FROM @queues WHERE paused_at IS NULL"
        + condition
        + order
    )
    return {
        "sqlite": text.format(clock="NULL"),
        "postgres": text.format(clock="extract(epoch FROM clock_timestamp())::float8"),
    }


def _has_throttled(ready: ReadyState, queue: str, key: str) -> str:
    return (
        f"(SELECT 1 FROM @runs[runs_by_key] WHERE queue = {queue} AND queue_key = {key} AND ready_state = {ready} "
        f"AND ready_state IN {KEYED_READY} LIMIT 1) IS NOT NULL"
    )


def is_throttled(queue: str, key: str) -> str:
    """Whether a key has throttled runs."""
    return (
        f"({_has_throttled(ReadyState.THROTTLED_STARTED, queue, key)} OR "
        f"{_has_throttled(ReadyState.THROTTLED_UNSTARTED, queue, key)})"
    )


def lock_listed(columns: str, condition: str, lock: str) -> Query:
    """The listed runs that meet a condition, locked in the order of their keys."""
    return Query(
        "keys:i[]",
        sqlite=f"SELECT {columns} FROM @runs WHERE key IN :keys AND {condition} ORDER BY key",
        postgres="SELECT r.* FROM (SELECT unnest(:keys) AS key ORDER BY key OFFSET 0) q CROSS JOIN LATERAL "
        f"(SELECT {columns} FROM @runs WHERE key = q.key AND {condition} OFFSET 0 {lock}) r",
    )


class QueueStatements(Catalog):
    """Statements about queues with limits."""

    # Claims

    LOCK_LIMITED_QUEUE = Lookup("name:t", **_queue(" AND name = :name"), lock=_SKIP_LOCKED)
    LOCK_LIMITED_QUEUES = Query("", **_queue("", " ORDER BY name"), lock=_SKIP_LOCKED)
    RUNNING_COUNTS = Lookup(
        "queue:t",
        "SELECT queue_key, count(*) FROM @runs[runs_executed] WHERE queue = :queue AND state = 'running' "
        "AND due_state > 1 GROUP BY queue_key",
    )
    READY_RUNS = Lookup(
        "queue:t workflow:t version:t ready_state:i max_rows:i",
        f"{_CANDIDATE} FROM @runs[runs_queued] WHERE queue = :queue AND workflow = :workflow AND version = :version "
        f"AND ready_state = :ready_state AND ready_state IN {LIMITED_READY} "
        "ORDER BY queue, workflow, version, ready_state, priority DESC, turn, key LIMIT :max_rows",
    )
    THROTTLED_KEYS = Lookup(
        "queue:t now:f max_rows:i",
        "SELECT key, rate_usage FROM @queue_keys[queue_keys_throttled] WHERE queue = :queue AND is_throttled = 1 AND "
        "recheck_at <= :now ORDER BY queue, recheck_at LIMIT :max_rows",
    )
    THROTTLED_RUNS = Lookup(
        "queue:t key:t ready_state:i workflow:t version:t max_rows:i",
        f"{_CANDIDATE} FROM @runs[runs_by_key] WHERE queue = :queue AND queue_key = :key AND ready_state = "
        f":ready_state AND ready_state IN {KEYED_READY} AND workflow = :workflow AND version = :version ORDER BY "
        "queue, queue_key, ready_state, workflow, version, priority DESC, turn, key LIMIT :max_rows",
    )
    KEY_RATE_USAGE = Lookup("queue:t key:t", "SELECT rate_usage FROM @queue_keys WHERE queue = :queue AND key = :key")
    CONSUME_CHARGES = Query("queue:t", "DELETE FROM @queue_charges WHERE queue = :queue RETURNING key, tokens, at")
    LOCK_DUE = lock_listed("key", f"ready_state + 0 > {ReadyState.DUE}", _SKIP_LOCKED)
    THROTTLE_RUNS = Write(
        "queue:t key:t ready_state:i max_rows:i",
        sqlite="UPDATE @runs SET ready_state = ready_state + 2 WHERE key IN (SELECT key FROM @runs[runs_by_key] "
        f"WHERE queue = :queue AND queue_key = :key AND ready_state = :ready_state AND ready_state IN {KEYED_READY} "
        "LIMIT :max_rows)",
        postgres="UPDATE @runs SET ready_state = ready_state + 2 WHERE key = ANY(ARRAY(SELECT t.key FROM @rows CROSS "
        "JOIN LATERAL (SELECT key FROM @runs WHERE queue = :queue AND queue_key = :key AND ready_state = :ready_state "
        f"AND ready_state IN {KEYED_READY} LIMIT :max_rows {_SKIP_LOCKED}) t))",
    )
    SAVE_QUEUE_STATE = Write(
        f"{_QUEUE_STATE} name:t",
        sqlite=f"UPDATE @queues SET {assign(_QUEUE_STATE)} WHERE name = :name",
        postgres=f"UPDATE @queues o SET {assign(_QUEUE_STATE)} FROM @rows WHERE o.name = :name",
    )
    SAVE_KEY_STATE = InsertSelected(
        "queue_keys",
        "queue, key, rate_usage, recheck_at, expires_at, is_throttled",
        "queue:t key:t rate_usage:t recheck_at:f expires_at:f",
        "SELECT :queue, :key, :rate_usage, CASE WHEN "
        f"{_has_throttled(ReadyState.THROTTLED_STARTED, ':queue', ':key')} THEN 0 ELSE :recheck_at END, :expires_at, "
        f"{flag(is_throttled(':queue', ':key'))}",
        key="queue, key",
    )

    # Starts

    LOCK_QUEUE_TURNS = Lookup("name:t", "SELECT turns FROM @queues WHERE name = :name", lock="FOR KEY SHARE")
    KEY_TURN = Lookup(
        "queue:t priority:i key:t",
        "SELECT turn FROM @queue_turns WHERE queue = :queue AND priority = :priority AND key = :key",
    )
    SAVE_TURN = Upsert("queue_turns", "queue:t priority:i key:t turn:i at:f", "queue, priority, key")
    # The columns of ``Database.read_fences``, and what a start that joins the run needs.
    DEDUP_OWNER = Lookup(
        "queue:t dedup_key:t",
        f"SELECT key, id, epoch, state, cancel_state, {flag('paused_at IS NOT NULL')}, 1, has_budget, "
        f"{flag('due_state > 1')}, is_delivery, is_debounced, workflow, created_at, "
        "CASE WHEN octet_length(inputs) = 33 THEN inputs END FROM @runs[runs_dedup] "
        "WHERE queue = :queue AND dedup_key = :dedup_key AND dedup_key <> '' AND finished_at IS NULL",
        lock="FOR NO KEY UPDATE",
    )
    REPLACE_INPUTS = Update(
        "inputs:b digest:b version:t deadline:f wake_at:f now:f key:i",
        "inputs = :inputs, digest = :digest, version = :version, deadline = :deadline, wake_at = :wake_at, "
        f"ready_state = CASE WHEN paused_at IS NOT NULL THEN NULL WHEN :wake_at > :now THEN {ReadyState.TIMER} ELSE "
        "due_state END",
    )
    ADD_CHARGE = InsertSelected(
        "queue_charges",
        "queue, key, tokens, at",
        "tokens:i at:f run:i",
        "SELECT r.queue, r.queue_key, :tokens, :at FROM @runs r CROSS JOIN @queues o ON o.name = r.queue "
        "WHERE r.key = :run AND o.has_token_rate = 1",
    )
    LOCK_QUEUE_OF_RUN = Query(
        "key:i",
        "SELECT 1 FROM @queues WHERE name = (SELECT queue FROM @runs WHERE key = :key)",
        lock="FOR KEY SHARE",
    )

    # Settings

    LOCK_QUEUE = Query("name:t", f"{_QUEUE_SETTINGS} WHERE name = :name", lock="FOR UPDATE")
    QUEUES = Query("", f"{_QUEUE_SETTINGS} ORDER BY name")
    ADD_QUEUE = Insert(
        "queues",
        "name:t limits:t is_overridden:i has_token_rate:i turns:t rate_usage:t next_start_at:f is_complete:i",
        " ON CONFLICT DO NOTHING",
    )
    UPDATE_QUEUE = Query(
        f"{_SETTINGS} name:t", f"UPDATE @queues SET next_start_at = 0, {assign(_SETTINGS)} WHERE name = :name"
    )
    RECHECK_KEYS = Query("queue:t", "UPDATE @queue_keys SET recheck_at = 0 WHERE queue = :queue AND is_throttled = 1")
    SET_QUEUE_COMPLETE = Query("name:t", "UPDATE @queues SET is_complete = 1 WHERE name = :name")
    QUEUE_COUNTS = Query(
        "now:f queue:t",
        f"SELECT queue_key, sum({_IS_RUNNING}), sum({_IS_WAITING}) FROM @runs[runs_limited] "
        "WHERE queue = :queue AND due_state > 1 AND finished_at IS NULL GROUP BY queue_key",
    )
    CHARGES = Query("queue:t", "SELECT key, tokens, at FROM @queue_charges WHERE queue = :queue")
    UNLIMITED_RUNS = Query(
        "workflow:t state:t key:i queue:t max_rows:i",
        sqlite="SELECT key FROM @runs[runs_listed] WHERE workflow = :workflow AND state = :state AND key > :key "
        f"AND queue = :queue AND due_state = {ReadyState.DUE} ORDER BY key LIMIT :max_rows",
        postgres="SELECT key FROM (SELECT :workflow AS w, :state AS s, :key AS k, :queue AS name) q CROSS JOIN @runs "
        "WHERE (workflow, state, key) > (q.w, q.s, q.k) AND (workflow, state) <= (q.w, q.s) "
        f"AND queue || '' = q.name AND due_state + 0 = {ReadyState.DUE} ORDER BY workflow, state, key LIMIT :max_rows",
    )
    LOCK_UNLIMITED = lock_listed(
        "key, queue_key, epoch, priority",
        f"due_state + 0 = {ReadyState.DUE} AND (finished_at + 0) IS NULL",
        "FOR NO KEY UPDATE",
    )
    LIMIT_RUN = Update(
        "due_state:i turn:i key:i",
        f"due_state = :due_state, turn = :turn, ready_state = CASE WHEN ready_state = {ReadyState.DUE} THEN CASE WHEN "
        f"cancel_state <> '' THEN {ReadyState.EXEMPT} ELSE :due_state END ELSE ready_state END",
    )
    LOCK_LIMITED_RUNS = Query(
        "queue:t max_rows:i",
        sqlite="SELECT key FROM @runs[runs_limited] WHERE queue = :queue AND due_state > 1 AND finished_at IS NULL "
        "LIMIT :max_rows",
        postgres="SELECT r.key FROM (SELECT c.key FROM (SELECT key FROM @runs WHERE queue = :queue AND due_state > 1 "
        "AND finished_at IS NULL ORDER BY queue, queue_key, key LIMIT :max_rows) c ORDER BY c.key OFFSET 0) c "
        "CROSS JOIN LATERAL (SELECT key FROM @runs WHERE key = c.key OFFSET 0 FOR NO KEY UPDATE) r",
    )
    UNLIMIT_RUN = Update(
        "key:i",
        f"due_state = {ReadyState.DUE}, turn = 0, ready_state = CASE WHEN ready_state BETWEEN {ReadyState.UNSTARTED} "
        f"AND {ReadyState.EXEMPT} THEN {ReadyState.DUE} ELSE ready_state END",
    )
    DELETE_QUEUE = Query("name:t", "DELETE FROM @queues WHERE name = :name")
    DELETE_TURNS = Query("queue:t", "DELETE FROM @queue_turns WHERE queue = :queue")
    DELETE_QUEUE_KEYS = Query("queue:t", "DELETE FROM @queue_keys WHERE queue = :queue")
    DELETE_CHARGES = Query("queue:t", "DELETE FROM @queue_charges WHERE queue = :queue")

    # Unused keys

    LOCK_OLD_TURNS = Query(
        "at:f max_rows:i",
        "SELECT t.queue, t.priority, t.key, CASE WHEN (SELECT 1 FROM @runs[runs_limited] WHERE queue = t.queue "
        "AND queue_key = t.key AND due_state > 1 AND finished_at IS NULL LIMIT 1) IS NOT NULL THEN 1 ELSE 0 END "
        "FROM @queue_turns t WHERE t.at < :at ORDER BY t.at LIMIT :max_rows",
        lock="FOR UPDATE OF t SKIP LOCKED",
    )
    EXTEND_TURN = Write(
        "at:f queue:t priority:i key:t",
        sqlite="UPDATE @queue_turns SET at = :at WHERE queue = :queue AND priority = :priority AND key = :key",
        postgres="UPDATE @queue_turns t SET at = :at FROM @rows "
        "WHERE t.queue = :queue AND t.priority = :priority AND t.key = :key",
    )
    DELETE_TURN = Delete("queue_turns", "queue:t priority:i key:t")
    LOCK_OLD_KEYS = Query(
        "expires_at:f max_rows:i",
        f"SELECT k.queue, k.key, {flag(is_throttled('k.queue', 'k.key'))} FROM @queue_keys k WHERE k.expires_at < "
        ":expires_at ORDER BY k.expires_at LIMIT :max_rows",
        lock="FOR UPDATE OF k SKIP LOCKED",
    )
    EXTEND_KEY = Write(
        "expires_at:f queue:t key:t",
        sqlite="UPDATE @queue_keys SET expires_at = :expires_at WHERE queue = :queue AND key = :key",
        postgres="UPDATE @queue_keys k SET expires_at = :expires_at FROM @rows WHERE k.queue = :queue AND k.key = :key",
    )
    DELETE_QUEUE_KEY = Delete("queue_keys", "queue:t key:t")
