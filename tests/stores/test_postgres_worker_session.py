"""The keeper: session locks, leases, and news, on a connection that may break at any time."""

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
from holdfast.stores.postgres import worker_session as keeping
from holdfast.stores.postgres.connections import Connection, connect
from holdfast.stores.postgres.worker_session import SERVER_STARTED_AT, WorkerSession
from holdfast.stores.urls import redact_url
from waits import wait_until

pytestmark = pytest.mark.asyncio

CLASS = 7
NEWS = "holdfast news"  # an identifier that needs quotes


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(empty=True) as url:
        yield url


@pytest.fixture
def outside(url: str) -> Iterator[Connection]:
    """Somebody else."""
    with connect(url) as connection:
        yield connection


class Kept:
    """A keeper, and what it told."""

    def __init__(self, url: str) -> None:
        self.heard: list[str | None] = []
        self.retaken: list[tuple[list[int], float]] = []
        self.loop = asyncio.get_running_loop()
        self.keeper = WorkerSession(
            lambda: Database(connect(url, durable=False)),
            redact_url(url),
            lock_class=CLASS,
            channels=[NEWS, "other"],
            on_notification=self.hear,
            on_relocked=self.retake,
        )

    def hear(self, channel: str | None) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.heard.append(channel)

    def retake(self, database: Database, workers: Collection[int], began: float) -> None:
        assert database.one("SELECT 1") == 1
        self.retaken.append((sorted(workers), began))

    async def pid(self) -> int:
        return await self.keeper.run(lambda d: d.one("SELECT pg_backend_pid()"))


@contextlib.asynccontextmanager
async def kept(url: str) -> AsyncIterator[Kept]:
    made = Kept(url)
    await made.keeper.start()
    try:
        yield made
    finally:
        made.keeper.close()


def is_free(outside: Connection, worker: int) -> bool:
    """Whether nobody holds a worker's lock."""
    row = outside.execute("SELECT pg_try_advisory_lock(%s::int4, %s::int4)", (CLASS, worker)).fetchone()
    if row == (True,):
        outside.execute("SELECT pg_advisory_unlock(%s::int4, %s::int4)", (CLASS, worker))
    return row == (True,)


def end(outside: Connection, pid: int) -> None:
    outside.execute("SELECT pg_terminate_backend(%s::int4, 5000)", (pid,))


def notify(outside: Connection, channel: str = NEWS) -> None:
    outside.execute("SELECT pg_notify(%s, '')", (channel,))


async def test_it_holds_locks_until_it_lets_go(url: str, outside: Connection) -> None:
    async with kept(url) as made:
        began = await made.keeper.lock_worker(1)
        assert began == outside.execute(f"SELECT {SERVER_STARTED_AT}").fetchone()[0]  # type: ignore[index]
        assert await made.keeper.lock_worker(1) == began  # again: no second lock
        assert await made.keeper.lock_worker(2) == began
        assert not is_free(outside, 1)
        assert not is_free(outside, 2)
        await made.keeper.unlock_worker(1)
        await made.keeper.unlock_worker(3)
        assert is_free(outside, 1)
        assert not is_free(outside, 2)
    await wait_until(lambda: is_free(outside, 2))
    assert made.retaken == []


