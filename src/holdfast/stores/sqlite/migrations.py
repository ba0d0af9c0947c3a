"""How a database gets from one schema version to the next: numbered, forward only, never edited once released.

``PRAGMA user_version`` is the number of migrations that a database has seen. Migrating happens in one ``IMMEDIATE``
transaction, so two processes that open a new file at once are safe: the second finds nothing left to do.

**While older processes have the file open.** They go on as long as a migration only adds to the tables. One that they
cannot live with raises ``COMPATIBLE_FROM``, which is kept in the table ``meta``: those that know only of schemas before
that are refused when they open the file, and those that have it open stop (see ``connections.check_version``).
"""

from __future__ import annotations

_1_INITIAL = """
CREATE TABLE runs (
    key            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    workflow       TEXT NOT NULL,
    queue          TEXT NOT NULL,
    state          TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    owner          INTEGER,
    starter        INTEGER,
    deliveries     INTEGER NOT NULL,
    max_deliveries INTEGER NOT NULL,
    ready          INTEGER,
    wake_at        REAL,
    waits_for      TEXT NOT NULL,
    priority       INTEGER NOT NULL,
    deadline       REAL,
    unclaimed      INTEGER NOT NULL,
    python         TEXT NOT NULL,
    created_at     REAL NOT NULL,
    finished_at    REAL,
    digest         BLOB NOT NULL,
    seed           BLOB NOT NULL,
    tags           TEXT NOT NULL,
    inputs         BLOB NOT NULL,
    output         BLOB,
    error          BLOB
);
CREATE INDEX runs_ready ON runs (workflow, priority DESC, key, queue) WHERE ready = 1;
CREATE INDEX runs_timers ON runs (workflow, wake_at, queue) WHERE ready = 0;
CREATE INDEX runs_held ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_orphans ON runs (workflow, digest) WHERE unclaimed = 1;
CREATE INDEX runs_started ON runs (starter) WHERE starter IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_listed ON runs (workflow, state);

CREATE TABLE records (
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
    PRIMARY KEY (run, position)
) WITHOUT ROWID;

CREATE TABLE signals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    name    TEXT NOT NULL,
    sent_at REAL NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX signals_mailbox ON signals (run, name);

CREATE TABLE signal_keys (
    run   INTEGER NOT NULL,
    dedup TEXT NOT NULL,
    PRIMARY KEY (run, dedup)
) WITHOUT ROWID;

CREATE TABLE workers (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    token       TEXT NOT NULL,
    name        TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    state       TEXT NOT NULL,
    workflows   TEXT NOT NULL,
    queues      TEXT,
    started_at  REAL NOT NULL,
    lease_until REAL NOT NULL
);
CREATE INDEX workers_live ON workers (id) WHERE state = 'live';

CREATE TABLE workflows (
    name        TEXT PRIMARY KEY,
    parameters  TEXT NOT NULL,
    id_template TEXT,
    queue       TEXT NOT NULL,
    timeout     REAL,
    tags        TEXT NOT NULL
) WITHOUT ROWID;
"""

