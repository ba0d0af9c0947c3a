"""Starting, reading, and changing runs, one row at a time."""

from __future__ import annotations

from holdfast.stores.sql.ready_states import READY_WHEN_DUE, THROTTLED_READY, ReadyState, ready_when_due
from holdfast.stores.sql.statements.columns import RUN_COLUMNS
from holdfast.stores.sql.templates import Catalog, Insert, Lookup, Query, Update, assign

# The starter of a run with a generated id gets its result when it ends, unless the starter died before.
_RESULT_TAKEN = (
    "result_claim = CASE WHEN result_claim = 1 AND NOT EXISTS "
    "(SELECT 1 FROM @workers w WHERE w.id = runs.starter AND w.state = 'dead') THEN 2 ELSE result_claim END"
)
ENDED = (
    f"owner = NULL, ready_state = NULL, wake_at = NULL, waits_for = '', paused_at = NULL, parked_by = NULL, "
    f"{_RESULT_TAKEN}"
)
"""The assignments of every end."""
_RELEASED_AS = "state = 'pending', owner = NULL, ready_state = CASE WHEN paused_at IS NULL THEN {} END"
_RELEASED = _RELEASED_AS.format(READY_WHEN_DUE)
_WOKEN = f"ready_state = CASE WHEN ready_state IN {THROTTLED_READY} THEN ready_state ELSE {READY_WHEN_DUE} END"
_CANCEL_REQUESTED = "cancel_state = CASE cancel_state WHEN '' THEN 'requested' ELSE cancel_state END"
NEW_RUN_VALUES = (
    "id:t workflow:t queue:t state:t epoch:i owner:i starter:i max_deliveries:i ready_state:i wake_at:f "
    "priority:i deadline:f result_claim:i python_version:t created_at:f clock_started_at:f parent:t forked_from:t "
    "rewind_points:t digest:b seed:b tags:t inputs:b session:t previous_run:t has_budget:i version:t queue_key:t "
    "due_state:i turn:i dedup_key:t is_debounced:i is_delivery:i trace_parent:t"
)
"""The columns of ``rows.run_to_row``."""
END_VALUES = "state:t output:b error:b finished_at:f rewind:t"
"""What a run ends with."""
_RESTORED = (
    "state:t epoch:i delivery_count:i wake_at:f waits_for:t cancel_state:t paused_at:f finished_at:f rewind:t output:b "
    "error:b result_claim:i"
)
# Runs that are still being restored are left alone.
_OVERDUE = "deadline <= :now AND finished_at IS NULL AND coalesce(paused_at, 1) <> 0"


def _select_listed(column: str, kind: str) -> Query:
    values = f"{column}s:{kind}[]"
    return Query(
        values,
        sqlite=f"SELECT {RUN_COLUMNS} FROM @runs WHERE {column} IN :{column}s",
        postgres=f"SELECT r.* FROM (SELECT DISTINCT unnest(:{column}s) AS {column}) q "
        f"CROSS JOIN LATERAL (SELECT {RUN_COLUMNS} FROM @runs WHERE {column} = q.{column} OFFSET 0) r",
    )


def _update_held(values: str, assignments: str, owner: str, state: str, condition: str = "") -> Query:
    """A change of all runs with a worker in the column ``owner``, locked in the order of their keys."""
    found = f"{owner} = :worker AND {owner} IS NOT NULL AND state || '' = '{state}'{condition}"
    return Query(
        values,
        sqlite=f"UPDATE @runs SET {assignments} WHERE {found}",
        postgres=f"UPDATE @runs SET {assignments} WHERE key = ANY(ARRAY(SELECT key FROM @runs WHERE {found} "
        "ORDER BY key FOR NO KEY UPDATE))",
    )