async def test_a_lock_that_somebody_else_has_is_taken_when_it_is_free(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_RELOCK_DELAY_S", 0.02)
    outside.execute("SELECT pg_advisory_lock(%s::int4, 4)", (CLASS,))
    async with kept(url) as made:
        assert await made.keeper.lock_worker(4) is None
        outside.execute("SELECT pg_advisory_unlock(%s::int4, 4)", (CLASS,))
        await wait_until(lambda: made.retaken)
        assert made.retaken[0][0] == [4]
        assert not is_free(outside, 4)


async def test_after_its_session_was_ended_it_has_locks_and_ears_again(url: str, outside: Connection) -> None:
    async with kept(url) as made:
        began = await made.keeper.lock_worker(5)
        await made.keeper.lock_worker(6)
        await made.keeper.unlock_worker(6)
        end(outside, await made.pid())
        await wait_until(lambda: made.retaken)  # though nothing is asked of it
        assert made.retaken == [([5], began)]
        assert not is_free(outside, 5)
        assert is_free(outside, 6)
        await wait_until(lambda: made.keeper.is_listening)
        await wait_until(lambda: made.heard)
        assert set(made.heard) == {None}
        notify(outside)
        await wait_until(lambda: NEWS in made.heard)


async def test_telling_of_a_lock_is_tried_again(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "_RELOCK_DELAY_S", 0.02)
    async with kept(url) as made:
        await made.keeper.lock_worker(8)
        tell, failures = made.retake, [ValueError("first"), psycopg.errors.LockNotAvailable("second")]

        def fail_first(database: Database, workers: Collection[int], began: float) -> None:
            database.ask("BEGIN")
            if failures:
                raise failures.pop(0)
            database.ask("COMMIT")
            tell(database, workers, began)

        made.keeper._on_relocked = fail_first
        with caplog.at_level(logging.WARNING, "holdfast.stores"):
            end(outside, await made.pid())
            await wait_until(lambda: made.retaken)
        assert made.retaken[0][0] == [8]
        assert not is_free(outside, 8)
        assert "first" in caplog.text
        pid = await made.pid()
        await made.keeper.unlock_worker(8)
        assert is_free(outside, 8)  # it was taken once only
        assert await made.pid() == pid


async def test_news_of_others_is_heard_and_its_own_is_not(url: str, outside: Connection) -> None:
    async with kept(url) as made, kept(url) as other:
        made.keeper.notify(NEWS)
        await wait_until(lambda: other.heard)
        notify(outside, "other")
        await wait_until(lambda: "other" in made.heard)
        await wait_until(lambda: "other" in other.heard)
        assert made.heard == ["other"]
        assert other.heard == [NEWS, "other"]


async def test_news_that_comes_while_it_is_at_work_is_heard(url: str, outside: Connection) -> None:
    async with kept(url) as made:
        work = asyncio.create_task(made.keeper.run(lambda d: (notify(outside), d.one("SELECT 1"))))
        assert (await work)[1] == 1
        await wait_until(lambda: made.heard == [NEWS])

        def wait_and_ask(d: Database) -> None:
            notify(outside, "other")
            d.connection.pgconn.consume_input()  # as any look at the connection does

        await made.keeper.run(wait_and_ask)
        await wait_until(lambda: "other" in made.heard)


async def test_many_notifications_are_sent_as_two(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_NOTIFY_INTERVAL_S", "MIN_NOTIFY_INTERVAL_S"):
        monkeypatch.setattr(keeping, name, 0.2)
    outside.execute("LISTEN many")
    async with kept(url) as made:
        made.keeper.notify("many")
        assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1  # at once
        for _ in range(100):
            made.keeper.notify("many")
            await asyncio.sleep(0)
        assert len(await asyncio.to_thread(lambda: list(outside.notifies(timeout=5, stop_after=1)))) == 1
        assert await asyncio.to_thread(lambda: list(outside.notifies(timeout=0.4))) == []


async def test_what_is_still_to_be_told_is_told_at_the_end(
    url: str, outside: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_NOTIFY_INTERVAL_S", "MIN_NOTIFY_INTERVAL_S"):
        monkeypatch.setattr(keeping, name, 100.0)
    outside.execute("LISTEN last")
    async with kept(url) as made:
        made.keeper.notify("last")
        # Only then the next: work may be done before a notification is sent, and two that wait are sent as one.
        assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1
        made.keeper.notify("last")  # this one has to wait
        for _ in range(2):
            await made.keeper.run(lambda _: None)
        assert list(outside.notifies(timeout=0.1)) == []
    assert len(list(outside.notifies(timeout=5, stop_after=1))) == 1


async def test_what_could_not_be_notified_is_notified_later(url: str, outside: Connection) -> None:
    async with kept(url) as made, kept(url) as other:
        pid = await made.pid()
        inside = threading.Event()

        def be_ended(d: Database) -> None:
            end(outside, pid)
            inside.set()

        work = asyncio.create_task(made.keeper.run(be_ended))
        await asyncio.to_thread(inside.wait, 10)
        made.keeper.notify(NEWS)
        await work
        await wait_until(lambda: NEWS in other.heard)


async def test_other_threads_have_work_done_while_the_loop_does_not_turn(url: str) -> None:
    async with kept(url) as made:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(made.keeper.run_blocking(lambda d: d.one("SELECT 9"))))
        thread.start()
        thread.join(10)
        assert found == [9]


async def test_work_that_fails_does_so_for_who_asked(url: str) -> None:
    async with kept(url) as made:
        pid = await made.pid()

        def fail(d: Database) -> None:
            d.ask("BEGIN")
            d.ask("SELECT 1/0")

        with pytest.raises(psycopg.errors.DivisionByZero):
            await made.keeper.run(fail)
        assert await made.pid() == pid
        assert made.heard == []


async def test_it_waits_without_turning_round(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    wait_for = keeping._poll_readable

    def counted(*arguments: Any) -> Any:
        nonlocal turns
        turns += 1
        return wait_for(*arguments)

    monkeypatch.setattr(keeping, "_poll_readable", counted)
    async with kept(url) as made:
        await made.keeper.lock_worker(10)
        made.keeper.notify("nobody")
        await asyncio.sleep(0.1)
        before = turns
        await asyncio.sleep(0.3)
        assert turns == before


async def test_a_server_out_of_reach_is_told_when_starting(tmp_path: Path) -> None:
    made, of_others = Kept(f"postgresql:///d?host={tmp_path}"), set(threading.enumerate())
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        await made.keeper.start()
    assert not any(thread.name == "holdfast-keeper" for thread in set(threading.enumerate()) - of_others)


async def test_what_will_not_pass_is_told_as_such_when_starting(url: str) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    with pytest.raises(StoreError, match="createdb") as raised:
        await Kept(url.replace(name, "no_such_database")).keeper.start()
    assert not isinstance(raised.value, StoreUnavailable)


async def test_once_closed_it_does_nothing(url: str) -> None:
    async with kept(url) as made:
        begun, release = threading.Event(), threading.Event()

        def slow(_: Database) -> str:
            begun.set()
            release.wait(10)
            return "done"

        first = asyncio.create_task(made.keeper.run(slow))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(made.keeper.run(slow))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(made.keeper.close))
        await wait_until(lambda: made.keeper._is_closing)
        release.set()
        assert await first == "done"
        with pytest.raises(StoreUnavailable, match="has been closed"):
            await second
        await closing
        with pytest.raises(StoreUnavailable, match="has been closed"):
            made.keeper.run_blocking(lambda d: d.one("SELECT 1"))
        made.keeper.notify(NEWS)
        assert not made.keeper.is_listening


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_is_refused_and_does_no_harm(url: str, outside: Connection) -> None:
    async with kept(url) as made:
        await made.keeper.lock_worker(11)
        child = os.fork()
        if not child:
            status = 1
            try:
                made.keeper.run_blocking(lambda d: d.one("SELECT 1"))
            except UsageError:
                made.keeper.close()
                status = 0
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not is_free(outside, 11)
        notify(outside)
        await wait_until(lambda: NEWS in made.heard)


async def test_behind_a_pooler_there_are_no_locks_and_no_news(url: str) -> None:
    pooler = Pooler(url)
    try:
        async with kept(pooler.url) as made, kept(url) as direct:
            assert made.keeper.is_pooled
            assert not made.keeper.is_listening
            assert direct.keeper.is_listening
            assert await made.keeper.lock_worker(12) is None
            await made.keeper.unlock_worker(12)
            made.keeper.notify(NEWS)
            await wait_until(lambda: direct.heard == [NEWS])
            assert made.keeper.run_blocking(lambda d: d.one("SELECT 1")) == 1
        assert made.heard == []
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
    async with kept(server.url) as made:
        began = await made.keeper.lock_worker(1)
        restarting = asyncio.create_task(asyncio.to_thread(server.restart))
        await wait_until(lambda: not made.keeper.is_listening)
        while not restarting.done():
            with contextlib.suppress(StoreUnavailable):  # and nothing else
                await made.keeper.run(lambda d: d.one("SELECT 1"))
            await asyncio.sleep(0.005)
        await restarting
        await wait_until(lambda: made.retaken)
        [(workers, again)] = made.retaken
        assert workers == [1]
        assert again != began
        await wait_until(lambda: made.keeper.is_listening)
        with connect(server.url) as outside:
            assert not is_free(outside, 1)
            notify(outside)
        await wait_until(lambda: NEWS in made.heard)


@pytest.mark.slow
async def test_a_crash_of_one_server_process_shows_though_the_server_is_the_same(server: Server) -> None:
    async with kept(server.url) as made:
        began = await made.keeper.lock_worker(2)
        with connect(server.url) as before:
            started = before.execute("SELECT pg_postmaster_start_time()").fetchone()
            os.kill(before.info.backend_pid, signal.SIGKILL)
        await wait_until(lambda: made.retaken)
        [(workers, again)] = made.retaken
        assert workers == [2]
        assert again != began
        with connect(server.url) as after:
            assert after.execute("SELECT pg_postmaster_start_time()").fetchone() == started
