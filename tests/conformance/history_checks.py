"""Whether a history in Temporal tells the same as the run itself.

Three read what happened to a run: the worker that executes it, a worker that brings it back from its history for a step
(``temporal.rebuilt_runs``), and a client that reads its journal (``stores.temporal``). Here all three are held against
each other, for every run that a scenario has started; and Temporal's own SDK replays the history once more, which
finds whatever the run would do otherwise the second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from holdfast.authoring.registry import definitions
from holdfast.core.states import RunState
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.stores.operations import AppendRecord, FinishRun, Op
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import from_payload
from holdfast.stores.temporal.rows import get_key
from holdfast.stores.temporal.run_events import read_batches, result_from_failure
from holdfast.stores.temporal.store import TemporalStore
from holdfast.stores.temporal.targets import parse_target
from holdfast.temporal.engine_context import EngineContext, TemporalSettings
from holdfast.temporal.rebuilt_runs import RebuiltRun
from holdfast.temporal.run_workflow import EngineContextInterceptor, RunWorkflow

_checked: set[str] = set()
"""Executions that had ended when they were looked at."""


async def check_runs_since(url: str, began: float, known: Collection[str], served: Collection[str]) -> None:
    """All executions of known workflows that have begun since; those that are served are asked themselves, too."""
    address, _, namespace = url.removeprefix("temporal://").partition("/")
    client = await Client.connect(address, namespace=namespace)
    since = datetime.fromtimestamp(began - 0.5, UTC).isoformat()
    found = client.list_workflows(f"StartTime >= '{since}' AND WorkflowType != '{identifiers.ANNOUNCEMENT_TYPE}'")
    store = TemporalStore(parse_target(url))
    await store.open()
    try:
        async for execution in found:
            if execution.run_id not in _checked and execution.workflow_type in known:
                await _check(client, store, execution, is_served=execution.workflow_type in served)
    finally:
        await store.close()


class _RebuiltRun(RebuiltRun):
    """Keeps what the journal engine would have written."""

    def __init__(self, *args: Any) -> None:
        self.order: list[list[Any]] = []
        self.end: FinishRun | None = None
        super().__init__(*args)

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        if isinstance(op, AppendRecord):
            self.order.append(self.summarize_record(op.record, op.consumed_signal_id))
        super().submit(op, on_answer)

    def finish(self, end: FinishRun) -> None:
        self.end = end

    def waits(self) -> list[str]:
        execution = self.driver.execution
        waits = [f"{command.kind.label} {command.name}" for command in execution.open_commands.values()]
        return [*waits, *(["a timer"] if execution.loop.timers else [])]


async def _check(client: Client, store: TemporalStore, execution: WorkflowExecution, *, is_served: bool) -> None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    history = await handle.fetch_history()
    events = list(history.events)
    has_ended = _has_ended(events[-1])
    if has_ended:
        _checked.add(execution.run_id)
    if not any(one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for one in events):
        return  # nobody has executed anything of it
    if definitions[execution.workflow_type].is_program:  # its history has the records themselves
        await _check_seqs(store, execution)
        await _replay(EngineContext(definitions, TemporalSettings()), history)
        return
    told = await handle.query(identifiers.JOURNAL_QUERY) if is_served else None
    status = await handle.query(identifiers.STATUS_QUERY) if is_served else None
    if not has_ended and len(events) != len(list((await handle.fetch_history()).events)):
        return  # it is on its way
    where = f"run {execution.id!r}"
    site = EngineContext(definitions, TemporalSettings())
    rebuilt = await asyncio.to_thread(_rebuild_run, site, events, execution)
    try:
        if rebuilt.driver_began:
            if told is not None:
                words = f"{where}: its history tells of other records than it has seen"
                assert rebuilt.order == told["order"], f"{words}: {rebuilt.order}, not {told['order']}"
            if has_ended:
                _check_end(where, rebuilt, events[-1])
            elif status is not None:
                assert rebuilt.waits() == status["waits_for"], f"{where}: it waits for something else by its history"
    finally:
        rebuilt.release()
    if told is not None and has_ended:
        await _check_journal(store, execution, told["order"])
    await _replay(site, history)


def _rebuild_run(site: EngineContext, events: list[HistoryEvent], execution: WorkflowExecution) -> Any:
    rebuilt = _RebuiltRun(site, events[0], execution.id, execution.run_id)
    rebuilt.apply_batches(list(read_batches(events)))
    rebuilt.driver_began = hasattr(rebuilt.driver, "execution")  # type: ignore[attr-defined]
    return rebuilt


def _has_ended(event: HistoryEvent) -> bool:
    return EventType.Name(event.event_type).removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_") in (
        "COMPLETED", "FAILED", "CANCELED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW",
    )  # fmt: skip


def _check_end(where: str, rebuilt: _RebuiltRun, last: HistoryEvent) -> None:
    end = rebuilt.end
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        assert end is not None
        assert end.state is RunState.COMPLETED, where
        assert end.output == from_payload(last.workflow_execution_completed_event_attributes.result.payloads[0]), where
    elif last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
        assert end is not None
        assert end.state is RunState.CANCELLED, where
    elif last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        told = result_from_failure(last.workflow_execution_failed_event_attributes.failure)
        assert end is not None
        assert end.state in (RunState.FAILED, RunState.DEAD), where
        assert end.error == told.payload, f"{where}: it fails otherwise by its history"


async def _check_journal(store: TemporalStore, execution: WorkflowExecution, order: list[list[Any]]) -> None:
    """Whether a client reads the same records from a history, in the same order; what was brought along comes first."""
    run = await store.get_run(execution.id)
    assert run is not None
    if run.key != get_key(execution.raw_info):
        return  # another execution has gone on with it
    records = (await store.read_journal(run.id)).records
    assert [one.seq for one in records] == list(range(len(records)))
    own = [[int(one.kind), one.position, one.name, one.at] for one in records[len(records) - len(order) :]]
    assert own == [row[:4] for row in order], f"run {execution.id!r}: a client reads other records than it has seen"


async def _check_seqs(store: TemporalStore, execution: WorkflowExecution) -> None:
    records = (await store.read_journal(execution.id)).records
    assert [one.seq for one in records] == sorted({one.seq for one in records}), f"run {execution.id!r}"


async def _replay(site: EngineContext, history: WorkflowHistory) -> None:
    replayer = Replayer(
        workflows=[RunWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),
        interceptors=[EngineContextInterceptor(site)],
    )
    await replayer.replay_workflow(history)
