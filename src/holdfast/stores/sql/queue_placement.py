"""The position of a new run in its queue, and the run that a start joins by its ``dedup`` key: see ``stores.queues``.

The limits of a queue, the last turn of a key, and the owner of a ``dedup`` key are prefetched with the fences. A
transaction that assigns turns to a key locks its last turn until the commit. One that joins a run locks that run, so
the run can neither end nor start in the meantime. If two transactions start runs with the same ``dedup`` key at the
same moment, the database refuses the second, which begins again and finds the first.
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
from holdfast.stores.sql.limited_queues import UNSTARTED, parse_turns
from holdfast.stores.sql.rows import UNLIMITED_POSITION, QueuePosition
from holdfast.stores.sql.transaction import FencedRun, Transaction


class TurnAllocator:
    """The turns that a transaction assigns to runs of limited queues."""

    def __init__(self, db: Database, now: float) -> None:
        self._db = db
        self._now = now
        self._turns_by_queue: dict[str, dict[int, int] | None] = {}
        self._allocated: dict[tuple[str, int, str], int] = {}

    def is_limited(self, queue: str) -> bool:
        """Whether a queue has limits. A limited queue stays limited until the commit."""
        return self._get_queue_turns(queue) is not None

    def allocate(self, queue: str, priority: int, key: str) -> int:
        """The next turn in a limited queue."""
        turn_key = (queue, priority, key)
        last_turn = self._allocated.get(turn_key)
        if last_turn is None:
            rows = self._db.lookup(self._db.sql.KEY_TURN, *turn_key)
            last_turn = rows[0][0] if rows else None
        queue_turns = self._get_queue_turns(queue) or {}
        turn = self._allocated[turn_key] = compute_next_turn(queue_turns.get(priority, 0), last_turn)
        return turn

    def flush(self) -> None:
        """Write the allocated turns."""
        if self._allocated:
            rows = [(*turn_key, turn, self._now) for turn_key, turn in sorted(self._allocated.items())]
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
    run: FencedRun
    is_debounced: bool
    workflow: str
    created_at: float
    inputs_reference: bytes | None
    """The stored form of its inputs, if they are kept apart."""


class PlacementOperations(Transaction):
    """How new runs get their positions in queues."""

    _turn_allocator: TurnAllocator
    _dedup_owners: dict[tuple[str, str], _DedupOwner | None]
    """The owners of ``dedup`` keys that this transaction has read, by queue and key."""

    @abstractmethod
    def _allocate_key(self) -> int:
        """A new key of a run."""

    def flush(self) -> None:
        super().flush()
        self._turn_allocator.flush()

    def _allocate_position(self, new: NewRun) -> QueuePosition:
        position = UNLIMITED_POSITION
        if self._turn_allocator.is_limited(new.queue):
            turn = self._turn_allocator.allocate(new.queue, new.priority, new.queue_key)
            position = QueuePosition(UNSTARTED, turn)
        if new.dedup_key:
            is_debounced = new.max_debounce_s is not None
            position = position._replace(dedup_key=new.dedup_key, is_debounced=is_debounced)
        return position

    # Deduplication

    def _add_dedup_owner(self, new: NewRun, position: QueuePosition, run: Run) -> None:
        inputs, fenced_run = self._to_column(new.inputs), self._runs_by_key[run.key]
        self._dedup_owners[run.queue, position.dedup_key] = _DedupOwner(
            run.id,
            fenced_run,
            position.is_debounced,
            run.workflow,
            run.created_at,
            inputs if is_reference(inputs) else None,
        )

    def _debounce_owner(self, new: NewRun) -> str | None:
        """Debounce the run that a start joins because of its key, and return its id; ``None``: there is none.

        Large inputs that this replaces are deleted with the next sweep.
        """
        owner = self._get_dedup_owner(new)
        if owner is None:
            return None
        if owner.run.state in TERMINAL_STATES:  # this transaction has ended it
            self._flush_table("runs")  # otherwise the database would see two runs with the key
            return None
        inputs, unused = self._to_column(new.inputs), None
        if self._should_debounce(owner, new):
            unused, owner.inputs_reference = owner.inputs_reference, inputs if is_reference(inputs) else None
            wake_at = rules.get_debounced_wake_at(new, owner.created_at, self._now)
            key = owner.run.key
            row = (inputs, new.digest, new.version, new.deadline, wake_at, self._now, key)
            self._buffer_write("runs", self._sql.REPLACE_INPUTS, key, row)
        elif is_reference(inputs):
            unused = inputs
        if unused is not None:
            self._db.write(self._sql.ADD_REPLACED_INPUTS, [(self._allocate_key(), unused)])
        return owner.id

    def _should_debounce(self, owner: _DedupOwner, new: NewRun) -> bool:
        if new.max_debounce_s is None or not owner.is_debounced:
            return False
        return owner.run.epoch == 0 and owner.workflow == new.workflow

    def _get_dedup_owner(self, new: NewRun) -> _DedupOwner | None:
        dedup_key = (new.queue, new.dedup_key)
        if dedup_key not in self._dedup_owners:
            rows = self._db.lookup(self._sql.DEDUP_OWNER, *dedup_key)
            self._dedup_owners[dedup_key] = None
            if rows:
                *fence_row, is_debounced, workflow, created_at, inputs = rows[0]
                reference = inputs if is_reference(inputs) else None
                run = self._add_run(tuple(fence_row))
                owner = _DedupOwner(fence_row[1], run, is_debounced == 1, workflow, created_at, reference)
                self._dedup_owners[dedup_key] = owner
        return self._dedup_owners[dedup_key]
