"""What a store keeps of queues with limits: see ``admission.queue_limits`` for what the limits mean.

A queue is *limited* when the store keeps a row of it: because code has announced it, or somebody has set its limits or
paused it. A queue that there is no row of has no limits, and costs nothing.

**Who decides.** Code announces limits; the last announcement counts, unless somebody has set others by hand: those stay
until they are taken back. Each claim asks the limits that hold then.

**A run of a limited queue** is created ``pending`` whatever the start asks for, and is taken by a claim that opens the
queue's gate. It needs a place each time it is taken, and something of the rates only when it begins (its epoch is 0
until then). One for which a cancel was asked, recorded or not, needs neither; but a paused queue lets nobody through.
Whoever is ``running`` has a place, however it came to be. If the queue gets its row while it has runs already,
they are limited from then on, and have turns by their age (a run that is started in the same moment may slip through).

**Turns** are given by ``compute_next_turn``, for each priority by itself: one of high priority goes before others of
its key, and whoever comes after it must not have to wait for them.

**A claim** asks the gates of the limited queues it serves, one claim at a time for each queue: one that finds another
at it may leave that queue out. Runs of a key that is at its limits are passed over, and cost the next claims nothing,
however many there are. A claim takes from limited queues and from others alike, in the order of priority and age: of
the runs that are next in their queues, again and again. What model calls have used is *charged* with their record, and
counts from the next claim on.

**When something is due.** ``Claims.get_next_wake_at`` tells of a limited queue only what its limits would let through:
nothing of one that is full or paused, and when its rates have room again. It may tell too early a time because of a run
that is delayed or parked until then, or has become due since the last claim; but nothing is due after a claim that has
found nothing. Whoever gives up a place (a run ends, parks, is released, or its worker dies) makes that known like any
other change.

**Deduplication.** A start can have a ``dedup`` key. While there is an unfinished run with this key in the same queue,
the start joins that one, whatever its own inputs and id are, unless there is a run under its own id: then the start is
a repeat, and that run is the answer, whether or not it has ended. So a start that is repeated under one id starts at
most one run. (A start that joined another run and is repeated after that run has ended starts one.) With
``max_debounce_s`` it *debounces*: until the run that it has started has begun, each further such start with the key,
for the same workflow, puts its own inputs, version and deadline into that run, and puts it off to its own time, at most
so many seconds after the run was created. Once it has begun, it has its key no more: the next start begins a new one. A
run that has ended has none either, also after a retry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.admission.queue_limits import QueueLimits

MAX_LISTED_KEYS = 20
"""Of how many keys of a queue ``Queues.list`` tells."""


@dataclass(frozen=True, slots=True)
class NewQueue:
    """What is announced of a queue."""

    name: str
    limits: QueueLimits


@dataclass(frozen=True, slots=True)
class QueueKeyStatus:
    """What there is of one key in a limited queue."""

    key: str
    running_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A limited queue, and what is in it."""

    name: str
    limits: QueueLimits
    """Those that hold."""
    declared_limits: QueueLimits | None
    """Those that code has announced; ``None``: none has."""
    is_overridden: bool
    """Those that hold were set by somebody."""
    paused_at: float | None
    running_count: int = 0
    waiting_count: int = 0
    """Runs that would be taken if it were not for limits and room: neither parked nor delayed nor paused."""
    next_start_at: float = 0.0
    """When the queue's own rates let the next run begin; 0: they do."""
    keys: tuple[QueueKeyStatus, ...] = ()
    """Those with most waiting, then most running, then by name; at most ``MAX_LISTED_KEYS``. Runs without a key are
    under ``""``."""


class Queues(ABC):
    """The queues with limits."""

    @abstractmethod
    async def declare(self, queues: Sequence[NewQueue]) -> None:
        """Announce queues. One whose limits were set by hand keeps those."""

    @abstractmethod
    async def set_limits(self, name: str, limits: QueueLimits | None) -> bool:
        """Set the limits of a queue, whatever code says of it; ``None``: as code says, or none if it says nothing.

        False: nothing has changed.
        """

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Let no run of this queue be taken until it is resumed. False: it was paused already."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let its runs be taken again. False: it was not paused."""

    @abstractmethod
    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        """All limited queues, or those of these names, in the order of their names."""
