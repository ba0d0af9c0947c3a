"""Claims: which runs are due, and the workers that claim them."""

from __future__ import annotations

from holdfast.stores.sql.ready_states import KEYED_READY, LIMITED_READY, ReadyState
from holdfast.stores.sql.statements.columns import WORKER_COLUMNS
from holdfast.stores.sql.templates import (
    Catalog,
    Insert,
    Lookup,
    NamedQuery,
    Query,
    Upsert,
    flag,
    get_names,
    get_placeholders,
    replace_on_conflict,
)

# What a worker serves. SQLite: ``workflows`` is a JSON list of names with their versions. PostgreSQL: two arrays.
_SERVED = "queues:t[] workflows:t[] versions:t[] now:f"
_QUEUE_SERVED = "(:queues IS NULL OR queue IN :queues)"
_ENABLED = "NOT EXISTS (SELECT 1 FROM @disabled_workflows x WHERE x.workflow = w.name)"

# SQLite needs the names of the indexes: otherwise it may choose one that has every run of a workflow.
_INDEXES = {ReadyState.TIMER: "runs_waking", ReadyState.DUE: "runs_due", ReadyState.SUSPECT: "runs_suspects"}
_SQLITE_WORKFLOWS = (
    "(SELECT json_extract(value, '$[0]') AS name, json_extract(value, '$[1]') AS version FROM json_each(:workflows)) w"
)
_POSTGRES_WORKFLOWS = "unnest(:workflows, :versions) w (name, version)"


def _runs(ready: ReadyState) -> str:
    return (
        f"FROM @runs[{_INDEXES[ready]}] WHERE ready_state = {ready} AND workflow = w.name AND version = w.version "
        f"AND {_QUEUE_SERVED}"
    )


# Limited queues: the run must be in the queue ``o`` and of the version ``w``.
_RUNNING_RUNS = "FROM @runs[runs_executed] WHERE queue = o.name AND state = 'running' AND due_state > 1"
_NEVER = "9e999"


def _first_queued(ready: ReadyState, value: str) -> str:
    """A value, if such a run exists; else NULL."""
    return (
        f"(SELECT {value} FROM @runs[runs_queued] WHERE queue = o.name AND workflow = w.name AND version = w.version "
        f"AND ready_state = {ready} AND ready_state IN {LIMITED_READY} LIMIT 1)"
    )


def _has_throttled(ready: ReadyState) -> str:
    return (
        f"(SELECT 1 FROM @runs[runs_by_key] WHERE queue = o.name AND queue_key = k.key AND ready_state = {ready} AND "
        f"ready_state IN {KEYED_READY} AND workflow = w.name AND version = w.version LIMIT 1) IS NOT NULL"
    )


