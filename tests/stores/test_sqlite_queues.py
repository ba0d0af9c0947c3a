"""Queues with limits in a SQLite file: what a long backlog costs, what is cleared away, and files of older releases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from queue_values import QUEUE, claim_ids, declare_limited_queue, get_next_wake, make_limits, start_queued_runs
from store_values import CLAIM_FILTER, Clock, append, commit_ops, finish, new_run, read_run, start_run

from holdfast.admission.usage import Usage
from holdfast.stores.contract import MAX_INLINE_BYTES
from holdfast.stores.operations import StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest_asyncio.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=clock)
    await store.open()
    yield store
    await store.close()


class Steps:
    """How many steps SQLite has made, in tens."""

    def __init__(self, store: SqliteStore) -> None:
        self.count = 0
        for line in (store.writer, store._engine_reader):
            line._connection.set_progress_handler(self._count_statement, 10)

    def _count_statement(self) -> int:
        self.count += 1
        return 0


def count(store: SqliteStore, table: str) -> int:
    return store._engine_reader._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize("limit", [{"key_concurrency": 1}, {"key_rates": ("1/hour",)}], ids=["places", "rate"])
async def test_a_long_backlog_of_a_key_at_its_limit_is_read_once(store: SqliteStore, limit: dict[str, object]):
    worker = await declare_limited_queue(store, None, **limit)
    for block in range(20):
        new = [new_run(f"acme/{block}/{n}", queue=QUEUE, queue_key="acme", priority=1) for n in range(1000)]
        await commit_ops(store, *map(StartRun, new))
    await start_queued_runs(store, "other/1")
    assert await claim_ids(store, worker, limit=10) == ["acme/0/0", "other/1"]  # what is in the way is set aside
    await start_queued_runs(store, "other/2", "third/1")
    steps = Steps(store)
    assert await claim_ids(store, worker, limit=10) == ["third/1"]
    assert await claim_ids(store, worker, limit=10) == []
    await get_next_wake(store)
    assert steps.count < 400
    if "key_concurrency" in limit:
        await commit_ops(store, finish(await read_run(store, "acme/0/0")), finish(await read_run(store, "other/1")))
        steps.count = 0
        assert await claim_ids(store, worker, limit=10) == ["acme/0/1", "other/2"]
        assert steps.count < 400


async def test_keys_that_are_in_no_use_any_more_are_forgotten(store: SqliteStore, clock: Clock):
    worker = await declare_limited_queue(store, None, key_concurrency=1, key_rates=("1/min",))
    await start_queued_runs(store, *(f"c{n}/1" for n in range(30)), "busy/1", "busy/2", "busy/3")
    taken = await store.claims.claim(worker, **CLAIM_FILTER, limit=99)
    assert len(taken) == 31
    await commit_ops(store, *map(finish, taken))
    assert (count(store, "queue_turns"), count(store, "queue_keys")) == (31, 31)
    for _ in range(3):  # the one that has runs is looked at again later
        clock.advance(90_000)
        await store.retention.sweep()
    assert (count(store, "queue_turns"), count(store, "queue_keys")) == (1, 1)
    assert await claim_ids(store, worker) == ["busy/2"]
    await start_queued_runs(store, "c0/2")
    assert await claim_ids(store, worker) == ["c0/2"]


async def test_replaced_large_inputs_are_deleted(store: SqliteStore, clock: Clock):
    def large(letter: bytes) -> bytes:
        return b'"' + letter * (MAX_INLINE_BYTES + 1) + b'"'

    await start_run(store, "r", dedup_key="d", max_debounce_s=60.0, available_at=clock.now + 5, inputs=large(b"a"))
    for letter in (b"b", b"c"):
        again = new_run("s", dedup_key="d", max_debounce_s=60.0, available_at=clock.now + 5, inputs=large(letter))
        [answer] = await commit_ops(store, StartRun(again))
        assert (answer.run.id, answer.run.inputs) == ("r", large(letter))
    await commit_ops(store, StartRun(new_run("t", dedup_key="d", inputs=large(b"d"))))
    assert count(store, "blobs") == 4
    while not (await store.retention.sweep()).is_done:
        pass
    assert count(store, "blobs") == 1
    assert (await read_run(store)).inputs == large(b"c")
    [fresh] = await commit_ops(store, StartRun(new_run("u")))
    assert fresh.run.key == 5, "no key is used again"


async def test_charges_are_stored_until_a_claim_counts_them(store: SqliteStore):
    worker = await declare_limited_queue(store, None, "100 tokens/min")
    await start_queued_runs(store, "a", "b")
    [run, _] = await store.claims.claim(worker, **CLAIM_FILTER, limit=2)
    record = append(run, 0, used=Usage(calls=1, input_tokens=60, output_tokens=41))
    assert await commit_ops(store, record) == await commit_ops(store, record)
    assert count(store, "queue_charges") == 1
    await start_queued_runs(store, "c")
    assert await claim_ids(store, worker) == []
    assert count(store, "queue_charges") == 0
    await store.queues.set_limits(QUEUE, make_limits(1))
    await commit_ops(store, append(run, 1, used=Usage(calls=1, input_tokens=60)))
    assert count(store, "queue_charges") == 0, "its queue counts no tokens"


async def test_limits_that_cannot_be_read_let_nothing_through_until_they_are_set_anew(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
):
    worker = await declare_limited_queue(store, 1)
    await start_queued_runs(store, "a")
    store.writer._connection.execute("UPDATE queues SET limits = '[null, [\"9/parsec\"], null, []]'")
    await start_run(store, "free")
    assert await claim_ids(store, worker) == ["free"]
    assert await store.queues.list() == []
    assert "queue 'llm' cannot be read" in caplog.text
    assert await store.queues.set_limits(QUEUE, make_limits(1)) is True
    assert await claim_ids(store, worker) == ["a"]


async def test_the_next_change_of_a_queue_finishes_an_interrupted_one(store: SqliteStore):
    await start_queued_runs(store, "a", "b")
    worker = await declare_limited_queue(store, 1)
    connection = store.writer._connection
    connection.execute("UPDATE runs SET due_state = 1, ready_state = 1, turn = 0 WHERE id = 'b'")
    connection.execute("UPDATE queues SET is_complete = 0")
    await store.queues.declare([NewQueue(QUEUE, make_limits(1))])
    assert await claim_ids(store, worker) == ["a"]
    connection.execute("UPDATE queues SET declared_limits = NULL, limits = '[null, [], null, []]', concurrency = NULL")
    await store.queues.declare([NewQueue("another", make_limits(1))])
    assert [queue.name for queue in await store.queues.list()] == ["another"]
    assert [(await read_run(store, name)).is_limited for name in "ab"] == [False, False]


async def test_announcing_known_queues_writes_nothing(store: SqliteStore):
    await declare_limited_queue(store, 1)
    before = store.writer._connection.total_changes
    await store.queues.declare([NewQueue(QUEUE, make_limits(1))])
    assert store.writer._connection.total_changes == before
