"""The desk: where listeners wait, and are handed runs.

All who wait on an address through this server stand in one line, and one task looks for work for them: however many
listen, a change in the store costs one look per address. A look asks first whether anything is due, and claims only
then, for one listener at a time. A listener that has gone meanwhile gives the run back, and that counts for nothing.

The store tells when somebody else has written; what goes through this server is told by a nudge; and now and then the
desk looks for itself, since runs become due by the clock as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from holdfast.background_tasks import keep_running
from holdfast.errors import StoreError, UsageError
from holdfast.server.deliveries.delivery import Held
from holdfast.server.deliveries.delivery_watcher import Holders
from holdfast.server.http.problems import Problem
from holdfast.server.tenants import Tenant
from holdfast.stores.change_feed import Bell
from holdfast.stores.contract import Store
from holdfast.stores.live_events import DELIVERED
from holdfast.stores.operations import Notice, ReleaseRun, Run, TellNotices
from holdfast.stores.served_versions import served_name

log = logging.getLogger("holdfast.server")

LOOK = 1.0
"""Seconds after which the desk looks for itself."""
GATHER = 0.01
"""Seconds between two looks: on a busy store something is new all the time."""
HELD_UP = 0.1
"""Seconds until the next look when something is due, and yet nothing could be claimed: its queue is full."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A listener that waits."""

    worker: Callable[[], Awaitable[int]]
    """Its number in the store, registered when there is something for it."""
    shown: str
    remote: str
    check_key: Callable[[], Awaitable[None]] | None = None
    """Raises ``Problem`` if it may take nothing any more: it may have waited for long."""
    suspects_after: Callable[[], float | None] = lambda: 0.0
    """Seconds for which isolated runs must have been due for it to be handed one: see ``Store.claim``."""
    got: asyncio.Future[Held] = field(default_factory=asyncio.Future[Held])


