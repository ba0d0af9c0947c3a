"""Processes on one SQLite file notify each other of commits. Polls, which find everything else, never come here."""

from __future__ import annotations

import asyncio
import os
import select
import signal as os_signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from store_values import append, commit_ops, finish, start_claimed_run, start_run

import forked_python
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import store as sqlite_store
from holdfast.stores.sqlite.notifications import ChangeListener, ChangeNotifier

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs"),
]

NEVER_S = 1e6
LISTENER = """
import asyncio, sys
from holdfast.stores.sqlite import SqliteStore, store as sqlite_store
sqlite_store.POLL_INTERVAL_S = sqlite_store.IDLE_POLL_INTERVAL_S = {interval}
sqlite_store.NOTIFIED_IDLE_POLL_INTERVAL_S = sqlite_store.UNFOLLOWED_POLL_INTERVAL_S = {interval}

async def main():
    store = SqliteStore({path!r})
    await store.open()
    await store.wait_for_change(0.0)
    waiting = asyncio.ensure_future(store.wait_for_change({interval}))
    await asyncio.sleep(0)
    print("ready", flush=True)
    print(await waiting, flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def never_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification ends a wait."""
    for name in (
        "POLL_INTERVAL_S", "IDLE_POLL_INTERVAL_S", "NOTIFIED_IDLE_POLL_INTERVAL_S", "UNFOLLOWED_POLL_INTERVAL_S"
    ):  # fmt: skip
        monkeypatch.setattr(sqlite_store, name, NEVER_S)


