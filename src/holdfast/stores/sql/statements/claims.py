"""Claims: which runs are due, and the workers that claim them."""

from __future__ import annotations

from holdfast.stores.sql.ready_states import KEYED_READY, LIMITED_READY, Ready
from holdfast.stores.sql.statements.columns import WORKER_COLUMNS
from holdfast.stores.sql.templates import Catalog, Insert, Lookup, NamedQuery, Query, Upsert, flag

# What a worker serves. SQLite: ``workflows`` is a JSON list of names with their versions. PostgreSQL: two arrays.
_SERVED = "queues:t[] workflows:t[] versions:t[] now:f"
_QUEUE_SERVED = "(:queues IS NULL OR queue IN :queues)"
_ENABLED = "NOT EXISTS (SELECT 1 FROM @switches x WHERE x.workflow = w.name)"

# The indexes are named for SQLite, which takes one that holds every run of a workflow for as good.
_INDEXES = {Ready.TIMER: "runs_waking", Ready.DUE: "runs_due", Ready.SUSPECT: "runs_suspects"}
_SQLITE_WORKFLOWS = (
    "(SELECT json_extract(value, '$[0]') AS name, json_extract(value, '$[1]') AS version FROM json_each(:workflows)) w"
)
_POSTGRES_WORKFLOWS = "unnest(:workflows, :versions) w (name, version)"


def _runs(ready: Ready) -> str:
    return (
        f"FROM @runs[{_INDEXES[ready]}] WHERE ready = {ready} AND workflow = w.name AND version = w.version "
        f"AND {_QUEUE_SERVED}"
    )


# Limited queues: the run must be in the queue ``o`` and of the version ``w``.
_EXECUTED = "FROM @runs[runs_executed] WHERE queue = o.name AND state = 'running' AND due_as > 1"
_NEVER = "9e999"


def _first_queued(ready: Ready, value: str) -> str:
    """A value, if there is such a run."""
    return (
        f"(SELECT {value} FROM @runs[runs_queued] WHERE queue = o.name AND workflow = w.name AND version = w.version "
        f"AND ready = {ready} AND ready IN {LIMITED_READY} LIMIT 1)"
    )


def _is_any_aside(ready: Ready) -> str:
    return (
        "(SELECT 1 FROM @runs[runs_of_keys] WHERE queue = o.name AND queue_key = k.key "
        f"AND ready = {ready} AND ready IN {KEYED_READY} AND workflow = w.name AND version = w.version LIMIT 1) "
        "IS NOT NULL"
    )


_HAS_PLACE_FOR_KEY = (
    f"(o.key_concurrency IS NULL OR (SELECT count(*) {_EXECUTED} AND queue_key = k.key) < o.key_concurrency)"
)
# Keys that have no place come first, of which there are no more than runs that are executed; then those that wait for
# their rate, the next one first: so the first that has something for this worker is as good as all of them.
_SQLITE_ASIDE_AT = (
    f"(SELECT CASE WHEN {_is_any_aside(Ready.ASIDE_BEGUN)} THEN 0.0 ELSE max(k.open_at, o.open_at) END "
    f"FROM @queue_keys[queue_keys_aside] k WHERE k.queue = o.name AND k.aside = 1 AND {_HAS_PLACE_FOR_KEY} "
    f"AND ({_is_any_aside(Ready.ASIDE_BEGUN)} OR {_is_any_aside(Ready.ASIDE_UNBEGUN)}) ORDER BY k.open_at LIMIT 1)"
)
_POSTGRES_ASIDE_AT = (
    "(SELECT CASE WHEN b.begun THEN 0 ELSE greatest(k.open_at, o.open_at) END FROM @queue_keys k CROSS JOIN LATERAL "
    f"(SELECT {_is_any_aside(Ready.ASIDE_BEGUN)} AS begun, {_is_any_aside(Ready.ASIDE_UNBEGUN)} AS unbegun OFFSET 0) b "
    f"WHERE k.queue = o.name AND k.aside = 1 AND {_HAS_PLACE_FOR_KEY} AND (b.begun OR b.unbegun) "
    "ORDER BY k.queue, k.open_at LIMIT 1)"
)
# When the first run of a limited queue can be claimed, as far as is known; NULL: not before something else happens.
_SQLITE_LIMITED_AT = (
    f"SELECT nullif(min(CASE WHEN {_first_queued(Ready.EXEMPT, '1')} THEN 0.0 WHEN o.concurrency IS NULL "
    f"OR (SELECT count(*) {_EXECUTED}) < o.concurrency THEN "
    f"min(coalesce({_first_queued(Ready.BEGUN, '0.0')}, {_NEVER}), "
    f"coalesce({_first_queued(Ready.UNBEGUN, 'o.open_at')}, {_NEVER}), coalesce({_SQLITE_ASIDE_AT}, {_NEVER})) "
    f"ELSE {_NEVER} END), {_NEVER}) FROM @queues o CROSS JOIN {_SQLITE_WORKFLOWS} "
    f"WHERE o.paused_at IS NULL AND (:queues IS NULL OR o.name IN :queues) AND {_ENABLED}"
)
_POSTGRES_LIMITED_AT = (
    f"SELECT min(CASE WHEN {_first_queued(Ready.EXEMPT, '1')} IS NOT NULL THEN 0 WHEN p.has_places THEN "
    f"least({_first_queued(Ready.BEGUN, '0')}, {_first_queued(Ready.UNBEGUN, 'o.open_at')}, {_POSTGRES_ASIDE_AT}) "
    "END)::float8 FROM @queues o CROSS JOIN LATERAL (SELECT CASE WHEN o.concurrency IS NULL THEN true "
    f"ELSE (SELECT count(*) {_EXECUTED}) < o.concurrency END AS has_places OFFSET 0) p "
    f"CROSS JOIN {_POSTGRES_WORKFLOWS} "
    f"WHERE o.paused_at IS NULL AND (:queues IS NULL OR o.name IN :queues) AND {_ENABLED}"
)


