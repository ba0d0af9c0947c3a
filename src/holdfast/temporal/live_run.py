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
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from holdfast.codec import preview_arguments, read_error_info
from holdfast.core.commands import Command
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.errors import HistoryFull, UsageError
from holdfast.reports.plans import find_plan, plan_from_record
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.operations import AppendRecord, FinishRun, NewRun, Op
from holdfast.stores.temporal import identifiers
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
from holdfast.stores.temporal.run_memo import (
    EXTERNAL_PAYLOADS_KEY,
    budgets_from_memo,
    make_run_memo,
    run_from_memo,
)
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.child_workflows import ChildWorkflows
from holdfast.temporal.engine_context import EngineContext, StartedCommand
from holdfast.temporal.error_truncation import truncate_error, truncate_message
from holdfast.temporal.inputs import build_inputs, split_arguments
from holdfast.temporal.live_memo import LiveMemo
from holdfast.temporal.steps_and_timers import TemporalStep
from holdfast.temporal.task_results import read_end, read_usage_note
from holdfast.temporal.temporal_run import TemporalRun

IDLE_TURNS = 8
"""Turns of Temporal's loop without anything new after which all that a workflow task brings has arrived."""

MAX_HISTORY_EVENTS = 40_000
MAX_HISTORY_BYTES = 40_000_000
"""How long a history may get: a run that comes so far fails, well before Temporal would stop it (at 51,200 and 50 MB).
What follows from these numbers is in histories: they cannot be changed for runs that are under way."""

MAX_CARRIED_BYTES = 1_500_000
"""How many bytes of records, before they are compressed, an execution hands on as they are; Temporal takes 2 MB."""

NO_TIMEOUT = timedelta(days=365)
TIMEOUT_SLACK_S = 30.0
"""Seconds that an activity has beyond its step's own time-out, which the worker keeps."""