_HAS_SLOT_FOR_KEY = (
    f"(o.key_concurrency IS NULL OR (SELECT count(*) {_RUNNING_RUNS} AND queue_key = k.key) < o.key_concurrency)"
)
# Keys without a free slot come first, and there are no more of them than running runs. Then come keys that wait for
# their rate, in the order of time. So the first key that has a run for this worker is enough.
_SQLITE_THROTTLED_AT = (
    f"(SELECT CASE WHEN {_has_throttled(ReadyState.THROTTLED_STARTED)} THEN 0.0 ELSE max(k.recheck_at, "
    "o.next_start_at) END FROM @queue_keys[queue_keys_throttled] k WHERE k.queue = o.name AND k.is_throttled = 1 AND "
    f"{_HAS_SLOT_FOR_KEY} AND ({_has_throttled(ReadyState.THROTTLED_STARTED)} OR "
    f"{_has_throttled(ReadyState.THROTTLED_UNSTARTED)}) ORDER BY k.recheck_at LIMIT 1)"
)
_POSTGRES_THROTTLED_AT = (
    "(SELECT CASE WHEN b.begun THEN 0 ELSE greatest(k.recheck_at, o.next_start_at) END FROM @queue_keys k CROSS JOIN "
    f"LATERAL (SELECT {_has_throttled(ReadyState.THROTTLED_STARTED)} AS begun, "
    f"{_has_throttled(ReadyState.THROTTLED_UNSTARTED)} AS unbegun OFFSET 0) b WHERE k.queue = o.name AND "
    f"k.is_throttled = 1 AND {_HAS_SLOT_FOR_KEY} AND (b.begun OR b.unbegun) ORDER BY k.queue, k.recheck_at LIMIT 1)"
)
# When the first run of a limited queue can be claimed, as far as is known; NULL: not before something else happens.
_SQLITE_LIMITED_AT = (
    f"SELECT nullif(min(CASE WHEN {_first_queued(ReadyState.EXEMPT, '1')} THEN 0.0 WHEN o.concurrency IS NULL OR "
    f"(SELECT count(*) {_RUNNING_RUNS}) < o.concurrency THEN min(coalesce({_first_queued(ReadyState.STARTED, '0.0')}, "
    f"{_NEVER}), coalesce({_first_queued(ReadyState.UNSTARTED, 'o.next_start_at')}, {_NEVER}), "
    f"coalesce({_SQLITE_THROTTLED_AT}, {_NEVER})) ELSE {_NEVER} END), {_NEVER}) FROM @queues o CROSS JOIN "
    f"{_SQLITE_WORKFLOWS} WHERE o.paused_at IS NULL AND (:queues IS NULL OR o.name IN :queues) AND {_ENABLED}"
)
_POSTGRES_LIMITED_AT = (
    f"SELECT min(CASE WHEN {_first_queued(ReadyState.EXEMPT, '1')} IS NOT NULL THEN 0 WHEN p.has_places THEN "
    f"least({_first_queued(ReadyState.STARTED, '0')}, {_first_queued(ReadyState.UNSTARTED, 'o.next_start_at')}, "
    f"{_POSTGRES_THROTTLED_AT}) END)::float8 FROM @queues o CROSS JOIN LATERAL (SELECT CASE WHEN o.concurrency IS "
    f"NULL THEN true ELSE (SELECT count(*) {_RUNNING_RUNS}) < o.concurrency END AS has_places OFFSET 0) p CROSS JOIN "
    f"{_POSTGRES_WORKFLOWS} WHERE o.paused_at IS NULL AND (:queues IS NULL OR o.name IN :queues) AND {_ENABLED}"
)


def _any(select: str) -> str:
    """Like ``EXISTS``, which PostgreSQL might answer by reading everything if it is used with ``OR``."""
    return f"({select} LIMIT 1) IS NOT NULL"


_HAS_DUE = (
    f"{_any(f'SELECT 1 {_runs(ReadyState.DUE)}')} OR {_any(f'SELECT 1 {_runs(ReadyState.TIMER)} AND wake_at <= :now')} "
    f"OR {_any(f'SELECT 1 {_runs(ReadyState.SUSPECT)} AND wake_at <= :now')}"
)
_NEXT_DUE = f"SELECT wake_at {_runs(ReadyState.DUE)} ORDER BY workflow, version, priority DESC, key LIMIT 1"
_NEXT_SUSPECT = f"SELECT wake_at {_runs(ReadyState.SUSPECT)} ORDER BY workflow, version, wake_at LIMIT 1"
_NEXT_TIMER = f"SELECT wake_at {_runs(ReadyState.TIMER)} ORDER BY workflow, version, wake_at LIMIT 1"


_IS_LIMITED = flag("due_state > 1")
_IS_CANCELLED = flag("cancel_state <> ''")


_DISABLED = "workflow:t disabled_at:f actor:t reason:t is_temporary:i"
_SPEC = (
    "name:t parameters:t id_template:t queue:t timeout_s:f tags:t budget:t is_agent:i max_deliveries:i announced_at:f "
    "queue_key_template:t is_address:i inputs_schema:t"
)


