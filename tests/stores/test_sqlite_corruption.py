"""Rows that cannot be read stop the run that they belong to, and no other, and are named."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from store_values import (
    CLAIM_FILTER,
    DONE,
    FLOW,
    append,
    commit_ops,
    finish,
    list_signals,
    new_run,
    new_worker,
    read_run,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.codec import read_error_info
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import RunFilter, WorkflowSpec
from holdfast.stores.operations import StartRun
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio

LARGE = json.dumps("words " * 20_000).encode()
NOT_TEXT = "CAST(x'ff' AS TEXT)"


@pytest_asyncio.fixture
async def frail(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    yield store
    await store.close()


def damage(store: SqliteStore, statement: str) -> None:
    with sqlite3.connect(store.path) as connection:
        assert connection.execute(statement).rowcount > 0


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("UPDATE records SET kind = 99 WHERE seq = 1", "unknown kind 99"),
        (f"UPDATE records SET preview = {NOT_TEXT} WHERE seq = 1", "UTF-8"),
        ("DELETE FROM blobs", "large payload is missing"),
        ("UPDATE blobs SET data = x'0100000000'", "large payload is damaged"),
        ("UPDATE blobs SET data = x'002222'", "does not fit its hash"),
    ],
)
async def test_a_record_that_cannot_be_read_is_named(frail: SqliteStore, harm: str, problem: str):
    run, other = await start_claimed_run(frail, "broken"), await start_claimed_run(frail, "whole")
    await commit_ops(frail, append(run, 0), append(run, 1, position=7, name="fetch", payload=LARGE), append(other, 0))
    damage(frail, harm)
    named = rf"record 1 of run 'broken' \('fetch' at position 7\) cannot be read: .*{problem}"
    for reading in (
        frail.get_histories([run.key]),
        frail.get_journal_page("broken"),
        frail.get_run_updates("broken", -1, 0),
    ):
        with pytest.raises(StoreCorrupt, match=named):
            await reading
    [history] = await frail.get_histories([other.key])
    assert len(history.records) == 1


async def test_an_error_names_a_record_of_an_unknown_kind_even_if_other_records_are_read(frail: SqliteStore):
    run = await start_claimed_run(frail, "broken")
    await commit_ops(frail, append(run, 0), append(run, 1), append(run, 2))
    damage(frail, "UPDATE records SET kind = 99 WHERE seq = 1")
    with pytest.raises(StoreCorrupt, match="record 1 of run 'broken' cannot be read: unknown kind 99"):
        await frail.get_journal_page("broken", after_seq=1)


async def test_an_unreadable_signal_is_named_and_affects_no_other_run(frail: SqliteStore, caplog):
    run = await start_claimed_run(frail, "broken")
    other = await start_run(frail, "whole", claim_as=run.owner)
    await commit_ops(frail, signal("broken", payload=LARGE), signal("whole"))
    damage(frail, "DELETE FROM blobs")
    with caplog.at_level(logging.WARNING, "holdfast.stores"):
        assert [key for key, _ in (await frail.claims.get_new_signals(run.owner or 0, 0)).signals] == [other.key]
    assert "signal 1 ('go') to run 'broken' cannot be read: its large payload is missing" in caplog.text
    with pytest.raises(StoreCorrupt, match="signal 1"):
        await frail.get_histories([run.key])


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("UPDATE runs SET tags = '{' WHERE id = 'broken'", "JSON list"),
        ("UPDATE runs SET rewind = '[]' WHERE id = 'broken'", "retry takes back"),
        ("UPDATE runs SET cancel_state = 'maybe' WHERE id = 'broken'", "unknown cancel_state 'maybe'"),
        (f"UPDATE runs SET python_version = {NOT_TEXT} WHERE id = 'broken'", "UTF-8"),
        ("DELETE FROM blobs", "large payload is missing"),
    ],
)
async def test_a_run_whose_row_cannot_be_read_fails_and_the_others_are_claimed(
    frail: SqliteStore, harm: str, problem: str, caplog
):
    parent = await start_claimed_run(frail, "parent", workflow="family")
    await start_run(frail, "first")
    await commit_ops(frail, start_child(parent, "broken", inputs=LARGE))
    await start_run(frail, "last")
    damage(frail, harm)
    worker = await frail.workers.register(new_worker(), 10.0)
    claimed = await frail.claims.claim(worker, **CLAIM_FILTER, limit=9)
    assert [run.id for run in claimed] == ["first", "last"]
    [end] = await list_signals(frail, parent)
    told = read_error_info(end.payload)
    assert (end.name, end.position, told.type) == ("failed", 0, "holdfast.errors.StoreCorrupt")
    assert "'broken'" in told.message
    assert problem in told.message
    assert "'broken'" in caplog.text
    with sqlite3.connect(frail.path) as connection:
        [broken] = connection.execute("SELECT state, error, owner, ready_state FROM runs WHERE id = 'broken'")
    assert broken == ("failed", end.payload, None, None)
    assert await frail.claims.claim(worker, **CLAIM_FILTER, limit=9) == []


async def test_a_run_whose_row_cannot_be_read_is_left_out_of_lists_and_counts(frail: SqliteStore, caplog):
    for number in range(6):
        await start_run(frail, f"r{number}")
    damage(frail, "UPDATE runs SET state = 'odd' WHERE id = 'r1'")
    damage(frail, "UPDATE runs SET tags = '{' WHERE id = 'r3'")
    damage(frail, f"UPDATE runs SET waits_for = {NOT_TEXT} WHERE id = 'r4'")
    with caplog.at_level(logging.WARNING, "holdfast.stores"):
        assert [run.id for run in await frail.list_runs(RunFilter(), limit=3)] == ["r5", "r2", "r0"]
        assert await frail.count_runs() == {(FLOW, RunState.PENDING): 5}
    for name in ("r1", "r3", "r4"):
        assert f"run '{name}' cannot be read" in caplog.text


async def test_a_lost_output_does_not_spoil_the_other_answers_of_a_commit(frail: SqliteStore, caplog):
    run, other = await start_claimed_run(frail, "broken"), await start_claimed_run(frail, "whole")
    await commit_ops(frail, finish(run, output=LARGE))
    damage(frail, "DELETE FROM blobs")
    answers = await commit_ops(frail, StartRun(new_run("broken")), append(other, 0))
    assert answers[0].run.state is RunState.COMPLETED
    assert answers[1] is DONE
    assert "the output of run 'broken' cannot be read" in caplog.text
    with pytest.raises(StoreCorrupt, match="the output of run 'broken' cannot be read: its large payload is missing"):
        await read_run(frail, "broken")


PAGE = 8192
EMPTY_LEAF = b"\x0d\0\0\0\0\x20\0\0".ljust(PAGE, b"\0")
"""A page of a table without rows: those that were there are missing, but indexes still list them."""
LISTS = (
    RunFilter(),
    RunFilter(workflow=FLOW),
    RunFilter(tag="a"),
    RunFilter(id_prefix="r"),
    RunFilter(states=(RunState.COMPLETED, RunState.RUNNING)),
    RunFilter(created_after=0.0),
)


@pytest.mark.parametrize("harm", [bytes(PAGE), EMPTY_LEAF], ids=["zeros", "no rows"])
async def test_whichever_page_is_damaged_lists_raise_nothing_but_store_errors(tmp_path: Path, harm: bytes):
    whole, damaged = tmp_path / "whole.db", tmp_path / "damaged.db"
    store = SqliteStore(whole)
    await store.open()
    for n in range(30):
        run = await start_claimed_run(store, f"r{n}", inputs=b'"' + b"x" * 1000 + b'"', tags=("a",))
        await commit_ops(store, *([finish(run)] if n % 2 else [append(run, 0)]))
    await store.close()
    content = whole.read_bytes()
    raised: list[StoreCorrupt] = []
    for page in range(PAGE, len(content), PAGE):
        damaged.write_bytes(content[:page] + harm + content[page + PAGE :])
        store = SqliteStore(damaged)
        try:
            await store.open()
            for where in LISTS:
                try:
                    await store.list_runs(where, limit=100)
                except StoreCorrupt as error:
                    raised.append(error)
        except StoreCorrupt as error:
            raised.append(error)
        finally:
            await store.close()
    assert all("is damaged" in str(error) for error in raised)
    is_named = any("the table does not have its row" in str(error) for error in raised)
    assert raised
    assert is_named or harm is not EMPTY_LEAF


async def test_a_row_that_cannot_be_read_is_left_out_when_many_are_read(frail: SqliteStore, caplog):
    for number in range(5):
        await start_run(frail, f"r{number}", inputs=LARGE if number == 4 else b"[]")
    damage(frail, "UPDATE runs SET state = 'odd' WHERE id = 'r1'")
    damage(frail, "DELETE FROM blobs")
    with caplog.at_level(logging.WARNING, "holdfast.stores"):
        assert [run.id for run in await frail.get_runs([f"r{number}" for number in range(9)])] == ["r0", "r2", "r3"]
        damage(frail, f"UPDATE runs SET waits_for = {NOT_TEXT} WHERE id = 'r3'")
        assert [run.id for run in await frail.get_runs([f"r{number}" for number in range(9)])] == ["r0", "r2"]
    for name in ("r1", "r3", "r4"):
        assert f"run '{name}' cannot be read" in caplog.text
        with pytest.raises(StoreCorrupt):
            await frail.get_run(name)


async def test_schedules_workflows_and_workers_that_cannot_be_read_are_left_out(frail: SqliteStore, caplog):
    new = [ScheduleDefinition(name, FLOW, "0 2 * * *", b"{}") for name in ("broken", "whole")]
    await frail.schedules.put(new)
    await frail.announce_workflows([WorkflowSpec(name, ()) for name in ("broken", "whole")])
    broken, whole = [await frail.workers.register(new_worker(), 10.0) for _ in range(2)]
    damage(frail, "UPDATE schedules SET options = 'odd' WHERE name = 'broken'")
    damage(frail, "UPDATE workflows SET parameters = 'odd' WHERE name = 'broken'")
    damage(frail, f"UPDATE workers SET workflows = 'odd' WHERE id = {broken}")
    assert [one.definition.name for one in await frail.schedules.list()] == ["whole"]
    assert list(await frail.get_workflow_specs()) == ["whole"]
    assert [worker.id for worker in await frail.list_workers()] == [whole]
    for what in ("schedule 'broken'", "workflow 'broken'", f"worker {broken}"):
        assert f"{what} cannot be read" in caplog.text
    assert [one.definition.name for one in await frail.schedules.put(new)] == ["broken", "whole"]  # written anew
