"""Creating and migrating a schema: by which user, next to which processes, and what is refused."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from waits import wait_until_sync

pytest.importorskip("psycopg")

import psycopg
from postgres_server import database
from store_values import append, start_claimed_run

from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreReadOnly, StoreSchemaError, StoreUnavailable
from holdfast.stores.operations import OpStatus
from holdfast.stores.postgres import PgStore, migrations
from holdfast.stores.postgres.connections import Connection, connect
from holdfast.stores.postgres.migrations import ddl, migrate, quote_identifier, validate_schema_version
from holdfast.stores.sql.schema import BASELINE_VERSION, MIGRATIONS, Migration, latest_version

VERSION = latest_version()
NEXT = Migration(
    "ALTER TABLE @runs ADD COLUMN colour text NOT NULL DEFAULT 'blue';",
    BASELINE_VERSION,
    "CREATE INDEX runs_colour ON @runs (colour); CREATE INDEX runs_colour_seed ON @runs (colour, seed);",
)


@pytest.fixture
def url() -> Iterator[str]:
    with database(empty=True) as url:
        yield url


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    connection = connect(url)
    yield connection
    connection.close()


def shape(connection: Connection, schema: str) -> list[Any]:
    """All that there is in a schema, in PostgreSQL's own words."""
    connection.execute(f"SET search_path = {schema}")  # so that the name of the schema is left out of them
    columns = connection.execute(
        "SELECT c.relname, c.relkind, c.reloptions, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "a.attstorage, a.attidentity, co.collname, pg_get_expr(d.adbin, d.adrelid) FROM pg_class c "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "LEFT JOIN pg_collation co ON co.oid = a.attcollation "
        "LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum "
        "WHERE c.relnamespace = %s::regnamespace ORDER BY c.relname, a.attname",
        (schema,),
    ).fetchall()
    indexes = connection.execute(
        "SELECT indexname, regexp_replace(indexdef, ' ON \\w+\\.', ' ON ') FROM pg_indexes WHERE schemaname = %s "
        "ORDER BY indexname",
        (schema,),
    ).fetchall()
    functions = connection.execute(
        "SELECT proname, replace(prosrc, %s, ''), provolatile FROM pg_proc WHERE pronamespace = %s::regnamespace",
        (quote_identifier(schema), schema),
    ).fetchall()
    triggers = connection.execute(
        "SELECT tgname, tgrelid::regclass::text, tgtype, tgnewtable, tgoldtable FROM pg_trigger "
        "WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = %s::regnamespace) ORDER BY tgname",
        (schema,),
    ).fetchall()
    connection.execute("RESET search_path")
    assert columns
    assert indexes
    assert functions
    assert triggers
    return [columns, indexes, functions, triggers]


# Coming to be


def test_what_a_person_is_given_to_run_makes_the_same(connection: Connection):
    migrate(connection, "holdfast")
    connection.execute(ddl("by_hand"))  # type: ignore[arg-type]
    assert shape(connection, "holdfast") == shape(connection, "by_hand")
    assert validate_schema_version(connection, "by_hand") == VERSION
    migrate(connection, "by_hand")


def test_an_existing_empty_schema_is_used(connection: Connection):
    connection.execute("CREATE SCHEMA holdfast")
    assert validate_schema_version(connection, "holdfast") == 0
    migrate(connection, "holdfast")
    assert validate_schema_version(connection, "holdfast") == VERSION


def test_a_fleet_that_starts_at_once_makes_one_schema(url: str):
    def open_it(_: int) -> int:
        connection = connect(url)
        migrate(connection, "holdfast")
        version = validate_schema_version(connection, "holdfast")
        connection.close()
        return version

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(open_it, range(12))) == [VERSION] * 12