class ClaimStatements(Catalog):
    """Which runs are due. The values are ``Database.to_served_parameters``, ``queues``, and ``now``."""

    HAS_DUE = NamedQuery(
        _SERVED,
        sqlite=f"SELECT EXISTS (SELECT 1 FROM {_SQLITE_WORKFLOWS} WHERE {_ENABLED} AND ({_HAS_DUE})) "
        f"OR coalesce(({_SQLITE_LIMITED_AT}) <= :now, 0)",
        postgres=f"SELECT EXISTS (SELECT 1 FROM {_POSTGRES_WORKFLOWS} WHERE {_ENABLED} AND ({_HAS_DUE})) "
        f"OR coalesce(({_POSTGRES_LIMITED_AT}) <= :now, false)",
    )
    # ``wake_at`` of a run that is due, when the first run of a limited queue can be claimed, ``wake_at`` of a suspect
    # and of a timer
    NEXT_READY = NamedQuery(
        _SERVED,
        sqlite=f"SELECT min(({_NEXT_DUE})), ({_SQLITE_LIMITED_AT}), min(({_NEXT_SUSPECT})), min(({_NEXT_TIMER})) "
        f"FROM {_SQLITE_WORKFLOWS} WHERE {_ENABLED}",
        postgres=f"SELECT min(({_NEXT_DUE})), ({_POSTGRES_LIMITED_AT}), min(({_NEXT_SUSPECT})), min(({_NEXT_TIMER})) "
        f"FROM {_POSTGRES_WORKFLOWS} WHERE {_ENABLED}",
    )
    SUSPECTS = Lookup(
        "workflow:t version:t before:f max_rows:i",
        f"SELECT key, queue, queue_key, priority, suspicion, {_IS_LIMITED}, {_IS_CANCELLED} FROM @runs[runs_suspects] "
        f"WHERE ready_state = {ReadyState.SUSPECT} AND workflow = :workflow AND version = :version AND wake_at <= "
        ":before ORDER BY suspicion DESC, priority DESC, key LIMIT :max_rows",
    )

    # Workflows

    DISABLED_WORKFLOWS = Query("", f"SELECT {get_names(_DISABLED)} FROM @disabled_workflows")
    DISABLE_WORKFLOW = Query(
        _DISABLED,
        f"INSERT INTO @disabled_workflows AS old ({get_names(_DISABLED)}) VALUES ({get_placeholders(_DISABLED)}) "
        "ON CONFLICT (workflow) DO UPDATE SET actor = excluded.actor, reason = excluded.reason, is_temporary = 0 "
        "WHERE old.is_temporary = 1 AND excluded.is_temporary = 0",
    )
    ENABLE_WORKFLOW = Query(
        "workflow:t is_temporary:i",
        "DELETE FROM @disabled_workflows WHERE workflow = :workflow AND is_temporary >= :is_temporary",
    )
    PUT_SPEC = Upsert("workflows", _SPEC, "name")
    SPECS = Query("", f"SELECT {get_names(_SPEC)} FROM @workflows")
    # The range also has names of other workflows; the caller filters them out.
    SPECS_OF_WORKFLOW = Query(
        "name:t first_version:t end:t",
        f"SELECT {get_names(_SPEC)} FROM @workflows WHERE name = :name OR name >= :first_version AND name < :end",
    )


def _distinct(column: str, index: str, order: str, condition: str) -> str:
    """The distinct values of a column, with one step through its index for each."""
    first = f"SELECT {column} FROM @runs[{index}] WHERE {condition}"
    return (
        f"SELECT id FROM (WITH RECURSIVE e (id) AS (SELECT * FROM ({first} ORDER BY {order} LIMIT 1) x UNION ALL "
        f"SELECT ({first} AND {column} > e.id ORDER BY {order} LIMIT 1) FROM e WHERE e.id IS NOT NULL) "
        "SELECT id FROM e WHERE id IS NOT NULL) y"
    )


_OWNERS = _distinct("owner", "runs_claimed", "owner, key", "owner IS NOT NULL")
_STARTERS = _distinct("starter", "runs_started", "starter", "starter IS NOT NULL AND finished_at IS NULL")
_LIVE = "SELECT id FROM @workers[workers_live] WHERE state = 'live'"


