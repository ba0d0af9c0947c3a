"""Histories grow as fast as what is said in them, and are not read again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import growth_flows
import pytest
from growth_flows import TURNS, growing_agent, growing_blocking, growing_patient
from temporal_engines import client_of, engine_of, serving

import temporal_server
from holdfast.temporal import worker_thread

pytestmark = pytest.mark.asyncio


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    monkeypatch.setenv("LEDGER", str(path))
    return path


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run stay in memory from one workflow task to the next."""
    make = worker_thread.Worker
    monkeypatch.setattr(
        worker_thread, "Worker", lambda *args, **kept: make(*args, **kept | {"max_cached_workflows": 0})
    )


def done(ledger: Path, what: str) -> Counter[str]:
    return Counter(line for line in ledger.read_text().splitlines() if line.startswith(what))


async def test_a_history_grows_with_the_conversation_and_a_restart_repeats_nothing(ledger: Path) -> None:
    """A hundred turns of two kilobytes each; the worker is replaced in the middle."""
    url = temporal_server.fresh_url()
    async with serving(url, growing_agent, lease_s=2.0) as runtime:
        await runtime.start(growing_agent.options(id="talk"), "Talk.")
        async with asyncio.timeout(60):
            while len(done(ledger, "model")) < TURNS // 2:  # noqa: ASYNC110 - it goes on by itself
                await asyncio.sleep(0.02)
    before = done(ledger, "model")
    async with serving(url, growing_agent, lease_s=2.0) as runtime:
        async with asyncio.timeout(60):
            run = await runtime.store_provider.wait_for_end("talk")
        recall = engine_of(runtime).rebuilt_runs
        assert recall.history_read_count <= 3
    assert b"That was all." in (run.output or b"")
    asked = done(ledger, "model")
    assert len(asked) == TURNS
    assert [turn for turn, times in asked.items() if times > 1] in ([], [list(before)[-1]])

    client = await client_of(url)
    info = (await client.get_workflow_handle("talk").describe()).raw_description.workflow_execution_info
    assert info.history_size_bytes < 2_000_000
    at = await _sizes_by_turn(client, "talk")
    per_turn = [(at[upto] - at[5]) / (upto - 5) for upto in (25, 50, TURNS - 1)]
    assert max(per_turn) < 1.15 * min(per_turn), per_turn
    assert per_turn[-1] < 2.5 * 2048
    assert recall.event_count <= 2 * info.history_length


async def _sizes_by_turn(client: Any, run_id: str) -> dict[int, int]:
    """How large the history was when each turn began."""
    sizes: dict[int, int] = {}
    size = 0
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        size += event.ByteSize()
        name = event.activity_task_scheduled_event_attributes.activity_type.name
        if name and name != "look":
            sizes[len(sizes)] = size
    return sizes


async def test_the_history_of_a_rebuilt_run_is_read_once(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any run in memory, activities find their commands by the history; what is finished is not repeated."""
    forgetful(monkeypatch)
    monkeypatch.setattr(growth_flows, "TURNS", 25)
    url = temporal_server.fresh_url()
    async with serving(url, growing_agent) as runtime:
        await runtime.start(growing_agent.options(id="forgotten"), "Talk.")
        async with asyncio.timeout(60):
            assert b"That was all." in ((await runtime.store_provider.wait_for_end("forgotten")).output or b"")
        recall = engine_of(runtime).rebuilt_runs
    assert done(ledger, "model") == {f"model {turn}": 1 for turn in range(25)}
    assert done(ledger, "tool") == {f"tool {turn}": 1 for turn in range(24)}
    assert recall.history_read_count >= 3
    client = await client_of(url)
    info = (await client.get_workflow_handle("forgotten").describe()).raw_description.workflow_execution_info
    assert recall.event_count <= info.history_length, "an event was read more than once"


async def test_workflow_code_that_is_slow_takes_no_step_from_its_worker(ledger: Path) -> None:
    """Heartbeats go on meanwhile: a step of another run, which needs them, is carried out once."""
    async with serving(temporal_server.fresh_url(), growing_patient, growing_blocking, lease_s=1.0) as runtime:
        patient = await runtime.start(growing_patient.options(id="patient"), 2.5)
        async with asyncio.timeout(30):
            while not done(ledger, "long"):  # noqa: ASYNC110 - it goes on by itself
                await asyncio.sleep(0.02)
        blocking = await runtime.start(growing_blocking.options(id="blocking"), 2.2)
        assert await blocking.result() == "at last"
        assert await patient.result() == "done"
    assert done(ledger, "long") == {"long": 1}
