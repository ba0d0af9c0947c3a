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
from holdfast.stores.sql.ready_states import ReadyState

log = logging.getLogger("holdfast.stores")

MAX_THROTTLED_RUNS = 10_000
"""Runs of a key that are throttled at a time."""
MAX_THROTTLED_KEYS = 10_000
"""Keys whose throttled runs a claim reads."""
_EXTRA_READ_COUNT = 100
"""Additional runs that a claim reads where keys may be at their limits."""
_MAX_ROUNDS = 8
"""How often a claim reads more runs because those it read were throttled."""
MAX_PRIORITIES = 100
"""Priorities, the highest ones, for which a queue keeps the current turn."""
_MIN_KEY_RETENTION_S = 3600.0
"""Seconds for which the row of a key is kept at least."""

UNSTARTED, STARTED = int(ReadyState.UNSTARTED), int(ReadyState.STARTED)
THROTTLED_UNSTARTED, THROTTLED_STARTED = int(ReadyState.THROTTLED_UNSTARTED), int(ReadyState.THROTTLED_STARTED)
EXEMPT = int(ReadyState.EXEMPT)
"""``runs.ready_state`` in limited queues, as exact ints: drivers look for an adapter of anything else."""

ServedVersions = Sequence[tuple[str, str]]
"""Workflows and versions."""
PendingLookup = tuple[str, Row]
"""A statement, and its values."""


class Candidate(NamedTuple):
    """A run that is due in a limited queue."""

    key: int
    queue_key: str
    priority: int
    turn: int
    ready_state: int

    @property
    def is_started(self) -> bool:
        """Whether it has started, and so needs no rate capacity."""
        return self.ready_state not in (UNSTARTED, THROTTLED_UNSTARTED)

    @property
    def rank(self) -> tuple[int, ...]:
        """The order within its queue."""
        return (0 if self.is_started else 1, -self.priority, self.turn, self.key)


# Claims


def get_lookups(db: Database, queues: Collection[str] | None) -> dict[str, Collection[Row]]:
    """The lookups that a claim from these queues prefetches."""
    if queues is None:
        return {db.sql.LOCK_LIMITED_QUEUES: [()]}
    return {db.sql.LOCK_LIMITED_QUEUE: [(name,) for name in queues]}


def lock_limited_queues(
    db: Database, queues: Collection[str] | None, get_time: Callable[[float | None], float]
) -> list[LimitedQueue]:
    """Lock the limited queues among these, so that no other claim takes runs from them before the commit.

    ``get_time`` returns the time from what the database reports, now that the queues are locked: a time from before
    might be earlier than another worker's last claim.
    """
    [(statement, lookups)] = get_lookups(db, queues).items()
    found: list[LimitedQueue] = []
    for row in (row for values in lookups for row in db.lookup(statement, *values)):
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
    """Lock up to ``limit`` due runs, in limited queues and others; returns their keys, in claiming order."""
    _prefetch(db, [lookup for queue in limited for lookup in queue.get_initial_lookups(db)])
    _prefetch(db, [lookup for queue in limited for lookup in queue.get_ready_lookups(db, served, limit)])
    chosen: list[int] = []
    due = db.lock_due_runs(served, queues, limit, now)
    for queue in limited:
        queue.read_initial(db)
    for _ in range(_MAX_ROUNDS):
        for queue in limited:
            queue.read_ready(db, served, limit)
        _read_keys(db, limited, served, limit)
        chosen = _merge_by_priority(due, limited, limit)
        may_have_more = [queue.throttle_keys(db) for queue in limited]
        if len(chosen) == limit or not any(may_have_more):
            break
        db.discard_prefetched(db.sql.READY_RUNS)
        db.discard_prefetched(db.sql.THROTTLED_RUNS)
        _prefetch(db, [lookup for queue in limited for lookup in queue.get_ready_lookups(db, served, limit)])
    wanted = [candidate.key for queue in limited for candidate in queue.chosen]
    locked = {row[0] for row in db.query(db.sql.LOCK_DUE, (db.to_list_parameter(wanted),))} if wanted else set[int]()
    locked.update(key for _, key in due)
    for queue in limited:
        queue.count_chosen(locked)
    return [key for key in chosen if key in locked]


