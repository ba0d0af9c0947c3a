"""Queues with limits: see ``stores.queues``, and ``queueing`` for how a claim uses them.

On PostgreSQL, the row of a queue is what claims take turns by: whoever takes runs from it holds the row
(``NO KEY UPDATE``), and passes over those that others hold. Starts only want to be sure that the row stays
(``KEY SHARE``), which is in no claim's way, nor in each other's; deleting it waits for them. So no run is put into a
limited queue that is none any more. Claims wait for nobody: runs that others have locked are left for the next one.
"""

from __future__ import annotations

from holdfast.stores.sql.ready_states import KEYED_READY, LIMITED_READY, Ready
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
    flag,
)

_SKIP_LOCKED = "FOR NO KEY UPDATE SKIP LOCKED"
_KEPT = "SELECT name, limits, declared, by_hand, paused_at, settled, used FROM @queues"
_IS_RUNNING = flag("state = 'running'")
_IS_WAITING = flag("state <> 'running' AND paused_at IS NULL AND wake_at <= :now")
_CANDIDATE = "SELECT key, queue_key, priority, turn, ready"


def _queue(condition: str, order: str = "") -> dict[str, str]:
    """A queue that is not paused, with the database's clock where that is not the worker's."""
    text = "SELECT name, limits, turns, used, open_at, {clock} FROM @queues WHERE paused_at IS NULL" + condition + order
    return {
        "sqlite": text.format(clock="NULL"),
        "postgres": text.format(clock="extract(epoch FROM clock_timestamp())::float8"),
    }


def _is_any_aside(ready: Ready, queue: str, key: str) -> str:
    return (
        f"(SELECT 1 FROM @runs[runs_of_keys] WHERE queue = {queue} AND queue_key = {key} AND ready = {ready} "
        f"AND ready IN {KEYED_READY} LIMIT 1) IS NOT NULL"
    )


def is_aside(queue: str, key: str) -> str:
    """Whether a key has runs that are set aside."""
    return f"({_is_any_aside(Ready.ASIDE_BEGUN, queue, key)} OR {_is_any_aside(Ready.ASIDE_UNBEGUN, queue, key)})"


def lock_listed(columns: str, condition: str, lock: str) -> Query:
    """Those of the listed runs that fulfil a condition, locked in the order of their keys."""
    return Query(
        "keys:i[]",
        sqlite=f"SELECT {columns} FROM @runs WHERE key IN :keys AND {condition} ORDER BY key",
        postgres="SELECT r.* FROM (SELECT unnest(:keys) AS key ORDER BY key OFFSET 0) q CROSS JOIN LATERAL "
        f"(SELECT {columns} FROM @runs WHERE key = q.key AND {condition} OFFSET 0 {lock}) r",
    )


