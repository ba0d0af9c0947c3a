"""Connections to PostgreSQL: URLs, how values travel, errors, and workers whose connection breaks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_faults import Database, Pooler, Server
from postgres_server import database

from holdfast.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaError,
    StoreUnavailable,
    UsageError,
)
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.adapters import BytesArray, FloatArray, IntArray, TextArray, escape_text, unescape_text
from holdfast.stores.postgres.connection_worker import MAX_ATTEMPTS, ConnectionWorker, ReconnectingConnection
from holdfast.stores.postgres.connections import Connection, connect, split_url
from holdfast.stores.postgres.errors import is_conflict, is_connection_lost, is_outcome_unknown, translate_error
from holdfast.stores.sql.database import WriteConflict
from holdfast.stores.urls import redact_url

ODD = ["", "plain", "\x00", "\x01", "\x02", "\x00\x01\x00", "a\x00b\x01c", "\x01\x01\x02", "żółć 🦀", "a\\b'\"{},\n"]
HALF = "half \ud83d of one"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(empty=True) as url:
        yield url


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection


def one(connection: Any, statement: str, *values: Any) -> Any:
    row = connection.execute(statement, values).fetchone()
    return row[0] if len(row) == 1 else row


def add(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


class TestValues:
    @pytest.mark.parametrize("text", ODD)
    @pytest.mark.parametrize("binary", [False, True])
    def test_text_comes_back_as_it_was(self, connection: Connection, text: str, binary: bool) -> None:
        for mark in ("%s", "%b", "%t"):
            assert connection.execute(f"SELECT {mark}::text", (text,), binary=binary).fetchone() == (text,)

    def test_columns_of_text_come_back_as_they_were(self, connection: Connection) -> None:
        texts = [*ODD, None, *ODD]
        for column in (TextArray(texts), TextArray(ODD), TextArray(["plain", "żółć"])):
            rows = connection.execute("SELECT * FROM unnest(%s) WITH ORDINALITY ORDER BY 2", (column,)).fetchall()
            assert [row[0] for row in rows] == column

    @given(st.text(), st.text())
    def test_escaped_texts_keep_their_order_and_hold_no_nul(self, one: str, other: str) -> None:
        assert (escape_text(one) < escape_text(other)) == (one < other)
        assert "\x00" not in escape_text(one)
        assert unescape_text(escape_text(one)) == one

    @given(st.text("\x00\x01\x02a", max_size=6), st.text("\x00\x01\x02a", max_size=6))
    def test_different_texts_stay_different_when_escaped(self, one: str, other: str) -> None:
        assert (escape_text(one) < escape_text(other)) == (one < other)
        assert unescape_text(escape_text(one)) == one

    @pytest.mark.parametrize("value", [HALF, TextArray(["fine", HALF])], ids=["alone", "in a column"])
    def test_half_a_character_is_refused_with_an_explanation(self, connection: Connection, value: Any) -> None:
        with pytest.raises(UsageError, match=r"half \\ud83d of one.*half of a character.*position 5"):
            connection.execute("SELECT %s", (value,))
        assert one(connection, "SELECT 1") == 1

    def test_whole_numbers_have_one_type_whatever_their_size(self, connection: Connection) -> None:
        for number in (0, 1, -1, 40_000, 2**40, 2**63 - 1, -(2**63)):
            assert one(connection, "SELECT pg_typeof(%s)::text, %s", number, number) == ("bigint", number)
        with pytest.raises((OverflowError, psycopg.DataError)):
            one(connection, "SELECT %s", 2**63)
        assert one(connection, "SELECT 1") == 1

    @pytest.mark.parametrize(
        ("column", "values", "name"),
        [
            (IntArray, [0, 1, -1, 2**63 - 1, -(2**63)], "bigint[]"),
            (FloatArray, [0.0, -1.5, 1.7e9, math.inf], "double precision[]"),
            (TextArray, ["", "a", "NULL", "{}"], "text[]"),
            (BytesArray, [b"", b"\x00\xff\\", b"x" * 100_000], "bytea[]"),
        ],
    )
    def test_columns_have_one_type_whatever_they_hold(
        self, connection: Connection, column: Any, values: list[Any], name: str
    ) -> None:
        for held in ([], [None], [None, *values], [*values, None], values, values * 100):
            assert one(connection, "SELECT pg_typeof(%s)::text, %s", column(held), column(held)) == (name, held)

    def test_one_statement_is_prepared_once(self, connection: Connection) -> None:
        connection.prepare_threshold = 1
        insert = "SELECT count(*) FROM unnest(%s, %s, %s, %s) q(a, b, c, d) WHERE a = %s"
        for n in (0, 1, 2, 300):
            held = [None] * n if n == 1 else [n] * n
            columns = IntArray(held), FloatArray(held), TextArray(map(str, range(n))), BytesArray([b"x"] * n)
            connection.execute(insert, (*columns, 2 ** (n // 5)))
        prepared = one(connection, "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%q(a, b%%'")
        assert prepared == 1

    def test_other_connections_are_left_alone(self, url: str, connection: Connection) -> None:
        with psycopg.connect(url) as foreign:
            assert one(foreign, "SELECT pg_typeof(%s)::text", 1) == "smallint"
            with pytest.raises(psycopg.DataError, match="NUL"):
                one(foreign, "SELECT %s::text", "\x00")


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "theirs", "namespace"),
        [
            ("postgresql://u:p@h:1/d", "postgresql://u:p@h:1/d", None),
            ("postgres:///d?namespace=a", "postgres:///d", "a"),
            ("postgresql:///d?host=/tmp&namespace=a&port=2", "postgresql:///d?host=/tmp&port=2", "a"),
            ("postgresql://a:1,b:2/d?x=%26&name%73pace=%61b", "postgresql://a:1,b:2/d?x=%26", "ab"),
            ("postgresql://u:p?namespace=no@h?namespace=yes", "postgresql://u:p?namespace=no@h", "yes"),
        ],
    )  # fmt: skip
    def test_the_namespace_is_taken_out(self, url: str, theirs: str, namespace: str | None) -> None:
        assert split_url(url) == (theirs, namespace)

    @pytest.mark.parametrize(
        "url", ["mysql://u:hush@h/d", "u:hush@h/d", "postgresql+psycopg://u:hush@h", "sqlite:///x"]
    )
    def test_other_urls_are_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match="postgresql://user:password@host") as raised:
            split_url(url)
        assert "hush" not in str(raised.value)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql://u:hush@h:1/d?sslmode=require", "postgresql://u:***@h:1/d?sslmode=require"),
            ("postgresql://u:hu%40sh@h", "postgresql://u:***@h"),
            ("postgresql://u:hush@hush@h/d", "postgresql://u:***@h/d"),
            ("postgresql://u:hush/hush@h/d", "postgresql://u:***@h/d"),
            ("postgresql://u:hush?hush@h/d", "postgresql://u:***@h/d"),
            ("postgresql://u:hush://hush@h/d", "postgresql://u:***@h/d"),
            ("postgresql://u@h/d", "postgresql://u@h/d"),
            ("postgresql://h:1/d?user=u@v", "postgresql://h:***@v"),  # in doubt
            ("postgresql:///d?password=hush&user=u@v", "postgresql:///d?password=***&user=u@v"),
            ("postgresql://h:1/d?user=u&password=hu@sh", "postgresql://h:1/d?user=u&password=***"),
            ("postgresql:///d?sslpassword=hush&oauth_client_secret=hush",
             "postgresql:///d?sslpassword=***&oauth_client_secret=***"),
        ],
    )  # fmt: skip
    def test_secrets_are_not_shown(self, url: str, shown: str) -> None:
        assert redact_url(url) == shown

    @pytest.mark.parametrize(
        ("rest", "said"),
        [
            ("u:hush%zz@h/d", "invalid percent-encoded token"),
            ("u:hush@h/d?sslmood=1", "sslmood"),
            ("u:hush@[::1/d", "IPv6"),
            ("u:hush@hush@127.0.0.1:1/d", "%40 (@)"),
            ("u:1/hush@127.0.0.1:1/d", "%2F (/)"),
            ("u:hush?hush/hush@127.0.0.1:1/d", "%3F (?)"),
            ("u:hush@127.0.0.1:1/d", "cannot be reached"),
            ("u@127.0.0.1:1/d?password=hu%zzsh", "invalid percent-encoded token"),
        ],
    )
    def test_errors_keep_secrets(self, rest: str, said: str) -> None:
        with pytest.raises((UsageError, StoreUnavailable)) as raised:
            connect(f"postgresql://{rest}")
        assert said in str(raised.value)
        assert "***" in str(raised.value)
        assert "hush" not in str(raised.value)
        assert "hu%zzsh" not in str(raised.value)

    def test_without_the_driver_the_error_says_what_to_install(self) -> None:
        program = "import sys; sys.modules['psycopg'] = None\nimport holdfast.stores.postgres"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert 'pip install "holdfast-agents[postgres]"' in done.stderr.splitlines()[-1]
        assert "UsageError" in done.stderr.splitlines()[-1]


class TestSettings:
    def test_a_session_has_its_own(self, url: str) -> None:
        with connect(
            add(url, "namespace=n"), application_name="holdfast test", lock_timeout_s=1.5, idle_timeout_s=3
        ) as ours:
            found = {
                name: one(ours, f"SHOW {name}")
                for name in ("lock_timeout", "idle_in_transaction_session_timeout", "application_name", "jit")
            }
            assert found == {
                "lock_timeout": "1500ms",
                "idle_in_transaction_session_timeout": "3s",
                "application_name": "holdfast test",
                "jit": "off",
            }
            assert (ours.is_pooled, ours.settings_sql) == (False, "")
            assert ours.autocommit

    def test_the_url_overrides_the_defaults_of_a_connection(self, url: str) -> None:
        with connect(add(url, "application_name=mine&connect_timeout=3")) as ours:
            assert one(ours, "SHOW application_name") == "mine"
            assert ours.info.get_parameters()["connect_timeout"] == "3"
            assert ours.info.get_parameters()["keepalives_idle"] == "10"

    @pytest.mark.parametrize(
        ("default", "used"), [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
    )
    def test_a_commit_is_on_disk_when_it_is_reported(self, default: str, used: str) -> None:
        with database(empty=True) as url:
            with connect(url) as first:
                name = one(first, "SELECT current_database()")
                first.execute(f"ALTER DATABASE {name} SET synchronous_commit = {default}")
            with connect(url) as ours, connect(url, durable=False) as careless:
                assert one(ours, "SHOW synchronous_commit") == used
                assert one(careless, "SHOW synchronous_commit") == "off"

    def test_defaults_that_would_break_guarantees_are_overridden(self) -> None:
        with database(empty=True) as url:
            with connect(url) as first:
                name = one(first, "SELECT current_database()")
                first.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
                first.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '1s'")
            with connect(url) as ours:
                assert one(ours, "SHOW transaction_isolation") == "read committed"
                assert one(ours, "SHOW idle_session_timeout") == "0"

    def test_an_old_server_is_refused(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "MIN_SERVER_VERSION", 99)
        with pytest.raises(StoreSchemaError, match="needs version 99 or later"):
            connect(url)

    def test_a_database_that_cannot_hold_every_text_is_refused(self, url: str) -> None:
        with connect(url) as ours:
            name = f"{one(ours, 'SELECT current_database()')}_latin"
            ours.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
            try:
                parts = psycopg.conninfo.conninfo_to_dict(url)
                with pytest.raises(StoreSchemaError, match="encoding LATIN1"):
                    connect(url.replace(str(parts["dbname"]), name))
            finally:
                ours.execute(f"DROP DATABASE {name}")

    def test_a_database_that_may_only_be_read_is_refused(self) -> None:
        with database(empty=True) as url:
            with connect(url) as first:
                name = one(first, "SELECT current_database()")
                first.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            with pytest.raises(StoreReadOnly, match="default_transaction_read_only"):
                connect(url)


class TestFaults:
    def meant(self, connection: Connection, statement: str) -> BaseException:
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(statement)
        return translate_error(raised.value, "THE-DB")

    def test_a_missing_database_or_table(self, connection: Connection) -> None:
        for statement in ("SELECT * FROM nothing", "SELECT nothing FROM pg_class", "CREATE TABLE nowhere.t ()"):
            error = self.meant(connection, statement)
            assert isinstance(error, StoreSchemaError)
            assert "THE-DB" in str(error)

    def test_missing_permissions(self, connection: Connection) -> None:
        connection.execute("CREATE SCHEMA closed; CREATE TABLE closed.t (); CREATE ROLE holdfast_nobody")
        try:
            connection.execute("SET ROLE holdfast_nobody")
            for statement in ("SELECT * FROM closed.t", "CREATE SCHEMA mine"):
                error = self.meant(connection, statement)
                assert isinstance(error, StoreSchemaError)
                assert "GRANT" in str(error)
        finally:
            connection.execute("RESET ROLE; DROP SCHEMA closed CASCADE; DROP ROLE holdfast_nobody")

    def test_a_read_only_database(self, connection: Connection) -> None:
        connection.execute("BEGIN READ ONLY")
        error = self.meant(connection, "CREATE TABLE t ()")
        connection.execute("ROLLBACK")
        assert isinstance(error, StoreReadOnly)
        assert "standby" in str(error)

    def test_rows_that_others_have_locked(self, url: str, connection: Connection) -> None:
        connection.execute("CREATE TABLE locked (n int)")
        connection.execute("BEGIN")
        connection.execute("LOCK locked")
        with connect(url, lock_timeout_s=0.05) as ours:
            assert isinstance(self.meant(ours, "SELECT * FROM locked"), StoreLocked)
        connection.execute("ROLLBACK")

    def test_an_idle_transaction_is_ended(self, url: str) -> None:
        with connect(url, idle_timeout_s=0.05) as ours:
            ours.execute("BEGIN")
            assert select.select([ours.fileno()], [], [], 10)[0]
            with pytest.raises(psycopg.Error) as raised:
                ours.execute("SELECT 1")
            assert is_connection_lost(raised.value)
            assert is_outcome_unknown(raised.value)
            assert isinstance(translate_error(raised.value, "d"), StoreUnavailable)

    def test_failed_authentication(self, url: str) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        with pytest.raises(StoreError, match="createdb") as raised:
            connect(url.replace(str(parts["dbname"]), "no_such_database"))
        assert not isinstance(raised.value, StoreUnavailable)
        with pytest.raises(StoreError, match="is not there"):
            connect(add(url, "user=no_such_user"))

    def test_too_many_connections(self, url: str, connection: Connection) -> None:
        connection.execute("CREATE ROLE holdfast_crowd LOGIN CONNECTION LIMIT 0")
        try:
            with pytest.raises(StoreUnavailable, match="takes no more connections"):
                connect(add(url, "user=holdfast_crowd"))
        finally:
            connection.execute("DROP ROLE holdfast_crowd")

    @pytest.mark.parametrize(
        ("error", "kind", "says"),
        [
            (psycopg.errors.DiskFull("x"), StoreFull, "no room left"),
            (psycopg.errors.DataCorrupted("x"), StoreCorrupt, "damaged"),
            (psycopg.errors.IndexCorrupted("x"), StoreCorrupt, "REINDEX"),
            (psycopg.errors.DeadlockDetected("x"), StoreLocked, "pg_stat_activity"),
            (psycopg.errors.SerializationFailure("x"), StoreLocked, "too long"),
            (psycopg.errors.QueryCanceled("x"), StoreUnavailable, "statement_timeout"),
            (psycopg.errors.CannotConnectNow("x"), StoreUnavailable, "cannot be reached"),
            (psycopg.errors.InvalidPassword("x"), StoreError, "refuses this user"),
            (psycopg.OperationalError("FATAL:  password authentication failed"), StoreError, "refuses this user"),
            (psycopg.errors.OutOfMemory("x"), StoreUnavailable, "at the moment"),
        ],
    )
    def test_rare_errors(self, error: psycopg.Error, kind: type[StoreError], says: str) -> None:
        meant = translate_error(error, "THE-DB")
        assert type(meant) is kind
        assert says in str(meant)
        assert "THE-DB" in str(meant)

    def test_which_errors_are_worth_a_retry(self) -> None:
        lost = [psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.ConnectionFailure]
        assert all(is_connection_lost(kind("x")) and is_outcome_unknown(kind("x")) for kind in lost)
        assert is_connection_lost(psycopg.OperationalError("server closed the connection unexpectedly"))
        assert not is_connection_lost(psycopg.errors.LockNotAvailable("x"))
        assert is_outcome_unknown(psycopg.errors.StatementCompletionUnknown("x"))
        assert is_conflict(psycopg.errors.DeadlockDetected("x"))
        assert not is_conflict(psycopg.errors.UniqueViolation("x"))

    def test_a_bug_stays_what_it_is(self, connection: Connection) -> None:
        for statement in ("SELEC", "SELECT 1/0", "SELECT 'a'::int", "SELECT no_such_function()"):
            error = self.meant(connection, statement)
            assert isinstance(error, psycopg.Error)
        assert isinstance(translate_error(ValueError("x"), "d"), ValueError)


class OpenedWorker:
    """A worker, and how often it connected."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.connect_count = 0
        self._connect = partial(connect, url, **settings)
        self.worker = ConnectionWorker(self.connect, redact_url(url), "test")

    def connect(self) -> Database:
        self.connect_count += 1
        return Database(self._connect())


