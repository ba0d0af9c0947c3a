"""Where a new run stands in its queue, and which run a start joins because of its ``dedup`` key: see ``stores.queues``.

Whether a queue has limits, the last turn of a key, and who has a ``dedup`` key are foreseen with the fences. Whoever
gives turns to the runs of a key holds its last turn until the commit, and so does whoever joins a run with that run: it
can neither end nor begin meanwhile. If two start runs with the same ``dedup`` key at the same moment, the database
refuses the second, which begins again, and finds the first.
"""

from __future__ import annotations

from abc import abstractmethod

from holdfast.admission.queue_limits import next_turn
from holdfast.core.states import TERMINAL
from holdfast.stores import rules
from holdfast.stores.operations import NewRun, Run
from holdfast.stores.sql.blobs import is_reference
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.limited_queues import read_turns
from holdfast.stores.sql.rows import NO_LIMITS, Place
from holdfast.stores.sql.transaction import Fence, Transaction


class Turns:
    """The turns that a transaction gives to runs of limited queues."""

    def __init__(self, db: Database, now: float) -> None:
        self._db = db
        self._now = now
        self._of_queues: dict[str, dict[int, int] | None] = {}
        self._given: dict[tuple[str, int, str], int] = {}

    def is_limited(self, queue: str) -> bool:
        """Whether a queue has limits. If it has, it stays so until the commit."""
        return self._of_queue(queue) is not None

    def next(self, queue: str, priority: int, key: str) -> int:
        """The next one in a limited queue."""
        place = (queue, priority, key)
        last = self._given.get(place)
        if last is None:
            rows = self._db.lookup(self._db.sql.KEY_TURN, *place)
            last = rows[0][0] if rows else None
        of_queue = self._of_queue(queue) or {}
        turn = self._given[place] = next_turn(of_queue.get(priority, 0), last)
        return turn

    def flush(self) -> None:
        """Write what was given."""
        if self._given:
            rows = [(*place, turn, self._now) for place, turn in sorted(self._given.items())]
            self._db.write(self._db.sql.KEEP_TURN, rows)
            self._db.forget(self._db.sql.KEY_TURN)
            self._given.clear()

    def _of_queue(self, queue: str) -> dict[int, int] | None:
        if queue not in self._of_queues:
            rows = self._db.lookup(self._db.sql.QUEUE_TURN, queue)
            self._of_queues[queue] = read_turns(rows[0][0]) if rows else None
        return self._of_queues[queue]


class _Holder:
    """The run that has a ``dedup`` key."""

    __slots__ = ("created_at", "fence", "id", "inputs", "is_debounced", "workflow")

    def __init__(
        self, id: str, fence: Fence, is_debounced: bool, workflow: str, created_at: float, inputs: bytes | None
    ) -> None:
        self.id = id
        self.fence = fence
        self.is_debounced = is_debounced
        self.workflow = workflow
        self.created_at = created_at
        self.inputs = inputs
        """As they stand in the column, if that may be a reference."""


class Placing(Transaction):
    """How new runs are put into queues."""

    _turns: Turns
    _dedups: dict[tuple[str, str], _Holder | None]
    """The runs that have a ``dedup`` key, by queue and key, as far as this transaction knows."""

    @abstractmethod
    def _next_key(self) -> int:
        """A key that no run has."""

    def flush(self) -> None:
        """Write all that is still waiting for it."""
        super().flush()
        self._turns.flush()

    def _place_of(self, new: NewRun) -> Place:
        """Where a new run stands."""
        place = NO_LIMITS
        if self._turns.is_limited(new.queue):
            place = Place(2, self._turns.next(new.queue, new.priority, new.queue_key))
        return place._replace(dedup=new.dedup, is_debounced=new.put_off_most is not None) if new.dedup else place

    # Deduplication

    def _note_dedup(self, new: NewRun, place: Place, run: Run) -> None:
        """A run has been created that has a key."""
        inputs, fence = self._stored(new.inputs), self._by_key[run.key]
        self._dedups[run.queue, place.dedup] = _Holder(
            run.id, fence, place.is_debounced, run.workflow, run.created_at, inputs if is_reference(inputs) else None
        )

    def _joined(self, new: NewRun) -> str | None:
        """The id of the run that a start joins because of its key, once it has been put off; ``None``: there is none.

        What large inputs there are that nobody needs now is swept away with what runs leave.
        """
        holder = self._holder(new)
        if holder is None:
            return None
        if holder.fence.state in TERMINAL:  # by this transaction
            self._flush("runs")  # lest the database sees two that have the key
            return None
        inputs, unused = self._stored(new.inputs), None
        if self._is_put_off(holder, new):
            unused, holder.inputs = holder.inputs, inputs if is_reference(inputs) else None
            until = rules.put_off_until(new, holder.created_at, self._now)
            key = holder.fence.key
            row = (inputs, new.digest, new.version, new.deadline, until, self._now, key)
            self._later("runs", self._sql.REPLACE_INPUTS, key, row)
        elif is_reference(inputs):
            unused = inputs
        if unused is not None:
            self._db.write(self._sql.NOTE_REPLACED, [(self._next_key(), unused)])
        return holder.id

    def _is_put_off(self, holder: _Holder, new: NewRun) -> bool:
        """Whether a start that joins this run changes it."""
        if new.put_off_most is None or not holder.is_debounced:
            return False
        return holder.fence.epoch == 0 and holder.workflow == new.workflow

    def _holder(self, new: NewRun) -> _Holder | None:
        place = (new.queue, new.dedup)
        if place not in self._dedups:
            rows = self._db.lookup(self._sql.DEDUP, *place)
            self._dedups[place] = None
            if rows:
                *fence, debounced, workflow, created_at, inputs = rows[0]
                reference = inputs if is_reference(inputs) else None
                known = self._know(tuple(fence))
                self._dedups[place] = _Holder(rows[0][1], known, debounced == 1, workflow, created_at, reference)
        return self._dedups[place]