def test_who_waits_for_another_who_migrates_says_so(url: str, connection: Connection, monkeypatch, caplog):
    monkeypatch.setattr(migrations, "_LOG_WAIT_AFTER_S", 0.0)
    lock = ("holdfast acme",)
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", lock)
    with connect(url) as second, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(migrate, second, "acme")
        wait_until_sync(lambda: "another process that brings the schema acme up to date" in caplog.text)
        connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)
        waiting.result()
    assert validate_schema_version(connection, "acme") == VERSION
    assert caplog.text.count("another process") == 1


def test_a_migration_that_fails_leaves_nothing_behind(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, Migration("SELECT 1 / 0;", BASELINE_VERSION)))
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(connection, "holdfast")
    assert validate_schema_version(connection, "holdfast") == 0


# From an older version


@pytest.fixture
def older(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """The database of the release before, with a run in it."""
    migrate(connection, "holdfast")
    connection.execute(
        "INSERT INTO holdfast.runs (key, id, workflow, queue, state, epoch, max_deliveries, ready_state, priority, "
        "result_claim, python_version, created_at, clock_started_at, parent, forked_from, rewind_points, digest, seed, "
        "tags, "
        "inputs, session, "
        "previous_run, has_budget, version, queue_key, due_state, turn, dedup_key, is_debounced, is_delivery) VALUES "
        "(1, 'r', 'etl', "
        "'q', 'pending', 0, 3, 1, 0, 0, '', 1, 1, '', '', '[]', '', '', '[]', '1', '', '', 0, '', '', 1, 0, '', 0, 0)"
    )
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT))
    return connection


def is_up_to_date(connection: Connection) -> bool:
    assert validate_schema_version(connection, "holdfast") == VERSION + 1
    migrate(connection, "other")
    assert connection.execute("SELECT id, colour FROM holdfast.runs").fetchall() == [("r", "blue")]
    invalid = connection.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone()
    return shape(connection, "holdfast") == shape(connection, "other") and invalid == (0,)


@pytest.mark.parametrize("large", [0, migrations.LARGE_TABLE_BYTES], ids=["large", "small"])
def test_an_older_schema_is_brought_up_to_date(
    older: Connection, url: str, monkeypatch: pytest.MonkeyPatch, large: int
):
    """Also by a whole fleet at once, and also if its tables are large, so that indexes are made while others write."""
    monkeypatch.setattr(migrations, "LARGE_TABLE_BYTES", large)

    def open_it(_: int) -> None:
        connection = connect(url)
        migrate(connection, "holdfast")
        connection.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_it, range(6)))
    assert is_up_to_date(older)


def test_a_migration_of_large_tables_that_was_interrupted_is_finished(
    older: Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(migrations, "LARGE_TABLE_BYTES", 0)
    broken = NEXT._replace(indexes=NEXT.indexes.replace("runs_colour_seed ON @", "runs_colour_seed ON @no_"))
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(psycopg.Error):
        migrate(older, "holdfast")
    assert validate_schema_version(older, "holdfast") == VERSION
    older.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.runs_colour'::regclass")
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT))
    migrate(older, "holdfast")
    assert is_up_to_date(older)


def test_what_a_person_is_given_to_run_brings_an_older_schema_up_to_date(older: Connection):
    older.execute(ddl("holdfast", version=VERSION))  # type: ignore[arg-type]
    assert is_up_to_date(older)


def test_a_schema_from_before_the_first_release_is_refused(connection: Connection):
    migrate(connection, "holdfast")
    connection.execute("UPDATE holdfast.meta SET value = '10' WHERE name = 'version'")
    with pytest.raises(StoreSchemaError, match=r"schema holdfast was made by a Holdfast before version 0\.2"):
        migrate(connection, "holdfast")


# Runs by day


