"""The isolated runs of one worker: their earlier workers died before they recorded anything (see ``stores.rules``).

The store decides which runs are isolated and how many of them a claim takes. A worker decides when it claims some, and
what else it holds meanwhile:

- **A worker that holds nothing** claims isolated runs before all others. It then takes nothing else, neither from the
  store nor from its own process, until each of them has recorded something, has parked, or has ended; then it claims
  the next ones. So a worker that was just restarted tries the most suspicious runs first, and a death is evidence.
- **The time is bounded.** After ``worker_deaths.get_isolation_leases`` the worker takes other runs again, although an
  isolated run is still in a long step. If the worker dies after that, the death does not count against the run. But its
  suspicion has risen, and the bound doubles each time, so a run that kills its process late is found as well.
- **A worker that always holds something** leaves isolated runs to others for ``worker_deaths.ISOLATED_WAIT_LEASES``.
  Then it claims them too, a group at a time, in addition to its other runs, so that they do not starve in a busy fleet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.engine.clock import Clock
from holdfast.engine.driver import Driver
from holdfast.engine.held_runs import HeldRuns
from holdfast.stores import worker_deaths

log = logging.getLogger("holdfast.engine")


class Isolation:
    """The isolated runs that this worker holds, and the time for which it holds nothing else."""

    def __init__(self, held_runs: HeldRuns, clock: Clock, lease_s: float) -> None:
        self._held_runs = held_runs
        self._clock = clock
        self._lease_s = lease_s
        self._suspects: Sequence[Driver] = ()
        """The isolated runs of the last claim."""
        self._wait_until = 0.0
        """Until when (monotonic) the worker waits for them to record something."""
        self._exclusive_until = 0.0
        """Until when (monotonic) it holds only isolated runs."""

    def get_suspect_delay_s(self) -> float | None:
        """How long isolated runs must have been due before this worker claims them; ``None``: it claims none."""
        if self._is_waiting():
            return None
        may_claim_now = self._held_runs.is_idle or self._is_exclusive_period()
        return 0.0 if may_claim_now else worker_deaths.ISOLATED_WAIT_LEASES * self._lease_s

    @property
    def is_exclusive(self) -> bool:
        """Whether this worker takes no other run now."""
        return bool(self._suspects) and self._is_waiting() and self._is_exclusive_period()

    def note_claimed(self, suspects: Sequence[Driver]) -> None:
        """This worker has claimed and loaded isolated runs."""
        if not suspects:
            return
        self._suspects = suspects
        self._wait_until = self._now() + worker_deaths.get_isolation_leases(suspects[0].run.suspicion) * self._lease_s
        if len(self._held_runs.drivers) == len(suspects):
            self._exclusive_until = self._wait_until
        log.warning(
            "workers died while they held %s %s; this worker %s until %s, for at most %g s",
            "run" if len(suspects) == 1 else "runs",
            ", ".join(repr(driver.run.id) for driver in suspects),
            "takes nothing else" if self.is_exclusive else "takes no other run like that",
            "it records something" if len(suspects) == 1 else "each of them has recorded something",
            max(0.0, (self._exclusive_until if self.is_exclusive else self._wait_until) - self._now()),
        )

    def _is_waiting(self) -> bool:
        return self._now() < self._wait_until and any(one.is_isolated and not one.is_closed for one in self._suspects)

    def _is_exclusive_period(self) -> bool:
        return self._now() < self._exclusive_until and all(
            worker_deaths.is_isolated(driver.run.suspicion) for driver in self._held_runs.drivers.values()
        )

    def _now(self) -> float:
        return self._clock.monotonic()
