"""Concurrent retries of related runs: the second finds the changes of the first."""

from __future__ import annotations

import asyncio

import postgres_server
import psycopg
import pytest
from store_values import (
    DONE,
    NOTIFIED,
    Clock,
    append,
    commit_ops,
    finish,
    list_record_seqs,
    read_run,
    rewind,
    start_child,
    start_claimed_run,
)

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.operations import ReopenRun
from holdfast.stores.postgres import PgStore

pytestmark = pytest.mark.asyncio

PATIENCE = 20.0
WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND wait_event IN ('tuple', 'transactionid') AND datname = current_database()"
)
TAKEN_UP = (
    "UPDATE holdfast.runs SET state = 'running', epoch = 2, owner = %s, finished_at = NULL, error = NULL, "
    "rewind = NULL WHERE id = 'c'"
)


async def test_a_child_that_was_reopened_meanwhile_is_left_to_its_worker():
    with postgres_server.database() as url:
        store = PgStore(url, clock=Clock(), poll_interval_s=0.0)
        await store.open()
        parent = await start_claimed_run(store, "p")
        [answer] = await commit_ops(store, start_child(parent, claim_as=parent.owner))
        child = answer.run
        await commit_ops(store, append(child, 0, ok=False), finish(child, RunState.FAILED, rewind=rewind(0)))
        end = append(parent, 0, position=0, kind=RecordKind.CHILD, ok=False)
        await commit_ops(store, end, finish(parent, RunState.FAILED, rewind=rewind(0, command_count=1)))

        async with await psycopg.AsyncConnection.connect(url) as somebody:
            await somebody.execute("SELECT 1 FROM holdfast.runs WHERE id = 'c' FOR UPDATE")
            reopening = asyncio.create_task(store.commit([ReopenRun("p", 1_000_009.0)]))
            async with asyncio.timeout(PATIENCE):
                while await (await somebody.execute(WAITS)).fetchone() == (0,):  # noqa: ASYNC110 - it is elsewhere
                    await asyncio.sleep(0.005)
            await somebody.execute(TAKEN_UP, (parent.owner,))
            await somebody.commit()
        assert await reopening == [DONE]

        now = await read_run(store, "c")
        assert (now.state, now.epoch, now.owner) == (RunState.RUNNING, 2, parent.owner)
        assert await list_record_seqs(store, child) == [0], "what its worker may have recorded since is not taken back"
        assert (await read_run(store, "p")).state is RunState.PENDING
        assert await commit_ops(store, finish(now)) == [NOTIFIED], "the parent waits for it again"
        await store.close()
