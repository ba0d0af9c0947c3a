"""The run of a program as a live Temporal execution: it keeps the journal, and an activity executes the program.

A program may start threads and open sockets, so it cannot run in a Temporal workflow. One activity executes it, with
the driver of the journal engine (``program_host``), and writes the journal in updates of this workflow (see
``stores.temporal.program_updates``). The workflow performs what the program cannot do itself: it starts other runs and
waits for them, publishes approvals, and collects what is sent to the run.

If the worker of the activity dies, Temporal gives the activity to another one, which executes the program again over
the journal. When the program ends, so does the activity, and its result is the end of the run. A paused run has no
activity; it gets another one when it is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy

from holdfast.codec import encode_error
from holdfast.core.records import Attempt, RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.errors import ValueTooLarge
from holdfast.reports.plans import plan_from_record
from holdfast.stores.approvals import RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.claims import RunRequests
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    Op,
    OpResult,
    OpStatus,
    ReleaseRun,
    Run,
    SaveAttempt,
    StartResult,
    StartRun,
)
from holdfast.stores.run_errors import encode_death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.approvals import check_memo_size
from holdfast.stores.temporal.carried_records import pack_intents, pack_signal_ids, pack_signals
from holdfast.stores.temporal.program_updates import (
    CANCEL_NOTICE,
    NO_FENCE,
    PAUSE_NOTICE,
    RESUME_NOTICE,
    Message,
    MessagesAnswer,
    ProgramSender,
    RunStarted,
    decode_operations,
    decode_request,
)
from holdfast.stores.temporal.rows import rewind_from_json
from holdfast.stores.temporal.run_events import CancelRequested, ProgramStopped, RunEvent, UpdateReceived
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.live_run import (
    MAX_CARRIED_BYTES,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_EVENTS,
    NO_TIMEOUT,
    LiveRun,
)
from holdfast.temporal.remote_driver import RemoteDriver, read_stop

MAX_UPDATES = 1_950
"""Updates of one execution after which a run that cannot continue as new fails: Temporal allows 2,000."""

SUGGESTED_UPDATES = 1_500
"""Updates after which a run continues as new when nothing is in flight."""

MAX_ANSWER_BYTES = 1_500_000
"""The most bytes of values in one answer; a larger value is alone in its answer."""

PARKED, CONTINUED = "parked", "continued"
"""Why a program that has not ended does not run any more: its run was paused, or continues as new."""


class LiveProgram(LiveRun):
    """The run of a program in a workflow."""

    def __init__(self, engine_context: EngineContext, args: Sequence[RawValue]) -> None:
        self._fence = NO_FENCE
        self._messages: list[Message] = []
        """What the activity has not confirmed yet."""
        self._confirmed_count = 0
        """How many messages it has confirmed before these."""
        self._request: UpdateReceived | None = None
        """The activity's open request for messages."""
        self._links: dict[tuple[int, str], RunStarted | None] = {}
        """The runs that were started or awaited here, by position and id."""
        self._intents: dict[int, Attempt] = {}
        """The attempts of ``once`` steps in flight."""
        self._activity_count = self._update_count = self._death_count = 0
        self._is_activity_open = self._is_released = self._is_cancel_recorded = False
        super().__init__(engine_context, args)
        self._last_seq = self._records[-1].seq if self._records else -1
        self._messages += self.unconsumed_signals.values()

    def create_driver(self, run: Run, definition: WorkflowDefinition) -> Driver:
        """What stands for the driver, which is in the activity."""
        return cast(Driver, RemoteDriver(self, run))

    @property
    def _remote(self) -> RemoteDriver:
        return cast(RemoteDriver, self.driver)

    # Its life

    def start(self, at: float) -> None:
        """Start the program."""
        self.clock.time = at
        self._records.clear()
        self._signals.clear()
        self._remote.is_started = True
        early, self._early_batches = self._early_batches, []
        for batch in early:
            self.apply_workflow_task(at, batch)
        self._start_activity()

    def _start_activity(self) -> None:
        """Execute the program, unless it is being executed, or the run is paused."""
        if self._is_activity_open or self._is_pause_requested or self._finished.is_set():
            return
        self._is_activity_open = True
        self._activity_count += 1
        handle = workflow.start_activity(
            identifiers.PROGRAM_ACTIVITY,
            args=[],
            activity_id=identifiers.format_program_id(self._activity_count),
            result_type=RawValue,
            start_to_close_timeout=NO_TIMEOUT,
            heartbeat_timeout=timedelta(seconds=self._engine_context.settings.heartbeat_timeout_s),
            # Unlimited: a program ends with a result, also when it fails. `_open` counts worker deaths.
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=0.1), maximum_interval=timedelta(seconds=5), maximum_attempts=0
            ),
            summary=self.driver.run.workflow,
        )
        handle.add_done_callback(self._on_program_ended)

    def _on_program_ended(self, task: Any) -> None:
        self._receive(read_stop(task, self.driver.run.id))

    def _on_stopped(self, stopped: ProgramStopped) -> None:
        """The program does not run any more."""
        self._is_activity_open = False
        self._close_request()
        if stopped.reason == CONTINUED:
            self.request_continue_as_new()
        elif stopped.reason == PARKED:
            self._start_activity()
        elif stopped.reason == RunState.COMPLETED and self._is_cancel_requested and not self._is_cancel_recorded:
            self._start_activity()  # the request came when the program had ended: it is recorded first
        else:
            state = RunState(stopped.reason)
            output, error = (stopped.payload, None) if state is RunState.COMPLETED else (None, stopped.payload)
            rewind = rewind_from_json(stopped.rewind)
            self.finish(FinishRun(0, 1, state, output, error, self.clock.now(), rewind))

    def fail(self, error: BaseException) -> None:
        """The run cannot continue."""
        self.finish(FinishRun(0, 1, RunState.FAILED, None, encode_error(error), self.clock.now()))

    def finish(self, end: FinishRun) -> None:
        """End the execution. The worker of the activity has logged the end of the program."""
        self._finish_op = end
        self._finished.set()

    async def finish_updates(self) -> None:
        """Answer what the activity asks for: it must stop."""
        for future in self._update_futures.values():
            if not future.done():
                future.set_result(None)
        self._update_futures.clear()
        await workflow.wait_condition(workflow.all_handlers_finished)

    def release(self) -> None:
        """Leave memory."""
        self.driver.unload()

    def pack_carried(self) -> list[Payload]:
        """What the next execution starts with, besides the inputs."""
        signals = [signal for signal in self.unconsumed_signals.values() if signal.position is None]
        return [
            *self.carried_records.to_chunks(),
            *pack_signals(signals),
            *pack_signal_ids(self.signal_dedup_ids),
            *pack_intents(self._intents.values()),
        ]

    def status(self) -> dict[str, Any]:
        """The answer to the status query."""
        if self._finish_op is not None or self._is_continuing:
            state = "continued" if self._finish_op is None else self._finish_op.state.value
        else:
            state = "paused" if self._is_pause_requested else "running"
        waits_for = [
            f"run {run_id}" for (_, run_id), started in self._links.items() if started is None or started.is_linked
        ]
        return {"state": state, "waits_for": waits_for, "approvals": self._memo.list_questions()}

    def journal(self) -> dict[str, Any]:
        """The answer to the journal query: the records themselves are in the history."""
        return {**super().journal(), "order": None}

    # Events

    def apply_workflow_task(self, at: float, run_events: Sequence[RunEvent]) -> None:
        """Apply the sorted events of one workflow task."""
        super().apply_workflow_task(at, run_events)
        self._answer_request()

    def _apply(self, run_event: RunEvent) -> None:
        if isinstance(run_event, ProgramStopped):
            self._on_stopped(run_event)
        elif not isinstance(run_event, UpdateReceived):
            if isinstance(run_event, CancelRequested):
                self._is_pause_requested = False
            super()._apply(run_event)
        elif run_event.name == identifiers.RECORD_UPDATE:
            self.answer_update(run_event, self._perform_all(run_event))
        elif run_event.name == identifiers.MESSAGES_UPDATE:
            self._receive_request(run_event)
        else:
            super()._apply(run_event)

    async def receive_update(self, id: str, name: str, values: Sequence[RawValue]) -> Any:
        """Receive an update from the program, and wait for the answer; ``None``: the program must stop."""
        self._update_count += 1
        return None if self._finished.is_set() else await super().receive_update(id, name, values)

    # The fence

    def _admit(self, sender: ProgramSender) -> bool:
        """Whether an update with this fence takes effect."""
        if sender.fence > self._fence:
            self._open(sender)
        return sender.fence == self._fence and not self._finished.is_set()

    def _open(self, sender: ProgramSender) -> None:
        """The program is executed once more."""
        has_died = sender.is_again and not self._is_released
        self._fence, self._is_released = sender.fence, False
        if has_died:
            self._death_count += 1
        run = self.driver.run
        if self._death_count >= run.max_deliveries:
            error = encode_death_error(run.id, self._death_count, circumstance="its program was running")
            self.finish(FinishRun(0, 1, RunState.DEAD, None, error, self.clock.now()))
            return
        self._confirmed_count = 0
        self._messages = [*self.unconsumed_signals.values()]
        if self._is_cancel_requested and not self._is_cancel_recorded:
            self._messages.append(CANCEL_NOTICE)
        if self._is_pause_requested:
            self._messages.append(PAUSE_NOTICE)
        self._close_request()

    # Messages to the program

    def post(self, message: Message) -> None:
        """Tell the program something."""
        self._messages.append(message)

    def post_request(self, request: RunRequests) -> None:
        """Tell the program of a request to cancel or pause the run."""
        self.post(CANCEL_NOTICE if request.is_cancel_requested else PAUSE_NOTICE)

    def add_signal(self, name: str, payload: bytes, at: float, position: int | None = None) -> None:
        """Add a signal to the mailbox of the run, or (with a position) of one of its commands."""
        self._last_signal_id += 1
        signal = self.unconsumed_signals[self._last_signal_id] = Signal(
            self._last_signal_id, name, payload, at, position
        )
        self.post(signal)

    def _unpark(self) -> None:
        self.post(RESUME_NOTICE)
        if self._remote.is_started:
            self._start_activity()

    def _close_request(self) -> None:
        """Whoever has asked for messages gets no more."""
        if self._request is not None:
            self.answer_update(self._request, RawValue(MessagesAnswer(is_fenced=True).encode()))
            self._request = None

    def _receive_request(self, event: UpdateReceived) -> None:
        request = decode_request(event.payloads)
        if not self._admit(request.sender):
            self.answer_update(event, RawValue(MessagesAnswer(is_fenced=True).encode()))
            return
        del self._messages[: request.after - self._confirmed_count]
        self._confirmed_count = max(self._confirmed_count, request.after)
        if self._request is not None:
            self.answer_update(self._request, RawValue(MessagesAnswer().encode()))
        self._request = event
        if not request.should_wait:
            self._answer_request(should_wait=False)

    def _answer_request(self, *, should_wait: bool = True) -> None:
        if self._request is None or (should_wait and not self._messages):
            return
        size, messages = 0, list[Message]()
        for message in self._messages:
            size += len(getattr(message, "payload", None) or b"")
            if messages and size > MAX_ANSWER_BYTES:
                break
            messages.append(message)
        request, self._request = self._request, None
        self.answer_update(request, RawValue(MessagesAnswer(messages).encode()))

    # Operations of the program

    def _perform_all(self, event: UpdateReceived) -> dict[str, Any] | None:
        sender, ops = decode_operations(event.payloads)
        if not self._admit(sender):
            return None
        answers = [self._perform(op) for op in ops]
        return {"answers": answers, "next": self._decide_next()}

    def _perform(self, op: Op) -> str | dict[str, str]:
        """Perform an operation; the answer is a status, or an encoded error."""
        match op:
            case AppendRecord():
                self._append(op)
            case SaveAttempt():
                self._intents.pop(op.attempt.position, None)
                if op.attempt.intent:
                    self._intents[op.attempt.position] = op.attempt
            case RequestApproval():
                try:
                    self._request_approval(op)
                except ValueTooLarge as error:
                    return {"error": encode_error(error).decode()}
            case WithdrawApproval():
                if self.open_approvals.pop(op.id, None) is not None:
                    self.on_approvals_changed()
                elif op.id in self._answered_ids:
                    return OpStatus.REFUSED.value
            case RemindApproval():
                approval = self.open_approvals.get(op.id)
                if approval is None:
                    return OpStatus.REFUSED.value
                self.on_reminder(approval, op.reminder_count, op.assignee, op.expires_at)
            case StartRun():
                assert op.link is not None
                if self._is_new_link(op.link.position, op.run.id):
                    self.linked_runs.start(op.run, op.link, partial(self._on_linked, op.link.position, op.run.id))
            case AwaitRun():
                if self._is_new_link(op.link.position, op.run_id):
                    self.linked_runs.wait_for(op.run_id, op.link, partial(self._on_linked, op.link.position, op.run_id))
            case CancelRun():
                self.linked_runs.cancel(op.run_id)
            case ReleaseRun():
                self._is_released = True
                self._close_request()
            case _:
                raise NotImplementedError(type(op).__name__)
        return OpStatus.DONE.value

    def _append(self, op: AppendRecord) -> None:
        record = op.record
        if record.seq <= self._last_seq:
            return  # a repeat
        self._last_seq, self._death_count = record.seq, 0
        self.carried_records.add(record)
        if op.consumed_signal_id is not None:
            self.unconsumed_signals.pop(op.consumed_signal_id, None)
        if record.kind is RecordKind.CANCEL:
            self._is_cancel_recorded = True
        elif record.kind.has_position:
            self._intents.pop(record.position, None)
        if op.used is not None:
            self._memo.add_usage(op.used)
        self._plan = plan_from_record(record) or self._plan

    def _request_approval(self, op: RequestApproval) -> None:
        if op.id in self.open_approvals or op.id in self._answered_ids:
            return
        others = {id: one for id, one in self.open_approvals.items() if one.position != op.position}
        check_memo_size(others.values(), op, self.max_value)
        self.open_approvals = {**others, op.id: op}
        self.on_approvals_changed()

    def _is_new_link(self, position: int, run_id: str) -> bool:
        """Whether this is the first request for this run; otherwise its answer is given again."""
        if (position, run_id) not in self._links:
            self._links[position, run_id] = None
            return True
        if (started := self._links[position, run_id]) is not None:
            self.post(started)
        return False

    def _on_linked(self, position: int, run_id: str, answer: OpResult | BaseException) -> None:
        started = RunStarted(position)
        if isinstance(answer, StartResult):
            row = answer.run
            payload = row.output if row.state is RunState.COMPLETED else row.error
            started = RunStarted(
                position, True, row.workflow, row.digest, row.state, answer.is_new, answer.is_linked, payload
            )
        self._links[position, run_id] = started
        self.post(started)

    def _decide_next(self) -> str:
        """Whether the history is so long that the run must continue as new, or fails because it cannot."""
        info, settings = workflow.info(), self._engine_context.settings
        event_count, limit = info.get_current_history_length(), settings.continue_as_new_after
        if (
            event_count > MAX_HISTORY_EVENTS
            or info.get_current_history_size() > MAX_HISTORY_BYTES
            or self._update_count > MAX_UPDATES
        ):
            return "full"
        is_long = info.is_continue_as_new_suggested() or self._update_count > SUGGESTED_UPDATES
        if not is_long and (limit is None or event_count < limit):
            return ""
        has_room = self.has_external_payloads or self.measure_carried() <= MAX_CARRIED_BYTES
        return "continue" if has_room else ""
