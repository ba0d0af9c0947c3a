"""The journal, attempts, mailbox, and links of one run; and what a person's retry rewinds."""

from __future__ import annotations

from holdfast.core.records import RESTORED_POSITION, RecordKind
from holdfast.stores.sql.ready_states import ReadyState
from holdfast.stores.sql.statements.columns import ATTEMPT_VALUES, JOURNAL_COLUMNS, RECORD_COLUMNS, RECORD_VALUES
from holdfast.stores.sql.templates import Catalog, Delete, Insert, Lookup, NamedQuery, Query, Upsert

_IS_ANSWER = "substr(name, 1, 7) = 'answer:'"

_REWIND = "run:i first:i failed:i[] positions:i timers:i"
# As ``Rewind.should_remove``: records without a position, and commands issued after the first failure was delivered.
_REWOUND = (
    f"run = :run AND seq >= :first AND kind NOT IN ({RecordKind.PATCH}, {RecordKind.CALL}) "
    f"AND (seq IN :failed OR kind IN ({RecordKind.DEADLINE}, {RecordKind.CANCEL}) "
    f"OR records.position >= CASE WHEN kind = {RecordKind.TIMER} THEN :timers ELSE :positions END)"
)
_ENDS = f"SELECT records.position FROM @records WHERE kind = {RecordKind.CHILD} AND"
_IS_CANCELLED = f"EXISTS (SELECT 1 FROM @records WHERE run = runs.key AND kind = {RecordKind.CANCEL})"
# Whether its queue has limits is decided again.
_REOPENED_AS = (
    "CASE WHEN EXISTS (SELECT 1 FROM @queues o WHERE o.name = runs.queue) "
    f"THEN CASE epoch WHEN 0 THEN {ReadyState.UNSTARTED} ELSE {ReadyState.STARTED} END ELSE {ReadyState.DUE} END"
)


class JournalStatements(Catalog):
    """Records and attempts."""

    APPEND_RECORD = Insert("records", RECORD_VALUES)
    CLAIM = Lookup("key:i", "SELECT id, owner FROM @runs WHERE key = :key")
    RECORD_EPOCH = Lookup("run:i seq:i", "SELECT epoch FROM @records WHERE run = :run AND seq = :seq")
    JOURNAL = Lookup("run:i", f"SELECT {JOURNAL_COLUMNS} FROM @records WHERE run = :run ORDER BY seq")
    JOURNAL_POSITIONS = Query("run:i", "SELECT seq, position, utf8(name) FROM @records WHERE run = :run ORDER BY seq")
    GET_RECORD = Query("run:i seq:i", f"SELECT {JOURNAL_COLUMNS} FROM @records WHERE run = :run AND seq = :seq")
    NEW_RECORDS = Query(
        "run:i seq:i max_rows:i",
        f"SELECT {JOURNAL_COLUMNS} FROM @records WHERE run = :run AND seq > :seq ORDER BY seq LIMIT :max_rows",
    )
    JOURNAL_SEGMENTS = Query(
        "run:i",
        "SELECT epoch, worker, kind, count(*), min(seq), max(seq) FROM @records WHERE run = :run "
        "GROUP BY epoch, worker, kind ORDER BY min(seq)",
    )
    LAST_SEQ = Query("run:i", "SELECT coalesce(max(seq), -1) FROM @records WHERE run = :run")
    LAST_RECORD = Query(
        "run_id:t name:t",
        f"SELECT {JOURNAL_COLUMNS} FROM @records WHERE run = (SELECT key FROM @runs WHERE id = :run_id) "
        "AND name = :name AND ok = 1 ORDER BY seq DESC LIMIT 1",
    )
    COPY_JOURNAL = Query(
        "new_run:i run:i seq:i",
        f"INSERT INTO @records ({RECORD_COLUMNS}) SELECT :new_run, {RECORD_COLUMNS.removeprefix('run, ')} "
        "FROM @records WHERE run = :run AND seq < :seq ORDER BY seq",
    )

    SAVE_ATTEMPT = Upsert("attempts", ATTEMPT_VALUES, "run, position")
    DELETE_ATTEMPT = Delete("attempts", "run:i position:i")
    ATTEMPTS = Lookup(
        "run:i",
        "SELECT position, attempt, intent, progress, error, at, name, outcome, retry_at, failing_since "
        "FROM @attempts WHERE run = :run",
    )
    HAS_OUTCOME = Query(
        "run:i position:i name:t",
        "SELECT 1 FROM @attempts WHERE run = :run AND position = :position AND name = :name AND outcome IS NOT NULL",
    )
    # Newer than every other attempt, by whatever clock that was saved.
    MARK_RESTORED = Query(
        "source:t now:f",
        "INSERT INTO @attempts (run, position, attempt, intent, error, at, name) "
        f"SELECT key, {RESTORED_POSITION}, 0, 1, '', a.at, :source FROM @runs CROSS JOIN "
        "(SELECT greatest(:now, coalesce(max(at), 0.0)) AS at FROM @attempts) a WHERE state <> 'completed' "
        "ON CONFLICT (run, position) DO UPDATE SET at = excluded.at, name = excluded.name",
    )
    RESTORE_ATTEMPT = Insert("attempts", f"{ATTEMPT_VALUES} outcome:b")


