"""The tables, as they are now; ``{schema}`` stands for the schema that they are in.

A new database is brought to this shape by running all of ``migrations.MIGRATIONS``; a test holds the two together.
They are the tables of the SQLite store (whose ``schema`` tells what ``runs.ready`` is for, and which columns hold a
reference instead of a large payload), with these differences:

- Columns that lists are paged by stand in the indexes, which SQLite has without saying so.
- Text is compared by code points (``COLLATE "C"``), in every database of every country.
- Whatever changes while a run lives is in some index of ``runs``, so that nearly every change of a row makes a new one
  on a new place. Pages of ``runs`` are filled in part only: then that place is on the same page, and PostgreSQL clears
  out the old ones as it goes. The rows of ``usages`` and ``workers`` change often, and in no column that is indexed.
- Tables that are filled and emptied all the time are vacuumed by the number of dead rows, and not by their share.
- The condition of ``runs_delivered`` and the expression in ``runs_in_state`` are written in such a way that only who
  asks in the same words is answered by them: the others have better indexes.
- ``signals.xid`` is the transaction that sent a signal. Numbers of a sequence are given out before the commit, so a
  smaller one may come to light later; whoever has seen everything up to some transaction has missed nothing.
- A memory's words are rows of ``memory_words``, and what is needed of all memories together for their ranking is kept
  in ``memory_totals``, in several rows, so that those who change memories rarely wait for each other. So is what was
  used on a day, in ``spending``.

Payloads are not compressed by PostgreSQL: that takes ten times as long as to write them as they are. Those of records,
which never change, stay in the row as long as a page can hold it; those of runs are put aside early, so that they are
not copied with every change of the row.
"""

from __future__ import annotations

