"""Every history that is kept is replayed: by Temporal's replayer, and by what brings runs back without it.

A change of Holdfast that would break runs which are under way on somebody's Temporal fails here. That these tests can
fail is tested, too: by changes of the kind that they are there to find.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import replayed_flows
from recorded_histories import FOLDER, RecordedHistory, list_starts, rebuild, release_all, replay
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from holdfast.core.records import Record, RecordKind
from holdfast.core.seeded_random import SeededRandom
from holdfast.core.states import RunState
from holdfast.stores.temporal import identifiers, run_events
from holdfast.stores.temporal.carried_records import unpack
from holdfast.stores.temporal.payloads import from_payload
from holdfast.stores.temporal.rows import rewind_from_json
from holdfast.stores.temporal.run_events import (
    EventBatch,
    EventBatchReader,
    StepEnded,
    read_batches,
    result_from_failure,
)
from holdfast.temporal import live_run, steps_and_timers, temporal_run
from holdfast.temporal.rebuilt_runs import trim_transient_events

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: RunState.COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: RunState.FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: RunState.CANCELLED,
}
CONTINUED = {"replayed_long_1", "replayed_long_2"}
UNENDED = {"replayed_waiting", *CONTINUED}
PROGRAMS = {"replayed_program"}
"""Their activity has executed their code, which is not in the workflow: only Temporal's replayer is for them."""
WORKFLOWS = [name for name in NAMES if name not in PROGRAMS]


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    release_all()


def read_recorded(name: str) -> RecordedHistory:
    return RecordedHistory.read(FOLDER / f"{name}.json")


