"""Copies of a SQLite file, made while processes write to it, and put in its place."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from store_values import append, commit_ops, read_run, start_claimed_run, start_run

from holdfast.errors import StoreCorrupt, StoreError, StoreUnavailable, UsageError
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.backups import back_up, read_backup_time, restore
from holdfast.stores.sqlite.inspection import read_facts

pytestmark = pytest.mark.asyncio


async def open_store(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


def count_records(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT count(*), coalesce(max(seq), -1) FROM records").fetchone()


async def test_a_copy_made_while_a_worker_writes_is_one_moment_of_the_journal(tmp_path: Path):
    store = await open_store(tmp_path / "runs.db")
    run = await start_claimed_run(store)
    written = 0
    is_done = False

    async def write() -> None:
        nonlocal written
        while not is_done:
            await commit_ops(store, append(run, written, payload=os.urandom(20_000)))
            written += 1

    writing = asyncio.create_task(write())
    counts: list[int] = []
    for number in range(5):
        while written < 30 * (number + 1):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        before = written
        target = tmp_path / f"copy {number}.db"
        await asyncio.to_thread(back_up, store.path, target)
        count, last = count_records(target)
        assert count == last + 1 >= before
        counts.append(count)
    is_done = True
    await writing
    assert counts == sorted(set(counts))
    assert written > counts[-1] - 1
    await store.close()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        *(f"copy {number}.db" for number in range(5)),
        "runs.db",
    ]


async def test_a_copy_has_the_permissions_of_the_database_and_replaces_no_file_unasked(tmp_path: Path):
    store = await open_store(tmp_path / "runs.db")
    store.path.chmod(0o640)
    target = tmp_path / "backups" / "today.db"
    back_up(store.path, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    first = read_backup_time(target)
    with pytest.raises(UsageError, match="exists: nothing was copied"):
        back_up(store.path, target)
    with pytest.raises(UsageError, match="is the database itself"):
        back_up(store.path, store.path, overwrite=True)
    await start_run(store)
    back_up(store.path, target, overwrite=True)
    assert (read_backup_time(target) or 0) > (first or 0) > 0
    await store.close()
    assert [path.name for path in target.parent.iterdir()] == ["today.db"]


async def test_a_restored_file_takes_the_place_of_one_that_is_not_in_use(tmp_path: Path):
    store = await open_store(tmp_path / "runs.db")
    await start_run(store, "before")
    back_up(store.path, tmp_path / "copy.db")
    await start_run(store, "after")
    with pytest.raises(StoreUnavailable, match="is in use, and was not replaced: stop all workers"):
        restore(tmp_path / "copy.db", store.path, lambda _: None)
    assert (await read_run(store, "after")).id == "after"
    await store.close()
    seen: list[Path] = []
    _, previous = restore(tmp_path / "copy.db", store.path, seen.append)
    assert previous is not None
    for path, ids in ((store.path, ["before"]), (previous, ["before", "after"])):
        again = await open_store(path)
        assert sorted(run.id for run in await again.get_runs(["before", "after"])) == sorted(ids)
        await again.close()
    assert seen[0].parent == tmp_path
    assert not [path for path in tmp_path.iterdir() if "unfinished" in path.name]


async def test_a_file_that_is_no_backup_changes_nothing(tmp_path: Path):
    store = await open_store(tmp_path / "runs.db")
    await start_run(store)
    back_up(store.path, tmp_path / "copy.db")
    await store.close()
    before = store.path.read_bytes()

    def fail(_: Path) -> None:
        raise StoreError("prepare failed")

    (tmp_path / "text").write_text("no database")
    damaged = tmp_path / "damaged.db"
    content = bytearray((tmp_path / "copy.db").read_bytes())
    content[8192 * 3 : 8192 * 8] = os.urandom(8192 * 5)
    damaged.write_bytes(content)
    sqlite3.connect(tmp_path / "empty.db").close()
    for name, error, prepare in (
        ("missing", UsageError, None),
        ("text", StoreCorrupt, None),
        ("empty.db", UsageError, None),
        ("runs.db", UsageError, None),
        ("damaged.db", StoreError, None),
        ("copy.db", StoreError, fail),
    ):
        with pytest.raises(error):
            restore(tmp_path / name, store.path, prepare or (lambda _: None))
        assert store.path.read_bytes() == before, name
    assert not [path for path in tmp_path.iterdir() if "unfinished" in path.name]
    restore(tmp_path / "copy.db", tmp_path / "new" / "runs.db", lambda _: None)
    assert read_facts(tmp_path / "new" / "runs.db").table_count > 10
