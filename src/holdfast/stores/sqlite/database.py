# ruff: noqa: D102 - what the methods are for is said once, in the base class
"""A SQLite connection, as the code that all SQL stores share uses it.

SQLite lets nobody else write while a transaction that writes is open, so there is nothing to lock; and it is so near
that nothing is gained by asking ahead.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.stores.memories import Memory, MemoryChange
from holdfast.stores.sql.claims import PROMOTE
from holdfast.stores.sql.database import Collision, Database, NotText, Row, Values
from holdfast.stores.sqlite import memories
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.connections import roll_back
from holdfast.stores.sqlite.errors import is_not_text

_LONGEST_PATTERN = 1000


class SqliteDatabase(Database):
    """One connection."""

    sql = sql.STATEMENTS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    # Transactions

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def begin_reading(self) -> None:
        self.connection.execute("BEGIN")

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        roll_back(self.connection)

    # Statements

    def ask(self, statement: str, values: Values = ()) -> list[Row]:
        try:
            return self.connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if is_not_text(error):
                raise NotText(str(error)) from error
            raise

    def change(self, statement: str, values: Values = ()) -> int:
        return self.connection.execute(statement, values).rowcount

    def write(self, statement: str, rows: Sequence[Row]) -> None:
        try:
            if len(rows) == 1:
                self.connection.execute(statement, rows[0])
            else:
                self.connection.executemany(statement, rows)
        except sqlite3.IntegrityError as error:
            raise Collision(str(error)) from error

    def lookup(self, statement: str, *question: Any) -> list[Row]:
        return self.ask(statement, question)

    def foresee(self, questions: Mapping[str, Collection[Row]]) -> None:
        pass

    def forget(self, statement: str, *question: Any) -> None:
        pass

    def listed(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values), ensure_ascii=False)

    # Runs

    def fences(self, keys: Collection[int], ids: Collection[str] = (), ending: Collection[int] = ()) -> Iterator[Row]:
        execute, left = self.connection.execute, list(keys)
        while len(left) > 1:
            piece, left = left[: sql.AT_ONCE], left[sql.AT_ONCE :]
            yield from execute(sql.FENCES_BY_KEY, piece + piece[-1:] * (sql.AT_ONCE - len(piece)))
        if left:
            yield from execute(sql.FENCE, left)
        if ids:
            yield from execute(sql.FENCES_BY_ID, (self.listed(ids),))

    def append_fenced(self, rows: Sequence[Row]) -> bool:
        try:
            if len(rows) == 1:
                return self.connection.execute(sql.APPEND_FENCED[1], rows[0]).rowcount == 1
            self.begin()
            if self._append_many(rows) == len(rows):
                self.commit()
                return True
        except sqlite3.IntegrityError:
            pass
        self.roll_back()
        return False

    def _append_many(self, rows: Sequence[Row]) -> int:
        """Append those that are not fenced, in as few statements as possible, and return their number."""
        appended = done = 0
        for count, statement in sql.APPEND_FENCED.items():
            while len(rows) - done >= count:
                values = list(chain.from_iterable(rows[done : done + count]))
                appended += self.connection.execute(statement, values).rowcount
                done += count
        return appended

    def foresee_keys(self, count: int) -> None:
        pass

    def new_keys(self, count: int) -> Sequence[int]:
        last: int = self.connection.execute(sql.LAST_KEY).fetchone()[0]
        return range(last + 1, last + 1 + count)

    def served(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        return {"workflows": self.listed(workflows)}

    def due(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        served = None if queues is None else self.listed(queues)
        due: list[tuple[int, int]] = []
        for workflow, version in workflows:
            self.connection.execute(sql.PROMOTE_DUE, (workflow, version, now, PROMOTE))
            values = {"workflow": workflow, "version": version, "queues": served, "limit": limit}
            rows = self.connection.execute(sql.DUE, values)
            due.extend((-priority, key) for priority, key in rows)
        due.sort()
        return [(-rank, key) for rank, key in due[:limit]]

    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        pass

    def lock_turns(self, places: Collection[tuple[str, int, str]]) -> None:
        pass

    def lock_accounts(self, keys: Collection[int]) -> None:
        pass

    # Memories

    def change_memory(self, change: MemoryChange) -> None:
        memories.change(self.connection, change)

    def find_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        return memories.search(self.connection, namespace, words, limit)

    # Searching

    def containing(self, text: str) -> tuple[str, list[Any]]:
        """SQLite's own search knows upper and lower case of ASCII only, no long patterns, and none behind a NUL."""
        plain = json.dumps(text, ensure_ascii=False)[1:-1] == text
        if text.isascii() and len(text) <= _LONGEST_PATTERN and "\x00" not in text:
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            condition, pattern = sql.containing("{} LIKE ? ESCAPE '\\'", plain=plain), f"%{escaped}%"
        else:
            condition, pattern = sql.containing("holdfast_contains({}, ?)", plain=plain), text.casefold()
        return condition, [pattern] * condition.count("?")


def add_search(connection: sqlite3.Connection) -> None:
    """Teach a connection the search for text that SQLite has no words for."""
    connection.create_function("holdfast_contains", 2, _contains, deterministic=True)


def _contains(text: Any, part: str) -> bool:
    return text is not None and part in str(text).casefold()
