"""Giving a run another budget, and what a fork may use: as a client does it, on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.admission.usage import BUDGET_SIGNAL, NANO_PER_USD, Budget, BudgetLimits, Usage
from holdfast.codec import encode_error
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import BudgetExceeded, RunConflict, RunEnded, RunNotFound, UsageError
from holdfast.services.forks import fork_run
from holdfast.services.run_control import set_budget
from holdfast.stores.contract import RunUsage
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    ClientOp,
    FinishRun,
    NewRun,
    OpStatus,
    Run,
    RunLink,
    StartResult,
    StartRun,
)
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio

REFUSED = encode_error(BudgetExceeded("too dear", "r", "usd"))
FAILED = encode_error(ValueError("no"))


class Reached:
    """A client's way to a store that is at hand."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def read(self, run_id: str) -> Run:
        run = await self.store.get_run(run_id)
        assert run is not None
        return run

    async def change(self, op: ClientOp) -> OpStatus:
        [answer] = await self.store.commit([op])
        assert isinstance(answer, OpStatus)
        return answer

    async def now(self) -> float:
        return self.store.now()


@pytest_asyncio.fixture
async def reach() -> AsyncIterator[Reached]:
    store = MemoryStore(clock=lambda: 1000.0)
    await store.open()
    yield Reached(store)
    await store.close()


async def hold(store: MemoryStore, run_id: str = "r", above: Run | None = None, **fields) -> Run:
    worker = await store.workers.register(NewWorker("w", "h", 1), 100.0)
    new = NewRun(run_id, "helper", b"{}", b"d", b"s", 1000.0, parent="" if above is None else above.id, **fields)
    link = None if above is None else RunLink(above.key, above.epoch, 0)
    [answer] = await store.commit([StartRun(new, worker, link=link)])
    assert isinstance(answer, StartResult)
    return answer.run


def append(
    run: Run,
    seq: int,
    kind: RecordKind = RecordKind.STEP,
    name: str = "model call",
    error: bytes | None = None,
    **fields,
):
    record = Record(seq, kind, seq, name, error is None, error or b"1", 1000.0, epoch=run.epoch)
    return AppendRecord(run.key, record, **fields)


async def mailbox(store: MemoryStore, run: Run) -> list[str]:
    [history] = await store.get_histories([run.key])
    return [signal.name for signal in history.signals]


# Another budget


async def test_a_run_is_given_another_budget(reach: Reached):
    await hold(reach.store, budget=BudgetLimits(tokens=5))
    await set_budget(reach, "r", Budget(usd=1.5, turns=3))
    assert await reach.store.get_usages(["r"]) == {
        "r": RunUsage(budget=BudgetLimits(nano_usd=3 * NANO_PER_USD // 2, calls=3))
    }


async def test_a_run_that_heeds_the_budget_of_another_one_is_not_given_its_own(reach: Reached):
    top = await hold(reach.store, "top", budget=BudgetLimits(tokens=5))
    await hold(reach.store, "below", top)
    with pytest.raises(UsageError, match=r"run 'below' .* started without one of its own.* set that of 'top'"):
        await set_budget(reach, "below", Budget(tokens=9))


async def test_a_run_that_nothing_limits_is_not_given_a_budget(reach: Reached):
    top = await hold(reach.store, "top")
    await hold(reach.store, "below", top)
    with pytest.raises(UsageError, match=r"run 'below' .* started without one of its own, and so nothing limits it"):
        await set_budget(reach, "below", Budget(tokens=9))


async def test_the_run_must_exist_and_be_unfinished(reach: Reached):
    with pytest.raises(RunNotFound, match="there is no run 'r'") as missing:
        await set_budget(reach, "r", Budget(tokens=9))
    assert missing.value.run_id == "r"
    run = await hold(reach.store, budget=BudgetLimits(tokens=5))
    await reach.store.commit([FinishRun(run.key, run.epoch, RunState.FAILED, None, FAILED, 1000.0)])
    with pytest.raises(RunEnded, match="run 'r' cannot be given another budget: it has failed"):
        await set_budget(reach, "r", Budget(tokens=9))


# Forks


async def test_a_fork_may_use_as_much_as_its_origin_might_and_continues_the_same_run(reach: Reached):
    await hold(reach.store, "before", session="talk")
    run = await hold(reach.store, session="talk", budget=BudgetLimits(calls=2))
    await reach.store.commit([append(run, 0, used=Usage(calls=1))])
    fork = await fork_run(reach.store, "r", at=1)
    assert (fork.session, fork.previous_run, fork.has_budget) == ("", "before", True)
    assert await reach.store.get_usages([fork.id]) == {fork.id: RunUsage(budget=BudgetLimits(calls=2))}
    assert await mailbox(reach.store, fork) == []


async def test_a_fork_of_a_run_that_waits_for_a_budget_asks_at_once(reach: Reached):
    run = await hold(reach.store, budget=BudgetLimits(calls=2))
    await reach.store.commit([append(run, 0), append(run, 1, error=REFUSED), append(run, 2, name="a tool")])
    assert await mailbox(reach.store, await fork_run(reach.store, "r", at=None)) == [BUDGET_SIGNAL]
    assert await mailbox(reach.store, await fork_run(reach.store, "r", at=3)) == [BUDGET_SIGNAL]
    assert await mailbox(reach.store, await fork_run(reach.store, "r", at=2)) == []
    await reach.store.commit([append(run, 3, RecordKind.SIGNAL, BUDGET_SIGNAL), append(run, 4, error=FAILED)])
    assert await mailbox(reach.store, await fork_run(reach.store, "r", at=None)) == []


async def test_a_fork_with_a_taken_id_signals_no_run(reach: Reached):
    run = await hold(reach.store, budget=BudgetLimits(calls=2))
    other = await hold(reach.store, "other")
    await reach.store.commit([append(run, 0, error=REFUSED)])
    with pytest.raises(RunConflict, match="'other' is taken"):
        await fork_run(reach.store, "r", at=None, new_id="other")
    assert await mailbox(reach.store, other) == []
