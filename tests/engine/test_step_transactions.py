"""Transactional steps: exactly once, whatever happens between the commit of what they did and their record."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import postgres_server
import psycopg
import pytest
import pytest_asyncio
from engine_world import (
    FlakyStore,
    World,
    describe_journal,
    make_unavailable_error,
    read_attempts,
    read_journal,
    wait_until_ended,
)
from shared_flows import define_calling

from holdfast import RunFailed, UsageError, current_step, step, workflow
from holdfast.errors import DefinitionError, StepTimedOut, UnrecordableValue
from holdfast.stores.operations import AppendRecord, OpStatus
from waits import wait_until

pytestmark = pytest.mark.asyncio

INSERT = "INSERT INTO paid VALUES (1)"


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world on a store that has one, with a table for payments."""
    with postgres_server.database() if request.param == "postgres" else nullcontext(tmp_path) as place:
        world = World(request.param, place)
        await world.open_store()
        query(world, "CREATE TABLE paid (amount int)")
        yield world
        await world.close()


def query(world: World, statement: str) -> list[tuple[Any, ...]]:
    if world.kind == "postgres":
        with psycopg.connect(world.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def count_payments(world: World) -> int:
    return query(world, "SELECT count(*) FROM paid")[0][0]


async def pay_now() -> None:
    done = current_step().connection.execute(INSERT)
    if asyncio.iscoroutine(done):
        await done


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_step_is_committed_with_its_outcome(database: World, plain: bool):
    if plain:

        @step(transaction=True)
        def pay(amount: int) -> int:
            current_step().heartbeat()
            current_step().connection.execute(INSERT)
            return amount

    else:

        @step(transaction=True)
        async def pay(amount: int) -> int:
            await pay_now()
            return amount

    @workflow
    async def flow() -> list[int]:
        return [await pay(n) for n in range(3)]

    runtime = await database.open()
    handle = await runtime.start(flow)
    assert await handle.result() == [0, 1, 2]
    assert count_payments(database) == 3
    assert await read_attempts(runtime, handle) == {}
    assert [record.preview for record in await read_journal(runtime, handle)] == ["amount=0", "amount=1", "amount=2"]


async def test_a_failed_attempt_leaves_nothing_and_is_retried(database: World):
    tries: list[int] = []

    @step(transaction=True, retries=2)
    async def pay() -> int:
        tries.append(current_step().attempt)
        await pay_now()
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    flow = define_calling(pay)

    runtime = await database.open()
    handle = await runtime.start(flow)
    assert await handle.result() == 3
    assert (tries, count_payments(database)) == ([1, 2, 3], 1)
    assert [record.attempts for record in await read_journal(runtime, handle)] == [3]


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_what_was_committed_before_a_crash_is_recorded_and_not_done_again(database: World, dies: str):
    calls: list[str] = []
    reached = asyncio.Event()

    @step(transaction=True)
    async def pay() -> str:
        calls.append("pay")
        await pay_now()
        return f"paid {len(calls)}"

    flow = define_calling(pay)

    async def hang(ops: Any) -> None:
        if any(isinstance(op, AppendRecord) for op in ops):
            reached.set()
            await asyncio.Event().wait()

    store = FlakyStore(database.store(), before_commit=hang)
    first = await database.open(store=store)
    if dies == "before":
        begin = store.inner.step_transactions.begin

        async def begin_and_hang(*args: Any, **kwargs: Any) -> Any:
            transaction = await begin(*args, **kwargs)

            async def commit(_: bytes) -> OpStatus:
                reached.set()
                await transaction.abandon()
                return await asyncio.Future[OpStatus]()

            transaction.commit, transaction.real = commit, transaction.commit
            return transaction

        store.inner.step_transactions.begin = begin_and_hang
    handle = await first.start(flow)
    await reached.wait()
    assert count_payments(database) == (1 if dies == "after" else 0)
    await database.crash(first)
    second = await database.open()
    result = await flow.get_handle(second.store_provider, handle.run_id).result()
    assert result == ("paid 1" if dies == "after" else "paid 2")
    assert count_payments(database) == 1
    assert await read_attempts(second, handle) == {}
    [record] = await read_journal(second, handle)
    assert (record.epoch, record.attempts, record.ok) == (2, 1, True)


async def test_a_record_that_cannot_be_appended_for_a_while_repeats_nothing(database: World):
    calls: list[int] = []

    @step(transaction=True)
    async def pay() -> int:
        calls.append(1)
        await pay_now()
        return 7

    flow = define_calling(pay)

    store = FlakyStore(database.store())
    failures = iter(range(3))
    store.fail_before = lambda ops: (
        make_unavailable_error()
        if any(isinstance(op, AppendRecord) for op in ops) and next(failures, None) is not None
        else None
    )
    runtime = await database.open(store=store)
    assert await (await runtime.start(flow)).result() == 7
    assert (len(calls), count_payments(database)) == (1, 1)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_step_that_takes_too_long_leaves_nothing(database: World, plain: bool):
    done: list[BaseException] = []

    if plain:

        @step(transaction=True, timeout=0.1)
        def pay() -> None:
            current = current_step()
            connection = current.connection
            connection.execute(INSERT)
            time.sleep(0.3)
            try:
                connection.execute(INSERT)
            except Exception as error:
                done.append(error)

    else:

        @step(transaction=True, timeout=0.1)
        async def pay() -> None:
            try:
                await pay_now()
                await asyncio.sleep(60)
            finally:
                done.append(StepTimedOut("", ""))

    @workflow
    async def flow() -> str:
        try:
            await pay()
        except StepTimedOut:
            return "too long"
        return "in time"

    runtime = await database.open()
    assert await (await runtime.start(flow)).result() == "too long"
    await wait_until(lambda: done)
    assert count_payments(database) == 0


@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # else nobody can take a run meanwhile
async def test_a_worker_that_lost_the_run_commits_nothing(database: World):
    hang, begun = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    @step(transaction=True)
    async def pay() -> int:
        calls.append(1)
        await pay_now()
        if len(calls) == 1:
            begun.set()
            await hang.wait()
        return len(calls)

    flow = define_calling(pay)

    first = await database.open()
    handle = await first.start(flow)
    await begun.wait()
    await database.kill(first)
    second = await database.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == 2
    hang.set()
    await wait_until(lambda: not first._engine.held_runs.drivers)
    assert count_payments(database) == 1


async def test_a_transaction_that_the_database_ends_is_begun_again_without_using_up_retries(
    database: World,
):
    calls: list[int] = []

    @step(transaction=True)
    async def pay() -> int:
        calls.append(current_step().attempt)
        await pay_now()
        if database.kind == "postgres" and len(calls) == 1:
            pid = current_step().connection.info.backend_pid
            await asyncio.to_thread(query, database, f"SELECT pg_terminate_backend({pid})")
            await pay_now()
        return len(calls)

    flow = define_calling(pay)

    store = database.store()
    begin = store.step_transactions.begin
    begun, cut = 0, 2 if database.kind == "postgres" else 1

    async def begin_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        transaction = await begin(*args, **kwargs)
        begun += 1
        if begun == cut:

            def fail(_: bytes) -> None:
                raise (psycopg.OperationalError if database.kind == "postgres" else sqlite3.OperationalError)("cut")

            transaction._commit = fail
        return transaction

    store.step_transactions.begin = begin_step
    runtime = await database.open(store=store)
    handle = await runtime.start(flow)
    assert await handle.result() == cut + 1
    assert calls == list(range(1, cut + 2))
    assert count_payments(database) == 1


async def test_what_the_store_cannot_keep_is_not_committed(database: World):
    @step(transaction=True)
    async def pay() -> Any:
        await pay_now()
        return object()

    @workflow
    async def flow() -> None:
        await pay()

    runtime = await database.open()
    with pytest.raises(RunFailed) as failed:
        await (await runtime.start(flow)).result()
    assert isinstance(failed.value.__cause__, UnrecordableValue)
    assert count_payments(database) == 0


async def test_a_compensation_may_be_transactional(database: World):
    @step(transaction=True)
    async def refund() -> None:
        done = current_step().connection.execute("DELETE FROM paid")
        if asyncio.iscoroutine(done):
            await done

    @step(transaction=True, compensate=refund)
    async def pay() -> int:
        await pay_now()
        return 1

    @workflow
    async def flow() -> None:
        await pay()
        assert count_payments(database) == 1
        raise ValueError("changed my mind")

    runtime = await database.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    assert count_payments(database) == 0
    assert await describe_journal(runtime, handle) == ["step pay", "compensation refund"]


@pytest.mark.parametrize("dies", [False, True])
async def test_what_was_committed_while_the_workflow_cancelled_it_is_undone(database: World, dies: bool):
    """The transaction is in the database, with its outcome, and only the record is missing."""
    committed, let_go, recording = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @step(transaction=True)
    async def refund() -> None:
        done = current_step().connection.execute("DELETE FROM paid")
        if asyncio.iscoroutine(done):
            await done

    @step(transaction=True, compensate=refund)
    async def pay() -> int:
        await pay_now()
        return 1

    @workflow
    async def flow() -> None:
        async with asyncio.timeout(100):
            await pay()

    async def hang(ops: Sequence[Any]) -> None:
        if dies and any(isinstance(op, AppendRecord) and op.record.name == "pay" for op in ops):
            recording.set()
            await asyncio.Event().wait()

    store = FlakyStore(database.store(), before_commit=hang)
    begin = store.inner.step_transactions.begin

    async def begin_slowly(*args: Any, **kwargs: Any) -> Any:
        transaction = await begin(*args, **kwargs)
        real = transaction.commit

        async def commit(outcome: bytes) -> OpStatus:
            verdict = await real(outcome)
            committed.set()
            await let_go.wait()  # the answer takes a while
            return verdict

        transaction.commit = commit
        return transaction

    store.inner.step_transactions.begin = begin_slowly
    runtime = await database.open(store=store)
    handle = await runtime.start(flow)
    await committed.wait()
    database.clock.advance(101)
    await wait_until(lambda: runtime._engine.held_runs.drivers_by_run_id[handle.run_id].execution.is_compensation_held)
    let_go.set()
    if dies:
        await recording.wait()
        assert count_payments(database) == 1
        await database.crash(runtime)
        runtime = await database.open()
    await wait_until_ended(runtime, handle)
    assert await describe_journal(runtime, handle) == ["timer 100 s", "step pay", "compensation refund"]
    assert count_payments(database) == 0


async def test_a_step_of_a_class_may_be_transactional(database: World):
    @workflow
    class Paying:
        @step(1, transaction=True)
        def pay(self, amount: int) -> int:
            connection = current_step().connection
            if database.kind == "sqlite":
                connection.execute(INSERT)
            else:
                with connection.transaction():
                    connection.execute(INSERT)
            return amount

        @step(2, depends_on=1, transaction=True)
        async def pay_again(self, paid: int) -> int:
            await pay_now()
            return paid + 1

    runtime = await database.open()
    assert await (await runtime.start(Paying, amount=6)).result() == 7
    assert count_payments(database) == 2


async def test_progress_is_refused_and_other_steps_have_no_connection(database: World):
    @step(transaction=True)
    async def pay() -> None:
        current_step().heartbeat("half")

    @step
    async def plain() -> None:
        _ = current_step().connection

    @workflow
    async def flow() -> list[str]:
        told: list[str] = []
        for one in (pay, plain):
            try:
                await one()
            except UsageError as error:
                told.append(str(error))
        return told

    runtime = await database.open()
    progress, connection = await (await runtime.start(flow)).result()
    assert "call heartbeat() without progress" in progress
    assert "write @step(transaction=True) above 'plain'" in connection


async def test_a_store_without_a_database_says_so(in_memory: World):
    @step(transaction=True)
    def pay() -> None:
        pass

    @workflow
    async def flow() -> None:
        await pay()

    runtime = await in_memory.open(threads=1)
    for _ in range(2):  # the thread that was reserved is given back
        with pytest.raises(RunFailed, match="no database that could commit"):
            await (await runtime.start(flow)).result()


async def test_a_transactional_step_is_never_once():
    with pytest.raises(DefinitionError, match="drop effect='once'"):

        @step(transaction=True, effect="once")
        def pay() -> None:
            pass


async def test_a_store_without_a_database_refuses_a_transactional_step_by_name(in_memory: World):
    @step(transaction=True)
    async def pay() -> None: ...

    @workflow
    async def flow() -> None:
        await pay()

    runtime = await in_memory.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match=r"step 'pay' has transaction=True.*sqlite:///… or postgresql://…"):
        await handle.result()