def test_each_workflow_has_a_history() -> None:
    recorded_workflows = {
        read_recorded(name).events[0].workflow_execution_started_event_attributes.workflow_type.name for name in NAMES
    }
    assert recorded_workflows == set(replayed_flows.FLOWS) - {"replayed_listener", "replayed_named"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.asyncio
async def test_a_history_is_replayed_by_the_code_of_today(name: str) -> None:
    assert await replay(read_recorded(name)) is None


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_run_brought_back_asks_for_what_its_history_says(name: str) -> None:
    """Ids, names, order, arguments and times of all that it begins: also what no replayer compares."""
    history = read_recorded(name)
    run = rebuild(history)

    def of(kind: Callable[[str], bool], starts: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
        return [one for one in starts if kind(one[0])]

    asked, written = run.starts, list_starts(history.events)
    for kind in ("timer".__eq__, "child".__eq__, str.isdigit):
        expected = of(kind, written)
        # What would have come next is begun by the execution that goes on in its place.
        most = len(expected) if name in CONTINUED else None
        assert of(kind, asked)[:most] == expected


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_run_brought_back_ends_as_its_history_does(name: str) -> None:
    history = read_recorded(name)
    run, last = rebuild(history), history.events[-1]
    assert (name in UNENDED) == (last.event_type not in ENDS)
    if name in UNENDED:
        assert run.end is None
        return
    assert run.end is not None
    assert run.end.state == ENDS[last.event_type]
    if run.end.state is RunState.COMPLETED:
        assert run.end.output == from_payload(last.workflow_execution_completed_event_attributes.result.payloads[0])
    elif run.end.state is RunState.FAILED:
        failure = last.workflow_execution_failed_event_attributes.failure
        ended = json.loads(result_from_failure(failure).payload)
        mine = json.loads(run.end.error or b"{}")
        assert {**ended, "traceback": ""} == {**mine, "traceback": ""}
        short = json.loads(zlib.decompress(failure.application_failure_info.details.payloads[1].data))
        assert rewind_from_json(short["rewind"]) == run.end.rewind
        before = len(unpack(history.events[0].workflow_execution_started_event_attributes.input.payloads)[1])
        records = unpack(run.carried_records.to_chunks())[1][before:]
        assert [[int(one.kind), one.position, one.name, one.at] for one in records] == [
            row[:4] for row in short["order"]
        ]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_that_are_open_are_those_without_an_outcome_in_the_history(name: str) -> None:
    """After each workflow task: an activity that a worker is handed then must be found."""
    history = read_recorded(name)
    batches = list(read_batches(history.events))
    for upto in range(1, len(batches) + 1):
        run = rebuild(cut(history, batches[upto - 1].completed_event_id))
        if run.end is not None:
            continue
        scheduled = _open_activities(history, batches, upto)
        for position in scheduled:
            found = run.find_open_command(position)
            assert found is not None, (name, upto, position)
            assert identifiers.format_activity_id(found.command.position) == identifiers.format_activity_id(position)


def _open_activities(history: RecordedHistory, batches: list[EventBatch], upto: int) -> set[int]:
    """Positions of the activities that are open after these batches."""
    end = batches[upto - 1].completed_event_id
    scheduled: dict[int, int] = {}
    gone: set[int] = set()
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            new = event.activity_task_scheduled_event_attributes
            if new.workflow_task_completed_event_id <= end and new.activity_type.name != identifiers.AWAIT_RUN_ACTIVITY:
                scheduled[event.event_id] = identifiers.parse_activity_position(new.activity_id)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
            asked = event.activity_task_cancel_requested_event_attributes
            if asked.workflow_task_completed_event_id <= end:
                gone.add(scheduled.get(asked.scheduled_event_id, -1))
    ended = {one.position for batch in batches[:upto] for one in batch.events if isinstance(one, StepEnded)}
    return set(scheduled.values()) - ended - gone


def _get_task_event_id(event: HistoryEvent) -> int:
    """The workflow task that has asked for what an event tells; 0: none has."""
    return getattr(getattr(event, event.WhichOneof("attributes") or ""), "workflow_task_completed_event_id", 0)


def cut(history: RecordedHistory, completed: int) -> RecordedHistory:
    """As it was when this workflow task was completed: what it has asked for is written with it."""
    return cut_at(
        history,
        max(event.event_id for event in history.events if completed in (event.event_id, _get_task_event_id(event))),
    )


def cut_at(history: RecordedHistory, last: int) -> RecordedHistory:
    """As it was when this event was written."""
    events = [event for event in history.events if event.event_id <= last]
    return RecordedHistory(
        history.run_id, history.execution, history.continue_after, WorkflowHistory(history.run_id, events)
    )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_batches_hold_each_outcome_once_and_what_is_left_is_unseen(name: str) -> None:
    history = read_recorded(name)
    reader = EventBatchReader()
    seen_events = [event for batch in reader.read(history.events) for event in batch.events]
    ended = Counter(event.position for event in seen_events if isinstance(event, StepEnded))
    left = Counter(event.position for event in reader.unseen_events if isinstance(event, StepEnded))
    outcomes = {
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT, EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
    }  # fmt: skip
    assert (ended + left).total() == sum(event.event_type in outcomes for event in history.events)
    assert all(count == 1 for count in (ended + left).values())


@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name not in UNENDED])
def test_a_run_taken_piece_by_piece_is_the_one_taken_at_once(name: str) -> None:
    """A rebuilt run stays in memory and gets new events whenever an activity needs it: that makes no difference."""
    history = read_recorded(name)
    whole, pieces = rebuild(history), None
    for number in range(1, len(history.events) + 1):
        if number < len(history.events) and _get_task_event_id(history.events[number]):
            continue  # what a workflow task has asked for is written with its completion
        if pieces is None:
            pieces = rebuild(cut_at(history, number))
        else:
            pieces.apply_events(
                [
                    one
                    for one in trim_transient_events(history.events[:number])
                    if one.event_id > pieces.last_read_event_id
                ]
            )
    assert pieces is not None
    assert pieces.starts == whole.starts
    assert unpack(pieces.carried_records.to_chunks())[1] == unpack(whole.carried_records.to_chunks())[1]


def essence(record: Record) -> Record:
    """Without what only the history knows."""
    return record._replace(started_at=0.0, attempts=1)


def test_executions_that_continue_each_other_carry_the_same_records() -> None:
    first, second, third = (read_recorded(f"replayed_long_{number}") for number in (1, 2, 3))
    for before, after in ((first, second), (second, third)):
        continued = before.events[-1].workflow_execution_continued_as_new_event_attributes
        started = after.events[0].workflow_execution_started_event_attributes
        assert list(continued.input.payloads) == list(started.input.payloads)
        _, records, signals = unpack(started.input.payloads)
        mine = rebuild(before)
        assert list(map(essence, unpack(mine.carried_records.to_chunks())[1])) == list(map(essence, records))
        assert [one.payload for one in mine.unconsumed_signals.values()] == [one.payload for one in signals]
    _, records, _ = unpack(rebuild(third).carried_records.to_chunks())
    assert [one.seq for one in records] == list(range(len(records)))
    assert [one.payload for one in records if one.kind is RecordKind.SIGNAL] == [b"1", b"2", b"3", b"4"]


