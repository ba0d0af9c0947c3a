"""Records that are sent from the event loop, without a thread: whatever happens, the connection stays usable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import postgres_server
import psycopg
import pytest
import pytest_asyncio
from store_values import (
    DONE,
    FENCED,
    Clock,
    append,
    claim_run,
    finish,
    new_run,
    new_worker,
    read_run,
    start_child,
    start_run,
)

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.usage import Usage
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores.operations import CancelRun, OpStatus, Run, StartResult, StartRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.queues import NewQueue

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 20.0
CALL = Usage(calls=1, input_tokens=100, output_tokens=20, nano_usd=7, seconds=1.5)
LOCK_RUN = "SELECT FROM holdfast.runs WHERE id = 'r' FOR UPDATE"


class HeldRun(NamedTuple):
    """A held run, and a second connection that can lock its row."""

    store: PgStore
    run: Run
    other: psycopg.AsyncConnection[Any]


@pytest_asyncio.fixture
async def held() -> AsyncIterator[HeldRun]:
    with postgres_server.database() as url:
        store = PgStore(url, clock=Clock(), poll_interval_s=0.0)
        await store.open()
        worker = await store.workers.register(new_worker(), 1e6)
        await start_run(store)
        other = await psycopg.AsyncConnection.connect(url, autocommit=True)
        yield HeldRun(store, await claim_run(store, worker), other)
        await store.close()
        await other.close()


async def journal(held: HeldRun) -> list[int]:
    [history] = await held.store.get_histories([held.run.key])
    return [record.seq for record in history.records]


async def start_commit(held: HeldRun) -> asyncio.Task[Any]:
    """Start a commit of a record that waits for the run's row, which the other connection has locked."""
    await held.other.execute("BEGIN")
    await held.other.execute(LOCK_RUN)
    commit = asyncio.create_task(held.store.commit([append(held.run, 0)]))
    await wait_for_lock(held)
    return commit


