"""A run as a live execution of Temporal's: what its driver begins becomes commands of the workflow.

All of this runs inside the workflow, on Temporal's own event loop, and again whenever Temporal replays it. The user's
code runs on the run's loop within (see ``core.loop``), so that it needs no sandbox: it cannot do there what it could
not do on replay.

What a workflow task brings arrives piece by piece, as futures are resolved; ``_arrive`` gathers it until nothing more
comes, and only then it is told, in the order that ``happenings`` gives it.
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
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError, WorkflowAlreadyStartedError

from holdfast.admission.usage import Usage
from holdfast.codec import describe_error, encode_error, preview
from holdfast.core.commands import Command
from holdfast.core.records import SESSION, Kind, Record
from holdfast.core.states import RunState
from holdfast.engine.journal_writer import Done
from holdfast.errors import HistoryFull, UsageError
from holdfast.reports.plans import plan_in, plan_of
from holdfast.stores.approvals import AskApproval
from holdfast.stores.operations import AppendRecord, FinishRun, NewRun, Op
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.carried_records import pack_seen, pack_signals
from holdfast.stores.temporal.outcomes import usage_in
from holdfast.stores.temporal.payloads import data_of, note_of, raw
from holdfast.stores.temporal.run_events import (
    CancelAsked,
    ChildEnded,
    ChildStarted,
    Ended,
    Happening,
    How,
    Signalled,
    StepEnded,
    TimerFired,
    Updated,
    ended_with,
    in_order,
    rung,
)
from holdfast.stores.temporal.run_memo import APART, HEAD, QUESTIONS, SHOWS_USED, USED, budgets_in, head_of, run_of
from holdfast.temporal.approval_memo import shown
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.engine_context import Open, Site
from holdfast.temporal.error_truncation import short_enough, short_message
from holdfast.temporal.inputs import inputs_of, split_arguments
from holdfast.temporal.steps_and_timers import FedStep
from holdfast.temporal.temporal_run import Feed

HOPS = 8
"""Turns of Temporal's loop without anything new after which all that a workflow task brings has arrived."""

MOST_EVENTS = 40_000
MOST_BYTES = 40_000_000
"""How long a history may get: a run that comes so far fails, well before Temporal would stop it (at 51,200 and 50 MB).
What follows from these numbers is in histories: they cannot be changed for runs that are under way."""

MOST_CARRIED = 1_500_000
"""How many bytes of records, before they are compressed, an execution hands on as they are; Temporal takes 2 MB."""

FOREVER = timedelta(days=365)
SLACK = 30.0
"""Seconds that an activity has beyond its step's own time-out, which the worker keeps."""


