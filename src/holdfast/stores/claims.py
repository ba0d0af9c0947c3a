"""Claims: how a worker takes runs from a store, and learns what was sent to those that it holds.

**Requests.** Cancel and pause are requests in the run's row. A run that no worker holds is paused at once; a holder
asks ``Claims.get_run_requests``. A holder carries out a cancel by recording it (``RecordKind.CANCEL``). A run that was
never claimed is cancelled at once. A paused run is not claimable, whatever else happens to it, until it is resumed or
cancelled. While a cancel is requested and not recorded, the run can neither park nor finish, so a cancel that was
accepted always takes effect.

**Versions.** See ``served_versions``: a run has the version of the code that it was started with, and only workers that
serve this version claim it. Long backlogs of other versions do not slow a claim.

**Runs by delivery.** No engine executes such a run. Its holder, a listener, gets what is recorded and decides what to
record next. No code could carry out a cancel or notice a deadline. So a cancel ends the run at once, and
``expire_runs`` ends it when its deadline has passed; from then on its holder is fenced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.core.records import Signal
from holdfast.stores.operations import Run


class NewSignals(NamedTuple):
    """What was sent to held runs."""

    signals: Sequence[tuple[int, Signal]]
    """With the keys of their runs; those of one run in the order of their ids."""
    cursor: int
    """Where to go on the next time. It is no id: databases number signals in the order in which they are written, and
    show them in the order in which they are committed."""


class RunRequests(NamedTuple):
    """What has been asked of a held run and not been carried out yet."""

    key: int
    is_cancel_requested: bool
    """A cancel is ``REQUESTED``."""
    is_pause_requested: bool


class Claims(ABC):
    """The runs that workers take."""

    @abstractmethod
    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        """Take up to ``limit`` runs that are due: highest priority first, then oldest first.

        ``workflows`` are served names: only runs of the versions that they name are taken (see ``served_versions``).
        Isolated runs (see ``worker_deaths``) come first if they have been due for ``suspect_delay_s`` seconds: if there
        is one, the claim takes a group of them and nothing else. Otherwise, or with ``None``, it takes none of them.
        Runs that are paused, and runs of disabled workflows, are not due. Limited queues have an order of their own
        (see ``queues``). A run whose row cannot be read is ended as ``failed``, and the others are taken.
        """

    @abstractmethod
    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """When the next pending or waiting run becomes due (a time in the past: now), or ``None``."""

    @abstractmethod
    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        """Unconsumed signals behind the cursor ``after`` (0: all) for runs that this worker holds.

        None is left out, but some that were told before may be told again. One whose large payload cannot be read is
        left out, and named in a warning of the log; ``Store.get_histories`` raises.
        """

    @abstractmethod
    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        """What has been asked of runs that this worker holds."""

    @abstractmethod
    async def expire_runs(self, limit: int = 100) -> list[str]:
        """End runs by delivery whose deadline has passed, held or not, as ``failed``; tells their ids.

        At most ``limit``, those that are overdue for the longest time first.
        """