class RunStatements(Catalog):
    """Statements about single runs."""

    GET_RUN = Lookup("id:t", f"SELECT {RUN_COLUMNS} FROM @runs WHERE id = :id")
    GET_RUN_BY_KEY = Lookup("key:i", f"SELECT {RUN_COLUMNS} FROM @runs WHERE key = :key")
    GET_RUNS_BY_ID = _select_listed("id", "t")
    GET_RUNS_BY_KEY = _select_listed("key", "i")
    RUN_ID = Lookup("key:i", "SELECT id FROM @runs WHERE key = :key")
    RUN_ID_BYTES = Query("key:i", "SELECT utf8(id) FROM @runs WHERE key = :key")
    RUN_KEY = Lookup("id:t", "SELECT key FROM @runs WHERE id = :id")
    SEED = Lookup("key:i", "SELECT seed FROM @runs WHERE key = :key")
    NEWEST_IN_SESSION = Lookup(
        "workflow:t session:t",
        "SELECT id FROM @runs WHERE workflow = :workflow AND session = :session AND session <> '' "
        "ORDER BY key DESC LIMIT 1",
    )

    # Starting

    START_RUN = Insert("runs", f"key:i {NEW_RUN_VALUES}", order="id")
    TAG_RUN = Insert("run_tags", "tag:t run:i", " ON CONFLICT DO NOTHING")
    # This waits for a locked orphan, to join it instead of starting another run.
    FIND_ORPHAN = Query(
        "workflow:t digest:b version:t",
        f"SELECT {RUN_COLUMNS} FROM @runs WHERE result_claim = 1 AND workflow = :workflow AND digest = :digest "
        "AND version = :version AND starter IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM @workers w WHERE w.id = runs.starter AND w.state = 'live') "
        "ORDER BY workflow, digest, key LIMIT 1",
        lock="FOR NO KEY UPDATE OF runs",
    )
    ADOPT_ORPHAN = Query(
        "starter:i key:i",
        "UPDATE @runs SET starter = :starter, result_claim = CASE WHEN finished_at IS NULL THEN 1 ELSE 2 END "
        "WHERE key = :key",
    )

    # A run's life

    DELIVERY_COUNTS = Lookup("key:i", "SELECT delivery_count, max_deliveries, suspicion FROM @runs WHERE key = :key")
    RESET_DELIVERY_COUNT = Update("key:i", "delivery_count = 0, suspicion = 0")
    CLAIM_RUN = Update(
        "owner:i key:i",
        "state = 'running', epoch = epoch + 1, owner = :owner, ready_state = NULL, wake_at = NULL, waits_for = '', "
        f"due_state = CASE due_state WHEN {ReadyState.UNSTARTED} THEN {ReadyState.STARTED} ELSE due_state END, "
        "dedup_key = CASE is_debounced WHEN 1 THEN '' ELSE dedup_key END",
    )
    PARK_RUN = Update(
        "ready_state:i wake_at:f waits_for:t by_holder:i key:i",
        "state = 'waiting', owner = NULL, ready_state = :ready_state, wake_at = :wake_at, waits_for = :waits_for, "
        "suspicion = 0, parked_by = CASE WHEN :by_holder = 1 THEN runs.owner END",
    )
    RELEASE_RUN = Update("wake_at:f key:i", f"{_RELEASED}, wake_at = :wake_at")
    # It is due at ``wake_at``, even if that has passed.
    RELEASE_LATER = Update(
        "wake_at:f counted:i key:i",
        f"{_RELEASED_AS.format(f'CASE WHEN suspicion > 1 THEN {ReadyState.SUSPECT} ELSE {ReadyState.TIMER} END')}, "
        "wake_at = :wake_at, delivery_count = delivery_count + :counted",
    )
    # For runs of a dead worker.
    REQUEUE_RUN = Update(
        "wake_at:f delivery_count:i suspicion:i key:i",
        f"{_RELEASED_AS.format(ready_when_due(':suspicion'))}, wake_at = :wake_at, delivery_count = :delivery_count, "
        "suspicion = :suspicion",
    )
    RELEASE_ALL_RUNS = _update_held("wake_at:f worker:i", f"{_RELEASED}, wake_at = :wake_at", "owner", "running")
    WAKE_RUN = Update(
        "wake_at:f key:i",
        f"{_WOKEN}, wake_at = :wake_at",
        " AND runs.state = 'waiting' AND runs.paused_at IS NULL",
    )
    WAKE_PARKED_BY = _update_held(
        "now:f worker:i", f"{_WOKEN}, wake_at = :now", "parked_by", "waiting", " AND paused_at IS NULL"
    )
    FINISH_RUN = Update(f"{END_VALUES} key:i", f"{assign(END_VALUES)}, {ENDED}")
    MARK_RUN_DEAD = Update(
        "delivery_count:i error:b finished_at:f key:i",
        f"state = 'dead', delivery_count = :delivery_count, error = :error, finished_at = :finished_at, {ENDED}",
    )
    FAIL_UNREADABLE = Query(
        "error:b finished_at:f key:i",
        f"UPDATE @runs SET state = 'failed', error = :error, finished_at = :finished_at, {ENDED} "
        "WHERE key = :key AND state = 'running'",
    )

    # Requests

    CANCEL_CLAIMED = Update("key:i", f"{_CANCEL_REQUESTED}, paused_at = NULL")
    CANCEL_IDLE = Update(
        "wake_at:f key:i",
        f"{_CANCEL_REQUESTED}, paused_at = NULL, ready_state = {ready_when_due(cancelled='true')}, wake_at = :wake_at",
    )
    CANCEL_IMMEDIATELY = Update(
        "finished_at:f key:i", f"{_CANCEL_REQUESTED}, state = 'cancelled', finished_at = :finished_at, {ENDED}"
    )
    SET_CANCEL_RECORDED = Update("key:i", "cancel_state = 'recorded'")
    PAUSE_RUN = Update("paused_at:f key:i", "paused_at = :paused_at, ready_state = NULL")
    RESUME_CLAIMED = Update("key:i", "paused_at = NULL")
    RESUME_IDLE = Update("wake_at:f key:i", f"paused_at = NULL, ready_state = {READY_WHEN_DUE}, wake_at = :wake_at")
    RESUME_UNSTARTED = Update(
        "now:f key:i",
        f"paused_at = NULL, ready_state = CASE WHEN runs.wake_at > :now THEN {ReadyState.TIMER} ELSE due_state END",
    )
    REQUESTS = Query(
        "worker:i",
        "SELECT key, cancel_state = 'requested', paused_at IS NOT NULL FROM @runs[runs_requested] WHERE owner = "
        ":worker AND owner IS NOT NULL AND (cancel_state = 'requested' OR paused_at IS NOT NULL) AND state = "
        "'running' ORDER BY key",
    )

    # Delivered runs whose deadline has passed

    OVERDUE = Query(
        "now:f max_rows:i",
        f"SELECT key FROM @runs[runs_expiring] WHERE is_delivery = 1 AND {_OVERDUE} ORDER BY deadline, key "
        "LIMIT :max_rows",
    )
    RECHECK_OVERDUE = Query(
        "now:f keys:i[]",
        sqlite=f"SELECT key, id FROM @runs WHERE is_delivery = 1 AND {_OVERDUE} AND key IN :keys "
        "ORDER BY deadline, key",
        postgres="SELECT r.key, r.id FROM (SELECT :now AS now, :keys AS keys) t CROSS JOIN unnest(t.keys) q (key) "
        "CROSS JOIN LATERAL (SELECT key, id, deadline FROM @runs WHERE key = q.key AND is_delivery + 0 = 1 "
        f"AND {_OVERDUE.replace(':now', 't.now')} OFFSET 0) r ORDER BY r.deadline, r.key",
    )

    # Archives

    RESULT_CLAIM = Query("key:i", "SELECT result_claim FROM @runs WHERE key = :key")
    RESTORE_RUN = Update(f"{_RESTORED} key:i", f"ready_state = NULL, {assign(_RESTORED)}")
    # A run that is being restored is paused at 0.
    ACTIVATE_RUN = Update(
        "ready_state:i paused_at:f key:i",
        "ready_state = :ready_state, paused_at = :paused_at",
        " AND runs.paused_at = 0",
    )
