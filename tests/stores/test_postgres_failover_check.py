"""Another server takes over, and lacks commits that the one before had confirmed: no journal gets a gap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
import pytest_asyncio
from postgres_faults import Pooler, Server
from postgres_server import database
from store_values import append, claim_run, commit_ops, finish, get_state, new_worker, park, start_run

from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.postgres import PgStore
from waits import wait_until

pytestmark = pytest.mark.asyncio
DONE, FENCED = OpStatus.DONE, OpStatus.FENCED


class Failover:
    """A store with a run that has three records, before and after another server takes over."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = PgStore(url, poll_interval_s=0.0)
        self.run: Run

    async def prepare(self) -> None:
        await self.store.open()
        worker = await self.store.workers.register(new_worker(), 30.0)
        await start_run(self.store)
        self.run = await claim_run(self.store, worker)
        assert await commit_ops(self.store, *(append(self.run, seq) for seq in range(3))) == [DONE] * 3

    def lose(self, statement: str, *values: Any) -> None:
        """The server that takes over lacks something."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)
        self.store.failover_check.note_server(1.0)

    async def append(self, seq: int) -> OpStatus:
        [answer] = await self.store.commit([append(self.run, seq)])
        assert isinstance(answer, OpStatus)
        return answer

    async def list_records(self) -> list[int]:
        [history] = await self.store.get_histories([self.run.key])
        return [record.seq for record in history.records]


@pytest_asyncio.fixture
async def failover() -> AsyncIterator[Failover]:
    with database() as url:
        failover = Failover(url)
        await failover.prepare()
        yield failover
        await failover.store.close()


async def test_a_run_whose_records_are_all_there_goes_on(failover: Failover):
    failover.lose("SELECT 1")
    assert await failover.append(3) is DONE
    assert not failover.store.failover_check.must_check(failover.run.key), "it is checked once"
    assert await failover.append(4) is DONE
    assert await failover.list_records() == [0, 1, 2, 3, 4]


async def test_a_run_that_has_lost_a_record_is_released_instead_of_getting_a_gap(failover: Failover):
    failover.lose("DELETE FROM holdfast.records WHERE seq = 2")
    assert await failover.append(3) is FENCED
    assert await failover.list_records() == [0, 1]
    assert await get_state(failover.store, failover.run.id) is RunState.PENDING
    worker = failover.run.owner
    assert worker is not None
    failover.run = await claim_run(failover.store, worker)
    assert await failover.append(2) is DONE


async def test_a_run_that_wants_to_park_is_replayed_because_what_it_waits_for_may_be_lost(failover: Failover):
    failover.lose("SELECT 1")
    assert await failover.append(3) is DONE
    assert await failover.store.commit([park(failover.run)]) == [DONE]
    assert await get_state(failover.store, failover.run.id) is RunState.PENDING
    worker = failover.run.owner
    assert worker is not None
    failover.run = await claim_run(failover.store, worker)
    assert await failover.store.commit([park(failover.run)]) == [DONE]
    assert await get_state(failover.store, failover.run.id) is RunState.WAITING


@pytest.mark.parametrize(
    "change", ["owner = 99", "id = 'another'"], ids=["claimed by another worker", "its key is another run's"]
)
async def test_a_run_whose_claim_was_lost_is_not_written_to(failover: Failover, change: str):
    failover.lose(f"UPDATE holdfast.runs SET {change}")
    assert await failover.append(3) is FENCED
    assert await failover.store.commit([finish(failover.run)]) == [FENCED]
    assert await failover.list_records() == [0, 1, 2]
    with psycopg.connect(failover.url) as connection:
        assert connection.execute("SELECT state FROM holdfast.runs").fetchone() == ("running",)


async def test_a_run_that_its_worker_claims_again_under_the_same_epoch_gets_no_gap(failover: Failover):
    failover.lose("DELETE FROM holdfast.records WHERE seq = 2")
    failover.lose("UPDATE holdfast.runs SET state = 'pending', owner = NULL, ready_state = 1, epoch = epoch - 1")
    worker = failover.run.owner
    assert worker is not None
    again = await claim_run(failover.store, worker)
    assert again.epoch == failover.run.epoch
    assert await failover.append(3) is FENCED


async def test_a_connection_through_a_pooler_notices_another_server():
    server = Server()
    pooler = Pooler(server.url)
    failover = Failover(pooler.url)
    try:
        await failover.prepare()
        assert not failover.store.failover_check.is_needed
        server.restart()

        async def go_on() -> bool:
            try:
                return await failover.append(3) is DONE
            except StoreUnavailable:
                return False

        await wait_until(go_on)
        assert failover.store.failover_check.is_needed
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT count(*) FROM holdfast.records").fetchone() == (4,)
    finally:
        await failover.store.close()
        pooler.stop()
        server.stop()
