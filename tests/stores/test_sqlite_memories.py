"""Questions, notices and memories in a SQLite file: its index of words, its older versions, and what it costs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from store_values import DONE, append, commit_ops, finish, make_record, new_worker, start_claimed_run, start_run

from holdfast.errors import StoreCorrupt, StoreSchemaError
from holdfast.stores.approvals import AnswerApproval, ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.contract import MAX_INLINE_BYTES
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import AppendLiveEvents, AppendRecord, LiveEvent
from holdfast.stores.sql.batch import apply_ops
from holdfast.stores.sql.schema import BASELINE_VERSION, Migration, latest_version
from holdfast.stores.sql.tables import BASELINE
from holdfast.stores.sqlite import SqliteStore, connections
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.database import SqliteDatabase

pytestmark = pytest.mark.asyncio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


def put(key: str, text: str, space: str = "ann") -> PutMemory:
    return PutMemory(space, key, b"1", text, 1.0)


def check_index(path: Path) -> None:
    """SQLite's own check, and that every memory has its words, and nothing else has."""
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO memory_words (memory_words) VALUES ('integrity-check')")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ids = [row[0] for row in connection.execute("SELECT id FROM memories ORDER BY id")]
        assert [row[0] for row in connection.execute("SELECT rowid FROM memory_words ORDER BY rowid")] == ids


# Versions