class HeldRun(Feed):
    """A run in a workflow."""

    def __init__(self, site: Site, args: Sequence[RawValue]) -> None:
        info = workflow.info()
        self._memo = dict(workflow.memo())
        self._head: dict[str, Any] = self._memo.get(HEAD, {})
        definition = site.definition(info.workflow_type, self._head.get("version", ""))
        given, brought = split_arguments(arg.payload for arg in args)
        inputs = inputs_of(definition, given)
        run = run_of(
            self._head,
            id=info.workflow_id,
            execution=info.run_id,
            workflow=info.workflow_type,
            inputs=inputs,
            started_at=info.workflow_start_time.timestamp(),
        )
        super().__init__(run, definition, brought, site.settings.max_value, apart=bool(self._head.get(APART)))
        self.run_log = site.run_log
        self._home = asyncio.get_running_loop()
        self._plan = plan_of(self._records)
        self._used = Usage(**self._head.get("used", {}))
        """What the run's own steps have used, also in executions before this one."""
        self._budgets = budgets_in(self._head, info.workflow_id)
        self._site = site
        self._execution_id = info.run_id
        self._order: list[list[Any]] = []
        """The records of this execution, in short: what of the history each of them is."""
        self._over = asyncio.Event()
        self._end: FinishRun | None = None
        self._continuing = False
        self._arrived: list[Happening] = []
        self._settling = False
        self._early: list[Sequence[Happening]] = []
        """What came before the code could begin."""
        self._activities: dict[int, workflow.ActivityHandle[Any]] = {}
        self._awaits: set[int] = set()
        """Positions of the activities that only wait for other runs."""
        self._timer_tasks: dict[int | None, asyncio.Task[None]] = {}
        self._handles: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._unwanted: set[str] = set()
        """Runs that are to be cancelled as soon as they are there."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: dict[str, asyncio.Future[bool]] = {}
        """What came of updates, for their handlers."""
        self._asked: dict[str, dict[str, Any]] = {}
        """The questions, as people see them."""

    async def execute(self) -> RawValue:
        """From the beginning of the execution to its end."""
        is_cancelled = False
        try:
            await self._delay()
            self.begin(workflow.time())
            while not self._over.is_set():
                try:
                    await self._over.wait()
                except asyncio.CancelledError:
                    # Temporal asks for a cancellation once. Otherwise the execution leaves memory.
                    if is_cancelled or workflow.cancellation_reason() is None:
                        raise
                    is_cancelled = True
                    _uncancel()
                    self._arrive(CancelAsked())
        finally:
            self._leave()
        if self._continuing:
            self._continue()
        assert self._end is not None
        return self._outcome(self._end)

    async def _delay(self) -> None:
        """A run that another one has started may have to wait before it begins; Temporal does that for no child."""
        wait = self._head.get("available_at", 0.0) - workflow.time()
        if wait > 0 and self._head.get("parent") and not self._records:
            await workflow.sleep(wait, summary=identifiers.DELAY)

    def _leave(self) -> None:
        """Nothing of the run is left in memory."""
        self._site.take_away(self._execution_id)
        if hasattr(self.driver, "execution"):
            self.driver.execution.loop.adopt()
        self.driver.release()

    def _outcome(self, end: FinishRun) -> RawValue:
        if end.state is RunState.COMPLETED:
            return raw(end.output or b"null")
        if end.state is RunState.CANCELLED:
            raise asyncio.CancelledError(f"run {self.driver.run.id!r} was cancelled")
        error = short_enough(end.error or b"null", self.max_value)
        told = describe_error(error)
        name = told.type.rpartition(".")[2]
        rewind = None if end.rewind is None else end.rewind._asdict()
        raise ApplicationError(
            short_message(told.message),
            raw(error, {identifiers.ENDING: end.state}),
            RawValue(_packed({"order": self._order, "rewind": rewind})),
            type=name,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )

    # Messages

    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """A signal has come."""
        self._arrive(Signalled(name, tuple(value.payload for value in values), workflow.time()))

    async def update(self, id: str, name: str, values: Sequence[RawValue]) -> bool:
        """A step of this run asks for a change of it."""
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        self._arrive(Updated(id, name, tuple(value.payload for value in values)))
        return await answer

    def status(self) -> dict[str, Any]:
        """What the run is doing, for people: its state as elsewhere, or ``paused`` or ``continued``."""
        if self._end is not None or self._continuing:
            state = "continued" if self._end is None else self._end.state.value
            return {"state": state, "waits_for": [], "questions": []}
        waits: list[str] = []
        state = "pending"
        if self.driver.is_begun:
            execution = self.driver.execution
            waits += [f"{command.kind.label} {command.name}" for command in execution.open.values()]
            waits += ["a timer"] if execution.loop.timers else []
            state = "running" if self._activities.keys() - self._awaits else "waiting"
        if self._pause_asked:
            state = "paused"
        return {"state": state, "waits_for": waits, "questions": [one["text"] for one in self._asked.values()]}

    def plan(self) -> list[Any]:
        """What an agent means to do, and how far it is."""
        return [asdict(item) for item in self._plan]

    def journal(self) -> dict[str, Any]:
        """The records of this execution, in short."""
        rewind = None if self._end is None or self._end.rewind is None else self._end.rewind._asdict()
        return {"order": self._order, "rewind": rewind}

    # Arriving

    def _arrive(self, happening: Happening) -> None:
        self._arrived.append(happening)
        if not self._settling:
            self._settling = True
            self._home.call_soon(self._settle, len(self._arrived), 0)

    def _settle(self, known: int, hops: int) -> None:
        if len(self._arrived) > known:
            hops = 0
        if hops < HOPS:
            self._home.call_soon(self._settle, len(self._arrived), hops + 1)
            return
        arrived, self._arrived, self._settling = self._arrived, [], False
        if not self.driver.gone and hasattr(self.driver, "execution"):
            self.tell(workflow.time(), in_order(arrived))
        elif not self.driver.gone:
            self._early.append(in_order(arrived))

    def begin(self, at: float) -> None:
        """Let the code run; what came before it could is told then."""
        for record in self._records[:1]:
            self._show_previous(record)
        super().begin(at)
        early, self._early = self._early, []
        for happenings in early:
            self.tell(at, happenings)

    def turning(self, run_id: str | None) -> None:
        """Workflow code starts or stops to run."""
        super().turning(run_id)
        if run_id is not None:
            self.driver.execution.loop.retracing = workflow.unsafe.is_replaying()
        elif self._should_continue():
            self.draining = True
            self.later(self._go_on_as_new)

    def submit(self, op: Op, done: Done) -> None:
        """Carry out what the journal engine would write."""
        if isinstance(op, AppendRecord):
            record = op.record
            self._order.append(self.in_short(record, op.consume))
            self._plan = plan_in(record) or self._plan
            self._show_previous(record)
        super().submit(op, done)

    def _show_previous(self, record: Record) -> None:
        """Let readers see, in the memo, which run came before this one in its session."""
        is_told = record.kind is Kind.STEP and record.name == SESSION and record.position == 0 and record.ok
        if is_told and self.driver.run.session and "previous" not in self._head and record.payload is not None:
            previous = json.loads(record.payload)
            if previous:
                self._head = self._memo[HEAD] = {**self._head, "previous": previous}
                workflow.upsert_memo({HEAD: self._head})

    def over(self, end: FinishRun) -> None:
        """The run has ended."""
        if not (self.driver.has_fault or workflow.unsafe.is_replaying()):
            self.run_log.log_end(replace(self.driver.run, state=end.state, error=end.error))
        self._end = end
        self._over.set()

    def patched(self, name: str) -> bool:
        """Whether the run takes the new way of a change: Temporal marks it in the history."""
        inner = events._get_running_loop()  # the code that asks runs on the run's loop, where Temporal is not known
        events._set_running_loop(self._home)
        try:
            return workflow.patched(name)
        finally:
            events._set_running_loop(inner)

    # Steps

    def begin_step(self, step: FedStep) -> None:
        """Schedule an activity."""
        command, call, settings = step.command, step.call, self._site.settings
        self._site.put_down(self._execution_id, Open(command, self.driver.run, self._budgets))
        shown = preview(call.step.parameters, call.args, call.kwargs)
        notes = {"kind": "compensation"} if command.kind is Kind.COMPENSATION else None
        limit = call.step.timeout
        waits = step.is_awaited_withdrawn
        kinds = workflow.ActivityCancellationType
        handle = workflow.start_activity(
            call.step.name,
            args=[raw(json.dumps(shown).encode(), notes)],
            activity_id=identifiers.activity_id(command.position),
            result_type=RawValue,
            start_to_close_timeout=FOREVER if limit is None else timedelta(seconds=limit + SLACK),
            heartbeat_timeout=timedelta(seconds=settings.heartbeat),
            retry_policy=self._retry_policy(command),
            cancellation_type=kinds.WAIT_CANCELLATION_COMPLETED if waits else kinds.TRY_CANCEL,
            summary=shown[:100] or None,
        )
        self._follow(handle, command.position, shown)

    def _retry_policy(self, command: Command) -> RetryPolicy:
        """For ever: whether a failure is worth another attempt, and when, is decided where the step is carried out.

        So is how often it may take its worker down. What is left to Temporal is how soon it is given to another worker
        when one was not heard of.
        """
        return RetryPolicy(
            initial_interval=timedelta(seconds=0.1),
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=1 if command.call.is_once else 0,
        )

    def _follow(
        self, handle: workflow.ActivityHandle[Any], position: int, shown: str = "", *, waits: bool = False
    ) -> None:
        self._activities[position] = handle
        if waits:
            self._awaits.add(position)
        handle.add_done_callback(partial(self._activity_ended, position, shown, waits))

    def _activity_ended(self, position: int, shown: str, waits: bool, task: asyncio.Task[Any]) -> None:
        self._activities.pop(position, None)
        self._site.take_away(self._execution_id, position)
        ended = StepEnded(position, _ended(task), preview=shown, usage=_usage(task), is_await=waits)
        if ended.usage:
            self._used += usage_in(ended.usage)
            self._show_used()
        self._arrive(ended)

    def _show_used(self) -> None:
        """Let lists see, in the memo, what the run has used."""
        if self._head.get(SHOWS_USED):
            self._memo[USED] = asdict(self._used)
            workflow.upsert_memo({USED: self._memo[USED]})

    def cancel_step(self, step: FedStep) -> None:
        """Nobody wants its outcome any more."""
        position = step.command.position
        handle = self._activities.get(position)
        if handle is not None:
            self._site.stop(self._execution_id, position)
            handle.cancel()

    # Timers

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """Set one of Temporal's."""
        task = self._timer_tasks[position] = self._home.create_task(workflow.sleep(max(0.001, delay), summary=summary))
        task.add_done_callback(partial(self._timer_over, rung(summary)))

    def _timer_over(self, told: TimerFired, task: asyncio.Task[None]) -> None:
        self._timer_tasks.pop(told.position, None)
        if not task.cancelled():
            self._arrive(told)

    def cancel_timer(self, position: int) -> None:
        """Nobody waits for it any more."""
        task = self._timer_tasks.get(position)
        if task is not None:
            task.cancel()

    # Other runs

    def begin_child(self, new: NewRun, position: int, *, awaited: bool) -> None:
        """Start a child workflow, on the task queue of its own workflow."""
        try:
            self._site.refuse_limits(new.queue, f"run {new.id!r}, which run {self.driver.run.id!r} starts,")
        except UsageError as error:
            self.driver.fail(error)
            return
        self._site.serve_too(identifiers.task_queue(new.queue, new.workflow, new.version))
        self._keep(self._run_child(new, position, awaited))

    async def _run_child(self, new: NewRun, position: int, awaited: bool) -> None:
        policies = workflow.ParentClosePolicy
        try:
            handle = self._handles[new.id] = await workflow.start_child_workflow(
                new.workflow,
                args=[raw(new.inputs)],
                id=new.id,
                task_queue=identifiers.task_queue(new.queue, new.workflow, new.version),
                result_type=RawValue,
                memo={HEAD: head_of(new, position=position, awaited=awaited, above=self._budgets, apart=self.apart)},
                parent_close_policy=policies.REQUEST_CANCEL if awaited else policies.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.TRY_CANCEL,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            self._arrive(ChildStarted(position, new.id, is_new=False))
            return
        self._arrive(ChildStarted(position, new.id))
        if new.id in self._unwanted:
            handle.cancel()
        await asyncio.wait([handle])
        self._arrive(ChildEnded(position, new.id, _ended(handle)))

    def cancel_child(self, run_id: str) -> None:
        """Ask for a run to be cancelled that this one has started."""
        handle = self._handles.get(run_id)
        if handle is None:
            self._unwanted.add(run_id)
        else:
            handle.cancel()

    def begin_await(self, position: int, awaited: AwaitedRun) -> None:
        """Let an activity look for a run, or wait for its end."""
        handle = workflow.start_activity(
            identifiers.AWAIT_RUN,
            args=[raw(awaited.to_json())],
            activity_id=identifiers.activity_id(position),
            result_type=RawValue,
            start_to_close_timeout=FOREVER,
            heartbeat_timeout=timedelta(seconds=self._site.settings.heartbeat),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
            summary=awaited.run_id,
        )
        self._follow(handle, position, waits=True)

    def cancel_await(self, position: int) -> None:
        """Nobody waits for it any more."""
        handle = self._activities.get(position)
        if handle is not None:
            handle.cancel()

    def _keep(self, coro: Any) -> None:
        task = self._home.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Questions

    def questions_changed(self) -> None:
        """Let people see, in the memo, what the run asks."""
        self._asked = {id: self._asked.get(id) or shown(question) for id, question in self.questions.items()}
        self._show_questions()

    def reminded(self, question: AskApproval, reminders: int, asked_of: str, expires_at: float | None) -> None:
        """People are told of a question again."""
        self._asked[question.id] |= {
            "reminders": reminders, "asked_of": asked_of, "expires_at": expires_at, "reminded_at": workflow.time(),
        }  # fmt: skip
        self._show_questions()

    def _show_questions(self) -> None:
        workflow.upsert_memo({QUESTIONS: list(self._asked.values())})

    def updated(self, told: Updated, answer: bool) -> None:
        """Tell a step what came of the change that it has asked for."""
        waiting = self._answers.pop(told.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # Going on as a new execution

    def _should_continue(self) -> bool:
        """Whether the history is long enough, and nothing is in flight that a new execution would not hear of."""
        info, settings = workflow.info(), self._site.settings
        events_so_far = info.get_current_history_length()
        wanted = info.is_continue_as_new_suggested() or (
            settings.continue_after is not None and events_so_far >= settings.continue_after
        )
        if not wanted or self.draining or self._end is not None or self.driver.execution.ending is not None:
            return False
        is_free = not (self._activities or self.relatives.are_awaited or self._tasks or self._pause_asked)
        # By what the run was started with, and by sizes that every machine measures alike: replay must decide the same.
        if is_free and (self.apart or self._to_carry() <= MOST_CARRIED):
            return True
        if events_so_far > MOST_EVENTS or info.get_current_history_size() > MOST_BYTES:
            self._refuse_more(is_free)
        return False

    def _to_carry(self) -> int:
        """How many bytes a new execution would have to be given."""
        unheard = sum(len(signal.payload) for signal in self.unheard.values()) + sum(map(len, self.seen))
        return len(self.driver.run.inputs) + self.packing.size + unheard

    def _refuse_more(self, is_free: bool) -> None:
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

    def _go_on_as_new(self) -> None:
        if self._end is None:
            self._continuing = True
            self._over.set()

    def _continue(self) -> NoReturn:
        head = {**self._head, "began_at": self.driver.run.began_at, "used": asdict(self._used)}
        brought = [*self.packing.chunks(), *pack_signals(list(self.unheard.values())), *pack_seen(self.seen)]
        workflow.continue_as_new(
            args=[raw(self.driver.run.inputs), *map(RawValue, brought)], memo={**self._memo, HEAD: head}
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _ended(task: asyncio.Task[Any]) -> Ended:
    """How an activity or a child has ended, by the outcome of its handle."""
    if task.cancelled():
        return Ended(How.CANCELLED, b"null")
    error = task.exception()
    if error is None:
        return Ended(How.COMPLETED, data_of(task.result().payload))
    if isinstance(error, FailureError) and error.failure is not None:
        return ended_with(error.failure)
    return Ended(How.CANCELLED, b"null") if isinstance(error, FailureError) else Ended(How.FAILED, encode_error(error))


def _usage(task: asyncio.Task[Any]) -> str:
    """The note on an activity's result that tells what it has used."""
    is_done = not task.cancelled() and task.exception() is None
    return note_of(task.result().payload, "usage") if is_done else ""


def _packed(value: Any) -> Payload:
    """Something for us alone, compressed."""
    return Payload(metadata={"encoding": b"binary/plain"}, data=zlib.compress(json.dumps(value).encode()))
