"""Following all runs: what happens is told as it happens, once, wherever the reader is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Client, RunFailed, Runtime, step, wait_for_signal, workflow
from holdfast.client.store_connections import LoopConnections
from holdfast.core.states import RunState
from holdfast.reports import tail as tail_module
from holdfast.reports.tail import SeenEvents, TailEvent, TailFilter, read_tail
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio


@step
async def tailed_step(number: int) -> int:
    if number < 0:
        raise ValueError("below nothing")
    return number + 1


@workflow(id="tailed-{number}", tags=["followed"])
async def tailed(number: int) -> int:
    return await tailed_step(number)


@workflow(id="tailed-waiting-{number}")
async def tailed_waiting(number: int) -> object:
    return await wait_for_signal("go")


async def until(client: Client, is_enough: Callable[[list[TailEvent]], bool], **wanted: object) -> list[TailEvent]:
    """What is told until it is enough."""
    found: list[TailEvent] = []
    async with asyncio.timeout(20), aclosing(client.tail(**wanted)) as happenings:  # pyright: ignore[reportArgumentType]
        async for one in happenings:
            found.append(one)
            if is_enough(found):
                return found
    raise AssertionError("it has ended")


def ended(*run_ids: str) -> Callable[[list[TailEvent]], bool]:
    return lambda found: {one.run_id for one in found if one.kind == "ended"} >= set(run_ids)


async def test_every_event_is_reported_once_and_in_order(tmp_path: Path):
    async with Runtime(f"sqlite:///{tmp_path / 'runs.db'}") as runtime, Client(runtime.url) as client:
        following = asyncio.create_task(until(client, ended("tailed-1", "tailed--1", "tailed-waiting-1")))
        await asyncio.sleep(0)
        waiting = await tailed_waiting.start(1)
        assert await tailed(1) == 2
        with pytest.raises(RunFailed):
            await tailed(-1)
        await waiting.signal("go", 7)
        found = await following
        of = {
            id: [(one.kind, one.name) for one in found if one.run_id == id and one.kind != "started"]
            for id in ("tailed-1", "tailed--1", "tailed-waiting-1")
        }
        assert of["tailed-1"] == [("created", ""), ("step", "tailed_step"), ("ended", "")]
        assert of["tailed--1"] == [("created", ""), ("step", "tailed_step"), ("ended", "")]
        assert of["tailed-waiting-1"] == [("created", ""), ("signal", "go"), ("ended", "")]
        assert {one.worker for one in found if one.kind == "step"} != {""}
        failed = next(one for one in found if one.run_id == "tailed--1" and one.kind == "ended")
        assert (failed.state, failed.data["error"]["message"]) == (RunState.FAILED, "below nothing")

        # What has happened before can be asked for, and narrowed.
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        again = await until(client, ended("tailed-1", "tailed--1", "tailed-waiting-1"), since=an_hour_ago)
        assert [(one.run_id, one.kind) for one in again if one.kind != "started"] == [
            (one.run_id, one.kind) for one in sorted(found, key=lambda one: one.at) if one.kind != "started"
        ]
        only = await until(client, ended("tailed--1"), since=an_hour_ago, state="failed", tag="followed")
        assert {one.run_id for one in only} == {"tailed--1"}


async def test_a_waiting_run_is_reported_when_it_continues(tmp_path: Path):
    async with Runtime(f"sqlite:///{tmp_path / 'runs.db'}") as runtime, Client(runtime.url) as client:
        waiting = await tailed_waiting.start(2)
        while (await client.get("tailed-waiting-2")).state is not RunState.WAITING:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        following = asyncio.create_task(until(client, ended("tailed-waiting-2")))
        await asyncio.sleep(0.3)
        await waiting.signal("go", 7)
        assert [one.kind for one in await following] == ["signal", "ended"]


async def test_a_takeover_is_reported(tmp_path: Path):
    now = [1000.0]
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = SqliteStore(tmp_path / "runs.db", clock=lambda: now[0])
    await store.open()
    connections = LoopConnections(url, lambda _: store)
    client = Client(url)
    try:
        await store.announce_workflows([WorkflowSpec("tailed-elsewhere", ())])
        await client.start("tailed-elsewhere")
        first = await store.workers.register(NewWorker("first", "elsewhere", 1, ("tailed-elsewhere",)), 10.0)
        [_] = await store.claims.claim(first, workflows=["tailed-elsewhere"], queues=None, limit=1)
        found: list[TailEvent] = []
        async with asyncio.timeout(20), aclosing(read_tail(connections, TailFilter(), 0.0)) as happenings:
            found.append(await anext(happenings))
            following = asyncio.ensure_future(anext(happenings))
            await asyncio.sleep(0.4)
            now[0] += 60.0
            assert (await store.workers.reap_dead()).worker_ids == (first,)
            second = await store.workers.register(NewWorker("second", "elsewhere", 2, ("tailed-elsewhere",)), 10.0)
            [_] = await store.claims.claim(second, workflows=["tailed-elsewhere"], queues=None, limit=1)
            found.append(await following)
        assert [(one.kind, one.worker, one.data) for one in found] == [
            ("created", "", {}),
            ("taken over", "second", {"died": "first", "epoch": 2}),
        ]
    finally:
        await client.close()
        await connections.close()


async def test_seen_events_are_not_reported_again():
    at = datetime(2026, 11, 16, tzinfo=UTC)
    one = TailEvent(at, "r", "w", RunState.RUNNING, "step", 1, "a", "", None, {})
    told = SeenEvents(max_count=1)
    assert [told.add_if_new(one), told.add_if_new(one)] == [True, False]
    assert told.add_if_new(TailEvent(at, "r", "w", RunState.RUNNING, "step", 2, "a", "", None, {}))
    assert told.add_if_new(one)  # it is too long ago to be remembered


async def test_more_runs_than_are_tracked_are_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail_module, "MAX_TRACKED_RUNS", 60)
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    async with Client(store.url) as client:
        for number in range(130):
            sent = await client.send("tailed-address", number)
            await sent.cancel()  # which ends it: nobody has it
    tail = tail_module._TailReader(store, TailFilter(), 0.0)
    first, second = await tail.poll(), await tail.poll()
    await store.close()
    assert len({one.run_id for one in first}) == 130
    assert second == []
