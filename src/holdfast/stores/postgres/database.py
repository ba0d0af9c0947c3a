# ruff: noqa: D102 - what the methods are for is said once, in the base class
"""A PostgreSQL connection, as the code that all SQL stores share uses it: in as few round trips as possible.

Nothing is sent before somebody needs an answer. Then all that has come together goes out at once (see ``pipeline``),
and all answers come back together: what was to be written, the question itself, and everything that was foreseen. So a
usual batch takes two trips: ``BEGIN``, the fences and what was foreseen; then all changes and ``COMMIT``. If one of
them fails, the server passes over the rest, up to the ``COMMIT``, and the transaction can only be rolled back.

Locks are taken in one order: runs by their keys, then sessions, accounts by their keys, and turns, so that two batches
rarely wait for each other in a circle. New keys are taken behind them, or those of a session would not rise; then comes
what was foreseen, also if it was foreseen before.

A row that is there already, though it was not there when the transaction looked, is a ``Collision``: PostgreSQL waits
for the other one to commit, and then refuses the second. Whoever begins again finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from psycopg.errors import UniqueViolation
from psycopg.pq import TransactionStatus

from holdfast.stores.memories import Memory, MemoryChange
from holdfast.stores.postgres import memories, text_patterns
from holdfast.stores.postgres.adapters import Ints, Texts
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.dialect import Bulk, BulkLookup
from holdfast.stores.postgres.pipeline import Result, Sent, Trips, Unprepared, Waits
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.claims import PROMOTE
from holdfast.stores.sql.database import Collision, Database, Row, Values

_AMONG = 4
"""A claim looks at so many times as many runs as it wants: others may be taking the first ones just now."""
_AT_LEAST = 100
PLANS_AGE = 30.0
"""Seconds after which plans are made anew: a table may have grown a thousandfold, and statistics come late."""
_UNPREPARED_ATTEMPTS = 2
"""A name that is not known is prepared again, and one that is known then shows that nothing can be prepared."""

_BEGIN = Sent("BEGIN")
_BEGIN_READING = Sent("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = Sent("COMMIT")
_ROLLBACK = Sent("ROLLBACK")
_DISCARD_PLANS = Sent("DISCARD PLANS")

_statements = cache(PgStatements)


class PgDatabase(Database):
    """One connection."""

    sql: PgStatements  # pyright: ignore[reportIncompatibleVariableOverride] - nobody sets another one

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self.sql = _statements(schema)  # pyright: ignore[reportIncompatibleVariableOverride]
        self._is_open = False
        """A transaction has begun, if only here."""
        self._queue: list[Sent] = []
        """What is to be carried out, and to return nothing."""
        self._preamble = 0
        """How many statements at the beginning of a transaction's queue do nothing by themselves."""
        self._locks: list[tuple[Sent, Callable[[list[Row]], None] | None]] = []
        """What is to be locked behind the fences, and what to do with what comes back."""
        self._keys: list[int] = []
        """New ones that were foreseen."""
        self._foreseen: dict[str, dict[Row, None]] = {}
        self._answers: dict[str, dict[Row, list[Row]]] = {}
        self._totals = memories.Totals()
        self._trips = Trips(connection)
        self._planned_at = time.monotonic()
        self.patience: float | None = None
        """How many seconds a transaction waits for a row that others have locked, if not as long as usual."""

    # Transactions

    def begin(self) -> None:
        self._start(_BEGIN)

    def begin_reading(self) -> None:
        self._start(_BEGIN_READING)

    def _start(self, begin: Sent) -> None:
        self._renew_plans()
        self._forget_all()
        self._is_open = True
        self._queue.append(begin)
        if settings := self.connection.settings_sql:
            self._queue.append(Sent(settings))
        if self.patience is not None:
            self._queue.append(Sent(f"SET LOCAL lock_timeout = {self.patience * 1000:.0f}"))
        self._preamble = len(self._queue)

    def _renew_plans(self) -> None:
        """Let the server make its plans anew, now and then; behind a pooler it keeps none."""
        if self._plans_are_old():
            self._trips.make([_DISCARD_PLANS])
            self._planned_at = time.monotonic()

    def _plans_are_old(self) -> bool:
        return time.monotonic() - self._planned_at > PLANS_AGE and not self.connection.is_pooled

    def commit(self) -> None:
        self._foreseen.clear()
        self._locks.clear()
        if self._totals:
            self._queue.append(Sent(self.sql.ADD_TOTALS, self._totals.row()))
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE or len(self._queue) > self._preamble:
            self._trip(last=_COMMIT)
        self._forget_all()

    def roll_back(self) -> None:
        self._forget_all()
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._trips.make([_ROLLBACK])

    def _forget_all(self) -> None:
        self._is_open = False
        self._queue.clear()
        self._locks.clear()
        self._keys.clear()
        self._foreseen.clear()
        self._answers.clear()
        self._totals = memories.Totals()

    # Statements

    def ask(self, statement: str, values: Values = ()) -> list[Row]:
        rows = self._single(statement, values).rows()
        return [row[1:] for row in rows] if isinstance(statement, BulkLookup) else rows

    def change(self, statement: str, values: Values = ()) -> int:
        return self._single(statement, values).count

    def write(self, statement: str, rows: Sequence[Row]) -> None:
        if isinstance(statement, Bulk):
            self._queue.append(Sent(statement, _columns(statement, rows)))
        else:
            self._queue.extend(Sent(statement, row) for row in rows)
        if not self._is_open:
            self._alone()

    def lookup(self, statement: str, *question: Any) -> list[Row]:
        known = self._answers.get(statement)
        found = None if known is None else known.get(question)
        if found is None:
            self.foresee({statement: [question]})
            self._trip() if self._is_open else self._alone()
            found = self._answers[statement][question]
        if not self._is_open:
            del self._answers[statement][question]  # the next one may find another answer
        return found

    def foresee(self, questions: Mapping[str, Collection[Row]]) -> None:
        for statement, asked in questions.items():
            known = self._answers.get(statement, {}) if self._is_open else {}
            if new := [question for question in asked if question not in known]:
                self._foreseen.setdefault(statement, {}).update(dict.fromkeys(new))

    def forget(self, statement: str, *question: Any) -> None:
        known = self._answers.get(statement)
        if known is None:
            return
        if question:
            known.pop(question, None)
        else:
            known.clear()

    def listed(self, values: Iterable[Any]) -> Ints | Texts:
        found = list(values)
        return Ints(found) if found and isinstance(found[0], int) else Texts(found)

    # Round trips

    def _single(self, statement: str, values: Values) -> Result:
        sent = Sent(statement, _columns(statement, [cast(Row, values)]) if isinstance(statement, Bulk) else values)
        return self._trip(last=sent) if self._is_open else self._alone(sent)

    def _alone(self, sent: Sent | None = None) -> Result:
        """A transaction of its own, for all that waits and for this."""
        self._renew_plans()
        queue, foreseen = list(self._queue), dict(self._foreseen)
        for _ in range(_UNPREPARED_ATTEMPTS):
            try:
                return self._try_alone(sent)
            except Unprepared:
                self._queue, self._foreseen = list(queue), dict(foreseen)
        return self._try_alone(sent)

    def _try_alone(self, sent: Sent | None) -> Result:
        settings = self.connection.settings_sql
        if settings:
            self._queue[:0] = [_BEGIN, Sent(settings)]
        elif self._queue:
            self._queue.insert(0, _BEGIN)
        commit = bool(self._queue)
        try:
            return self._trip(last=sent, commit=commit)
        except BaseException:
            if commit:
                self.roll_back()
            raise

    def _trip(self, first: Sent | None = None, last: Sent | None = None, commit: bool = False) -> Result:
        """Send everything, and return what came of the one that was given, or of the last one."""
        sent, self._queue = self._queue, []
        at = len(sent)
        if first is not None:
            sent.append(first)
        noted = [(number, note) for number, (_, note) in enumerate(self._locks, len(sent)) if note is not None]
        sent += [lock for lock, _ in self._locks]
        self._locks = []
        answers: list[tuple[str, list[Row], int]] = []
        for statement, questions in self._foreseen.items():
            for asked in [list(questions)] if isinstance(statement, Bulk) else [[question] for question in questions]:
                answers.append((statement, asked, len(sent)))
                sent.append(Sent(statement, _columns(statement, asked) if isinstance(statement, Bulk) else asked[0]))
        self._foreseen = {}
        if last is not None:
            at = len(sent)
            sent.append(last)
        if commit:
            sent.append(_COMMIT)
        try:
            results = self._trips.make(sent)
        except UniqueViolation as error:
            raise Collision(str(error)) from error
        for number, note in noted:
            note(results[number].rows())
        for statement, asked, number in answers:
            self._note_answers(statement, asked, results[number].rows())
        return results[min(at, len(results) - 1)]

    def _note_answers(self, statement: str, asked: Sequence[Row], rows: list[Row]) -> None:
        known = self._answers.setdefault(statement, {})
        if not isinstance(statement, BulkLookup):
            known[asked[0]] = rows
            return
        for question in asked:
            known[question] = []
        for number, *row in rows:
            known[asked[cast(int, number) - 1]].append(tuple(row))

    def _note_accounts(self, rows: list[Row]) -> None:
        known = self._answers.setdefault(self.sql.ACCOUNT, {})
        for row in rows:
            known.setdefault((row[0],), [row[1:]])

    # Runs

    def fences(self, keys: Collection[int], ids: Collection[str] = (), ending: Collection[int] = ()) -> Iterable[Row]:
        values = (Ints(keys), Texts(ids), Ints(ending))
        return self._trip(first=Sent(self.sql.FENCES, values)).rows()

    def append_fenced(self, rows: Sequence[Row]) -> bool:
        try:
            return self._alone(self._appended(rows)).count == len(rows)
        except Collision:
            return False

    def appending(self, rows: Sequence[Row]) -> Waits[bool] | None:
        """``append_fenced`` for whoever waits for the socket himself; ``None``: there is more to do than that."""
        if self.connection.is_pooled or self._plans_are_old():
            return None
        return self._append(self._appended(rows), len(rows))

    def _append(self, sent: Sent, count: int) -> Waits[bool]:
        try:
            [result] = yield from self._trips.steps([sent])
        except (UniqueViolation, Unprepared):
            return False
        return result.count == count

    def _appended(self, rows: Sequence[Row]) -> Sent:
        if len(rows) == 1:
            [row] = rows
            return Sent(self.sql.APPEND_ONE, (*row, row[0], row[9]))
        held = {(row[0], row[9]): None for row in rows}
        runs, epochs = Ints(run for run, _ in held), Ints(epoch for _, epoch in held)
        return Sent(self.sql.APPEND_FENCED, (runs, epochs, *_columns(self.sql.APPEND, rows), len(held)))

    def foresee_keys(self, count: int) -> None:
        self._locks.append((Sent(self.sql.NEW_KEYS, (count,)), self._note_keys))

    def _note_keys(self, rows: list[Row]) -> None:
        self._keys += [row[0] for row in rows]

    def new_keys(self, count: int) -> Sequence[int]:
        found, self._keys = self._keys[:count], self._keys[count:]
        if len(found) < count:
            found += [row[0] for row in self.ask(self.sql.NEW_KEYS, (count - len(found),))]
        return found

    def served(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return {"workflows": Texts(name for name, _ in workflows), "versions": Texts(one for _, one in workflows)}

    def due(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        served = self.served(workflows)
        self._queue.append(Sent(self.sql.PROMOTE_DUE, (*served.values(), now, PROMOTE)))
        values = {
            **served, "queues": None if queues is None else Texts(queues), "limit": limit,
            "few": limit * _AMONG + _AT_LEAST,
        }  # fmt: skip
        return [(row[0], row[1]) for row in self.ask(self.sql.DUE, values)]

    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        workflows, names = Texts(w for w, _ in sessions), Texts(name for _, name in sessions)
        self._locks.append((Sent(self.sql.LOCK_SESSIONS, (self.sql.schema, workflows, names)), None))

    def lock_turns(self, places: Collection[tuple[str, int, str]]) -> None:
        wanted = [place for place in places if place not in self._answers.get(self.sql.KEY_TURN, {})]
        values = (
            Texts(place[0] for place in wanted),
            Ints(place[1] for place in wanted),
            Texts(place[2] for place in wanted),
        )

        def note(rows: list[Row]) -> None:
            known = self._answers.setdefault(self.sql.KEY_TURN, {})
            known.update({place: [] for place in wanted})
            known.update({(queue, priority, key): [(turn,)] for queue, priority, key, turn in rows})

        if wanted:
            self._locks.append((Sent(self.sql.LOCK_TURNS, values), note))

    def lock_accounts(self, keys: Collection[int]) -> None:
        known = self._answers.get(self.sql.ACCOUNT, {})
        wanted = Ints(key for key in keys if (key,) not in known)
        if wanted:
            self._locks.append((Sent(self.sql.OPEN_ACCOUNTS, (wanted,)), None))
            self._locks.append((Sent(self.sql.LOCK_ACCOUNTS, (wanted,)), self._note_accounts))

    # Memories

    def change_memory(self, change: MemoryChange) -> None:
        self._totals += memories.change(self, change)

    def find_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        return memories.search(self, namespace, words, limit)

    # Searching

    def containing(self, text: str) -> tuple[str, list[Any]]:
        test, pattern = text_patterns.test(text)
        condition = self.sql.CONTAINING.replace("{test}", test)
        return condition, [pattern] * condition.count("%s")


def _columns(statement: Bulk | str, rows: Sequence[Row]) -> list[list[Any]]:
    """Rows as columns."""
    assert isinstance(statement, Bulk)
    return [made(column) for made, column in zip(statement.columns, zip(*rows, strict=True), strict=True)]