class WorkerStatements(Catalog):
    """Statements about workers."""

    # Declaring the worker dead waits for this lock; renewing its lease does not.
    IS_WORKER_LIVE = Lookup(
        "worker:i", "SELECT 1 FROM @workers WHERE id = :worker AND state = 'live'", lock="FOR KEY SHARE"
    )
    WORKER = Query("id:i", f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id = :id")
    # Workers in the list, live workers, and workers that unfinished runs refer to.
    WORKERS = Query(
        "ids:i[]",
        sqlite=f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id IN ({_LIVE} UNION {_OWNERS} UNION {_STARTERS} "
        "UNION SELECT value FROM json_each(:ids)) ORDER BY id",
        postgres=f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id = ANY(ARRAY({_LIVE}) || ARRAY({_OWNERS}) "
        f"|| ARRAY({_STARTERS}) || :ids) ORDER BY id",
    )
    SET_WORKER_WORKFLOWS = Query("workflows:t id:i", "UPDATE @workers SET workflows = :workflows WHERE id = :id")
    LOCK_LEASE = Query(
        "id:i",
        "SELECT heartbeat_at, lease_expires_at FROM @workers WHERE id = :id AND state = 'live'",
        lock="FOR UPDATE",
    )
    SET_WORKER_STATE = Query("state:t id:i", "UPDATE @workers SET state = :state WHERE id = :id AND state = 'live'")
    LOCK_CLAIMED_RUNS = Query(
        "worker:i",
        "SELECT key, id, delivery_count, max_deliveries, suspicion FROM @runs WHERE owner = :worker "
        "AND owner IS NOT NULL AND state || '' = 'running' ORDER BY key",
        lock="FOR NO KEY UPDATE",
    )
    CLAIMED_WITH_BUDGET = Query(
        "worker:i",
        "SELECT key FROM @runs WHERE owner = :worker AND owner IS NOT NULL AND state || '' = 'running' "
        "AND has_budget = 1",
    )


_SCHEDULE_CHANGES = "workflow:t timing:t catch_up:t max_catch_up:i overlap:t is_declared_in_code:i options:t inputs:b"
_SCHEDULE = f"name:t {_SCHEDULE_CHANGES} created_at:f fired_up_to:f"
_SCHEDULES = (
    f"SELECT {get_names(_SCHEDULE)}, paused_at, last_run, last_skipped_at, EXISTS (SELECT 1 FROM @announcements a "
    "JOIN @workers w ON w.id = a.worker WHERE a.schedule = o.name AND w.state = 'live' AND w.lease_expires_at >= :now) "
    "FROM @schedules o"
)
_ADD_SCHEDULE = f"INSERT INTO @schedules AS o ({get_names(_SCHEDULE)}) VALUES ({get_placeholders(_SCHEDULE)})"


class ScheduleStatements(Catalog):
    """Statements about schedules."""

    ADD_SCHEDULE = Query(_SCHEDULE, f"{_ADD_SCHEDULE} ON CONFLICT DO NOTHING")
    # ``created_at`` stays, and ``fired_up_to`` never decreases.
    PUT_SCHEDULE = Query(
        _SCHEDULE,
        f"{_ADD_SCHEDULE}{replace_on_conflict(get_names(_SCHEDULE_CHANGES).split(', '), 'name')}, "
        "fired_up_to = greatest(o.fired_up_to, excluded.fired_up_to)",
    )
    ANNOUNCE_SCHEDULE = Insert("announcements", "schedule:t worker:i", " ON CONFLICT DO NOTHING")
    DELETE_STALE_ANNOUNCEMENTS = Query(
        "",
        sqlite="DELETE FROM @announcements WHERE worker NOT IN (SELECT id FROM @workers WHERE state = 'live')",
        postgres="DELETE FROM @announcements WHERE (schedule, worker) IN (SELECT a.schedule, a.worker "
        "FROM @announcements a WHERE NOT EXISTS (SELECT 1 FROM @workers w WHERE w.id = a.worker "
        "AND w.state = 'live') ORDER BY a.schedule, a.worker FOR UPDATE OF a SKIP LOCKED)",
    )
    DELETE_ANNOUNCEMENTS = Query("schedule:t", "DELETE FROM @announcements WHERE schedule = :schedule")
    SCHEDULES = Query("now:f", f"{_SCHEDULES} ORDER BY name")
    SCHEDULES_NAMED = Query("now:f names:t[]", f"{_SCHEDULES} WHERE name IN :names ORDER BY name")
    # Without a run, ``last_run`` stays the same; so does ``last_skipped_at``.
    ADVANCE_SCHEDULE = Query(
        "fired_up_to:f run:t last_skipped_at:f name:t if_was:f",
        "UPDATE @schedules SET fired_up_to = :fired_up_to, last_run = coalesce(nullif(:run, ''), last_run), "
        "last_skipped_at = coalesce(:last_skipped_at, last_skipped_at) WHERE name = :name AND fired_up_to = :if_was",
    )
    PAUSE_SCHEDULE = Query(
        "paused_at:f name:t", "UPDATE @schedules SET paused_at = :paused_at WHERE name = :name AND paused_at IS NULL"
    )
    RESUME_SCHEDULE = Query(
        "name:t", "UPDATE @schedules SET paused_at = NULL WHERE name = :name AND paused_at IS NOT NULL"
    )
    DELETE_SCHEDULE = Query("name:t", "DELETE FROM @schedules WHERE name = :name")
