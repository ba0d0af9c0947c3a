"""The SQLite file: whose it is, which schema it has, and what is said when it cannot be used."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FLOW,
    append,
    commit_ops,
    list_record_seqs,
    new_run,
    new_worker,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import Attempt
from holdfast.errors import (
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaError,
    StoreUnavailable,
)
from holdfast.stores.contract import History, RunFilter
from holdfast.stores.operations import StartRun
from holdfast.stores.sql import blobs
from holdfast.stores.sql.schema import BASELINE_VERSION, MIGRATIONS, Migration, latest_version
from holdfast.stores.sqlite import SqliteStore, connection_worker, connections
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.statements import STATEMENTS

VERSION = latest_version()

pytestmark = pytest.mark.asyncio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


def tables(connection: sqlite3.Connection) -> dict[str, str]:
    """The schema in a form that does not depend on comments and white space."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {
        name: re.sub(r"\s*([(),])\s*", r"\1", " ".join(re.sub(r"--[^\n]*", "", text).split())) for name, text in rows
    }


# Schema


async def test_a_new_database_is_durable_marked_and_versioned(path: Path):
    store = await opened(path)
    connection = store.writer._connection
    pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "synchronous", "application_id", "user_version")}  # fmt: skip
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "application_id": 0x486F6C64, "user_version": VERSION}
    await store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="counts this process's open files in /proc")
async def test_a_start_writes_no_temporary_file(path: Path):
    store = await opened(path)
    connection, files = store.writer._connection, list[str]()

    def list_temporary_files() -> int:
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")
            except FileNotFoundError:
                continue
            files.extend([target] if "etilqs_" in target else [])
        return 0

    connection.set_progress_handler(list_temporary_files, 1)
    for number in range(3):  # such a run is in all indexes that a new run can be in
        await store.commit([StartRun(new_run(f"r{number}", has_generated_id=True, is_delivery=True))])
    connection.set_progress_handler(None, 0)
    assert files == []
    await store.close()


async def test_opening_an_existing_database_keeps_what_is_in_it(path: Path):
    store = await opened(path)
    await start_run(store)
    await store.close()
    again = await opened(path)
    assert await again.get_run("r") is not None
    await again.close()


async def test_a_database_of_a_newer_holdfast_is_refused_and_both_versions_are_named(path: Path):
    await (await opened(path)).close()
    migrate_further(path, VERSION + 41, compatible_from=VERSION + 40)
    expected = rf"version {VERSION + 41}.* version {VERSION + 40} or higher.*up to {VERSION}.*pip install -U"
    with pytest.raises(SchemaTooNew, match=expected) as raised:
        await opened(path)
    assert str(path) in str(raised.value)


async def test_a_database_of_a_newer_holdfast_that_only_added_to_it_is_used(path: Path):
    await (await opened(path)).close()
    migrate_further(path, VERSION + 1, compatible_from=VERSION)
    store = await opened(path)
    await start_run(store)
    await store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION + 1,), "it was not taken back"