class Desk:
    """Where listeners of one namespace wait."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._lines: dict[str, deque[Waiting]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._bells: dict[str, set[Bell]] = {}
        self._handing: set[asyncio.Task[None]] = set()
        """What is on its way to listeners."""
        self.holders = Holders(tenant)

    def nudge(self, address: str | None = None) -> None:
        """There may be something to take, or a delivery may be over; ``None``: on any address."""
        for name, bells in self._bells.items():
            if address in (None, name):
                for bell in bells:
                    bell.ring()

    @contextmanager
    def bell(self, address: str) -> Generator[Bell]:
        """A bell that rings at a nudge of this address, and whenever something is new in the store."""
        with self._tenant.connection.listen(f"address {address}") as bell:
            self._bells.setdefault(address, set()).add(bell)
            try:
                yield bell
            finally:
                self._bells[address].discard(bell)
                if not self._bells[address]:
                    del self._bells[address]

    async def next(self, address: str, waiting: Waiting) -> Held:
        """The next run for this listener, whenever there is one."""
        line = self._lines.setdefault(address, deque())
        line.append(waiting)
        task = self._tasks.get(address)
        if task is None or task.done():
            what = f"address {address!r}: looking for work"
            serving = keep_running(partial(self._serve, address), what, log, ends_with=UsageError)
            self._tasks[address] = asyncio.create_task(serving)
        else:
            self.nudge(address)
        try:
            return await waiting.got
        except asyncio.CancelledError:
            if waiting.got.done() and not (waiting.got.cancelled() or waiting.got.exception()):
                # It was handed something, and cannot take it.
                await self._give_back(waiting.got.result().run)
            raise
        finally:
            if waiting in line:
                line.remove(waiting)

    async def close(self) -> None:
        """Nobody waits any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._handing, return_exceptions=True)
        self._tasks.clear()
        await self.holders.close()

    async def _serve(self, address: str) -> None:
        """Look for work as long as somebody waits for it."""
        loop = asyncio.get_running_loop()
        with self.bell(address) as bell:
            while line := self._lines.get(address):
                bell.clear()
                looked = loop.time()
                try:
                    wait = await self._look(address, line)
                except StoreError as error:
                    log.warning("address %r: the store cannot be asked for work: %s", address, error)
                    wait = LOOK
                await bell.wait(min(wait, LOOK))
                await asyncio.sleep(max(0.0, GATHER - (loop.time() - looked)))
            self._lines.pop(address, None)
            self._tasks.pop(address, None)

    async def _look(self, address: str, line: deque[Waiting]) -> float:
        """Hand out what there is; seconds until the next look makes sense."""
        store, served = await self._tenant.store(), [served_name(address, "")]
        while line:
            if line[0].got.done():
                line.popleft()
                continue
            due = await store.next_wake(workflows=served, queues=None)
            if due is None:
                return LOOK
            if due > store.now():
                return min(LOOK, due - store.now())
            waiting = line[0]
            if not await _may_take(waiting):
                _withdraw(line, waiting)
                continue
            claimed = await _claim(store, served, waiting)
            if not claimed and (free := _free_one(line, waiting)) is not None and await _may_take(free):
                # What is due may be isolated, and is for a listener that holds nothing.
                waiting = free
                claimed = await _claim(store, served, waiting)
            if not claimed:
                return HELD_UP
            _withdraw(line, waiting)
            handing = asyncio.create_task(self._hand_over(store, waiting, claimed[0]))
            self._handing.add(handing)  # the next in line need not wait for it
            handing.add_done_callback(self._handing.discard)
        return LOOK

    async def _hand_over(self, store: Store, waiting: Waiting, run: Run) -> None:
        try:
            [history] = await store.histories([run.key])
            data = json.dumps({"listener": waiting.shown, "remote": waiting.remote, "number": run.epoch})
            notice = Notice(-1, "delivered", run.epoch, DELIVERED, data.encode(), store.now())
            await store.commit([TellNotices(run.key, run.epoch, (notice,))])
        except Exception as error:
            is_known = isinstance(error, StoreError)
            log.warning(
                "run %r was claimed, and could not be handed over: %s", run.id, error,
                exc_info=None if is_known else error,
            )  # fmt: skip
            waiting.got.cancel()
            await self._give_back(run)
            return
        if waiting.got.done():
            await self._give_back(run)
        else:
            waiting.got.set_result(Held(run, history))

    async def _give_back(self, run: Run) -> None:
        """Nobody is there to take it after all."""
        try:
            await (await self._tenant.store()).commit([ReleaseRun(run.key, run.epoch)])
        except Exception as error:
            log.warning("run %r is delivered again only when its lease is over: %r", run.id, error)
        self.nudge(run.workflow)


async def _may_take(waiting: Waiting) -> bool:
    """Whether its key is still valid; if not, the listener is told."""
    if waiting.check_key is not None:
        try:
            await waiting.check_key()
        except Problem as problem:
            if not waiting.got.done():
                waiting.got.set_exception(problem)
            return False
    return True


async def _claim(store: Store, served: list[str], waiting: Waiting) -> list[Run]:
    worker, after = await waiting.worker(), waiting.suspects_after()
    return await store.claim(worker, workflows=served, queues=None, limit=1, suspects_after=after)


def _free_one(line: deque[Waiting], apart_from: Waiting) -> Waiting | None:
    """Another listener in the line that holds nothing."""
    others = (one for one in line if one is not apart_from and not one.got.done())
    return next((one for one in others if one.suspects_after() == 0.0), None)


def _withdraw(line: deque[Waiting], waiting: Waiting) -> None:
    if waiting in line:
        line.remove(waiting)


class Desks:
    """A desk for each namespace."""

    def __init__(self) -> None:
        self._desks: dict[str, Desk] = {}

    def of(self, tenant: Tenant) -> Desk:
        """The desk of a namespace."""
        found = self._desks.get(tenant.namespace)
        if found is None:
            found = self._desks[tenant.namespace] = Desk(tenant)
        return found

    async def close(self) -> None:
        """Nobody waits any more."""
        for desk in self._desks.values():
            await desk.close()