# What these tests are there to find


def same(history: RecordedHistory) -> bool:
    run, starts = rebuild(history), list_starts(history.events)
    is_ended = (run.end is None) == (history.events[-1].event_type not in ENDS)
    return is_ended and sorted(map(repr, run.starts)) == sorted(map(repr, starts))


async def by_replayer(names: list[str]) -> set[str]:
    return {name for name in names if await replay(read_recorded(name)) is not None}


@pytest.mark.asyncio
async def test_another_order_of_simultaneous_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = run_events.get_sort_key
    monkeypatch.setattr(
        run_events, "get_sort_key", lambda one, arrived: (-place(one, arrived)[0], *place(one, arrived)[1:])
    )
    assert await by_replayer(["replayed_together"])


@pytest.mark.asyncio
async def test_steps_delivered_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = run_events.get_sort_key
    monkeypatch.setattr(
        run_events, "get_sort_key", lambda one, arrived: (*place(one, arrived)[:2], -place(one, arrived)[2])
    )
    assert await by_replayer(["replayed_gather"])


@pytest.mark.asyncio
async def test_timers_set_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(self: Any) -> None:
        timers = self._driver.execution.loop.timers
        for position in reversed(
            [one for one in timers if one not in self._set_positions and one not in self._fired_positions]
        ):
            self._set_positions.add(position)
            summary = run_events.format_timer_summary(position, timers[position].name, timers[position].when())
            self._run.set_timer(position, summary, timers[position].when() - self._run.clock.now())

    monkeypatch.setattr(steps_and_timers.TemporalTimers, "arm", backwards)
    assert await by_replayer(["replayed_timers"])
    assert [one for one in rebuild(read_recorded("replayed_timers")).starts if one[0] == "timer"] != [
        one for one in list_starts(read_recorded("replayed_timers").events) if one[0] == "timer"
    ]


@pytest.mark.asyncio
async def test_timers_delivered_by_position_and_not_by_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = run_events.get_sort_key
    monkeypatch.setattr(
        run_events, "get_sort_key", lambda one, arrived: (place(one, arrived)[0], 0, place(one, arrived)[2])
    )
    assert await by_replayer(["replayed_together"])


@pytest.mark.asyncio
async def test_applying_events_before_all_have_arrived_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "IDLE_TURNS", 0)
    assert await by_replayer(NAMES)


@pytest.mark.asyncio
async def test_other_ids_of_activities_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "format_activity_id", lambda position: f"step-{position}")
    assert await by_replayer(["replayed_steps"])


@pytest.mark.asyncio
async def test_another_id_of_a_programs_activity_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "format_program_id", lambda number: f"code-{number}")
    assert await by_replayer(["replayed_program"])


@pytest.mark.asyncio
async def test_continuing_at_another_point_is_found() -> None:
    long = read_recorded("replayed_long_1")
    for other in (None, 30, 90):
        changed = RecordedHistory(long.run_id, long.execution, other, long.history)
        assert await replay(changed) is not None, other


@pytest.mark.asyncio
async def test_not_waiting_for_withdrawn_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_and_timers.TemporalStep, "is_outcome_required", property(lambda self: False))
    assert await by_replayer(["replayed_withdrawn", "replayed_once"]) or not same(read_recorded("replayed_withdrawn"))


def test_other_random_values_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replayer sees it: the arguments of steps are compared by nobody but us."""
    draw = SeededRandom.draw_bytes
    monkeypatch.setattr(SeededRandom, "draw_bytes", lambda self, purpose, *args: draw(self, f"{purpose}!", *args))
    assert not same(read_recorded("replayed_steps"))


def test_a_carried_record_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_run, "unpack", lambda brought: (lambda a, b, c: (a, b[:-1], c))(*unpack(brought)))
    assert not same(read_recorded("replayed_long_3"))
    assert asyncio.run(by_replayer(["replayed_long_3", "replayed_retried_again"]))
