"""Real processes on Temporal: a world whose runs are in a namespace of a server.

The ledger stays outside: it is the same file as in the other process tests. What Temporal knows is read here from its
histories, without Holdfast's own code, also while the server is being restarted.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agent_processes import AgentProcess, AgentWorld, ForkServer
from app_processes import TIMEOUT_S, App, World
from ledger import COMPENSATION, STEP, AttemptRow, Journal, LedgerLine, RecordRow, Snapshot
from provider_server import Script
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from holdfast import Client
from waits import wait_until_sync

T = TypeVar("T")

STATES = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}
"""``failed`` is either that or ``dead``, which the failure itself says."""


class TemporalHistories:
    """What Temporal has written down, read by somebody who waits for the server if he must."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address, self._namespace = parts.netloc, parts.path.strip("/")
        self._client: TemporalClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="histories")
        self._thread.start()

    def ask(self, question: Callable[[TemporalClient], Awaitable[T]]) -> T:
        """Ask Temporal something."""
        return self._run(self._ask(question))

    def _run(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(2 * TIMEOUT_S)

    async def _ask(self, question: Callable[[TemporalClient], Awaitable[T]]) -> T:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if self._client is None:
                    self._client = await TemporalClient.connect(self._address, namespace=self._namespace)
                return await question(self._client)
            except (RPCError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    def journals(self) -> dict[str, Journal]:
        """All runs by id."""
        return self.ask(_journals)

    def journal(self, run_id: str) -> Journal | None:
        """One run, if it is there."""

        async def read(client: TemporalClient) -> Journal | None:
            try:
                return await _journal(client, await client.get_workflow_handle(run_id).describe())
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise

        return self.ask(read)

    def wait(self, run_id: str) -> bool:
        """Wait until the run has ended; false if it has not in time."""

        async def wait(client: TemporalClient) -> bool:
            try:
                await asyncio.wait_for(client.get_workflow_handle(run_id).result(), TIMEOUT_S)
            except WorkflowFailureError:
                return True
            except TimeoutError:
                return False
            return True

        return self.ask(wait)

    def close(self) -> None:
        """Ask no more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


async def _events(client: TemporalClient, run_id: str, execution: str | None) -> list[HistoryEvent]:
    return [event async for event in client.get_workflow_handle(run_id, run_id=execution).fetch_history_events()]


async def _journals(client: TemporalClient) -> dict[str, Journal]:
    executions = [one async for one in client.list_workflows("WorkflowType != 'holdfast.announcement'")]
    executions.sort(key=lambda one: one.start_time)
    return {one.id: await _journal(client, one) for one in executions}


async def _journal(client: TemporalClient, execution: WorkflowExecution) -> Journal:
    description = await client.get_workflow_handle(execution.id, run_id=execution.run_id).describe()
    head = (await description.memo()).get("holdfast", {})
    pending = description.raw_description.pending_activities
    events = await _events(client, execution.id, execution.run_id)
    last = events[-1]
    output = last.workflow_execution_completed_event_attributes.result.payloads
    failure = last.workflow_execution_failed_event_attributes.failure
    state = STATES.get(description.status, "") if description.status is not None else ""
    if not state:
        details = failure.application_failure_info.details.payloads
        state = details[0].metadata["holdfast-ending"].decode() if details else "failed"
    records = _records(events)
    return Journal(
        id=execution.id,
        workflow=execution.workflow_type,
        state=state,
        deliveries=max((one.attempt - 1 for one in pending), default=0),
        epoch=1,
        wake_at=None,
        output=_plain(output[0]) if output else None,
        error=failure.message,
        seed=bytes.fromhex(head.get("seed", "")),
        records=tuple(records),
        attempts={
            int(one.activity_id) - 1: _read_attempt(_plain(one.heartbeat_details.payloads[0]))
            for one in pending
            if one.heartbeat_details.payloads
        },
        signals=(),
    )


def _read_attempt(details: dict[str, Any]) -> AttemptRow:
    """What a heartbeat has told."""
    progress = details["progress"]
    return AttemptRow(details["failure_count"], False, None if progress is None else progress.encode())


def _records(events: list[HistoryEvent]) -> list[RecordRow]:
    """The outcomes of steps, in the order of the history. A worker's number is its pid."""
    scheduled: dict[int, Any] = {}
    started: dict[int, Any] = {}
    records: list[RecordRow] = []
    for event in events:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            attributes = event.activity_task_started_event_attributes
            started[attributes.scheduled_event_id] = attributes
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            attributes = event.activity_task_completed_event_attributes
            records.append(_record(len(records), event, attributes, scheduled, started, ok=True))
        elif kind in (EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED, EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT):
            is_failed = kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED
            attributes = (
                event.activity_task_failed_event_attributes
                if is_failed
                else event.activity_task_timed_out_event_attributes
            )
            records.append(_record(len(records), event, attributes, scheduled, started, ok=False))
    return records


def _record(
    seq: int, event: HistoryEvent, attributes: Any, scheduled: dict[int, Any], started: dict[int, Any], *, ok: bool
) -> RecordRow:
    asked, begun = scheduled[attributes.scheduled_event_id], started[attributes.scheduled_event_id]
    undoes = any("holdfast-kind" in payload.metadata for payload in asked.input.payloads)
    payload = attributes.result.payloads[0].data if ok and attributes.result.payloads else None
    if not ok and attributes.failure.HasField("timeout_failure_info"):
        payload = b"timed out"
    return RecordRow(
        seq=seq,
        kind=COMPENSATION if undoes else STEP,
        position=int(asked.activity_id) - 1,
        name=asked.activity_type.name,
        ok=ok,
        payload=payload,
        at=event.event_time.ToNanoseconds() / 1e9,
        attempts=begun.attempt,
        worker=int(begun.identity.rpartition(":")[2] or 0),
        epoch=1,
    )


def _plain(payload: Payload) -> Any:
    return json.loads(payload.data or b"null")


class TemporalWorldBase(World):
    """What a world on a server has in common with one that has agents as well."""

    histories: TemporalHistories

    def move(self, url: str) -> None:
        """Have the runs there."""
        self.url = url
        self.client = Client(url)
        self.histories = TemporalHistories(url)

    def journals(self) -> dict[str, Journal]:
        return self.histories.journals()

    def journal(self, run_id: str) -> Journal:
        found = self.histories.journal(run_id)
        assert found is not None, f"there is no run {run_id}"
        return found

    def wait_for_run(self, run_id: str, condition: Callable[[Journal], object], what: str) -> Journal:
        def holds() -> Journal | None:
            journal = self.histories.journal(run_id)
            return journal if journal is not None and condition(journal) else None

        return wait_until_sync(holds, f"run {run_id}: {what}", describe=self.describe)

    def wait_for_end(self, run_id: str, state: str = "completed") -> Journal:
        assert self.histories.wait(run_id), f"run {run_id} has not ended\n{self.describe()}"
        journal = self.journal(run_id)
        assert journal.state == state, f"run {run_id} ended {journal.state}: {journal.error}\n{self.describe()}"
        return journal

    def workers(self) -> dict[int, tuple[int, str]]:
        return {app.pid: (app.pid, "live" if app.exit_code is None else "dead") for app in self.apps}

    def clean_up(self) -> None:
        super().clean_up()
        self.histories.close()


class TemporalWorld(TemporalWorldBase):
    """A world on a server. Its workers are forked from a process that has imported everything."""

    lease = 5.0
    """Of its workers: half of it is how long Temporal waits for a heartbeat."""

    def __init__(self, folder: Path, url: str, forks: ForkServer) -> None:
        super().__init__(folder)
        self.move(url)
        self._forks = forks

    def worker(self, workflows: str, **settings: object) -> App:
        """Start a worker for these workflows, and wait until it serves."""
        [worker] = self.workers_for(workflows, 1, **settings)
        return worker

    def workers_for(self, workflows: str, count: int, **settings: object) -> list[App]:
        """Start so many of them, side by side."""
        processes = [self.fork(workflows, **settings) for _ in range(count)]
        return [process.wait_for_output("ready") for process in processes]

    def fork(self, workflows: str, **settings: object) -> App:
        """Start a worker for these workflows."""
        variables = {"LEASE": self.lease, "WORKFLOWS": workflows, **settings, **self.places}
        environment = {name: str(value) for name, value in variables.items()}
        process = AgentProcess(self._forks, f"{len(self.apps) + 1}-servant", "servant", environment, self.folder)
        self.apps.append(process)
        return process

    @property
    def places(self) -> dict[str, str]:
        """Where its processes find what is outside."""
        return {"HOLDFAST_URL": self.url, "LEDGER": str(self.folder / "ledger"), "GATES": str(self.folder)}


class TemporalAgentWorld(TemporalWorldBase, AgentWorld):
    """A world on a server, with a model provider of its own."""

    def __init__(self, folder: Path, forks: ForkServer, script: Script, url: str) -> None:
        AgentWorld.__init__(self, folder, forks, script)
        self.move(url)


def check_repeats(before: Snapshot, end: Snapshot) -> None:
    """What was recorded before a crash is still so, and nobody has done it again; others may have been at work."""
    later = end.lines[len(before.lines) :]
    for run_id, was in before.journals.items():
        now = end.journals[run_id]
        assert now.records[: len(was.records)] == was.records, f"run {run_id}: a record was changed or lost"
        again = [line for line in later if line.key in was.steps]
        assert not again, f"run {run_id}: recorded before the crash, and carried out again: {again}"


def check_steps(end: Snapshot, *, killed: Collection[int] = ()) -> None:
    """Hold the ledger against the histories of runs that have all ended.

    ``killed`` are the processes that died, or were made to let go, with a step in flight.
    """
    by_key: dict[str, list[LedgerLine]] = {}
    for line in end.lines:
        by_key.setdefault(line.key, []).append(line)
    known: set[str] = set()
    for journal in end.journals.values():
        assert journal.state != "running", f"run {journal.id} has not ended"
        commands = [(record.kind, record.position) for record in journal.records]
        assert len(set(commands)) == len(commands), f"run {journal.id}: a step has two outcomes: {journal.records}"
        for key, record in journal.steps.items():
            known.add(key)
            lines = by_key.get(key, [])
            _check_step(f"run {journal.id}: {record} {lines}", record, lines, killed)
    unknown_lines = [line for line in end.lines if line.key not in known]
    assert not unknown_lines, f"effects of which no history knows: {unknown_lines}"


def _check_step(where: str, record: RecordRow, lines: list[LedgerLine], killed: Collection[int]) -> None:
    begun = [line for line in lines if line.phase == "start"]
    assert len(begun) <= record.attempts, f"begun more often than Temporal has handed it out: {where}"
    if record.payload == b"timed out":
        assert all(line.pid in killed for line in lines), f"taken to be lost, and its worker lives: {where}"
        return
    assert lines, f"recorded, and never carried out: {where}"
    outcome = "finish" if record.ok else "fail"
    own = [line for line in lines if line.pid == record.worker]
    assert own, f"recorded by a process that has not carried it out: {where}"
    assert own[-1].phase == outcome, f"recorded otherwise than it ended: {where}"
    assert [line.phase for line in own].count("finish") == record.ok, f"not once: {where}"
    for pid in {line.pid for line in lines}:
        assert pid == record.worker or pid in killed, f"begun by process {pid}, which did not die: {where}"
