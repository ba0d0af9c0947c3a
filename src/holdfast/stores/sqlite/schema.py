"""The tables, as they are now.

A new database is brought to this shape by running all of ``migrations.MIGRATIONS``; a test holds the two together.

``runs.key`` is a surrogate for the run's id: it keeps records and their index small. ``runs.ready`` exists for claims:
1 when a run is due, 0 when it becomes due at ``wake_at``, NULL when it is not waiting for a time (running, ended, or
parked until a signal) or paused. With it, the due runs of a version of a workflow stand in claiming order in a partial
index of their own, and the timers in another, so that neither a million parked runs nor a long backlog slows a claim.
In a queue with limits, a run that is due has 2, or 3 once it has begun; 4 or 5 instead while it is set aside because
its key is at its limits; and 6 when it is to be cancelled, and needs no place. See ``sql.queueing``. In any queue, a
run that is isolated because its workers died has 7, also while it waits for its time. See ``sql.suspects``.

Releases before versions looked for work in indexes with other names, which are gone: a process of theirs that has the
file open finishes the runs that it holds, and takes no more. ``inputs`` and ``output`` come last, because SQLite reads
a row only as far as it must; what was added behind them is empty or 0 for most runs, and such values stand in the row's
header.

The index ``runs_in_state`` is for lists of runs of all workflows. It indexes an expression, so that no other statement
that mentions a state is led to it.

Columns that hold a payload (``inputs``, ``output``, ``error``, ``payload``, ``form``, ``arguments``, ``answer``) hold a
reference instead when it is large: see ``blobs``. The values of memories are not kept apart: they change, and what is
kept apart stays.
"""

from __future__ import annotations

APPLICATION_ID = 0x486F6C64
"""``Hold``: marks the file as ours, so that another program's database is never taken over."""

