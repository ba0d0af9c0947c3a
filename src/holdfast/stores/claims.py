"""Claims: how a worker takes runs from a store, and learns what was sent to the runs that it holds.

**Requests.** Cancel and pause are requests in the run's row. A run that no worker holds is paused at once; a holder
asks ``Claims.get_run_requests``. A holder carries out a cancel by recording it (``RecordKind.CANCEL``). A run that was
never claimed is cancelled at once. A paused run is not claimable, whatever else happens to it, until it is resumed or
cancelled. While a cancel is requested and not recorded, the run can neither park nor finish, so a cancel that was
accepted always takes effect.

**Versions.** See ``served_versions``: a run has the version of the code that it was started with, and only workers that
serve this version claim it. A long backlog of other versions does not slow a claim.

**Runs by delivery.** No engine executes such a run. Its holder, a listener, gets the recorded steps and decides what to
record next. There is no code that could carry out a cancel or notice a deadline. So a cancel ends the run at once, and
``expire_runs`` ends it when its deadline has passed; from then on its holder is fenced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.records import Signal
from holdfast.stores.operations import LiveEvent, Run
from holdfast.stores.worker_deaths import is_isolated

if TYPE_CHECKING:
    from holdfast.stores.contract import History


EventFactory = Callable[[Run], LiveEvent]
"""Makes an event for a run that was just claimed."""


class ClaimNext(NamedTuple):
    """Claim a due run for a worker in the same commit as the operation before this one, if that is answered with
    ``DONE``: see ``Store.commit_and_claim``."""

    worker: int
    workflow: str
    """A served name: see ``served_versions``."""
    make_event: EventFactory
    """Makes the event that the commit appends to the run. It may be called in another thread."""


class ClaimedRun(NamedTuple):
    """A run that was claimed by a commit."""

    run: Run
    is_new: bool
    """It has no history. Otherwise ask ``Store.get_histories``."""


class NewSignals(NamedTuple):
    """Signals for held runs."""

    signals: Sequence[tuple[int, Signal]]
    """Each with the key of its run; the signals of one run are ordered by id."""
    cursor: int
    """Where to continue the next time. It is not an id: databases number signals in the order of writing, and show them
    in the order of committing."""


class RunRequests(NamedTuple):
    """Requests to a held run that are not carried out yet."""

    key: int
    is_cancel_requested: bool
    """``CancelState.REQUESTED``."""
    is_pause_requested: bool


class Claims(ABC):
    """Claiming runs for workers."""

    appends_events = False
    """Whether ``claim_each`` appends an event to each run that it claims, in the same transaction."""
    server_change_count = 0
    """How often another server has taken over, which may lack commits that the one before had confirmed."""

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
        """Take up to ``limit`` due runs: highest priority first, then oldest first.

        ``workflows`` are served names: only runs of the versions that they name are taken (see ``served_versions``).
        Isolated runs (see ``worker_deaths``) come first if they have been due for ``suspect_delay_s`` seconds: if there
        is one, the claim takes a group of them and nothing else. Otherwise, or with ``None``, it takes none of them.
        Paused runs and runs of disabled workflows are not due. Limited queues have an order of their own (see
        ``queues``). A run whose row cannot be read ends as ``failed``, and the claim takes the others.
        """

    async def claim_each(
        self,
        workers: Sequence[int],
        *,
        workflows: Collection[str],
        suspect_delay_s: float | None = 0.0,
        make_event: EventFactory | None = None,
    ) -> list[Run]:
        """Take at most one due run for each of these workers, in one transaction where the store can.

        The ``owner`` of a run says whose it is. If there is an isolated run for the first worker, only that one is
        taken. ``make_event`` may be called in another thread, and is not called unless ``appends_events``.
        """
        claimed: list[Run] = []
        for worker in workers:
            runs = await self.claim(
                worker, workflows=workflows, queues=None, limit=1, suspect_delay_s=None if claimed else suspect_delay_s
            )
            claimed += runs
            if not runs or is_isolated(runs[0].suspicion):
                break
        return claimed

    async def take_histories(self, keys: Sequence[int]) -> list[History] | None:
        """The histories of the runs that the last ``claim`` has returned, if it has read them along with the runs.

        They are returned only once. ``None``: ask ``Store.get_histories``.
        """
        return None

    @abstractmethod
    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """When the next pending or waiting run becomes due (a time in the past: now), or ``None``."""

    @abstractmethod
    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        """Unconsumed signals after the cursor ``after`` (0: all) for runs that this worker holds.

        No signal is missed, but some may be returned again. A signal whose large payload cannot be read is left out
        with a logged warning; ``Store.get_histories`` raises for it.
        """

    @abstractmethod
    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        """Requests to runs that this worker holds."""

    @abstractmethod
    async def expire_runs(self, limit: int = 100) -> list[str]:
        """End runs by delivery whose deadline has passed, held or not, as ``failed``. Returns their ids.

        At most ``limit``, the longest overdue first.
        """
