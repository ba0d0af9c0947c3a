"""Queues with limits in a store: ``admission.queue_limits`` defines what the limits mean.

A queue is *limited* when the store has a row for it: because code has announced it, or a person has set its limits or
paused it. A queue without a row has no limits, and costs nothing.

**Which limits apply.** Code announces limits, and the last announcement counts, unless a person has set others: those
stay until they are removed. Each claim uses the limits of that moment.

**A run of a limited queue** is created as ``pending``, whatever the start asks for, and claimed when the limits admit
it. It needs a slot each time it is claimed, and a share of the rates only when it begins (its epoch is 0 until then). A
run with a requested or recorded cancel needs neither; but a paused queue admits no run. Every ``running`` run has a
slot, however it came to run. If a queue gets its row while it has runs, these are limited from then on, with turns by
their age (a run that is started at the same moment may slip through).

**Turns** come from ``compute_next_turn``, separately for each priority: a run of high priority goes before others of
its key, and later runs must not have to wait for those.

**A claim** checks the limited queues that it serves, one claim at a time for each queue: a claim that finds another one
at work may skip that queue. It passes over runs of a key that is at its limits, and these cost the next claims nothing,
however many there are. A claim takes runs from limited and other queues alike, by priority and age: it repeatedly takes
the best of the runs that are next in their queues. The usage of model calls is *charged* with their record, and counts
from the next claim on.

**When a run is due.** For a limited queue, ``Claims.get_next_wake_at`` considers only what the limits admit: nothing
while the queue is full or paused, and otherwise when its rates have room again. The time may be too early because of a
run that is delayed or parked until then, or became due since the last claim; but nothing is due after a claim that has
found nothing. A freed slot (a run ends, parks, is released, or its worker dies) is reported like any other change.

**Deduplication.** A start can have a ``dedup_key``. While the same queue has an unfinished run with this key, the start
joins that run, whatever its own inputs and id, unless a run with its own id exists: then the start is a repeat, and
that run is the answer, whether or not it has ended. So a start that is repeated under one id starts at most one run.
(If a start joined another run and is repeated after that run has ended, it starts one.) With ``max_debounce_s`` a start
*debounces*: until its run has begun, each further such start with the key, for the same workflow, replaces the run's
inputs, version, and deadline, and delays the run to its own start time, at most that many seconds after the run was
created. Once the run has begun, it no longer has the key: the next start begins a new run. A run that has ended does
not have the key either, also after a retry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.admission.queue_limits import QueueLimits

MAX_LISTED_KEYS = 20
"""Maximum number of keys of a queue that ``Queues.list`` returns."""


@dataclass(frozen=True, slots=True)
class NewQueue:
    """The announcement of a queue."""

    name: str
    limits: QueueLimits


@dataclass(frozen=True, slots=True)
class QueueKeyStatus:
    """The runs of one key in a limited queue."""

    key: str
    running_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A limited queue and its runs."""

    name: str
    limits: QueueLimits
    """The limits that apply."""
    declared_limits: QueueLimits | None
    """The limits that code has announced, if any."""
    is_overridden: bool
    """A person has set the limits that apply."""
    paused_at: float | None
    running_count: int = 0
    waiting_count: int = 0
    """Runs that only limits or busy workers keep from being claimed: not parked, delayed, or paused."""
    next_start_at: float = 0.0
    """When the queue's own rates admit the next run; 0: now."""
    keys: tuple[QueueKeyStatus, ...] = ()
    """At most ``MAX_LISTED_KEYS`` keys: most waiting first, then most running, then by name. Runs without a key are
    under ``""``."""


class Queues(ABC):
    """Queues with limits."""

    @abstractmethod
    async def declare(self, queues: Sequence[NewQueue]) -> None:
        """Announce queues. Limits that a person has set stay."""

    @abstractmethod
    async def set_limits(self, name: str, limits: QueueLimits | None) -> bool:
        """Override the limits of a queue; ``None``: use those that code announced, or none.

        False: nothing has changed.
        """

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Claim no runs of this queue until it is resumed. False: it was already paused."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Claim its runs again. False: it was not paused."""

    @abstractmethod
    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        """All limited queues, or those with these names, ordered by name."""
