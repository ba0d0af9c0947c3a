"""Workers: how a store knows which workers may hold runs, and finds out that a worker is dead.

**Worker death.** A worker registers when it starts. Its runs can be claimed when the store knows that it is dead: at
once where the kernel or the database can tell (the process's lock is free), otherwise when its lease has expired.
``Workers.reap_dead`` then puts its runs back to ``pending``. If it held a single run, that counts as a delivery of the
run. If it held several, it is unknown which of them killed it, and all are suspected: see ``worker_deaths``. The run's
next record sets both back to 0. A worker that stops cleanly releases its runs without counting. A lease expires only
within the time in which the caller of ``reap_dead`` knows that it could have been renewed: see ``leases``.

**Listeners** are processes elsewhere that take work from a server over HTTP. Only its lease shows whether a listener
lives. Servers renew the lease with every request of the process (``renew_listener_lease``), and only servers declare a
listener dead, by the same rule: while all servers were down, no lease could be renewed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.stores.leases import LeaseWindow

LISTENER_RETENTION_S = 24 * 3600.0
"""Minimum seconds for which the row of a retired or dead listener is kept."""
WORKER_RETENTION_S = 24 * 3600.0
"""Minimum seconds for which the row of any other retired or dead worker is kept. Also how long it must have been gone
before the oldest run was created: clocks differ, and a worker writes until it is declared dead."""


@dataclass(frozen=True, slots=True)
class NewWorker:
    """The registration of a worker."""

    name: str
    host: str
    pid: int
    workflows: tuple[str, ...] = ()
    """The served names of the workflows and versions that it can execute: see ``served_versions``."""
    queues: tuple[str, ...] | None = None
    """The queues it serves; ``None``: all."""
    is_listener: bool = False
    """It is a process elsewhere, registered by a server. Only its lease shows whether it lives."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's row."""

    id: int
    name: str
    host: str
    pid: int
    state: str
    """``live``, ``retired`` (stopped cleanly), or ``dead``."""
    workflows: tuple[str, ...]
    queues: tuple[str, ...] | None
    started_at: float
    lease_expires_at: float
    heartbeat_at: float = 0.0
    """When it last renewed its lease, or registered."""
    is_listener: bool = False


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The result of ``Workers.reap_dead``."""

    worker_ids: tuple[int, ...] = ()
    released_count: int = 0
    """Runs that are claimable again."""
    dead_run_ids: tuple[str, ...] = ()
    """Ids of runs that have used up their deliveries and are ``dead`` now."""


class Workers(ABC):
    """The workers of a store."""

    @abstractmethod
    async def register(self, worker: NewWorker, lease_s: float) -> int:
        """Register a worker, with a lease of ``lease_s`` seconds. Returns its id."""

    @abstractmethod
    def renew_lease(self, worker: int, lease_s: float) -> bool:
        """Renew the lease. Blocking, and called from the heartbeat's own thread.

        False: the worker has been declared dead, and holds nothing any more.
        """

    @abstractmethod
    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        """Renew the lease of a listener, from any process, even long after it has expired.

        A shorter lease replaces a longer one. False: the listener has retired or was declared dead, and holds nothing
        any more; or the worker is not a listener.
        """

    @abstractmethod
    async def retire(self, worker: int, *, only_if_idle: bool = False) -> bool:
        """The worker stops cleanly: the runs that it still holds are released without counting a delivery.

        With ``only_if_idle``, a worker that holds a run stays as it is. Returns false in that case alone.
        """

    @abstractmethod
    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        """Declare workers dead whose process is gone or lease has expired (never ``except_worker``), and free their
        runs.

        ``window`` is the time in which leases count (default: all time up to now). Listeners are left alone unless
        ``include_listeners`` is true.
        """


def merge_workflows(workflows: Iterable[str], announced: Iterable[str]) -> tuple[str, ...]:
    """The workflows of a worker after it has announced some."""
    return tuple(dict.fromkeys((*workflows, *announced)))


def format_worker_location(name: str, host: str, pid: int, *, is_listener: bool = False) -> str:
    """``host:pid``, after the worker's name if that differs. The process id of a listener is unknown."""
    location = host if is_listener else f"{host}:{pid}"
    return location if name in ("", location) else f"{name} at {location}" if location else name


def describe_worker(name: str, host: str, pid: int, *, is_listener: bool = False) -> str:
    """A worker, as messages name it."""
    location = format_worker_location(name, host, pid, is_listener=is_listener)
    return f"listener {location}".rstrip() if is_listener else location


def get_worker_cutoff(oldest_created_at: float | None, now: float) -> float:
    """Rows of workers that are no longer live and whose lease ended before this time are deleted.

    ``oldest_created_at`` is when the oldest run was created. A worker that was gone before then has started or recorded
    nothing that still exists, so no report can name it.
    """
    return (now if oldest_created_at is None else min(now, oldest_created_at)) - WORKER_RETENTION_S


def get_listener_cutoff(oldest_created_at: float | None, now: float) -> float:
    """Rows of listeners that are no longer live and whose lease ended before this time are deleted.

    ``oldest_created_at`` is when the oldest run by delivery was created. A listener that was gone before then has
    recorded nothing for any run that still exists: every request of a listener renews its lease.
    """
    return min(now - LISTENER_RETENTION_S, now if oldest_created_at is None else oldest_created_at)