@pytest.fixture
def baseline(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """The database of the first release, with runs in it."""
    with monkeypatch.context() as first_release:
        first_release.setattr(migrations, "MIGRATIONS", MIGRATIONS[:1])
        migrate(connection, "holdfast")
    insert_runs(connection, range(1, 4))
    return connection


def insert_runs(connection: Connection, keys: Iterable[int], day: int | None = None) -> None:
    """Runs of the day before that of their key, or of this day, as a Holdfast writes them that knows no counters."""
    connection.execute(
        "INSERT INTO holdfast.runs (key, id, workflow, queue, state, epoch, max_deliveries, priority, result_claim, "
        "python_version, created_at, clock_started_at, parent, forked_from, rewind_points, digest, seed, tags, inputs) "
        "SELECT k, 'run-' || k, 'etl', 'q', 'completed', 1, 3, 0, 0, '', 86400 * coalesce(%s, k) - 0.001, 1, '', '', "
        "'[]', '', '', '[]', '1' FROM unnest(%s::bigint[]) k",
        (None if day is None else day + 1, [*keys]),
    )


def read_daily_runs(connection: Connection) -> dict[int, int]:
    return dict(
        connection.execute(
            "SELECT day, sum(run_count)::int FROM holdfast.daily_runs GROUP BY day HAVING sum(run_count) <> 0"
        ).fetchall()
    )


@pytest.mark.parametrize("large", [0, migrations.LARGE_TABLE_BYTES], ids=["large", "small"])
def test_runs_from_before_the_counters_are_counted(baseline: Connection, monkeypatch: pytest.MonkeyPatch, large: int):
    monkeypatch.setattr(migrations, "LARGE_TABLE_BYTES", large)
    migrate(baseline, "holdfast")
    assert read_daily_runs(baseline) == {0: 1, 1: 1, 2: 1}
    insert_runs(baseline, [4])
    baseline.execute("DELETE FROM holdfast.runs WHERE key = 1")
    assert read_daily_runs(baseline) == {1: 1, 2: 1, 3: 1}


def test_runs_that_come_and_go_while_earlier_ones_are_counted(baseline: Connection, monkeypatch: pytest.MonkeyPatch):
    """The migration is interrupted before the runs are counted, and again afterwards."""
    monkeypatch.setattr(migrations, "LARGE_TABLE_BYTES", 0)
    counting = MIGRATIONS[1]
    interrupted = (
        counting._replace(backfill="SELECT 1 / 0;"),
        counting._replace(indexes="CREATE INDEX x ON @runs ((1 / (key - key)));"),
    )
    for new_key, broken in enumerate(interrupted, 4):
        monkeypatch.setattr(migrations, "MIGRATIONS", (MIGRATIONS[0], broken))
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(baseline, "holdfast")
        assert validate_schema_version(baseline, "holdfast") == BASELINE_VERSION
        baseline.execute("DELETE FROM holdfast.runs WHERE key = %s", (new_key - 3,))
        insert_runs(baseline, [new_key])
    monkeypatch.setattr(migrations, "MIGRATIONS", MIGRATIONS)
    migrate(baseline, "holdfast")
    assert validate_schema_version(baseline, "holdfast") == VERSION
    assert read_daily_runs(baseline) == {2: 1, 3: 1, 4: 1}


def test_counting_a_run_never_waits_for_another_transaction(url: str, baseline: Connection):
    migrate(baseline, "holdfast")
    with connect(url) as first, connect(url) as second:
        for place in (first, second):
            place.execute("SET lock_timeout = '1s'")
            place.execute("BEGIN")
        insert_runs(first, [10], day=7)
        insert_runs(second, [11], day=8)
        insert_runs(second, [12], day=7)
        insert_runs(first, [13, 14], day=8)
        first.execute("COMMIT")
        second.execute("COMMIT")
    assert read_daily_runs(baseline) == {0: 1, 1: 1, 2: 1, 7: 2, 8: 3}
    for key in range(20, 30):
        insert_runs(baseline, [key], day=7)
    rows = baseline.execute("SELECT count(*) FROM holdfast.daily_runs WHERE day = 7").fetchone()
    assert rows == (2,), "rows that nobody has locked are used again"


# The columns of records


def read_types(connection: Connection) -> dict[str, str]:
    return dict(
        connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = 'holdfast.records'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
    )


def test_a_schema_without_records_gets_narrow_columns(baseline: Connection):
    assert read_types(baseline)["seq"] == "bigint"
    migrate(baseline, "holdfast")
    types = read_types(baseline)
    assert types["seq"] == types["position"] == "integer"
    assert [*types][:3] == ["run", "at", "started_at"], "without padding"


@pytest.mark.parametrize("reason", ["records", "rights"])
def test_records_and_granted_rights_are_left_alone(
    url: str, baseline: Connection, unprivileged: tuple[str, str], reason: str
):
    role, _ = unprivileged
    if reason == "rights":
        baseline.execute(f"GRANT SELECT ON holdfast.records TO {role}")  # type: ignore[arg-type]
    else:
        baseline.execute(
            "INSERT INTO holdfast.records (run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, "
            "name, preview) VALUES (1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 'step', '')"
        )
    migrate(baseline, "holdfast")
    assert read_types(baseline)["seq"] == "bigint"

    async def use() -> None:
        store = PgStore(url)
        await store.open()
        run = await start_claimed_run(store)
        assert await store.commit([append(run, 0), append(run, 1)]) == [OpStatus.DONE] * 2
        [history] = await store.get_histories([run.key])
        assert [record.seq for record in history.records] == [0, 1]
        await store.close()

    asyncio.run(use())


# Beside older ones


@pytest.fixture
def newer(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The database of a Holdfast that is one version ahead."""
    migrate(connection, "holdfast")
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT))
    return monkeypatch


def test_a_newer_holdfast_migrates_and_an_older_one_continues(connection: Connection, newer: pytest.MonkeyPatch):
    migrate(connection, "holdfast")
    assert validate_schema_version(connection, "holdfast") == VERSION + 1
    assert connection.execute("SELECT count(colour) FROM holdfast.runs").fetchone() == (0,)
    newer.undo()
    migrate(connection, "holdfast")
    assert validate_schema_version(connection, "holdfast") == VERSION + 1, "it was not taken back"


def test_an_older_holdfast_is_refused_when_it_would_do_harm(connection: Connection, newer: pytest.MonkeyPatch):
    newer.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT._replace(compatible_from=VERSION + 1)))
    migrate(connection, "holdfast")
    newer.undo()
    with pytest.raises(
        SchemaTooNew, match=f"knows version {VERSION + 1} or higher of it, .* versions up to {VERSION}: a newer"
    ):
        migrate(connection, "holdfast")


# What is refused


@pytest.mark.parametrize("tables", ["CREATE TABLE s.users (id int)", "CREATE TABLE s.meta (id int)"])
def test_the_schema_of_another_program_is_left_alone(connection: Connection, tables: str):
    connection.execute("CREATE SCHEMA s")
    connection.execute(tables)  # type: ignore[arg-type]
    with pytest.raises(StoreCorrupt, match=r"schema s belongs to another program: it holds (users|meta), and"):
        migrate(connection, "s")
    found = connection.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 's'::regnamespace").fetchone()
    assert found == (1,)


@pytest.fixture
def unprivileged(url: str, connection: Connection) -> Iterator[tuple[str, str]]:
    """A user without any rights, and a URL to connect as that user."""
    name = f"nobody_{secrets.token_hex(4)}"
    connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")  # type: ignore[arg-type]
    parts = urlsplit(url)
    yield name, url.replace(parts.netloc, f"{name}:x@{parts.netloc.rpartition('@')[2]}", 1)
    connection.execute(f"DROP OWNED BY {name}")  # type: ignore[arg-type]
    connection.execute(f"DROP ROLE {name}")  # type: ignore[arg-type]


def test_a_user_who_may_not_create_tables_gets_the_statements_to_run(
    connection: Connection, unprivileged: tuple[str, str]
):
    name, url = unprivileged
    theirs = connect(url)
    with pytest.raises(StoreReadOnly, match="may not make or use the tables") as refused:
        migrate(theirs, "holdfast")
    told = str(refused.value)
    assert f'GRANT CREATE ON DATABASE "{theirs.info.dbname}" TO "{name}";' in told
    assert f"ddl('holdfast', '{name}')" in told
    connection.execute(ddl("holdfast", name))  # type: ignore[arg-type]
    migrate(theirs, "holdfast")
    theirs.execute("SELECT nextval('holdfast.run_keys')")
    theirs.execute("INSERT INTO holdfast.disabled_workflows VALUES ('w', 1, '', '', 0)")
    theirs.execute("SELECT holdfast.error_words('{}')")
    theirs.close()


def test_a_user_who_may_not_use_the_tables_gets_the_grants_to_run(
    connection: Connection, unprivileged: tuple[str, str]
):
    _, url = unprivileged
    migrate(connection, "holdfast")
    theirs = connect(url)
    with pytest.raises(StoreReadOnly) as refused:
        migrate(theirs, "holdfast")
    grants = [line.strip() for line in str(refused.value).splitlines() if line.strip().startswith("GRANT")]
    for grant in grants[1:]:
        connection.execute(grant)  # type: ignore[arg-type]
    migrate(theirs, "holdfast")
    theirs.close()


# A fleet of several versions


@pytest.fixture
def opened(url: str) -> Iterator[PgStore]:
    """A store with a loop of its own, that was opened before a newer Holdfast migrated the schema."""
    store = PgStore(url, poll_interval_s=0.0)
    with asyncio.Runner() as runner:
        runner.run(store.open())
        store.run = runner.run  # type: ignore[attr-defined]
        yield store
        runner.run(store.close())


def migrate_further(connection: Connection, compatible_from: int) -> None:
    """What a newer Holdfast would do."""
    statement = "UPDATE holdfast.meta SET value = %s WHERE name = %s"
    connection.execute(statement, (str(VERSION + 1), "version"))
    connection.execute(statement, (str(compatible_from), "compatible_from"))


def cut_all(connection: Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_a_store_that_connects_again_after_a_migration_refuses_everything(connection: Connection, opened: Any):
    run = opened.run(start_claimed_run(opened))
    migrate_further(connection, VERSION + 1)
    cut_all(connection)
    with pytest.raises(SchemaTooNew, match="a newer Holdfast has migrated it"):
        until_refused(lambda: opened.run(opened.commit([append(run, 0)])))
    with pytest.raises(SchemaTooNew):
        opened.workers.renew_lease(run.owner, 10.0)
    with pytest.raises(SchemaTooNew):
        opened.run(opened.get_run("r"))
    assert connection.execute("SELECT count(*) FROM holdfast.records").fetchone() == (0,)


def test_a_worker_whose_connections_outlive_a_migration_notices_at_its_next_poll(connection: Connection, opened: Any):
    run = opened.run(start_claimed_run(opened))
    migrate_further(connection, VERSION + 1)
    with pytest.raises(SchemaTooNew, match="a newer Holdfast has migrated it"):
        opened.run(opened.workers.reap_dead(run.owner))
    with pytest.raises(SchemaTooNew):
        opened.run(opened.commit([append(run, 0)]))


def test_a_store_continues_after_a_migration_that_only_adds(connection: Connection, opened: Any):
    run = opened.run(start_claimed_run(opened))
    migrate_further(connection, VERSION)
    cut_all(connection)
    until_refused(lambda: opened.run(opened.commit([append(run, 0)])))
    assert opened.run(opened.workers.reap_dead(run.owner)).worker_ids == ()
    assert opened.workers.renew_lease(run.owner, 10.0)


def until_refused(ask: Callable[[], Any]) -> Any:
    """Ask until there is a connection again."""

    def asked() -> Any:
        try:
            return ask()
        except StoreUnavailable:
            return None

    return wait_until_sync(asked)
