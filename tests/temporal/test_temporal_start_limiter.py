"""A run that asks for more at once than Temporal takes gets it bit by bit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import start_limiter_flows as flows
from recorded_histories import RecordedHistory, list_starts, rebuild, release_all, replay
from temporal_engines import client_of, serving
from temporalio.api.enums.v1 import EventType

import temporal_server
from holdfast import Runtime
from holdfast.temporal import start_limiter
from holdfast.temporal.start_limiter import StartLimiter

pytestmark = pytest.mark.asyncio

FLOWS = [flow for name, flow in vars(flows).items() if name.startswith("pacing_") and hasattr(flow, "start")]


@pytest.fixture(scope="module")
def url() -> str:
    return temporal_server.fresh_url()


@pytest_asyncio.fixture
async def runtime(url: str) -> AsyncIterator[Runtime]:
    async with serving(url, *FLOWS) as opened:
        yield opened
    release_all()


async def finished(url: str, runtime: Runtime, flow: Any, *args: Any) -> tuple[Any, RecordedHistory]:
    """The result of a run, and its history, which can be replayed."""
    handle = await runtime.start(flow, *args)
    async with asyncio.timeout(40):
        result = await handle.result()
    client = await client_of(url)
    execution = (await client.get_workflow_handle(handle.run_id).describe()).run_id
    recorded = RecordedHistory(
        handle.run_id, execution, None, await client.get_workflow_handle(handle.run_id).fetch_history()
    )
    assert await replay(recorded) is None
    assert sorted(map(repr, rebuild(recorded).starts)) == sorted(map(repr, list_starts(recorded.events)))
    return result, recorded


def most_open(recorded: RecordedHistory, starts: int, ended: set[int]) -> int:
    """How many were under way at most, by the history."""
    now = most = 0
    for event in recorded.events:
        now += (event.event_type == starts) - (event.event_type in ended)
        most = max(most, now)
    return most


async def test_steps_wait_for_their_turn(url: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_limiter, "MAX_ACTIVITIES", 4)
    flows.at_work[:] = [0, 0]
    result, recorded = await finished(url, runtime, flows.pacing_wide, 14)
    assert result == list(range(14))
    assert flows.at_work[1] <= 4
    scheduled, completed = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    assert most_open(recorded, scheduled, {completed}) == 4


async def test_steps_withdrawn_before_their_turn_never_begin(
    url: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_limiter, "MAX_ACTIVITIES", 2)
    result, recorded = await finished(url, runtime, flows.pacing_withdrawn, 6)
    assert result == 7
    names = Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in recorded.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )
    assert names["pacing_careful"] == 2


async def test_children_with_more_inputs_than_fit_into_a_message_are_started_bit_by_bit(
    url: str, runtime: Runtime
) -> None:
    """Five megabytes, and 1.9 each: Temporal takes four at a time."""
    result, _ = await finished(url, runtime, flows.pacing_children, 10, 500_000)
    assert result == [500_000] * 10
    result, _ = await finished(url, runtime, flows.pacing_children, 3, 1_900_000)
    assert result == [1_900_000] * 3


async def test_children_called_off_before_there_was_room_are_never_started(url: str, runtime: Runtime) -> None:
    result, recorded = await finished(url, runtime, flows.pacing_cancelled, 6, 900_000)
    assert result == 3
    initiated = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
    assert sum(event.event_type == initiated for event in recorded.events) == 2


async def test_small_inputs_count_with_external_storage(tmp_path: Path) -> None:
    """Each of them is too small for the storage; together they are too large for a message."""
    url = f"{temporal_server.fresh_url()}?payloads={tmp_path}"
    async with serving(url, *FLOWS) as runtime:
        handle = await runtime.start(flows.pacing_children, 25, 200_000)
        async with asyncio.timeout(40):
            assert await handle.result() == [200_000] * 25


async def test_a_pace_lets_one_through_however_large() -> None:
    starts: list[int] = []
    pace = StartLimiter(max_in_flight=2, max_bytes=10)
    for position, size in enumerate((50, 3, 4, 5)):
        pace.start_when_possible(position, lambda position=position: starts.append(position), size)
    assert starts == [0]
    pace.note_accepted(0)
    assert starts == [0, 1]
    assert pace.discard_waiting(2)
    assert not pace.discard_waiting(1)
    pace.note_ended(0)
    assert starts == [0, 1, 3]
