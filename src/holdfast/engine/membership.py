"""An engine as a worker among others: it registers, renews its lease, and comes back if it was declared dead.

The lease is measured from the moment at which its renewal was asked for, so that this worker never trusts it for longer
than the others do. The heartbeat makes renewals, in its own thread. One that finds the worker declared dead says so;
what follows is done on the loop: every run is dropped, for others hold them by now, and the engine registers once more.
Until then it takes up nothing, and from then on it is another worker, with another number.

Renewals also show whether the store can be written. Only while they go through may this worker count the leases of
others (``get_lease_window``; see ``stores.leases``).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import StoreError
from holdfast.stores.leases import LeaseWindow, LeaseWindowTracker
from holdfast.stores.workers import NewWorker

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

REGISTER_RETRY_DELAY_S = 0.5
"""Seconds after which a registration that the store did not take is tried again."""


class Membership:
    """The registration of one engine."""

    def __init__(
        self,
        host: JournalEngine,
        definitions: Mapping[str, WorkflowDefinition],
        queues: tuple[str, ...] | None,
        lease_s: float,
    ) -> None:
        self.is_reregistering = False
        """It was declared dead, and has not registered since: what the store still gives it is another's by now."""
        self._host = host
        self._definitions = definitions
        self._queues = queues
        self._lease_s = lease_s
        self._lease_valid_until = 0.0
        """Until when (monotonic) nobody can have declared this worker dead, as far as it knows."""
        self._lost_worker_id = 0
        """The worker that the last renewal found to be declared dead."""
        # Renewals are a third of a lease apart. A gap of half a lease leaves others the rest of theirs to renew.
        self._contact = LeaseWindowTracker(host.store.now, host.clock.monotonic, max_gap_s=lease_s / 2)

    async def register(self) -> None:
        """Become a worker."""
        member, host, pid = self._host, socket.gethostname(), os.getpid()
        me = NewWorker(f"{host}:{pid}", host, pid, tuple(self._definitions), self._queues)
        asked = member.clock.monotonic()
        member.worker_id = await member.store.workers.register(me, self._lease_s)
        self._lease_valid_until = asked + self._lease_s
        self._contact.note_success(asked)

    def get_lease_window(self) -> LeaseWindow:
        """The time in which the leases of other workers count."""
        return self._contact.get_window()

    def has_lease(self) -> bool:
        """Whether nobody else can hold this worker's runs yet. Called from any thread.

        After a long pause (SIGSTOP, a machine that stood still) somebody may have carried out what this worker is about
        to do. The next renewal, which is due at once, tells.
        """
        return self._host.clock.monotonic() < self._lease_valid_until

    # In the pulse's thread

    def renew_lease(self) -> bool:
        """Renew the lease; false when this worker was declared dead."""
        worker, asked = self._host.worker_id, self._host.clock.monotonic()
        try:
            held = self._host.store.workers.renew_lease(worker, self._lease_s)
        except BaseException:
            self._contact.note_failure()
            raise
        self._contact.note_success(asked)
        if held:
            self._lease_valid_until = asked + self._lease_s
        else:
            self._lost_worker_id = worker
        return held

    def on_lease_lost(self) -> None:
        """A renewal has found this worker declared dead: see to it, on the loop."""
        try:
            self._host.loop.call_soon_threadsafe(self._on_declared_dead)
        except RuntimeError:
            pass  # the loop has closed; there is nothing left to tell

    # On the loop

    def _on_declared_dead(self) -> None:
        """Other workers hold our runs now: drop them, and come back as a new worker."""
        member = self._host
        if member.is_closed or self.is_reregistering or self._lost_worker_id != member.worker_id:
            return  # told before: renewals fail until there is a new registration
        self.is_reregistering = True
        log.warning("this worker was declared dead (its lease passed); it drops its runs and registers anew")
        for driver in member.held_runs.list_drivers():
            driver.handle_claim_lost()
        member.run_in_background(self._reregister())

    async def _reregister(self) -> None:
        try:
            while True:
                try:
                    await self.register()
                    break
                except StoreError:
                    await self._host.clock.sleep(REGISTER_RETRY_DELAY_S)
        finally:
            self.is_reregistering = False
        self._host.on_reregistered()
