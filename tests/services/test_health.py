"""Health: who serves an agent is told by its workers' heartbeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Agent, Client, Runtime, workflow
from holdfast.services.health import Health, HealthState, read_health
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.memory import MemoryStore
from holdfast.stores.workers import NewWorker
from holdfast.testing import ScriptedModel

pytestmark = pytest.mark.asyncio


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def read_health_of(store: MemoryStore, name: str) -> Health:
    [found] = [one for one in await read_health(store) if one.name == name]
    return found


async def test_an_agent_is_serving_silent_unserved_and_off():
    time = Time()
    store = MemoryStore(clock=time)
    await store.open()
    await store.announce_workflows([WorkflowSpec("helper", ("prompt",), queue="helper", is_agent=True)])
    assert (await read_health_of(store, "helper")).state is HealthState.UNSERVED
    assert (await read_health_of(store, "helper")).heartbeat_at is None

    worker = await store.workers.register(NewWorker("w", "h", 1, ("helper",), None), lease_s=10)
    time.now = 1004.0
    assert store.workers.renew_lease(worker, 10)
    time.now = 1006.0
    serving = await read_health_of(store, "helper")
    assert (serving.state, serving.worker_count, serving.is_agent) == (HealthState.SERVING, 1, True)
    assert serving.heartbeat_at is not None
    assert serving.heartbeat_at.timestamp() == 1004.0

    time.now = 1014.5  # nobody has looked yet whether it is dead
    silent = await read_health_of(store, "helper")
    assert (silent.state, silent.worker_count) == (HealthState.SILENT, 0)
    assert silent.heartbeat_at == serving.heartbeat_at

    await store.disabled_workflows.disable("helper")
    off = await read_health_of(store, "helper")
    assert off.state is HealthState.DISABLED
    assert off.disabled_at is not None
    assert off.disabled_at.timestamp() == 1014.5
    await store.disabled_workflows.enable("helper")
    await store.workers.reap_dead()
    assert (await read_health_of(store, "helper")).state is HealthState.UNSERVED


async def test_a_worker_of_another_queue_does_not_serve_it():
    store = MemoryStore(clock=Time())
    await store.open()
    await store.announce_workflows([WorkflowSpec("nightly", (), queue="night")])
    await store.workers.register(NewWorker("w", "h", 1, ("nightly",), ("day",)), lease_s=10)
    assert (await read_health_of(store, "nightly")).state is HealthState.UNSERVED
    await store.workers.register(NewWorker("v", "h", 2, ("nightly",), ("day", "night")), lease_s=10)
    assert (await read_health_of(store, "nightly")).worker_count == 1


async def test_a_client_reads_it(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    agent = Agent(ScriptedModel(["yes"]), name="healthy-agent")

    @workflow
    async def healthy_flow() -> int:
        return 1

    async with Client(url) as client:
        async with Runtime(url):
            await agent.run("are you there?")
            await healthy_flow()
            health = {one.name: one for one in await client.health()}
            assert health["healthy-agent"].state is HealthState.SERVING
            assert health["healthy-agent"].is_agent
            assert not health["healthy_flow"].is_agent
            assert dict(health["healthy-agent"].run_counts) == {"completed": 1}
        states = {one.name: one.state for one in await client.health()}
        assert states["healthy-agent"] is HealthState.UNSERVED
