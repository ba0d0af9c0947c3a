"""How many deaths make a run dead, who says so, and what is told of dead runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, DefinitionError, RunNotFound, UsageError, WorkflowOptions, workflow
from holdfast.core.records import Record, RecordKind
from holdfast.services.run_start import StartOptions, build_new_run
from holdfast.stores.live_events import STARTED
from holdfast.stores.operations import (
    MAX_DELIVERIES,
    AppendLiveEvents,
    AppendRecord,
    LiveEvent,
    NewRun,
    StartResult,
    StartRun,
)
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "3", None])
async def test_max_deliveries_is_a_whole_number_above_zero(most: Any):
    if most is not None:
        with pytest.raises(
            DefinitionError, match=r"workflow 'flow' .*: max_deliveries=.* must be a whole number, 1 or"
        ):

            @workflow(max_deliveries=most)
            async def flow() -> None: ...

        with pytest.raises(
            DefinitionError, match=r"WorkflowOptions: max_deliveries=.* must be a whole number, 1 or more"
        ):
            WorkflowOptions(max_deliveries=most)
        with pytest.raises(UsageError, match=r"max_deliveries=.* must be a whole number, 1 or more"):
            Client("memory://").options(max_deliveries=most)

    @workflow
    async def usual() -> None: ...

    assert usual.definition.to_spec().max_deliveries == MAX_DELIVERIES


async def test_a_client_that_starts_by_name_uses_what_workers_have_announced(tmp_path: Path):
    @workflow(max_deliveries=5)
    async def frail() -> None: ...

    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    await store.announce_workflows([frail.definition.to_spec()])
    async with Client(store.url) as client:
        usual = await client.start("frail")
        patient = await client.options(max_deliveries=9).start("frail")
    assert [(await store.get_run(one.run_id)).max_deliveries for one in (usual, patient)] == [5, 9]  # type: ignore[union-attr]
    await store.close()
    options = frail.options(max_deliveries=2).start_options
    assert build_new_run(frail.definition.to_spec(), b"{}", options, now=1.0).max_deliveries == 2
    assert build_new_run(frail.definition.to_spec(), b"{}", StartOptions(), now=1.0).max_deliveries == 5


async def test_a_dead_run_has_its_steps_in_flight(tmp_path: Path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()

    @workflow(max_deliveries=1, id="frail")
    async def frail() -> None: ...

    worker = await store.workers.register(NewWorker("w", "host", 7), 10.0)
    new = build_new_run(frail.definition.to_spec(), b"{}", StartOptions(), now=store.now())
    [started] = await store.commit([StartRun(new, claim_as=worker)])
    assert isinstance(started, StartResult)
    begun = LiveEvent(3, "1.2.0", -1, STARTED, b'{"name":"load","kind":"step","attempt":2}', store.now())
    await store.commit([AppendLiveEvents(started.run.key, 1, (begun,))])
    store.workers._locks.release(store.workers._own_workers[worker])
    assert (await store.workers.reap_dead()).dead_run_ids == ("frail",)
    async with Client(store.url) as client:
        [dead] = await client.dead(workflow=frail.name)
        assert (dead.id, dead.death_count, dead.worker, dead.record_count) == ("frail", 1, "w at host:7", 0)
        [step] = dead.in_flight
        assert (step.name, step.number, step.attempt) == ("load", 4, 2)
        assert "In flight: step 4 (load, attempt 2). Look at what that does" in dead.reason
        report = await client.prune(timedelta(0))
        assert (report.run_count, report.kept_by_reason) == (0, {})
        assert (await client.prune(timedelta(0), state="dead", dry_run=True)).run_count == 1
        assert (await client.prune(0.0, state="dead")).run_count == 1
        assert await client.dead() == []
        for mistake in ({"state": "waiting"}, {"state": "nope"}, {"keep": -1}):
            with pytest.raises(UsageError):
                await client.prune(0.0, **mistake)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"older_than .* is not a duration.*zero or longer"):
            await client.prune(-1.0)
    await store.close()


async def test_dead_runs_are_listed_page_by_page_without_their_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    for number in range(3):
        worker = await store.workers.register(NewWorker("w", "host", 7), 10.0)
        new = NewRun(f"dead-{number}", "fragile", b"{}", b"d", bytes(16), store.now(), max_deliveries=1)
        [started] = await store.commit([StartRun(new, claim_as=worker)])
        assert isinstance(started, StartResult)
        for seq, name in enumerate(["load", "split", "save"][: number + 1]):
            record = Record(seq, RecordKind.STEP, seq, name, True, b"1", store.now(), epoch=1)
            await store.commit([AppendRecord(started.run.key, record)])
        store.workers._locks.release(store.workers._own_workers[worker])
    assert len((await store.workers.reap_dead()).dead_run_ids) == 3

    async def whole(*_: Any) -> Any:
        raise AssertionError("a journal may be long, and is not told")

    monkeypatch.setattr(SqliteStore, "get_histories", whole)
    async with Client(store.url) as client:
        first = await client.dead(limit=2)
        assert [(one.id, one.record_count, one.last_step_name) for one in first] == [
            ("dead-2", 3, "save"),
            ("dead-1", 2, "split"),
        ]
        rest = await client.dead(limit=2, before="dead-1")
        assert [(one.id, one.record_count, one.last_step_name) for one in rest] == [("dead-0", 1, "load")]
        with pytest.raises(RunNotFound, match="there is no run 'pruned'"):  # and not the first page once more
            await client.dead(before="pruned")
    await store.close()