class MailboxStatements(Catalog):
    """Signals to a run, and links to the runs that it waits for."""

    SEND_SIGNAL = Insert("signals", "run:i name:t sent_at:f payload:b position:i")
    ADD_SIGNAL_KEY = Insert("signal_keys", "run:i dedup_key:t", " ON CONFLICT DO NOTHING")
    HAS_SIGNAL_KEY = Lookup(
        "run:i dedup_key:t", "SELECT 1 FROM @signal_keys WHERE run = :run AND dedup_key = :dedup_key"
    )
    SIGNAL_KEYS = Query("run:i", "SELECT dedup_key FROM @signal_keys WHERE run = :run ORDER BY run, dedup_key")
    CONSUME_SIGNAL = Delete("signals", "id:i run:i")
    MAILBOX_NAMES = Lookup("run:i", "SELECT DISTINCT name, position FROM @signals WHERE run = :run")
    MAILBOX = Lookup("run:i", "SELECT id, name, payload, sent_at, position FROM @signals WHERE run = :run ORDER BY id")
    # The end of a run that this one waits for, or the answer to an approval.
    DELETE_END_SIGNAL = Delete(
        "signals", "run:i position:i", f"run = :run AND position = :position AND NOT {_IS_ANSWER}"
    )
    DELETE_ANSWER_SIGNAL = Delete(
        "signals", "run:i position:i", f"run = :run AND position = :position AND {_IS_ANSWER}"
    )
    # The cursor is in every row, and there is a row without a signal, so the caller always knows where to continue. On
    # SQLite the cursor is an id. On PostgreSQL ids are allocated before the commit, so it is a transaction: what is not
    # committed yet is not older than the oldest open transaction.
    NEW_SIGNALS = Query(
        "cursor:i worker:i",
        sqlite="SELECT s.run, s.id, s.name, s.payload, s.sent_at, s.position, s.id FROM @signals s "
        "CROSS JOIN @runs r ON r.key = s.run WHERE s.id > :cursor AND r.owner = :worker AND r.state = 'running' "
        "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, "
        "max(:cursor, coalesce((SELECT max(id) FROM @signals), 0)) ORDER BY 2",
        postgres="SELECT s.run, s.id, s.name, s.payload, s.sent_at, s.position, c.cursor FROM "
        "(SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS cursor) c LEFT JOIN LATERAL "
        "(SELECT t.* FROM @signals t CROSS JOIN (SELECT :cursor AS seen, :worker AS worker) q "
        "CROSS JOIN LATERAL (SELECT 1 FROM @runs r WHERE r.key = t.run AND r.owner + 0 = q.worker "
        "AND r.state || '' = 'running' OFFSET 0) r WHERE t.xid >= least(q.seen, c.cursor)::text::xid8) s "
        "ON true ORDER BY s.id",
    )

    PUT_LINK = Upsert("links", "parent:i position:i child:i link_state:i", "parent, position")
    DELETE_LINK = Delete("links", "parent:i position:i")
    LINKS = Lookup(
        "parent:i low:i high:i",
        "SELECT position, child, link_state FROM @links WHERE parent = :parent AND position BETWEEN :low AND :high",
    )
    RUN_LINKS = Query(
        "parent:i",
        "SELECT l.position, c.id, l.link_state FROM @links l CROSS JOIN @runs c ON c.key = l.child "
        "WHERE l.parent = :parent ORDER BY l.parent, l.position",
    )
    LINKED_RUNS = Lookup(  # all but ``rules.LinkState.LATE``
        "parent:i",
        "SELECT l.position, c.id, c.digest FROM @links l CROSS JOIN @runs c ON c.key = l.child "
        "WHERE l.parent = :parent AND l.link_state <> 2",
    )
    WAITERS = Lookup(
        "child:i",
        "SELECT parent, position FROM @links WHERE link_state = 1 AND child = :child ORDER BY parent, position",
    )


