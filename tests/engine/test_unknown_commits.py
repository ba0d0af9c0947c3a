"""Commits that fail in a way no store should: nobody knows what they did, and no run may be lost by that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_world import FlakyStore, Replaced, World, get_state, read_journal, read_run, wait_until_parked
from shared_flows import define_calling, define_waiting

from holdfast import (
    AesEncryption,
    Encryption,
    RunDead,
    RunFailed,
    Runtime,
    UnrecordableValue,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.engine import claims
from holdfast.engine.clock import SystemClock
from holdfast.engine.journal_writer import MAX_TRIES
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import AppendRecord, FinishRun, Op, ParkRun, ReleaseRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


def broken() -> Exception:
    return ConnectionError("the wire was cut")


class Trouble:
    """Makes commits that hold an operation of some kinds fail, as often as it is told to."""

    def __init__(self, *kinds: type[Any], times: int) -> None:
        self.kinds = kinds
        self.left = times

    def __call__(self, ops: Sequence[Op]) -> BaseException | None:
        if self.left and any(isinstance(op, self.kinds) for op in ops):
            self.left -= 1
            return broken()
        return None


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("kind", [AppendRecord, FinishRun, ParkRun])
async def test_a_run_continues_after_a_commit_with_an_unknown_outcome(world: World, kind: type[Any], carried_out: bool):
    calls: list[str] = []

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        return "paid"

    @workflow
    async def flow() -> list[Any]:
        return [await pay(), await wait_for_signal("go")]

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    trouble = Trouble(kind, times=3)
    if carried_out:
        store.fail_after = trouble
    else:
        store.fail_before = trouble
    await wait_until_parked(runtime, world.clock, handle)
    await handle.signal("go", "on")
    assert await handle.result(timeout=10) == ["paid", "on"]
    assert calls == ["pay"]
    assert trouble.left == 0
    assert len(await read_journal(runtime, handle)) == 2


async def test_a_run_whose_end_cannot_be_recorded_is_given_back(world: World, caplog: pytest.LogCaptureFixture):
    """Neither the record nor the end is taken for a while: the row must not stay with a worker that dropped the run."""
    calls: list[int] = []

    @step
    async def work() -> str:
        calls.append(1)
        return "done"

    flow = define_calling(work)

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    store.fail_before = Trouble(AppendRecord, FinishRun, times=2 * MAX_TRIES)
    handle = await runtime.start(flow)
    assert await handle.result(timeout=10) == "done"
    assert len(calls) == 2
    assert (await read_run(runtime, handle)).delivery_count == 0
    assert "could not be recorded" in caplog.text
    assert "held by another worker" not in caplog.text


async def test_a_run_that_can_never_be_recorded_is_not_run_for_ever(world: World):
    calls: list[int] = []

    @step
    async def work() -> str:
        calls.append(1)
        return "done"

    flow = define_calling(work)

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    store.fail_before = Trouble(AppendRecord, FinishRun, times=1_000_000)
    handle = await runtime.start(flow)
    with pytest.raises(RunDead, match=r"could not be recorded.*the wire was cut"):
        await handle.result(timeout=10)
    assert len(calls) == 3


async def test_a_record_that_can_never_be_written_fails_its_run_and_no_other(world: World):
    @step
    async def work(n: int) -> int:
        return n

    @workflow
    async def flow(n: int) -> list[int]:
        return list(await asyncio.gather(work(n), work(n + 1), work(n + 2)))

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    store.fail_before = lambda ops: (
        OverflowError("too large for a column")
        if any(isinstance(op, AppendRecord) and op.record.payload == b"11" for op in ops)
        else None
    )
    bad, good = await runtime.start(flow, 10), await runtime.start(flow, 20)
    assert await good.result(timeout=10) == [20, 21, 22]
    with pytest.raises(RunFailed, match="too large for a column"):
        await bad.result(timeout=10)
    # What would have come after it is not recorded either: a journal has no gaps.
    assert [record.seq for record in await read_journal(runtime, bad)] == [0]
    store.fail_before = lambda _: None
    await retry_run(runtime.store_provider, bad.run_id)
    assert await bad.result(timeout=10) == [10, 11, 12]


async def test_while_a_commit_of_one_run_is_repeated_others_go_on(world: World):
    @step
    async def work(n: int) -> int:
        return n

    @workflow
    async def flow(n: int) -> int:
        return sum([await work(n), await work(n)])

    class Slow(SystemClock):
        def now(self) -> float:
            return world.clock.now()

    store = FlakyStore(world.store())
    runtime = await world.open(store=store, clock=Slow())
    poison = [True]
    store.fail_before = lambda ops: (
        broken()
        if poison[0] and any(isinstance(op, AppendRecord) and op.record.payload == b"7" for op in ops)
        else None
    )
    stuck = await runtime.start(flow, 7)
    await wait_until(lambda: runtime._engine.writer._try_counts)
    for n in range(20, 30):
        assert await (await runtime.start(flow, n)).result(timeout=2) == 2 * n
    assert await get_state(runtime, stuck) == "running"
    poison[0] = False
    assert await stuck.result(timeout=10) == 14


async def test_a_released_run_whose_release_fails_is_released_again(world: World):
    """The look for runs that nobody works on is repeated until it has worked."""

    @workflow
    async def flow() -> str:
        return "done"

    store = FlakyStore(world.store())
    runtime = await world.open(store=store, lease_s=0.5)
    store.fail_before = Trouble(FinishRun, ReleaseRun, times=3 * MAX_TRIES)
    handle = await runtime.start(flow)
    assert await handle.result(timeout=10) == "done"


async def test_a_claim_that_fails_in_an_unknown_way_leaves_no_run_stuck(world: World):
    @workflow
    async def flow() -> str:
        return "done"

    class Broken(FlakyStore):
        failures = 2

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.claims = Replaced(inner.claims, claim=self._claim)

        async def _claim(self, *args: Any, **kwargs: Any) -> Any:
            runs = await self.inner.claims.claim(*args, **kwargs)
            if runs and self.failures:
                self.failures -= 1
                raise broken()
            return runs

    starter = await world.open(definitions={})
    handle = await starter.start(flow)
    store = Broken(world.store())
    await world.open(store=store)
    assert await handle.result(timeout=10) == "done"
    assert store.failures == 0


async def test_a_journal_that_cannot_be_read_for_an_unknown_reason_stops_no_other_run(world: World):
    @workflow
    async def flow(n: int) -> int:
        return n

    class Broken(FlakyStore):
        bad = -1

        async def get_histories(self, keys: Sequence[int]) -> Any:
            if self.bad in keys:
                raise KeyError("a defect")
            return await self.inner.get_histories(keys)

    starter = await world.open(definitions={})
    handles = [await starter.start(flow, n) for n in range(3)]
    store = Broken(world.store())
    store.bad = (await read_run(starter, handles[1])).key
    runtime = await world.open(store=store)
    assert await handles[0].result(timeout=10) == 0
    assert await handles[2].result(timeout=10) == 2
    await wait_until(lambda: _is_pending(runtime, handles[1]))
    store.bad = -1
    world.clock.advance(claims.UNREADABLE_RUN_DELAY_S)
    runtime._engine.wake()
    assert await handles[1].result(timeout=10) == 1


async def _is_pending(runtime: Runtime, handle: Any) -> bool:
    return await get_state(runtime, handle) == "pending"


async def test_a_run_that_its_worker_does_not_work_on_is_found(world: World, monkeypatch: pytest.MonkeyPatch):
    """Whatever has lost it: the store says that a live worker holds it, and the worker knows nothing of it."""
    monkeypatch.setattr(claims, "UNACKNOWLEDGED_CHECK_INTERVAL_S", 0.2)

    flow = define_waiting()

    runtime = await world.open()
    handle = await runtime.start(flow)
    engine = runtime._engine
    driver = await wait_until(lambda: engine.held_runs.drivers_by_run_id.get(handle.run_id))
    driver.abandon()
    engine._idle_runs.remove(driver)
    del engine.held_runs.drivers[driver.run.key], engine.held_runs.drivers_by_run_id[handle.run_id]
    await handle.signal("go", "found")
    assert await handle.result(timeout=10) == "found"


# Encryption


class Unreliable(Encryption):
    """An encryption with a key service that can be away."""

    def __init__(self) -> None:
        self._inner = AesEncryption(AesEncryption.new_key())
        self.is_away = False
        self.refused = b""

    def encrypt(self, plain: bytes) -> bytes:
        if self.refused and self.refused in plain:
            raise UnrecordableValue("the key service takes no such value")
        if self.is_away:
            raise ConnectionError("the key service is away")
        return self._inner.encrypt(plain)

    def decrypt(self, sealed: bytes) -> bytes:
        if self.is_away:
            raise ConnectionError("the key service is away")
        return self._inner.decrypt(sealed)


@pytest.fixture
def encryption() -> Unreliable:
    return Unreliable()


async def test_runs_go_on_when_the_encryption_was_away_for_a_moment(tmp_path: Path, encryption: Unreliable):
    calls: list[str] = []

    async def fail_for_half_a_second() -> None:
        encryption.is_away = True
        await asyncio.sleep(0.5)
        encryption.is_away = False

    @step(effect="once")
    async def pay() -> str:
        calls.append("pay")
        back.append(asyncio.create_task(fail_for_half_a_second()))
        await asyncio.sleep(0)
        return "paid"

    @step(transaction=True)
    def book() -> str:
        calls.append("book")
        encryption.is_away = True
        loop.call_soon_threadsafe(lambda: back.append(asyncio.create_task(fail_for_half_a_second())))
        return "booked"

    @workflow
    async def flow() -> list[str]:
        return [await pay(), await book()]

    back: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", encryption=encryption) as runtime:
        handle = await runtime.start(flow)
        assert await handle.result(timeout=20) == ["paid", "booked"]
    assert calls == ["pay", "book"]


async def test_a_worker_that_starts_while_the_encryption_is_away_takes_runs_when_it_is_back(
    tmp_path: Path, encryption: Unreliable
):
    flow = define_waiting()

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Runtime(url, encryption=encryption) as runtime:
        handle = await runtime.start(flow)
        await handle.signal("go", "done")
        await handle.result()
        ids = [(await runtime.start(flow.options(new=True))).run_id for _ in range(3)]
    encryption.is_away = True
    async with Runtime(url, encryption=encryption) as runtime:
        await asyncio.sleep(0.3)
        encryption.is_away = False
        for run_id in ids:
            await flow.get_handle(runtime.store_provider, run_id).signal("go", run_id)
        assert [await flow.get_handle(runtime.store_provider, run_id).result(timeout=20) for run_id in ids] == ids


async def test_a_value_that_an_encryption_refuses_fails_its_own_run(tmp_path: Path, encryption: Unreliable):
    encryption.refused = b"poison"

    @step
    async def work(what: str) -> str:
        return f"{what}son"

    @workflow
    async def flow(what: str) -> str:
        return await work(what)

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", encryption=encryption) as runtime:
        started = time.monotonic()
        bad, good = await runtime.start(flow, "poi"), await runtime.start(flow, "sea")
        assert await good.result(timeout=10) == "season"
        with pytest.raises(RunFailed, match="takes no such value"):
            await bad.result(timeout=10)
        assert time.monotonic() - started < 5


async def test_a_transaction_whose_outcome_an_encryption_refuses_is_rolled_back(tmp_path: Path, encryption: Unreliable):
    """On SQLite, a transaction that stays open keeps everybody from writing."""
    encryption.refused = b"poison"

    @step(transaction=True)
    def book(what: str) -> str:
        return f"{what}son"

    @workflow
    async def flow(what: str) -> str:
        return await book(what)

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", encryption=encryption) as runtime:
        with pytest.raises(RunFailed, match="takes no such value"):
            await (await runtime.start(flow, "poi")).result(timeout=10)
        assert await (await runtime.start(flow, "sea")).result(timeout=10) == "season"


async def test_a_transaction_that_waits_for_the_encryption_ends_with_its_run(tmp_path: Path, encryption: Unreliable):
    @step(transaction=True)
    def book() -> str:
        encryption.is_away = True
        return "booked"

    @step
    async def work() -> str:
        return "done"

    flow = define_calling(book)

    other = define_calling(work, "other")

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", encryption=encryption) as runtime:
        handle = await runtime.start(flow)
        await wait_until(lambda: encryption.is_away)
        engine = runtime._engine
        engine.held_runs.drivers_by_run_id[handle.run_id].handle_claim_lost()
        await wait_until(lambda: not engine.lingering_tasks)
        encryption.is_away = False
        assert await (await runtime.start(other)).result(timeout=4) == "done"
