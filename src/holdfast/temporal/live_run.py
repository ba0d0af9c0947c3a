"""A run as a live Temporal execution: what its driver starts becomes commands of the Temporal workflow.

All of this runs inside the Temporal workflow, on Temporal's own event loop, and again whenever Temporal replays it. The
user's code runs on the run's own loop inside it (see ``core.loop``), so it needs no sandbox: it cannot do there what it
could not do on replay.

A step becomes an activity. The activity's id is the position of the command, and its input is a preview of the
arguments, for people. The command itself stays in ``engine_context``, where the activity finds it.

What a workflow task brings arrives piece by piece, as futures are resolved. ``_receive`` gathers it until nothing more
arrives. Only then is it applied, in the order that ``run_events`` defines.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from asyncio import events
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy

from holdfast.codec import preview_arguments
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.errors import HistoryFull, UsageError
from holdfast.reports.plans import find_plan, plan_from_record
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.operations import AppendRecord, FinishRun, NewRun, Op
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun
from holdfast.stores.temporal.carried_records import pack_signal_ids, pack_signals
from holdfast.stores.temporal.outcomes import usage_from_note
from holdfast.stores.temporal.payloads import to_raw_value
from holdfast.stores.temporal.rows import rewind_to_json
from holdfast.stores.temporal.run_events import (
    CancelRequested,
    RunEvent,
    SignalReceived,
    StepEnded,
    TimerFired,
    UpdateReceived,
    sort_events,
    timer_from_summary,
)
from holdfast.stores.temporal.run_memo import make_run_memo
from holdfast.temporal.child_workflows import ChildWorkflows
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.failures import make_failure, truncate_error
from holdfast.temporal.live_memo import LiveMemo
from holdfast.temporal.steps_and_timers import TemporalStep
from holdfast.temporal.task_results import read_end, read_usage_note
from holdfast.temporal.temporal_run import TemporalRun

IDLE_TURNS = 8
"""After this many loop turns without a new event, a workflow task's events count as complete."""

MAX_HISTORY_EVENTS = 40_000
MAX_HISTORY_BYTES = 40_000_000
"""Limits on a history's events and bytes. A run that exceeds one, and cannot continue as new, fails, well before
Temporal would stop it (at 51,200 events and 50 MB). Histories depend on these numbers, so they cannot change for
existing runs."""

MAX_CARRIED_BYTES = 1_500_000
"""The maximum size of the records, before compression, that an execution carries inline; Temporal accepts 2 MB."""

NO_TIMEOUT = timedelta(days=365)
TIMEOUT_SLACK_S = 30.0
"""How much longer an activity may take than its step's timeout, which the worker enforces."""


