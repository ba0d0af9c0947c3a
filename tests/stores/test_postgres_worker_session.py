"""The worker session: locks, leases, and notifications, on a connection that may break at any time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_faults import Database, Pooler, Server
from postgres_server import database

from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.stores.postgres import worker_session
from holdfast.stores.postgres.connections import SERVER_STARTED_AT, Connection, connect
from holdfast.stores.postgres.worker_session import WorkerSession
from holdfast.stores.urls import redact_url
from waits import wait_until

pytestmark = pytest.mark.asyncio

CLASS = 7
CHANNEL = "holdfast news"  # an identifier that needs quotes
WORKER_CHANNEL = "holdfast workers"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(empty=True) as url:
        yield url


@pytest.fixture
def outside(url: str) -> Iterator[Connection]:
    """The connection of another client."""
    with connect(url) as connection:
        yield connection


class OpenSession:
    """A session, and what it reported."""

    def __init__(self, url: str) -> None:
        self.notifications: list[str | None] = []
        self.death_check_count = 0
        self.relocked: list[tuple[list[int], float]] = []
        self.loop = asyncio.get_running_loop()
        self.session = WorkerSession(
            lambda: Database(connect(url, durable=False)),
            redact_url(url),
            lock_class=CLASS,
            channels=[CHANNEL, "other"],
            worker_channel=WORKER_CHANNEL,
            on_notification=self.on_notification,
            on_relocked=self.on_relocked,
        )

    def on_notification(self, channel: str | None) -> None:
        assert asyncio.get_running_loop() is self.loop
        if channel == WORKER_CHANNEL:
            self.death_check_count += 1
        else:
            self.notifications.append(channel)

    def on_relocked(self, database: Database, workers: Collection[int], began: float) -> None:
        assert database.one("SELECT 1") == 1
        self.relocked.append((sorted(workers), began))

    async def pid(self) -> int:
        return await self.session.run(lambda d: d.one("SELECT pg_backend_pid()"))


@contextlib.asynccontextmanager
async def open_session(url: str) -> AsyncIterator[OpenSession]:
    opened = OpenSession(url)
    await opened.session.start()
    try:
        yield opened
    finally:
        opened.session.close()


def is_free(outside: Connection, worker: int) -> bool:
    """Whether a worker's lock is free."""
    row = outside.execute("SELECT pg_try_advisory_lock(%s::int4, %s::int4)", (CLASS, worker)).fetchone()
    if row == (True,):
        outside.execute("SELECT pg_advisory_unlock(%s::int4, %s::int4)", (CLASS, worker))
    return row == (True,)


def end(outside: Connection, pid: int) -> None:
    outside.execute("SELECT pg_terminate_backend(%s::int4, 5000)", (pid,))


def notify(outside: Connection, channel: str = CHANNEL) -> None:
    outside.execute("SELECT pg_notify(%s, '')", (channel,))


async def test_it_holds_locks_until_it_releases_them(url: str, outside: Connection) -> None:
    async with open_session(url) as opened:
        began = await opened.session.lock_worker(1)
        assert began == outside.execute(f"SELECT {SERVER_STARTED_AT}").fetchone()[0]  # type: ignore[index]
        assert await opened.session.lock_worker(1) == began  # again: no second lock
        assert await opened.session.lock_worker(2) == began
        assert not is_free(outside, 1)
        assert not is_free(outside, 2)
        await opened.session.unlock_worker(1)
        await opened.session.unlock_worker(3)
        assert is_free(outside, 1)
        assert not is_free(outside, 2)
    await wait_until(lambda: is_free(outside, 2))
    assert opened.relocked == []


async def test_a_lock_that_another_session_has_is_taken_when_it_is_free(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_session, "_RELOCK_DELAY_S", 0.02)
    outside.execute("SELECT pg_advisory_lock(%s::int4, 4)", (CLASS,))
    async with open_session(url) as opened:
        assert await opened.session.lock_worker(4) is None
        outside.execute("SELECT pg_advisory_unlock(%s::int4, 4)", (CLASS,))
        await wait_until(lambda: opened.relocked)
        assert opened.relocked[0][0] == [4]
        assert not is_free(outside, 4)


