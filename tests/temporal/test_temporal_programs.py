"""Programs on Temporal: an activity executes them, and their workflows keep their journals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from program_flows import counts, counts_signals, executed, holds, holds_open
from temporal_engines import client_of, engine_of, serving
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

import holdfast.reports.report_reader  # noqa: F401  # at once: pytest rewrites imports, which Python 3.11 cannot do in two threads
import temporal_server
from holdfast import Client, RunFailed
from holdfast.core.records import RecordKind
from holdfast.stores.temporal import identifiers
from holdfast.temporal import live_program
from holdfast.temporal.run_workflow import EngineContextInterceptor, RunWorkflow
from waits import wait_until, wait_until_sync

pytestmark = pytest.mark.asyncio

AFTER = 40
"""Events after which a run continues as new here."""


@pytest.fixture(autouse=True)
def _nothing_executed() -> None:
    executed.clear()


async def read_histories(url: str, run_id: str) -> list[Any]:
    """The histories of a run's executions, the newest first."""
    client = await client_of(url)
    histories: list[Any] = []
    execution: str | None = (await client.get_workflow_handle(run_id).describe()).run_id
    while execution:
        history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        histories.append(history)
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return histories


async def test_a_long_program_goes_through_several_executions_and_does_nothing_twice() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, counts, continue_as_new_after=AFTER) as runtime:
        assert await (await runtime.start(counts.options(id="long"), 30)).result() == list(range(30))
        assert executed == list(range(30))
        histories = await read_histories(url, "long")
        assert len(histories) > 2
        replayer = Replayer(
            workflows=[RunWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            interceptors=[EngineContextInterceptor(engine_of(runtime).context)],
        )
        for history in histories:
            await replayer.replay_workflow(history)
    async with Client(url) as client:
        journal = (await client.handle("long").describe(limit=None)).journal
    assert [one.output for one in journal if one.kind == "step"] == list(range(30))
    assert [one.seq for one in journal] == list(range(60))


def has_executed(count: int) -> bool:
    return len(executed) > count


async def test_a_wait_for_signals_goes_along_into_the_next_execution() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, counts_signals, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(counts_signals.options(id="heard"), 20)
        for number in (101, 102, 103):
            await handle.signal("number", number)
            await wait_until(partial(has_executed, 5 * (number - 100)))
        assert await handle.result() == [*range(20), 101, 102, 103]
    assert executed == list(range(20))
    assert len(await read_histories(url, "heard")) > 1


async def test_a_program_that_has_always_something_in_flight_fails_when_its_history_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_program, "MAX_UPDATES", 20)
    url = temporal_server.fresh_url()
    async with serving(url, holds_open, continue_as_new_after=AFTER) as runtime:
        handle = await runtime.start(holds_open.options(id="open"), 100)
        with pytest.raises(RunFailed, match="in flight") as failed:
            await handle.result()
    assert type(failed.value.__cause__).__name__ == "HistoryFull"


async def test_a_worker_that_stops_hands_a_program_over_at_once() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, counts_signals, lease_s=120) as runtime:  # a silent worker would be noticed after a minute
        handle = await runtime.start(counts_signals.options(id="handed"), 3)
        await wait_until(lambda: len(executed) == 3)
    async with serving(url, counts_signals) as runtime, Client(url) as client:
        for number in (1, 2, 3):
            await client.handle(handle.run_id).signal("number", number)
        assert await client.handle(handle.run_id).result(timeout=30) == [0, 1, 2, 1, 2, 3]
    assert executed == [0, 1, 2]


async def test_the_journal_is_in_the_history_and_the_program_is_one_activity() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, counts) as runtime:
        await (await runtime.start(counts.options(id="short"), 3)).result()
    [history] = await read_histories(url, "short")
    activities = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert activities == [identifiers.PROGRAM_ACTIVITY]
    updates = [
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
        for event in history.events
        if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
    assert sorted(updates) == [identifiers.MESSAGES_UPDATE, *[identifiers.RECORD_UPDATE] * 3]


async def test_the_steps_of_a_program_in_flight_are_shown() -> None:
    url = temporal_server.fresh_url()
    async with serving(url, holds, lease_s=2) as runtime, Client(url) as client:
        await runtime.start(holds.options(id="holds"), 60)

        async def read_in_flight() -> Any:
            return (await client.handle("holds").describe()).in_flight

        [step] = await wait_until(read_in_flight)
        assert (step.name, step.attempt) == ("hold", 1)
        await client.handle("holds").cancel()


def start_process(name: str, url: str, *args: str, who: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("program_flows.py")), name, url, *args]
    return subprocess.Popen(command, env={**os.environ, "WHO": who}, stdout=subprocess.PIPE, text=True)


async def test_a_frozen_process_writes_nothing_after_another_one_has_taken_its_program_over(tmp_path: Path) -> None:
    url, log = temporal_server.fresh_url(), tmp_path / "log"
    log.touch()

    def freeze() -> list[str]:
        with start_process("freezes", url, str(log), who="first") as first:
            wait_until_sync(lambda: "first started" in log.read_text())
            first.send_signal(signal.SIGSTOP)
            with start_process("freezes", url, str(log), who="second") as second:
                outputs = [second.communicate(timeout=60)[0]]
            first.send_signal(signal.SIGCONT)
            return [*outputs, first.communicate(timeout=60)[0]]

    assert await asyncio.to_thread(freeze) == ["RESULT: ['second', 'second']\n"] * 2
    assert "first went on" not in log.read_text()
    async with Client(url) as client:
        journal = (await client.handle("freezes").describe(limit=None)).journal
    # Temporal gives a frozen process the program a few times before it notices that the process does not respond.
    epochs = [one.epoch for one in journal if one.kind == RecordKind.STEP.label]
    assert len(epochs) == 2
    assert len({1, *epochs}) == 2


async def test_a_program_that_kills_its_workers_is_dead() -> None:
    url = temporal_server.fresh_url()

    def start_often() -> list[int]:
        codes: list[int] = []
        for _ in range(3):
            with start_process("kills", url) as process:
                codes.append(process.wait(60))
        return codes

    assert await asyncio.to_thread(start_often) == [9, 9, 1]
    async with Client(url) as client:
        assert (await client.handle("kills").info()).state == "dead"