class LiveRun(TemporalRun):
    """A run in a workflow."""

    def __init__(self, engine_context: EngineContext, args: Sequence[RawValue]) -> None:
        info = workflow.info()
        self._memo = LiveMemo()
        head = self._memo.head
        definition = engine_context.get_definition(info.workflow_type, head.get("version", ""))
        given, brought = split_arguments(arg.payload for arg in args)
        inputs = build_inputs(definition, given)
        run = run_from_memo(
            head,
            id=info.workflow_id,
            execution_id=info.run_id,
            workflow=info.workflow_type,
            inputs=inputs,
            started_at=info.workflow_start_time.timestamp(),
        )
        super().__init__(
            run,
            definition,
            brought,
            engine_context.settings.max_value,
            external_payloads=bool(head.get(EXTERNAL_PAYLOADS_KEY)),
        )
        self.run_log = engine_context.run_log
        self._workflow_loop = asyncio.get_running_loop()
        self._plan = find_plan(self._records)
        self._budgets = budgets_from_memo(head, info.workflow_id)
        self._engine_context = engine_context
        self._execution_id = info.run_id
        self._record_summaries: list[list[Any]] = []
        """The records of this execution, in short: what of the history each of them is."""
        self._finished = asyncio.Event()
        self._finish_op: FinishRun | None = None
        self._is_continuing = False
        self._received_events: list[RunEvent] = []
        self._is_flush_scheduled = False
        self._early_batches: list[Sequence[RunEvent]] = []
        """What came before the code could begin."""
        self._activity_handles: dict[int, workflow.ActivityHandle[Any]] = {}
        self._await_positions: set[int] = set()
        """Positions of the activities that only wait for other runs."""
        self._timer_tasks: dict[int | None, asyncio.Task[None]] = {}
        self._child_workflows = ChildWorkflows(self._receive)
        self._update_futures: dict[str, asyncio.Future[bool]] = {}
        """What came of updates, for their handlers."""

    async def execute(self) -> RawValue:
        """From the beginning of the execution to its end."""
        is_cancelled = False
        try:
            await self._wait_for_start()
            self.start(workflow.time())
            while not self._finished.is_set():
                try:
                    await self._finished.wait()
                except asyncio.CancelledError:
                    # Temporal asks for a cancellation once. Otherwise the execution leaves memory.
                    if is_cancelled or workflow.cancellation_reason() is None:
                        raise
                    is_cancelled = True
                    _uncancel()
                    self._receive(CancelRequested())
        finally:
            self._release()
        if self._is_continuing:
            self._continue_as_new()
        assert self._finish_op is not None
        return self._build_result(self._finish_op)

    async def _wait_for_start(self) -> None:
        """A run that another one has started may have to wait before it begins; Temporal does that for no child."""
        head = self._memo.head
        wait = head.get("available_at", 0.0) - workflow.time()
        if wait > 0 and head.get("parent") and not self._records:
            await workflow.sleep(wait, summary=identifiers.DELAY_SUMMARY)

    def _release(self) -> None:
        """Nothing of the run is left in memory."""
        self._engine_context.remove_commands(self._execution_id)
        if hasattr(self.driver, "execution"):
            self.driver.execution.loop.bind_to_current_thread()
        self.driver.unload()

    def _build_result(self, end: FinishRun) -> RawValue:
        if end.state is RunState.COMPLETED:
            return to_raw_value(end.output or b"null")
        if end.state is RunState.CANCELLED:
            raise asyncio.CancelledError(f"run {self.driver.run.id!r} was cancelled")
        error = truncate_error(end.error or b"null", self.max_value)
        told = read_error_info(error)
        name = told.type.rpartition(".")[2]
        raise ApplicationError(
            truncate_message(told.message),
            to_raw_value(error, {identifiers.ENDING_NOTE: end.state}),
            RawValue(_pack_json({"order": self._record_summaries, "rewind": rewind_to_json(end.rewind)})),
            type=name,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )

    # Messages

    def receive_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """A signal has come."""
        self._receive(SignalReceived(name, tuple(value.payload for value in values), workflow.time()))

    async def receive_update(self, id: str, name: str, values: Sequence[RawValue]) -> bool:
        """A step of this run asks for a change of it."""
        answer = self._update_futures[id] = asyncio.get_running_loop().create_future()
        self._receive(UpdateReceived(id, name, tuple(value.payload for value in values)))
        return await answer

    def status(self) -> dict[str, Any]:
        """What the run is doing, for people: its state as elsewhere, or ``paused`` or ``continued``."""
        if self._finish_op is not None or self._is_continuing:
            state = "continued" if self._finish_op is None else self._finish_op.state.value
            return {"state": state, "waits_for": [], "approvals": []}
        waits: list[str] = []
        state = "pending"
        if self.driver.is_started:
            execution = self.driver.execution
            waits += [f"{command.kind.label} {command.name}" for command in execution.open_commands.values()]
            waits += ["a timer"] if execution.loop.timers else []
            state = "running" if self._activity_handles.keys() - self._await_positions else "waiting"
        if self._is_pause_requested:
            state = "paused"
        return {
            "state": state,
            "waits_for": waits,
            "approvals": self._memo.list_questions(),
        }

    def plan(self) -> list[Any]:
        """What an agent means to do, and how far it is."""
        return [asdict(item) for item in self._plan]

    def journal(self) -> dict[str, Any]:
        """The records of this execution, in short."""
        rewind = None if self._finish_op is None else self._finish_op.rewind
        return {"order": self._record_summaries, "rewind": rewind_to_json(rewind)}

    # Arriving

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
        arrived, self._received_events, self._is_flush_scheduled = self._received_events, [], False
        if not self.driver.is_closed and hasattr(self.driver, "execution"):
            self.apply_workflow_task(workflow.time(), sort_events(arrived))
        elif not self.driver.is_closed:
            self._early_batches.append(sort_events(arrived))

    def start(self, at: float) -> None:
        """Let the code run; what came before it could is told then."""
        for record in self._records[:1]:
            self._publish_previous_run(record)
        super().start(at)
        early, self._early_batches = self._early_batches, []
        for happenings in early:
            self.apply_workflow_task(at, happenings)

    def set_turn(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run."""
        super().set_turn(run_id)
        if run_id is not None:
            self.driver.execution.loop.is_retracing = workflow.unsafe.is_replaying()
        elif self._should_continue():
            self.is_draining = True
            self.call_soon(self._request_continue_as_new)

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Carry out what the journal engine would write."""
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
        """The run has ended."""
        if not (self.driver.has_fatal_error or workflow.unsafe.is_replaying()):
            self.run_log.log_end(replace(self.driver.run, state=end.state, error=end.error))
        self._finish_op = end
        self._finished.set()

    def is_patched(self, name: str) -> bool:
        """Whether the run takes the new way of a change: Temporal marks it in the history."""
        inner = events._get_running_loop()  # the code that asks runs on the run's loop, where Temporal is not known
        events._set_running_loop(self._workflow_loop)
        try:
            return workflow.patched(name)
        finally:
            events._set_running_loop(inner)

    # Steps

    def start_step(self, step: TemporalStep) -> None:
        """Schedule an activity."""
        command, call, settings = step.command, step.call, self._engine_context.settings
        self._engine_context.add_command(self._execution_id, StartedCommand(command, self.driver.run, self._budgets))
        shown = preview_arguments(call.step.parameters, call.args, call.kwargs)
        notes = {"kind": "compensation"} if command.kind is RecordKind.COMPENSATION else None
        limit = call.step.timeout_s
        waits = step.is_outcome_required
        kinds = workflow.ActivityCancellationType
        handle = workflow.start_activity(
            call.step.name,
            args=[to_raw_value(json.dumps(shown).encode(), notes)],
            activity_id=identifiers.format_activity_id(command.position),
            result_type=RawValue,
            start_to_close_timeout=NO_TIMEOUT if limit is None else timedelta(seconds=limit + TIMEOUT_SLACK_S),
            heartbeat_timeout=timedelta(seconds=settings.heartbeat_timeout_s),
            retry_policy=self._build_retry_policy(command),
            cancellation_type=kinds.WAIT_CANCELLATION_COMPLETED if waits else kinds.TRY_CANCEL,
            summary=shown[:100] or None,
        )
        self._track_activity(handle, command.position, shown)

    def _build_retry_policy(self, command: Command) -> RetryPolicy:
        """For ever: whether a failure is worth another attempt, and when, is decided where the step is carried out.

        So is how often it may take its worker down. What is left to Temporal is how soon it is given to another worker
        when one was not heard of.
        """
        return RetryPolicy(
            initial_interval=timedelta(seconds=0.1),
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=1 if command.call.is_once else 0,
        )

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
        """Nobody wants its outcome any more."""
        position = step.command.position
        handle = self._activity_handles.get(position)
        if handle is not None:
            self._engine_context.stop_step(self._execution_id, position)
            handle.cancel()

    # Timers

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Set one of Temporal's."""
        task = self._timer_tasks[position] = self._workflow_loop.create_task(
            workflow.sleep(max(0.001, delay), summary=summary)
        )
        task.add_done_callback(partial(self._on_timer_ended, timer_from_summary(summary)))

    def _on_timer_ended(self, event: TimerFired, task: asyncio.Task[None]) -> None:
        self._timer_tasks.pop(event.position, None)
        if not task.cancelled():
            self._receive(event)

    def cancel_timer(self, position: int) -> None:
        """Nobody waits for it any more."""
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
        """Ask for a run to be cancelled that this one has started."""
        self._child_workflows.cancel(run_id)

    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """Let an activity look for a run, or wait for its end."""
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
        """Nobody waits for it any more."""
        handle = self._activity_handles.get(position)
        if handle is not None:
            handle.cancel()

    # Approvals

    def on_approvals_changed(self) -> None:
        """Let people see, in the memo, what the run asks."""
        self._memo.publish_approvals(self.open_approvals)

    def on_reminder(self, approval: RequestApproval, reminders: int, assignee: str, expires_at: float | None) -> None:
        """People are told of a question again."""
        self._memo.publish_reminder(approval.id, reminders, assignee, expires_at)

    def answer_update(self, event: UpdateReceived, is_accepted: bool) -> None:
        """Tell a step what came of the change that it has asked for."""
        waiting = self._update_futures.pop(event.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(is_accepted)

    # Going on as a new execution

    def _should_continue(self) -> bool:
        """Whether the history is long enough, and nothing is in flight that a new execution would not hear of."""
        info, settings = workflow.info(), self._engine_context.settings
        events_so_far = info.get_current_history_length()
        wanted = info.is_continue_as_new_suggested() or (
            settings.continue_as_new_after is not None and events_so_far >= settings.continue_as_new_after
        )
        if not wanted or self.is_draining or self._finish_op is not None or self.driver.execution.result is not None:
            return False
        is_free = not (
            self._activity_handles or self.linked_runs.has_pending or self._child_workflows or self._is_pause_requested
        )
        # By what the run was started with, and by sizes that every machine measures alike: replay must decide the same.
        if is_free and (self.has_external_payloads or self._measure_carried() <= MAX_CARRIED_BYTES):
            return True
        if events_so_far > MAX_HISTORY_EVENTS or info.get_current_history_size() > MAX_HISTORY_BYTES:
            self._fail_history_full(is_free)
        return False

    def _measure_carried(self) -> int:
        """How many bytes a new execution would have to be given."""
        unheard = sum(len(signal.payload) for signal in self.unconsumed_signals.values()) + sum(
            map(len, self.signal_dedup_ids)
        )
        return len(self.driver.run.inputs) + self.carried_records.uncompressed_size + unheard

    def _fail_history_full(self, is_free: bool) -> None:
        why = (
            "its records are too large to be handed on to a new execution (give large payloads a storage of their own: "
            "`?payloads=`)"
            if is_free
            else "there was always something in flight, so that it could not continue as new"
        )
        run = self.driver.run
        self.driver.fail(
            HistoryFull(
                f"run {run.id!r} has a history of {workflow.info().get_current_history_length():,} events, which is "
                f"near Temporal's limit, and {why}. Let it start child runs for parts of its work: they have their own."
            )
        )

    def _request_continue_as_new(self) -> None:
        if self._finish_op is None:
            self._is_continuing = True
            self._finished.set()

    def _continue_as_new(self) -> NoReturn:
        brought = [
            *self.carried_records.to_chunks(),
            *pack_signals(list(self.unconsumed_signals.values())),
            *pack_signal_ids(self.signal_dedup_ids),
        ]
        workflow.continue_as_new(
            args=[to_raw_value(self.driver.run.inputs), *map(RawValue, brought)],
            memo=self._memo.build_continued(self.driver.run.clock_started_at),
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _pack_json(value: Any) -> Payload:
    """Something for us alone, compressed."""
    return Payload(metadata={"encoding": b"binary/plain"}, data=zlib.compress(json.dumps(value).encode()))
