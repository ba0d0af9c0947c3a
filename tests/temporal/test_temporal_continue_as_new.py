"""Runs that are too long for one history go on in a new one, and notice nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from continue_as_new_flows import (
    continuing_agent,
    continuing_busy,
    continuing_chance,
    continuing_child,
    continuing_class,
    continuing_heavy,
    continuing_paused,
    continuing_signals,
    continuing_steps,
    continuing_timers,
    continuing_unheard,
)
from temporal_engines import client_of, serving
from temporalio.api.enums.v1 import EventType

import forked_python
import temporal_server
from holdfast import Client, RunFailed
from holdfast.core.records import Record, RecordKind, Signal
from holdfast.stores.temporal import identifiers, rows
from holdfast.stores.temporal.carried_records import RecordPacker, pack_records, pack_signals, unpack
from holdfast.stores.temporal.payload_storage import MIN_EXTERNAL_BYTES
from holdfast.stores.temporal.payloads import to_raw_value
from holdfast.temporal import live_run
from waits import wait_until

pytestmark = pytest.mark.asyncio

HERE = Path(__file__).parent
AFTER = 30


async def executions(url: str, run_id: str) -> list[Any]:
    """The histories of a run, the first first."""
    client = await client_of(url)
    found: list[Any] = []
    execution = (await client.get_workflow_handle(run_id).describe()).run_id
    while execution:
        history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        found.insert(0, history.events)
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return found


def in_flight_at_the_end(events: Any) -> int:
    """Activities and children without an outcome."""
    kinds = Counter(EventType.Name(event.event_type) for event in events)
    activities = kinds["EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"] - sum(
        kinds[f"EVENT_TYPE_ACTIVITY_TASK_{how}"] for how in ("COMPLETED", "FAILED", "CANCELED", "TIMED_OUT")
    )
    children = kinds["EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED"] - sum(
        kinds[f"EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_{how}"] for how in ("COMPLETED", "FAILED", "CANCELED")
    )
    return activities + children


async def test_a_long_run_goes_through_several_executions_and_does_nothing_twice() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_steps, continue_as_new_after=AFTER) as runtime:
        done = await (await runtime.start(continuing_steps.options(id="long"), 30)).result()
    assert done == list(range(30))
    histories = await executions(url, "long")
    assert len(histories) > 2
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_id
        for events in histories
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    assert scheduled == [str(number + 1) for number in range(30)]
    assert all(in_flight_at_the_end(events) == 0 for events in histories)


async def test_a_list_does_not_read_the_records_that_a_run_brought_along(monkeypatch: pytest.MonkeyPatch) -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_steps, continue_as_new_after=AFTER) as runtime:
        await (await runtime.start(continuing_steps.options(id="listed"), 30)).result()
    newest = (await (await client_of(url)).get_workflow_handle("listed").describe()).run_id
    read: list[int] = []
    is_deleted = False
    first_event = rows.fetch_first_event

    async def counted(client: Any, run_id: str, execution: str, **kwargs: Any) -> Any:
        if is_deleted and execution != newest:
            execution = str(uuid4())
        event = await first_event(client, run_id, execution, **kwargs)
        read.append(len(event.workflow_execution_started_event_attributes.input.payloads))
        return event

    monkeypatch.setattr(rows, "fetch_first_event", counted)
    client = Client(url)
    async with asyncio.timeout(30):
        while not (listed := await client.list(id_prefix="listed")):  # noqa: ASYNC110 - visibility lags behind
            await asyncio.sleep(0.05)
    assert [run.inputs for run in listed] == [{"upto": 30}]
    assert set(read) == {1}

    # Temporal deletes old executions. Then the newest one still has the inputs.
    is_deleted = True
    assert [run.inputs for run in await client.list(id_prefix="listed")] == [{"upto": 30}]
    assert read[-1] > 1
    await client.close()


async def test_signals_that_come_meanwhile_are_neither_lost_nor_doubled_and_keep_their_order() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_signals, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_signals.options(id="heard"), 40)

        async def send(name: str, count: int) -> None:
            for number in range(count):
                await handle.signal(name, number)
                await asyncio.sleep(0.002)

        await asyncio.gather(send("a", 20), send("b", 20))
        heard = await handle.result()
    assert [number for name, number in heard if name == "a"] == list(range(20))
    assert [number for name, number in heard if name == "b"] == list(range(20))
    assert len(await executions(url, "heard")) > 1


async def test_unconsumed_signals_are_carried() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_unheard, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_unheard.options(id="unheard"), 30)
        for number in range(5):
            await handle.signal("later", f"word {number}")
        assert await handle.result() == [f"word {number}" for number in range(5)]
    assert len(await executions(url, "unheard")) > 2


async def test_a_signal_sent_again_under_its_id_counts_once_in_whichever_execution() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_unheard, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_unheard.options(id="again"), 12)
        await handle.signal("later", "first", id="one")
        async with asyncio.timeout(30):
            while len(await executions(url, "again")) < 2:  # noqa: ASYNC110 - it goes on by itself
                await asyncio.sleep(0.02)
        await handle.signal("later", "first once more", id="one")
        for number in range(4):
            await handle.signal("later", f"word {number}", id=f"word {number}")
        assert await handle.result() == ["first", *(f"word {number}" for number in range(4))]


def timers(events: Any) -> list[tuple[float, float]]:
    """The timers of a history: how long each was to last, and when it was to ring by the clock of the workflow."""
    found: list[tuple[float, float]] = []
    now = 0.0
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            now = event.event_time.ToNanoseconds() / 1e9
        elif event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
            lasts = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
            found.append((lasts, now + lasts))
    return found


async def test_pending_timers_ring_when_they_would_have_and_change_nothing() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_timers, continue_as_new_after=AFTER) as runtime:
        slept, order = await (await runtime.start(continuing_timers.options(id="timed"), 25)).result()
    assert order == ["short", "long"]
    assert slept >= 1.2
    first, *later = [timers(events) for events in await executions(url, "timed")]
    assert len(later) > 1
    assert len(first) == 2
    for lasts, rings in (timer for execution in later for timer in execution):
        is_overdue = lasts <= 0.001  # the shortest that there is
        assert is_overdue or any(abs(rings - due) < 0.005 for _, due in first)


async def test_time_chance_and_patches_are_what_they_were() -> None:
    """The values of the first execution are taken again in each later one, while it replays what was carried."""
    url = temporal_server.fresh_url()
    async with serving(url, continuing_chance, continue_as_new_after=AFTER) as runtime:
        first, again = await (await runtime.start(continuing_chance.options(id="chance"), 25)).result()
    assert first == again
    assert len(await executions(url, "chance")) > 2


async def test_class_workflows_and_agents_go_on_as_well() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_class, continuing_agent, continue_as_new_after=AFTER) as runtime:
        assert await (await runtime.start(continuing_class.options(id="class"), count=12)).result() == sum(range(12))
        await runtime.start(continuing_agent.options(id="agent"), "Count.")
        assert b"Counted to 15." in ((await runtime.store_provider.wait_for_end("agent")).output or b"")
    assert len(await executions(url, "class")) > 1
    assert len(await executions(url, "agent")) > 1


async def test_nothing_in_flight_is_left_behind() -> None:
    """A run that always has a step or a child in flight goes on as new only when it has none."""
    url = temporal_server.fresh_url()
    async with serving(url, continuing_busy, continuing_child, continue_as_new_after=AFTER) as runtime:
        total = await (await runtime.start(continuing_busy.options(id="busy"), 7)).result()
    assert total == sum(number + 1 for number in range(7)) + 7
    histories = await executions(url, "busy")
    assert len(histories) > 1
    assert all(in_flight_at_the_end(events) == 0 for events in histories)


async def test_a_paused_run_stays_where_it_is() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, continuing_paused, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_paused.options(id="paused"), 20)
        await asyncio.sleep(0.1)
        await handle.pause()
        before = len(await executions(url, "paused"))
        await handle.signal("more", 1)
        await asyncio.sleep(0.3)
        assert len(await executions(url, "paused")) == before
        await handle.resume()
        assert await handle.result() == 20


def _worker(url: str, ledger: Path) -> subprocess.Popen[bytes]:
    code = (
        "import asyncio, continue_as_new_flows as f\n"
        "from temporal_engines import serving\n"
        "async def main():\n"
        f"    async with serving({url!r}, f.continuing_counted, lease_s=2.0, continue_as_new_after={AFTER}):\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "LEDGER": str(ledger), "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    return forked_python.start(command, library=forked_python.TEMPORAL, env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("effects", [8, 9])
async def test_a_worker_killed_around_it_leaves_nothing_undone_and_nothing_done_twice(
    effects: int, tmp_path: Path
) -> None:
    """SIGKILL when so many effects are in the ledger: an execution has room for eight."""
    url, ledger = temporal_server.fresh_url(), tmp_path / "ledger"

    def lines() -> list[str]:
        return ledger.read_text().split() if ledger.exists() else []

    worker = _worker(url, ledger)
    try:
        client = await client_of(url)
        queue = identifiers.format_task_queue("default", "continuing_counted", "")
        await client.start_workflow(
            "continuing_counted",
            args=[to_raw_value(b'{"upto": 26}')],
            id="counted",
            task_queue=queue,
            result_type=int,
            task_timeout=timedelta(seconds=1),
        )
        await wait_until(lambda: len(lines()) >= effects)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        in_flight = lines()[-1]
        worker = _worker(url, ledger)
        assert await asyncio.wait_for(client.get_workflow_handle("counted").result(), 60) == 26
    finally:
        worker.kill()
        worker.wait()
    counted = Counter(lines())
    assert set(counted) == {str(number) for number in range(26)}
    assert [number for number, times in counted.items() if times > 1] in ([], [in_flight])
    histories = await executions(url, "counted")
    assert len(histories) > 1
    assert all(in_flight_at_the_end(events) == 0 for events in histories)


# Records that are too large to be carried


async def test_records_that_are_too_large_fail_the_run_long_before_temporal_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_run, "MAX_CARRIED_BYTES", 5_000)
    monkeypatch.setattr(live_run, "MAX_HISTORY_EVENTS", 150)
    url = temporal_server.fresh_url()
    async with serving(url, continuing_heavy, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_heavy.options(id="heavy"), 100, 2000)
        with pytest.raises(RunFailed, match=r"(?s)HistoryFull.*'heavy'.*too large.*\?payloads=") as failed:
            await handle.result()
    assert type(failed.value.__cause__).__name__ == "HistoryFull"
    [events] = await executions(url, "heavy")
    assert 150 < len(events) < 165
    assert in_flight_at_the_end(events) == 0


async def test_with_a_storage_for_large_payloads_they_go_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """More than Temporal takes in one message, and in pieces of which none is large: 45 times 60 KB."""
    monkeypatch.setattr(live_run, "MAX_CARRIED_BYTES", 20_000)
    monkeypatch.setattr(live_run, "MAX_HISTORY_EVENTS", 150)
    url = f"{temporal_server.fresh_url()}?payloads={tmp_path}"
    async with serving(url, continuing_heavy, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(continuing_heavy.options(id="heavy"), 45, 60_000)
        assert await handle.result() == 45 * 60_000
    histories = await executions(url, "heavy")
    assert len(histories) > 3
    for events in histories[1:]:
        carried = events[0].workflow_execution_started_event_attributes.input
        assert carried.ByteSize() < 1_000_000


def _records(count: int, size: int) -> list[Record]:
    payloads = [os.urandom(size // 2).hex().encode() for _ in range(count)]
    return [
        Record(number, RecordKind.STEP, number, "step", True, b'"%s"' % payload, float(number), preview="…")
        for number, payload in enumerate(payloads)
    ]


async def test_all_chunks_but_the_last_are_large_enough_for_external_storage() -> None:
    records = _records(100, 20_000)
    chunks = pack_records(records)
    assert all(len(chunk.data) >= MIN_EXTERNAL_BYTES for chunk in chunks[:-1])
    assert len(chunks) < 8
    assert unpack(chunks)[1] == records


async def test_chunks_of_several_executions_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each execution adds to what it was given, whatever the sizes."""
    records = [*_records(30, 300), *_records(1, 700_000), *_records(30, 300), *_records(60, 9_000)]
    chunks: list[Any] = []
    size = 0
    for number, record in enumerate(records):
        packing = RecordPacker(chunks)
        assert abs(packing.uncompressed_size - size) < 200
        packing.add(record._replace(seq=number))
        chunks, size = packing.to_chunks(), packing.uncompressed_size
    unpacked_chunks, unpacked, signals = unpack([*chunks, *pack_signals([Signal(1, "go", b"1", 2.0)])])
    assert unpacked_chunks == chunks
    assert [record.payload for record in unpacked] == [record.payload for record in records]
    assert [record.seq for record in unpacked] == list(range(len(records)))
    assert signals == [Signal(1, "go", b"1", 2.0)]
    assert all(len(chunk.data) >= MIN_EXTERNAL_BYTES for chunk in chunks[:-1])