async def test_after_its_session_was_ended_it_locks_and_listens_again(url: str, outside: Connection) -> None:
    async with open_session(url) as opened:
        began = await opened.session.lock_worker(5)
        await opened.session.lock_worker(6)
        await opened.session.unlock_worker(6)
        end(outside, await opened.pid())
        await wait_until(lambda: opened.relocked)  # though nothing is asked of it
        assert opened.relocked == [([5], began)]
        assert not is_free(outside, 5)
        assert is_free(outside, 6)
        await wait_until(lambda: opened.session.is_listening)
        await wait_until(lambda: opened.notifications)
        assert set(opened.notifications) == {None}
        notify(outside)
        await wait_until(lambda: CHANNEL in opened.notifications)


async def test_a_session_that_ends_is_noticed_by_the_leader_and_a_leader_that_ends_by_the_others(url: str) -> None:
    async with open_session(url) as other, open_session(url) as last:
        async with open_session(url) as leader:
            for worker, opened in enumerate((leader, other, last), 31):
                await opened.session.lock_worker(worker)
                opened.session.notify(WORKER_CHANNEL)
                await wait_until(lambda: leader.death_check_count)
            await wait_until(lambda: leader.session.death_watch._held_locks == {31, 32, 33})
            assert (other.death_check_count, last.death_check_count) == (0, 0)
            checks = leader.death_check_count
            last.session.close()
            await wait_until(lambda: leader.death_check_count > checks)
        await wait_until(lambda: other.death_check_count)  # now it leads
        assert other.session.death_watch.is_leader


async def test_a_session_without_workers_stops_leading(url: str) -> None:
    async with open_session(url) as opened, open_session(url) as other:
        await opened.session.lock_worker(41)
        await wait_until(lambda: opened.session.death_watch.is_leader)
        await other.session.lock_worker(42)
        await opened.session.unlock_worker(41)
        await wait_until(lambda: other.session.death_watch.is_leader)
        assert not opened.session.death_watch.is_leader


async def test_reporting_a_lock_is_retried(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_session, "_RELOCK_DELAY_S", 0.02)
    async with open_session(url) as opened:
        await opened.session.lock_worker(8)
        report, failures = opened.on_relocked, [ValueError("first"), psycopg.errors.LockNotAvailable("second")]

        def fail_first(database: Database, workers: Collection[int], began: float) -> None:
            database.ask("BEGIN")
            if failures:
                raise failures.pop(0)
            database.ask("COMMIT")
            report(database, workers, began)

        opened.session._on_relocked = fail_first
        with caplog.at_level(logging.WARNING, "holdfast.stores"):
            end(outside, await opened.pid())
            await wait_until(lambda: opened.relocked)
        assert opened.relocked[0][0] == [8]
        assert not is_free(outside, 8)
        assert "first" in caplog.text
        pid = await opened.pid()
        await opened.session.unlock_worker(8)
        assert is_free(outside, 8)  # it was taken once only
        assert await opened.pid() == pid


async def test_notifications_of_others_arrive_and_its_own_do_not(url: str, outside: Connection) -> None:
    async with open_session(url) as opened, open_session(url) as other:
        opened.session.notify(CHANNEL)
        await wait_until(lambda: other.notifications)
        notify(outside, "other")
        await wait_until(lambda: "other" in opened.notifications)
        await wait_until(lambda: "other" in other.notifications)
        assert opened.notifications == ["other"]
        assert other.notifications == [CHANNEL, "other"]


async def test_notifications_arrive_while_it_does_work(url: str, outside: Connection) -> None:
    async with open_session(url) as opened:
        work = asyncio.create_task(opened.session.run(lambda d: (notify(outside), d.one("SELECT 1"))))
        assert (await work)[1] == 1
        await wait_until(lambda: opened.notifications == [CHANNEL])

        def wait_and_ask(d: Database) -> None:
            notify(outside, "other")
            d.connection.pgconn.consume_input()  # as any look at the connection does

        await opened.session.run(wait_and_ask)
        await wait_until(lambda: "other" in opened.notifications)


