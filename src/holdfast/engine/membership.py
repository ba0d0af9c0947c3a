"""An engine as one worker among others: it registers, renews its lease, and declares others dead.

The lease is measured from the moment at which its renewal was requested, so this worker never trusts it for longer than
the others do. The heartbeat renews it, in its own thread. A renewal may find that this worker was declared dead. Then
the engine drops every run, because others hold them by now, and registers again, on its loop. Until then it loads
nothing, and from then on it is another worker, with another id.

Renewals also show whether the store can be written. Only time in which they succeed counts toward the expiry of other
workers' leases (``get_lease_window``; see ``stores.leases``).
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.processes.process_name import get_process_name
from holdfast.stores.leases import LeaseWindow, LeaseWindowTracker
from holdfast.stores.workers import NewWorker, ReapResult

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

REGISTER_RETRY_DELAY_S = 0.5
"""Seconds after which a failed registration is tried again."""


class Membership:
    """The registration of one engine."""

    def __init__(self, host: JournalEngine) -> None:
        self.is_reregistering = False
        """This worker was declared dead, and has not registered since: other workers hold its runs."""
        self._host = host
        self._lease_s = host.lease_s
        self._lease_valid_until = 0.0
        """Until when (monotonic) no other worker can have declared this one dead, as far as it knows."""
        self._lost_worker_id = 0
        """The worker id that the last renewal found to be declared dead."""
        # Renewals are a third of a lease apart. So even if no worker could renew during a gap of half a lease, the
        # leases of live workers have not expired at its end. A longer gap could hide an outage in which they have.
        self._window_tracker = LeaseWindowTracker(host.store.now, host.clock.monotonic, max_gap_s=host.lease_s / 2)

    async def register(self) -> None:
        """Become a worker."""
        host, hostname, pid = self._host, socket.gethostname(), os.getpid()
        worker = NewWorker(get_process_name(), hostname, pid, tuple(host.definitions), host.served_queues)
        requested_at = host.clock.monotonic()
        host.worker_id = await host.store.workers.register(worker, self._lease_s)
        self._lease_valid_until = requested_at + self._lease_s
        self._window_tracker.note_success(requested_at)

    async def reap_dead(self) -> ReapResult:
        """Find workers that have died, and free their runs."""
        reaped = await self._host.store.workers.reap_dead(self._host.worker_id, self.get_lease_window())
        self._host.run_log.log_deaths(reaped)
        return reaped

    def get_lease_window(self) -> LeaseWindow:
        """The window in which other workers' leases may expire."""
        return self._window_tracker.get_window()

    def has_lease(self) -> bool:
        """Whether no other worker can hold this worker's runs yet. Called from any thread.

        After a long pause (SIGSTOP, a suspended machine) another worker may have done what this one is about to do. The
        next renewal, which is due at once, finds out.
        """
        return self._host.clock.monotonic() < self._lease_valid_until

    # In the heartbeat's thread

    def renew_lease(self) -> bool:
        """Renew the lease; false when this worker was declared dead."""
        worker_id, requested_at = self._host.worker_id, self._host.clock.monotonic()
        try:
            is_alive = self._host.store.workers.renew_lease(worker_id, self._lease_s)
        except BaseException:
            self._window_tracker.note_failure()
            if (telemetry := self._host.telemetry) is not None and telemetry.metrics is not None:
                telemetry.metrics.missed_renewals.add()
            raise
        self._window_tracker.note_success(requested_at)
        if is_alive:
            self._lease_valid_until = requested_at + self._lease_s
        else:
            self._lost_worker_id = worker_id
        return is_alive

    def on_lease_lost(self) -> None:
        """A renewal has found this worker declared dead: handle that on the loop."""
        try:
            self._host.loop.call_soon_threadsafe(self._on_declared_dead)
        except RuntimeError:
            pass  # the loop has closed

    # On the loop

    def _on_declared_dead(self) -> None:
        """Other workers hold the runs of this one now: drop them, and come back as a new worker."""
        host = self._host
        if host.is_closed or self.is_reregistering or self._lost_worker_id != host.worker_id:
            return  # known already: renewals fail until there is a new registration
        self.is_reregistering = True
        log.warning("this worker was declared dead (its lease passed); it drops its runs and registers anew")
        for driver in host.held_runs.list_drivers():
            driver.handle_claim_lost()
        host.run_in_background(self._reregister())

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
