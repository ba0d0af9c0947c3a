"""Bringing a schema up to date: forward only, and while older workers are at work.

Migrations are numbered, and never edited once they are released. Whoever opens a store runs those that are missing, all
of them in one transaction. An advisory lock lets one process at a time do that, so that a whole fleet may be started at
once; the others find that it is done.

**While older workers run.** A fleet is brought up to date one worker after the other, so a database is newer than some
of those who use it. That works as long as a migration only adds: tables, columns with a default, which in PostgreSQL
touch no row, and indexes. What is to go is first used by nobody for one release. A migration that older versions
cannot live with raises ``compatible_from``: those that know only of schemas before that are refused, in words, when
they open the store or connect again. A migration holds its locks until it is committed, so it must be quick whatever is
in the tables: it rewrites none, and the first one that needs an index on a large table has to bring a way to build it
``CONCURRENTLY``, which no transaction can do.

**Whose schema it is.** The table ``meta`` marks it as ours. A schema that has tables but no ``meta`` is somebody
else's, and left alone.

Where workers may not create tables, a person runs what ``ddl`` returns, once for each new version.
"""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple, cast

import psycopg
from psycopg import errors, sql

from holdfast.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreSchemaError


class Migration(NamedTuple):
    """One step: its statements, and the lowest version of those that can use the outcome."""

    statements: str
    compatible_from: int


