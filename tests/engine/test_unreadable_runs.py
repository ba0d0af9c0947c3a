"""One run that cannot be read, or one part of the work that fails, keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from engine_world import FlakyStore, Replaced, World
from shared_flows import define_waiting

from holdfast import Client, RunFailed, RunNotFound, Runtime, Schedule, step, workflow
from holdfast.engine.driver import Driver
from holdfast.errors import StoreCorrupt
from waits import wait_until

pytestmark = pytest.mark.asyncio


def damage(path: Path, run_id: str) -> None:
    with sqlite3.connect(path, timeout=10) as connection:
        assert connection.execute("UPDATE runs SET tags = '{' WHERE id = ?", (run_id,)).rowcount == 1


@pytest.mark.parametrize("who", ["client", "engine"])
async def test_a_caller_that_waits_for_an_unreadable_run_gets_an_error_and_the_others_wait_on(tmp_path: Path, who: str):
    """Nobody executes these runs, so their ends are looked for in the store."""
    path = tmp_path / "runs.db"

    @workflow
    async def flow(n: int) -> int:
        return n

    async with Runtime(f"sqlite:///{path}") as announcing:
        handles = [await announcing.start(flow.options(delay=3600), n) for n in range(3)]
    ids = [handle.run_id for handle in handles]
    waiter: Any = Client(f"sqlite:///{path}") if who == "client" else Runtime(f"sqlite:///{path}", workflows=[])
    async with waiter:
        waits = [
            asyncio.ensure_future(
                waiter.wait(run_id) if who == "client" else flow.get_handle(waiter.store_provider, run_id).result()
            )
            for run_id in ids
        ]
        await asyncio.sleep(0.3)
        assert not any(wait.done() for wait in waits)
        damage(path, ids[1])
        async with Client(f"sqlite:///{path}") as other:
            await other.cancel(ids[0])
        with pytest.raises(Exception, match="cancelled"):
            await asyncio.wait_for(waits[0], 10)
        with pytest.raises(StoreCorrupt, match=ids[1]):
            await asyncio.wait_for(waits[1], 10)
        assert not waits[2].done()
        waits[2].cancel()


async def test_a_caller_that_waits_for_a_deleted_run_gets_an_error(tmp_path: Path):
    path = tmp_path / "runs.db"

    @workflow
    async def flow() -> None: ...

    async with Runtime(f"sqlite:///{path}") as announcing:
        handle = await announcing.start(flow.options(delay=3600))
    async with Client(f"sqlite:///{path}") as client:
        wait = asyncio.ensure_future(client.wait(handle.run_id))
        await asyncio.sleep(0.3)
        with sqlite3.connect(path, timeout=10) as connection:
            connection.execute("DELETE FROM runs WHERE id = ?", (handle.run_id,))
        with pytest.raises(RunNotFound, match="is no longer in"):
            await asyncio.wait_for(wait, 10)


async def test_a_part_of_a_look_that_fails_does_not_keep_the_others_from_being_done(
    world: World, caplog: pytest.LogCaptureFixture
):
    """Signals cannot be read, for a reason that no store should have: schedules fire, and who waits is told."""
    at_work = asyncio.Event()

    @step
    async def work() -> None:
        at_work.set()
        await asyncio.sleep(60)

    @workflow
    async def held() -> None:
        await work()

    @workflow(schedule=Schedule(cron="0 2 * * *"))
    async def nightly() -> None: ...

    elsewhere = define_waiting("elsewhere")

    async def fail(worker: int, after: int) -> Any:
        raise KeyError("a defect")

    here, there = {}, {}
    for one in (held, nightly):
        here[one.definition.name] = one.definition
    there["elsewhere"] = elsewhere.definition
    store = FlakyStore(world.store())
    store.claims = Replaced(store.inner.claims, get_new_signals=fail)
    runtime = await world.open(store=store, definitions=here)
    await runtime.start(held)
    await at_work.wait()
    other = await world.open(definitions=there)
    handle = await other.start(elsewhere)
    result = asyncio.ensure_future(elsewhere.get_handle(runtime.store_provider, handle.run_id).result(timeout=10))
    await handle.signal("go", "done")
    assert await result == "done"
    world.clock.advance(86_400 + 10)

    async def has_fired() -> bool:
        return any(one.last_run for one in await other._engine.store.schedules.list())

    await wait_until(has_fired)
    assert "looking for work failed" in caplog.text
    assert "a defect" in caplog.text


async def test_a_defect_in_the_engine_fails_the_run_that_it_shows_in(in_memory: World, monkeypatch: pytest.MonkeyPatch):
    real = Driver._start_commands

    def start_commands(self: Driver) -> None:
        if self.recorder.next_seq == 1 and self.run.id == "bad":
            raise KeyError("a defect")
        real(self)

    monkeypatch.setattr(Driver, "_start_commands", start_commands)

    @step
    async def work() -> int:
        return 1

    @workflow
    async def flow() -> int:
        return await work() + await work()

    runtime = await in_memory.open()
    bad, good = await runtime.start(flow.options(id="bad")), await runtime.start(flow.options(id="good"))
    assert await good.result(timeout=10) == 2
    with pytest.raises(RunFailed, match="a defect"):
        await bad.result(timeout=10)