SCHEMA = r"""
CREATE TABLE {schema}.meta (             -- version, compatible_from
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

CREATE SEQUENCE {schema}.run_keys;
CREATE TABLE {schema}.runs (
    key            bigint PRIMARY KEY,
    id             text COLLATE "C" NOT NULL UNIQUE,
    workflow       text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    state          text COLLATE "C" NOT NULL,
    epoch          bigint NOT NULL,
    owner          bigint,                   -- workers.id, while running
    starter        bigint,                   -- workers.id, if a worker started it
    deliveries     bigint NOT NULL,
    max_deliveries bigint NOT NULL,
    ready          smallint,
    wake_at        double precision,
    waits_for      text COLLATE "C" NOT NULL,
    priority       bigint NOT NULL,
    deadline       double precision,
    unclaimed      smallint NOT NULL,        -- with a made-up id: 1, and 2 once somebody has had its result; else 0
    cancel         text COLLATE "C" NOT NULL, -- '', asked or recorded
    paused_at      double precision,
    python         text COLLATE "C" NOT NULL,
    created_at     double precision NOT NULL,
    began_at       double precision NOT NULL,
    finished_at    double precision,
    parent         text COLLATE "C" NOT NULL, -- runs.id, if a run started it; else ''
    forked_from    text COLLATE "C" NOT NULL, -- runs.id, or ''
    rewound        text COLLATE "C" NOT NULL, -- a JSON list of positions
    rewind         text COLLATE "C",         -- a JSON list, once it has ended
    digest         bytea NOT NULL,
    seed           bytea NOT NULL,
    tags           text COLLATE "C" NOT NULL, -- a JSON list
    inputs         bytea NOT NULL,
    output         bytea,
    error          bytea,
    session        text COLLATE "C" NOT NULL,
    previous       text COLLATE "C" NOT NULL, -- runs.id, or ''
    has_budget     smallint NOT NULL,
    version        text COLLATE "C" NOT NULL,
    queue_key      text COLLATE "C" NOT NULL DEFAULT '',
    due_as         smallint NOT NULL DEFAULT 1, -- what ``ready`` is when it is due: 1, or in a limited queue 2 or 3
    turn           bigint NOT NULL DEFAULT 0,
    dedup          text COLLATE "C" NOT NULL DEFAULT '',
    debounced      smallint NOT NULL DEFAULT 0,
    by_delivery    smallint NOT NULL DEFAULT 0,
    suspicion      integer NOT NULL DEFAULT 0,
    parked_by      bigint                    -- workers.id, if it parked with something in its mailbox
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE {schema}.runs ALTER inputs SET STORAGE EXTERNAL, ALTER output SET STORAGE EXTERNAL,
    ALTER error SET STORAGE EXTERNAL;
CREATE INDEX runs_due ON {schema}.runs (workflow, version, priority DESC, key) INCLUDE (queue) WHERE ready = 1;
CREATE INDEX runs_waking ON {schema}.runs (workflow, version, wake_at) INCLUDE (queue) WHERE ready = 0;
CREATE INDEX runs_held ON {schema}.runs (owner, key) WHERE owner IS NOT NULL;
CREATE INDEX runs_orphans ON {schema}.runs (workflow, digest, key) WHERE unclaimed = 1;
CREATE INDEX runs_started ON {schema}.runs (starter) WHERE starter IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_asked ON {schema}.runs (owner, key)
    WHERE owner IS NOT NULL AND (cancel = 'asked' OR paused_at IS NOT NULL);
CREATE INDEX runs_listed ON {schema}.runs (workflow, state, key);
CREATE INDEX runs_in_state ON {schema}.runs ((state || '.'), key);
CREATE INDEX runs_created ON {schema}.runs (created_at, key);
CREATE INDEX runs_children ON {schema}.runs (parent, key) WHERE parent <> '';
CREATE INDEX runs_sessions ON {schema}.runs (workflow, session, key) WHERE session <> '';
CREATE INDEX runs_continued ON {schema}.runs (previous, key) WHERE previous <> '';
CREATE INDEX runs_queued ON {schema}.runs (queue, workflow, version, ready, priority DESC, turn, key)
    WHERE ready IN (2, 3, 6);
CREATE INDEX runs_of_keys ON {schema}.runs (queue, queue_key, ready, workflow, version, priority DESC, turn, key)
    WHERE ready IN (2, 3, 4, 5);
CREATE INDEX runs_executed ON {schema}.runs (queue, queue_key) WHERE state = 'running' AND due_as > 1;
CREATE INDEX runs_limited ON {schema}.runs (queue, queue_key, key) WHERE due_as > 1 AND finished_at IS NULL;
CREATE UNIQUE INDEX runs_dedup ON {schema}.runs (queue, dedup) WHERE dedup <> '' AND finished_at IS NULL;
CREATE INDEX runs_expiring ON {schema}.runs (deadline, key)
    WHERE by_delivery = 1 AND finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_delivered ON {schema}.runs (created_at) WHERE by_delivery + 0 = 1;
CREATE INDEX runs_suspects ON {schema}.runs (workflow, version, wake_at) INCLUDE (queue) WHERE ready = 7;
CREATE INDEX runs_parked_by ON {schema}.runs (parked_by) WHERE parked_by IS NOT NULL;

CREATE TABLE {schema}.run_tags (         -- runs.tags once more, to list runs by one
    run bigint NOT NULL,
    tag text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, tag)
);
CREATE INDEX run_tags_listed ON {schema}.run_tags (tag, run);

CREATE TABLE {schema}.records (
    run        bigint NOT NULL,
    seq        bigint NOT NULL,
    kind       smallint NOT NULL,
    position   bigint NOT NULL,
    ok         smallint NOT NULL,
    at         double precision NOT NULL,
    started_at double precision NOT NULL,
    attempts   bigint NOT NULL,
    worker     bigint NOT NULL,
    epoch      bigint NOT NULL,
    name       text COLLATE "C" NOT NULL,
    preview    text COLLATE "C" NOT NULL,
    payload    bytea,
    PRIMARY KEY (run, seq)
) WITH (toast_tuple_target = 8160);
ALTER TABLE {schema}.records ALTER payload SET STORAGE EXTERNAL;

CREATE TABLE {schema}.attempts (
    run      bigint NOT NULL,
    position bigint NOT NULL,
    attempt  bigint NOT NULL,
    intent   smallint NOT NULL,
    progress bytea,
    error    text COLLATE "C" NOT NULL,
    at       double precision NOT NULL,
    name     text COLLATE "C" NOT NULL,
    outcome  bytea,                      -- of a transactional step, committed with what it did
    retry_at double precision,           -- when the next attempt is made, of a step that waits for it
    failing_since double precision,
    PRIMARY KEY (run, position)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.signals (          -- not consumed yet
    id       bigint GENERATED BY DEFAULT AS IDENTITY,
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    run      bigint NOT NULL,
    name     text COLLATE "C" NOT NULL,
    sent_at  double precision NOT NULL,
    payload  bytea NOT NULL,
    position bigint,                     -- of the command that waits for the end of a run, if it is one
    PRIMARY KEY (run, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE {schema}.signals ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX signals_new ON {schema}.signals (xid);
CREATE INDEX signals_ends ON {schema}.signals (run, position) WHERE position IS NOT NULL;

CREATE TABLE {schema}.signal_keys (      -- deduplication keys, which outlive their signals
    run   bigint NOT NULL,
    dedup text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, dedup)
);

CREATE TABLE {schema}.links (            -- runs that wait for others
    parent   bigint NOT NULL,
    position bigint NOT NULL,            -- of the command that waits
    child    bigint NOT NULL,
    awaited  smallint NOT NULL,          -- rules.Told
    PRIMARY KEY (parent, position)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX links_child ON {schema}.links (child, awaited, parent, position);

CREATE TABLE {schema}.usages (           -- of runs that have used something, themselves or below them, or have a budget
    run               bigint PRIMARY KEY,
    above             bigint,            -- the run that started it
    calls             bigint NOT NULL,
    input_tokens      bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    nano_usd          bigint NOT NULL,
    unpriced          bigint NOT NULL,
    seconds           double precision NOT NULL,
    reserved_calls    bigint NOT NULL,   -- the sums of what is reserved with its budget
    reserved_tokens   bigint NOT NULL,
    reserved_nano_usd bigint NOT NULL,
    budget            text COLLATE "C",  -- its own: a JSON list of Limits
    short             text COLLATE "C" NOT NULL -- a JSON list of the positions that wait, or ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX usages_short ON {schema}.usages (run) WHERE short <> '';

CREATE TABLE {schema}.reservations (     -- for steps in flight, with all budgets above
    run      bigint NOT NULL,
    position bigint NOT NULL,
    calls    bigint NOT NULL,
    tokens   bigint NOT NULL,
    nano_usd bigint NOT NULL,
    PRIMARY KEY (run, position)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.blobs (            -- payloads that are kept apart
    hash bytea PRIMARY KEY,
    size bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE {schema}.blobs ALTER data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.approvals (        -- questions to people
    id          text COLLATE "C" PRIMARY KEY,
    number      bigint GENERATED BY DEFAULT AS IDENTITY, -- in the order in which they were first asked
    run         bigint NOT NULL,
    position    bigint NOT NULL,         -- of the command that waits
    state       text COLLATE "C" NOT NULL, -- approvals.ApprovalState
    asked_at    double precision NOT NULL,
    expires_at  double precision,
    asked_of    text COLLATE "C" NOT NULL,
    reminders   bigint NOT NULL,
    reminded_at double precision,
    answered_by text COLLATE "C" NOT NULL,
    answered_at double precision,
    withdrawn_in bigint NOT NULL,        -- the epoch under which its run has withdrawn it; 0: it was not that
    question    text COLLATE "C" NOT NULL, -- a JSON list of the short fields of approvals.Question
    form        bytea NOT NULL,
    arguments   bytea NOT NULL,
    answer      bytea
);
CREATE INDEX approvals_asked ON {schema}.approvals (run, position);
CREATE INDEX approvals_open ON {schema}.approvals (asked_at, number) WHERE state = 'open';
CREATE INDEX approvals_by_time ON {schema}.approvals (asked_at, number);

CREATE TABLE {schema}.notices (
    id       bigint GENERATED BY DEFAULT AS IDENTITY,
    run      bigint NOT NULL,
    position bigint NOT NULL,            -- -1: of the run
    part     text COLLATE "C" NOT NULL,
    number   bigint NOT NULL,
    stays    smallint NOT NULL,          -- 0: goes with the record of its position, or with the end of its run
    kind     text COLLATE "C" NOT NULL,
    at       double precision NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (run, id),
    UNIQUE (run, position, part, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE {schema}.notices ALTER data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.pruned (           -- runs that are deleted, until what they leave is
    key    bigint PRIMARY KEY,
    size   bigint NOT NULL,              -- bytes of values in the row
    inputs bytea,                        -- these three: references, or NULL
    output bytea,
    error  bytea
);
-- Where large payloads are referred to (and others that are as long as a reference): see ``pruning``.
CREATE INDEX runs_large_inputs ON {schema}.runs (inputs) WHERE octet_length(inputs) = 33;
CREATE INDEX runs_large_output ON {schema}.runs (output) WHERE octet_length(output) = 33;
CREATE INDEX runs_large_error ON {schema}.runs (error) WHERE octet_length(error) = 33;
CREATE INDEX records_large_payload ON {schema}.records (payload) WHERE octet_length(payload) = 33;
CREATE INDEX signals_large_payload ON {schema}.signals (payload) WHERE octet_length(payload) = 33;
CREATE INDEX approvals_large_form ON {schema}.approvals (form) WHERE octet_length(form) = 33;
CREATE INDEX approvals_large_arguments ON {schema}.approvals (arguments) WHERE octet_length(arguments) = 33;
CREATE INDEX approvals_large_answer ON {schema}.approvals (answer) WHERE octet_length(answer) = 33;

CREATE TABLE {schema}.memories (         -- of no run
    id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    namespace  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    value      bytea NOT NULL,
    text       text COLLATE "C" NOT NULL,
    size       bigint NOT NULL,          -- the words of key and text, and one for the namespace
    UNIQUE (namespace, key)
);
CREATE TABLE {schema}.memory_words (     -- of key and text, made by stores.words
    word   text COLLATE "C" NOT NULL,
    space  bytea NOT NULL,               -- stands for the namespace
    memory bigint NOT NULL,
    times  bigint NOT NULL,
    PRIMARY KEY (word, space, memory) INCLUDE (times)
);
CREATE INDEX memory_words_of ON {schema}.memory_words (memory);
CREATE TABLE {schema}.memory_totals (    -- their sums count
    slot     smallint PRIMARY KEY,
    memories bigint NOT NULL,
    size     bigint NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE {schema}.switches (         -- workflows that are switched off
    workflow     text COLLATE "C" PRIMARY KEY,
    off_since    double precision NOT NULL,
    set_by       text COLLATE "C" NOT NULL DEFAULT '',
    reason       text COLLATE "C" NOT NULL DEFAULT '',
    is_temporary smallint NOT NULL DEFAULT 0  -- a policy turns it on again
);

CREATE TABLE {schema}.workers (
    id             bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    token          text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    host           text COLLATE "C" NOT NULL,
    pid            bigint NOT NULL,
    state          text COLLATE "C" NOT NULL,
    workflows      text COLLATE "C" NOT NULL, -- a JSON list
    queues         text COLLATE "C",     -- a JSON list; NULL: all
    started_at     double precision NOT NULL,
    lease_until    double precision NOT NULL,
    beat_at        double precision NOT NULL,
    server_started double precision,     -- the start of the server on which it has its lock; NULL: it has none
    by_lease       smallint NOT NULL DEFAULT 0
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX workers_live ON {schema}.workers (id) WHERE state = 'live';
CREATE INDEX workers_serving ON {schema}.workers (id) WHERE state = 'live' AND by_lease = 0;
CREATE INDEX workers_gone ON {schema}.workers (id) WHERE by_lease = 1 AND state <> 'live';
CREATE INDEX workers_left ON {schema}.workers (id) WHERE by_lease = 0 AND state <> 'live';

CREATE TABLE {schema}.workflows (
    name        text COLLATE "C" PRIMARY KEY, -- with the version: serving.served_name
    parameters  text COLLATE "C" NOT NULL, -- a JSON list
    id_template text COLLATE "C",
    queue       text COLLATE "C" NOT NULL,
    timeout     double precision,
    tags        text COLLATE "C" NOT NULL, -- a JSON list
    budget      text COLLATE "C",        -- a JSON list of Limits
    is_agent    smallint NOT NULL,
    max_deliveries bigint NOT NULL,
    announced_at double precision NOT NULL,
    queue_key   text COLLATE "C",        -- a template
    by_delivery smallint NOT NULL DEFAULT 0,
    inputs_schema text COLLATE "C" NOT NULL DEFAULT '' -- a JSON schema
);

CREATE TABLE {schema}.schedules (                 -- see stores.schedules
    name        text COLLATE "C" PRIMARY KEY,
    workflow    text COLLATE "C" NOT NULL,
    timing      text COLLATE "C" NOT NULL,
    catch_up    text COLLATE "C" NOT NULL,
    most        bigint NOT NULL,
    overlap     text COLLATE "C" NOT NULL,
    by_code     smallint NOT NULL,
    options     text COLLATE "C" NOT NULL,           -- a JSON list: how its runs are started
    inputs      bytea NOT NULL,
    created_at  double precision NOT NULL,
    fired_up_to double precision NOT NULL,
    paused_at   double precision,
    last_run    text COLLATE "C" NOT NULL DEFAULT '',
    skipped     double precision                     -- the last tick that did not fire because of overlap
);
CREATE TABLE {schema}.announcements (             -- the workers whose code declares a schedule
    schedule text COLLATE "C" NOT NULL,
    worker   bigint NOT NULL,
    PRIMARY KEY (schedule, worker)
);

CREATE TABLE {schema}.queues (           -- those with limits: see stores.queues
    name            text COLLATE "C" PRIMARY KEY,
    limits          text COLLATE "C" NOT NULL, -- those that hold: core.queues.QueueLimits
    declared        text COLLATE "C",    -- those that code has announced
    by_hand         smallint NOT NULL,
    paused_at       double precision,
    concurrency     bigint,              -- these three: of the limits that hold
    key_concurrency bigint,
    counts_tokens   smallint NOT NULL,
    turns           text NOT NULL,       -- by priority, of the runs that have begun: JSON
    used            text COLLATE "C" NOT NULL, -- how much of its rates: JSON
    open_at         double precision NOT NULL, -- when its rates let the next run begin, as the last claim saw it
    settled         smallint NOT NULL    -- 1: the runs that were there before it are limited, too
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE {schema}.queue_turns (      -- the last one that each key was given, for runs of each priority
    queue    text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    key      text COLLATE "C" NOT NULL,
    turn     bigint NOT NULL,
    at       double precision NOT NULL,
    PRIMARY KEY (queue, priority, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX queue_turns_old ON {schema}.queue_turns (at);
CREATE TABLE {schema}.queue_keys (       -- keys with runs that are set aside, or that have used their rates
    queue   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    aside   smallint NOT NULL,           -- 1: there are runs that are set aside
    open_at double precision NOT NULL,   -- when to look at those again
    used    text COLLATE "C" NOT NULL,   -- JSON
    until   double precision NOT NULL,   -- when this means nothing any more
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX queue_keys_aside ON {schema}.queue_keys (queue, open_at) WHERE aside = 1;
CREATE INDEX queue_keys_old ON {schema}.queue_keys (until);
CREATE TABLE {schema}.queue_charges (    -- what model calls have used, until a claim counts it
    queue  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    tokens bigint NOT NULL,
    at     double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX queue_charges_of ON {schema}.queue_charges (queue);

CREATE TABLE {schema}.documents (        -- of servers: see stores.documents
    kind       text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    data       bytea NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE {schema}.audit (            -- what servers were asked for
    id      bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at      double precision NOT NULL,
    who     text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    action  text COLLATE "C" NOT NULL,
    target  text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    remote  text COLLATE "C" NOT NULL
);
CREATE INDEX audit_at ON {schema}.audit (at, id);
CREATE TABLE {schema}.spending (         -- what model calls have used: see stores.spending
    day           text COLLATE "C" NOT NULL, -- as in 2026-11-16
    workflow      text COLLATE "C" NOT NULL,
    model         text COLLATE "C" NOT NULL, -- '': not known
    slot          smallint NOT NULL,     -- the sums of all slots count: see ``keeping``
    calls         bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    nano_usd      bigint NOT NULL,
    unpriced      bigint NOT NULL,
    PRIMARY KEY (day, workflow, model, slot)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The type and the message of an error, to search in; NULL if it is none, or kept apart. NUL as ``adapters`` has it.
CREATE FUNCTION {schema}.error_words(error bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    told json;
BEGIN
    told := replace(replace(convert_from(error, 'UTF8'), '\u0001', '\u0001\u0002'), '\u0000', '\u0001\u0001');
    RETURN (told ->> 'type') || ' ' || (told ->> 'message');
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;
"""