_2_LINKS_AND_REQUESTS = """
ALTER TABLE runs RENAME TO runs_1;
CREATE TABLE runs (
    key            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    workflow       TEXT NOT NULL,
    queue          TEXT NOT NULL,
    state          TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    owner          INTEGER,
    starter        INTEGER,
    deliveries     INTEGER NOT NULL,
    max_deliveries INTEGER NOT NULL,
    ready          INTEGER,
    wake_at        REAL,
    waits_for      TEXT NOT NULL,
    priority       INTEGER NOT NULL,
    deadline       REAL,
    unclaimed      INTEGER NOT NULL,
    cancel         TEXT NOT NULL,
    paused_at      REAL,
    python         TEXT NOT NULL,
    created_at     REAL NOT NULL,
    began_at       REAL NOT NULL,
    finished_at    REAL,
    parent         TEXT NOT NULL,
    forked_from    TEXT NOT NULL,
    rewound        TEXT NOT NULL,
    rewind         TEXT,
    digest         BLOB NOT NULL,
    seed           BLOB NOT NULL,
    tags           TEXT NOT NULL,
    inputs         BLOB NOT NULL,
    output         BLOB,
    error          BLOB
);
INSERT INTO runs (
    key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, ready, wake_at, waits_for,
    priority, deadline, unclaimed, python, created_at, finished_at, digest, seed, tags, inputs, output, error,
    cancel, began_at, parent, forked_from, rewound
) SELECT
    key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, ready, wake_at, waits_for,
    priority, deadline, unclaimed, python, created_at, finished_at, digest, seed, tags, inputs, output, error,
    '', created_at, '', '', '[]'
FROM runs_1;
DROP TABLE runs_1;
CREATE INDEX runs_ready ON runs (workflow, priority DESC, key, queue) WHERE ready = 1;
CREATE INDEX runs_timers ON runs (workflow, wake_at, queue) WHERE ready = 0;
CREATE INDEX runs_held ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_orphans ON runs (workflow, digest) WHERE unclaimed = 1;
CREATE INDEX runs_started ON runs (starter) WHERE starter IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_asked ON runs (owner) WHERE owner IS NOT NULL AND (cancel = 'asked' OR paused_at IS NOT NULL);
CREATE INDEX runs_listed ON runs (workflow, state);
CREATE INDEX runs_created ON runs (created_at);
CREATE INDEX runs_children ON runs (parent) WHERE parent != '';

CREATE TABLE run_tags (
    tag TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (tag, run)
) WITHOUT ROWID;
INSERT OR IGNORE INTO run_tags (tag, run) SELECT value, runs.key
FROM runs CROSS JOIN json_each(CASE WHEN json_valid(tags) THEN tags ELSE '[]' END) WHERE tags != '[]';

ALTER TABLE signals ADD COLUMN position INTEGER;
CREATE INDEX signals_ends ON signals (run, position) WHERE position IS NOT NULL;

CREATE TABLE links (
    parent   INTEGER NOT NULL,
    position INTEGER NOT NULL,
    child    INTEGER NOT NULL,
    awaited  INTEGER NOT NULL,
    PRIMARY KEY (parent, position)
) WITHOUT ROWID;
CREATE INDEX links_awaited ON links (child) WHERE awaited = 1;

CREATE TABLE blobs (
    hash BLOB NOT NULL PRIMARY KEY,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE switches (
    workflow  TEXT NOT NULL PRIMARY KEY,
    off_since REAL NOT NULL
) WITHOUT ROWID;
"""
"""``runs`` is made anew, so that what a batch reads of a row stands before its inputs."""

_3_USAGE_AND_SESSIONS = """
ALTER TABLE runs ADD COLUMN session TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN previous TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN has_budget INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_sessions ON runs (workflow, session) WHERE session != '';

ALTER TABLE workflows ADD COLUMN budget TEXT;
ALTER TABLE workflows ADD COLUMN is_agent INTEGER NOT NULL DEFAULT 0;

CREATE TABLE usages (
    run               INTEGER PRIMARY KEY,
    above             INTEGER,
    calls             INTEGER NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    nano_usd          INTEGER NOT NULL,
    unpriced          INTEGER NOT NULL,
    seconds           REAL NOT NULL,
    reserved_calls    INTEGER NOT NULL,
    reserved_tokens   INTEGER NOT NULL,
    reserved_nano_usd INTEGER NOT NULL,
    budget            TEXT,
    short             TEXT NOT NULL
);
CREATE INDEX usages_short ON usages (run) WHERE short != '';

CREATE TABLE reservations (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    calls    INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
"""

_4_PEOPLE_AND_MEMORIES = """
ALTER TABLE workers ADD COLUMN beat_at REAL NOT NULL DEFAULT 0;

CREATE TABLE approvals (
    id          TEXT NOT NULL PRIMARY KEY,
    run         INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    state       TEXT NOT NULL,
    asked_at    REAL NOT NULL,
    expires_at  REAL,
    asked_of    TEXT NOT NULL,
    reminders   INTEGER NOT NULL,
    reminded_at REAL,
    answered_by TEXT NOT NULL,
    answered_at REAL,
    withdrawn_in INTEGER NOT NULL DEFAULT 0,
    question    TEXT NOT NULL,
    form        BLOB NOT NULL,
    arguments   BLOB NOT NULL,
    answer      BLOB
);
CREATE INDEX approvals_asked ON approvals (run, position);
CREATE INDEX approvals_open ON approvals (asked_at) WHERE state = 'open';

CREATE TABLE notices (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    part     TEXT NOT NULL,
    number   INTEGER NOT NULL,
    stays    INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    at       REAL NOT NULL,
    data     BLOB NOT NULL,
    UNIQUE (run, position, part, number)
);
CREATE INDEX notices_feed ON notices (run, id);
CREATE INDEX notices_passing ON notices (run, position) WHERE stays = 0;

CREATE TABLE memories (
    id         INTEGER PRIMARY KEY,
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    value      BLOB NOT NULL,
    text       TEXT NOT NULL,
    UNIQUE (namespace, key)
);
CREATE VIRTUAL TABLE memory_words USING fts5 (space, words, tokenize = 'ascii');
"""
"""The words of memories are made by ``stores.words``, so that every store has the same; FTS5 only separates them."""