async def test_a_store_that_is_open_while_a_newer_holdfast_migrates_refuses_to_write(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    migrate_further(path, VERSION + 1, compatible_from=VERSION)
    assert await commit_ops(store, append(run, 0)) == [DONE], "it may go on as long as the other one only adds"
    assert store.workers.renew_lease(run.owner or 0, 10.0)
    migrate_further(path, VERSION + 2, compatible_from=VERSION + 2)
    with pytest.raises(SchemaTooNew, match="a newer Holdfast has migrated it"):
        await store.commit([append(run, 1)])
    with pytest.raises(SchemaTooNew):
        store.workers.renew_lease(run.owner or 0, 10.0)
    with pytest.raises(SchemaTooNew):
        await store.wait_for_change(5.0)
    with pytest.raises(SchemaTooNew):
        await store.step_transactions.begin(run, Attempt(1, 1, name="step"), is_sync=True)
    [history] = await store.get_histories([run.key])
    assert len(history.records) == 1
    await store.close()


def migrate_further(path: Path, version: int, *, compatible_from: int) -> None:
    """What a newer Holdfast would do."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'compatible_from'", (str(compatible_from),))
        connection.execute(f"PRAGMA user_version = {version}")


async def test_a_file_that_is_no_database_is_refused(path: Path):
    path.write_bytes(b"not a database, but long enough to be looked at\n" * 100)
    with pytest.raises(StoreCorrupt, match="is not a SQLite database"):
        await opened(path)
    assert path.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize(
    "mark", ["CREATE TABLE customers (id)", "PRAGMA application_id = 7", "PRAGMA user_version = 3"]
)
async def test_another_programs_database_is_refused_and_left_as_it_is(path: Path, mark: str):
    with sqlite3.connect(path) as connection:
        connection.execute(mark)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        await opened(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


async def test_an_empty_file_is_a_new_database(path: Path):
    path.touch()
    await (await opened(path)).close()


async def test_a_migration_that_fails_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = await opened(path)
    await start_run(store)
    await store.close()
    broken = Migration("CREATE TABLE @more (x int); CREATE TABLE @runs (y int);", BASELINE_VERSION)
    monkeypatch.setattr(connections, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StoreError):
        await opened(path)
    monkeypatch.undo()
    store = await opened(path)
    assert await store.get_run("r") is not None
    assert "more" not in tables(store.writer._connection)
    await store.close()


async def test_an_older_database_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = await opened(path)
    await start_run(store)
    await store.close()
    added = Migration("CREATE TABLE @more (x int);", BASELINE_VERSION, "CREATE INDEX more_x ON @more (x);")
    monkeypatch.setattr(connections, "MIGRATIONS", (*MIGRATIONS, added))
    store = await opened(path)
    assert {"more", "more_x"} < tables(store.writer._connection).keys()
    assert await store.get_run("r") is not None
    await store.close()


def insert_run(path: Path, id: str, created_at: float) -> None:
    """A run as the first release writes it, which knows no newer columns."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO runs (id, workflow, queue, state, epoch, max_deliveries, priority, result_claim, "
            "python_version, created_at, clock_started_at, parent, forked_from, rewind_points, digest, seed, tags, "
            "inputs) VALUES (?, 'etl', 'q', 'completed', 1, 3, 0, 0, '', ?, 1.0, '', '', '[]', x'', x'', '[]', x'31')",
            (id, created_at),
        )