_1_INITIAL = r"""
CREATE TABLE {schema}.meta (
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
    owner          bigint,
    starter        bigint,
    deliveries     bigint NOT NULL,
    max_deliveries bigint NOT NULL,
    ready          smallint,
    wake_at        double precision,
    waits_for      text COLLATE "C" NOT NULL,
    priority       bigint NOT NULL,
    deadline       double precision,
    unclaimed      smallint NOT NULL,
    cancel         text COLLATE "C" NOT NULL,
    paused_at      double precision,
    python         text COLLATE "C" NOT NULL,
    created_at     double precision NOT NULL,
    began_at       double precision NOT NULL,
    finished_at    double precision,
    parent         text COLLATE "C" NOT NULL,
    forked_from    text COLLATE "C" NOT NULL,
    rewound        text COLLATE "C" NOT NULL,
    rewind         text COLLATE "C",
    digest         bytea NOT NULL,
    seed           bytea NOT NULL,
    tags           text COLLATE "C" NOT NULL,
    inputs         bytea NOT NULL,
    output         bytea,
    error          bytea,
    session        text COLLATE "C" NOT NULL,
    previous       text COLLATE "C" NOT NULL,
    has_budget     smallint NOT NULL,
    version        text COLLATE "C" NOT NULL
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
CREATE INDEX runs_created ON {schema}.runs (created_at, key);
CREATE INDEX runs_children ON {schema}.runs (parent, key) WHERE parent <> '';
CREATE INDEX runs_sessions ON {schema}.runs (workflow, session, key) WHERE session <> '';
CREATE INDEX runs_continued ON {schema}.runs (previous, key) WHERE previous <> '';

CREATE TABLE {schema}.run_tags (
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
    outcome  bytea,
    PRIMARY KEY (run, position)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.signals (
    id       bigint GENERATED BY DEFAULT AS IDENTITY,
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    run      bigint NOT NULL,
    name     text COLLATE "C" NOT NULL,
    sent_at  double precision NOT NULL,
    payload  bytea NOT NULL,
    position bigint,
    PRIMARY KEY (run, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE {schema}.signals ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX signals_new ON {schema}.signals (xid);
CREATE INDEX signals_ends ON {schema}.signals (run, position) WHERE position IS NOT NULL;

CREATE TABLE {schema}.signal_keys (
    run   bigint NOT NULL,
    dedup text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, dedup)
);

CREATE TABLE {schema}.links (
    parent   bigint NOT NULL,
    position bigint NOT NULL,
    child    bigint NOT NULL,
    awaited  smallint NOT NULL,
    PRIMARY KEY (parent, position)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX links_child ON {schema}.links (child, awaited, parent, position);

CREATE TABLE {schema}.usages (
    run               bigint PRIMARY KEY,
    above             bigint,
    calls             bigint NOT NULL,
    input_tokens      bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    nano_usd          bigint NOT NULL,
    unpriced          bigint NOT NULL,
    seconds           double precision NOT NULL,
    reserved_calls    bigint NOT NULL,
    reserved_tokens   bigint NOT NULL,
    reserved_nano_usd bigint NOT NULL,
    budget            text COLLATE "C",
    short             text COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX usages_short ON {schema}.usages (run) WHERE short <> '';

CREATE TABLE {schema}.reservations (
    run      bigint NOT NULL,
    position bigint NOT NULL,
    calls    bigint NOT NULL,
    tokens   bigint NOT NULL,
    nano_usd bigint NOT NULL,
    PRIMARY KEY (run, position)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.blobs (
    hash bytea PRIMARY KEY,
    size bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE {schema}.blobs ALTER data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.approvals (
    id          text COLLATE "C" PRIMARY KEY,
    number      bigint GENERATED BY DEFAULT AS IDENTITY,
    run         bigint NOT NULL,
    position    bigint NOT NULL,
    state       text COLLATE "C" NOT NULL,
    asked_at    double precision NOT NULL,
    expires_at  double precision,
    asked_of    text COLLATE "C" NOT NULL,
    reminders   bigint NOT NULL,
    reminded_at double precision,
    answered_by text COLLATE "C" NOT NULL,
    answered_at double precision,
    withdrawn_in bigint NOT NULL,
    question    text COLLATE "C" NOT NULL,
    form        bytea NOT NULL,
    arguments   bytea NOT NULL,
    answer      bytea
);
CREATE INDEX approvals_asked ON {schema}.approvals (run, position);
CREATE INDEX approvals_open ON {schema}.approvals (asked_at, number) WHERE state = 'open';

CREATE TABLE {schema}.notices (
    id       bigint GENERATED BY DEFAULT AS IDENTITY,
    run      bigint NOT NULL,
    position bigint NOT NULL,
    part     text COLLATE "C" NOT NULL,
    number   bigint NOT NULL,
    stays    smallint NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    at       double precision NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (run, id),
    UNIQUE (run, position, part, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE {schema}.notices ALTER data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.pruned (
    key    bigint PRIMARY KEY,
    size   bigint NOT NULL,
    inputs bytea,
    output bytea,
    error  bytea
);
CREATE INDEX runs_large_inputs ON {schema}.runs (inputs) WHERE octet_length(inputs) = 33;
CREATE INDEX runs_large_output ON {schema}.runs (output) WHERE octet_length(output) = 33;
CREATE INDEX runs_large_error ON {schema}.runs (error) WHERE octet_length(error) = 33;
CREATE INDEX records_large_payload ON {schema}.records (payload) WHERE octet_length(payload) = 33;
CREATE INDEX signals_large_payload ON {schema}.signals (payload) WHERE octet_length(payload) = 33;
CREATE INDEX approvals_large_form ON {schema}.approvals (form) WHERE octet_length(form) = 33;
CREATE INDEX approvals_large_arguments ON {schema}.approvals (arguments) WHERE octet_length(arguments) = 33;
CREATE INDEX approvals_large_answer ON {schema}.approvals (answer) WHERE octet_length(answer) = 33;

CREATE TABLE {schema}.memories (
    id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    namespace  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    value      bytea NOT NULL,
    text       text COLLATE "C" NOT NULL,
    size       bigint NOT NULL,
    UNIQUE (namespace, key)
);
CREATE TABLE {schema}.memory_words (
    word   text COLLATE "C" NOT NULL,
    space  bytea NOT NULL,
    memory bigint NOT NULL,
    times  bigint NOT NULL,
    PRIMARY KEY (word, space, memory) INCLUDE (times)
);
CREATE INDEX memory_words_of ON {schema}.memory_words (memory);
CREATE TABLE {schema}.memory_totals (
    slot     smallint PRIMARY KEY,
    memories bigint NOT NULL,
    size     bigint NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE {schema}.switches (
    workflow  text COLLATE "C" PRIMARY KEY,
    off_since double precision NOT NULL
);

CREATE TABLE {schema}.workers (
    id             bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    token          text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    host           text COLLATE "C" NOT NULL,
    pid            bigint NOT NULL,
    state          text COLLATE "C" NOT NULL,
    workflows      text COLLATE "C" NOT NULL,
    queues         text COLLATE "C",
    started_at     double precision NOT NULL,
    lease_until    double precision NOT NULL,
    beat_at        double precision NOT NULL,
    server_started double precision
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX workers_live ON {schema}.workers (id) WHERE state = 'live';

CREATE TABLE {schema}.workflows (
    name        text COLLATE "C" PRIMARY KEY,
    parameters  text COLLATE "C" NOT NULL,
    id_template text COLLATE "C",
    queue       text COLLATE "C" NOT NULL,
    timeout     double precision,
    tags        text COLLATE "C" NOT NULL,
    budget      text COLLATE "C",
    is_agent    smallint NOT NULL,
    max_deliveries bigint NOT NULL,
    announced_at double precision NOT NULL
);

CREATE TABLE {schema}.schedules (
    name        text COLLATE "C" PRIMARY KEY,
    workflow    text COLLATE "C" NOT NULL,
    timing      text COLLATE "C" NOT NULL,
    catch_up    text COLLATE "C" NOT NULL,
    most        bigint NOT NULL,
    overlap     text COLLATE "C" NOT NULL,
    by_code     smallint NOT NULL,
    options     text COLLATE "C" NOT NULL,
    inputs      bytea NOT NULL,
    created_at  double precision NOT NULL,
    fired_up_to double precision NOT NULL,
    paused_at   double precision,
    last_run    text COLLATE "C" NOT NULL DEFAULT '',
    skipped     double precision
);
CREATE TABLE {schema}.announcements (
    schedule text COLLATE "C" NOT NULL,
    worker   bigint NOT NULL,
    PRIMARY KEY (schedule, worker)
);

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

MIGRATIONS: tuple[Migration, ...] = (Migration(_1_INITIAL, 1),)
"""``MIGRATIONS[n]`` brings version n to version n + 1; version 0 is a schema without tables, or none."""

VERSION = len(MIGRATIONS)

_TABLES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY c.relname <> 'meta', c.relname LIMIT 4
"""
_WHO = "SELECT current_user::text, current_database()::text"
_SET = "INSERT INTO {}.meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

