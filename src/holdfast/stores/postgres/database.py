"""A PostgreSQL connection for the code that all SQL stores share, with as few round trips as possible.

Nothing is sent before an answer is needed. Then everything pending goes out at once (see ``pipeline``): writes, the
query itself, and prefetches. All answers come back together.

A batch of records alone takes one round trip: one statement (``APPEND_ONE``, ``APPEND_FENCED``, or ``APPEND_USED``)
locks the rows of their runs ``FOR SHARE`` while it compares epochs. Any other batch usually takes two: ``BEGIN``, the
fences, and what was prefetched; then all changes and ``COMMIT``. The end of a run that leaves nothing else to do takes
only one as well (``FINISH_HELD``). If a statement fails, the server skips the rest, up to the ``COMMIT``, and the
transaction can only be rolled back.

Locks are taken in one order: runs by their keys, then sessions, accounts by their keys, and turns, so that two batches
rarely deadlock. New keys are allocated after the locks, otherwise the keys of a session would not rise. Then come the
prefetches, even if they were requested earlier.

A new row that another transaction has inserted meanwhile is a ``WriteConflict``: PostgreSQL waits for the other
transaction to commit, and then refuses this one. A transaction that starts over finds the row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from psycopg.errors import UniqueViolation
from psycopg.pq import TransactionStatus

from holdfast.stores.memories import Memory, MemoryChange
from holdfast.stores.operations import FinishRun
from holdfast.stores.postgres import memories, text_patterns
from holdfast.stores.postgres.adapters import FloatArray, IntArray, TextArray
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.dialect import BulkLookup, BulkStatement
from holdfast.stores.postgres.failover_check import FailoverCheck
from holdfast.stores.postgres.pipeline import BoundStatement, Pipeline, Result, SocketGenerator, StalePreparedStatements
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.batch import PlainOps
from holdfast.stores.sql.claims import MAX_PROMOTED_TIMERS
from holdfast.stores.sql.database import Database, Row, Values, WriteConflict
from holdfast.stores.sql.rows import finish_to_row, run_to_row

_CLAIM_LOOKAHEAD_FACTOR = 4
"""How many runs a claim reads for each run that it wants: other claims may be taking the first ones."""
_MIN_CLAIM_LOOKAHEAD = 100
MAX_PLAN_AGE_S = 30.0
"""Seconds after which plans are discarded: a table may have grown a thousandfold, and statistics lag behind."""
_MAX_REPREPARE_ATTEMPTS = 2
"""An unknown statement is prepared again. If its name exists then, the session is shared, and nothing is prepared."""

_BEGIN = BoundStatement("BEGIN")
_BEGIN_READING = BoundStatement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = BoundStatement("COMMIT")
_ROLLBACK = BoundStatement("ROLLBACK")
_DISCARD_PLANS = BoundStatement("DISCARD PLANS")

_get_statements = cache(PgStatements)


class PlainCommit(NamedTuple):
    """What was done of a commit of records and ends."""

    has_records: bool
    """The records were appended, all of them."""
    finished_keys: Collection[int] = ()
    """The runs that were ended."""
    started_keys: Mapping[str, int] = MappingProxyType({})
    """The keys of the runs that were started, by their ids."""


class PgDatabase(Database):
    """One connection."""

    sql: PgStatements  # pyright: ignore[reportIncompatibleVariableOverride] - never reassigned

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self.sql = _get_statements(schema)  # pyright: ignore[reportIncompatibleVariableOverride]
        self._is_in_transaction = False
        """A transaction has begun, even if ``BEGIN`` is still pending."""
        self._pending_writes: list[BoundStatement] = []
        """Statements whose results do not matter."""
        self._preamble_count = 0
        """How many of the pending statements only set up the transaction."""
        self._pending_locks: list[tuple[BoundStatement, Callable[[list[Row]], None] | None]] = []
        """Statements that lock rows after the fences, and what to call with the rows that they return."""
        self._prefetched_keys: list[int] = []
        """Newly allocated run keys."""
        self._pending_lookups: dict[str, dict[Row, None]] = {}
        self._lookup_cache: dict[str, dict[Row, list[Row]]] = {}
        self._memory_totals = (0, 0)
        """How many memories and words the transaction adds."""
        self._pipeline = Pipeline(connection)
        self._planned_at = time.monotonic()
        self.failover_check: FailoverCheck | None = None
        """For the connection that writes to held runs."""
        self.lock_timeout_s: float | None = None
        """Seconds that a transaction waits for a locked row, instead of the connection's usual limit."""

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
        """Make the server plan anew from time to time; behind a pooler it keeps no plans."""
        if self._has_old_plans():
            self._pipeline.run([_DISCARD_PLANS])
            self._planned_at = time.monotonic()

    def _has_old_plans(self) -> bool:
        return time.monotonic() - self._planned_at > MAX_PLAN_AGE_S and not self.connection.is_pooled

    def commit(self) -> None:
        self._pending_lookups.clear()
        self._pending_locks.clear()
        if self._memory_totals != (0, 0):
            slot = os.getpid() % memories.TOTALS_SLOT_COUNT
            self._pending_writes.append(BoundStatement(self.sql.ADD_MEMORY_TOTALS, (slot, *self._memory_totals)))
        if (
            self.connection.pgconn.transaction_status != TransactionStatus.IDLE
            or len(self._pending_writes) > self._preamble_count
        ):
            self._flush(last=_COMMIT)
        self._reset()

    def query_and_commit(self, statement: str, values: Values = ()) -> list[Row]:
        rows = self._flush(last=BoundStatement(statement, values), commit=True).load_rows()
        found, self._lookup_cache = self._lookup_cache, {}
        self._reset()
        self._lookup_cache = found
        return rows

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
        self._memory_totals = (0, 0)

    # Statements

    def query(self, statement: str, values: Values = ()) -> list[Row]:
        rows = self._run_single(statement, values).load_rows()
        return [row[1:] for row in rows] if isinstance(statement, BulkLookup) else rows

    def execute(self, statement: str, values: Values = ()) -> int:
        return self._run_single(statement, values).row_count

    def write(self, statement: str, rows: Sequence[Row]) -> None:
        if isinstance(statement, BulkStatement):
            self._pending_writes.append(_bind_rows(statement, rows))
        else:
            self._pending_writes.extend(BoundStatement(statement, row) for row in rows)
        if not self._is_in_transaction:
            self._run_in_own_transaction()

    def lookup(self, statement: str, *parameters: Any) -> list[Row]:
        cached = self._lookup_cache.get(statement)
        found = None if cached is None else cached.get(parameters)
        if found is None:
            self.prefetch({statement: [parameters]})
            self._flush() if self._is_in_transaction else self._run_in_own_transaction()
            found = self._lookup_cache[statement][parameters]
        if not self._is_in_transaction:
            del self._lookup_cache[statement][parameters]  # the next lookup may find another answer
        return found

    def prefetch(self, lookups: Mapping[str, Collection[Row]]) -> None:
        for statement, keys in lookups.items():
            cached = self._lookup_cache.get(statement, {}) if self._is_in_transaction else {}
            if new := [key for key in keys if key not in cached]:
                self._pending_lookups.setdefault(statement, {}).update(dict.fromkeys(new))

    def discard_prefetched(self, statement: str, *parameters: Any) -> None:
        cached = self._lookup_cache.get(statement, {})
        if parameters:
            cached.pop(parameters, None)
        else:
            cached.clear()

    def to_list_parameter(self, values: Iterable[Any]) -> IntArray | TextArray:
        items = list(values)
        return IntArray(items) if items and isinstance(items[0], int) else TextArray(items)

    # Round trips

    def _run_single(self, statement: str, values: Values) -> Result:
        is_bulk = isinstance(statement, BulkStatement)
        last = _bind_rows(statement, [cast(Row, values)]) if is_bulk else BoundStatement(statement, values)
        return self._flush(last=last) if self._is_in_transaction else self._run_in_own_transaction(last)

    def _run_in_own_transaction(self, last: BoundStatement | None = None) -> Result:
        """Run everything that is pending, and ``last``, in a transaction of its own."""
        self._discard_old_plans()
        writes, lookups = list(self._pending_writes), dict(self._pending_lookups)
        for _ in range(_MAX_REPREPARE_ATTEMPTS):
            try:
                return self._try_own_transaction(last)
            except StalePreparedStatements:
                self._pending_writes, self._pending_lookups = list(writes), dict(lookups)
        return self._try_own_transaction(last)

    def _try_own_transaction(self, last: BoundStatement | None) -> Result:
        settings = self.connection.settings_sql
        if settings:
            self._pending_writes[:0] = [_BEGIN, BoundStatement(settings)]
        elif self._pending_writes:
            self._pending_writes.insert(0, _BEGIN)
        commit = bool(self._pending_writes)
        try:
            return self._flush(last=last, commit=commit)
        except BaseException:
            if commit:
                self.roll_back()
            raise

    def _flush(
        self, first: BoundStatement | None = None, last: BoundStatement | None = None, commit: bool = False
    ) -> Result:
        """Send everything that is pending. Returns the result of ``first`` or ``last``, if given."""
        sent, self._pending_writes = self._pending_writes, []
        at = len(sent)
        if first is not None:
            sent.append(first)
        callbacks = [(number, on_rows) for number, (_, on_rows) in enumerate(self._pending_locks, len(sent)) if on_rows]
        sent += [lock for lock, _ in self._pending_locks]
        self._pending_locks = []
        lookups: list[tuple[str, list[Row], int]] = []
        for statement, keys in self._pending_lookups.items():
            if isinstance(statement, BulkStatement):
                lookups.append((statement, list(keys), len(sent)))
                sent.append(_bind_rows(statement, list(keys)))
            else:
                lookups += [(statement, [key], number) for number, key in enumerate(keys, len(sent))]
                sent += [BoundStatement(statement, key) for key in keys]
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
        for number, on_rows in callbacks:
            on_rows(results[number].load_rows())
        for statement, keys, number in lookups:
            self._cache_lookups(statement, keys, results[number].load_rows())
        return results[min(at, len(results) - 1)]

    def _cache_lookups(self, statement: str, keys: Sequence[Row], rows: list[Row]) -> None:
        cached = self._lookup_cache.setdefault(statement, {})
        if not isinstance(statement, BulkLookup):
            cached[keys[0]] = rows
            return
        for key in keys:
            cached[key] = []
        for number, *row in rows:
            cached[keys[cast(int, number) - 1]].append(tuple(row))

    def _cache_accounts(self, rows: list[Row]) -> None:
        cached = self._lookup_cache.setdefault(self.sql.ACCOUNT, {})
        for row in rows:
            cached.setdefault((row[0],), [row[1:]])

    # Runs

    def read_fences(
        self, keys: Collection[int], ids: Collection[str] = (), ending_keys: Collection[int] = ()
    ) -> Iterable[Row]:
        values = (IntArray(keys), TextArray(ids), IntArray(ending_keys))
        return self._flush(first=BoundStatement(self.sql.FENCES, values)).load_rows()

    def append_fenced(self, rows: Sequence[Row], usages: Sequence[Row] = ()) -> bool:
        if usages or self._must_check_any(rows):
            return False  # ``commit_nonblocking`` has tried usages
        try:
            return self._run_in_own_transaction(self._make_append(rows)).row_count == len(rows)
        except WriteConflict:
            return False

    def commit_nonblocking(self, plain: PlainOps, now: float) -> SocketGenerator[PlainCommit] | None:
        """Append records as ``append_fenced`` does, end runs, and start runs, for a caller that waits for the socket.

        ``None``: this takes more than one round trip.
        """
        if self.connection.is_pooled or self._has_old_plans() or self._must_check_any(plain.records, plain.finishes):
            return None
        return self._run_plain(plain, now)

    def _run_plain(self, plain: PlainOps, now: float) -> SocketGenerator[PlainCommit]:
        records, finishes, starts, usages = plain
        statements: list[BoundStatement] = []
        if finishes:
            statements.append(BoundStatement(self.sql.LOCK_RUNS, (IntArray(op.key for op in finishes),)))
        if records:
            statements.append(self._make_append(records, usages))
        if finishes:
            rows = [(*finish_to_row(op, op.output, op.error), op.epoch, int(op.respect_cancel)) for op in finishes]
            statements.append(_bind_rows(cast(BulkStatement, self.sql.FINISH_HELD), rows))
        if starts:
            workers = {(op.claim_as,) for op in starts if op.claim_as is not None}
            rows = [
                run_to_row(op.run, op.claim_as, now, op.run.inputs, op.run.previous_run, has_budget=False)
                for op in starts
            ]
            if workers:
                statements.append(_bind_rows(cast(BulkStatement, self.sql.IS_WORKER_LIVE), [*workers]))
            statements.append(_bind_rows(cast(BulkStatement, self.sql.START_NEW), rows))
        try:
            results = yield from self._pipeline.run_nonblocking(statements)  # without BEGIN, this is one transaction
        except (UniqueViolation, StalePreparedStatements):
            return PlainCommit(False)
        started = dict(results.pop().load_rows()) if starts else {}
        finished = frozenset(row[0] for row in results[2 if records else 1].load_rows()) if finishes else ()
        has_records = not records or results[1 if finishes else 0].row_count == len(records)
        return PlainCommit(has_records, finished, started)

    def query_nonblocking(self, statement: str, values: Values) -> SocketGenerator[list[Row] | None] | None:
        """Do what ``query`` does, for a caller that waits for the socket. ``None``: this takes more."""
        if self.connection.is_pooled or self._has_old_plans():
            return None
        return self._query_on_loop(BoundStatement(statement, values))

    def _query_on_loop(self, statement: BoundStatement) -> SocketGenerator[list[Row] | None]:
        try:
            [result] = yield from self._pipeline.run_nonblocking([statement])
        except StalePreparedStatements:
            return None
        return result.load_rows()

    def _make_append(self, rows: Sequence[Row], usages: Sequence[Row] = ()) -> BoundStatement:
        if len(rows) == 1 and not usages:
            [row] = rows
            return BoundStatement(self.sql.APPEND_ONE, (*row, row[0], row[9]))
        held = {(row[0], row[9]): None for row in rows}
        runs, epochs = IntArray(run for run, _ in held), IntArray(epoch for _, epoch in held)
        append = cast(BulkStatement, self.sql.APPEND_RECORD)
        values = (runs, epochs, *_rows_to_columns(append.array_types, rows), len(held))
        if not usages:
            return BoundStatement(self.sql.APPEND_FENCED, values)
        add_usage = cast(BulkStatement, self.sql.ADD_DAILY_USAGE)
        columns = _rows_to_columns((*add_usage.array_types, FloatArray), usages)
        return BoundStatement(self.sql.APPEND_USED, (*values, *columns))

    # Lost commits

    def must_check_claim(self, key: int) -> bool:
        return self.failover_check is not None and self.failover_check.must_check(key)

    def is_own_claim(self, key: int, run_id: str, owner: int | None) -> bool:
        return self.failover_check is None or self.failover_check.is_own_claim(key, run_id, owner)

    def must_replay(self, key: int) -> bool:
        return self.failover_check is not None and key in self.failover_check.carried_keys

    def note_intact_journal(self, key: int) -> None:
        if self.failover_check is not None:
            self.failover_check.note_intact(key)

    def _must_check_any(self, records: Sequence[Row], finishes: Sequence[FinishRun] = ()) -> bool:
        """Whether any of these runs must be checked before it is written to."""
        check = self.failover_check
        if check is None or not check.is_needed:
            return False
        keys = chain((row[0] for row in records), (op.key for op in finishes))
        return any(map(check.must_check, keys))

    # Keys, claims, and locks

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
            "versions": TextArray(version for _, version in workflows),
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
        new = [turn_key for turn_key in turn_keys if turn_key not in self._lookup_cache.get(self.sql.KEY_TURN, {})]
        if not new:
            return
        queues, priorities, keys = zip(*new, strict=True)

        def cache_turns(rows: list[Row]) -> None:
            cached = self._lookup_cache.setdefault(self.sql.KEY_TURN, {})
            cached.update({turn_key: [] for turn_key in new})
            cached.update({(queue, priority, key): [(turn,)] for queue, priority, key, turn in rows})

        values = (TextArray(queues), IntArray(priorities), TextArray(keys))
        self._pending_locks.append((BoundStatement(self.sql.LOCK_TURNS, values), cache_turns))

    def lock_accounts(self, keys: Collection[int]) -> None:
        cached = self._lookup_cache.get(self.sql.ACCOUNT, {})
        new = IntArray(key for key in keys if (key,) not in cached)
        if new:
            self._pending_locks.append((BoundStatement(self.sql.CREATE_ACCOUNTS, (new,)), None))
            self._pending_locks.append((BoundStatement(self.sql.LOCK_ACCOUNTS, (new,)), self._cache_accounts))

    # Memories

    def change_memory(self, change: MemoryChange) -> None:
        (count, size), (new_count, new_size) = self._memory_totals, memories.apply_change(self, change)
        self._memory_totals = (count + new_count, size + new_size)

    def search_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        return memories.search(self, namespace, words, limit)

    # Searching

    def make_text_condition(self, text: str) -> tuple[str, list[Any]]:
        test, pattern = text_patterns.make_predicate(text)
        condition = self.sql.TEXT_CONDITION.replace("{test}", test)
        return condition, [pattern] * condition.count("%s")


def _bind_rows(statement: BulkStatement, rows: Sequence[Row]) -> BoundStatement:
    return BoundStatement(statement, _rows_to_columns(statement.array_types, rows))


def _rows_to_columns(array_types: Sequence[type[list[Any]]], rows: Sequence[Row]) -> list[list[Any]]:
    columns = zip(*rows, strict=True)
    return [array_type(column) for array_type, column in zip(array_types, columns, strict=True)]
