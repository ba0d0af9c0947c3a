"""Claims from queues with limits: see ``admission.queue_limits`` for what is let through, and ``stores.queues``.

**One at a time.** A claim holds the rows of the limited queues that it takes from, and leaves out those that others
hold. So nobody else opens the same gate, and what is read of a queue stays true, except that runs come and go: more may
become due, and places may become free. Runs are therefore chosen without a lock, then locked, and only those that are
still due then are counted.

**Set aside.** Runs that are due stand in order in an index, one stretch for each version of a workflow in a queue. If
the key of one is at its limits, all runs of that key are *set aside*: they leave these stretches, and stand in others,
by key. So the next claims do not have to read them again, whatever their number. ``queue_keys`` tells which keys have
such runs, and when to look at them again: once their rates have room; or, if they have no place, as soon as one becomes
free. Those are looked at as well, and compete with all others in the usual order.

**Round trips.** The rows of the queues are read with what every claim reads first, and what is due in them together
with what is due elsewhere. A claim that serves no limited queue does not notice that there could be some.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from holdfast.admission.queue_limits import Admission, Gate, QueueLimits, RateNumbers
from holdfast.errors import UsageError
from holdfast.stores.sql.database import Database, Row

log = logging.getLogger("holdfast.stores")

MOST_ASIDE = 10_000
"""So many runs of a key are set aside at a time."""
MOST_KEYS_ASIDE = 10_000
"""Of so many keys, what is set aside is looked at in a claim."""
_A_FEW_MORE = 100
"""A claim reads so many more runs than it wants, where keys may be at their limits."""
_ROUNDS = 8
"""So often a claim reads on because what it has read was set aside."""
MOST_PRIORITIES = 100
"""Of so many priorities, the highest ones, a queue knows whose turn it is."""
_AT_LEAST = 3600.0
"""Seconds for which the row of a key is kept."""

UNBEGUN, BEGUN, ASIDE_UNBEGUN, ASIDE_BEGUN, EXEMPT = 2, 3, 4, 5, 6
"""``runs.ready`` in limited queues. Runs that are to be cancelled are exempt from limits."""

Served = Sequence[tuple[str, str]]
"""Workflows and versions."""
Question = tuple[str, Row]
"""A lookup, and its values."""


class Candidate(NamedTuple):
    """A run that is due in a limited queue."""

    key: int
    queue_key: str
    priority: int
    turn: int
    ready: int

    @property
    def begun(self) -> bool:
        """Whether it has begun, and needs nothing of the rates."""
        return self.ready not in (UNBEGUN, ASIDE_UNBEGUN)

    @property
    def rank(self) -> tuple[int, ...]:
        """The order within its queue."""
        return (0 if self.begun else 1, -self.priority, self.turn, self.key)


# What a claim asks


def questions(db: Database, queues: Collection[str] | None) -> dict[str, Collection[Row]]:
    """What is to be foreseen by a claim that serves these queues."""
    return {db.sql.LIMITED_ALL: [()]} if queues is None else {db.sql.LIMITED: [(name,) for name in queues]}


def held(db: Database, queues: Collection[str] | None, time: Callable[[float | None], float]) -> list[LimitedQueue]:
    """The limited ones of these queues, which nobody else takes from before the commit.

    ``time`` tells what time it is now that they are held, if the database says this: one that was asked before might
    lie before the last claim of another.
    """
    [(statement, asked)] = questions(db, queues).items()
    found: list[LimitedQueue] = []
    for row in (row for one in asked for row in db.lookup(statement, *one)):
        limits = read_limits(row[1])
        if limits is None:
            log.warning("nothing is taken from queue %r: %r are not limits that this Holdfast can read", row[0], row[1])
        else:
            found.append(LimitedQueue(row, limits, time(row[5])))
    return found


def choose(
    db: Database,
    limited: Sequence[LimitedQueue],
    served: Served,
    queues: Collection[str] | None,
    limit: int,
    now: float,
) -> list[int]:
    """The keys of up to ``limit`` runs that are due, in limited queues and others, locked, in claiming order."""
    _foresee(db, [one for queue in limited for one in queue.first_questions(db)])
    _foresee(db, [one for queue in limited for one in queue.stretches(db, served, limit)])
    chosen: list[int] = []
    due = db.due(served, queues, limit, now)
    for queue in limited:
        queue.read_first(db)
    for _ in range(_ROUNDS):
        for queue in limited:
            queue.read(db, served, limit)
        _read_keys(db, limited, served, limit)
        chosen = _merged(due, limited, limit)
        goes_on = [queue.set_aside(db) for queue in limited]
        if len(chosen) == limit or not any(goes_on):
            break
        db.forget(db.sql.STRETCH)
        db.forget(db.sql.ASIDE_RUNS)
        _foresee(db, [one for queue in limited for one in queue.stretches(db, served, limit)])
    wanted = [candidate.key for queue in limited for candidate in queue.chosen]
    locked = {row[0] for row in db.ask(db.sql.LOCK_DUE, (db.listed(wanted),))} if wanted else set[int]()
    locked.update(key for _, key in due)
    for queue in limited:
        queue.count(locked)
    return [key for key in chosen if key in locked]


def _foresee(db: Database, asked: Iterable[Question]) -> None:
    gathered: dict[str, list[Row]] = {}
    for statement, question in asked:
        gathered.setdefault(statement, []).append(question)
    db.foresee(gathered)


def _read_keys(db: Database, limited: Sequence[LimitedQueue], served: Served, limit: int) -> None:
    asked = [list(queue.of_keys(db, served, limit)) for queue in limited]
    _foresee(db, [one for several in asked for one in several])
    for queue, several in zip(limited, asked, strict=True):
        queue.read_keys(db, several)


def _merged(due: Sequence[tuple[int, int]], limited: Sequence[LimitedQueue], limit: int) -> list[int]:
    """Of those that are next in their queues the first, again and again."""
    chosen: list[int] = []
    at = 0
    while len(chosen) < limit:
        heads: list[tuple[int, int, LimitedQueue | None]] = []
        if at < len(due):
            heads.append((-due[at][0], due[at][1], None))
        for queue in limited:
            head = queue.head()
            if head is not None:
                heads.append((-head.priority, head.key, queue))
        if not heads:
            break
        _, key, queue = min(heads, key=lambda head: head[:2])
        chosen.append(key)
        if queue is None:
            at += 1
        else:
            queue.take()
    for queue in limited:
        queue.look_at_the_rest()
    return chosen


class LimitedQueue:
    """A limited queue during a claim, which holds its row."""

    def __init__(self, row: Row, limits: QueueLimits, now: float) -> None:
        self.name: str = row[0]
        self.limits = limits
        self.chosen: list[Candidate] = []
        self._kept: Row = row[2:5]
        """Its turns, what is used of its rates, and when they let the next run begin."""
        self._now = now
        self._executed: dict[str, int] = {}
        self._charges: list[tuple[str, int, float]] = []
        self._used_by_key: dict[str, RateNumbers] = {}
        self._aside: set[str] = set()
        """Keys with runs that are set aside, and are to be looked at."""
        self._passed: set[str] = set()
        """Keys with runs that are to be set aside."""
        self._changed: set[str] = set()
        """Keys whose row is to be written."""
        self._is_more = False
        """There are runs that are due, and have not been read."""
        self._candidates: list[Candidate] = []
        self._at = 0
        self._gate = self._new_gate()

    # Reading

    def first_questions(self, db: Database) -> Iterator[Question]:
        """What is asked once."""
        if self.limits.concurrency is not None or self.limits.key_concurrency is not None:
            yield db.sql.EXECUTED, (self.name,)
        if self.limits.counts_tokens:
            yield db.sql.TAKE_CHARGES, (self.name,)
        yield db.sql.ASIDE_KEYS, (self.name, self._now, MOST_KEYS_ASIDE)  # also if keys have no limits any more

    def read_first(self, db: Database) -> None:
        """Take the answers to that."""
        for statement, question in self.first_questions(db):
            rows = db.lookup(statement, *question)
            if statement == db.sql.EXECUTED:
                self._executed = {row[0]: row[1] for row in rows}
            elif statement == db.sql.TAKE_CHARGES:
                self._charges = sorted(((row[0], row[1], row[2]) for row in rows), key=lambda charge: charge[2])
            else:
                self._aside = {row[0] for row in rows}
                self._used_by_key = {row[0]: read_used(row[1]) for row in rows}
        if self.limits.key_rates:
            self._changed.update(key for key, _, _ in self._charges)

    def stretches(self, db: Database, served: Served, limit: int) -> Iterator[Question]:
        """What is asked in each round: for the runs that are due, and not set aside."""
        few = self._few(limit)
        for workflow, version in served:
            for ready in (EXEMPT, BEGUN, UNBEGUN):
                yield db.sql.STRETCH, (self.name, workflow, version, ready, few)

    def read(self, db: Database, served: Served, limit: int) -> None:
        """Take the answers to that."""
        found = [db.lookup(statement, *question) for statement, question in self.stretches(db, served, limit)]
        self._is_more = any(len(rows) == self._few(limit) for rows in found)
        self._candidates = [Candidate(*row) for rows in found for row in rows]
        self._gate = self._new_gate()

    def of_keys(self, db: Database, served: Served, limit: int) -> Iterator[Question]:
        """What is asked then, about keys: for the runs that are set aside, and what is used of rates."""
        for key in sorted(self._aside):
            places = self._gate.places_of(key)
            few = limit if places is None else min(limit, places)
            for workflow, version in served if few else ():
                for ready in (ASIDE_BEGUN, ASIDE_UNBEGUN):
                    yield db.sql.ASIDE_RUNS, (self.name, key, ready, workflow, version, few)
        if self.limits.key_rates:
            keys = {candidate.queue_key for candidate in self._candidates} | self._changed
            for key in sorted(keys - self._used_by_key.keys()):
                yield db.sql.KEY_USED, (self.name, key)

    def read_keys(self, db: Database, asked: Iterable[Question]) -> None:
        """Take the answers to that, and be ready to choose."""
        for statement, question in asked:
            rows = db.lookup(statement, *question)
            if statement == db.sql.KEY_USED:
                self._used_by_key[question[1]] = read_used(rows[0][0]) if rows else {}
            else:
                self._candidates += [Candidate(*row) for row in rows]
        self._candidates.sort(key=lambda candidate: candidate.rank)
        self._gate = self._new_gate()
        self.chosen, self._at = [], 0

    def _few(self, limit: int) -> int:
        return 2 * limit + _A_FEW_MORE if self.limits.any_per_key else limit

    def _new_gate(self) -> Gate:
        used, by_key = read_used(self._kept[1]), self._used_by_key
        gate = Gate(self.limits, self._now, running=self._executed, used=used, used_by_key=by_key)
        for key, tokens, at in self._charges:
            gate.charge(key, tokens, min(at, self._now))
        return gate

    # Choosing

    def head(self) -> Candidate | None:
        """The next run that is let through; keys at their limits that stand before it are passed over."""
        while self._at < len(self._candidates):
            candidate = self._candidates[self._at]
            if candidate.ready == EXEMPT:
                return candidate
            key, begun = candidate.queue_key, candidate.begun
            if self._gate.admits(key, begun=begun) is Admission.YES:
                return candidate
            if self._gate.places_of(key) == 0 or not (begun or self._gate.has_rate_of(key)):
                self._changed.add(key)
                if candidate.ready in (BEGUN, UNBEGUN):
                    self._passed.add(key)
            self._at += 1
        return None

    def take(self) -> None:
        """Choose the head."""
        candidate = self._candidates[self._at]
        self._gate.take(candidate.queue_key, begun=candidate.begun)
        self.chosen.append(candidate)
        self._at += 1

    def look_at_the_rest(self) -> None:
        """Pass over the keys at their limits that stand behind those that were chosen."""
        while self.head() is not None:
            self._at += 1

    def set_aside(self, db: Database) -> bool:
        """Set aside all runs of the keys that were passed over. Whether there may be others that are let through."""
        rows: list[Row] = []
        for key in sorted(self._passed):
            rows.append((self.name, key, UNBEGUN, MOST_ASIDE))
            if self._gate.places_of(key) == 0:
                rows.append((self.name, key, BEGUN, MOST_ASIDE))
        if rows:
            db.write(db.sql.SET_ASIDE, rows)
        self._aside |= self._passed
        self._passed = set()
        return bool(rows) and self._is_more and self._gate.places != 0

    # Keeping

    def count(self, locked: Collection[int]) -> None:
        """Count those that were chosen, as far as they are locked."""
        self._gate = self._new_gate()
        turns = read_turns(self._kept[0])
        for candidate in self.chosen:
            if candidate.key in locked:
                self._gate.take(candidate.queue_key, begun=candidate.begun)
                if not candidate.begun:
                    turns[candidate.priority] = max(turns.get(candidate.priority, 0), candidate.turn)
                if self.limits.key_rates or candidate.ready in (ASIDE_BEGUN, ASIDE_UNBEGUN):
                    self._changed.add(candidate.queue_key)
        self._turns = dict(sorted(turns.items())[-MOST_PRIORITIES:])

    def keep(self, db: Database) -> None:
        """Write how the gate was left, once the runs that were chosen are taken."""
        kept = (json.dumps(self._turns), json.dumps(self._gate.used), self._gate.next_at())
        if kept != self._kept:
            db.write(db.sql.KEEP_QUEUE, [(*kept, self.name)])
        if self._changed:
            db.write(db.sql.KEEP_KEY, [self._key_row(key) for key in sorted(self._changed)])

    def _key_row(self, key: str) -> Row:
        open_at = self._gate.next_at_of(key)
        longest = max((rate.window for rate in self.limits.key_rates), default=0.0)
        until = max(open_at, self._now) + max(longest, _AT_LEAST)
        return (self.name, key, json.dumps(self._gate.used_by(key)), open_at, until)


# Columns


def read_limits(text: str) -> QueueLimits | None:
    """The limits in a column; ``None``: they were written by a newer Holdfast, or changed by hand."""
    try:
        return QueueLimits.load(text)
    except (TypeError, ValueError, UsageError):
        return None


def read_turns(text: str) -> dict[int, int]:
    """The turns of a queue, by priority; none, if they cannot be read."""
    try:
        turns: Any = json.loads(text)
        return {int(priority): int(turn) for priority, turn in turns.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def read_used(text: str) -> RateNumbers:
    """What is used of rates; nothing, if it cannot be read."""
    try:
        numbers: Any = json.loads(text)
    except ValueError:
        return {}
    return cast(RateNumbers, numbers) if isinstance(numbers, dict) else {}