_5_FLEETS = """
ALTER TABLE attempts ADD COLUMN outcome BLOB;

ALTER TABLE workflows ADD COLUMN max_deliveries INTEGER NOT NULL DEFAULT 3;
ALTER TABLE workflows ADD COLUMN announced_at REAL NOT NULL DEFAULT 0;

ALTER TABLE runs ADD COLUMN version TEXT NOT NULL DEFAULT '';
DROP INDEX runs_ready;
DROP INDEX runs_timers;
CREATE INDEX runs_due ON runs (workflow, version, priority DESC, key, queue) WHERE ready = 1;
CREATE INDEX runs_waking ON runs (workflow, version, wake_at, queue) WHERE ready = 0;

DROP INDEX links_awaited;
CREATE INDEX links_child ON links (child, awaited);
CREATE INDEX runs_continued ON runs (previous) WHERE previous != '';

CREATE TABLE pruned (
    key    INTEGER PRIMARY KEY AUTOINCREMENT,
    size   INTEGER NOT NULL,
    inputs BLOB,
    output BLOB,
    error  BLOB
);
CREATE INDEX runs_large_inputs ON runs (inputs) WHERE length(inputs) = 33;
CREATE INDEX runs_large_output ON runs (output) WHERE length(output) = 33;
CREATE INDEX runs_large_error ON runs (error) WHERE length(error) = 33;
CREATE INDEX records_large_payload ON records (payload) WHERE length(payload) = 33;
CREATE INDEX signals_large_payload ON signals (payload) WHERE length(payload) = 33;
CREATE INDEX approvals_large_form ON approvals (form) WHERE length(form) = 33;
CREATE INDEX approvals_large_arguments ON approvals (arguments) WHERE length(arguments) = 33;
CREATE INDEX approvals_large_answer ON approvals (answer) WHERE length(answer) = 33;

CREATE TABLE schedules (
    name        TEXT NOT NULL PRIMARY KEY,
    workflow    TEXT NOT NULL,
    timing      TEXT NOT NULL,
    catch_up    TEXT NOT NULL,
    most        INTEGER NOT NULL,
    overlap     TEXT NOT NULL,
    by_code     INTEGER NOT NULL,
    options     TEXT NOT NULL,
    inputs      BLOB NOT NULL,
    created_at  REAL NOT NULL,
    fired_up_to REAL NOT NULL,
    paused_at   REAL,
    last_run    TEXT NOT NULL DEFAULT '',
    skipped     REAL
);
CREATE TABLE announcements (
    schedule TEXT NOT NULL,
    worker   INTEGER NOT NULL,
    PRIMARY KEY (schedule, worker)
) WITHOUT ROWID;
"""

_6_QUEUES = """
ALTER TABLE runs ADD COLUMN queue_key TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN due_as INTEGER NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN dedup TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN debounced INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_queued ON runs (queue, workflow, version, ready, priority DESC, turn, key) WHERE ready IN (2, 3, 6);
CREATE INDEX runs_of_keys ON runs (queue, queue_key, ready, workflow, version, priority DESC, turn, key)
    WHERE ready IN (2, 3, 4, 5);
CREATE INDEX runs_executed ON runs (queue, queue_key) WHERE state = 'running' AND due_as > 1;
CREATE INDEX runs_limited ON runs (queue, queue_key, key) WHERE due_as > 1 AND finished_at IS NULL;
CREATE UNIQUE INDEX runs_dedup ON runs (queue, dedup) WHERE dedup != '' AND finished_at IS NULL;

ALTER TABLE workflows ADD COLUMN queue_key TEXT;

CREATE TABLE queues (
    name            TEXT NOT NULL PRIMARY KEY,
    limits          TEXT NOT NULL,
    declared        TEXT,
    by_hand         INTEGER NOT NULL,
    paused_at       REAL,
    concurrency     INTEGER,
    key_concurrency INTEGER,
    counts_tokens   INTEGER NOT NULL,
    turns           TEXT NOT NULL,
    used            TEXT NOT NULL,
    open_at         REAL NOT NULL,
    settled         INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE queue_turns (
    queue    TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT NOT NULL,
    turn     INTEGER NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (queue, priority, key)
) WITHOUT ROWID;
CREATE INDEX queue_turns_old ON queue_turns (at);
CREATE TABLE queue_keys (
    queue   TEXT NOT NULL,
    key     TEXT NOT NULL,
    aside   INTEGER NOT NULL,
    open_at REAL NOT NULL,
    used    TEXT NOT NULL,
    until   REAL NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX queue_keys_aside ON queue_keys (queue, open_at) WHERE aside = 1;
CREATE INDEX queue_keys_old ON queue_keys (until);
CREATE TABLE queue_charges (
    queue  TEXT NOT NULL,
    key    TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    at     REAL NOT NULL
);
CREATE INDEX queue_charges_of ON queue_charges (queue);
"""

