"""The tables of all SQL stores, as text that ``schema.render`` turns into the SQL of one database.

``schema_changes`` has what was added since the first release.

**Columns.** ``runs.key`` is a surrogate for the run's id: it keeps records and their index small. ``runs.ready_state``
exists for claims (see ``ready_states``): the due runs of each version of a workflow are in claiming order in a partial
index, and the timers in another, so neither a million parked runs nor a long backlog slows a claim. ``runs.parked_by``
is set only for a run that parked with something in its mailbox (see ``ParkRun``). The mailbox is read before a run
parks anyway, so this costs no round trip, and a partial index that has only such runs.

``inputs`` and ``output`` come late in a row, because SQLite reads a row only as far as it must. The columns after them
are empty or 0 for most runs, and such values are in the row's header. Columns that hold a payload (``inputs``,
``output``, ``error``, ``payload``, ``form_schema``, ``arguments``, ``answer``) hold a reference instead when it is
large: see ``blobs``. The values of memories are not kept apart, because they change, and blobs never do.

``daily_runs`` counts the runs that exist by workflow and day of creation, for reports. Triggers maintain it, in the
transaction that creates or deletes runs, so no writer can forget it, not even an older Holdfast that does not know the
table.

The index ``runs_in_state`` is for lists of runs of all workflows. It indexes an expression, so no other statement that
mentions a state uses it.

On SQLite, tables are ``STRICT``: a damaged or foreign value is refused when it is written, not when it is read.

On PostgreSQL:

- ``records`` has narrower columns in a schema that was created with ``COMPACT_RECORDS``. All statements fit both.
- Columns that lists are paged by are in the indexes; SQLite has them there implicitly.
- Text is compared by code points (``COLLATE "C"``), whatever the locale of the database.
- Nearly every change of a run changes an indexed column of ``runs``, so it makes a new row version in a new place.
  Pages of ``runs`` are only partly filled, so that this place is on the same page, and PostgreSQL removes old versions
  along the way. The rows of ``usages`` and ``workers`` change often, but in no indexed column.
- Tables that are filled and emptied all the time are vacuumed by the number of dead rows, not by their share.
- The condition of ``runs_delivered`` and the expression in ``runs_in_state`` are written so that only a query with the
  same words uses them: other queries have better indexes.
- ``signals.xid`` is the transaction that sent a signal. A sequence gives out its numbers before the commit, so a
  smaller number may become visible later. A reader that has seen everything up to some transaction has missed nothing.
- A memory's words are rows of ``memory_words``. What ranking needs to know about all memories together is in
  ``memory_totals``, in several rows, so that concurrent changes rarely wait for each other. The same goes for the usage
  of a day, in ``spending``.
- ``daily_runs`` may have several rows for a day and workflow, and only their sum matters. A transaction adds to a row
  that no other transaction has locked, or else inserts one. So it never waits for another, cannot deadlock, and there
  are no more rows than there were concurrent writers.
- PostgreSQL does not compress payloads, because that takes ten times as long as writing them. Payloads of records,
  which never change, stay in the row as long as a page can hold it. Those of runs are moved out early, so that they are
  not copied with every change of the row.
"""

