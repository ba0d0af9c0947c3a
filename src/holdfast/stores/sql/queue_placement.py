"""Where a new run stands in its queue, and which run a start joins because of its ``dedup`` key: see ``stores.queues``.

Whether a queue has limits, the last turn of a key, and who has a ``dedup`` key are foreseen with the fences. Whoever
gives turns to the runs of a key holds its last turn until the commit, and so does whoever joins a run with that run: it
can neither end nor begin meanwhile. If two start runs with the same ``dedup`` key at the same moment, the database
refuses the second, which begins again, and finds the first.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from holdfast.admission.queue_limits import compute_next_turn
from holdfast.core.states import TERMINAL_STATES
from holdfast.stores import rules
from holdfast.stores.operations import NewRun, Run
from holdfast.stores.sql.blobs import is_reference
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.limited_queues import parse_turns
from holdfast.stores.sql.rows import UNLIMITED_POSITION, QueuePosition
from holdfast.stores.sql.transaction import Fence, Transaction


class TurnAllocator:
    """The turns that a transaction gives to runs of limited queues."""

    def __init__(self, db: Database, now: float) -> None:
        self._db = db
        self._now = now
        self._turns_by_queue: dict[str, dict[int, int] | None] = {}
        self._allocated: dict[tuple[str, int, str], int] = {}

    def is_limited(self, queue: str) -> bool:
        """Whether a queue has limits. If it has, it stays so until the commit."""
        return self._get_queue_turns(queue) is not None

    def allocate(self, queue: str, priority: int, key: str) -> int:
        """The next one in a limited queue."""
        place = (queue, priority, key)
        last = self._allocated.get(place)
        if last is None:
            rows = self._db.lookup(self._db.sql.KEY_TURN, *place)
            last = rows[0][0] if rows else None
        of_queue = self._get_queue_turns(queue) or {}
        turn = self._allocated[place] = compute_next_turn(of_queue.get(priority, 0), last)
        return turn

    def flush(self) -> None:
        """Write what was given."""
        if self._allocated:
            rows = [(*place, turn, self._now) for place, turn in sorted(self._allocated.items())]
            self._db.write(self._db.sql.SAVE_TURN, rows)
            self._db.discard_prefetched(self._db.sql.KEY_TURN)
            self._allocated.clear()

    def _get_queue_turns(self, queue: str) -> dict[int, int] | None:
        if queue not in self._turns_by_queue:
            rows = self._db.lookup(self._db.sql.LOCK_QUEUE_TURNS, queue)
            self._turns_by_queue[queue] = parse_turns(rows[0][0]) if rows else None
        return self._turns_by_queue[queue]


@dataclass(slots=True)
class _DedupOwner:
    """The run that has a ``dedup`` key."""

    id: str
    fence: Fence
    is_debounced: bool
    workflow: str
    created_at: float
    inputs_reference: bytes | None
    """The stored form of its inputs, if they are kept apart."""


class PlacementOperations(Transaction):
    """How new runs are put into queues."""

    _turn_allocator: TurnAllocator
    _dedup_owners: dict[tuple[str, str], _DedupOwner | None]
    """The runs that have a ``dedup`` key, by queue and key, as far as this transaction knows."""

    @abstractmethod
    def _allocate_key(self) -> int:
        """A key that no run has."""

    def flush(self) -> None:
        """Write all that is still waiting for it."""
        super().flush()
        self._turn_allocator.flush()

    def _allocate_position(self, new: NewRun) -> QueuePosition:
        """Where a new run stands."""
        place = UNLIMITED_POSITION
        if self._turn_allocator.is_limited(new.queue):
            place = QueuePosition(2, self._turn_allocator.allocate(new.queue, new.priority, new.queue_key))
        return (
            place._replace(dedup_key=new.dedup_key, is_debounced=new.max_debounce_s is not None)
            if new.dedup_key
            else place
        )

    # Deduplication

    def _add_dedup_owner(self, new: NewRun, position: QueuePosition, run: Run) -> None:
        """A run has been created that has a key."""
        inputs, fence = self._to_column(new.inputs), self._fences_by_key[run.key]
        self._dedup_owners[run.queue, position.dedup_key] = _DedupOwner(
            run.id, fence, position.is_debounced, run.workflow, run.created_at, inputs if is_reference(inputs) else None
        )

    def _debounce_owner(self, new: NewRun) -> str | None:
        """The id of the run that a start joins because of its key, once it has been put off; ``None``: there is none.

        What large inputs there are that nobody needs now is swept away with what runs leave.
        """
        holder = self._get_dedup_owner(new)
        if holder is None:
            return None
        if holder.fence.state in TERMINAL_STATES:  # by this transaction
            self._flush_table("runs")  # lest the database sees two that have the key
            return None
        inputs, unused = self._to_column(new.inputs), None
        if self._should_debounce(holder, new):
            unused, holder.inputs_reference = holder.inputs_reference, inputs if is_reference(inputs) else None
            until = rules.get_debounced_wake_at(new, holder.created_at, self._now)
            key = holder.fence.key
            row = (inputs, new.digest, new.version, new.deadline, until, self._now, key)
            self._buffer_write("runs", self._sql.REPLACE_INPUTS, key, row)
        elif is_reference(inputs):
            unused = inputs
        if unused is not None:
            self._db.write(self._sql.ADD_REPLACED_INPUTS, [(self._allocate_key(), unused)])
        return holder.id

    def _should_debounce(self, owner: _DedupOwner, new: NewRun) -> bool:
        """Whether a start that joins this run changes it."""
        if new.max_debounce_s is None or not owner.is_debounced:
            return False
        return owner.fence.epoch == 0 and owner.workflow == new.workflow

    def _get_dedup_owner(self, new: NewRun) -> _DedupOwner | None:
        place = (new.queue, new.dedup_key)
        if place not in self._dedup_owners:
            rows = self._db.lookup(self._sql.DEDUP_OWNER, *place)
            self._dedup_owners[place] = None
            if rows:
                *fence, debounced, workflow, created_at, inputs = rows[0]
                reference = inputs if is_reference(inputs) else None
                known = self._add_fence(tuple(fence))
                self._dedup_owners[place] = _DedupOwner(
                    rows[0][1], known, debounced == 1, workflow, created_at, reference
                )
        return self._dedup_owners[place]