def _prefetch(db: Database, lookups: Iterable[PendingLookup]) -> None:
    by_statement: dict[str, list[Row]] = {}
    for statement, values in lookups:
        by_statement.setdefault(statement, []).append(values)
    db.prefetch(by_statement)


def _read_keys(db: Database, limited: Sequence[LimitedQueue], served: ServedVersions, limit: int) -> None:
    lookups = [list(queue.get_key_lookups(db, served, limit)) for queue in limited]
    _prefetch(db, [lookup for queue_lookups in lookups for lookup in queue_lookups])
    for queue, queue_lookups in zip(limited, lookups, strict=True):
        queue.read_keys(db, queue_lookups)


def _merge_by_priority(due: Sequence[tuple[int, int]], limited: Sequence[LimitedQueue], limit: int) -> list[int]:
    """Merge the queues: repeatedly take the first of the runs that are next in their queues."""
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
    """A limited queue during a claim, which has locked its row."""

    def __init__(self, row: Row, limits: QueueLimits, now: float) -> None:
        self.name: str = row[0]
        self.limits = limits
        self.chosen: list[Candidate] = []
        self._saved_row: Row = row[2:5]
        """Its turns, the usage of its rates, and when they let the next run start."""
        self._now = now
        self._running_counts: dict[str, int] = {}
        self._charges: list[tuple[str, int, float]] = []
        self._used_by_key: dict[str, RateUsage] = {}
        self._throttled_keys: set[str] = set()
        """Keys with throttled runs that must be checked."""
        self._keys_to_throttle: set[str] = set()
        """Keys with runs that must be throttled."""
        self._changed_keys: set[str] = set()
        """Keys with a row that must be written."""
        self._has_more = False
        """There are due runs that have not been read."""
        self._candidates: list[Candidate] = []
        self._index = 0
        self._gate = self._make_gate()

    # Reading

    def get_initial_lookups(self, db: Database) -> Iterator[PendingLookup]:
        """The lookups that a claim makes once."""
        if self.limits.concurrency is not None or self.limits.key_concurrency is not None:
            yield db.sql.RUNNING_COUNTS, (self.name,)
        if self.limits.has_token_rate:
            yield db.sql.CONSUME_CHARGES, (self.name,)
        yield db.sql.THROTTLED_KEYS, (self.name, self._now, MAX_THROTTLED_KEYS)  # keys may have had limits before

    def read_initial(self, db: Database) -> None:
        for statement, values in self.get_initial_lookups(db):
            rows = db.lookup(statement, *values)
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
        """The lookups of each round: due runs that are not throttled."""
        max_rows = self._get_read_limit(limit)
        for workflow, version in served:
            for ready_state in (EXEMPT, STARTED, UNSTARTED):
                yield db.sql.READY_RUNS, (self.name, workflow, version, ready_state, max_rows)

    def read_ready(self, db: Database, served: ServedVersions, limit: int) -> None:
        found = [db.lookup(statement, *values) for statement, values in self.get_ready_lookups(db, served, limit)]
        self._has_more = any(len(rows) == self._get_read_limit(limit) for rows in found)
        self._candidates = [Candidate(*row) for rows in found for row in rows]
        self._gate = self._make_gate()

    def get_key_lookups(self, db: Database, served: ServedVersions, limit: int) -> Iterator[PendingLookup]:
        """The lookups about keys that follow: their throttled runs, and their rate usage."""
        for key in sorted(self._throttled_keys):
            free_slots = self._gate.get_key_free_slot_count(key)
            max_rows = limit if free_slots is None else min(limit, free_slots)
            for workflow, version in served if max_rows else ():
                for ready_state in (THROTTLED_STARTED, THROTTLED_UNSTARTED):
                    yield db.sql.THROTTLED_RUNS, (self.name, key, ready_state, workflow, version, max_rows)
        if self.limits.key_rates:
            keys = {candidate.queue_key for candidate in self._candidates} | self._changed_keys
            for key in sorted(keys - self._used_by_key.keys()):
                yield db.sql.KEY_RATE_USAGE, (self.name, key)

    def read_keys(self, db: Database, lookups: Iterable[PendingLookup]) -> None:
        """Read what was looked up about keys, and get ready to choose."""
        for statement, values in lookups:
            rows = db.lookup(statement, *values)
            if statement == db.sql.KEY_RATE_USAGE:
                self._used_by_key[values[1]] = parse_rate_usage(rows[0][0]) if rows else {}
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
        """The next run that is admitted. Notes the keys of earlier runs that are at their limits."""
        while self._index < len(self._candidates):
            candidate = self._candidates[self._index]
            if candidate.ready_state == EXEMPT:
                return candidate
            key, has_started = candidate.queue_key, candidate.is_started
            if self._gate.decide(key, has_started=has_started) is Admission.ADMITTED:
                return candidate
            has_capacity = has_started or self._gate.has_key_rate_capacity(key)
            if self._gate.get_key_free_slot_count(key) == 0 or not has_capacity:
                self._changed_keys.add(key)
                if candidate.ready_state in (STARTED, UNSTARTED):
                    self._keys_to_throttle.add(key)
            self._index += 1
        return None

    def choose_next(self) -> None:
        """Choose the run that ``find_next`` has found."""
        candidate = self._candidates[self._index]
        self._gate.admit(candidate.queue_key, has_started=candidate.is_started)
        self.chosen.append(candidate)
        self._index += 1

    def scan_rest(self) -> None:
        """Note the keys of the remaining runs that are at their limits."""
        while self.find_next() is not None:
            self._index += 1

    def throttle_keys(self, db: Database) -> bool:
        """Throttle all runs of the keys at their limits. Returns whether other runs might still be admitted."""
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

    # Saving

    def count_chosen(self, locked_keys: Collection[int]) -> None:
        """Admit the chosen runs that are locked."""
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
        """Write the state of the queue after the claim."""
        row = (json.dumps(self._turns), json.dumps(self._gate.rate_usage), self._gate.get_next_start_at())
        if row != self._saved_row:
            db.write(db.sql.SAVE_QUEUE_STATE, [(*row, self.name)])
        if self._changed_keys:
            db.write(db.sql.SAVE_KEY_STATE, [self._make_key_row(key) for key in sorted(self._changed_keys)])

    def _make_key_row(self, key: str) -> Row:
        next_start_at = self._gate.get_key_next_start_at(key)
        longest_window_s = max((rate.window_s for rate in self.limits.key_rates), default=0.0)
        expires_at = max(next_start_at, self._now) + max(longest_window_s, _MIN_KEY_RETENTION_S)
        return (self.name, key, json.dumps(self._gate.get_key_rate_usage(key)), next_start_at, expires_at)


# Columns


def parse_limits(text: str) -> QueueLimits | None:
    """The limits in a column; ``None``: a newer Holdfast wrote them, or they were changed by hand."""
    try:
        return QueueLimits.from_json(text)
    except (TypeError, ValueError, UsageError):
        return None


def parse_turns(text: str) -> dict[int, int]:
    """The turns of a queue by priority; empty if they cannot be read."""
    try:
        turns: Any = json.loads(text)
        return {int(priority): int(turn) for priority, turn in turns.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def parse_rate_usage(text: str) -> RateUsage:
    """The usage of rates; empty if it cannot be read."""
    try:
        numbers: Any = json.loads(text)
    except ValueError:
        return {}
    return cast(RateUsage, numbers) if isinstance(numbers, dict) else {}
