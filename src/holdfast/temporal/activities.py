"""What Temporal's workers hand out: steps to be carried out, and runs to be waited for.

All of this runs in the thread of the workers, which nothing of the user's can block. While an activity is at work, it
tells Temporal so several times within the time that Temporal is patient for; when the process is dead, nobody does, and
another worker is handed the activity in seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from holdfast.codec import check_size, describe_error, encode_error
from holdfast.core.retry_policy import RetryPolicy
from holdfast.core.states import RunState
from holdfast.engine.definitions import StepCall
from holdfast.errors import FenceLost, HoldfastError, NonDeterminismError, ValueTooLarge
from holdfast.run_log import RunLog
from holdfast.stores.rules import death_error
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import data_of, raw
from holdfast.temporal.awaited_run import AwaitedRun, Found
from holdfast.temporal.engine_context import Open, Site
from holdfast.temporal.error_truncation import short_enough, short_message
from holdfast.temporal.rebuilt_runs import Recall
from holdfast.temporal.step_attempt import OnLoop, Outcome, Past, StepAttempt, StepHouse

log = logging.getLogger("holdfast.engine")

BEATS = 5
"""Heartbeats within the time after which Temporal gives a silent activity to somebody else."""

MISSES = 6
"""How often, over half a minute, workers may look for what a step is before it has failed."""

DECLINED_FOR_S = 1.0
"""The delay before Temporal offers a declined step again. A worker whose event loop is blocked declines steps."""

CLEAN_UP = 10.0
"""Seconds that a step that was stopped gets to clean up."""


class Activities:
    """Those of one engine.

    Args:
        site: what they share with its runs.
        house: the engine, as steps see it.
        loop: the program's event loop, on which steps run.
        recall: finds commands of runs that are not in memory.
        client: the way to Temporal.
        find_run: looks for a run, or waits for its end.
        is_stuck: whether the program's loop has been blocked for too long. Then nobody tells Temporal that steps are at
            work, and it hands them to other workers.
    """

    def __init__(
        self,
        site: Site,
        house: StepHouse,
        loop: asyncio.AbstractEventLoop,
        recall: Recall,
        client: Client,
        find_run: Callable[[AwaitedRun], Coroutine[Any, Any, Found | None]],
        is_stuck: Callable[[], bool],
    ) -> None:
        self._site = site
        self._house = house
        self._loop = loop
        self._recall = recall
        self._client = client
        self._find_run = find_run
        self.is_stuck = is_stuck
        self._handing_over: list[Callable[[], None]] = []
        self._waiting: set[asyncio.Task[Found | None]] = set()
        self._is_leaving = False

    @activity.defn(dynamic=True)
    async def carry_out(self, args: Sequence[RawValue]) -> RawValue:
        """Whatever the activity is."""
        if activity.info().activity_type == identifiers.AWAIT_RUN:
            return await self._wait(AwaitedRun.from_json(data_of(args[0].payload)))
        return await self._step()

    async def _wait(self, awaited: AwaitedRun) -> RawValue:
        async def beat() -> None:
            while True:
                await asyncio.sleep(self.beat_every())
                activity.heartbeat()

        beating = asyncio.create_task(beat())
        finding = asyncio.create_task(self._find_run(awaited))
        try:
            if self._is_leaving:
                raise _handed_over()
            self._waiting.add(finding)
            return raw(self._found(awaited, await finding))
        except asyncio.CancelledError:
            if self._is_leaving:
                raise _handed_over() from None
            raise
        finally:
            self._waiting.discard(finding)
            finding.cancel()
            beating.cancel()

    def _found(self, awaited: AwaitedRun, found: Found | None) -> bytes:
        """What is told of a run. If that is too large for a history, so much: else it would be tried again for ever."""
        answer = AwaitedRun.answer(found)
        try:
            return check_size(answer, f"how run {awaited.run_id!r} ended", self._house.max_value)
        except ValueTooLarge as error:
            assert found is not None
            told = found._replace(state=RunState.FAILED, output=None, error=encode_error(error))
            return AwaitedRun.answer(told)

    async def _step(self) -> RawValue:
        info = activity.info()
        assert info.workflow_run_id is not None
        position = identifiers.position_of(info.activity_id)
        past = Past.of(info.heartbeat_details[0] if info.heartbeat_details else None).beginning(info.attempt)
        at_work = _AtWork(self, info, past)
        is_once = info.retry_policy is not None and info.retry_policy.maximum_attempts == 1
        if self.is_stuck() and not is_once:
            raise at_work.declined()
        beating = asyncio.create_task(at_work.beat())
        try:
            try:
                if info.attempt > 1:
                    # If the step takes this worker down in an instant, that must have been counted.
                    await self.keep(info, past)
                begun = await self._begun(info, position)
            except (HoldfastError, RPCError) as error:
                raise at_work.missed(error) from None
            if past.deaths >= begun.run.max_deliveries:
                in_flight = f"step {begun.command.name!r} was in flight"
                payload = death_error(begun.run.id, past.deaths, alone=in_flight)
                raise _failure(Outcome(payload), RunState.DEAD)
            if past.deaths:
                self.run_log.log_takeover(begun.run, step=begun.command.name)
            self._site.begin(info.workflow_run_id, position, at_work.unwanted)
            return await at_work.make(begun, self._house, self._loop)
        finally:
            self._site.end(info.workflow_run_id, position)
            beating.cancel()

    async def _begun(self, info: activity.Info, position: int) -> Open:
        """The command that the activity is for."""
        assert info.workflow_id is not None
        assert info.workflow_run_id is not None
        found = self._site.find(info.workflow_run_id, position)
        if found is None or found.command.context is None:
            found = await self._recall.find(info.workflow_id, info.workflow_run_id, position)
        call = found.command.call
        if not isinstance(call, StepCall) or call.step.name != info.activity_type:
            raise NonDeterminismError(
                f"the code of this worker has {found.command.kind.label} {found.command.name!r} in its place, so it "
                f"has changed since the step was begun. Ask `patched` which way to take where code changes under runs, "
                f"or let a worker with the code of that time go on with the run"
            )
        return found

    async def keep(self, info: activity.Info, past: Past) -> None:
        """Have Temporal keep what is known of the attempts so far, now."""
        with suppress(AsyncActivityCancelledError):  # the SDK is told that as well, and stops it
            await self._client.get_async_activity_handle(task_token=info.task_token).heartbeat(past.kept())

    @property
    def run_log(self) -> RunLog:
        """What logs the fate of steps."""
        return self._site.run_log

    def beat_every(self) -> float:
        """Seconds between two heartbeats."""
        return self._site.settings.heartbeat / BEATS

    # Stopping

    def came(self, hand_over: Callable[[], None]) -> None:
        """A step is at work, which ``hand_over`` stops."""
        self._handing_over.append(hand_over)
        if self._is_leaving:
            hand_over()

    def went(self, hand_over: Callable[[], None]) -> None:
        """It is not any more."""
        self._handing_over.remove(hand_over)

    @property
    def at_work(self) -> int:
        """How many steps are at work."""
        return len(self._handing_over)

    def hand_over(self) -> None:
        """The worker stops: whatever is at work, or comes to it now, is to be done by another."""
        self._is_leaving = True
        for stop in list(self._handing_over):
            stop()
        for finding in list(self._waiting):
            finding.cancel()


class _AtWork:
    """One activity that carries out a step."""

    def __init__(self, activities: Activities, info: activity.Info, past: Past) -> None:
        self._activities = activities
        self._info = info
        self._past = past
        self._attempt: StepAttempt | None = None
        self._running: OnLoop | None = None
        self._handed_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """In which the SDK knows which activity this is."""

    async def beat(self) -> None:
        """Tell Temporal again and again that somebody is at work. A short step need not: that it began is known."""
        while True:
            await asyncio.sleep(self._activities.beat_every())
            if not self._activities.is_stuck():
                self._beat_now()

    def _beat_now(self) -> None:
        activity.heartbeat((self._past if self._attempt is None else self._attempt.past).kept())

    async def make(self, begun: Open, house: StepHouse, loop: asyncio.AbstractEventLoop) -> RawValue:
        """Make an attempt, and tell what came of it."""
        assert self._info.workflow_run_id is not None
        attempt = self._attempt = StepAttempt(
            house, begun, self._info.workflow_run_id, self._past, self._beat_soon, self._keep
        )
        self._loop = loop
        context = begun.command.context
        running = self._running = OnLoop(
            loop, attempt.make, contextvars.Context() if context is None else context.copy()
        )
        self._activities.came(self._hand_over)
        try:
            outcome = await asyncio.shield(running.done)
        except asyncio.CancelledError:
            return await self._stopped(attempt, running)
        finally:
            self._activities.went(self._hand_over)
        if outcome.error is None:
            return _told(outcome)
        outcome = outcome._replace(payload=short_enough(outcome.payload, house.max_value))
        assert outcome.error is not None
        failure = self._failed(attempt, outcome, outcome.error)
        if failure.non_retryable:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(attempt.settle(), loop))
        raise failure

    def _beat_soon(self, past: Past) -> None:
        """The step has something new to be kept; called from whatever thread."""
        self._home.call_soon_threadsafe(self._beat_now, context=self._context)

    async def _keep(self, past: Past) -> None:
        """The same, on the program's loop, and waited for."""
        self._beat_soon(past)
        asked = asyncio.run_coroutine_threadsafe(self._activities.keep(self._info, past), self._home)
        await asyncio.wrap_future(asked)

    async def _stopped(self, attempt: StepAttempt, running: OnLoop) -> RawValue:
        """The step is to stop: because nobody wants its outcome, because it is another's now, or the worker stops."""
        details = activity.cancellation_details()
        if attempt.stopped is None:
            is_wanted_elsewhere = details is not None and not details.cancel_requested
            lost = FenceLost(f"step {attempt.step.name!r} of run {attempt.run.id!r} must stop")
            attempt.stopped = lost if is_wanted_elsewhere else asyncio.CancelledError()
        running.stop()
        await self._clean_up(running)
        if running.done.done() and not running.done.cancelled() and running.done.exception() is None:
            outcome = running.done.result()
            if outcome.error is None and (attempt.step.compensation is not None or self._handed_over):
                return _told(outcome)  # it was done all the same, and may have to be undone
        if not isinstance(attempt.stopped, FenceLost):
            await self._give_back(attempt)
        if details is None and not self._handed_over:
            # Stopped by its own run, in this process, before Temporal has told that it is to be cancelled.
            self._beat_now()
            with suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(activity.wait_for_cancelled(), CLEAN_UP)
            details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            raise asyncio.CancelledError
        # Another worker goes on with it, or nobody does because the run is over: then nobody hears this, either.
        attempt.past = replace(attempt.past, handed=attempt.past.handed + 1)
        self._beat_now()  # what was told last goes with the failure
        raise _handed_over()

    async def _clean_up(self, running: OnLoop) -> None:
        """Let it come to its end, whoever else wants it to stop meanwhile."""
        until = self._home.time() + CLEAN_UP
        while not running.done.done() and (left := until - self._home.time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running.done], timeout=left)

    def missed(self, error: Exception) -> ApplicationError:
        """It cannot be found out what the step is: perhaps another worker can, or this one later."""
        info, missed = self._info, self._past.missed + 1
        self._past = replace(self._past, missed=missed)
        self._beat_now()  # what was told last goes with the failure
        return ApplicationError(
            f"step {info.activity_type!r} of run {info.workflow_id!r} cannot be found again: {error}",
            type=type(error).__name__,
            non_retryable=missed >= MISSES,
            next_retry_delay=timedelta(seconds=2 ** (missed - 1)),
        )

    def declined(self) -> ApplicationError:
        """The program's loop is blocked, perhaps by this very step: another worker is to make the attempt."""
        self._past = replace(self._past, handed=self._past.handed + 1)
        self._beat_now()  # the failure carries the last heartbeat
        return _handed_over(after=DECLINED_FOR_S)

    async def _give_back(self, attempt: StepAttempt) -> None:
        """Nobody carries the step out any more. If that cannot be told, others find out (see ``budgets``)."""
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(attempt.give_back(), self._loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(asked), CLEAN_UP)
        except Exception as error:
            log.debug("what step %r had reserved was not given back: %s", attempt.step.name, error)

    def unwanted(self) -> None:
        """Nobody wants the outcome any more; called from whatever thread."""
        self._home.call_soon_threadsafe(self._stop, asyncio.CancelledError())

    def _hand_over(self) -> None:
        self._handed_over = True
        self._stop(FenceLost("the worker stops"))

    def _stop(self, why: BaseException) -> None:
        if self._attempt is not None and self._attempt.stopped is None:
            self._attempt.stopped = why
        if self._running is not None:
            self._running.stop()

    def _failed(self, attempt: StepAttempt, outcome: Outcome, error: BaseException) -> ApplicationError:
        """Whether another attempt is made, and when, is decided by the step's own policy."""
        retry: RetryPolicy = attempt.step.retry
        tried, now = attempt.number, attempt.engine.clock.now()
        since = now if attempt.past.failing_since is None else attempt.past.failing_since
        try:
            delay = retry.next_wait(tried, error, random.random(), now - since)
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # the user's own predicate
            delay, outcome = None, Outcome(encode_error(raised))
        run_log, run, step = self._activities.run_log, attempt.run, attempt.step.name
        if delay is None:
            run_log.log_step_failure(run, step, tried, outcome.payload)
            return _failure(outcome, RunState.FAILED)
        run_log.log_retry(run, step, tried, retry.retries, delay, outcome.payload)
        told = describe_error(outcome.payload)
        words = f"{told.type.rpartition('.')[2]}: {told.message}"[:500]
        attempt.past = replace(attempt.past, failures=tried, error=words, failing_since=since)
        self._beat_now()  # what was told last goes with the failure
        return _failure(outcome, RunState.FAILED, again_after=delay)


def _told(outcome: Outcome) -> RawValue:
    return raw(outcome.payload, {"usage": outcome.usage} if outcome.usage else None)


def _handed_over(after: float = 0.001) -> ApplicationError:
    return ApplicationError(
        "not by this worker any more",
        type=identifiers.HANDED_OVER,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=after),
    )


def _failure(outcome: Outcome, state: RunState, again_after: float | None = None) -> ApplicationError:
    told = describe_error(outcome.payload)
    name = told.type.rpartition(".")[2]
    return ApplicationError(
        short_message(told.message),
        raw(outcome.payload, {identifiers.ENDING: state}),
        type=name,
        category=ApplicationErrorCategory.BENIGN,  # it is the step's own affair: the SDK need not complain of it
        non_retryable=again_after is None,
        next_retry_delay=None if again_after is None else timedelta(seconds=max(0.001, again_after)),
    )
