"""The dispatcher of a namespace: listeners wait here until they are handed a run.

All listeners that wait on an address through this server form one line, and one task looks for work for them. So a
change in the store costs one query for each address, however many listeners wait. The task first asks whether anything
is due, and only then claims, in one transaction for several listeners: for a few at first, and for more as long as
there is a run for each. The same transaction writes the deliveries to the histories of the runs, where the store can.
If a listener has left meanwhile, its run is released, and the delivery does not count; so a stream stays in line while
it reports other things.

The store reports what other processes write. Writes that go through this server call ``notify``. The dispatcher also
polls now and then, since runs become due by the clock as well.

A listener that reconnects may find a run that is still being handed to its previous stream. The run is then either
released here or sent over the new stream, whichever comes first, but never both.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from holdfast.background_tasks import keep_running
from holdfast.errors import StoreError, UsageError
from holdfast.server.caches.lru_dict import LruDict
from holdfast.server.deliveries.delivery import ClaimedDelivery, get_delivery_id
from holdfast.server.deliveries.delivery_watcher import DeliveryWatcher
from holdfast.services.problems import Problem
from holdfast.stores import worker_deaths
from holdfast.stores.change_feed import Subscription
from holdfast.stores.operations import AppendLiveEvents, ReleaseRun, Run
from holdfast.stores.served_versions import make_served_name

if TYPE_CHECKING:
    from holdfast.server.deliveries.listener_session import ListenerSession
    from holdfast.server.tenants import Tenant

log = logging.getLogger("holdfast.server")

POLL_INTERVAL_S = 1.0
MIN_POLL_GAP_S = 0.01
"""Minimum seconds between a poll that finds nothing and the next one, unless a run was started through this server: a
busy store reports changes all the time."""
FULL_QUEUE_RETRY_S = 0.1
"""Seconds until the next poll if something is due, but cannot be claimed because its queue is full."""
FIRST_CLAIM_SIZE = 4
"""Listeners that the first claim after an idle time is for. Each claim that finds a run for all of them is followed by
one for four times as many."""
MAX_CLAIM_SIZE = 64
MAX_REMEMBERED_DECISIONS = 10_000
"""Deliveries for which it is remembered whether they were released or sent again."""


@dataclass(slots=True, eq=False)
class PendingListener:
    """A listener that waits for a delivery."""

    session: ListenerSession
    active_deliveries: Collection[str]
    """The deliveries that it already holds while it waits."""
    delivery: asyncio.Future[ClaimedDelivery] = field(default_factory=asyncio.Future[ClaimedDelivery])

    @property
    def is_idle(self) -> bool:
        """Whether the listener holds nothing."""
        return not self.active_deliveries

    @property
    def suspect_delay_s(self) -> float:
        """Seconds for which isolated runs must have been due before it gets one: see ``Claims.claim``."""
        return 0.0 if self.is_idle else worker_deaths.ISOLATED_WAIT_LEASES * self.session.address.lease


class Dispatcher:
    """Hands the runs of one namespace to its listeners."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._pending: dict[str, deque[PendingListener]] = {}
        """By address, as are the tasks and subscriptions."""
        self._dispatch_tasks: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._starts: dict[str, Subscription] = {}
        """By address: notified when a run was started through this server, which need not wait for the next poll."""
        self._nothing_due_until: dict[str, float] = {}
        """By address: until when no run becomes due, unless there is a notification. Unknown during a poll."""
        self._handover_tasks: set[asyncio.Task[None]] = set()
        self._decisions: LruDict[str, Literal["released", "sent again"]] = LruDict(MAX_REMEMBERED_DECISIONS)
        """By delivery id."""
        self.watcher = DeliveryWatcher(tenant)

    def notify(self, address: str | None = None) -> None:
        """There may be work on an address, or a delivery may have ended; ``None``: on any address."""
        for name, subscription in self._subscriptions.items():
            if address in (None, name):
                subscription.notify()

    def notify_start(self, address: str) -> None:
        """A run was started on an address."""
        if (subscription := self._starts.get(address)) is not None:
            subscription.notify()
            self.notify(address)

    def has_nothing_due(self, address: str) -> bool:
        """Whether no run of an address waits for a listener, as far as is known."""
        subscription = self._subscriptions.get(address)
        if subscription is None or subscription.is_notified:
            return False
        return self._nothing_due_until.get(address, 0.0) > self._tenant.store.now()

    async def next_delivery(self, session: ListenerSession, active_deliveries: Collection[str]) -> ClaimedDelivery:
        """The next run for a listener, as soon as there is one."""
        listener = self.join(session, active_deliveries)
        try:
            return await listener.delivery
        except BaseException:
            await self.leave(listener)
            raise

    def join(self, session: ListenerSession, active_deliveries: Collection[str]) -> PendingListener:
        """Put a listener in the line of its address, until it has a delivery or leaves."""
        address, listener = session.address.name, PendingListener(session, active_deliveries)
        self._pending.setdefault(address, deque()).append(listener)
        self._ensure_dispatching(address)
        return listener

    def _ensure_dispatching(self, address: str) -> None:
        """Look for work, unless it is known that there is none."""
        task = self._dispatch_tasks.get(address)
        if task is None or task.done():
            description = f"address {address!r}: looking for work"
            dispatching = keep_running(partial(self._dispatch, address), description, log, stop_on=UsageError)
            self._dispatch_tasks[address] = asyncio.create_task(dispatching)
        elif not self.has_nothing_due(address):
            self.notify(address)

    async def choose_listener(self, address: str) -> PendingListener | None:
        """Take a listener out of the line, for a run that is about to be started.

        It is one that no other run waits for: nothing else is due, or it is too far behind for the next claim. Call
        ``hand_over`` or ``rejoin`` afterwards.
        """
        while line := self._pending.get(address):
            if self.has_nothing_due(address):
                listener = line.popleft()
            elif len(line) > MAX_CLAIM_SIZE:
                listener = line.pop()
            else:
                break
            if not listener.delivery.done() and not await _fail_if_key_invalid(listener):
                return listener
        return None

    def rejoin(self, listener: PendingListener) -> None:
        """Put a listener that got nothing back to the head of the line."""
        if not listener.delivery.done():
            self._pending.setdefault(listener.session.address.name, deque()).appendleft(listener)
            self._ensure_dispatching(listener.session.address.name)

    async def hand_over(self, listener: PendingListener, delivery: ClaimedDelivery) -> None:
        """Give a listener the run that was claimed for it. If it has left meanwhile, the run is released."""
        if listener.delivery.done():
            await self.release(delivery.run)
        else:
            listener.delivery.set_result(delivery)

    async def leave(self, listener: PendingListener) -> None:
        """Take a listener out of the line. A run that it was handed is released."""
        delivery = listener.delivery
        if not delivery.cancel() and not (delivery.cancelled() or delivery.exception()):
            await self.release(delivery.result().run)
        _remove_pending(self._pending.get(listener.session.address.name, deque()), listener)

    async def close(self) -> None:
        """Stop all tasks."""
        for task in self._dispatch_tasks.values():
            task.cancel()
        await asyncio.gather(*self._dispatch_tasks.values(), *self._handover_tasks, return_exceptions=True)
        self._dispatch_tasks.clear()
        await self.watcher.close()

    async def _dispatch(self, address: str) -> None:
        """Look for work for as long as a listener waits for it."""
        loop = asyncio.get_running_loop()
        with self._tenant.connections.subscribe(f"address {address}") as subscription:
            self._subscriptions[address] = subscription
            starts = self._starts[address] = Subscription()
            try:
                while line := self._pending.get(address):
                    subscription.clear()
                    starts.clear()
                    self._nothing_due_until.pop(address, None)
                    polled_at, pending_count = loop.time(), len(line)
                    try:
                        wait = await self._dispatch_due(address, line)
                    except StoreError as error:
                        log.warning("address %r: the store cannot be asked for work: %s", address, error)
                        wait = POLL_INTERVAL_S
                    has_handed_out = len(line) < pending_count
                    await subscription.wait(min(wait, POLL_INTERVAL_S))
                    if not has_handed_out and (gap_s := polled_at + MIN_POLL_GAP_S - loop.time()) > 0:
                        await starts.wait(gap_s)
                self._pending.pop(address, None)
                self._dispatch_tasks.pop(address, None)
            finally:
                del self._subscriptions[address], self._starts[address]
                self._nothing_due_until.pop(address, None)

    async def _dispatch_due(self, address: str, pending: deque[PendingListener]) -> float:
        """Hand out what is due. Returns the seconds until the next poll makes sense."""
        store, served, size = self._tenant.store, [make_served_name(address, "")], FIRST_CLAIM_SIZE
        while pending:
            due = await store.claims.get_next_wake_at(workflows=served, queues=None)
            if due is None or due > store.now():
                self._nothing_due_until[address] = float("inf") if due is None else due
                return POLL_INTERVAL_S if due is None else min(POLL_INTERVAL_S, due - store.now())
            listeners = await self._choose_listeners(pending, size)
            if not listeners:
                continue
            claimed = await self._claim(served, listeners)
            if not claimed:
                # What is due may be isolated, and thus only for a listener that holds nothing.
                idle = [one for one in pending if one.is_idle and not one.delivery.done()]
                if not listeners[0].is_idle and idle and not await _fail_if_key_invalid(idle[0]):
                    claimed = await self._claim(served, idle[:1])
            if not claimed:
                return FULL_QUEUE_RETRY_S
            for listener, _ in claimed:
                _remove_pending(pending, listener)
            handover = asyncio.create_task(self._deliver(claimed))
            self._handover_tasks.add(handover)  # the next listeners in line need not wait for it
            handover.add_done_callback(self._handover_tasks.discard)
            if len(claimed) == len(listeners):
                size = min(MAX_CLAIM_SIZE, 4 * size)
        return POLL_INTERVAL_S

    async def _choose_listeners(self, pending: deque[PendingListener], size: int) -> list[PendingListener]:
        """The next listeners in line whose keys are valid; those that hold nothing first, since they get any run."""
        chosen: list[PendingListener] = []
        for listener in list(pending):
            if len(chosen) == size:
                break
            if listener.delivery.done() or await _fail_if_key_invalid(listener):
                _remove_pending(pending, listener)
            else:
                chosen.append(listener)
        return sorted(chosen, key=lambda listener: not listener.is_idle)

    async def _claim(
        self, workflows: list[str], listeners: Sequence[PendingListener]
    ) -> list[tuple[PendingListener, Run]]:
        """Claim a run for each of these listeners, as far as there are any."""
        by_worker: dict[int, deque[PendingListener]] = {}
        workers: list[int] = []
        for listener in listeners:
            workers.append(worker := await listener.session.ensure_registered())
            by_worker.setdefault(worker, deque()).append(listener)
        runs = await self._tenant.store.claims.claim_each(
            workers,
            workflows=workflows,
            suspect_delay_s=listeners[0].suspect_delay_s,
            make_event=lambda run: by_worker[run.owner or 0][0].session.make_delivered_event(run.epoch),
        )
        return [(by_worker[run.owner].popleft(), run) for run in runs if run.owner is not None]

    async def _deliver(self, claimed: Sequence[tuple[PendingListener, Run]]) -> None:
        store = self._tenant.store
        try:
            histories = await store.get_histories([run.key for _, run in claimed])
            if not store.claims.appends_events:
                await self._tenant.commits.call([_make_event_op(listener, run) for listener, run in claimed])
        except Exception as error:
            if len(claimed) > 1:  # one of them may be at fault
                for pair in claimed:
                    await self._deliver([pair])
                return
            [(listener, run)] = claimed
            is_known = isinstance(error, StoreError)
            log.warning(
                "run %r was claimed, and could not be handed over: %s", run.id, error,
                exc_info=None if is_known else error,
            )  # fmt: skip
            listener.delivery.cancel()
            await self.release(run)
            return
        for (listener, run), history in zip(claimed, histories, strict=True):
            if listener.delivery.done():
                await self.release(run)
            else:
                listener.delivery.set_result(ClaimedDelivery(run, history))

    def may_send_again(self, id: str) -> bool:
        """Whether a delivery that its listener does not know can be sent to it. Then it is no longer released here."""
        return self._decisions.setdefault(id, "sent again") == "sent again"

    async def release(self, run: Run) -> None:
        """Release a claimed run that was not handed over, unless its listener has found it meanwhile."""
        id = get_delivery_id(run)
        if self._decisions.setdefault(id, "released") == "sent again":
            return
        try:
            await self._tenant.store.commit([ReleaseRun(run.key, run.epoch)])
        except Exception as error:
            self._decisions.pop(id, None)
            log.warning("run %r is delivered again only when its lease is over: %r", run.id, error)
        self.notify(run.workflow)


def _make_event_op(listener: PendingListener, run: Run) -> AppendLiveEvents:
    return AppendLiveEvents(run.key, run.epoch, (listener.session.make_delivered_event(run.epoch),))


async def _fail_if_key_invalid(listener: PendingListener) -> bool:
    """Fail the wait of a listener whose key became invalid while it waited. Returns whether it did."""
    try:
        await listener.session.call.check_key()
    except Problem as problem:
        if not listener.delivery.done():
            listener.delivery.set_exception(problem)
        return True
    return False


def _remove_pending(pending: deque[PendingListener], listener: PendingListener) -> None:
    if listener in pending:
        pending.remove(listener)