async def test_a_python_without_full_text_search_is_recognized_and_the_file_is_unchanged(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    lacking = Migration(BASELINE.replace("fts5", "fts5_that_is_not_there"), BASELINE_VERSION)
    monkeypatch.setattr(connections, "MIGRATIONS", (lacking,))
    with pytest.raises(StoreSchemaError, match=r"without full-text search \(FTS5\)"):
        await opened(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    monkeypatch.undo()
    await (await opened(path)).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (latest_version(),)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'fts5', 'fts5x') WHERE name = 'memory_words'")
    connection.close()
    with pytest.raises(StoreSchemaError, match=r"without full-text search \(FTS5\)"):
        await opened(path)


# The index


async def test_the_index_of_words_is_in_step_with_the_memories(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    await commit_ops(store, put("a", "tea"), put("b", "tea"), put("a", "coffee"), DeleteMemory("ann", "b"))
    await commit_ops(
        store, *[AppendRecord(run.key, make_record(seq), memory=put(f"k{seq % 3}", f"tea {seq}")) for seq in range(9)]
    )
    await commit_ops(store, DeleteMemory("ann", "k1"), put("k1", ""))
    assert [memory.key for memory in await store.memories.search("ann", "tea")] == ["k0", "k2"]
    await store.close()
    check_index(path)


async def test_a_commit_that_fails_changes_neither_memories_nor_words(path: Path):
    store = await opened(path)
    await commit_ops(store, put("a", "tea"))
    bad = RequestApproval(1, 1, 1, 7j, ApprovalRequest("?"), 1.0)  # type: ignore[arg-type]
    run = await start_claimed_run(store)
    with pytest.raises(sqlite3.Error):
        await commit_ops(store, put("a", "coffee"), put("b", "coffee"), bad._replace(key=run.key, epoch=run.epoch))
    assert [memory.key for memory in await store.memories.search("ann", "coffee tea")] == ["a"]
    await store.close()
    check_index(path)


async def test_a_search_reads_its_own_namespace_only(path: Path):
    store = await opened(path)
    for at in range(20):
        others = [put(f"k{number}", f"green tea number {number}", f"user {at}") for number in range(250)]
        await commit_ops(store, *others)
    await commit_ops(store, put("likes", "green tea"))
    connection = store._client_reader._connection
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    connection.set_progress_handler(count, 100)
    assert [memory.key for memory in await store.memories.search("ann", "green tea")] == ["likes"]
    connection.set_progress_handler(None, 0)
    assert steps < 50, "that many hundred instructions would have read the other rows"
    await store.close()


# Large payloads


async def test_a_large_answer_is_kept_apart_and_once(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    large = b"x" * (MAX_INLINE_BYTES + 1)
    await commit_ops(store, RequestApproval(run.key, run.epoch, 1, "a1", ApprovalRequest("?", arguments=large), 1.0))
    await commit_ops(store, AnswerApproval("a1", large, "ann", 1.0))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*), max(size) FROM blobs").fetchone() == (1, len(large))
        assert connection.execute("SELECT length(answer), length(arguments) FROM approvals").fetchone() == (33, 33)
    connection.close()
    await store.close()


# Damage


async def test_a_question_that_cannot_be_read_is_named(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    large = b"x" * (MAX_INLINE_BYTES + 1)
    await commit_ops(store, RequestApproval(run.key, run.epoch, 1, "a1", ApprovalRequest("?", arguments=large), 1.0))
    for change, problem in [
        ("UPDATE approvals SET request = '{'", "is not a question"),
        ("UPDATE approvals SET request = '[1]'", "is not a question"),
        ('UPDATE approvals SET state = \'odd\', request = \'["","",[],"",""]\'', "unknown state 'odd'"),
        ("UPDATE approvals SET state = 'open'", None),
        ("DELETE FROM blobs", "its large payload is missing"),
    ]:
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        connection.close()
        if problem is None:
            assert len(await store.list_approvals(ApprovalFilter())) == 1
            continue
        with pytest.raises(StoreCorrupt, match=f"approval 'a1' of run 'r' cannot be read: .*{problem}"):
            await store.list_approvals(ApprovalFilter(only_open=False))
    await store.close()


# What it costs


LOOK = "PRAGMA data_version"
"""Asked before each write, for a migration by another process. It reads no page of the file."""


class Statements:
    """Counts what a store asks of SQLite while it writes."""

    def __init__(self, store: SqliteStore) -> None:
        self.seen: list[str] = []
        store.writer._connection.set_trace_callback(self.seen.append)

    def clear(self) -> list[str]:
        seen, self.seen[:] = [text.split()[0] for text in self.seen if text != LOOK], []
        return seen


async def test_the_record_of_a_step_or_a_call_is_one_statement(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    counted = Statements(store)
    await commit_ops(store, append(run, 0))
    assert counted.clear() == ["INSERT"]
    await commit_ops(store, append(run, 1), append(run, 2))
    assert counted.clear() == ["INSERT"], "a call of a program, and its outcome"
    other = await start_claimed_run(store, "other")
    counted.clear()
    await commit_ops(store, append(run, 3), append(other, 0))
    assert counted.clear() == ["BEGIN", "INSERT", "COMMIT"], "of two runs, all or nothing"
    await commit_ops(store, append(run, 4)._replace(clear_live_events=True))
    assert counted.clear() == ["BEGIN", "SELECT", "INSERT", "DELETE", "COMMIT"]
    await store.close()


async def test_a_run_without_leftovers_ends_with_one_more_query(path: Path):
    store = await opened(path)
    runs = [await start_claimed_run(store, f"r{number}") for number in range(3)]
    counted = Statements(store)
    await commit_ops(store, *[finish(run) for run in runs])
    assert counted.clear() == ["BEGIN", "SELECT", "SELECT", "UPDATE", "UPDATE", "UPDATE", "COMMIT"]
    await store.close()


async def test_notices_of_many_runs_are_written_by_one_statement(path: Path):
    store = await opened(path)
    worker = await store.workers.register(new_worker(), 1000.0)
    runs = [await start_run(store, f"r{number}", claim_as=worker) for number in range(60)]
    prepared: list[str] = []
    real = store.writer._connection

    class Watched:
        """A connection that notes what is handed to it."""

        def __getattr__(self, name: str) -> Any:
            def call(statement: str, *values: Any) -> Any:
                prepared.append(statement.split()[0])
                return getattr(real, name)(statement, *values)

            return call if name in ("execute", "executemany") else getattr(real, name)

    tells = [AppendLiveEvents(run.key, run.epoch, (LiveEvent(0, "1", 1, "text", b"1", 1.0),)) for run in runs]
    database = SqliteDatabase(Watched())  # type: ignore[arg-type]
    assert apply_ops(database, tells, 1.0, store.reader) == [DONE] * 60
    assert prepared == ["BEGIN", "SELECT", "SELECT", "INSERT", "COMMIT"]
    await store.close()


async def test_the_open_questions_are_found_among_many_old_ones(path: Path):
    store = await opened(path)
    run = await start_claimed_run(store)
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO approvals (id, run, position, state, requested_at, assignee, reminder_count, answered_by, "
            "request, "
            "form_schema, arguments) VALUES (?, 1, ?, 'answered', 1.0, '', 0, '', '[]', x'', x'')",
            [(f"old{number}", number) for number in range(20_000)],
        )
    connection.close()
    await commit_ops(store, RequestApproval(run.key, run.epoch, 1, "a1", ApprovalRequest("?"), 1.0))
    statement = sql.STATEMENTS.LIST_APPROVALS.format(conditions=sql.STATEMENTS.APPROVAL_CONDITIONS["only_open"])
    rows = store._engine_reader._connection.execute(f"EXPLAIN QUERY PLAN {statement}", (5,))
    assert "USING INDEX approvals_open" in " ".join(str(row[3]) for row in rows)
    assert [one.id for one in await store.list_approvals(ApprovalFilter())] == ["a1"]
    await store.close()