SCHEMA = """
CREATE TABLE runs (
    key            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    workflow       TEXT NOT NULL,
    queue          TEXT NOT NULL,
    state          TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    owner          INTEGER,              -- workers.id, while running
    starter        INTEGER,              -- workers.id, if a worker started it
    deliveries     INTEGER NOT NULL,
    max_deliveries INTEGER NOT NULL,
    ready          INTEGER,
    wake_at        REAL,
    waits_for      TEXT NOT NULL,
    priority       INTEGER NOT NULL,
    deadline       REAL,
    unclaimed      INTEGER NOT NULL,     -- with a made-up id: 1, and 2 once somebody has had its result; else 0
    cancel         TEXT NOT NULL,        -- '', asked or recorded
    paused_at      REAL,
    python         TEXT NOT NULL,
    created_at     REAL NOT NULL,
    began_at       REAL NOT NULL,
    finished_at    REAL,
    parent         TEXT NOT NULL,        -- runs.id, if a run started it; else ''
    forked_from    TEXT NOT NULL,        -- runs.id, or ''
    rewound        TEXT NOT NULL,        -- a JSON list of positions
    rewind         TEXT,                 -- a JSON list, once it has ended
    digest         BLOB NOT NULL,
    seed           BLOB NOT NULL,
    tags           TEXT NOT NULL,        -- a JSON list
    inputs         BLOB NOT NULL,
    output         BLOB,
    error          BLOB,
    session        TEXT NOT NULL DEFAULT '',
    previous       TEXT NOT NULL DEFAULT '', -- runs.id, or ''
    has_budget     INTEGER NOT NULL DEFAULT 0,
    version        TEXT NOT NULL DEFAULT '',
    queue_key      TEXT NOT NULL DEFAULT '',
    due_as         INTEGER NOT NULL DEFAULT 1, -- what ``ready`` is when it is due: 1, or in a limited queue 2 or 3
    turn           INTEGER NOT NULL DEFAULT 0,
    dedup          TEXT NOT NULL DEFAULT '',
    debounced      INTEGER NOT NULL DEFAULT 0,
    by_delivery    INTEGER NOT NULL DEFAULT 0,
    suspicion      INTEGER NOT NULL DEFAULT 0,
    parked_by      INTEGER               -- workers.id, if it parked with something in its mailbox
);
CREATE INDEX runs_due ON runs (workflow, version, priority DESC, key, queue) WHERE ready = 1;
CREATE INDEX runs_waking ON runs (workflow, version, wake_at, queue) WHERE ready = 0;
CREATE INDEX runs_held ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_orphans ON runs (workflow, digest) WHERE unclaimed = 1;
CREATE INDEX runs_started ON runs (starter) WHERE starter IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_asked ON runs (owner) WHERE owner IS NOT NULL AND (cancel = 'asked' OR paused_at IS NOT NULL);
CREATE INDEX runs_listed ON runs (workflow, state);
CREATE INDEX runs_in_state ON runs (state || '.');
CREATE INDEX runs_created ON runs (created_at);
CREATE INDEX runs_children ON runs (parent) WHERE parent != '';
CREATE INDEX runs_sessions ON runs (workflow, session) WHERE session != '';
CREATE INDEX runs_continued ON runs (previous) WHERE previous != '';
CREATE INDEX runs_queued ON runs (queue, workflow, version, ready, priority DESC, turn, key) WHERE ready IN (2, 3, 6);
CREATE INDEX runs_of_keys ON runs (queue, queue_key, ready, workflow, version, priority DESC, turn, key)
    WHERE ready IN (2, 3, 4, 5);
CREATE INDEX runs_executed ON runs (queue, queue_key) WHERE state = 'running' AND due_as > 1;
CREATE INDEX runs_limited ON runs (queue, queue_key, key) WHERE due_as > 1 AND finished_at IS NULL;
CREATE UNIQUE INDEX runs_dedup ON runs (queue, dedup) WHERE dedup != '' AND finished_at IS NULL;
CREATE INDEX runs_expiring ON runs (deadline) WHERE by_delivery = 1 AND finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_delivered ON runs (created_at) WHERE by_delivery = 1;
CREATE INDEX runs_suspects ON runs (workflow, version, wake_at) WHERE ready = 7;
CREATE INDEX runs_parked_by ON runs (parked_by) WHERE parked_by IS NOT NULL;

CREATE TABLE run_tags (                  -- runs.tags once more, to list runs by one
    tag TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (tag, run)
) WITHOUT ROWID;

CREATE TABLE records (                   -- appended to, so that pages fill in the order of writing
    run        INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    ok         INTEGER NOT NULL,
    at         REAL NOT NULL,
    started_at REAL NOT NULL,
    attempts   INTEGER NOT NULL,
    worker     INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    name       TEXT NOT NULL,
    preview    TEXT NOT NULL,
    payload    BLOB
);
CREATE UNIQUE INDEX records_journal ON records (run, seq);

CREATE TABLE attempts (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    intent   INTEGER NOT NULL,
    progress BLOB,
    error    TEXT NOT NULL,
    at       REAL NOT NULL,
    name     TEXT NOT NULL,
    outcome  BLOB,                       -- of a transactional step, committed with what it did
    retry_at REAL,                       -- when the next attempt is made, of a step that waits for it
    failing_since REAL,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;

CREATE TABLE signals (                   -- not consumed yet; ids are never used twice
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    name    TEXT NOT NULL,
    sent_at REAL NOT NULL,
    payload BLOB NOT NULL,
    position INTEGER                     -- of the command that waits for the end of a run, if it is one
);
CREATE INDEX signals_mailbox ON signals (run, name);
CREATE INDEX signals_ends ON signals (run, position) WHERE position IS NOT NULL;

CREATE TABLE signal_keys (               -- deduplication keys, which outlive their signals
    run   INTEGER NOT NULL,
    dedup TEXT NOT NULL,
    PRIMARY KEY (run, dedup)
) WITHOUT ROWID;

CREATE TABLE links (                     -- runs that wait for others
    parent   INTEGER NOT NULL,
    position INTEGER NOT NULL,           -- of the command that waits
    child    INTEGER NOT NULL,
    awaited  INTEGER NOT NULL,           -- rules.Told
    PRIMARY KEY (parent, position)
) WITHOUT ROWID;
CREATE INDEX links_child ON links (child, awaited);

CREATE TABLE usages (                    -- of runs that have used something, themselves or below them, or have a budget
    run               INTEGER PRIMARY KEY,
    above             INTEGER,           -- the run that started it
    calls             INTEGER NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    nano_usd          INTEGER NOT NULL,
    unpriced          INTEGER NOT NULL,
    seconds           REAL NOT NULL,
    reserved_calls    INTEGER NOT NULL,  -- the sums of what is reserved with its budget
    reserved_tokens   INTEGER NOT NULL,
    reserved_nano_usd INTEGER NOT NULL,
    budget            TEXT,              -- its own: a JSON list of Limits
    short             TEXT NOT NULL      -- a JSON list of the positions that wait, or ''
);
CREATE INDEX usages_short ON usages (run) WHERE short != '';

CREATE TABLE reservations (              -- for steps in flight, with all budgets above
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    calls    INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;

CREATE TABLE blobs (                     -- payloads that are kept apart
    hash BLOB NOT NULL PRIMARY KEY,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE approvals (                 -- questions to people
    id          TEXT NOT NULL PRIMARY KEY,
    run         INTEGER NOT NULL,
    position    INTEGER NOT NULL,        -- of the command that waits
    state       TEXT NOT NULL,           -- approvals.ApprovalState
    asked_at    REAL NOT NULL,
    expires_at  REAL,
    asked_of    TEXT NOT NULL,
    reminders   INTEGER NOT NULL,
    reminded_at REAL,
    answered_by TEXT NOT NULL,
    answered_at REAL,
    withdrawn_in INTEGER NOT NULL DEFAULT 0,  -- the epoch under which its run has withdrawn it; 0: it was not that
    question    TEXT NOT NULL,           -- a JSON list of the short fields of approvals.Question
    form        BLOB NOT NULL,
    arguments   BLOB NOT NULL,
    answer      BLOB
);
CREATE INDEX approvals_asked ON approvals (run, position);
CREATE INDEX approvals_open ON approvals (asked_at) WHERE state = 'open';
CREATE INDEX approvals_by_time ON approvals (asked_at);

CREATE TABLE notices (                   -- ids are never used twice
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,           -- -1: of the run
    part     TEXT NOT NULL,
    number   INTEGER NOT NULL,
    stays    INTEGER NOT NULL,           -- 0: goes with the record of its position, or with the end of its run
    kind     TEXT NOT NULL,
    at       REAL NOT NULL,
    data     BLOB NOT NULL,
    UNIQUE (run, position, part, number)
);
CREATE INDEX notices_feed ON notices (run, id);
CREATE INDEX notices_passing ON notices (run, position) WHERE stays = 0;

CREATE TABLE pruned (                    -- runs that are deleted, until what they leave is; keys are never used twice
    key    INTEGER PRIMARY KEY AUTOINCREMENT,
    size   INTEGER NOT NULL,            -- bytes of values in the row
    inputs BLOB,                        -- these three: references, or NULL
    output BLOB,
    error  BLOB
);

-- Where large payloads are referred to (and others that are as long as a reference): see ``pruning``.
CREATE INDEX runs_large_inputs ON runs (inputs) WHERE length(inputs) = 33;
CREATE INDEX runs_large_output ON runs (output) WHERE length(output) = 33;
CREATE INDEX runs_large_error ON runs (error) WHERE length(error) = 33;
CREATE INDEX records_large_payload ON records (payload) WHERE length(payload) = 33;
CREATE INDEX signals_large_payload ON signals (payload) WHERE length(payload) = 33;
CREATE INDEX approvals_large_form ON approvals (form) WHERE length(form) = 33;
CREATE INDEX approvals_large_arguments ON approvals (arguments) WHERE length(arguments) = 33;
CREATE INDEX approvals_large_answer ON approvals (answer) WHERE length(answer) = 33;

CREATE TABLE memories (                  -- of no run
    id         INTEGER PRIMARY KEY,
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    value      BLOB NOT NULL,
    text       TEXT NOT NULL,
    UNIQUE (namespace, key)
);
-- By memories.id: a single word for the namespace, and the words of key and text, made by stores.words.
CREATE VIRTUAL TABLE memory_words USING fts5 (space, words, tokenize = 'ascii');

CREATE TABLE switches (                  -- workflows that are switched off
    workflow     TEXT NOT NULL PRIMARY KEY,
    off_since    REAL NOT NULL,
    set_by       TEXT NOT NULL DEFAULT '',
    reason       TEXT NOT NULL DEFAULT '',
    is_temporary INTEGER NOT NULL DEFAULT 0  -- a policy turns it on again
) WITHOUT ROWID;

CREATE TABLE workers (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    token       TEXT NOT NULL,           -- names its lock file, if it has one
    name        TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    state       TEXT NOT NULL,
    workflows   TEXT NOT NULL,           -- a JSON list
    queues      TEXT,                    -- a JSON list; NULL: all
    started_at  REAL NOT NULL,
    lease_until REAL NOT NULL,
    beat_at     REAL NOT NULL DEFAULT 0,
    by_lease    INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX workers_live ON workers (id) WHERE state = 'live';
CREATE INDEX workers_gone ON workers (id) WHERE by_lease = 1 AND state != 'live';
CREATE INDEX workers_left ON workers (id) WHERE by_lease = 0 AND state != 'live';

CREATE TABLE workflows (
    name        TEXT PRIMARY KEY,        -- with the version: serving.served_name
    parameters  TEXT NOT NULL,           -- a JSON list
    id_template TEXT,
    queue       TEXT NOT NULL,
    timeout     REAL,
    tags        TEXT NOT NULL,           -- a JSON list
    budget      TEXT,                    -- a JSON list of Limits
    is_agent    INTEGER NOT NULL DEFAULT 0,
    max_deliveries INTEGER NOT NULL DEFAULT 3,
    announced_at REAL NOT NULL DEFAULT 0,
    queue_key   TEXT,                    -- a template
    by_delivery INTEGER NOT NULL DEFAULT 0,
    inputs_schema TEXT NOT NULL DEFAULT '' -- a JSON schema
) WITHOUT ROWID;

CREATE TABLE schedules (                 -- see stores.schedules
    name        TEXT NOT NULL PRIMARY KEY,
    workflow    TEXT NOT NULL,
    timing      TEXT NOT NULL,
    catch_up    TEXT NOT NULL,
    most        INTEGER NOT NULL,
    overlap     TEXT NOT NULL,
    by_code     INTEGER NOT NULL,
    options     TEXT NOT NULL,           -- a JSON list: how its runs are started
    inputs      BLOB NOT NULL,
    created_at  REAL NOT NULL,
    fired_up_to REAL NOT NULL,
    paused_at   REAL,
    last_run    TEXT NOT NULL DEFAULT '',
    skipped     REAL                     -- the last tick that did not fire because of overlap
);
CREATE TABLE announcements (             -- the workers whose code declares a schedule
    schedule TEXT NOT NULL,
    worker   INTEGER NOT NULL,
    PRIMARY KEY (schedule, worker)
) WITHOUT ROWID;

CREATE TABLE queues (                    -- those with limits: see stores.queues
    name            TEXT NOT NULL PRIMARY KEY,
    limits          TEXT NOT NULL,       -- those that hold: core.queues.QueueLimits
    declared        TEXT,                -- those that code has announced
    by_hand         INTEGER NOT NULL,
    paused_at       REAL,
    concurrency     INTEGER,             -- these three: of the limits that hold
    key_concurrency INTEGER,
    counts_tokens   INTEGER NOT NULL,
    turns           TEXT NOT NULL,       -- by priority, of the runs that have begun: JSON
    used            TEXT NOT NULL,       -- how much of its rates: JSON
    open_at         REAL NOT NULL,       -- when its rates let the next run begin, as the last claim saw it
    settled         INTEGER NOT NULL     -- 1: the runs that were there before it are limited, too
) WITHOUT ROWID;
CREATE TABLE queue_turns (               -- the last one that each key was given, for runs of each priority
    queue    TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT NOT NULL,
    turn     INTEGER NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (queue, priority, key)
) WITHOUT ROWID;
CREATE INDEX queue_turns_old ON queue_turns (at);
CREATE TABLE queue_keys (                -- keys with runs that are set aside, or that have used their rates
    queue   TEXT NOT NULL,
    key     TEXT NOT NULL,
    aside   INTEGER NOT NULL,            -- 1: there are runs that are set aside
    open_at REAL NOT NULL,               -- when to look at those again
    used    TEXT NOT NULL,               -- JSON
    until   REAL NOT NULL,               -- when this means nothing any more
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX queue_keys_aside ON queue_keys (queue, open_at) WHERE aside = 1;
CREATE INDEX queue_keys_old ON queue_keys (until);
CREATE TABLE queue_charges (             -- what model calls have used, until a claim counts it
    queue  TEXT NOT NULL,
    key    TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    at     REAL NOT NULL
);
CREATE INDEX queue_charges_of ON queue_charges (queue);

CREATE TABLE documents (                 -- of servers: see stores.documents
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    data       BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE audit (                     -- what servers were asked for; ids are never used twice
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    who     TEXT NOT NULL,
    name    TEXT NOT NULL,
    action  TEXT NOT NULL,
    target  TEXT NOT NULL,
    outcome TEXT NOT NULL,
    remote  TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);
CREATE TABLE spending (                  -- what model calls have used: see stores.spending
    day           TEXT NOT NULL,         -- as in 2026-11-16
    workflow      TEXT NOT NULL,
    model         TEXT NOT NULL,         -- '': not known
    calls         INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    nano_usd      INTEGER NOT NULL,
    unpriced      INTEGER NOT NULL,
    PRIMARY KEY (day, workflow, model)
) WITHOUT ROWID;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
"""