class LiveRun(TemporalRun):
    """A run in a workflow."""

    def __init__(self, engine_context: EngineContext, args: Sequence[RawValue]) -> None:
        info = workflow.info()
        self._memo = LiveMemo()
        super().__init__(
            engine_context,
            self._memo.head,
            [arg.payload for arg in args],
            id=info.workflow_id,
            execution_id=info.run_id,
            workflow=info.workflow_type,
            started_at=info.workflow_start_time.timestamp(),
        )
        self.run_log = engine_context.run_log
        definition = engine_context.get_definition(self.driver.run.workflow, self.driver.run.version)
        if engine_context.telemetry is not None and not definition.is_program:  # the program's host has its own
            found = engine_context.telemetry.find_run(self.driver.run, is_agent=definition.is_agent)
            found.is_muted = workflow.unsafe.is_replaying
            self.driver.telemetry = found
        self._workflow_loop = asyncio.get_running_loop()
        self._plan = find_plan(self._records)
        self._engine_context = engine_context
        self._execution_id = info.run_id
        self._record_summaries: list[list[Any]] = []
        """The order of the records of this execution (see ``stores.temporal.journals``)."""
        self._finished = asyncio.Event()
        self._finish_op: FinishRun | None = None
        self._is_continuing = False
        self._received_events: list[RunEvent] = []
        self._is_flush_scheduled = False
        self._early_batches: list[Sequence[RunEvent]] = []
        """The events of workflow tasks before the code began."""
        self._activity_handles: dict[int, workflow.ActivityHandle[Any]] = {}
        self._await_positions: set[int] = set()
        """Positions of the activities that only wait for other runs."""
        self._timer_tasks: dict[int | None, asyncio.Task[None]] = {}
        self._child_workflows = ChildWorkflows(self._receive)
        self._update_futures: dict[str, asyncio.Future[Any]] = {}

    async def execute(self) -> RawValue:
        """Run the execution to its end."""
        is_cancelled = False
        try:
            await self._wait_for_start()
            self.start(workflow.time())
            while not self._finished.is_set():
                try:
                    await self._finished.wait()
                except asyncio.CancelledError:
                    # Temporal requests a cancellation once. Any other cancellation means that the execution is being
                    # evicted.
                    if is_cancelled or workflow.cancellation_reason() is None:
                        raise
                    is_cancelled = True
                    _uncancel()
                    self._receive(CancelRequested())
        finally:
            self._engine_context.remove_commands(self._execution_id)
            self.release()
        await self.finish_updates()
        if self._is_continuing:
            self._continue_as_new()
        assert self._finish_op is not None
        return self._build_result(self._finish_op)

    async def finish_updates(self) -> None:
        """Answer the updates that are still open. The steps of a workflow have none when it ends."""

    async def _wait_for_start(self) -> None:
        """Wait for the delay of a child: Temporal itself has no start delay for children."""
        head = self._memo.head
        wait = head.get("available_at", 0.0) - workflow.time()
        if wait > 0 and head.get("parent") and not self._records:
            await workflow.sleep(wait, summary=identifiers.DELAY_SUMMARY)

    def _build_result(self, end: FinishRun) -> RawValue:
        if end.state is RunState.COMPLETED:
            return to_raw_value(end.output or b"null")
        if end.state is RunState.CANCELLED:
            raise asyncio.CancelledError(f"run {self.driver.run.id!r} was cancelled")
        error = truncate_error(end.error or b"null", self.max_value)
        journal = zlib.compress(json.dumps(self.journal()).encode())
        details = Payload(metadata={"encoding": b"binary/plain"}, data=journal)
        raise make_failure(error, end.state, RawValue(details))

    # Messages

    def receive_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """Receive a signal."""
        self._receive(SignalReceived(name, tuple(value.payload for value in values), workflow.time()))

    async def receive_update(self, id: str, name: str, values: Sequence[RawValue]) -> Any:
        """Receive an update from a step of this run, or from its program, and wait for the answer."""
        answer = self._update_futures[id] = asyncio.get_running_loop().create_future()
        self._receive(UpdateReceived(id, name, tuple(value.payload for value in values)))
        return await answer

    def status(self) -> dict[str, Any]:
        """The answer to the status query: the run's state, or ``paused`` or ``continued``."""
        if self._finish_op is not None or self._is_continuing:
            state = "continued" if self._finish_op is None else self._finish_op.state.value
            return {"state": state, "waits_for": [], "approvals": []}
        waits_for: list[str] = []
        state = "pending"
        if self.driver.is_started:
            execution = self.driver.execution
            waits_for += [f"{command.kind.label} {command.name}" for command in execution.open_commands.values()]
            waits_for += ["a timer"] if execution.loop.timers else []
            state = "running" if self._activity_handles.keys() - self._await_positions else "waiting"
        if self._is_pause_requested:
            state = "paused"
        return {"state": state, "waits_for": waits_for, "approvals": self._memo.list_questions()}

    def plan(self) -> list[Any]:
        """The answer to the plan query: the items of an agent's plan."""
        return [asdict(item) for item in self._plan]

    def journal(self) -> dict[str, Any]:
        """The answer to the journal query: the order of the records, and what a retry would take back."""
        rewind = None if self._finish_op is None else self._finish_op.rewind
        return {"order": self._record_summaries, "rewind": rewind_to_json(rewind)}

    # Events

    def _receive(self, run_event: RunEvent) -> None:
        self._received_events.append(run_event)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._workflow_loop.call_soon(self._flush_when_idle, len(self._received_events), 0)

    def _flush_when_idle(self, known_count: int, idle_turns: int) -> None:
        if len(self._received_events) > known_count:
            idle_turns = 0
        if idle_turns < IDLE_TURNS:
            self._workflow_loop.call_soon(self._flush_when_idle, len(self._received_events), idle_turns + 1)
            return
        received, self._received_events, self._is_flush_scheduled = self._received_events, [], False
        if not self.driver.is_closed and self.driver.is_started:
            self.apply_workflow_task(workflow.time(), sort_events(received))
        elif not self.driver.is_closed:
            self._early_batches.append(sort_events(received))

    def start(self, at: float) -> None:
        """Start the code, and then apply the events that arrived before."""
        for record in self._records[:1]:
            self._publish_previous_run(record)
        super().start(at)
        early, self._early_batches = self._early_batches, []
        for batch in early:
            self.apply_workflow_task(at, batch)

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops running."""
        super().set_turn(run_id)
        if run_id is not None:
            self.driver.execution.loop.is_retracing = workflow.unsafe.is_replaying()
        elif self._check_continue_as_new():
            self.is_draining = True
            self.call_soon(self.request_continue_as_new)

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Note the order of the records; the rest is the same for a rebuilt run."""
        if isinstance(op, AppendRecord):
            record = op.record
            self._record_summaries.append(self.summarize_record(record, op.consumed_signal_id))
            self._plan = plan_from_record(record) or self._plan
            self._publish_previous_run(record)
        super().submit(op, on_answer)

    def _publish_previous_run(self, record: Record) -> None:
        if self.driver.run.session:
            self._memo.publish_previous_run(record)

    def finish(self, end: FinishRun) -> None:
        """End the execution."""
        if not workflow.unsafe.is_replaying():
            ended = replace(self.driver.run, state=end.state, output=end.output, error=end.error, finished_at=end.at)
            if self.driver.telemetry is not None:
                self.driver.telemetry.end_run(ended)
            if not self.driver.has_fatal_error:
                self.run_log.log_end(ended)
        self._finish_op = end
        self._finished.set()

    def is_patched(self, name: str) -> bool:
        """Whether the run takes the new path of a patch: Temporal records it in the history."""
        run_loop = events._get_running_loop()  # the caller runs on the run's loop, which Temporal does not know
        events._set_running_loop(self._workflow_loop)
        try:
            return workflow.patched(name)
        finally:
            events._set_running_loop(run_loop)

    # Steps

    def start_step(self, step: TemporalStep) -> None:
        """Schedule an activity for a step."""
        command, call, settings = step.command, step.call, self._engine_context.settings
        self._engine_context.add_command(self._execution_id, StartedCommand(command, self.driver.run, self._budgets))
        preview = preview_arguments(call.step.parameters, call.args, call.kwargs)
        notes = {"kind": "compensation"} if command.kind is RecordKind.COMPENSATION else None
        timeout_s = call.step.timeout_s
        kinds = workflow.ActivityCancellationType
        handle = workflow.start_activity(
            call.step.name,
            args=[to_raw_value(json.dumps(preview).encode(), notes)],
            activity_id=identifiers.format_activity_id(command.position),
            result_type=RawValue,
            start_to_close_timeout=NO_TIMEOUT if timeout_s is None else timedelta(seconds=timeout_s + TIMEOUT_SLACK_S),
            heartbeat_timeout=timedelta(seconds=settings.heartbeat_timeout_s),
            # Unlimited, except for a `once` step: the worker decides whether a failed attempt is retried, and when, and
            # how many worker deaths are too many. Temporal decides only how soon another worker gets the step of a
            # silent one.
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=0.1),
                maximum_interval=timedelta(seconds=10),
                maximum_attempts=1 if call.is_once else 0,
            ),
            cancellation_type=kinds.WAIT_CANCELLATION_COMPLETED if step.is_outcome_required else kinds.TRY_CANCEL,
            summary=preview[:100] or None,
        )
        self._track_activity(handle, command.position, preview)

    def _track_activity(
        self,
        handle: workflow.ActivityHandle[Any],
        position: int,
        arguments_preview: str = "",
        *,
        is_await: bool = False,
    ) -> None:
        self._activity_handles[position] = handle
        if is_await:
            self._await_positions.add(position)
        handle.add_done_callback(partial(self._on_activity_ended, position, arguments_preview, is_await))

    def _on_activity_ended(
        self, position: int, arguments_preview: str, is_await: bool, task: asyncio.Task[Any]
    ) -> None:
        self._activity_handles.pop(position, None)
        self._engine_context.remove_commands(self._execution_id, position)
        ended = StepEnded(
            position, read_end(task), preview=arguments_preview, usage=read_usage_note(task), is_await=is_await
        )
        if ended.usage:
            self._memo.add_usage(usage_from_note(ended.usage))
        self._receive(ended)

    def cancel_step(self, step: TemporalStep) -> None:
        """Cancel the activity of a step."""
        position = step.command.position
        handle = self._activity_handles.get(position)
        if handle is not None:
            self._engine_context.stop_step(self._execution_id, position)
            handle.cancel()

    # Timers

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Set a timer of Temporal."""
        task = self._timer_tasks[position] = self._workflow_loop.create_task(
            workflow.sleep(max(0.001, delay), summary=summary)
        )
        task.add_done_callback(partial(self._on_timer_ended, timer_from_summary(summary)))

    def _on_timer_ended(self, event: TimerFired, task: asyncio.Task[None]) -> None:
        self._timer_tasks.pop(event.position, None)
        if not task.cancelled():
            self._receive(event)

    def cancel_timer(self, position: int) -> None:
        """Cancel a timer."""
        task = self._timer_tasks.get(position)
        if task is not None:
            task.cancel()

    # Other runs

    def start_child_workflow(self, new: NewRun, position: int, *, is_awaited: bool) -> None:
        """Start a child workflow, on the task queue of its own workflow."""
        try:
            self._engine_context.check_no_queue_limits(
                new.queue, f"run {new.id!r}, which run {self.driver.run.id!r} starts,"
            )
        except UsageError as error:
            self.driver.fail(error)
            return
        self._engine_context.serve_task_queue(identifiers.format_task_queue(new.queue, new.workflow, new.version))
        memo = make_run_memo(
            new,
            position=position,
            is_awaited=is_awaited,
            ancestor_budgets=self._budgets,
            has_external_payloads=self.has_external_payloads,
        )
        self._child_workflows.start(new, position, memo, is_awaited=is_awaited)

    def cancel_child(self, run_id: str) -> None:
        """Cancel a child."""
        self._child_workflows.cancel(run_id)

    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """Schedule an activity that finds a run, or waits for its end."""
        handle = workflow.start_activity(
            identifiers.AWAIT_RUN_ACTIVITY,
            args=[to_raw_value(awaited.to_json())],
            activity_id=identifiers.format_activity_id(position),
            result_type=RawValue,
            start_to_close_timeout=NO_TIMEOUT,
            heartbeat_timeout=timedelta(seconds=self._engine_context.settings.heartbeat_timeout_s),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
            summary=awaited.run_id,
        )
        self._track_activity(handle, position, is_await=True)

    def cancel_await(self, position: int) -> None:
        """Cancel the activity of ``start_await``."""
        handle = self._activity_handles.get(position)
        if handle is not None:
            handle.cancel()

    # Approvals

    def on_approvals_changed(self) -> None:
        """Publish the open approvals in the memo."""
        self._memo.publish_approvals(self.open_approvals)

    def on_reminder(self, approval: RequestApproval, reminders: int, assignee: str, expires_at: float | None) -> None:
        """Publish in the memo that people were reminded of an approval."""
        self._memo.publish_reminder(approval.id, reminders, assignee, expires_at)

    def answer_update(self, event: UpdateReceived, answer: Any) -> None:
        """Answer the update of a step, or of a program."""
        future = self._update_futures.pop(event.id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    # Continuing as new

    def _check_continue_as_new(self) -> bool:
        """Whether to continue as new. Fails the run if its history is full, and it cannot continue as new."""
        info, settings = workflow.info(), self._engine_context.settings
        event_count = info.get_current_history_length()
        is_long = info.is_continue_as_new_suggested() or (
            settings.continue_as_new_after is not None and event_count >= settings.continue_as_new_after
        )
        if not is_long or self.is_draining or self._finish_op is not None or self.driver.execution.result is not None:
            return False
        has_nothing_in_flight = not (
            self._activity_handles or self.linked_runs.has_pending or self._child_workflows or self._is_pause_requested
        )
        # Replay must decide the same, so this depends on the memo, and on sizes that are the same on every machine.
        if has_nothing_in_flight and (self.has_external_payloads or self.measure_carried() <= MAX_CARRIED_BYTES):
            return True
        if event_count > MAX_HISTORY_EVENTS or info.get_current_history_size() > MAX_HISTORY_BYTES:
            self._fail_history_full(has_nothing_in_flight)
        return False

    def measure_carried(self) -> int:
        """The size of what a new execution would carry, in bytes."""
        signal_size = sum(len(signal.payload) for signal in self.unconsumed_signals.values())
        id_size = sum(map(len, self.signal_dedup_ids))
        return len(self.driver.run.inputs) + self.carried_records.uncompressed_size + signal_size + id_size

    def _fail_history_full(self, has_nothing_in_flight: bool) -> None:
        reason = (
            "its records are too large to be handed on to a new execution (give large payloads a storage of their own: "
            "`?payloads=`)"
            if has_nothing_in_flight
            else "there was always something in flight, so that it could not continue as new"
        )
        run = self.driver.run
        self.driver.fail(
            HistoryFull(
                f"run {run.id!r} has a history of {workflow.info().get_current_history_length():,} events, which is "
                f"near Temporal's limit, and {reason}. Let it start child runs for parts of its work: they have their "
                f"own."
            )
        )

    def request_continue_as_new(self) -> None:
        """End this execution, and continue in another one."""
        if self._finish_op is None:
            self._is_continuing = True
            self._finished.set()

    def pack_carried(self) -> list[Payload]:
        """What the next execution starts with, besides the inputs."""
        return [
            *self.carried_records.to_chunks(),
            *pack_signals(list(self.unconsumed_signals.values())),
            *pack_signal_ids(self.signal_dedup_ids),
        ]

    def _continue_as_new(self) -> NoReturn:
        workflow.continue_as_new(
            args=[to_raw_value(self.driver.run.inputs), *map(RawValue, self.pack_carried())],
            memo=self._memo.build_continued(self.driver.run.clock_started_at),
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
