"""The polling loop of an engine: what there is to do for it in the store.

The loop waits until another process has written something, the next parked run is due, or it is time to look for dead
workers. Then ``poll`` takes what there is to take: runs to claim and signals for held runs (``claims``), ends of runs
that this process waits for, and ticks of schedules (``schedule_ticker``). These parts do not depend on each other: one
that fails does not keep schedules from firing. The store reports only what *others* write, so whatever changes
something in this process calls ``wake``.

When a newer Holdfast has migrated the store (``SchemaTooNew``), nothing can be recorded any more, and the loop ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.background_tasks import keep_running
from holdfast.engine.announcements import Announcements
from holdfast.engine.claims import Claims
from holdfast.engine.schedule_ticker import ScheduleTicker
from holdfast.errors import SchemaTooNew, StoreError, StoreUnavailable
from holdfast.stores.run_waiters import RunWaiters

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

REAP_INTERVAL_S = 0.2
"""Seconds between two looks for dead workers."""
FREED_SLOT_POLL_DELAY_S = 1.0
"""Seconds after which the store is polled again if runs have left memory since the last poll. Their queue may have been
given limits while they were held: then one of them has freed a slot of the queue, and this worker does not know."""


class Poller:
    """The loop, and what one turn of it does."""

    def __init__(
        self,
        host: JournalEngine,
        announcements: Announcements,
        claims: Claims,
        ticker: ScheduleTicker,
        run_waiters: RunWaiters,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        """The loop's task, once it was started."""
        self.background_tasks: set[asyncio.Task[Any]] = set()
        self.has_freed_slots = False
        """Runs have left memory since the last poll."""
        self._host = host
        self._announcements = announcements
        self._claims = claims
        self._ticker = ticker
        self._run_waiters = run_waiters
        self._lock = asyncio.Lock()
        self._is_wake_scheduled = False
        self._last_poll_at = 0.0
        self._should_retry = False
        """The last poll failed: what it would have found is still there, and the store may report no new change."""

    def start(self) -> None:
        """Start the loop."""
        self.task = self._host.loop.create_task(self._run(), name="holdfast-engine")

    def stop(self) -> None:
        """End the loop, and everything in the background."""
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        for task in list(self.background_tasks):
            task.cancel()

    @property
    def is_cancelling(self) -> bool:
        """Whether the loop's task was cancelled: the end of ``asyncio.run`` cancels all tasks at once."""
        return self.task is not None and self.task.cancelling() > 0

    def wake(self) -> None:
        """Something in this process changed what there is to do: poll at once."""
        if not self._is_wake_scheduled and not self._host.is_closed:
            self._is_wake_scheduled = True
            self.run_in_background(self.poll())

    async def _run(self) -> None:
        looking = keep_running(self._poll_forever, "looking for work", log, sleep=self._host.clock.sleep)
        try:
            # In a task of its own: a timeout that expires there must not look as if this task was cancelled.
            await self._host.loop.create_task(looking)
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task when its main coroutine has ended: the moment to close cleanly.
            if not self._host.is_closed:
                await self._host.close()
            raise

    async def _poll_forever(self) -> None:
        host, claims, ticker = self._host, self._claims, self._ticker
        is_failing = False
        has_changed = True
        while True:
            try:
                reaped = await host.membership.reap_dead()
                is_due = claims.is_due() or claims.is_check_due() or ticker.is_due()
                if has_changed or self._should_retry or reaped.worker_ids or is_due or self._should_poll_freed_slots():
                    self._should_retry = False
                    try:
                        await self.poll()
                    except BaseException:
                        self._should_retry = True  # until a poll succeeds
                        raise
                awaited_ids = self._run_waiters.list_awaited_ids(exclude=host.held_runs.drivers_by_run_id)
                has_changed = await host.store.wait_for_change(
                    ticker.get_wait_s(claims.get_wait_s(REAP_INTERVAL_S)),
                    follow_runs=bool(host.change_feed) or bool(awaited_ids),
                )
                if has_changed:
                    ticker.notify_changed()
                    host.change_feed.notify_all()
                is_failing = False
            except SchemaTooNew as error:
                host.stop_on_newer_schema(error)
                return
            except StoreError as error:
                if not is_failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                is_failing = True
                await host.clock.sleep(0.5)

    def _should_poll_freed_slots(self) -> bool:
        return self.has_freed_slots and self._host.clock.monotonic() - self._last_poll_at > FREED_SLOT_POLL_DELAY_S

    async def poll(self) -> None:
        """Take what there is to take."""
        async with self._lock:
            self._is_wake_scheduled = self.has_freed_slots = False
            self._last_poll_at = self._host.clock.monotonic()
            if self._host.is_draining:
                return
            failures: list[Exception] = []
            for part in (
                self._announcements.announce,
                self._claims.release_unacknowledged,
                self._claims.claim_due,
                self._claims.fetch_changes,
                partial(self._run_waiters.poll, self._host.store, exclude=self._host.held_runs.drivers_by_run_id),
                self._ticker.fire_due,
            ):
                try:
                    await part()
                except StoreUnavailable:
                    raise  # the other parts would fail, too
                except Exception as error:
                    failures.append(error)  # it must not keep the other parts from being done
            if failures:
                raise failures[0]

    def run_in_background(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run something in a task, and handle its errors."""
        task = self._host.loop.create_task(coro)
        self.background_tasks.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[Any]) -> None:
        self.background_tasks.discard(task)
        self._is_wake_scheduled = False
        if not task.cancelled() and (error := task.exception()) is not None:
            self._should_retry = True
            is_known = isinstance(error, StoreError)
            log.warning("looking for work failed; it is tried again: %s", error, exc_info=None if is_known else error)
