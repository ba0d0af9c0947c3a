"""Commits that come in while one is under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import postgres_server
import pytest
from store_values import signal, start_run

from holdfast.errors import StoreUnavailable
from holdfast.stores.grouped_calls import MAX_ITEMS, GroupedCalls, TurnCalls
from holdfast.stores.operations import Op, OpResult, OpStatus, ReleaseRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


class Slow:
    """A database that commits when it is told to, and remembers what came together."""

    def __init__(self) -> None:
        self.commits: list[list[int]] = []
        self.may_go_on = asyncio.Semaphore(0)
        self.bad: set[int] = set()
        self.is_away = False

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        keys = [op.key for op in ops if isinstance(op, ReleaseRun)]
        self.commits.append(keys)
        await self.may_go_on.acquire()
        if self.is_away:
            raise StoreUnavailable("away")
        if self.bad & set(keys):
            raise ValueError("this cannot be committed")
        return [OpStatus.DONE if key % 2 else OpStatus.FENCED for key in keys]


def asking(gathering: GroupedCalls[Op, OpResult] | TurnCalls[Op, OpResult], *keys: int) -> asyncio.Task[list[OpResult]]:
    return asyncio.create_task(gathering.call([ReleaseRun(key, 1) for key in keys]))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_commits_that_arrive_meanwhile_are_grouped_and_each_gets_its_own_answers():
    slow = Slow()
    gathering = GroupedCalls(slow.commit)
    first, second, third = asking(gathering, 1), asking(gathering, 2, 3), asking(gathering, 4)
    await settle()
    assert slow.commits == [[1]]
    slow.may_go_on.release()
    assert await first == [OpStatus.DONE]
    await settle()
    assert slow.commits == [[1], [2, 3, 4]]
    slow.may_go_on.release()
    assert (await second, await third) == ([OpStatus.FENCED, OpStatus.DONE], [OpStatus.FENCED])
    slow.may_go_on.release()
    assert await gathering.call([ReleaseRun(5, 1)]) == [OpStatus.DONE]


async def test_a_commit_that_fails_does_not_fail_the_others_of_its_group():
    slow = Slow()
    slow.bad = {3}
    gathering = GroupedCalls(slow.commit)
    asked = [asking(gathering, key) for key in (1, 2, 3, 5)]
    await settle()
    for _ in range(9):
        slow.may_go_on.release()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, list, ValueError, list]
    assert slow.commits == [[1], [2, 3, 5], [2], [3], [5]]


async def test_an_unavailable_store_fails_the_whole_group_and_is_used_again_later():
    slow = Slow()
    slow.is_away = True
    gathering = GroupedCalls(slow.commit)
    asked = [asking(gathering, key) for key in (1, 2, 3)]
    await settle()
    for _ in range(9):
        slow.may_go_on.release()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    slow.is_away = False
    assert await gathering.call([ReleaseRun(1, 1)]) == [OpStatus.DONE]


async def test_a_cancelled_caller_does_not_block_the_others():
    slow = Slow()
    gathering = GroupedCalls(slow.commit)
    first, second, third = asking(gathering, 1), asking(gathering, 2), asking(gathering, 3)
    await settle()
    second.cancel()
    for _ in range(3):
        slow.may_go_on.release()
    assert (await first, await third) == ([OpStatus.DONE], [OpStatus.DONE])
    await settle()
    assert await gathering.call([ReleaseRun(5, 1)]) == [OpStatus.DONE]


async def test_a_transaction_does_not_grow_without_end():
    slow = Slow()
    gathering = GroupedCalls(slow.commit)
    asked = [asking(gathering, key) for key in range(MAX_ITEMS + 100)]
    await settle()
    for _ in range(9):
        slow.may_go_on.release()
    await asyncio.gather(*asked)
    assert [len(keys) for keys in slow.commits] == [1, MAX_ITEMS, 99]


async def test_a_store_gathers(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    written, write = 0, store.write

    async def counted(*args, **kwargs):
        nonlocal written
        written += 1
        await asyncio.sleep(0)
        return await write(*args, **kwargs)

    store.write = counted
    try:
        await asyncio.gather(*(start_run(store, f"run-{number}") for number in range(50)))
        assert written == 2
        assert len(await store.get_runs([f"run-{number}" for number in range(50)])) == 50
    finally:
        await store.close()


async def test_signals_of_many_callers_share_a_transaction_on_postgres():
    with postgres_server.database() as url:
        store = PgStore(url)
        await store.open()
        written, write = 0, store.write

        async def counted(*args, **kwargs):
            nonlocal written
            written += 1
            return await write(*args, **kwargs)

        store.write = counted
        try:
            run = await start_run(store)
            signals = [signal(payload=b"%d" % number, dedup=f"{number % 40}") for number in range(50)]
            answers = await asyncio.gather(*(store.commit([one]) for one in signals))
            assert written == 2
            assert [OpStatus.DUPLICATE in answer for answer in answers] == [False] * 40 + [True] * 10
            [history] = await store.get_histories([run.key])
            assert [one.payload for one in history.signals] == [b"%d" % number for number in range(40)]
        finally:
            await store.close()


async def test_commits_of_one_turn_are_made_together_and_do_not_wait_for_those_of_an_earlier_one():
    slow = Slow()
    gathering = TurnCalls(slow.commit)
    first = [asking(gathering, 1), asking(gathering, 2, 3)]
    await settle()
    second = [asking(gathering, 4), asking(gathering, 5)]
    await settle()
    assert slow.commits == [[1, 2, 3], [4, 5]]
    for _ in range(2):
        slow.may_go_on.release()
    answers = await asyncio.gather(*first, *second)
    done, fenced = OpStatus.DONE, OpStatus.FENCED
    assert answers == [[done], [fenced, done], [fenced], [done]]


async def test_in_one_turn_a_commit_fails_alone_and_a_cancelled_caller_takes_no_other_with_it():
    slow = Slow()
    slow.bad = {3}
    gathering = TurnCalls(slow.commit)
    asked = [asking(gathering, key) for key in (1, 3, 5)]
    await asyncio.sleep(0)
    asked[0].cancel()
    for _ in range(9):
        slow.may_go_on.release()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError, ValueError, list]
    assert slow.commits == [[1, 3, 5], [1], [3], [5]]
    slow.is_away = True
    answers = await asyncio.gather(*(asking(gathering, key) for key in (1, 5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]


async def test_commits_of_one_turn_are_split_into_transactions_of_limited_size():
    slow = Slow()
    gathering = TurnCalls(slow.commit)
    asked = [asking(gathering, key) for key in range(MAX_ITEMS + 100)]
    for _ in range(2):
        slow.may_go_on.release()
    await asyncio.gather(*asked)
    assert [len(keys) for keys in slow.commits] == [MAX_ITEMS, 100]