async def wait_for_lock(held: HeldRun) -> None:
    """Wait until a session waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(TIMEOUT_S):
        while (await (await held.other.execute(query)).fetchone()) == (0,):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.005)


async def test_a_commit_of_records_alone_uses_no_thread(held: HeldRun, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = held.store._write_worker
    assert worker is not None
    monkeypatch.setattr(worker, "run_in_thread", None)
    assert await held.store.commit([append(held.run, 0)]) == [DONE]
    assert await held.store.commit([append(held.run, 1), append(held.run, 2)]) == [DONE, DONE]
    monkeypatch.undo()
    assert await held.store.commit([append(held.run, 2), append(held.run, 3)]) == [DONE, DONE]  # handed in again
    assert await held.store.commit([append(held.run, 4, epoch=9)]) == [FENCED]
    assert await journal(held) == [0, 1, 2, 3]


async def test_a_commit_of_records_with_their_usage_uses_no_thread(
    held: HeldRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = held.store, await start_and_claim(held, "other")
    worker = store._write_worker
    assert worker is not None
    monkeypatch.setattr(worker, "run_in_thread", None)
    assert await store.commit([append(held.run, 0, used=CALL)]) == [DONE]
    both = [append(held.run, 1, used=CALL), append(held.run, 2), append(other, 0, used=CALL), append(held.run, 3)]
    assert await store.commit(both) == [DONE] * 4
    assert await store.commit([append(held.run, 4, used=CALL), finish(other)]) == [DONE, DONE]
    monkeypatch.undo()
    assert await journal(held) == [0, 1, 2, 3, 4]
    assert await list_calls(store) == ({"r": 3, "other": 1}, 4)


async def test_usage_counts_once_whoever_appends_the_record(held: HeldRun) -> None:
    store = held.store
    assert await store.commit([append(held.run, 0, used=CALL)]) == [DONE]
    store._plain_usages_after = 0.0
    again = [append(held.run, 0, used=CALL), append(held.run, 1, used=CALL)]
    assert await store.commit(again) == [DONE, DONE]  # on the loop it is refused, and then the thread looks
    store._plain_usages_after = 0.0
    assert await store.commit([append(held.run, 2, used=CALL, epoch=9)]) == [FENCED]
    assert store._plain_usages_after > 0.0
    assert await store.commit([append(held.run, 2, used=CALL)]) == [DONE]  # in the thread, for a moment
    assert await journal(held) == [0, 1, 2]
    assert await list_calls(store) == ({"r": 3}, 3)


async def test_usage_that_the_loop_cannot_add_is_added_as_ever(held: HeldRun) -> None:
    store, worker = held.store, held.run.owner
    [started] = await store.commit([start_child(held.run, "child", claim_as=worker)])
    assert isinstance(started, StartResult)
    records = [append(started.run, 0, used=CALL), append(held.run, 0, used=CALL)]
    assert await store.commit(records) == [DONE, DONE]
    assert await list_calls(store) == ({"r": 2, "child": 1}, 2)
    await store.queues.declare([NewQueue("narrow", QueueLimits(concurrency=1))])
    await start_run(store, "limited", queue="narrow")
    limited = await claim_run(store, worker)
    store._plain_usages_after = 0.0
    assert await store.commit([append(limited, 0, used=CALL)]) == [DONE]
    assert store._plain_usages_after > 0.0


async def list_calls(store: PgStore) -> tuple[dict[str, int], int]:
    """The model calls in the accounts of runs, and on all days."""
    usages = await store.get_usages(["r", "other", "child"])
    days = await store.daily_usage.get("0001-01-01", "9999-12-31")
    return {run_id: usage.used.calls for run_id, usage in usages.items()}, sum(day.used.calls for day in days)


async def start_and_claim(held: HeldRun, run_id: str) -> Run:
    await start_run(held.store, run_id)
    return await claim_run(held.store, held.run.owner)


async def test_the_end_of_a_run_that_leaves_nothing_to_do_uses_no_thread(
    held: HeldRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [await start_and_claim(held, name) for name in ("a", "b", "c", "d")]
    worker = held.store._write_worker
    assert worker is not None
    monkeypatch.setattr(worker, "run_in_thread", None)
    assert await held.store.commit([finish(others[0])]) == [DONE]
    assert await held.store.commit([finish(others[1]), append(held.run, 0), finish(others[2])]) == [DONE] * 3
    monkeypatch.undo()
    ended, missing = await held.store.get_ended_runs(["r", "a", "b", "c", "d"])
    assert ({run.id for run in ended}, [*missing]) == ({"a", "b", "c"}, [])
    # One of them ended before, and one is cancelled.
    await held.store.commit([CancelRun("d", 0.0)])
    answers = await held.store.commit([finish(others[0]), finish(others[3]), append(held.run, 1)])
    assert answers == [OpStatus.DONE_NOTIFIED, OpStatus.REFUSED, DONE]
    assert await held.store.commit([append(held.run, 2), finish(held.run)]) == [DONE, DONE]
    assert await journal(held) == [0, 1, 2]


async def test_a_run_that_begins_to_wait_while_the_other_ends_is_notified(held: HeldRun) -> None:
    waiter = await start_and_claim(held, "waiter")
    await held.other.execute("BEGIN")
    await held.other.execute(LOCK_RUN)
    await held.other.execute(f"INSERT INTO holdfast.links VALUES ({waiter.key}, 0, {held.run.key}, 1)".encode())
    commit = asyncio.create_task(held.store.commit([finish(held.run)]))
    await wait_for_lock(held)
    await held.other.execute("COMMIT")
    assert await commit == [OpStatus.DONE_NOTIFIED]
    [history] = await held.store.get_histories([waiter.key])
    assert [(signal.name, signal.position) for signal in history.signals] == [("completed", 0)]


async def test_the_loop_and_the_thread_take_turns(held: HeldRun) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        for at in range(0, 60, 3):
            one, two, three = (append(held.run, at + more) for more in range(3))
            given = held.store.commit([one]), held.store.commit([two]), held.store.commit([three])
            for answers in await asyncio.gather(
                *given, held.store.disabled_workflows.disable("x"), held.store.disabled_workflows.enable("x")
            ):
                assert answers in ([DONE], True, False)
    assert await journal(held) == list(range(60))


async def test_more_than_a_socket_takes_at_once_is_sent_piece_by_piece(held: HeldRun) -> None:
    many = [append(held.run, seq, payload=b"%d" % seq * 900) for seq in range(300)]
    async with asyncio.timeout(TIMEOUT_S):
        assert await held.store.commit(many) == [DONE] * 300
        assert await held.store.commit([append(held.run, 300)]) == [DONE]
    assert await journal(held) == list(range(301))


async def test_a_cancelled_caller_does_not_stop_what_was_sent(held: HeldRun) -> None:
    commit = await start_commit(held)
    commit.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await commit
    await held.other.execute("COMMIT")
    async with asyncio.timeout(TIMEOUT_S):
        assert await held.store.commit([append(held.run, 1)]) == [DONE]
    assert await journal(held) == [0, 1]


async def test_a_connection_that_is_cut_meanwhile_is_replaced(held: HeldRun) -> None:
    commit = await start_commit(held)
    await held.other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )
    with pytest.raises(StoreUnavailable):
        await commit
    await held.other.execute("COMMIT")
    async with asyncio.timeout(TIMEOUT_S):
        assert await held.store.commit([append(held.run, 0)]) == [DONE]
    assert await journal(held) == [0]


async def test_a_connection_that_is_cut_between_two_commits_is_replaced_first(held: HeldRun) -> None:
    assert await held.store.commit([append(held.run, 0)]) == [DONE]
    await held.other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database() AND query LIKE 'INSERT INTO%'"
    )
    await asyncio.sleep(0.05)  # it is the kernel that brings the news
    async with asyncio.timeout(TIMEOUT_S):
        assert await held.store.commit([append(held.run, 1)]) == [DONE]
    assert await journal(held) == [0, 1]


async def test_a_failed_send_reports_why_and_frees_the_connection(held: HeldRun) -> None:
    with pytest.raises(UsageError, match="half of a character"):
        await held.store.commit([append(held.run, 0, name="half \ud83d of one")])
    assert await held.store.commit([append(held.run, 0)]) == [DONE]
    assert await held.store.commit([finish(held.run)]) == [DONE]


def a_loop_that_ends_too_soon(url: str) -> PgStore:
    """Leave a store whose commit is under way on a loop that is closed by now."""
    store = PgStore(url, clock=Clock(), poll_interval_s=0.0)

    async def leave() -> None:
        await store.open()
        worker = await store.workers.register(new_worker(), 1e6)
        await start_run(store)
        run = await claim_run(store, worker)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            await start_commit(HeldRun(store, run, other))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return store


async def test_a_store_can_be_abandoned_after_its_loop_was_closed_in_a_commit() -> None:
    with postgres_server.database() as url:
        store = await asyncio.to_thread(a_loop_that_ends_too_soon, url)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.to_thread(store.abandon)
        again = PgStore(url, clock=Clock(), poll_interval_s=0.0)
        await again.open()
        assert [worker.state for worker in await again.list_workers(extra_ids=[1])] == ["retired"]
        await again.close()


async def test_starts_that_only_create_runs_use_no_thread(held: HeldRun, monkeypatch: pytest.MonkeyPatch) -> None:
    store, worker = held.store, held.run.owner
    assert store._write_worker is not None
    monkeypatch.setattr(store._write_worker, "run_in_thread", None)
    ids = [f"r{n}" for n in (3, 1, 2)]
    started = await store.commit([*(StartRun(new_run(run_id), worker) for run_id in ids), append(held.run, 0)])
    assert started[-1] is DONE
    runs = [answer.run for answer in started[:-1] if isinstance(answer, StartResult) and answer.is_new]
    assert [run.id for run in runs] == ids
    assert sorted(run.key for run in runs) == [run.key for run in runs], "claims take them in their order"
    assert await store.commit([finish(held.run), StartRun(new_run("pending"))]) == [
        DONE,
        StartResult(await read_run(store, "pending"), is_new=True),
    ]
    assert [await store.get_run(run.id) for run in runs] == runs
    monkeypatch.undo()


async def test_a_start_that_the_loop_cannot_do_is_answered_as_ever(held: HeldRun) -> None:
    store, worker = held.store, held.run.owner
    [existing, new] = await store.commit([StartRun(new_run("r", seed=b"another")), StartRun(new_run("s"))])
    assert existing == StartResult(held.run, is_new=False)
    assert isinstance(new, StartResult)
    assert new.is_new
    store._plain_starts_after = 0.0
    await store.queues.declare([NewQueue("narrow", QueueLimits(concurrency=1))])
    [limited] = await store.commit([StartRun(new_run("t", queue="narrow"), worker)])
    assert isinstance(limited, StartResult)
    assert limited.run.is_limited
    assert limited.run.owner is None
    store._plain_starts_after = 0.0
    await store.disabled_workflows.disable("flow")
    [refused] = await store.commit([StartRun(new_run("u", workflow="flow"), worker)])
    assert refused is OpStatus.WORKFLOW_DISABLED
    await store.disabled_workflows.enable("flow")
    store._plain_starts_after = 0.0
    await store.workers.retire(worker or 0)
    [unheld] = await store.commit([StartRun(new_run("v"), worker)])
    assert isinstance(unheld, StartResult)
    assert unheld.is_new
    assert unheld.run.owner is None


async def test_a_store_that_finds_a_change_without_work_once_does_not_pause(
    held: HeldRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slept = held.store, list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    store._claims.fruitless_change_count = 0
    for _ in range(3):
        store._change_reported_at = asyncio.get_running_loop().time() - 0.015
        store.report_change()
        assert await store.wait_for_change(1e6, follow_runs=False)
    assert [seconds > 0 for seconds in slept] == [False, False, True]


@pytest.mark.parametrize("is_abandoned", [False, True])
async def test_the_loop_forgets_the_sockets_of_a_closed_store(held: HeldRun, *, is_abandoned: bool) -> None:
    store = held.store
    assert await store.commit([append(held.run, 0)]) == [DONE]
    assert await store.get_run("r") is not None
    sockets = [
        worker._reconnecting.connection.pgconn.socket
        for worker in (store._write_worker, store._read_worker)
        if worker is not None and worker._watcher is not None and worker._reconnecting.connection is not None
    ]
    assert len(sockets) == 2, "both are watched between two queries"
    if is_abandoned:
        store.abandon()
    else:
        await store.close()
    # The next connection may get the same number. A loop that still has it would not watch the new socket.
    loop = asyncio.get_running_loop()
    assert [loop.remove_reader(socket) for socket in sockets] == [False, False]


async def test_a_connection_that_is_cut_while_more_is_sent_is_replaced(held: HeldRun) -> None:
    others = [await start_and_claim(held, f"other-{number}") for number in range(150)]
    await held.other.execute("BEGIN")
    await held.other.execute(LOCK_RUN)
    ends = [finish(run, output=b"%d" % run.key * 1000) for run in others]
    commit = asyncio.create_task(held.store.commit([append(held.run, 0), *ends]))
    await wait_for_lock(held)
    worker = held.store._write_worker
    assert worker is not None
    assert worker._watcher is not None
    assert worker._watcher._is_watching_writes, "the server waits for the lock, and reads no more"
    with socket.socket(fileno=os.dup(worker._watcher.fd)) as connection:
        connection.shutdown(socket.SHUT_RD)  # the server's end of the connection is gone
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(StoreUnavailable):
            await commit
        await held.other.execute("COMMIT")
        assert await held.store.commit([append(held.run, 0)]) == [DONE]
    assert await journal(held) == [0]