class RewindStatements(Catalog):
    """What a person's retry rewinds in an ended run. ``_REWIND`` is a mapping."""

    REOPENED_RUN = Query("key:i", "SELECT id, state, rewind FROM @runs WHERE key = :key")
    # The runs that a run waits for whose end will not be in its journal; and whether it was there.
    AWAITED_BY_REOPENED = NamedQuery(
        _REWIND,
        f"SELECT l.position, c.key, c.state, c.parent, l.position IN ({_ENDS} {_REWOUND}) FROM @links l "
        f"CROSS JOIN @runs c ON c.key = l.child WHERE l.parent = :run AND l.position NOT IN "
        f"({_ENDS} run = :run AND NOT ({_REWOUND})) ORDER BY l.position",
    )
    RESTORE_SIGNALS = NamedQuery(
        _REWIND,
        "INSERT INTO @signals (run, name, sent_at, payload) SELECT run, name, started_at, "
        f"coalesce(payload, utf8('null')) FROM @records WHERE kind = {RecordKind.SIGNAL} AND {_REWOUND} ORDER BY seq",
    )
    DELETE_REWOUND_RECORDS = NamedQuery(_REWIND, f"DELETE FROM @records WHERE {_REWOUND}")
    # Answers to approvals that were requested because of what is rewound.
    DELETE_REWOUND_ANSWERS = NamedQuery(
        _REWIND, f"DELETE FROM @signals WHERE run = :run AND position >= :positions AND {_IS_ANSWER}"
    )
    WITHDRAW_REWOUND_APPROVALS = NamedQuery(
        _REWIND,
        "UPDATE @approvals SET state = 'withdrawn' WHERE run = :run AND (approvals.position >= :positions "
        f"OR approvals.position IN (SELECT records.position FROM @records WHERE kind = {RecordKind.APPROVAL} "
        f"AND {_REWOUND}))",
    )
    DELETE_REWOUND_ATTEMPTS = NamedQuery(
        _REWIND, "DELETE FROM @attempts WHERE run = :run AND position >= :positions AND intent = 0"
    )
    ADD_REWIND_POINT = Query(
        "point:t key:i",
        "UPDATE @runs SET rewind_points = CASE rewind_points WHEN '[]' THEN '[' "
        "ELSE substr(rewind_points, 1, length(rewind_points) - 1) || ', ' END || :point || ']' WHERE key = :key",
    )
    REOPEN_RUN = Query(
        "wake_at:f now:f key:i",
        "UPDATE @runs SET state = 'pending', owner = NULL, delivery_count = 0, suspicion = 0, output = NULL, error = "
        f"NULL, finished_at = NULL, due_state = {_REOPENED_AS}, ready_state = CASE WHEN {_REOPENED_AS} > "
        f"{ReadyState.DUE} AND {_IS_CANCELLED} THEN {ReadyState.EXEMPT} ELSE {_REOPENED_AS} END, dedup_key = '', "
        "wake_at = :wake_at, deadline = CASE WHEN deadline > :now THEN deadline END, result_claim = "
        f"least(result_claim, 1), cancel_state = CASE WHEN {_IS_CANCELLED} THEN 'recorded' ELSE '' END, paused_at = "
        "NULL, rewind = NULL WHERE key = :key",
    )
    SET_VERSION = Query("version:t key:i", "UPDATE @runs SET version = :version WHERE key = :key")
