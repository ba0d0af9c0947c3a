"""Usage and budgets in a SQLite file: how older files get there, what it costs, and what damage does."""

from __future__ import annotations

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
    reserve,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage
from holdfast.core.states import RunState
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import OpStatus, SetBudget
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import statements as sql

pytestmark = pytest.mark.asyncio

CALL = Usage(calls=1, input_tokens=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest_asyncio.fixture
async def file(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def change(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


async def test_a_run_without_a_budget_costs_no_statement_more(file: SqliteStore):
    run, child = await start_claimed_run(file, "r"), await start_claimed_run(file, "c")
    seen: list[str] = []
    connection = file.writer._connection
    connection.set_trace_callback(seen.append)
    await commit_ops(file, append(run, 0))
    assert [statement.split()[0] for statement in seen if statement != "PRAGMA data_version"] == ["INSERT"]
    seen.clear()
    await commit_ops(file, append(run, 1, clear=True), finish(child), start_child(run, "new"))
    connection.set_trace_callback(None)
    assert not [statement for statement in seen if "usages" in statement or "reservations" in statement]
    assert connection.execute("SELECT count(*) FROM usages").fetchone() == (0,)


async def test_the_usage_of_a_call_is_added_without_reading_anything(file: SqliteStore, path: Path):
    run = await start_claimed_run(file, "r")
    [answer] = await commit_ops(file, start_child(run, "c", claim_as=run.owner))
    seen: list[str] = []
    connection = file.writer._connection
    connection.set_trace_callback(seen.append)
    for seq in (0, 2):
        assert await commit_ops(file, append(run, seq), append(run, seq + 1, used=CALL)) == [DONE, DONE]
    plain = [statement.split()[0] for statement in seen if statement != "PRAGMA data_version"]
    assert plain == ["BEGIN", "INSERT", "INSERT", "INSERT", "COMMIT"] * 2
    assert await commit_ops(file, append(run, 2), append(run, 3, used=CALL)) == [DONE, DONE], "a repeat"
    assert (await file.get_usages(["r"]))["r"].used == CALL + CALL
    assert await commit_ops(file, append(answer.run, 0, used=CALL)) == [DONE]
    connection.set_trace_callback(None)
    assert (await file.get_usages(["c"]))["c"].used == CALL
    assert (await file.get_usages(["r"]))["r"].used == CALL + CALL + CALL, "and that of its child"
    change(path, "UPDATE runs SET epoch = 2 WHERE id = 'r'")
    assert await commit_ops(file, append(run, 4, used=CALL)) == [OpStatus.FENCED]
    assert (await file.get_usages(["r"]))["r"].used == CALL + CALL + CALL
    assert connection.execute("SELECT sum(calls) FROM spending").fetchone() == (3,)


async def test_the_usage_of_many_children_in_one_commit_changes_their_parent_once(file: SqliteStore):
    parent = await start_claimed_run(file, "p")
    answers = await commit_ops(file, *[start_child(parent, f"c{at}", at, claim_as=parent.owner) for at in range(50)])
    seen: list[str] = []
    connection = file.writer._connection
    connection.set_trace_callback(seen.append)
    await commit_ops(file, *[append(answer.run, 0, used=CALL) for answer in answers])
    connection.set_trace_callback(None)
    assert len([statement for statement in seen if statement.startswith("INSERT INTO usages")]) == 51
    assert (await file.get_usages(["p"]))["p"].used.calls == 50


async def test_a_long_journal_makes_nothing_slower(file: SqliteStore):
    run = await start_claimed_run(file, budget=BudgetLimits(calls=10**9))

    async def cost(seq: int) -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection = file.writer._connection
        connection.set_progress_handler(count, 10)  # in tens of the instructions of SQLite's machine
        await commit_ops(file, reserve(run, seq), append(run, seq, used=CALL))
        connection.set_progress_handler(None, 0)
        return steps

    await cost(0)
    early = await cost(1)
    await commit_ops(file, *[append(run, seq, used=CALL) for seq in range(2, 3000)])
    assert await cost(3000) <= early + 10
    assert (await file.get_usages(["r"]))["r"].used.calls == 3001


async def test_the_reservations_of_an_unreadable_run_are_released(file: SqliteStore, path: Path, caplog):
    parent = await start_claimed_run(file, "p", budget=BudgetLimits(tokens=100), lease=1e9)
    [answer] = await commit_ops(file, start_child(parent, "c", claim_as=parent.owner))
    assert await commit_ops(file, reserve(answer.run, 0, 100)) == [DONE]
    change(path, "UPDATE runs SET state = 'pending', owner = NULL, ready_state = 1, tags = '{' WHERE id = 'c'")
    assert await file.claims.claim(parent.owner or 0, **CLAIM_FILTER, limit=1) == []
    assert "cannot be read" in caplog.text
    [end] = await list_signals(file, parent)
    assert end.name == RunState.FAILED
    assert await commit_ops(file, reserve(parent, 1, 100)) == [DONE]


@pytest.mark.parametrize("text", ["{", "[1]" * 2, "[1, 2, 3, 4, 5]", '["much", null, null, null]', "7"])
async def test_a_budget_that_cannot_be_read_lets_nothing_through_until_it_is_set_anew(
    file: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, text: str
):
    parent = await start_claimed_run(file, "p", budget=BudgetLimits(tokens=100))
    [answer] = await commit_ops(file, start_child(parent, "c", claim_as=parent.owner))
    other = await start_claimed_run(file, "other", budget=BudgetLimits(tokens=100))
    change(path, "UPDATE usages SET budget = ? WHERE run = ?", text, parent.key)
    with caplog.at_level(logging.WARNING):
        refused, granted = await commit_ops(file, reserve(answer.run, 0, 1), reserve(other, 0, 1))
        assert (isinstance(refused, BudgetShortage), granted) == (True, DONE)
        assert (await file.get_usages(["p"]))["p"].budget == BudgetLimits(0, 0, 0, 0.0)
    assert "the budget of run 'p' cannot be read" in caplog.text
    assert await commit_ops(file, SetBudget("p", BudgetLimits(tokens=50), 1.0), reserve(answer.run, 0, 50)) == [
        DONE,
        DONE,
    ]
    assert len(await list_signals(file, answer.run)) == 1


async def test_a_workflow_whose_budget_cannot_be_read_is_named_and_left_out(
    file: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
):
    await file.announce_workflows(
        [WorkflowSpec(name, (), budget=BudgetLimits(calls=1)) for name in ("helper", "other")]
    )
    change(path, "UPDATE workflows SET budget = '[1' WHERE name = 'helper'")
    assert list(await file.get_workflow_specs()) == ["other"]
    assert "workflow 'helper' cannot be read: '[1' is not a budget" in caplog.text


async def test_the_newest_run_of_a_session_is_found_by_an_index(file: SqliteStore):
    await start_run(file, "a", session="talk")
    plan = file.writer._connection.execute(
        f"EXPLAIN QUERY PLAN {sql.STATEMENTS.NEWEST_IN_SESSION}", (FLOW, "talk")
    ).fetchall()
    assert [row[3] for row in plan] == ["SEARCH runs USING INDEX runs_sessions (workflow=? AND session=?)"]