Connection = psycopg.Connection[Any]


def migrate(connection: Connection, schema: str) -> None:
    """Bring ``schema`` up to date. Blocking; the connection is in autocommit mode, and in no transaction.

    Raises ``StoreSchemaError``, ``StoreCorrupt``, ``StoreReadOnly`` or what psycopg has to say.
    """
    if check(connection, schema) >= VERSION:
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"holdfast {schema}",))
            version = check(connection, schema)  # somebody else may have been quicker
            if version < VERSION:
                _carry_out(connection, schema, version)
    except errors.InsufficientPrivilege as error:
        raise _not_allowed(connection, schema, error) from error


def check(connection: Connection, schema: str) -> int:
    """The version of ``schema``, 0 if there is none yet. One that this Holdfast cannot use is refused."""
    tables = [row[0] for row in connection.execute(_TABLES, (schema,))]
    if not tables:
        return 0
    told = _meta(connection, schema) if tables[0] == "meta" else {}
    try:
        version, compatible_from = int(told["version"]), int(told["compatible_from"])
    except (KeyError, ValueError):
        raise StoreCorrupt(
            f"the schema {schema} belongs to another program: it holds {', '.join(tables)}, and no table of Holdfast's "
            f"that tells its version. Holdfast keeps its runs in a schema of their own: choose another namespace, or "
            f"another database."
        ) from None
    if compatible_from > VERSION:
        raise StoreSchemaError(
            f"the schema {schema} has version {version}, which can be used by a Holdfast that knows version "
            f"{compatible_from} or higher, and this one knows versions up to {VERSION}: a newer Holdfast has migrated "
            f"it. Upgrade this one (pip install -U holdfast), or choose another namespace."
        )
    return version


def ddl(schema: str, role: str | None = None) -> str:
    """All statements that make a new ``schema`` as text, for somebody who may run them.

    ``role`` is the user that Holdfast connects as, if it is another one: it gets the rights that it needs.
    """
    name = quoted(schema)
    lines = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {name};"]
    lines += [migration.statements.replace("{schema}", name).strip() for migration in MIGRATIONS]
    lines += [f"INSERT INTO {name}.meta (name, value) VALUES ('{key}', '{value}');" for key, value in _marks()]
    if role is not None:
        lines.append(grants(schema, role))
    return "\n".join([*lines, "COMMIT;", ""])


def grants(schema: str, role: str) -> str:
    """The rights that a user needs who did not make the tables."""
    name, to = quoted(schema), quoted(role)
    return "\n".join(
        [
            f"GRANT USAGE ON SCHEMA {name} TO {to};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {to};",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {to};",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {name} TO {to};",
        ]
    )


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return sql.Identifier(name).as_string(None)


def _marks() -> list[tuple[str, str]]:
    return [("version", str(VERSION)), ("compatible_from", str(MIGRATIONS[-1].compatible_from))]


def _meta(connection: Connection, schema: str) -> dict[str, str]:
    try:
        return dict(connection.execute(sql.SQL("SELECT name, value FROM {}.meta").format(sql.Identifier(schema))))
    except errors.UndefinedColumn:
        return {}
    except errors.InsufficientPrivilege as error:
        raise _not_allowed(connection, schema, error) from error


def _carry_out(connection: Connection, schema: str, version: int) -> None:
    name = sql.Identifier(schema)
    if version == 0 and not connection.execute("SELECT to_regnamespace(%s)", (quoted(schema),)).fetchall()[0][0]:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    for migration in MIGRATIONS[version:]:
        connection.execute(cast(LiteralString, migration.statements.replace("{schema}", quoted(schema))))
    for mark in _marks():
        connection.execute(sql.SQL(_SET).format(name), mark)


def _not_allowed(connection: Connection, schema: str, error: errors.InsufficientPrivilege) -> StoreError:
    user, database = connection.execute(_WHO).fetchall()[0]
    what = error.diag.message_primary or str(error)
    return StoreReadOnly(
        f"the user {user} may not make or use the tables of Holdfast in the schema {schema} of the database {database} "
        f"({what}). Either let it make them:\n    GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(user)};\n"
        f"or have somebody who may do so run what this prints:\n"
        f'    python -c "from holdfast.stores.postgres.migrations import ddl; print(ddl({schema!r}, {user!r}))"\n'
        f"If the tables are there already, what is missing is this:\n"
        + "\n".join(f"    {line}" for line in grants(schema, user).splitlines())
    )