def _any(select: str) -> str:
    """``EXISTS`` beside ``OR`` could be answered by PostgreSQL by reading all there is; this cannot."""
    return f"({select} LIMIT 1) IS NOT NULL"


_HAS_DUE = (
    f"{_any(f'SELECT 1 {_runs(Ready.DUE)}')} OR {_any(f'SELECT 1 {_runs(Ready.TIMER)} AND wake_at <= :now')} "
    f"OR {_any(f'SELECT 1 {_runs(Ready.SUSPECT)} AND wake_at <= :now')}"
)
_NEXT_DUE = f"SELECT wake_at {_runs(Ready.DUE)} ORDER BY workflow, version, priority DESC, key LIMIT 1"
_NEXT_SUSPECT = f"SELECT wake_at {_runs(Ready.SUSPECT)} ORDER BY workflow, version, wake_at LIMIT 1"
_NEXT_TIMER = f"SELECT wake_at {_runs(Ready.TIMER)} ORDER BY workflow, version, wake_at LIMIT 1"


_IS_LIMITED = flag("due_as > 1")
_IS_CANCELLED = flag("cancel <> ''")


class ClaimStatements(Catalog):
    """What is due. The values are a mapping with what ``Database.served`` gives, ``queues`` and ``now``."""

    HAS_DUE = NamedQuery(
        _SERVED,
        sqlite=f"SELECT EXISTS (SELECT 1 FROM {_SQLITE_WORKFLOWS} WHERE {_ENABLED} AND ({_HAS_DUE})) "
        f"OR coalesce(({_SQLITE_LIMITED_AT}) <= :now, 0)",
        postgres=f"SELECT EXISTS (SELECT 1 FROM {_POSTGRES_WORKFLOWS} WHERE {_ENABLED} AND ({_HAS_DUE})) "
        f"OR coalesce(({_POSTGRES_LIMITED_AT}) <= :now, false)",
    )
    # ``wake_at`` of a run that is due, when the first run of a limited queue can be claimed, ``wake_at`` of a suspect
    NEXT_READY = NamedQuery(
        _SERVED,
        sqlite=f"SELECT min(({_NEXT_DUE})), ({_SQLITE_LIMITED_AT}), min(({_NEXT_SUSPECT})) "
        f"FROM {_SQLITE_WORKFLOWS} WHERE {_ENABLED}",
        postgres=f"SELECT min(({_NEXT_DUE})), ({_POSTGRES_LIMITED_AT}), min(({_NEXT_SUSPECT})) "
        f"FROM {_POSTGRES_WORKFLOWS} WHERE {_ENABLED}",
    )
    NEXT_TIMER = NamedQuery(
        _SERVED,
        sqlite=f"SELECT min(({_NEXT_TIMER})) FROM {_SQLITE_WORKFLOWS} WHERE {_ENABLED}",
        postgres=f"SELECT min(({_NEXT_TIMER})) FROM {_POSTGRES_WORKFLOWS} WHERE {_ENABLED}",
    )
    SUSPECTS = Lookup(
        "workflow:t version:t before:f max_rows:i",
        f"SELECT key, queue, queue_key, priority, suspicion, {_IS_LIMITED}, {_IS_CANCELLED} "
        f"FROM @runs[runs_suspects] WHERE ready = {Ready.SUSPECT} AND workflow = :workflow AND version = :version "
        "AND wake_at <= :before ORDER BY suspicion DESC, priority DESC, key LIMIT :max_rows",
    )

    # Workflows

    SWITCHES = Query("", "SELECT workflow, off_since, set_by, reason, is_temporary FROM @switches")
    SWITCH_OFF = Query(
        "workflow:t off_since:f set_by:t reason:t is_temporary:i",
        "INSERT INTO @switches AS old (workflow, off_since, set_by, reason, is_temporary) "
        "VALUES (:workflow, :off_since, :set_by, :reason, :is_temporary) ON CONFLICT (workflow) DO UPDATE "
        "SET set_by = excluded.set_by, reason = excluded.reason, is_temporary = 0 "
        "WHERE old.is_temporary = 1 AND excluded.is_temporary = 0",
    )
    SWITCH_ON = Query(
        "workflow:t is_temporary:i",
        "DELETE FROM @switches WHERE workflow = :workflow AND is_temporary >= :is_temporary",
    )
    PUBLISH = Upsert(
        "workflows",
        "name:t parameters:t id_template:t queue:t timeout:f tags:t budget:t is_agent:i max_deliveries:i "
        "announced_at:f queue_key:t by_delivery:i inputs_schema:t",
        "name",
    )
    SPECS = Query(
        "",
        "SELECT name, parameters, id_template, queue, timeout, tags, budget, is_agent, max_deliveries, announced_at, "
        "queue_key, by_delivery, inputs_schema FROM @workflows",
    )


