"""A PostgreSQL connection, as the code that all SQL stores share uses it: in as few round trips as possible.

Nothing is sent before an answer is needed. Then everything that has gathered goes out at once (see ``pipeline``): what
is to be written, the query itself, and everything that was prefetched. All answers come back together.

Records alone take one trip: one statement (``APPEND_ONE`` or ``APPEND_FENCED``) locks the rows of their runs ``FOR
SHARE`` while it compares epochs. Any other batch usually takes two: ``BEGIN``, the fences, and what was prefetched;
then all changes and ``COMMIT``. If a statement fails, the server skips the rest, up to the ``COMMIT``, and the
transaction can only be rolled back.

Locks are taken in one order: runs by their keys, then sessions, accounts by their keys, and turns, so that two batches
rarely wait for each other in a circle. New keys are taken after them, or those of a session would not rise. Then comes
what is prefetched, even if the prefetch was requested earlier.

A row that exists although it did not when the transaction looked is a ``WriteConflict``: PostgreSQL waits for the other
transaction to commit, and then refuses the second. A transaction that begins again finds the row.
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
from holdfast.stores.postgres.adapters import IntArray, TextArray
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.dialect import BulkLookup, BulkStatement
from holdfast.stores.postgres.pipeline import BoundStatement, Pipeline, Result, SocketGenerator, StalePreparedStatements
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.claims import MAX_PROMOTED_TIMERS
from holdfast.stores.sql.database import Database, Row, Values, WriteConflict

_CLAIM_LOOKAHEAD_FACTOR = 4
"""A claim looks at so many times as many runs as it wants: others may be taking the first ones just now."""
_MIN_CLAIM_LOOKAHEAD = 100
MAX_PLAN_AGE_S = 30.0
"""Seconds after which plans are made anew: a table may have grown a thousandfold, and statistics come late."""
_MAX_REPREPARE_ATTEMPTS = 2
"""A name that is not known is prepared again, and one that is known then shows that nothing can be prepared."""

_BEGIN = BoundStatement("BEGIN")
_BEGIN_READING = BoundStatement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = BoundStatement("COMMIT")
_ROLLBACK = BoundStatement("ROLLBACK")
_DISCARD_PLANS = BoundStatement("DISCARD PLANS")

_get_statements = cache(PgStatements)


class PgDatabase(Database):
    """One connection."""

    sql: PgStatements  # pyright: ignore[reportIncompatibleVariableOverride] - nobody sets another one

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self.sql = _get_statements(schema)  # pyright: ignore[reportIncompatibleVariableOverride]
        self._is_in_transaction = False
        """A transaction has begun, if only here."""
        self._pending_writes: list[BoundStatement] = []
        """What is to be carried out, and to return nothing."""
        self._preamble_count = 0
        """How many statements at the beginning of a transaction's queue do nothing by themselves."""
        self._pending_locks: list[tuple[BoundStatement, Callable[[list[Row]], None] | None]] = []
        """What is to be locked behind the fences, and what to do with what comes back."""
        self._prefetched_keys: list[int] = []
        """New ones that were foreseen."""
        self._pending_lookups: dict[str, dict[Row, None]] = {}
        self._lookup_cache: dict[str, dict[Row, list[Row]]] = {}
        self._memory_totals = memories.TotalsDelta()
        self._pipeline = Pipeline(connection)
        self._planned_at = time.monotonic()
        self.lock_timeout_s: float | None = None
        """How many seconds a transaction waits for a row that others have locked, if not as long as usual."""

    # Transactions

    def begin(self) -> None:
        self._start_transaction(_BEGIN)

    def begin_snapshot(self) -> None:
        self._start_transaction(_BEGIN_READING)

    def _start_transaction(self, begin: BoundStatement) -> None:
        self._discard_old_plans()
        self._reset()
        self._is_in_transaction = True
        self._pending_writes.append(begin)
        if settings := self.connection.settings_sql:
            self._pending_writes.append(BoundStatement(settings))
        if self.lock_timeout_s is not None:
            self._pending_writes.append(BoundStatement(f"SET LOCAL lock_timeout = {self.lock_timeout_s * 1000:.0f}"))
        self._preamble_count = len(self._pending_writes)

    def _discard_old_plans(self) -> None:
        """Let the server make its plans anew, now and then; behind a pooler it keeps none."""
        if self._has_old_plans():
            self._pipeline.run([_DISCARD_PLANS])
            self._planned_at = time.monotonic()

    def _has_old_plans(self) -> bool:
        return time.monotonic() - self._planned_at > MAX_PLAN_AGE_S and not self.connection.is_pooled

    def commit(self) -> None:
        self._pending_lookups.clear()
        self._pending_locks.clear()
        if self._memory_totals:
            self._pending_writes.append(BoundStatement(self.sql.ADD_MEMORY_TOTALS, self._memory_totals.to_row()))
        if (
            self.connection.pgconn.transaction_status != TransactionStatus.IDLE
            or len(self._pending_writes) > self._preamble_count
        ):
            self._flush(last=_COMMIT)
        self._reset()

    def roll_back(self) -> None:
        self._reset()
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._pipeline.run([_ROLLBACK])

    def _reset(self) -> None:
        self._is_in_transaction = False
        self._pending_writes.clear()
        self._pending_locks.clear()
        self._prefetched_keys.clear()
        self._pending_lookups.clear()
        self._lookup_cache.clear()
        self._memory_totals = memories.TotalsDelta()

    # Statements

    def query(self, statement: str, values: Values = ()) -> list[Row]:
        rows = self._run_single(statement, values).load_rows()
        return [row[1:] for row in rows] if isinstance(statement, BulkLookup) else rows

    def execute(self, statement: str, values: Values = ()) -> int:
        return self._run_single(statement, values).row_count

    def write(self, statement: str, rows: Sequence[Row]) -> None:
        if isinstance(statement, BulkStatement):
            self._pending_writes.append(BoundStatement(statement, _rows_to_columns(statement, rows)))
        else:
            self._pending_writes.extend(BoundStatement(statement, row) for row in rows)
        if not self._is_in_transaction:
            self._run_in_own_transaction()

    def lookup(self, statement: str, *parameters: Any) -> list[Row]:
        known = self._lookup_cache.get(statement)
        found = None if known is None else known.get(parameters)
        if found is None:
            self.prefetch({statement: [parameters]})
            self._flush() if self._is_in_transaction else self._run_in_own_transaction()
            found = self._lookup_cache[statement][parameters]
        if not self._is_in_transaction:
            del self._lookup_cache[statement][parameters]  # the next one may find another answer
        return found

    def prefetch(self, lookups: Mapping[str, Collection[Row]]) -> None:
        for statement, asked in lookups.items():
            known = self._lookup_cache.get(statement, {}) if self._is_in_transaction else {}
            if new := [question for question in asked if question not in known]:
                self._pending_lookups.setdefault(statement, {}).update(dict.fromkeys(new))

    def discard_prefetched(self, statement: str, *parameters: Any) -> None:
        known = self._lookup_cache.get(statement)
        if known is None:
            return
        if parameters:
            known.pop(parameters, None)
        else:
            known.clear()

    def to_list_parameter(self, values: Iterable[Any]) -> IntArray | TextArray:
        found = list(values)
        return IntArray(found) if found and isinstance(found[0], int) else TextArray(found)

    # Round trips

    def _run_single(self, statement: str, values: Values) -> Result:
        sent = BoundStatement(
            statement,
            _rows_to_columns(statement, [cast(Row, values)]) if isinstance(statement, BulkStatement) else values,
        )
        return self._flush(last=sent) if self._is_in_transaction else self._run_in_own_transaction(sent)

    def _run_in_own_transaction(self, sent: BoundStatement | None = None) -> Result:
        """A transaction of its own, for all that waits and for this."""
        self._discard_old_plans()
        queue, foreseen = list(self._pending_writes), dict(self._pending_lookups)
        for _ in range(_MAX_REPREPARE_ATTEMPTS):
            try:
                return self._try_own_transaction(sent)
            except StalePreparedStatements:
                self._pending_writes, self._pending_lookups = list(queue), dict(foreseen)
        return self._try_own_transaction(sent)

    def _try_own_transaction(self, sent: BoundStatement | None) -> Result:
        settings = self.connection.settings_sql
        if settings:
            self._pending_writes[:0] = [_BEGIN, BoundStatement(settings)]
        elif self._pending_writes:
            self._pending_writes.insert(0, _BEGIN)
        commit = bool(self._pending_writes)
        try:
            return self._flush(last=sent, commit=commit)
        except BaseException:
            if commit:
                self.roll_back()
            raise

    def _flush(
        self, first: BoundStatement | None = None, last: BoundStatement | None = None, commit: bool = False
    ) -> Result:
        """Send everything, and return what came of the one that was given, or of the last one."""
        sent, self._pending_writes = self._pending_writes, []
        at = len(sent)
        if first is not None:
            sent.append(first)
        noted = [(number, note) for number, (_, note) in enumerate(self._pending_locks, len(sent)) if note is not None]
        sent += [lock for lock, _ in self._pending_locks]
        self._pending_locks = []
        answers: list[tuple[str, list[Row], int]] = []
        for statement, questions in self._pending_lookups.items():
            for asked in (
                [list(questions)] if isinstance(statement, BulkStatement) else [[question] for question in questions]
            ):
                answers.append((statement, asked, len(sent)))
                sent.append(
                    BoundStatement(
                        statement,
                        _rows_to_columns(statement, asked) if isinstance(statement, BulkStatement) else asked[0],
                    )
                )
        self._pending_lookups = {}
        if last is not None:
            at = len(sent)
            sent.append(last)
        if commit:
            sent.append(_COMMIT)
        try:
            results = self._pipeline.run(sent)
        except UniqueViolation as error:
            raise WriteConflict(str(error)) from error
        for number, note in noted:
            note(results[number].load_rows())
        for statement, asked, number in answers:
            self._cache_answers(statement, asked, results[number].load_rows())
        return results[min(at, len(results) - 1)]

    def _cache_answers(self, statement: str, asked: Sequence[Row], rows: list[Row]) -> None:
        known = self._lookup_cache.setdefault(statement, {})
        if not isinstance(statement, BulkLookup):
            known[asked[0]] = rows
            return
        for question in asked:
            known[question] = []
        for number, *row in rows:
            known[asked[cast(int, number) - 1]].append(tuple(row))

    def _cache_accounts(self, rows: list[Row]) -> None:
        known = self._lookup_cache.setdefault(self.sql.ACCOUNT, {})
        for row in rows:
            known.setdefault((row[0],), [row[1:]])

    # Runs

    def read_fences(
        self, keys: Collection[int], ids: Collection[str] = (), ending_keys: Collection[int] = ()
    ) -> Iterable[Row]:
        values = (IntArray(keys), TextArray(ids), IntArray(ending_keys))
        return self._flush(first=BoundStatement(self.sql.FENCES, values)).load_rows()

    def append_fenced(self, rows: Sequence[Row]) -> bool:
        try:
            return self._run_in_own_transaction(self._make_append(rows)).row_count == len(rows)
        except WriteConflict:
            return False

    def append_nonblocking(self, rows: Sequence[Row]) -> SocketGenerator[bool] | None:
        """``append_fenced`` for whoever waits for the socket himself; ``None``: there is more to do than that."""
        if self.connection.is_pooled or self._has_old_plans():
            return None
        return self._run_append(self._make_append(rows), len(rows))

    def _run_append(self, sent: BoundStatement, count: int) -> SocketGenerator[bool]:
        try:
            [result] = yield from self._pipeline.run_nonblocking([sent])
        except (UniqueViolation, StalePreparedStatements):
            return False
        return result.row_count == count

    def _make_append(self, rows: Sequence[Row]) -> BoundStatement:
        if len(rows) == 1:
            [row] = rows
            return BoundStatement(self.sql.APPEND_ONE, (*row, row[0], row[9]))
        held = {(row[0], row[9]): None for row in rows}
        runs, epochs = IntArray(run for run, _ in held), IntArray(epoch for _, epoch in held)
        return BoundStatement(
            self.sql.APPEND_FENCED, (runs, epochs, *_rows_to_columns(self.sql.APPEND_RECORD, rows), len(held))
        )

    def prefetch_keys(self, count: int) -> None:
        self._pending_locks.append((BoundStatement(self.sql.ALLOCATE_KEYS, (count,)), self._cache_keys))

    def _cache_keys(self, rows: list[Row]) -> None:
        self._prefetched_keys += [row[0] for row in rows]

    def allocate_keys(self, count: int) -> Sequence[int]:
        found, self._prefetched_keys = self._prefetched_keys[:count], self._prefetched_keys[count:]
        if len(found) < count:
            found += [row[0] for row in self.query(self.sql.ALLOCATE_KEYS, (count - len(found),))]
        return found

    def to_served_parameters(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return {
            "workflows": TextArray(name for name, _ in workflows),
            "versions": TextArray(one for _, one in workflows),
        }

    def lock_due_runs(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        served = self.to_served_parameters(workflows)
        self._pending_writes.append(BoundStatement(self.sql.PROMOTE_DUE, (*served.values(), now, MAX_PROMOTED_TIMERS)))
        values = {
            **served, "queues": None if queues is None else TextArray(queues), "limit": limit,
            "few": limit * _CLAIM_LOOKAHEAD_FACTOR + _MIN_CLAIM_LOOKAHEAD,
        }  # fmt: skip
        return [(row[0], row[1]) for row in self.query(self.sql.DUE_RUNS, values)]

    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        workflows, names = TextArray(w for w, _ in sessions), TextArray(name for _, name in sessions)
        self._pending_locks.append((BoundStatement(self.sql.LOCK_SESSIONS, (self.sql.schema, workflows, names)), None))

    def lock_turns(self, turn_keys: Collection[tuple[str, int, str]]) -> None:
        wanted = [place for place in turn_keys if place not in self._lookup_cache.get(self.sql.KEY_TURN, {})]
        values = (
            TextArray(place[0] for place in wanted),
            IntArray(place[1] for place in wanted),
            TextArray(place[2] for place in wanted),
        )

        def note(rows: list[Row]) -> None:
            known = self._lookup_cache.setdefault(self.sql.KEY_TURN, {})
            known.update({place: [] for place in wanted})
            known.update({(queue, priority, key): [(turn,)] for queue, priority, key, turn in rows})

        if wanted:
            self._pending_locks.append((BoundStatement(self.sql.LOCK_TURNS, values), note))

    def lock_accounts(self, keys: Collection[int]) -> None:
        known = self._lookup_cache.get(self.sql.ACCOUNT, {})
        wanted = IntArray(key for key in keys if (key,) not in known)
        if wanted:
            self._pending_locks.append((BoundStatement(self.sql.CREATE_ACCOUNTS, (wanted,)), None))
            self._pending_locks.append((BoundStatement(self.sql.LOCK_ACCOUNTS, (wanted,)), self._cache_accounts))

    # Memories

    def change_memory(self, change: MemoryChange) -> None:
        self._memory_totals += memories.apply_change(self, change)

    def search_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        return memories.search(self, namespace, words, limit)

    # Searching

    def make_text_condition(self, text: str) -> tuple[str, list[Any]]:
        test, pattern = text_patterns.make_predicate(text)
        condition = self.sql.TEXT_CONDITION.replace("{test}", test)
        return condition, [pattern] * condition.count("%s")


def _rows_to_columns(statement: BulkStatement | str, rows: Sequence[Row]) -> list[list[Any]]:
    """Rows as columns."""
    assert isinstance(statement, BulkStatement)
    return [made(column) for made, column in zip(statement.array_types, zip(*rows, strict=True), strict=True)]
