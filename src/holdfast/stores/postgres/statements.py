"""Statements that only the PostgreSQL store has: those on the hot path, locks, and the ranking of memories."""

from __future__ import annotations

from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.migrations import quote_identifier
from holdfast.stores.sql.ready_states import READY_WHEN_DUE, ReadyState
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.statements.columns import (
    ACCOUNT_COLUMNS,
    MEMORY_COLUMNS,
    RECORD_COLUMNS,
    RECORD_VALUES,
    RUN_COLUMNS,
    USED,
)
from holdfast.stores.sql.statements.runs import END_VALUES, ENDED, NEW_RUN_VALUES
from holdfast.stores.sql.statements.usage import ADD_USED, SLOTS, USED_SUMS
from holdfast.stores.sql.templates import Delete, Insert, NamedQuery, Query, Write, assign, flag, get_names
from holdfast.stores.text_search import BM25_B, BM25_K1

_FENCE_COLUMNS = (
    f"key, id, epoch, state, cancel_state, {flag('paused_at IS NOT NULL')}, 1, has_budget, {flag('due_state > 1')}, "
    "is_delivery"
)
_RECORD_ARRAYS = " ".join(f"{value}[]" for value in RECORD_VALUES.split())
_RECORD_PLACEHOLDERS = ", ".join(f":{name}" for name in RECORD_COLUMNS.split(", "))
_USAGE_VALUES = f"used_day:t used_model:t {' '.join(f'used_{name}:i' for name in USED.split(', '))} used_run:i used_s:f"
_USAGE_ARRAYS = " ".join(f"{value}[]" for value in _USAGE_VALUES.split())
_USAGE_PLACEHOLDERS = ", ".join(f":{name}" for name in get_names(_USAGE_VALUES).split(", "))
_NEW_RUN_COLUMNS = ", ".join(f"q.{name}" for name in get_names(NEW_RUN_VALUES).split(", "))
_WITH_ANCESTORS = (
    "WITH RECURSIVE ancestors (run, parent) AS ("
    "SELECT r.key, r.parent FROM unnest(:keys) q (key) "
    "CROSS JOIN LATERAL (SELECT key, parent FROM @runs WHERE key = q.key OFFSET 0) r "
    "UNION SELECT p.key, p.parent FROM ancestors a "
    "CROSS JOIN LATERAL (SELECT key, parent FROM @runs WHERE id = a.parent AND key < a.run OFFSET 0) p "
    "WHERE a.parent <> '') "
)