async def test_runs_of_an_older_database_are_counted_by_day(path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as first_release:
        first_release.setattr(connections, "MIGRATIONS", MIGRATIONS[:1])
        await (await opened(path)).close()
    for number in range(3):
        insert_run(path, f"r{number}", 86400.0 * (number // 2 + 1) - 0.001)
    store = await opened(path)
    insert_run(path, "late", 86400.0)
    counts = await store.daily_usage.get_run_counts("1970-01-01", "1970-01-31")
    assert [(line.day, line.run_count) for line in counts] == [("1970-01-01", 2), ("1970-01-02", 2)]
    await store.close()


async def test_a_file_from_before_the_first_release_is_refused_and_left_as_it_is(path: Path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (key INTEGER PRIMARY KEY)")
        connection.execute("PRAGMA application_id = 0x486F6C64")
        connection.execute("PRAGMA user_version = 15")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreSchemaError, match=r"before version 0\.2.*Use another file; the version that made it"):
        await opened(path)
    assert path.read_bytes() == before


async def test_a_value_of_the_wrong_type_is_refused_when_it_is_written(path: Path):
    store = await opened(path)
    await start_run(store)
    with sqlite3.connect(path) as connection, pytest.raises(sqlite3.IntegrityError, match="TEXT value in REAL column"):
        connection.execute("UPDATE runs SET created_at = 'yesterday'")
    await store.close()


async def test_a_row_with_an_unknown_state_is_named(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store, "broken")
    await commit_ops(store, append(run, 1))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET kind = 99")
    with pytest.raises(
        StoreCorrupt, match=r"record 1 of run 'broken' \('extract' at position 1\) cannot be read: unknown kind 99"
    ):
        await store.get_histories([run.key])
    for change, problem in [("state = 'odd'", "unknown state 'odd'"), ("state = 'failed', tags = '{'", "JSON list")]:
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE runs SET {change}")
        with pytest.raises(StoreCorrupt, match=rf"run 'broken' cannot be read: .*{problem}"):
            await store.get_run("broken")
    await store.close()


async def test_text_that_is_not_utf8_is_reported_as_damage(path: Path):
    store = await opened(path)
    await start_run(store)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET waits_for = CAST(x'ff' AS TEXT)")
    with pytest.raises(StoreCorrupt, match="damaged"):
        await store.get_run("r")
    await store.close()


async def test_a_damaged_file_is_reported(path: Path):
    store = await opened(path)
    await commit_ops(store, *[StartRun(new_run(f"r{n}", inputs=b"x" * 500)) for n in range(100)])
    await store.close()
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        store = await opened(path)
        try:
            await store.list_runs(RunFilter())
        finally:
            store.abandon()


# Trouble with the file


async def test_a_file_that_cannot_be_written_is_reported_as_read_only(path: Path, monkeypatch: pytest.MonkeyPatch):
    await (await opened(path)).close()
    monkeypatch.setattr(connections, "OPEN_MODE", "ro")
    with pytest.raises(StoreReadOnly, match="not writable") as raised:
        await opened(path)
    assert str(path) in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_that_cannot_be_created_is_reported_as_read_only(tmp_path: Path):  # pragma: no cover
    tmp_path.chmod(0o500)
    with pytest.raises(StoreReadOnly, match="cannot be created"):
        await opened(tmp_path / "sub" / "runs.db")


async def test_a_path_that_leads_through_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be created"):
        await opened(tmp_path / "file" / "runs.db")


async def test_a_path_that_is_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await opened(tmp_path)


async def test_a_full_database_says_so_and_works_again_when_there_is_space(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    connection = store.writer._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = append(run, 1, payload=os.urandom(100_000))
    for ops in ([big], [signal(), big]):
        with pytest.raises(StoreFull, match="no room"):
            await store.commit(ops)
    assert not connection.in_transaction
    connection.execute("PRAGMA max_page_count = 1000000")
    assert await commit_ops(store, signal(), big) == [DONE, DONE]
    [history] = await store.get_histories([run.key])
    assert (len(history.records), len(history.signals)) == (1, 1)
    await store.close()


FULL = """
    import asyncio, os, resource, sys
    sys.path[:0] = {paths!r}
    from store_values import append, start_claimed_run
    from holdfast.errors import StoreSchemaError, StoreFull
    from holdfast.stores.sqlite import SqliteStore

    async def main():
        store = SqliteStore({path!r})
        await store.open()
        run = await start_claimed_run(store)
        {before}
        recorded = 0
        try:
            for seq in range(1, 200):
                await store.commit([append(run, seq, payload=os.urandom(100_000))])
                recorded = seq
        except StoreFull as error:
            print("full:", error)
        {after}
        assert await store.commit([append(run, recorded + 1)]), "writable again"
        [history] = await store.get_histories([run.key])
        assert len(history.records) == recorded + 1, (len(history.records), recorded)
        print("recorded", recorded)
        await store.close()

    asyncio.run(main())
"""


def run_full(path: Path, before: str, after: str) -> str:
    source = textwrap.dedent(FULL).format(
        path=str(path), before=before, after=after, paths=[str(Path(__file__).parent)]
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=_env(), timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


async def test_a_file_size_limit_is_reported_as_a_full_disk_and_survived(path: Path):
    told = await asyncio.to_thread(
        run_full, path,
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
    )  # fmt: skip
    assert "full: there is no room" in told


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_is_reported_and_survived(small_disk: Path):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    after = f"os.unlink({str(ballast)!r})"
    told = await asyncio.to_thread(run_full, small_disk / "runs.db", "pass", after)
    assert "full: there is no room" in told


async def test_a_file_that_is_deleted_under_our_feet_is_noticed(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    path.rename(path.with_name("away.db"))
    with pytest.raises(StoreUnavailable, match="deleted, moved or replaced"):
        await store.commit([append(run, 1)])
    path.with_name("away.db").rename(path)
    assert await commit_ops(store, append(run, 1)) == [DONE]
    await store.close()


@pytest.mark.parametrize("suffixes", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=" ".join)
async def test_deleted_wal_and_shm_files_are_noticed_and_nothing_is_lost(path: Path, suffixes: list[str]):
    store, peer = await opened(path), await opened(path)
    run = await start_claimed_run(store)
    worker = await peer.workers.register(new_worker(), 10.0)
    assert await commit_ops(store, append(run, 1)) == [DONE]
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink()
    writes = [
        lambda: store.commit([append(run, 2)]),
        lambda: store.commit([append(run, 2, payload=b"x" * 100_000)]),
        lambda: store.step_transactions.begin(run, Attempt(3, 1, name="pay"), is_sync=True),
        lambda: peer.workers.reap_dead(worker),
        lambda: peer.wait_for_change(1.0),
        lambda: asyncio.to_thread(peer.workers.renew_lease, worker, 10.0),  # its connection would make new files
    ]
    for write in writes:
        with pytest.raises(StoreUnavailable, match=rf"{suffixes[0]} was deleted.*the last one to close it"):
            await write()
    await peer.close()
    await store.close()
    again = await opened(path)
    assert await list_record_seqs(again, run) == [1]
    await again.close()


async def test_a_store_that_is_not_open_says_so(path: Path):
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.get_run("r")
    await store.open()
    worker = await store.workers.register(new_worker(), 10.0)
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.commit([signal()])
    with pytest.raises(StoreUnavailable, match="not open"):
        store.workers.renew_lease(worker, 10.0)


# Locks


def hold_the_lock(path: Path, seconds: float) -> threading.Thread:
    """Somebody else keeps the database locked for a while."""
    locked = threading.Event()

    def keep() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        locked.set()
        time.sleep(seconds)
        connection.execute("COMMIT")
        connection.close()

    thread = threading.Thread(target=keep)
    thread.start()
    locked.wait()
    return thread


async def test_a_locked_database_is_waited_for_without_holding_up_the_loop(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    keeper = hold_the_lock(path, 0.4)
    began = time.monotonic()
    committing = asyncio.create_task(commit_ops(store, append(run, 1)))
    longest = 0.0
    while not committing.done():
        tick = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - tick)
    assert await committing == [DONE]
    assert time.monotonic() - began > 0.3
    assert longest < 0.2
    keeper.join()
    await store.close()


async def test_reads_work_while_the_database_is_locked(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    keeper = hold_the_lock(path, 0.3)
    assert (await store.get_run("r")) == run
    assert await store.claims.claim(run.owner or 0, **CLAIM_FILTER, limit=1) == []
    assert await store.workers.reap_dead(run.owner) is not None
    assert keeper.is_alive()
    keeper.join()
    await store.close()


async def test_opening_does_not_wait_for_writers(path: Path, monkeypatch: pytest.MonkeyPatch):
    await (await opened(path)).close()
    keeper = hold_the_lock(path, 0.5)
    store = await opened(path)
    assert await store.get_run("r") is None
    assert keeper.is_alive()
    keeper.join()
    await store.close()


async def test_a_new_file_that_another_process_is_writing_is_waited_for(path: Path):
    sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close()
    keeper = hold_the_lock(path, 0.3)
    store = await opened(path)
    assert not keeper.is_alive()
    assert await store.get_run("r") is None
    await store.close()


async def test_a_lock_that_lasts_too_long_is_reported_and_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = await opened(path)
    run = await start_claimed_run(store)
    monkeypatch.setattr(connection_worker, "LOCK_TIMEOUT_S", 0.1)
    keeper = hold_the_lock(path, 0.6)
    for ops in ([append(run, 1)], [append(run, 1), signal()]):
        with pytest.raises(StoreLocked, match="locked by another connection"):
            await store.commit(ops)
    keeper.join()
    assert await list_record_seqs(store, run) == []
    assert await commit_ops(store, append(run, 1), signal()) == [DONE, DONE]
    await store.close()


async def test_a_lease_that_cannot_be_renewed_raises(path: Path, monkeypatch: pytest.MonkeyPatch):
    store = await opened(path)
    worker = await store.workers.register(new_worker(), 10.0)
    monkeypatch.setattr("holdfast.stores.sqlite.workers.RENEWAL_TIMEOUT_S", 0.05)
    keeper = hold_the_lock(path, 0.4)
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(store.workers.renew_lease, worker, 10.0)
    keeper.join()
    assert store.workers.renew_lease(worker, 10.0)
    await store.close()


# Inline or in the thread


@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["thread", "inline"])
async def test_both_ways_of_committing_do_the_same(path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float):
    monkeypatch.setattr(connection_worker, "MAX_INLINE_COMMIT_S", seconds)
    store = await opened(path)
    run = await start_claimed_run(store)
    for seq in range(1, 200):
        assert await commit_ops(store, append(run, seq)) == [DONE]
    assert await list_record_seqs(store, run) == list(range(1, 200))
    await store.close()


async def test_slow_commits_move_to_the_thread_and_quick_ones_back(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    line = store.writer
    line._average_commit_s = 1.0
    seen: set[str] = set()
    connection = line._connection
    connection.set_trace_callback(lambda _: seen.add(threading.current_thread().name))
    await commit_ops(store, append(run, 1))
    assert {name.split("_")[0] for name in seen} == {"holdfast-writer"}
    assert line._average_commit_s < 1.0
    for seq in range(2, 200):
        await commit_ops(store, append(run, seq))
    seen.clear()
    line._average_commit_s = 0.0
    await commit_ops(store, append(run, 200))
    assert seen == {threading.main_thread().name}
    await store.close()


# Large databases


def plan(path: Path, statement: str) -> str:
    connection = sqlite3.connect(path)
    numbers = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    values: Any = dict.fromkeys(re.findall(r":(\w+)", statement), "[]")
    values = values or ["[]"] * max(numbers, default=statement.count("?"))
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    connection.close()
    return "\n".join(row[3] for row in rows)


QUEUEING = (
    "RUNNING_COUNTS", "READY_RUNS", "THROTTLED_KEYS", "THROTTLED_RUNS", "KEY_RATE_USAGE", "CONSUME_CHARGES", "LOCK_DUE",
    "THROTTLE_RUNS", "SAVE_KEY_STATE", "KEY_TURN", "DEDUP_OWNER", "REPLACE_INPUTS", "ADD_CHARGE", "QUEUE_COUNTS",
    "UNLIMITED_RUNS", "LOCK_LIMITED_RUNS",
)  # fmt: skip


async def test_sqlite_compiles_every_statement(path: Path):
    await (await opened(path)).close()
    names = list(filter(str.isupper, dir(STATEMENTS)))
    assert len(names) > 200
    for name in names:
        text = getattr(STATEMENTS, name)
        for statement in [text] if isinstance(text, str) else text.values():
            if name not in ("FILTERS", "APPROVAL_CONDITIONS"):
                plan(path, statement.format(filters="", conditions="true") if "{" in statement else statement)


@pytest.mark.parametrize(
    "statement",
    [
        STATEMENTS.HAS_DUE,
        sql.PROMOTE_DUE,
        sql.DUE_RUNS,
        STATEMENTS.NEXT_READY,
        STATEMENTS.FIND_ORPHAN,
        STATEMENTS.LOCK_CLAIMED_RUNS,
        STATEMENTS.RELEASE_ALL_RUNS,
        STATEMENTS.WORKERS,
        STATEMENTS.NEW_SIGNALS,
        sql.APPEND_FENCED[1],
        sql.APPEND_FENCED[10],
        sql.FENCES_BY_KEY,
        sql.FENCES_BY_ID,
        STATEMENTS.KNOWN_WORKFLOWS,
        STATEMENTS.LIST_BY_WORKFLOW_AND_STATE.format(filters=""),
        STATEMENTS.LIST_BY_STATE.format(filters=""),
        STATEMENTS.LIST_CLOSED_APPROVALS.format(conditions="1 = 1"),
        STATEMENTS.DELETE_OLD_WORKERS,
        *[statement.format(filters="") for statement in STATEMENTS.LIST_BY_CONDITION.values()],
        *STATEMENTS.COUNT_BY_CONDITION.values(),
        STATEMENTS.NEWEST_CREATED,
        STATEMENTS.REQUESTS,
        STATEMENTS.LINKS,
        STATEMENTS.WAITERS,
        STATEMENTS.MAILBOX_NAMES,
        STATEMENTS.AWAITED_BY_REOPENED,
        STATEMENTS.DELETE_REWOUND_RECORDS,
        STATEMENTS.BLOBS,
        STATEMENTS.JOURNAL,
        STATEMENTS.MAILBOX,
        STATEMENTS.OVERDUE,
        STATEMENTS.RECHECK_OVERDUE,
        STATEMENTS.DELIVERY_COUNTS,
        STATEMENTS.DELETE_OLD_LISTENERS,
        *[getattr(STATEMENTS, name) for name in QUEUEING],
    ],
)
async def test_nothing_that_happens_often_reads_a_whole_table(path: Path, statement: str):
    await (await opened(path)).close()
    told = plan(path, statement)
    assert not re.search(r"SCAN (runs|r|records|signals|queue_\w+|k)\b(?! USING COVERING INDEX)", told), told
    assert (
        statement not in (sql.DUE_RUNS, STATEMENTS.READY_RUNS, STATEMENTS.THROTTLED_RUNS) or "TEMP B-TREE" not in told
    ), told


@pytest.mark.parametrize("version", ["", "1"])
async def test_parked_runs_and_those_of_other_versions_by_the_thousand_do_not_slow_claims(path: Path, version: str):
    clock = 1_000_000.0
    store = SqliteStore(path, clock=lambda: clock)
    await store.open()
    worker = await store.workers.register(new_worker(), 10.0)
    for block in range(20):
        later = 0 if version else 1000  # of the other version, they are due
        new = [new_run(f"r{block}-{n}", available_at=clock + later + n, version=version) for n in range(1000)]
        await commit_ops(store, *map(StartRun, new))
    await start_run(store, "timer", available_at=clock + 1000)
    await start_run(store, "due", priority=-1)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    for line in (store.writer, store._engine_reader):
        line._connection.set_progress_handler(count, 10)
    assert [run.id for run in await store.claims.claim(worker, workflows=[FLOW], queues=["default"], limit=10)] == [
        "due"
    ]
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) == clock + 1000
    assert steps < 200
    await store.close()


async def test_after_a_read_that_waited_for_the_disk_reads_go_to_a_thread_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    now = 100.0
    monkeypatch.setattr(connection_worker.time, "perf_counter", lambda: now)

    async def read(wait_s: float) -> threading.Thread:
        def work(db: Any) -> threading.Thread:
            nonlocal now
            now += wait_s
            return threading.current_thread()

        return await store.read_for_client(work)

    assert await read(connection_worker.MAX_READ_STALL_S * 0.9) is threading.main_thread()
    assert await read(connection_worker.MAX_READ_STALL_S * 2) is threading.main_thread()
    assert await read(0) is not threading.main_thread()
    now += connection_worker.READ_STALL_PAUSE_S
    assert await read(0) is threading.main_thread()
    monkeypatch.undo()
    await store.close()


async def test_a_read_that_takes_long_is_interrupted_on_the_event_loop_and_done_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection_worker, "READ_STALL_PAUSE_S", 0.0)  # a busy machine may take longer for the first
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    threads: list[threading.Thread] = []
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"

    def read(limit: int) -> Any:
        def work(db: Any) -> int:
            threads.append(threading.current_thread())
            return db.query(f"{numbers} SELECT max(n) FROM numbers", (limit,))[0][0]

        return work

    for read_rows in (store.read, store.read_for_client):
        threads.clear()
        assert await read_rows(read(10)) == 10
        assert threads == [threading.main_thread()]
        threads.clear()
        assert await read_rows(read(2_000_000)) == 2_000_000
        assert threads[0] is threading.main_thread()
        assert threads[1] is not threading.main_thread()
        assert await read_rows(read(20)) == 20  # the connection is usable, and on the loop again
        assert threads[2] is threading.main_thread()
    await store.close()


async def test_large_values_are_unpacked_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    large = b'"' + os.urandom(100_000).hex().encode() + b'"'
    run = await start_claimed_run(store, inputs=large)
    await commit_ops(store, append(run, 1, payload=large))
    unpacked_in: list[threading.Thread] = []
    unpack = blobs._unpack
    monkeypatch.setattr(
        blobs, "_unpack", lambda *given: (unpacked_in.append(threading.current_thread()), unpack(*given))[1]
    )
    [history] = await store.get_histories([run.key])
    assert history.records[0].payload == large
    found = await store.get_run("r")
    assert found is not None
    assert found.inputs == large
    assert unpacked_in
    assert threading.main_thread() not in unpacked_in
    await store.close()


async def test_a_read_that_is_interrupted_leaves_no_transaction(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_worker, "MAX_INLINE_READ_S", -1.0)
    # SQLite counts the instructions of all executions of a statement, so BEGIN and ROLLBACK are interrupted, too.
    monkeypatch.setattr(connection_worker, "_CHECK_INTERVAL", 7)
    store = SqliteStore(path)
    await store.open()
    try:
        for _ in range(100):
            assert await store.get_histories([1, 2]) == [History([], {}, [], {})] * 2
            assert not store._engine_reader._connection.in_transaction
            assert await store.get_run("unknown") is None
    finally:
        await store.close()
