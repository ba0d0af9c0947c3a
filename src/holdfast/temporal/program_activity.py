"""The activity that executes the program of a run.

It runs in the thread of Temporal's workers, and sends heartbeats there, so that code of the program that blocks its
loop for a while does not cost it the program. The program itself runs on the loop of the process's own code, or in a
thread (see ``program_host``).

An activity that is executed again reads the run's history, as far as earlier executions have written it. Its first
update closes the run to them, so nothing is written after that.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from holdfast.core.records import RecordKind, Signal
from holdfast.stores.contract import History
from holdfast.stores.operations import CancelState
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.history import fetch_events
from holdfast.stores.temporal.outcomes import compute_worker_id, read_outcomes
from holdfast.stores.temporal.payloads import load_json, to_raw_value
from holdfast.stores.temporal.program_journal import ProgramJournal
from holdfast.stores.temporal.program_updates import (
    CANCEL_NOTICE,
    STARTED_KEY,
    STEPS_KEY,
    Fence,
    MessagesAnswer,
    ProgramSender,
    StepInFlight,
)
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY, budgets_from_memo
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.failures import make_handover_failure, truncate_error
from holdfast.temporal.program_host import LOST, RELEASED, ProgramEnd, ProgramHost
from holdfast.temporal.program_log import ProgramLog
from holdfast.temporal.step_attempt import CrossLoopTask
from holdfast.temporal.temporal_run import build_run

if TYPE_CHECKING:
    from holdfast.temporal.activities import Activities

log = logging.getLogger("holdfast.engine")

CLEANUP_TIMEOUT_S = 10.0
"""How long a program that is stopped may take to clean up."""

STUCK_DELAY_S = 1.0
"""The delay before Temporal offers a program again that a worker with a blocked loop has declined."""

FIRST = Fence(1, 1)


class ProgramActivity:
    """One execution of a program."""

    def __init__(self, activities: Activities, engine_context: EngineContext) -> None:
        self._activities = activities
        self._engine_context = engine_context
        self._info = activity.info()
        self._host: ProgramHost | None = None
        self._is_released = False
        self._lease_until = 0.0
        details = self._info.heartbeat_details
        # Without details, the first worker may have died before it could send a heartbeat.
        self._is_again = bool(details[0][STARTED_KEY] if details else self._info.attempt > 1)
        self._details: dict[str, Any] = {STARTED_KEY: self._is_again}
        """The details of the heartbeats."""

    async def execute(self) -> RawValue:
        """Execute the program, and return how it ended."""
        activities = self._activities
        if activities.is_releasing:
            await activities.handed_over.wait()
            raise self._decline()
        if activities.is_stuck():
            raise self._decline(STUCK_DELAY_S)
        self._details = {STARTED_KEY: True}
        heartbeats = asyncio.create_task(self._send_heartbeats())
        task = CrossLoopTask(activities.loop, self._execute_program, contextvars.Context())
        activities.programs.add(self)
        try:
            end = await asyncio.shield(task.future)
        except asyncio.CancelledError:
            activities.loop.call_soon_threadsafe(self._lose)
            with suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(task.future), CLEANUP_TIMEOUT_S)
            # Another worker continues it; or the run has ended, and Temporal ignores the failure.
            raise make_handover_failure() from None
        finally:
            activities.programs.discard(self)
            heartbeats.cancel()
        if end.reason == RELEASED:
            await activities.handed_over.wait()
        if end.reason in (LOST, RELEASED):
            raise make_handover_failure()
        return self._encode_end(end)

    def _decline(self, delay_s: float = 0.001) -> ApplicationError:
        """Leave the program to another worker, without having begun it."""
        activity.heartbeat(self._details)  # the failure carries the last heartbeat
        return make_handover_failure(delay_s)

    def _encode_end(self, end: ProgramEnd) -> RawValue:
        notes = {identifiers.STOP_NOTE: str(end.reason), identifiers.REWIND_NOTE: end.rewind}
        payload = (
            end.payload if end.reason == "completed" else truncate_error(end.payload, self._activities.engine.max_value)
        )
        return to_raw_value(payload, {name: note for name, note in notes.items() if note})

    async def release(self, should_stop: Callable[[], bool]) -> None:
        """This worker stops: hand the program over, when its steps in flight have ended, or ``should_stop``."""
        self._is_released = True
        if not self._activities.loop.is_closed():
            releasing = asyncio.run_coroutine_threadsafe(self._release(should_stop), self._activities.loop)
            await asyncio.wrap_future(releasing)

    async def _release(self, should_stop: Callable[[], bool]) -> None:
        if self._host is not None:
            await self._host.release(should_stop)

    def _lose(self) -> None:
        if self._host is not None:
            self._host.lose()

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        while True:
            if not self._activities.is_stuck():
                activity.heartbeat(await self._describe())
                self._lease_until = time.monotonic() + self._engine_context.settings.heartbeat_timeout_s
            await asyncio.sleep(self._activities.get_heartbeat_interval_s())

    async def _describe(self) -> dict[str, Any]:
        """The details of the next heartbeat."""
        host = self._host
        if host is None or host.driver.is_closed:
            return self._details
        listing = asyncio.run_coroutine_threadsafe(_list_steps(host), self._activities.loop)
        try:
            async with asyncio.timeout(self._activities.get_heartbeat_interval_s()):
                self._details = {STARTED_KEY: True, STEPS_KEY: await asyncio.wrap_future(listing)}
        except Exception as error:  # the loop is blocked, or arguments cannot be shown
            log.debug("the steps of run %r in flight cannot be shown: %r", self._info.workflow_id, error)
        return self._details

    def has_lease(self) -> bool:
        """Whether Temporal cannot have given the activity to another worker for lack of heartbeats."""
        return time.monotonic() < self._lease_until

    # The program, on the loop of the process's own code

    async def _execute_program(self) -> ProgramEnd:
        info, engine = self._info, self._activities.engine
        run_id, execution_id = info.workflow_id, info.workflow_run_id
        assert run_id is not None
        assert execution_id is not None
        fence = Fence(identifiers.parse_program_id(info.activity_id), info.attempt)
        worker = compute_worker_id(engine.client.identity)
        sender = ProgramSender(fence, worker, fence.activity + fence.attempt - 1, self._is_again)
        journal = ProgramLog(engine.client, engine.store.target, run_id, execution_id, sender, engine.max_value)
        # No messages were sent before the first one, so it needs no answer before it begins.
        opened = MessagesAnswer() if fence == FIRST else await journal.request_messages(0, should_wait=False)
        if opened.is_fenced:
            return ProgramEnd(LOST)
        events = await fetch_events(engine.client, run_id, execution_id)
        started = events[0].workflow_execution_started_event_attributes
        fields = started.memo.fields
        run_memo: dict[str, Any] = load_json(fields[RUN_MEMO_KEY]) if RUN_MEMO_KEY in fields else {}
        definition = self._engine_context.get_definition(started.workflow_type.name, run_memo.get("version", ""))
        run = build_run(
            definition,
            run_memo,
            started.input.payloads,
            id=run_id,
            execution_id=execution_id,
            started_at=events[0].event_time.ToDatetime(UTC).timestamp(),
        )
        recorded = (await asyncio.to_thread(partial(read_outcomes, events))).program or ProgramJournal()
        run = replace(run, epoch=sender.epoch, cancel_state=_get_cancel_state(recorded, opened))
        if fence.attempt > 1 and not self._is_released:
            outcomes = [record for record in recorded.records if record.kind is not RecordKind.CALL]
            self._engine_context.run_log.log_takeover(run, record_count=len(outcomes))
        signals = [message for message in opened.messages if isinstance(message, Signal)]
        host = self._host = ProgramHost(
            engine, run, definition, journal, execution_id, budgets_from_memo(run_memo, run_id), self, worker
        )
        if fence.attempt > 1 and host.driver.telemetry is not None:
            host.driver.telemetry.note_takeover(recorded.records, host.clock.now())
        if self._is_released:
            return ProgramEnd(RELEASED)
        history = History(recorded.records, recorded.attempts, signals)
        return await host.execute(history, opened.messages, len(opened.messages))


def _get_cancel_state(recorded: ProgramJournal, opened: MessagesAnswer) -> CancelState:
    if any(record.kind is RecordKind.CANCEL for record in recorded.records):
        return CancelState.RECORDED
    return CancelState.REQUESTED if CANCEL_NOTICE in opened.messages else CancelState.NONE


async def _list_steps(host: ProgramHost) -> list[StepInFlight]:
    return [] if host.driver.is_closed else host.list_steps()