async def test_many_notifications_are_sent_as_two(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_NOTIFY_PAUSE_S", "MIN_NOTIFY_PAUSE_S"):
        monkeypatch.setattr(worker_session, name, 0.2)
    outside.execute("LISTEN many")
    async with open_session(url) as opened:
        opened.session.notify("many")
        assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1  # at once
        for _ in range(100):
            opened.session.notify("many")
            await asyncio.sleep(0)
        assert len(await asyncio.to_thread(lambda: list(outside.notifies(timeout=5, stop_after=1)))) == 1
        assert await asyncio.to_thread(lambda: list(outside.notifies(timeout=0.4))) == []


async def test_pending_notifications_are_sent_at_the_end(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_NOTIFY_PAUSE_S", "MIN_NOTIFY_PAUSE_S"):
        monkeypatch.setattr(worker_session, name, 100.0)
    outside.execute("LISTEN last")
    async with open_session(url) as opened:
        opened.session.notify("last")
        # Only then the next: work may be done before a notification is sent, and two that wait are sent as one.
        assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1
        opened.session.notify("last")  # this one has to wait
        for _ in range(2):
            await opened.session.run(lambda _: None)
        assert list(outside.notifies(timeout=0.1)) == []
    assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1


async def test_what_could_not_be_notified_is_notified_later(url: str, outside: Connection) -> None:
    async with open_session(url) as opened, open_session(url) as other:
        pid = await opened.pid()
        inside = threading.Event()

        def be_ended(d: Database) -> None:
            end(outside, pid)
            inside.set()

        work = asyncio.create_task(opened.session.run(be_ended))
        await asyncio.to_thread(inside.wait, 10)
        opened.session.notify(CHANNEL)
        await work
        await wait_until(lambda: CHANNEL in other.notifications)


async def test_other_threads_can_use_it_while_the_loop_is_blocked(url: str) -> None:
    async with open_session(url) as opened:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(opened.session.run_blocking(lambda d: d.one("SELECT 9"))))
        thread.start()
        thread.join(10)
        assert found == [9]


async def test_work_that_fails_raises_for_its_caller(url: str) -> None:
    async with open_session(url) as opened:
        pid = await opened.pid()

        def fail(d: Database) -> None:
            d.ask("BEGIN")
            d.ask("SELECT 1/0")

        with pytest.raises(psycopg.errors.DivisionByZero):
            await opened.session.run(fail)
        assert await opened.pid() == pid
        assert opened.notifications == []


async def test_it_waits_without_spinning(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    wait_for = worker_session._poll_readable

    def counted(*arguments: Any) -> Any:
        nonlocal turns
        turns += 1
        return wait_for(*arguments)

    monkeypatch.setattr(worker_session, "_poll_readable", counted)
    async with open_session(url) as opened:
        await opened.session.lock_worker(10)
        opened.session.notify("nobody")
        await asyncio.sleep(0.1)
        before = turns
        await asyncio.sleep(0.3)
        assert turns == before


async def test_an_unreachable_server_is_reported_when_starting(tmp_path: Path) -> None:
    opened, of_others = OpenSession(f"postgresql:///d?host={tmp_path}"), set(threading.enumerate())
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        await opened.session.start()
    assert not any(thread.name == "holdfast-worker-session" for thread in set(threading.enumerate()) - of_others)


async def test_a_permanent_error_is_reported_as_such_when_starting(url: str) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    with pytest.raises(StoreError, match="createdb") as raised:
        await OpenSession(url.replace(name, "no_such_database")).session.start()
    assert not isinstance(raised.value, StoreUnavailable)


async def test_once_closed_it_does_nothing(url: str) -> None:
    async with open_session(url) as opened:
        begun, release = threading.Event(), threading.Event()

        def slow(_: Database) -> str:
            begun.set()
            release.wait(10)
            return "done"

        first = asyncio.create_task(opened.session.run(slow))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(opened.session.run(slow))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(opened.session.close))
        await wait_until(lambda: opened.session._is_closing)
        release.set()
        assert await first == "done"
        with pytest.raises(StoreUnavailable, match="has been closed"):
            await second
        await closing
        with pytest.raises(StoreUnavailable, match="has been closed"):
            opened.session.run_blocking(lambda d: d.one("SELECT 1"))
        opened.session.notify(CHANNEL)
        assert not opened.session.is_listening


async def test_closing_in_the_middle_of_a_turn_logs_nothing_and_sends_the_last_notifications(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_session(url) as other, open_session(url) as opened:
        await opened.session.lock_worker(5)
        begun, release = threading.Event(), threading.Event()

        def slow(_: Database) -> None:
            begun.set()
            release.wait(10)
            opened.session.death_watch.expedite()  # so that this turn still needs the connection

        working = asyncio.create_task(opened.session.run(slow))
        await asyncio.to_thread(begun.wait, 10)
        opened.session.notify(CHANNEL)
        closing = asyncio.create_task(asyncio.to_thread(opened.session.close))
        await wait_until(lambda: opened.session._reconnecting._closed.is_set())
        release.set()
        await working
        await closing
        await wait_until(lambda: CHANNEL in other.notifications)
        assert caplog.records == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_is_refused_and_does_no_harm(url: str, outside: Connection) -> None:
    async with open_session(url) as opened:
        await opened.session.lock_worker(11)
        child = os.fork()
        if not child:
            status = 1
            try:
                opened.session.run_blocking(lambda d: d.one("SELECT 1"))
            except UsageError:
                opened.session.close()
                status = 0
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not is_free(outside, 11)
        notify(outside)
        await wait_until(lambda: CHANNEL in opened.notifications)


async def test_with_a_pooler_there_are_no_locks_and_no_notifications(url: str) -> None:
    pooler = Pooler(url)
    try:
        async with open_session(pooler.url) as opened, open_session(url) as direct:
            assert opened.session.is_pooled
            assert not opened.session.is_listening
            assert direct.session.is_listening
            assert await opened.session.lock_worker(12) is None
            await opened.session.unlock_worker(12)
            opened.session.notify(CHANNEL)
            await wait_until(lambda: direct.notifications == [CHANNEL])
            assert opened.session.run_blocking(lambda d: d.one("SELECT 1")) == 1
        assert opened.notifications == []
    finally:
        pooler.stop()


# A server of its own


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.mark.slow
async def test_after_a_restart_it_holds_its_locks_under_the_new_one(server: Server) -> None:
    async with open_session(server.url) as opened:
        began = await opened.session.lock_worker(1)
        restarting = asyncio.create_task(asyncio.to_thread(server.restart))
        await wait_until(lambda: not opened.session.is_listening)
        while not restarting.done():
            with contextlib.suppress(StoreUnavailable):  # and nothing else
                await opened.session.run(lambda d: d.one("SELECT 1"))
            await asyncio.sleep(0.005)
        await restarting
        await wait_until(lambda: opened.relocked)
        [(workers, again)] = opened.relocked
        assert workers == [1]
        assert again != began
        await wait_until(lambda: opened.session.is_listening)
        with connect(server.url) as outside:
            assert not is_free(outside, 1)
            notify(outside)
        await wait_until(lambda: CHANNEL in opened.notifications)


@pytest.mark.slow
async def test_a_crash_of_one_server_process_shows_though_the_server_is_the_same(server: Server) -> None:
    async with open_session(server.url) as opened:
        began = await opened.session.lock_worker(2)
        with connect(server.url) as before:
            started = before.execute("SELECT pg_postmaster_start_time()").fetchone()
            os.kill(before.info.backend_pid, signal.SIGKILL)
        await wait_until(lambda: opened.relocked)
        [(workers, again)] = opened.relocked
        assert workers == [2]
        assert again != began
        with connect(server.url) as after:
            assert after.execute("SELECT pg_postmaster_start_time()").fetchone() == started
