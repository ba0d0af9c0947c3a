"""A SQLite connection, as the code that all SQL stores share uses it.

SQLite has one writer at a time, so there is nothing to lock. It runs in this process, so prefetching gains nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.stores.memories import Memory, MemoryChange
from holdfast.stores.sql.claims import MAX_PROMOTED_TIMERS
from holdfast.stores.sql.database import Database, InvalidText, Row, Values, WriteConflict
from holdfast.stores.sqlite import memories
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.connections import roll_back
from holdfast.stores.sqlite.errors import is_invalid_text

_MAX_PATTERN_LENGTH = 1000


class BlobRefused(Exception):
    """Large values are not read here: unpacking them takes too long."""


class SqliteDatabase(Database):
    """One connection."""

    sql = sql.STATEMENTS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.allows_blobs = True

    # Transactions

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def begin_snapshot(self) -> None:
        self.connection.execute("BEGIN")

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        roll_back(self.connection)

    # Statements

    def query(self, statement: str, values: Values = ()) -> list[Row]:
        if not self.allows_blobs and statement is self.sql.BLOBS:
            raise BlobRefused
        try:
            return self.connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if is_invalid_text(error):
                raise InvalidText(str(error)) from error
            raise

    def execute(self, statement: str, values: Values = ()) -> int:
        return self.connection.execute(statement, values).rowcount

    def write(self, statement: str, rows: Sequence[Row]) -> None:
        try:
            if len(rows) == 1:
                self.connection.execute(statement, rows[0])
            else:
                self.connection.executemany(statement, rows)
        except sqlite3.IntegrityError as error:
            raise WriteConflict(str(error)) from error

    def lookup(self, statement: str, *parameters: Any) -> list[Row]:
        return self.query(statement, parameters)

    def prefetch(self, lookups: Mapping[str, Collection[Row]]) -> None:
        pass

    def discard_prefetched(self, statement: str, *parameters: Any) -> None:
        pass

    def to_list_parameter(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values), ensure_ascii=False)

    # Runs

    def read_fences(
        self, keys: Collection[int], ids: Collection[str] = (), ending_keys: Collection[int] = ()
    ) -> Iterator[Row]:
        execute, unread = self.connection.execute, list(keys)
        while len(unread) > 1:
            batch, unread = unread[: sql.KEYS_PER_STATEMENT], unread[sql.KEYS_PER_STATEMENT :]
            yield from execute(sql.FENCES_BY_KEY, batch + batch[-1:] * (sql.KEYS_PER_STATEMENT - len(batch)))
        if unread:
            yield from execute(sql.FENCE_BY_KEY, unread)
        if len(ids) == 1:
            yield from execute(sql.FENCE_BY_ID, (*ids,))
        elif ids:
            yield from execute(sql.FENCES_BY_ID, (self.to_list_parameter(ids),))

    def list_begun_runs(self, keys: Sequence[int]) -> Sequence[int]:
        return [key for (key,) in self.connection.execute(sql.BEGUN_RUNS, (self.to_list_parameter(keys),))]

    def append_fenced(self, rows: Sequence[Row], usages: Sequence[Row] = ()) -> bool:
        if len(usages) > 1:
            return False  # a batch changes each account once
        try:
            if not usages and len(rows) <= 2 and rows[0][0] == rows[-1][0]:
                return self._append_many(rows) == len(rows)  # a single statement, which is fenced as a whole
            self.begin()
            if all(map(self._add_usage, usages)) and self._append_many(rows) == len(rows):
                self.commit()
                return True
        except sqlite3.IntegrityError:
            pass
        self.roll_back()
        return False

    def _add_usage(self, row: Row) -> bool:
        """Add the usage of a record. Returns whether that is all there is to change."""
        if self.connection.execute(sql.ADD_USAGE, row).rowcount != 1:
            return False
        self.connection.execute(self.sql.ADD_DAILY_USAGE, row[:-1])
        return True

    def _append_many(self, rows: Sequence[Row]) -> int:
        """Append the records that are not fenced, in as few statements as possible, and return their number."""
        appended = done = 0
        for count, statement in sql.APPEND_FENCED.items():
            while len(rows) - done >= count:
                values = list(chain.from_iterable(rows[done : done + count]))
                appended += self.connection.execute(statement, values).rowcount
                done += count
        return appended

    def prefetch_keys(self, count: int) -> None:
        pass

    def allocate_keys(self, count: int) -> Sequence[int]:
        last: int = self.connection.execute(sql.LAST_KEY).fetchone()[0]
        return range(last + 1, last + 1 + count)

    def to_served_parameters(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return {"workflows": self.to_list_parameter(workflows)}

    def lock_due_runs(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        served = None if queues is None else self.to_list_parameter(queues)
        due: list[tuple[int, int]] = []
        for workflow, version in workflows:
            self.connection.execute(sql.PROMOTE_DUE, (workflow, version, now, MAX_PROMOTED_TIMERS))
            values = {"workflow": workflow, "version": version, "queues": served, "limit": limit}
            rows = self.connection.execute(sql.DUE_RUNS, values)
            due.extend((-priority, key) for priority, key in rows)
        due.sort()
        return [(-rank, key) for rank, key in due[:limit]]

    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        pass

    def lock_turns(self, turn_keys: Collection[tuple[str, int, str]]) -> None:
        pass

    def lock_accounts(self, keys: Collection[int]) -> None:
        pass

    # Memories

    def change_memory(self, change: MemoryChange) -> None:
        memories.apply_change(self.connection, change)

    def search_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        return memories.search(self.connection, namespace, words, limit)

    # Searching

    def make_text_condition(self, text: str) -> tuple[str, list[Any]]:
        """SQLite's own search ignores case only for ASCII, and supports neither long patterns nor text after a NUL."""
        plain = json.dumps(text, ensure_ascii=False)[1:-1] == text
        if text.isascii() and len(text) <= _MAX_PATTERN_LENGTH and "\x00" not in text:
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            condition, pattern = sql.make_text_condition("{} LIKE ? ESCAPE '\\'", is_plain=plain), f"%{escaped}%"
        else:
            condition, pattern = sql.make_text_condition("holdfast_contains({}, ?)", is_plain=plain), text.casefold()
        return condition, [pattern] * condition.count("?")


def register_search_function(connection: sqlite3.Connection) -> None:
    """Add the search function for texts that SQLite's ``LIKE`` does not support."""
    connection.create_function("holdfast_contains", 2, _contains, deterministic=True)


def _contains(text: Any, part: str) -> bool:
    return text is not None and part in str(text).casefold()