@pytest.fixture
def opened(url: str) -> Iterator[OpenedWorker]:
    opened = OpenedWorker(url)
    yield opened
    opened.worker.close()


def kill(connection: Connection, pid: int) -> None:
    connection.execute("SELECT pg_terminate_backend(%s::int4, 5000)", (pid,))


@pytest.mark.asyncio
class TestConnectionWorkers:
    async def test_work_is_done_in_a_thread_that_is_made_when_needed(self, opened: OpenedWorker) -> None:
        assert opened.connect_count == 0
        name, answer = await opened.worker.run_in_thread(
            lambda d: (threading.current_thread().name, d.one("SELECT 42"))
        )
        assert (name, answer, opened.connect_count) == ("holdfast-test", 42, 1)
        assert opened.worker.run_blocking(lambda d: d.one("SELECT 43")) == 43

    async def test_the_loop_continues_meanwhile(self, opened: OpenedWorker) -> None:
        release = threading.Event()
        work = asyncio.create_task(opened.worker.run_in_thread(lambda _: release.wait(10)))
        await asyncio.sleep(0)
        assert not work.done()
        release.set()
        assert await work

    async def test_what_fails_leaves_no_transaction(self, opened: OpenedWorker) -> None:
        def fail(d: Database) -> None:
            d.ask("BEGIN")
            d.ask("SELECT 1/0")

        with pytest.raises(psycopg.errors.DivisionByZero):
            await opened.worker.run_in_thread(fail)
        assert await opened.worker.run_in_thread(lambda d: d.connection.info.transaction_status.name) == "IDLE"
        assert opened.connect_count == 1

    async def test_a_connection_left_in_a_pipeline_is_not_used_again(self, opened: OpenedWorker) -> None:
        left: list[Any] = []

        def fail(d: Database) -> None:
            left.append(d.connection.pipeline())
            left[0].__enter__()
            raise ValueError

        with pytest.raises(ValueError):
            await opened.worker.run_in_thread(fail)
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 1")) == 1
        assert opened.connect_count == 2
        with contextlib.suppress(psycopg.Error):
            left[0].__exit__(None, None, None)

    async def test_a_connection_that_broke_while_idle_is_replaced_silently(
        self, opened: OpenedWorker, connection: Connection
    ) -> None:
        kill(connection, await opened.worker.run_in_thread(lambda d: d.one("SELECT pg_backend_pid()")))
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 1")) == 1
        assert opened.connect_count == 2

    async def test_a_connection_that_breaks_at_work_is_reported_and_replaced(
        self, opened: OpenedWorker, connection: Connection
    ) -> None:
        def die(d: Database) -> None:
            kill(connection, d.one("SELECT pg_backend_pid()"))
            d.ask("SELECT 1")

        with pytest.raises(StoreUnavailable, match="nobody knows whether it was done"):
            await opened.worker.run_in_thread(die)
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 1")) == 1

    async def test_deadlocks_are_retried(self, url: str, opened: OpenedWorker, connection: Connection) -> None:
        connection.execute("CREATE TABLE dead (n int PRIMARY KEY, times int); INSERT INTO dead VALUES (1, 0), (2, 0)")
        other = OpenedWorker(url)
        both = threading.Barrier(2)
        committed = threading.Event()
        begun: list[int] = []

        def work(first: int, second: int, d: Database) -> None:
            d.ask("SET deadlock_timeout = '20ms'")
            d.ask("BEGIN")
            begun.append(first)
            if len(begun) > 2:  # a retry that locks its first row before the other session has it deadlocks again
                committed.wait(10)
            d.ask("UPDATE dead SET times = times + 1 WHERE n = %s", first)
            if len(begun) <= 2:
                both.wait(10)
            d.ask("UPDATE dead SET times = times + 1 WHERE n = %s", second)
            d.ask("COMMIT")
            committed.set()

        await asyncio.gather(
            opened.worker.run_in_thread(partial(work, 1, 2)), other.worker.run_in_thread(partial(work, 2, 1))
        )
        assert len(begun) == 3
        assert connection.execute("SELECT times FROM dead").fetchall() == [(2,), (2,)]
        other.worker.close()

    async def test_conflicts_are_retried_up_to_a_limit(
        self, opened: OpenedWorker, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.stores.postgres.connection_worker._CONFLICT_BACKOFF_S", 0)
        connection.execute("CREATE TABLE IF NOT EXISTS collided (n int)")
        times = 0

        def collide(until: int, d: Database) -> int:
            nonlocal times
            times += 1
            d.ask("BEGIN")
            d.ask("INSERT INTO collided VALUES (%s)", times)
            if times < until:
                raise WriteConflict
            d.ask("COMMIT")
            return times

        assert await opened.worker.run_in_thread(partial(collide, 3)) == 3
        assert connection.execute("SELECT n FROM collided").fetchall() == [(3,)]
        times = 0
        with pytest.raises(StoreLocked, match="times in a row"):
            await opened.worker.run_in_thread(partial(collide, 1000))
        assert times == MAX_ATTEMPTS

    async def test_a_server_out_of_reach_is_not_stormed(self, tmp_path: Path) -> None:
        away = OpenedWorker(f"postgresql:///d?host={tmp_path}")
        began = asyncio.get_running_loop().time()
        for _ in range(4):
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await away.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        assert away.connect_count == 4
        assert asyncio.get_running_loop().time() - began > 0.025 + 0.05 + 0.1
        away.worker.close()

    async def test_closing_ends_the_wait_for_a_server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.stores.postgres.connection_worker._MAX_RECONNECT_DELAY_S", 100)
        monkeypatch.setattr("holdfast.stores.postgres.connection_worker._RECONNECT_DELAY_BASE_S", 100)
        away = OpenedWorker(f"postgresql:///d?host={tmp_path}")
        with pytest.raises(StoreUnavailable):
            await away.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        waiting = asyncio.create_task(away.worker.run_in_thread(lambda d: d.one("SELECT 1")))
        await asyncio.sleep(0)
        away.worker.close()
        with pytest.raises(StoreUnavailable, match="has been closed"):
            await waiting

    async def test_a_closed_worker_reports_that_it_is_closed(self, opened: OpenedWorker) -> None:
        await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        opened.worker.close()
        opened.worker.close()
        with pytest.raises(StoreUnavailable, match="has been closed"):
            await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        with pytest.raises(StoreUnavailable, match="has been closed"):
            opened.worker.run_blocking(lambda d: d.one("SELECT 1"))

    async def test_cancelling_one_waiter_cancels_no_other(self, opened: OpenedWorker) -> None:
        release, began = threading.Event(), threading.Event()
        done: list[int] = []

        def slow(d: Database) -> None:
            began.set()
            release.wait(10)
            done.append(d.one("SELECT 1"))

        first = asyncio.create_task(opened.worker.run_in_thread(slow))
        second = asyncio.create_task(opened.worker.run_in_thread(lambda _: done.append(2)))
        await asyncio.to_thread(began.wait, 10)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        release.set()
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 3")) == 3
        assert done == [1]  # the second had not begun

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    async def test_a_forked_child_is_refused_and_does_no_harm(self, opened: OpenedWorker) -> None:
        await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        child = os.fork()
        if not child:
            status = 1
            try:
                opened.worker.run_blocking(lambda d: d.one("SELECT 1"))
            except UsageError as error:
                opened.worker.close()
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 1")) == 1
        assert opened.connect_count == 1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.mark.asyncio
@pytest.mark.slow
class TestServersThatChange:
    async def test_a_worker_survives_a_restart_of_the_server(self, server: Server) -> None:
        opened = OpenedWorker(server.url)
        await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        await asyncio.to_thread(server.restart)
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 2")) == 2
        opened.worker.close()

    async def test_a_standby_is_reported_and_of_several_servers_the_primary_is_used(
        self, server: Server, url: str
    ) -> None:
        opened = OpenedWorker(server.url)
        await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
        server.follow(True)
        try:
            with pytest.raises(StoreReadOnly, match="is a standby"):
                connect(server.url)
            with pytest.raises(StoreUnavailable, match="is a standby"):  # it was none before, and may be none again
                await opened.worker.run_in_thread(lambda d: d.one("SELECT 1"))
            parts = [psycopg.conninfo.conninfo_to_dict(at) for at in (server.url, url)]
            hosts = ",".join(str(part["host"]) for part in parts)
            with connect(f"postgresql:///{parts[1]['dbname']}?user=postgres&host={hosts}") as writer:
                assert one(writer, "SELECT pg_is_in_recovery()") is False
        finally:
            server.follow(False)
        assert await opened.worker.run_in_thread(lambda d: d.one("SELECT 1")) == 1
        opened.worker.close()


class TestPoolers:
    @pytest.fixture
    def pooled(self, url: str) -> Iterator[str]:
        pooler = Pooler(url)
        yield pooler.url
        pooler.stop()

    def test_a_pooler_is_recognized_and_its_sessions_get_no_settings(self, pooled: str) -> None:
        with connect(pooled, lock_timeout_s=1.5) as ours:
            assert ours.is_pooled
            assert ours.prepare_threshold is None
            assert one(ours, "SHOW lock_timeout") == "0"
            with ours.pipeline():
                ours.execute("BEGIN")
                ours.execute(ours.settings_sql.encode())
                inside = ours.execute("SHOW lock_timeout")
                ours.execute("COMMIT")
            assert inside.fetchone() == ("1500ms",)
            assert one(ours, "SHOW lock_timeout") == "0"

    def test_workers_work_through_a_pooler(self, pooled: str) -> None:
        opened = [OpenedWorker(pooled) for _ in range(4)]
        for number in range(20):
            for each in opened:
                found = each.worker.run_blocking(lambda d: d.ask("SELECT %s, %s", number, "\x00"))  # noqa: B023
                assert found == [(number, "\x00")]
        for each in opened:
            each.worker.close()


def test_a_server_that_stays_away_is_tried_about_once_a_second() -> None:
    def refuse() -> Any:
        raise AssertionError("nothing connects in this test")

    reconnecting = ReconnectingConnection(refuse, "postgresql://nowhere")
    for _ in range(2000):  # 2**1024 is not a float
        reconnecting.back_off()
    assert 0.4 < reconnecting.get_backoff_s() <= 1.0