class QueueStatements(Catalog):
    """Statements about queues with limits."""

    # Claims

    LIMITED = Lookup("name:t", **_queue(" AND name = :name"), lock=_SKIP_LOCKED)
    LIMITED_ALL = Query("", **_queue("", " ORDER BY name"), lock=_SKIP_LOCKED)
    EXECUTED = Lookup(
        "queue:t",
        "SELECT queue_key, count(*) FROM @runs[runs_executed] WHERE queue = :queue AND state = 'running' "
        "AND due_as > 1 GROUP BY queue_key",
    )
    STRETCH = Lookup(
        "queue:t workflow:t version:t ready:i max_rows:i",
        f"{_CANDIDATE} FROM @runs[runs_queued] WHERE queue = :queue AND workflow = :workflow AND version = :version "
        f"AND ready = :ready AND ready IN {LIMITED_READY} "
        "ORDER BY queue, workflow, version, ready, priority DESC, turn, key LIMIT :max_rows",
    )
    ASIDE_KEYS = Lookup(
        "queue:t now:f max_rows:i",
        "SELECT key, used FROM @queue_keys[queue_keys_aside] WHERE queue = :queue AND aside = 1 AND open_at <= :now "
        "ORDER BY queue, open_at LIMIT :max_rows",
    )
    ASIDE_RUNS = Lookup(
        "queue:t key:t ready:i workflow:t version:t max_rows:i",
        f"{_CANDIDATE} FROM @runs[runs_of_keys] WHERE queue = :queue AND queue_key = :key AND ready = :ready "
        f"AND ready IN {KEYED_READY} AND workflow = :workflow AND version = :version "
        "ORDER BY queue, queue_key, ready, workflow, version, priority DESC, turn, key LIMIT :max_rows",
    )
    KEY_USED = Lookup("queue:t key:t", "SELECT used FROM @queue_keys WHERE queue = :queue AND key = :key")
    TAKE_CHARGES = Query("queue:t", "DELETE FROM @queue_charges WHERE queue = :queue RETURNING key, tokens, at")
    LOCK_DUE = lock_listed("key", f"ready + 0 > {Ready.DUE}", _SKIP_LOCKED)
    SET_ASIDE = Write(
        "queue:t key:t ready:i max_rows:i",
        sqlite="UPDATE @runs SET ready = ready + 2 WHERE key IN (SELECT key FROM @runs[runs_of_keys] "
        f"WHERE queue = :queue AND queue_key = :key AND ready = :ready AND ready IN {KEYED_READY} LIMIT :max_rows)",
        postgres="UPDATE @runs SET ready = ready + 2 WHERE key = ANY(ARRAY(SELECT t.key FROM @rows CROSS JOIN LATERAL "
        "(SELECT key FROM @runs WHERE queue = :queue AND queue_key = :key AND ready = :ready "
        f"AND ready IN {KEYED_READY} LIMIT :max_rows {_SKIP_LOCKED}) t))",
    )
    KEEP_QUEUE = Write(
        "turns:t used:t open_at:f name:t",
        sqlite="UPDATE @queues SET turns = :turns, used = :used, open_at = :open_at WHERE name = :name",
        postgres="UPDATE @queues o SET turns = :turns, used = :used, open_at = :open_at FROM @rows "
        "WHERE o.name = :name",
    )
    KEEP_KEY = InsertSelected(
        "queue_keys",
        "queue, key, used, open_at, until, aside",
        "queue:t key:t used:t open_at:f until:f",
        f"SELECT :queue, :key, :used, CASE WHEN {_is_any_aside(Ready.ASIDE_BEGUN, ':queue', ':key')} THEN 0 "
        f"ELSE :open_at END, :until, {flag(is_aside(':queue', ':key'))}",
        key="queue, key",
    )

    # Starts

    QUEUE_TURN = Lookup("name:t", "SELECT turns FROM @queues WHERE name = :name", lock="FOR KEY SHARE")
    KEY_TURN = Lookup(
        "queue:t priority:i key:t",
        "SELECT turn FROM @queue_turns WHERE queue = :queue AND priority = :priority AND key = :key",
    )
    KEEP_TURN = Upsert("queue_turns", "queue:t priority:i key:t turn:i at:f", "queue, priority, key")
    # As ``Database.fences``, and what a start that joins the run has to know.
    DEDUP = Lookup(
        "queue:t dedup:t",
        f"SELECT key, id, epoch, state, cancel, {flag('paused_at IS NOT NULL')}, 1, has_budget, "
        f"{flag('due_as > 1')}, by_delivery, debounced, workflow, created_at, "
        "CASE WHEN octet_length(inputs) = 33 THEN inputs END FROM @runs[runs_dedup] "
        "WHERE queue = :queue AND dedup = :dedup AND dedup <> '' AND finished_at IS NULL",
        lock="FOR NO KEY UPDATE",
    )
    REPLACE_INPUTS = Update(
        "inputs:b digest:b version:t deadline:f wake_at:f now:f key:i",
        "inputs = :inputs, digest = :digest, version = :version, deadline = :deadline, wake_at = :wake_at, "
        f"ready = CASE WHEN paused_at IS NOT NULL THEN NULL WHEN :wake_at > :now THEN {Ready.TIMER} ELSE due_as END",
    )
    CHARGE = InsertSelected(
        "queue_charges",
        "queue, key, tokens, at",
        "tokens:i at:f run:i",
        "SELECT r.queue, r.queue_key, :tokens, :at FROM @runs r CROSS JOIN @queues o ON o.name = r.queue "
        "WHERE r.key = :run AND o.counts_tokens = 1",
    )
    KEEP_QUEUE_OF = Query(
        "key:i",
        "SELECT 1 FROM @queues WHERE name = (SELECT queue FROM @runs WHERE key = :key)",
        lock="FOR KEY SHARE",
    )

    # What code and people say of queues

    QUEUE = Query("name:t", f"{_KEPT} WHERE name = :name", lock="FOR UPDATE")
    QUEUES = Query("", f"{_KEPT} ORDER BY name")
    ADD_QUEUE = Insert(
        "queues",
        "name:t limits:t by_hand:i counts_tokens:i turns:t used:t open_at:f settled:i",
        " ON CONFLICT DO NOTHING",
    )
    PUT_QUEUE = Query(
        "limits:t declared:t by_hand:i paused_at:f concurrency:i key_concurrency:i counts_tokens:i name:t",
        "UPDATE @queues SET limits = :limits, declared = :declared, by_hand = :by_hand, paused_at = :paused_at, "
        "concurrency = :concurrency, key_concurrency = :key_concurrency, counts_tokens = :counts_tokens, open_at = 0 "
        "WHERE name = :name",
    )
    OPEN_KEYS = Query("queue:t", "UPDATE @queue_keys SET open_at = 0 WHERE queue = :queue AND aside = 1")
    SETTLE_QUEUE = Query("name:t", "UPDATE @queues SET settled = 1 WHERE name = :name")
    QUEUE_CONTENT = Query(
        "now:f queue:t",
        f"SELECT queue_key, sum({_IS_RUNNING}), sum({_IS_WAITING}) FROM @runs[runs_limited] "
        "WHERE queue = :queue AND due_as > 1 AND finished_at IS NULL GROUP BY queue_key",
    )
    SEE_CHARGES = Query("queue:t", "SELECT key, tokens, at FROM @queue_charges WHERE queue = :queue")
    UNLIMITED_STRETCH = Query(
        "workflow:t state:t key:i queue:t max_rows:i",
        sqlite="SELECT key FROM @runs[runs_listed] WHERE workflow = :workflow AND state = :state AND key > :key "
        f"AND queue = :queue AND due_as = {Ready.DUE} ORDER BY key LIMIT :max_rows",
        postgres="SELECT key FROM (SELECT :workflow AS w, :state AS s, :key AS k, :queue AS name) q CROSS JOIN @runs "
        "WHERE (workflow, state, key) > (q.w, q.s, q.k) AND (workflow, state) <= (q.w, q.s) "
        f"AND queue || '' = q.name AND due_as + 0 = {Ready.DUE} ORDER BY workflow, state, key LIMIT :max_rows",
    )
    LOCK_UNLIMITED = lock_listed(
        "key, queue_key, epoch, priority",
        f"due_as + 0 = {Ready.DUE} AND (finished_at + 0) IS NULL",
        "FOR NO KEY UPDATE",
    )
    LIMIT_RUN = Update(
        "due_as:i turn:i key:i",
        f"due_as = :due_as, turn = :turn, ready = CASE WHEN ready = {Ready.DUE} THEN CASE WHEN cancel <> '' "
        f"THEN {Ready.EXEMPT} ELSE :due_as END ELSE ready END",
    )
    LIMITED_RUNS = Query(
        "queue:t max_rows:i",
        sqlite="SELECT key FROM @runs[runs_limited] WHERE queue = :queue AND due_as > 1 AND finished_at IS NULL "
        "LIMIT :max_rows",
        postgres="SELECT r.key FROM (SELECT c.key FROM (SELECT key FROM @runs WHERE queue = :queue AND due_as > 1 "
        "AND finished_at IS NULL ORDER BY queue, queue_key, key LIMIT :max_rows) c ORDER BY c.key OFFSET 0) c "
        "CROSS JOIN LATERAL (SELECT key FROM @runs WHERE key = c.key OFFSET 0 FOR NO KEY UPDATE) r",
    )
    UNLIMIT_RUN = Update(
        "key:i",
        f"due_as = {Ready.DUE}, turn = 0, "
        f"ready = CASE WHEN ready BETWEEN {Ready.UNBEGUN} AND {Ready.EXEMPT} THEN {Ready.DUE} ELSE ready END",
    )
    DROP_QUEUE = Query("name:t", "DELETE FROM @queues WHERE name = :name")
    DROP_TURNS = Query("queue:t", "DELETE FROM @queue_turns WHERE queue = :queue")
    DROP_KEYS = Query("queue:t", "DELETE FROM @queue_keys WHERE queue = :queue")
    DROP_CHARGES = Query("queue:t", "DELETE FROM @queue_charges WHERE queue = :queue")

    # Keys that are in no use any more

    OLD_TURNS = Query(
        "at:f max_rows:i",
        "SELECT t.queue, t.priority, t.key, CASE WHEN (SELECT 1 FROM @runs[runs_limited] WHERE queue = t.queue "
        "AND queue_key = t.key AND due_as > 1 AND finished_at IS NULL LIMIT 1) IS NOT NULL THEN 1 ELSE 0 END "
        "FROM @queue_turns t WHERE t.at < :at ORDER BY t.at LIMIT :max_rows",
        lock="FOR UPDATE OF t SKIP LOCKED",
    )
    KEEP_TURN_LONGER = Write(
        "at:f queue:t priority:i key:t",
        sqlite="UPDATE @queue_turns SET at = :at WHERE queue = :queue AND priority = :priority AND key = :key",
        postgres="UPDATE @queue_turns t SET at = :at FROM @rows "
        "WHERE t.queue = :queue AND t.priority = :priority AND t.key = :key",
    )
    DROP_TURN = Delete("queue_turns", "queue:t priority:i key:t")
    OLD_KEYS = Query(
        "until:f max_rows:i",
        f"SELECT k.queue, k.key, {flag(is_aside('k.queue', 'k.key'))} FROM @queue_keys k WHERE k.until < :until "
        "ORDER BY k.until LIMIT :max_rows",
        lock="FOR UPDATE OF k SKIP LOCKED",
    )
    KEEP_KEY_LONGER = Write(
        "until:f queue:t key:t",
        sqlite="UPDATE @queue_keys SET until = :until WHERE queue = :queue AND key = :key",
        postgres="UPDATE @queue_keys k SET until = :until FROM @rows WHERE k.queue = :queue AND k.key = :key",
    )
    DROP_KEY = Delete("queue_keys", "queue:t key:t")
