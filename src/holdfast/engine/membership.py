"""An engine as a worker among others: it registers, renews its lease, and comes back if it was declared dead.

The lease is measured from the moment at which its renewal was asked for, so that this worker never trusts it for longer
than the others do. Renewals are made by the pulse, in its own thread. One that finds the worker declared dead says so;
what follows is done on the loop: every run is dropped, for others hold them by now, and the engine registers once more.
Until then it takes up nothing, and from then on it is another worker, with another number.

Renewals also show whether the store can be written. Only while they go through may this worker count the leases of
others (``window``; see ``stores.leases``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine.clock import Clock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import StoreError
from holdfast.stores.contract import NewWorker, Store
from holdfast.stores.leases import Contact, LeaseWindow

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver

log = logging.getLogger("holdfast.engine")

TRY_AGAIN = 0.5
"""Seconds after which a registration that the store did not take is tried again."""


class Member(Protocol):
    """What membership needs of the engine that is the worker."""

    store: Store
    clock: Clock
    worker: int
    loop: asyncio.AbstractEventLoop

    @property
    def is_closed(self) -> bool:
        """Whether it has let go of its runs."""
        ...

    def drivers(self) -> list[Driver]:
        """The drivers of all runs in memory."""
        ...

    def chore(self, coro: Coroutine[Any, Any, None]) -> None:
        """Do something on the side, and see to its errors."""

    def came_back(self) -> None:
        """It is another worker now: what it has announced is to be announced again."""


class Membership:
    """The registration of one engine."""

    def __init__(
        self,
        member: Member,
        definitions: Mapping[str, WorkflowDefinition],
        queues: tuple[str, ...] | None,
        lease: float,
    ) -> None:
        self.is_coming_back = False
        """It was declared dead, and has not registered since: what the store still gives it is another's by now."""
        self._member = member
        self._definitions = definitions
        self._queues = queues
        self._lease = lease
        self._trusted_until = 0.0
        """Until when (monotonic) nobody can have declared this worker dead, as far as it knows."""
        self._lost = 0
        """The worker that the last renewal found to be declared dead."""
        # Renewals are a third of a lease apart. A gap of half a lease leaves others the rest of theirs to renew.
        self._contact = Contact(member.store.now, member.clock.monotonic, max_gap=lease / 2)

    async def register(self) -> None:
        """Become a worker."""
        member, host, pid = self._member, socket.gethostname(), os.getpid()
        me = NewWorker(f"{host}:{pid}", host, pid, tuple(self._definitions), self._queues)
        asked = member.clock.monotonic()
        member.worker = await member.store.register_worker(me, self._lease)
        self._trusted_until = asked + self._lease
        self._contact.made(asked)

    def window(self) -> LeaseWindow:
        """The time in which the leases of other workers count."""
        return self._contact.window()

    def holds_lease(self) -> bool:
        """Whether nobody else can hold this worker's runs yet. Called from any thread.

        After a long pause (SIGSTOP, a machine that stood still) somebody may have carried out what this worker is about
        to do. The next renewal, which is due at once, tells.
        """
        return self._member.clock.monotonic() < self._trusted_until

    # In the pulse's thread

    def renew(self) -> bool:
        """Renew the lease; false when this worker was declared dead."""
        worker, asked = self._member.worker, self._member.clock.monotonic()
        try:
            held = self._member.store.renew_lease(worker, self._lease)
        except BaseException:
            self._contact.lost()
            raise
        self._contact.made(asked)
        if held:
            self._trusted_until = asked + self._lease
        else:
            self._lost = worker
        return held

    def lost(self) -> None:
        """A renewal has found this worker declared dead: see to it, on the loop."""
        try:
            self._member.loop.call_soon_threadsafe(self._declared_dead)
        except RuntimeError:
            pass  # the loop has closed; there is nothing left to tell

    # On the loop

    def _declared_dead(self) -> None:
        """Other workers hold our runs now: drop them, and come back as a new worker."""
        member = self._member
        if member.is_closed or self.is_coming_back or self._lost != member.worker:
            return  # told before: renewals fail until there is a new registration
        self.is_coming_back = True
        log.warning("this worker was declared dead (its lease passed); it drops its runs and registers anew")
        for driver in member.drivers():
            driver.lose()
        member.chore(self._come_back())

    async def _come_back(self) -> None:
        try:
            while True:
                try:
                    await self.register()
                    break
                except StoreError:
                    await self._member.clock.sleep(TRY_AGAIN)
        finally:
            self.is_coming_back = False
        self._member.came_back()