@pytest_asyncio.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    stores = (SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db"))
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture
def listener_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a change, and does not poll."""
    source = textwrap.dedent(LISTENER).format(interval=NEVER_S, path=str(tmp_path / "runs.db"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    process = forked_python.start(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def fifo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, also of other processes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def list_fifos(store: SqliteStore) -> list[Path]:
    """The files next to the database. Each one has a FIFO elsewhere."""
    files = list(Path(f"{store.path}-workers").glob("*.listener"))
    folders = list((store.path.parent / "temporary").iterdir())
    assert {Path(file.read_text()).parent for file in files} == {*folders}
    return files


def has_notification(listener: ChangeListener) -> bool:
    """Whether something is in the FIFO, which is read."""
    descriptor = listener._open()
    assert descriptor is not None
    try:
        return bool(os.read(descriptor, 65536))
    except BlockingIOError:
        return False


async def test_another_process_is_notified_of_a_new_run(listener_process: subprocess.Popen[str], tmp_path: Path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    assert len(list_fifos(store)) == 1
    await start_run(store)
    assert listener_process.stdout is not None
    assert await asyncio.to_thread(listener_process.stdout.readline) == "True\n"
    listener_process.wait()
    assert list_fifos(store) == []
    await store.close()


async def test_a_process_that_was_killed_is_forgotten(listener_process: subprocess.Popen[str], tmp_path: Path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    store._notifier._find_peers()
    assert len(store._notifier._peers) == 1
    listener_process.send_signal(os_signal.SIGKILL)
    listener_process.wait()
    assert len(list_fifos(store)) == 1
    await start_run(store, "after")
    assert list_fifos(store) == []
    other = SqliteStore(tmp_path / "runs.db")
    await other.open()
    await other.close()
    await store.close()


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only Linux reports that a FIFO has lost its reader")
@pytest.mark.usefixtures("never_polled")
async def test_a_process_that_waits_learns_at_once_that_another_was_killed(
    listener_process: subprocess.Popen[str], tmp_path: Path
):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    await store.wait_for_change(0.0)
    waiting = asyncio.ensure_future(store.wait_for_change(NEVER_S))
    await asyncio.sleep(0)
    listener_process.send_signal(os_signal.SIGKILL)
    assert await waiting
    assert len(list_fifos(store)) == 1, "its own"
    assert not await store.wait_for_change(0.0), "it is reported once"
    await store.close()


async def test_a_fifo_that_a_killed_process_has_left_is_deleted(
    listener_process: subprocess.Popen[str], tmp_path: Path
):
    listener_process.send_signal(os_signal.SIGKILL)
    listener_process.wait()
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    assert len(list_fifos(store)) == 1
    await start_run(store)
    assert list_fifos(store) == []
    await store.close()


def make_older(fifo: Path) -> None:
    hour_ago = time.time() - 3600
    os.utime(fifo, (hour_ago, hour_ago))


async def test_a_fifo_that_a_killed_process_has_left_is_deleted_although_its_store_was_deleted(
    listener_process: subprocess.Popen[str], tmp_path: Path, fifo_folder: Path
):
    [left] = fifo_folder.glob("*/fifo")
    listener_process.send_signal(os_signal.SIGKILL)
    listener_process.wait()
    for file in [*tmp_path.glob("runs.db-workers/*"), *tmp_path.glob("runs.db*")]:
        file.rmdir() if file.is_dir() else file.unlink()
    listener = ChangeListener(tmp_path / "other.db-workers")
    listener._open()
    assert left.exists(), "a process may be about to open it"
    listener.close()
    make_older(left)
    listener._open()
    assert not left.parent.exists()
    listener.close()
    assert list(fifo_folder.iterdir()) == []


async def test_only_fifos_of_dead_processes_are_deleted(
    listener_process: subprocess.Popen[str], tmp_path: Path, fifo_folder: Path
):
    [live] = fifo_folder.glob("*/fifo")
    plain, link, other = (fifo_folder / f"holdfast-{name}" for name in ("plain", "link", "other"))
    for folder in (plain, other):
        folder.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    link.symlink_to(outside)
    (plain / "fifo").touch()
    os.mkfifo(outside / "fifo")
    os.mkfifo(other / "other")
    for path in (live, plain / "fifo", outside / "fifo", other / "other"):
        make_older(path)
    listener = ChangeListener(tmp_path / "other.db-workers")
    listener._open()
    listener.close()
    for path in (live, plain / "fifo", outside / "fifo", other / "other"):
        assert path.exists()


@pytest.mark.usefixtures("never_polled")
async def test_what_others_may_wait_for_is_notified(two: tuple[SqliteStore, SqliteStore]):
    mine, theirs = two
    await theirs.wait_for_change(0.0)
    theirs._listener._open()
    run = await start_claimed_run(mine)
    await commit_ops(mine, append(run, 0))
    assert not has_notification(theirs._listener), "progress of a run is found by a poll"
    await commit_ops(mine, finish(run))
    assert await theirs.wait_for_change(NEVER_S)
    await start_run(mine, "work")
    assert await theirs.wait_for_change(NEVER_S)
    assert not await theirs.wait_for_change(0.0)
    assert not has_notification(mine._listener), "nobody is notified of what it has written itself"


async def test_progress_is_found_by_a_poll(two: tuple[SqliteStore, SqliteStore]):
    mine, theirs = two
    run = await start_claimed_run(mine)
    await theirs.wait_for_change(0.0)
    await commit_ops(mine, append(run, 0))
    assert await theirs.wait_for_change(60.0)


@pytest.mark.usefixtures("never_polled")
async def test_a_notification_is_not_lost_while_the_connection_is_in_use(two: tuple[SqliteStore, SqliteStore]):
    mine, theirs = two
    await theirs.wait_for_change(0.0)
    waiting = asyncio.ensure_future(theirs.wait_for_change(NEVER_S))
    await asyncio.sleep(0)
    with theirs.writer._lock:
        await start_run(mine)
        assert await waiting


async def test_without_fifos_a_poll_finds_changes(
    two: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "mkfifo", refuse)
    mine, theirs = two
    waiting = asyncio.ensure_future(theirs.wait_for_change(60.0))
    await asyncio.sleep(0)
    await start_run(mine)
    assert await waiting
    assert list_fifos(mine) == []


async def test_a_process_that_does_not_read_blocks_nobody(tmp_path: Path):
    listener = ChangeListener(tmp_path / "x-workers")
    assert listener._open() is not None
    notifier = ChangeNotifier(tmp_path / "x-workers", ChangeListener(tmp_path / "x-workers"))
    for _ in range(100_000):  # more than a FIFO holds
        notifier.notify()
    assert has_notification(listener)
    notifier.close()
    listener.close()


async def test_only_fifos_are_written_to(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "link").symlink_to(precious)
    folder = tmp_path / "x-workers"
    folder.mkdir()
    for name, text in (("file", str(precious)), ("link", str(tmp_path / "link")), ("gone", "/no/such"), ("bad", "\0")):
        (folder / f"{name}.listener").write_text(text)
    os.utime(folder / "gone.listener", (0, 0))
    notifier = ChangeNotifier(folder, ChangeListener(folder))
    notifier.notify()
    assert precious.read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == {"file.listener", "link.listener", "bad.listener"}
    notifier.close()


@pytest.mark.usefixtures("never_polled")
async def test_commits_of_a_busy_peer_wait_for_the_next_poll(two: tuple[SqliteStore, SqliteStore]):
    """Otherwise looking for work would take all the time of a process next to one that commits all the time."""
    mine, theirs = two
    run = await start_claimed_run(mine)
    assert await theirs.wait_for_change(60.0), "nothing was reported before"
    await commit_ops(mine, append(run, 0))
    waiting = asyncio.ensure_future(theirs.wait_for_change(NEVER_S))
    for seq in range(1, 20):
        await commit_ops(mine, append(run, seq))
        await asyncio.sleep(0)
    assert not waiting.done()
    await commit_ops(mine, finish(run))
    assert await waiting


async def test_a_process_that_follows_no_runs_does_not_look_for_progress(
    two: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite_store, "POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr(sqlite_store, "UNFOLLOWED_POLL_INTERVAL_S", NEVER_S)
    mine, theirs = two
    run = await start_claimed_run(mine)
    assert await theirs.wait_for_change(60.0), "nothing was reported before"
    waiting = asyncio.ensure_future(theirs.wait_for_change(NEVER_S, follow_runs=False))
    await asyncio.sleep(0.02)  # the first poll comes soon after the last change, whoever waits
    for seq in range(10):
        await commit_ops(mine, append(run, seq))
        await asyncio.sleep(0.002)
    assert not waiting.done()
    await commit_ops(mine, finish(run))
    assert await waiting


async def test_closing_deletes_the_fifo(tmp_path: Path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    await store.wait_for_change(0.01)
    assert len(list_fifos(store)) == 1
    await store.close()
    assert list_fifos(store) == []
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