def _distinct(column: str, index: str, order: str, condition: str) -> str:
    """The different values of a column, found by one step through its index for each."""
    first = f"SELECT {column} FROM @runs[{index}] WHERE {condition}"
    return (
        f"SELECT id FROM (WITH RECURSIVE e (id) AS (SELECT * FROM ({first} ORDER BY {order} LIMIT 1) x UNION ALL "
        f"SELECT ({first} AND {column} > e.id ORDER BY {order} LIMIT 1) FROM e WHERE e.id IS NOT NULL) "
        "SELECT id FROM e WHERE id IS NOT NULL) y"
    )


_OWNERS = _distinct("owner", "runs_held", "owner, key", "owner IS NOT NULL")
_STARTERS = _distinct("starter", "runs_started", "starter", "starter IS NOT NULL AND finished_at IS NULL")
_LIVE = "SELECT id FROM @workers[workers_live] WHERE state = 'live'"


class WorkerStatements(Catalog):
    """Statements about workers."""

    # Whoever declares it dead locks its row against this; renewing a lease does not.
    IS_LIVE = Lookup("worker:i", "SELECT 1 FROM @workers WHERE id = :worker AND state = 'live'", lock="FOR KEY SHARE")
    WORKER = Query("id:i", f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id = :id")
    # Those in the list, and all that are live or referred to by unfinished runs.
    WORKERS = Query(
        "ids:i[]",
        sqlite=f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id IN ({_LIVE} UNION {_OWNERS} UNION {_STARTERS} "
        "UNION SELECT value FROM json_each(:ids)) ORDER BY id",
        postgres=f"SELECT {WORKER_COLUMNS} FROM @workers WHERE id = ANY(ARRAY({_LIVE}) || ARRAY({_OWNERS}) "
        f"|| ARRAY({_STARTERS}) || :ids) ORDER BY id",
    )
    SERVE = Query("workflows:t id:i", "UPDATE @workers SET workflows = :workflows WHERE id = :id")
    LEASE = Query(
        "id:i", "SELECT beat_at, lease_until FROM @workers WHERE id = :id AND state = 'live'", lock="FOR UPDATE"
    )
    END_WORKER = Query("state:t id:i", "UPDATE @workers SET state = :state WHERE id = :id AND state = 'live'")
    HELD_RUNS = Query(
        "worker:i",
        "SELECT key, id, deliveries, max_deliveries, suspicion FROM @runs WHERE owner = :worker "
        "AND owner IS NOT NULL AND state || '' = 'running' ORDER BY key",
        lock="FOR NO KEY UPDATE",
    )
    HELD_WITH_BUDGET = Query(
        "worker:i",
        "SELECT key FROM @runs WHERE owner = :worker AND owner IS NOT NULL AND state || '' = 'running' "
        "AND has_budget = 1",
    )


_SCHEDULE_VALUES = (
    "name:t workflow:t timing:t catch_up:t most:i overlap:t by_code:i options:t inputs:b created_at:f fired_up_to:f"
)
_SCHEDULE_COLUMNS = ", ".join(value.partition(":")[0] for value in _SCHEDULE_VALUES.split())
_SCHEDULES = (
    f"SELECT {_SCHEDULE_COLUMNS}, paused_at, last_run, skipped, EXISTS (SELECT 1 FROM @announcements a "
    "JOIN @workers w ON w.id = a.worker WHERE a.schedule = o.name AND w.state = 'live' AND w.lease_until >= :now) "
    "FROM @schedules o"
)
_ADD_SCHEDULE = (
    f"INSERT INTO @schedules AS o ({_SCHEDULE_COLUMNS}) "
    f"VALUES ({', '.join(':' + name for name in _SCHEDULE_COLUMNS.split(', '))}) ON CONFLICT"
)


class ScheduleStatements(Catalog):
    """Statements about schedules."""

    ADD_SCHEDULE = Query(_SCHEDULE_VALUES, f"{_ADD_SCHEDULE} DO NOTHING")
    # ``created_at`` stays, and ``fired_up_to`` never becomes less.
    PUT_SCHEDULE = Query(
        _SCHEDULE_VALUES,
        f"{_ADD_SCHEDULE} (name) DO UPDATE SET workflow = excluded.workflow, timing = excluded.timing, "
        "catch_up = excluded.catch_up, most = excluded.most, overlap = excluded.overlap, by_code = excluded.by_code, "
        "options = excluded.options, inputs = excluded.inputs, "
        "fired_up_to = greatest(o.fired_up_to, excluded.fired_up_to)",
    )
    ANNOUNCE_SCHEDULE = Insert("announcements", "schedule:t worker:i", " ON CONFLICT DO NOTHING")
    DROP_ANNOUNCEMENTS = Query(
        "",
        sqlite="DELETE FROM @announcements WHERE worker NOT IN (SELECT id FROM @workers WHERE state = 'live')",
        postgres="DELETE FROM @announcements WHERE (schedule, worker) IN (SELECT a.schedule, a.worker "
        "FROM @announcements a WHERE NOT EXISTS (SELECT 1 FROM @workers w WHERE w.id = a.worker "
        "AND w.state = 'live') ORDER BY a.schedule, a.worker FOR UPDATE OF a SKIP LOCKED)",
    )
    FORGET_ANNOUNCEMENTS = Query("schedule:t", "DELETE FROM @announcements WHERE schedule = :schedule")
    SCHEDULES = Query("now:f", f"{_SCHEDULES} ORDER BY name")
    SCHEDULES_NAMED = Query("now:f names:t[]", f"{_SCHEDULES} WHERE name IN :names ORDER BY name")
    # Without a run, the last one stays; so does the last tick that was skipped.
    SETTLE_SCHEDULE = Query(
        "fired_up_to:f run:t skipped:f name:t if_was:f",
        "UPDATE @schedules SET fired_up_to = :fired_up_to, last_run = coalesce(nullif(:run, ''), last_run), "
        "skipped = coalesce(:skipped, skipped) WHERE name = :name AND fired_up_to = :if_was",
    )
    PAUSE_SCHEDULE = Query(
        "paused_at:f name:t", "UPDATE @schedules SET paused_at = :paused_at WHERE name = :name AND paused_at IS NULL"
    )
    RESUME_SCHEDULE = Query(
        "name:t", "UPDATE @schedules SET paused_at = NULL WHERE name = :name AND paused_at IS NOT NULL"
    )
    DELETE_SCHEDULE = Query("name:t", "DELETE FROM @schedules WHERE name = :name")