_7_DELIVERIES = """
ALTER TABLE runs ADD COLUMN by_delivery INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_expiring ON runs (deadline) WHERE by_delivery = 1 AND finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_delivered ON runs (created_at) WHERE by_delivery = 1;

ALTER TABLE workflows ADD COLUMN by_delivery INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN by_lease INTEGER NOT NULL DEFAULT 0;
CREATE INDEX workers_gone ON workers (id) WHERE by_lease = 1 AND state != 'live';
"""

_8_KEEPING = """
CREATE TABLE documents (
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    data       BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE audit (
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
CREATE TABLE spending (
    day           TEXT NOT NULL,
    workflow      TEXT NOT NULL,
    model         TEXT NOT NULL,
    calls         INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    nano_usd      INTEGER NOT NULL,
    unpriced      INTEGER NOT NULL,
    PRIMARY KEY (day, workflow, model)
) WITHOUT ROWID;
"""

_9_SWITCHES = """
ALTER TABLE switches ADD COLUMN set_by TEXT NOT NULL DEFAULT '';
ALTER TABLE switches ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE switches ADD COLUMN is_temporary INTEGER NOT NULL DEFAULT 0;
"""

_10_SUSPECTS = """
ALTER TABLE runs ADD COLUMN suspicion INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_suspects ON runs (workflow, version, wake_at) WHERE ready = 7;
"""

_11_HISTORY = """
CREATE INDEX runs_in_state ON runs (state || '.');
CREATE INDEX approvals_by_time ON approvals (asked_at);
CREATE INDEX workers_left ON workers (id) WHERE by_lease = 0 AND state != 'live';
"""

_12_NEXT_ATTEMPTS = """
ALTER TABLE attempts ADD COLUMN retry_at REAL;
ALTER TABLE attempts ADD COLUMN failing_since REAL;
"""

_13_INPUT_SCHEMAS = """
ALTER TABLE workflows ADD COLUMN inputs_schema TEXT NOT NULL DEFAULT '';
"""

_14_META = """
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
"""

_15_UNREAD_MAIL = """
ALTER TABLE runs ADD COLUMN parked_by INTEGER;
CREATE INDEX runs_parked_by ON runs (parked_by) WHERE parked_by IS NOT NULL;
"""

MIGRATIONS: tuple[str, ...] = (
    _1_INITIAL,
    _2_LINKS_AND_REQUESTS,
    _3_USAGE_AND_SESSIONS,
    _4_PEOPLE_AND_MEMORIES,
    _5_FLEETS,
    _6_QUEUES,
    _7_DELIVERIES,
    _8_KEEPING,
    _9_SWITCHES,
    _10_SUSPECTS,
    _11_HISTORY,
    _12_NEXT_ATTEMPTS,
    _13_INPUT_SCHEMAS,
    _14_META,
    _15_UNREAD_MAIL,
)
"""``MIGRATIONS[n]`` brings version n to version n + 1. Statements end in ``;`` and contain no other ``;``."""

VERSION = len(MIGRATIONS)

COMPATIBLE_FROM = 14
"""The lowest ``VERSION`` of a Holdfast that can use a file of this one. Version 14 is the first that looks at it."""


def statements(migration: str) -> list[str]:
    """The single statements of a migration (``executescript`` would commit the transaction around it)."""
    return [statement for part in migration.split(";") if (statement := part.strip())]