class PgStatements(Statements):
    """The statements for the tables of one schema."""

    # See ``Database.read_fences``. Runs that wait for an ending run are locked as well, so that all locks are taken in
    # one order.
    FENCES = Query(
        "keys:i[] ids:t[] ending:i[]",
        "SELECT r.* FROM (SELECT key FROM ("
        "SELECT unnest(:keys) AS key UNION "
        "SELECT r.key FROM unnest(:ids) q (id) "
        "CROSS JOIN LATERAL (SELECT key FROM @runs WHERE id = q.id OFFSET 0) r UNION "
        "SELECT l.parent FROM unnest(:ending) q (child) "
        "CROSS JOIN LATERAL (SELECT parent FROM @links WHERE child = q.child AND link_state = 1 OFFSET 0) l"
        ") w ORDER BY key OFFSET 0) w "
        f"CROSS JOIN LATERAL (SELECT {_FENCE_COLUMNS} FROM @runs WHERE key = w.key OFFSET 0 FOR NO KEY UPDATE) r",
    )
    # All or nothing: the records are appended only if every run among them is held under its epoch.
    APPEND_FENCED = Query(
        f"runs:i[] epochs:i[] {_RECORD_ARRAYS} run_count:i",
        "WITH held AS MATERIALIZED (SELECT r.key FROM unnest(:runs, :epochs) q (run, epoch) "
        "CROSS JOIN LATERAL (SELECT key FROM @runs WHERE key = q.run AND epoch = q.epoch AND state = 'running' "
        "AND has_budget = 0 OFFSET 0 FOR SHARE) r) "
        f"INSERT INTO @records ({RECORD_COLUMNS}) SELECT {RECORD_COLUMNS} "
        f"FROM unnest({_RECORD_PLACEHOLDERS}) WITH ORDINALITY AS q ({RECORD_COLUMNS}, n) "
        "WHERE (SELECT count(*) FROM held) = :run_count",
    )
    # The same for records some of which have a usage, which is added to the accounts and to the daily sums. The runs
    # must not be in a limited queue, nor have a parent, whose account would change as well. Each part counts the rows
    # of the part before it, so that locks are taken in the usual order. Returns a row for each record.
    APPEND_USED = Query(
        f"runs:i[] epochs:i[] {_RECORD_ARRAYS} run_count:i {_USAGE_ARRAYS}",
        "WITH held AS MATERIALIZED (SELECT r.key FROM unnest(:runs, :epochs) q (run, epoch) "
        "CROSS JOIN LATERAL (SELECT key FROM @runs WHERE key = q.run AND epoch = q.epoch AND state = 'running' "
        "AND has_budget = 0 AND parent = '' AND due_state <= 1 OFFSET 0 FOR SHARE) r), "
        f"appended AS (INSERT INTO @records ({RECORD_COLUMNS}) SELECT {RECORD_COLUMNS} "
        f"FROM unnest({_RECORD_PLACEHOLDERS}) WITH ORDINALITY AS q ({RECORD_COLUMNS}, n) "
        "WHERE (SELECT count(*) FROM held) = :run_count RETURNING 1), "
        f"used AS MATERIALIZED (SELECT r.workflow, q.* FROM unnest({_USAGE_PLACEHOLDERS}) q "
        f"(day, model, {USED}, run, seconds) "
        "CROSS JOIN LATERAL (SELECT workflow FROM @runs WHERE key = q.run OFFSET 0) r), "
        f"accounts AS (INSERT INTO @usages AS t (run, {USED}, seconds, reserved_calls, reserved_tokens, "
        f"reserved_nano_usd, short_positions) SELECT run, {USED_SUMS}, sum(seconds), 0, 0, 0, '' FROM used "
        "WHERE (SELECT count(*) FROM appended) > 0 GROUP BY run ORDER BY run "
        f"ON CONFLICT (run) DO UPDATE SET {ADD_USED}, seconds = t.seconds + excluded.seconds RETURNING 1), "
        f"spent AS (INSERT INTO @spending AS t (day, workflow, model, slot, {USED}) "
        f"SELECT day, workflow, model, mod(pg_backend_pid(), {SLOTS}), {USED_SUMS} FROM used "
        "WHERE (SELECT count(*) FROM accounts) > 0 GROUP BY day, workflow, model ORDER BY day, workflow, model "
        f"ON CONFLICT (day, workflow, model, slot) DO UPDATE SET {ADD_USED}) "
        "SELECT 1 FROM appended",
    )
    # A single record, as a sequential run appends them: without arrays, the server has half the work.
    APPEND_ONE = Query(
        f"{RECORD_VALUES} key:i held_epoch:i",
        f"INSERT INTO @records ({RECORD_COLUMNS}) SELECT {_RECORD_PLACEHOLDERS} FROM @runs "
        "WHERE key = :key AND epoch = :held_epoch AND state = 'running' AND has_budget = 0 FOR SHARE",
    )
    LOCK_RUNS = Query(
        "keys:i[]",
        "SELECT r.key FROM (SELECT unnest(:keys) AS key ORDER BY key OFFSET 0) w CROSS JOIN LATERAL "
        "(SELECT key FROM @runs WHERE key = w.key OFFSET 0 FOR NO KEY UPDATE) r",
    )
    # Ends runs that leave nothing else to do: no run waits for them, and there is nothing to clean up. Returns their
    # keys. They must be locked by a statement before this one, so that this one sees which runs wait.
    FINISH_HELD = Write(
        f"{END_VALUES} key:i epoch:i respect_cancel:i",
        f"UPDATE @runs SET {assign(END_VALUES)}, {ENDED} FROM (SELECT q.*, r.ctid AS place FROM @rows "
        "CROSS JOIN LATERAL (SELECT ctid FROM @runs WHERE key = :key AND epoch = :epoch "
        "AND state || '' = 'running' AND has_budget = 0 AND (cancel_state = '' OR :respect_cancel = 0) OFFSET 0) r "
        "WHERE (SELECT 1 FROM @links WHERE child = :key AND link_state = 1 LIMIT 1) IS NULL "
        "AND (SELECT 1 FROM @live_events WHERE run = :key AND is_permanent = 0 LIMIT 1) IS NULL "
        "AND (SELECT 1 FROM @approvals WHERE run = :key AND state || '' = 'open' LIMIT 1) IS NULL) q "
        "WHERE runs.ctid = q.place RETURNING runs.key",
    )
    # Starts runs whose ids are new, unless a workflow is disabled, their queue has limits, or their worker is dead.
    # Returns their ids and keys. Their keys rise in the order of the rows. A statement before this one has locked the
    # workers.
    START_NEW = Write(
        NEW_RUN_VALUES,
        f"INSERT INTO @runs (key, {get_names(NEW_RUN_VALUES)}) SELECT q.key, {_NEW_RUN_COLUMNS} "
        "FROM (SELECT nextval('@run_keys') AS key, q.* FROM @rows "
        "WHERE (SELECT 1 FROM @disabled_workflows LIMIT 1) IS NULL "
        "AND (SELECT 1 FROM @queues WHERE name = q.queue) IS NULL AND (q.owner IS NULL OR "
        "(SELECT 1 FROM @workers WHERE id = q.owner AND state = 'live') IS NOT NULL) OFFSET 0) q "
        "ORDER BY q.id ON CONFLICT (id) DO NOTHING RETURNING id, key",
    )
    # The number of unfinished runs among these, and with it each ended one; one row if there is none.
    ENDED_RUNS = Query(
        "ids:t[]",
        "SELECT u.unfinished, e.* FROM (SELECT :ids AS ids) q "
        "CROSS JOIN LATERAL (SELECT count(*) AS unfinished FROM unnest(q.ids) i (id) "
        "CROSS JOIN LATERAL (SELECT 1 FROM @runs WHERE id = i.id AND finished_at IS NULL OFFSET 0) r) u "
        "LEFT JOIN LATERAL (SELECT r.* FROM unnest(q.ids) i (id) "
        f"CROSS JOIN LATERAL (SELECT {RUN_COLUMNS} FROM @runs WHERE id = i.id AND finished_at IS NOT NULL OFFSET 0) r"
        ") e ON true",
    )
    ALLOCATE_KEYS = Query("count:i", "SELECT nextval('@run_keys') FROM generate_series(1, :count)")

    # Locks

    LOCK_SESSIONS = Query(
        "schema:t workflows:t[] sessions:t[]",
        "SELECT pg_advisory_xact_lock(h) FROM (SELECT DISTINCT hashtextextended(w || chr(1) || s, "
        "hashtextextended(:schema, 0)) AS h FROM unnest(:workflows, :sessions) q (w, s) ORDER BY h OFFSET 0) q",
    )
    CREATE_ACCOUNTS = Query(
        "keys:i[]",
        f"{_WITH_ANCESTORS}INSERT INTO @usages (run, {ACCOUNT_COLUMNS}) "
        "SELECT a.run, p.key, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, '' FROM ancestors a LEFT JOIN LATERAL "
        "(SELECT key FROM @runs WHERE id = a.parent AND a.parent <> '' AND key < a.run OFFSET 0) p ON true "
        "ORDER BY a.run ON CONFLICT (run) DO NOTHING",
    )
    LOCK_ACCOUNTS = Query(
        "keys:i[]",
        f"{_WITH_ANCESTORS}SELECT u.* FROM (SELECT run FROM ancestors ORDER BY run OFFSET 0) a CROSS JOIN LATERAL "
        f"(SELECT run, {ACCOUNT_COLUMNS} FROM @usages WHERE run = a.run OFFSET 0 FOR NO KEY UPDATE) u",
    )
    # In order, so that two transactions that start runs of the same keys do not deadlock.
    LOCK_TURNS = Query(
        "queues:t[] priorities:i[] keys:t[]",
        "INSERT INTO @queue_turns AS t (queue, priority, key, turn, at) SELECT q.queue, q.priority, q.key, -1, 0 "
        "FROM (SELECT DISTINCT u.queue, u.priority, u.key FROM unnest(:queues, :priorities, :keys) "
        "u (queue, priority, key)) q CROSS JOIN LATERAL "
        "(SELECT 1 FROM @queues WHERE name = q.queue OFFSET 0 FOR KEY SHARE) o ORDER BY q.queue, q.priority, q.key "
        "ON CONFLICT (queue, priority, key) DO UPDATE SET at = t.at RETURNING queue, priority, key, turn",
    )

    # Claims

    PROMOTE_DUE = Query(
        "workflows:t[] versions:t[] now:f max_rows:i",
        f"UPDATE @runs SET ready_state = {READY_WHEN_DUE} WHERE key = ANY(ARRAY(SELECT t.key FROM "
        "unnest(:workflows, :versions) w (name, version) CROSS JOIN LATERAL (SELECT key FROM @runs "
        f"WHERE ready_state = {ReadyState.TIMER} AND workflow = w.name AND version = w.version AND wake_at <= :now "
        "ORDER BY workflow, version, wake_at LIMIT :max_rows FOR NO KEY UPDATE SKIP LOCKED) t))",
    )
    # Reads the first runs of each version without a lock, then locks as many of them as the claim wants.
    DUE_RUNS = NamedQuery(
        "workflows:t[] versions:t[] queues:t[] few:i limit:i",
        "SELECT c.priority, r.key FROM (SELECT c.* FROM unnest(:workflows, :versions) w (name, version) "
        f"CROSS JOIN LATERAL (SELECT priority, key FROM @runs WHERE ready_state = {ReadyState.DUE} "
        "AND workflow = w.name AND version = w.version AND (:queues IS NULL OR queue IN :queues) "
        "ORDER BY workflow, version, priority DESC, key LIMIT :few) c "
        "ORDER BY c.priority DESC, c.key OFFSET 0) c CROSS JOIN LATERAL "
        f"(SELECT key FROM @runs WHERE key = c.key AND ready_state + 0 = {ReadyState.DUE} OFFSET 0 "
        "FOR NO KEY UPDATE SKIP LOCKED) r LIMIT :limit",
    )

    # Lists: runs that contain a text

    TEXT_CONDITION = Query(
        "",
        " AND (runs.id {test} OR runs.workflow {test} "
        "OR (runs.tags <> '[]' "
        "AND EXISTS (SELECT 1 FROM @run_tags t WHERE t.run = runs.key AND t.tag {test} OFFSET 0)) "
        "OR (runs.error IS NOT NULL AND @error_words(runs.error) {test}))",
    )

    # Memories

    # Returns the size before the change; a new memory has size 0.
    PUT_MEMORY = Query(
        "namespace:t key:t value:b text:t created_at:f updated_at:f",
        f"INSERT INTO @memories ({MEMORY_COLUMNS}, size) "
        "VALUES (:namespace, :key, :value, :text, :created_at, :updated_at, 0) "
        "ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, text = excluded.text, "
        "updated_at = excluded.updated_at RETURNING id, size",
    )
    DELETE_MEMORY = Query(
        "namespace:t key:t", "DELETE FROM @memories WHERE namespace = :namespace AND key = :key RETURNING id, size"
    )
    SET_MEMORY_SIZE = Query("size:i id:i", "UPDATE @memories SET size = :size WHERE id = :id")
    PUT_MEMORY_WORDS = Insert("memory_words", "word:t namespace_word:b memory:i occurrences:i")
    DELETE_MEMORY_WORDS = Delete("memory_words", "memory:i")
    ADD_MEMORY_TOTALS = Query(
        "slot:i memories:i size:i",
        "INSERT INTO @memory_totals AS t (slot, memories, size) VALUES (:slot, :memories, :size) "
        "ON CONFLICT (slot) DO UPDATE SET memories = t.memories + excluded.memories, size = t.size + excluded.size",
    )
    # ``text_search.rank_bm25`` in SQL. The parts of a score are added in the order of the words, so that equal matches
    # have equal scores.
    SEARCH_MEMORIES = NamedQuery(
        "words:t[] namespace_word:b namespace:t limit:i",
        "WITH wanted AS MATERIALIZED (SELECT q.n, q.word, t.size / t.memories AS average, "
        "greatest(ln((t.memories - h.hits + 0.5) / (h.hits + 0.5)), 1e-6) AS weight "
        "FROM (SELECT sum(memories)::float8 AS memories, sum(size)::float8 AS size FROM @memory_totals) t "
        "CROSS JOIN unnest(:words) WITH ORDINALITY AS q (word, n) "
        "CROSS JOIN LATERAL (SELECT count(*) AS hits FROM @memory_words WHERE word = q.word) h "
        "WHERE t.memories > 0) "
        f"SELECT {MEMORY_COLUMNS} FROM (SELECT p.memory, sum(w.weight * p.occurrences * {BM25_K1 + 1} "
        f"/ (p.occurrences + {BM25_K1} * (1 - {BM25_B} + {BM25_B} * m.size / w.average)) ORDER BY w.n) AS score "
        "FROM wanted w CROSS JOIN LATERAL (SELECT memory, occurrences FROM @memory_words "
        "WHERE word = w.word AND namespace_word = :namespace_word OFFSET 0) p "
        "CROSS JOIN LATERAL (SELECT size FROM @memories WHERE id = p.memory OFFSET 0) m GROUP BY p.memory) f "
        f"CROSS JOIN LATERAL (SELECT {MEMORY_COLUMNS} FROM @memories WHERE id = f.memory OFFSET 0) m "
        "WHERE namespace = :namespace ORDER BY f.score DESC, key LIMIT :limit",
    )

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(PostgresDialect(quote_identifier(schema)))
