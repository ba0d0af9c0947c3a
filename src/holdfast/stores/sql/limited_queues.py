"""Claims from queues with limits: see ``admission.queue_limits`` for what is admitted, and ``stores.queues``.

**One at a time.** A claim locks the rows of the limited queues that it takes from, and leaves out those that another
claim has locked. So no other claim opens the same ``QueueAdmission``, and what is read about a queue stays true, except
that runs come and go: more may become due, and slots may become free. Runs are therefore chosen without a lock, then
locked, and only those that are still due are counted.

**No counter.** How many runs of a queue are running is counted in the index ``runs_executed``, which has only those. A
counter could become wrong. A park, an end, and a worker death free a slot without any further write.

**Throttled runs.** Due runs are ordered in an index, with one range for each version of a workflow in a queue. If the
key of a run is at its limits, all runs of that key are moved to another index, by key (``throttle_keys``). So the next
claims do not read them again, however many there are. ``queue_keys`` has the keys with such runs, and when to look at
them again: when their rates have room, or, if they have no slot, as soon as one becomes free. Then they compete with
all others in the usual order.

**Round trips.** The rows of the queues are read with what every claim reads first, and what is due in them together
with what is due elsewhere. A claim that serves no limited queue is not affected.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from holdfast.admission.queue_limits import Admission, QueueAdmission, QueueLimits, RateUsage
from holdfast.errors import UsageError
from holdfast.stores.sql.database import Database, Row

log = logging.getLogger("holdfast.stores")

MAX_THROTTLED_RUNS = 10_000
"""So many runs of a key are set aside at a time."""
MAX_THROTTLED_KEYS = 10_000
"""Of so many keys, what is set aside is looked at in a claim."""
_EXTRA_READ_COUNT = 100
"""A claim reads so many more runs than it wants, where keys may be at their limits."""
_MAX_ROUNDS = 8
"""So often a claim reads on because what it has read was set aside."""
MAX_PRIORITIES = 100
"""Of so many priorities, the highest ones, a queue knows whose turn it is."""
_MIN_KEY_RETENTION_S = 3600.0
"""Seconds for which the row of a key is kept."""

UNSTARTED, STARTED, THROTTLED_UNSTARTED, THROTTLED_STARTED, EXEMPT = 2, 3, 4, 5, 6
"""``runs.ready_state`` in limited queues. Runs that are to be cancelled are exempt from limits."""

ServedVersions = Sequence[tuple[str, str]]
"""Workflows and versions."""
PendingLookup = tuple[str, Row]
"""A lookup, and its values."""


class Candidate(NamedTuple):
    """A run that is due in a limited queue."""

    key: int
    queue_key: str
    priority: int
    turn: int
    ready_state: int

    @property
    def is_started(self) -> bool:
        """Whether it has begun, and needs nothing of the rates."""
        return self.ready_state not in (UNSTARTED, THROTTLED_UNSTARTED)

    @property
    def rank(self) -> tuple[int, ...]:
        """The order within its queue."""
        return (0 if self.is_started else 1, -self.priority, self.turn, self.key)


# What a claim asks


def get_lookups(db: Database, queues: Collection[str] | None) -> dict[str, Collection[Row]]:
    """What is to be foreseen by a claim that serves these queues."""
    return (
        {db.sql.LOCK_LIMITED_QUEUES: [()]}
        if queues is None
        else {db.sql.LOCK_LIMITED_QUEUE: [(name,) for name in queues]}
    )


def lock_limited_queues(
    db: Database, queues: Collection[str] | None, get_time: Callable[[float | None], float]
) -> list[LimitedQueue]:
    """The limited ones of these queues, which nobody else takes from before the commit.

    ``get_time`` tells what time it is now that they are held, if the database says this: one that was asked before
    might lie before the last claim of another.
    """
    [(statement, asked)] = get_lookups(db, queues).items()
    found: list[LimitedQueue] = []
    for row in (row for one in asked for row in db.lookup(statement, *one)):
        limits = parse_limits(row[1])
        if limits is None:
            log.warning("nothing is taken from queue %r: %r are not limits that this Holdfast can read", row[0], row[1])
        else:
            found.append(LimitedQueue(row, limits, get_time(row[5])))
    return found


def choose_runs(
    db: Database,
    limited: Sequence[LimitedQueue],
    served: ServedVersions,
    queues: Collection[str] | None,
    limit: int,
    now: float,
) -> list[int]:
    """The keys of up to ``limit`` runs that are due, in limited queues and others, locked, in claiming order."""
    _prefetch(db, [one for queue in limited for one in queue.get_initial_lookups(db)])
    _prefetch(db, [one for queue in limited for one in queue.get_ready_lookups(db, served, limit)])
    chosen: list[int] = []
    due = db.lock_due_runs(served, queues, limit, now)
    for queue in limited:
        queue.read_initial(db)
    for _ in range(_MAX_ROUNDS):
        for queue in limited:
            queue.read_ready(db, served, limit)
        _read_keys(db, limited, served, limit)
        chosen = _merge_by_priority(due, limited, limit)
        goes_on = [queue.throttle_keys(db) for queue in limited]
        if len(chosen) == limit or not any(goes_on):
            break
        db.discard_prefetched(db.sql.READY_RUNS)
        db.discard_prefetched(db.sql.THROTTLED_RUNS)
        _prefetch(db, [one for queue in limited for one in queue.get_ready_lookups(db, served, limit)])
    wanted = [candidate.key for queue in limited for candidate in queue.chosen]
    locked = {row[0] for row in db.query(db.sql.LOCK_DUE, (db.to_list_parameter(wanted),))} if wanted else set[int]()
    locked.update(key for _, key in due)
    for queue in limited:
        queue.count_chosen(locked)
    return [key for key in chosen if key in locked]


def _prefetch(db: Database, lookups: Iterable[PendingLookup]) -> None:
    gathered: dict[str, list[Row]] = {}
    for statement, question in lookups:
        gathered.setdefault(statement, []).append(question)
    db.prefetch(gathered)


def _read_keys(db: Database, limited: Sequence[LimitedQueue], served: ServedVersions, limit: int) -> None:
    asked = [list(queue.get_key_lookups(db, served, limit)) for queue in limited]
    _prefetch(db, [one for several in asked for one in several])
    for queue, several in zip(limited, asked, strict=True):
        queue.read_keys(db, several)


def _merge_by_priority(due: Sequence[tuple[int, int]], limited: Sequence[LimitedQueue], limit: int) -> list[int]:
    """Of those that are next in their queues the first, again and again."""
    chosen: list[int] = []
    at = 0
    while len(chosen) < limit:
        heads: list[tuple[int, int, LimitedQueue | None]] = []
        if at < len(due):
            heads.append((-due[at][0], due[at][1], None))
        for queue in limited:
            head = queue.find_next()
            if head is not None:
                heads.append((-head.priority, head.key, queue))
        if not heads:
            break
        _, key, queue = min(heads, key=lambda head: head[:2])
        chosen.append(key)
        if queue is None:
            at += 1
        else:
            queue.choose_next()
    for queue in limited:
        queue.scan_rest()
    return chosen


class LimitedQueue:
    """A limited queue during a claim, which holds its row."""

    def __init__(self, row: Row, limits: QueueLimits, now: float) -> None:
        self.name: str = row[0]
        self.limits = limits
        self.chosen: list[Candidate] = []
        self._saved_row: Row = row[2:5]
        """Its turns, what is used of its rates, and when they let the next run begin."""
        self._now = now
        self._running_counts: dict[str, int] = {}
        self._charges: list[tuple[str, int, float]] = []
        self._used_by_key: dict[str, RateUsage] = {}
        self._throttled_keys: set[str] = set()
        """Keys with runs that are set aside, and are to be looked at."""
        self._keys_to_throttle: set[str] = set()
        """Keys with runs that are to be set aside."""
        self._changed_keys: set[str] = set()
        """Keys whose row is to be written."""
        self._has_more = False
        """There are runs that are due, and have not been read."""
        self._candidates: list[Candidate] = []
        self._index = 0
        self._gate = self._make_gate()

    # Reading

    def get_initial_lookups(self, db: Database) -> Iterator[PendingLookup]:
        """What is asked once."""
        if self.limits.concurrency is not None or self.limits.key_concurrency is not None:
            yield db.sql.RUNNING_COUNTS, (self.name,)
        if self.limits.has_token_rate:
            yield db.sql.CONSUME_CHARGES, (self.name,)
        yield db.sql.THROTTLED_KEYS, (self.name, self._now, MAX_THROTTLED_KEYS)  # also if keys have no limits any more

    def read_initial(self, db: Database) -> None:
        """Take the answers to that."""
        for statement, question in self.get_initial_lookups(db):
            rows = db.lookup(statement, *question)
            if statement == db.sql.RUNNING_COUNTS:
                self._running_counts = {row[0]: row[1] for row in rows}
            elif statement == db.sql.CONSUME_CHARGES:
                self._charges = sorted(((row[0], row[1], row[2]) for row in rows), key=lambda charge: charge[2])
            else:
                self._throttled_keys = {row[0] for row in rows}
                self._used_by_key = {row[0]: parse_rate_usage(row[1]) for row in rows}
        if self.limits.key_rates:
            self._changed_keys.update(key for key, _, _ in self._charges)

    def get_ready_lookups(self, db: Database, served: ServedVersions, limit: int) -> Iterator[PendingLookup]:
        """What is asked in each round: for the runs that are due, and not set aside."""
        few = self._get_read_limit(limit)
        for workflow, version in served:
            for ready in (EXEMPT, STARTED, UNSTARTED):
                yield db.sql.READY_RUNS, (self.name, workflow, version, ready, few)

    def read_ready(self, db: Database, served: ServedVersions, limit: int) -> None:
        """Take the answers to that."""
        found = [db.lookup(statement, *question) for statement, question in self.get_ready_lookups(db, served, limit)]
        self._has_more = any(len(rows) == self._get_read_limit(limit) for rows in found)
        self._candidates = [Candidate(*row) for rows in found for row in rows]
        self._gate = self._make_gate()

    def get_key_lookups(self, db: Database, served: ServedVersions, limit: int) -> Iterator[PendingLookup]:
        """What is asked then, about keys: for the runs that are set aside, and what is used of rates."""
        for key in sorted(self._throttled_keys):
            places = self._gate.get_key_free_slot_count(key)
            few = limit if places is None else min(limit, places)
            for workflow, version in served if few else ():
                for ready in (THROTTLED_STARTED, THROTTLED_UNSTARTED):
                    yield db.sql.THROTTLED_RUNS, (self.name, key, ready, workflow, version, few)
        if self.limits.key_rates:
            keys = {candidate.queue_key for candidate in self._candidates} | self._changed_keys
            for key in sorted(keys - self._used_by_key.keys()):
                yield db.sql.KEY_RATE_USAGE, (self.name, key)

    def read_keys(self, db: Database, lookups: Iterable[PendingLookup]) -> None:
        """Take the answers to that, and be ready to choose."""
        for statement, question in lookups:
            rows = db.lookup(statement, *question)
            if statement == db.sql.KEY_RATE_USAGE:
                self._used_by_key[question[1]] = parse_rate_usage(rows[0][0]) if rows else {}
            else:
                self._candidates += [Candidate(*row) for row in rows]
        self._candidates.sort(key=lambda candidate: candidate.rank)
        self._gate = self._make_gate()
        self.chosen, self._index = [], 0

    def _get_read_limit(self, limit: int) -> int:
        return 2 * limit + _EXTRA_READ_COUNT if self.limits.has_key_limits else limit

    def _make_gate(self) -> QueueAdmission:
        used, by_key = parse_rate_usage(self._saved_row[1]), self._used_by_key
        gate = QueueAdmission(
            self.limits, self._now, running_by_key=self._running_counts, rate_usage=used, rate_usage_by_key=by_key
        )
        for key, tokens, at in self._charges:
            gate.charge_tokens(key, tokens, min(at, self._now))
        return gate

    # Choosing

    def find_next(self) -> Candidate | None:
        """The next run that is let through; keys at their limits that stand before it are passed over."""
        while self._index < len(self._candidates):
            candidate = self._candidates[self._index]
            if candidate.ready_state == EXEMPT:
                return candidate
            key, begun = candidate.queue_key, candidate.is_started
            if self._gate.decide(key, has_started=begun) is Admission.ADMITTED:
                return candidate
            if self._gate.get_key_free_slot_count(key) == 0 or not (begun or self._gate.has_key_rate_capacity(key)):
                self._changed_keys.add(key)
                if candidate.ready_state in (STARTED, UNSTARTED):
                    self._keys_to_throttle.add(key)
            self._index += 1
        return None

    def choose_next(self) -> None:
        """Choose the head."""
        candidate = self._candidates[self._index]
        self._gate.admit(candidate.queue_key, has_started=candidate.is_started)
        self.chosen.append(candidate)
        self._index += 1

    def scan_rest(self) -> None:
        """Pass over the keys at their limits that stand behind those that were chosen."""
        while self.find_next() is not None:
            self._index += 1

    def throttle_keys(self, db: Database) -> bool:
        """Set aside all runs of the keys that were passed over. Whether there may be others that are let through."""
        rows: list[Row] = []
        for key in sorted(self._keys_to_throttle):
            rows.append((self.name, key, UNSTARTED, MAX_THROTTLED_RUNS))
            if self._gate.get_key_free_slot_count(key) == 0:
                rows.append((self.name, key, STARTED, MAX_THROTTLED_RUNS))
        if rows:
            db.write(db.sql.THROTTLE_RUNS, rows)
        self._throttled_keys |= self._keys_to_throttle
        self._keys_to_throttle = set()
        return bool(rows) and self._has_more and self._gate.free_slot_count != 0

    # Keeping

    def count_chosen(self, locked_keys: Collection[int]) -> None:
        """Count those that were chosen, as far as they are locked."""
        self._gate = self._make_gate()
        turns = parse_turns(self._saved_row[0])
        for candidate in self.chosen:
            if candidate.key in locked_keys:
                self._gate.admit(candidate.queue_key, has_started=candidate.is_started)
                if not candidate.is_started:
                    turns[candidate.priority] = max(turns.get(candidate.priority, 0), candidate.turn)
                if self.limits.key_rates or candidate.ready_state in (THROTTLED_STARTED, THROTTLED_UNSTARTED):
                    self._changed_keys.add(candidate.queue_key)
        self._turns = dict(sorted(turns.items())[-MAX_PRIORITIES:])

    def save(self, db: Database) -> None:
        """Write how the gate was left, once the runs that were chosen are taken."""
        kept = (json.dumps(self._turns), json.dumps(self._gate.rate_usage), self._gate.get_next_start_at())
        if kept != self._saved_row:
            db.write(db.sql.SAVE_QUEUE_STATE, [(*kept, self.name)])
        if self._changed_keys:
            db.write(db.sql.SAVE_KEY_STATE, [self._make_key_row(key) for key in sorted(self._changed_keys)])

    def _make_key_row(self, key: str) -> Row:
        open_at = self._gate.get_key_next_start_at(key)
        longest = max((rate.window_s for rate in self.limits.key_rates), default=0.0)
        until = max(open_at, self._now) + max(longest, _MIN_KEY_RETENTION_S)
        return (self.name, key, json.dumps(self._gate.get_key_rate_usage(key)), open_at, until)


# Columns


def parse_limits(text: str) -> QueueLimits | None:
    """The limits in a column; ``None``: they were written by a newer Holdfast, or changed by hand."""
    try:
        return QueueLimits.from_json(text)
    except (TypeError, ValueError, UsageError):
        return None


def parse_turns(text: str) -> dict[int, int]:
    """The turns of a queue, by priority; none, if they cannot be read."""
    try:
        turns: Any = json.loads(text)
        return {int(priority): int(turn) for priority, turn in turns.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def parse_rate_usage(text: str) -> RateUsage:
    """What is used of rates; nothing, if it cannot be read."""
    try:
        numbers: Any = json.loads(text)
    except ValueError:
        return {}
    return cast(RateUsage, numbers) if isinstance(numbers, dict) else {}