BASELINE = r"""
CREATE TABLE @meta (                     -- version, compatible_from
    name  text NOT NULL PRIMARY KEY,
    value text NOT NULL
)[sqlite:  STRICT, WITHOUT ROWID];

[postgres: CREATE SEQUENCE @run_keys;]
CREATE TABLE @runs (
    key              int PRIMARY KEY,
    id               text NOT NULL UNIQUE,
    workflow         text NOT NULL,
    queue            text NOT NULL,
    state            text NOT NULL,
    epoch            int NOT NULL,
    owner            int,                -- workers.id, while running
    starter          int,                -- workers.id, if a worker started it
    delivery_count   int NOT NULL DEFAULT 0,
    max_deliveries   int NOT NULL,
    ready_state      small,              -- ready_states.ReadyState
    wake_at          float,
    waits_for        text NOT NULL DEFAULT '',
    priority         int NOT NULL,
    deadline         float,
    result_claim     small NOT NULL,     -- generated id: 1, then 2 once the result was fetched; else 0
    cancel_state     text NOT NULL DEFAULT '', -- '', requested or recorded
    paused_at        float,
    python_version   text NOT NULL,
    created_at       float NOT NULL,
    clock_started_at float NOT NULL,
    finished_at      float,
    parent           text NOT NULL,      -- runs.id, if a run started it; else ''
    forked_from      text NOT NULL,      -- runs.id, or ''
    rewind_points    text NOT NULL,      -- a JSON list of records.RewindPoint
    rewind           text,               -- a JSON list, once it has ended
    digest           bytes NOT NULL,
    seed             bytes NOT NULL,
    tags             text NOT NULL,      -- a JSON list
    inputs           bytes NOT NULL,
    output           bytes,
    error            bytes,
    session          text NOT NULL DEFAULT '',
    previous_run     text NOT NULL DEFAULT '', -- runs.id, or ''
    has_budget       small NOT NULL DEFAULT 0,
    version          text NOT NULL DEFAULT '',
    queue_key        text NOT NULL DEFAULT '',
    due_state        small NOT NULL DEFAULT 1, -- ``ready_state`` when it is due
    turn             int NOT NULL DEFAULT 0,
    dedup_key        text NOT NULL DEFAULT '',
    is_debounced     small NOT NULL DEFAULT 0,
    is_delivery      small NOT NULL DEFAULT 0,
    suspicion        small NOT NULL DEFAULT 0,
    parked_by        int                 -- workers.id, if it parked with something in its mailbox
)[sqlite:  STRICT]
[postgres:  WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02)];
[postgres: ALTER TABLE @runs ALTER inputs SET STORAGE EXTERNAL, ALTER output SET STORAGE EXTERNAL,
    ALTER error SET STORAGE EXTERNAL;]
CREATE INDEX runs_due ON @runs (workflow, version, priority DESC, key[sqlite: , queue])[postgres:  INCLUDE (queue)]
    WHERE ready_state = 1;
CREATE INDEX runs_waking ON @runs (workflow, version, wake_at[sqlite: , queue])[postgres:  INCLUDE (queue)]
    WHERE ready_state = 0;
CREATE INDEX runs_suspects ON @runs (workflow, version, wake_at)[postgres:  INCLUDE (queue)] WHERE ready_state = 7;
CREATE INDEX runs_claimed ON @runs (owner[postgres: , key]) WHERE owner IS NOT NULL;
CREATE INDEX runs_orphans ON @runs (workflow, digest[postgres: , key]) WHERE result_claim = 1;
CREATE INDEX runs_started ON @runs (starter) WHERE starter IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_requested ON @runs (owner[postgres: , key])
    WHERE owner IS NOT NULL AND (cancel_state = 'requested' OR paused_at IS NOT NULL);
CREATE INDEX runs_listed ON @runs (workflow, state[postgres: , key]);
CREATE INDEX runs_in_state ON @runs ((state || '.')[postgres: , key]);
CREATE INDEX runs_created ON @runs (created_at[postgres: , key]);
CREATE INDEX runs_children ON @runs (parent[postgres: , key]) WHERE parent <> '';
CREATE INDEX runs_sessions ON @runs (workflow, session[postgres: , key]) WHERE session <> '';
CREATE INDEX runs_previous ON @runs (previous_run[postgres: , key]) WHERE previous_run <> '';
CREATE INDEX runs_queued ON @runs (queue, workflow, version, ready_state, priority DESC, turn, key)
    WHERE ready_state IN (2, 3, 6);
CREATE INDEX runs_by_key ON @runs (queue, queue_key, ready_state, workflow, version, priority DESC, turn, key)
    WHERE ready_state IN (2, 3, 4, 5);
CREATE INDEX runs_executed ON @runs (queue, queue_key) WHERE state = 'running' AND due_state > 1;
CREATE INDEX runs_limited ON @runs (queue, queue_key, key) WHERE due_state > 1 AND finished_at IS NULL;
CREATE UNIQUE INDEX runs_dedup ON @runs (queue, dedup_key) WHERE dedup_key <> '' AND finished_at IS NULL;
CREATE INDEX runs_expiring ON @runs (deadline[postgres: , key])
    WHERE is_delivery = 1 AND finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_delivered ON @runs (created_at) WHERE is_delivery[postgres:  + 0] = 1;
CREATE INDEX runs_parked_by ON @runs (parked_by) WHERE parked_by IS NOT NULL;

CREATE TABLE @run_tags (                 -- a copy of runs.tags, to list runs by tag
    tag text NOT NULL,
    run int NOT NULL,
    PRIMARY KEY [sqlite: (tag, run)][postgres: (run, tag)]
)[sqlite:  STRICT, WITHOUT ROWID];
[postgres: CREATE INDEX run_tags_listed ON @run_tags (tag, run);]

CREATE TABLE @records (                  -- appended, so that pages fill in the order of writing
    run        int NOT NULL,
    seq        int NOT NULL,
    kind       small NOT NULL,
    position   int NOT NULL,
    ok         small NOT NULL,
    at         float NOT NULL,
    started_at float NOT NULL,
    attempts   int NOT NULL,
    worker     int NOT NULL,
    epoch      int NOT NULL,
    name       text NOT NULL,
    preview    text NOT NULL,
    payload    bytes[postgres: ,
    PRIMARY KEY (run, seq)]
)[sqlite:  STRICT][postgres:  WITH (toast_tuple_target = 8160)];
[postgres: ALTER TABLE @records ALTER payload SET STORAGE EXTERNAL;]
[sqlite: CREATE UNIQUE INDEX records_journal ON @records (run, seq);]

CREATE TABLE @attempts (
    run           int NOT NULL,
    position      int NOT NULL,
    attempt       int NOT NULL,
    intent        small NOT NULL,
    progress      bytes,
    error         text NOT NULL,
    at            float NOT NULL,
    name          text NOT NULL,
    outcome       bytes,                 -- of a transactional step, committed with its changes
    retry_at      float,                 -- when a step that waits for its next attempt makes it
    failing_since float,
    PRIMARY KEY (run, position)
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];

CREATE TABLE @signals (                  -- not consumed yet; ids are never reused
    id       [sqlite: INTEGER PRIMARY KEY AUTOINCREMENT][postgres: bigint GENERATED BY DEFAULT AS IDENTITY],
    [postgres: xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),]
    run      int NOT NULL,
    name     text NOT NULL,
    sent_at  float NOT NULL,
    payload  bytes NOT NULL,
    position int[postgres: ,
    PRIMARY KEY (run, id)]               -- of the command that waits, for the end of a run or an answer
)[sqlite:  STRICT][postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];
[postgres: ALTER TABLE @signals ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX signals_new ON @signals (xid);]
[sqlite: CREATE INDEX signals_mailbox ON @signals (run, name);]
CREATE INDEX signals_ends ON @signals (run, position) WHERE position IS NOT NULL;

CREATE TABLE @signal_keys (              -- deduplication keys, which outlive their signals
    run       int NOT NULL,
    dedup_key text NOT NULL,
    PRIMARY KEY (run, dedup_key)
)[sqlite:  STRICT, WITHOUT ROWID];

CREATE TABLE @links (                    -- runs that wait for others
    parent     int NOT NULL,
    position   int NOT NULL,             -- of the command that waits
    child      int NOT NULL,
    link_state small NOT NULL,           -- rules.LinkState
    PRIMARY KEY (parent, position)
)[sqlite:  STRICT, WITHOUT ROWID][postgres:  WITH (autovacuum_vacuum_scale_factor = 0.05)];
CREATE INDEX links_child ON @links (child, link_state[postgres: , parent, position]);

CREATE TABLE @usages (                   -- of runs that have used something, with their children, or have a budget
    run               int PRIMARY KEY,
    parent_key        int,               -- the run that started it
    calls             int NOT NULL,
    input_tokens      int NOT NULL,
    output_tokens     int NOT NULL,
    cached_tokens     int NOT NULL,
    nano_usd          int NOT NULL,
    unpriced          int NOT NULL,
    seconds           float NOT NULL,
    reserved_calls    int NOT NULL,      -- sums of the reservations that count for its budget
    reserved_tokens   int NOT NULL,
    reserved_nano_usd int NOT NULL,
    budget            text,              -- its own: a JSON list of Limits
    short_positions   text NOT NULL      -- a JSON list of the positions that wait, or ''
)[sqlite:  STRICT][postgres:  WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)];
CREATE INDEX usages_short ON @usages (run) WHERE short_positions <> '';

CREATE TABLE @reservations (             -- of steps in flight; they count for all budgets above
    run      int NOT NULL,
    position int NOT NULL,
    calls    int NOT NULL,
    tokens   int NOT NULL,
    nano_usd int NOT NULL,
    PRIMARY KEY (run, position)
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];

CREATE TABLE @blobs (                    -- large payloads
    hash bytes NOT NULL PRIMARY KEY,
    size int NOT NULL,
    data bytes NOT NULL
)[sqlite:  STRICT];
[postgres: ALTER TABLE @blobs ALTER data SET STORAGE EXTERNAL;]

CREATE TABLE @approvals (
    number          [sqlite: INTEGER PRIMARY KEY][postgres: bigint GENERATED BY DEFAULT AS IDENTITY],
    id              text NOT NULL [sqlite: UNIQUE][postgres: PRIMARY KEY],
    run             int NOT NULL,
    position        int NOT NULL,        -- of the command that waits
    state           text NOT NULL,       -- approvals.ApprovalState
    requested_at    float NOT NULL,
    expires_at      float,
    assignee        text NOT NULL,
    reminder_count  int NOT NULL DEFAULT 0,
    reminded_at     float,
    answered_by     text NOT NULL DEFAULT '',
    answered_at     float,
    withdrawn_epoch int NOT NULL DEFAULT 0, -- the epoch under which its run withdrew it; 0: it did not
    request         text NOT NULL,       -- a JSON list of the short fields of approvals.ApprovalRequest
    form_schema     bytes NOT NULL,
    arguments       bytes NOT NULL,
    answer          bytes
)[sqlite:  STRICT];
CREATE INDEX approvals_run ON @approvals (run, position);
CREATE INDEX approvals_open ON @approvals (requested_at[postgres: , number]) WHERE state = 'open';
CREATE INDEX approvals_requested ON @approvals (requested_at[postgres: , number]);

CREATE TABLE @live_events (              -- ids are never reused
    id           [sqlite: INTEGER PRIMARY KEY AUTOINCREMENT][postgres: bigint GENERATED BY DEFAULT AS IDENTITY],
    run          int NOT NULL,
    position     int NOT NULL,           -- -1: of the run
    stream       text NOT NULL,
    number       int NOT NULL,
    is_permanent small NOT NULL,         -- 0: deleted with the record of its position, or with the end of its run
    kind         text NOT NULL,
    at           float NOT NULL,
    data         bytes NOT NULL,
    [postgres: PRIMARY KEY (run, id),]
    UNIQUE (run, position, stream, number)
)[sqlite:  STRICT][postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)];
[postgres: ALTER TABLE @live_events ALTER data SET STORAGE EXTERNAL;]
[sqlite: CREATE INDEX live_events_feed ON @live_events (run, id);]
CREATE INDEX live_events_temporary ON @live_events (run, position) WHERE is_permanent = 0;

CREATE TABLE @pruned (                   -- deleted runs whose rows in other tables still exist; keys are never reused
    key    [sqlite: INTEGER PRIMARY KEY AUTOINCREMENT][postgres: bigint PRIMARY KEY],
    size   int NOT NULL DEFAULT 0,       -- bytes of values in the row
    inputs bytes,                        -- these three columns: references, or NULL
    output bytes,
    error  bytes
)[sqlite:  STRICT];

-- Rows that refer to large payloads (or hold a payload as long as a reference): see ``retention``.
CREATE INDEX runs_large_inputs ON @runs (inputs) WHERE octet_length(inputs) = 33;
CREATE INDEX runs_large_output ON @runs (output) WHERE octet_length(output) = 33;
CREATE INDEX runs_large_error ON @runs (error) WHERE octet_length(error) = 33;
CREATE INDEX records_large_payload ON @records (payload) WHERE octet_length(payload) = 33;
CREATE INDEX signals_large_payload ON @signals (payload) WHERE octet_length(payload) = 33;
CREATE INDEX approvals_large_form_schema ON @approvals (form_schema) WHERE octet_length(form_schema) = 33;
CREATE INDEX approvals_large_arguments ON @approvals (arguments) WHERE octet_length(arguments) = 33;
CREATE INDEX approvals_large_answer ON @approvals (answer) WHERE octet_length(answer) = 33;

CREATE TABLE @memories (                 -- not part of any run
    id         [sqlite: INTEGER PRIMARY KEY][postgres: bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY],
    namespace  text NOT NULL,
    key        text NOT NULL,
    created_at float NOT NULL,
    updated_at float NOT NULL,
    value      bytes NOT NULL,
    text       text NOT NULL,
    [postgres: size       int NOT NULL,  -- number of words of key and text, and one for the namespace]
    UNIQUE (namespace, key)
)[sqlite:  STRICT];
-- The words of key and text, made by stores.text_search, and one word for the namespace.
[sqlite: CREATE VIRTUAL TABLE memory_words USING fts5 (namespace_word, words, tokenize = 'ascii');]
[postgres: CREATE TABLE @memory_words (
    word           text NOT NULL,
    namespace_word bytes NOT NULL,
    memory         int NOT NULL,
    occurrences    int NOT NULL,
    PRIMARY KEY (word, namespace_word, memory) INCLUDE (occurrences)
);
CREATE INDEX memory_words_memory ON @memory_words (memory);
CREATE TABLE @memory_totals (            -- only their sums matter
    slot     small PRIMARY KEY,
    memories int NOT NULL,
    size     int NOT NULL
) WITH (fillfactor = 20);]

CREATE TABLE @disabled_workflows (
    workflow     text NOT NULL PRIMARY KEY,
    disabled_at  float NOT NULL,
    actor        text NOT NULL DEFAULT '',
    reason       text NOT NULL DEFAULT '',
    is_temporary small NOT NULL DEFAULT 0 -- a policy enables it again
)[sqlite:  STRICT, WITHOUT ROWID];

CREATE TABLE @workers (
    id                [sqlite: INTEGER PRIMARY KEY AUTOINCREMENT]
        [postgres: bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY],
    token             text NOT NULL,     -- names its lock file, if it has one
    name              text NOT NULL,
    host              text NOT NULL,
    pid               int NOT NULL,
    state             text NOT NULL,
    workflows         text NOT NULL,     -- a JSON list
    queues            text,              -- a JSON list; NULL: all
    started_at        float NOT NULL,
    lease_expires_at  float NOT NULL,
    heartbeat_at      float NOT NULL,
    [postgres: server_started_at float,  -- start time of the server that has its lock; NULL: no lock]
    is_listener       small NOT NULL DEFAULT 0
)[sqlite:  STRICT]
[postgres:  WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)];
CREATE INDEX workers_live ON @workers (id) WHERE state = 'live';
[postgres: CREATE INDEX workers_serving ON @workers (id) WHERE state = 'live' AND is_listener = 0;]
CREATE INDEX workers_ended_listeners ON @workers (id) WHERE is_listener = 1 AND state <> 'live';
CREATE INDEX workers_ended ON @workers (id) WHERE is_listener = 0 AND state <> 'live';

CREATE TABLE @workflows (
    name               text NOT NULL PRIMARY KEY, -- with the version: served_versions.make_served_name
    parameters         text NOT NULL,    -- a JSON list
    id_template        text,
    queue              text NOT NULL,
    timeout_s          float,
    tags               text NOT NULL,    -- a JSON list
    budget             text,             -- a JSON list of Limits
    is_agent           small NOT NULL DEFAULT 0,
    max_deliveries     int NOT NULL DEFAULT 3,
    announced_at       float NOT NULL DEFAULT 0,
    queue_key_template text,             -- a template
    is_address         small NOT NULL DEFAULT 0,
    inputs_schema      text NOT NULL DEFAULT '' -- a JSON schema
)[sqlite:  STRICT, WITHOUT ROWID];

CREATE TABLE @schedules (                -- see stores.schedules
    name                text NOT NULL PRIMARY KEY,
    workflow            text NOT NULL,
    timing              text NOT NULL,
    catch_up            text NOT NULL,
    max_catch_up        int NOT NULL,
    overlap             text NOT NULL,
    is_declared_in_code small NOT NULL,
    options             text NOT NULL,   -- a JSON list: how its runs are started
    inputs              bytes NOT NULL,
    created_at          float NOT NULL,
    fired_up_to         float NOT NULL,
    paused_at           float,
    last_run            text NOT NULL DEFAULT '',
    last_skipped_at     float            -- the last tick that was skipped because of overlap
)[sqlite:  STRICT];
CREATE TABLE @announcements (            -- the workers whose code declares a schedule
    schedule text NOT NULL,
    worker   int NOT NULL,
    PRIMARY KEY (schedule, worker)
)[sqlite:  STRICT, WITHOUT ROWID];

CREATE TABLE @queues (                   -- queues with limits: see stores.queues
    name            text NOT NULL PRIMARY KEY,
    limits          text NOT NULL,       -- in effect: admission.queue_limits.QueueLimits
    declared_limits text,                -- announced by code
    is_overridden   small NOT NULL,
    paused_at       float,
    concurrency     int,                 -- these three columns: from the limits in effect
    key_concurrency int,
    has_token_rate  small NOT NULL,
    turns           text NOT NULL,       -- by priority, of started runs: JSON
    rate_usage      text NOT NULL,       -- JSON
    next_start_at   float NOT NULL,      -- when its rates let the next run start, as of the last claim
    is_complete     small NOT NULL       -- 1: its older runs are limited, too
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)];
CREATE TABLE @queue_turns (              -- the last turn of each key, for each priority
    queue    text NOT NULL,
    priority int NOT NULL,
    key      text NOT NULL,
    turn     int NOT NULL,
    at       float NOT NULL,
    PRIMARY KEY (queue, priority, key)
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];
CREATE INDEX queue_turns_old ON @queue_turns (at);
CREATE TABLE @queue_keys (               -- keys with throttled runs, or with rate usage
    queue        text NOT NULL,
    key          text NOT NULL,
    is_throttled small NOT NULL,         -- 1: it has throttled runs
    recheck_at   float NOT NULL,         -- when to check the throttled runs again
    rate_usage   text NOT NULL,          -- JSON
    expires_at   float NOT NULL,         -- when the row can be deleted
    PRIMARY KEY (queue, key)
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];
CREATE INDEX queue_keys_throttled ON @queue_keys (queue, recheck_at) WHERE is_throttled = 1;
CREATE INDEX queue_keys_old ON @queue_keys (expires_at);
CREATE TABLE @queue_charges (            -- usage of model calls, until a claim counts it
    queue  text NOT NULL,
    key    text NOT NULL,
    tokens int NOT NULL,
    at     float NOT NULL
)[sqlite:  STRICT][postgres:  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)];
CREATE INDEX queue_charges_queue ON @queue_charges (queue);

CREATE TABLE @documents (                -- see stores.documents
    kind       text NOT NULL,
    name       text NOT NULL,
    version    int NOT NULL,
    created_at float NOT NULL,
    updated_at float NOT NULL,
    data       bytes NOT NULL,
    PRIMARY KEY (kind, name)
)[sqlite:  STRICT, WITHOUT ROWID];
CREATE TABLE @audit (                    -- see stores.audit_log; ids are never reused
    id             [sqlite: INTEGER PRIMARY KEY AUTOINCREMENT]
        [postgres: bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY],
    at             float NOT NULL,
    key_id         text NOT NULL,
    key_name       text NOT NULL,
    action         text NOT NULL,
    target         text NOT NULL,
    outcome        text NOT NULL,
    remote_address text NOT NULL
)[sqlite:  STRICT];
CREATE INDEX audit_at ON @audit (at[postgres: , id]);
CREATE TABLE @spending (                 -- usage of model calls: see stores.daily_usage
    day           text NOT NULL,         -- as in 2026-11-16
    workflow      text NOT NULL,
    model         text NOT NULL,         -- '': unknown
    [postgres: slot          small NOT NULL, -- only the sum over all slots matters]
    calls         int NOT NULL,
    input_tokens  int NOT NULL,
    output_tokens int NOT NULL,
    cached_tokens int NOT NULL,
    nano_usd      int NOT NULL,
    unpriced      int NOT NULL,
    PRIMARY KEY (day, workflow, model[postgres: , slot])
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)];
[postgres:
-- The type and message of an error, for searches; NULL: not an error, or kept apart. NUL as in ``adapters``.
CREATE FUNCTION @error_words(error bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    parsed json;
BEGIN
    parsed := replace(replace(convert_from(error, 'UTF8'), '\u0001', '\u0001\u0002'), '\u0000', '\u0001\u0001');
    RETURN (parsed ->> 'type') || ' ' || (parsed ->> 'message');
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;
]
"""
