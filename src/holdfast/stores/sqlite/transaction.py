"""What the operations of one transaction share: fences, lanes, accounts, and what happens when a run ends.

The transaction takes the write lock, reads the *fence* of every run it touches once, and then decides in Python,
keeping in mind what earlier operations have changed. Writes are gathered in one *lane* per table, where consecutive
ones with the same text become one ``executemany``. Within a lane the order of operations is kept; between lanes it does
not matter, as long as a lane is flushed before its table is read.

When a run ends, whoever waits for it is told in the same transaction. Thousands of runs may end in one commit, so who
waits for any of them is read at once, when the first one ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from holdfast.core.states import TERMINAL, RunState
from holdfast.stores import rules
from holdfast.stores.rules import Told
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.accounts import SqliteAccounts
from holdfast.stores.sqlite.blobs import NOTHING, Parcel
from holdfast.stores.sqlite.rows import Row, names_text


class Fence:
    """What a transaction knows of a run: its row, and what earlier operations have made of it."""

    __slots__ = ("awaited", "cancel", "epoch", "has_budget", "key", "paused", "state", "woken")

    def __init__(
        self,
        key: int,
        epoch: int,
        state: str,
        cancel: str = "",
        paused: bool = False,
        awaited: bool = False,
        has_budget: bool = False,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.state = state
        self.cancel = cancel
        self.paused = paused
        self.awaited = awaited
        """There may be somebody who waits for its end."""
        self.has_budget = has_budget
        """Something may be reserved for it."""
        self.woken = False
        """It was parked, and something in this transaction has woken it."""


class Transaction:
    """The state of one transaction; whoever uses it begins and commits."""

    def __init__(self, connection: sqlite3.Connection, now: float, *, parcel: Parcel = NOTHING) -> None:
        self._connection = connection
        self._now = now
        self._references = parcel.references
        self._by_key: dict[int, Fence] = {}
        self._by_id: dict[str, Fence] = {}
        self._lanes: dict[str, list[tuple[str, list[Row]]]] = {
            "records": [], "attempts": [], "signals": [], "links": [], "runs": [], "tags": [], "notices": [],
        }  # fmt: skip
        self._ending: set[int] = set()
        """Runs that are likely to end in this transaction."""
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """Who waits for a run, as far as that has been read: the other run's key, and the position of its command."""
        self._accounts = SqliteAccounts(connection)
        self._leftovers: tuple[int, int] | None = None
        """Whether there are notices of steps, and open questions, of any run: read when the first run ends."""
        if parcel.rows:
            connection.executemany(sql.KEEP_BLOB, parcel.rows)

    # Fences

    def read_fences(self, keys: Iterable[int], ids: Iterable[str] = ()) -> None:
        """Read what is not known yet of these runs."""
        wanted = [key for key in set(keys) if key not in self._by_key]
        while len(wanted) > 1:
            piece, wanted = wanted[: sql.AT_ONCE], wanted[sql.AT_ONCE :]
            piece += piece[-1:] * (sql.AT_ONCE - len(piece))
            self._note_fences(self._connection.execute(sql.FENCES_BY_KEY, piece))
        if wanted:
            self._note_fences(self._connection.execute(sql.FENCE, wanted))
        if ids:
            self._note_fences(self._connection.execute(sql.FENCES_BY_ID, (names_text(ids),)))

    def _note_fences(self, rows: sqlite3.Cursor) -> None:
        for key, run_id, epoch, state, cancel, paused, awaited, budget in rows:
            fence = self._by_key.get(key) or Fence(key, epoch, state, cancel, paused == 1, awaited == 1, budget == 1)
            self._by_key[key] = self._by_id[run_id] = fence

    def _forget(self, key: int) -> None:
        """Read again what is known of a run that has been reopened, and of links."""
        self._by_key.pop(key, None)
        self._waiting.clear()
        self.read_fences([key])

    def _held(self, key: int, epoch: int) -> Fence | None:
        """The run, if an operation under ``epoch`` may change it."""
        fence = self._by_key.get(key)
        return fence if fence is not None and rules.holds(fence.state, fence.epoch, epoch) else None

    # Lanes

    def _later(self, lane: str, statement: str, row: Row) -> None:
        groups = self._lanes[lane]
        if groups and groups[-1][0] is statement:
            groups[-1][1].append(row)
        else:
            groups.append((statement, [row]))

    def _flush(self, lane: str) -> None:
        groups = self._lanes[lane]
        for statement, rows in groups:
            if len(rows) == 1:
                self._connection.execute(statement, rows[0])
            else:
                self._connection.executemany(statement, rows)
        groups.clear()

    def flush(self) -> None:
        """Write all that is still waiting for it."""
        for lane, groups in self._lanes.items():
            if groups:
                self._flush(lane)
        self._accounts.flush()

    def _one(self, statement: str, *values: Any) -> Row | None:
        return self._connection.execute(statement, values).fetchone()

    def _stored(self, payload: bytes | None) -> bytes | None:
        """What stands in the column for a payload."""
        return self._references.get(payload, payload) if self._references and payload is not None else payload

    # Ends

    def freed(self, key: int) -> None:
        """Nobody holds a run any more: give back what it has reserved."""
        fence = self._by_key.get(key)
        if fence is None or fence.has_budget:
            self._accounts.give_back_all(key)

    def ended(self, key: int, state: str, payload: bytes, at: float) -> None:
        """Give back what a run has reserved that has ended, clean up behind it, and tell whoever waits for it.

        ``payload`` is as it stands in a column.
        """
        self.freed(key)
        self._clean_up(key)
        if not self._may_be_awaited(key):
            return
        if key not in self._waiting:
            self._read_waiting({key, *self._ending})
        for parent, position in self._waiting.pop(key):
            fence = self._by_key.get(parent)
            if fence is None or fence.state in TERMINAL:
                self._note_link(parent, position, key, Told.LATE)
                continue
            self._note_link(parent, position, key, Told.YES)
            self._later("signals", sql.SEND_SIGNAL, (parent, state, at, payload, position))
            self._wake(fence)

    def _clean_up(self, key: int) -> None:
        """Drop what was told of steps in flight, and withdraw questions: nobody waits for either."""
        if self._leftovers is None:
            self._flush("notices")
            self._leftovers = self._connection.execute(sql.LEFTOVERS).fetchone()
            assert self._leftovers is not None
        if self._leftovers[0]:
            self._later("notices", sql.CLEAR_ALL_NOTICES, (key,))
        if self._leftovers[1]:
            self._connection.execute(sql.WITHDRAW_ALL, (key,))

    def _leave(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        """Leave a notice that stays."""
        self._flush("notices")
        values = {"run": key, "position": position, "at": at, "kind": kind, "data": data}
        self._connection.execute(sql.LEAVE_NOTICE, values)

    def _may_be_awaited(self, key: int) -> bool:
        fence = self._by_key.get(key)
        return fence is None or fence.awaited

    def _read_waiting(self, keys: set[int]) -> None:
        self._flush("links")
        wanted = [key for key in keys if key not in self._waiting and self._may_be_awaited(key)]
        self._waiting.update((key, []) for key in wanted)
        parents: set[int] = set()
        while wanted:
            piece, wanted = wanted[: sql.AT_ONCE], wanted[sql.AT_ONCE :]
            if len(piece) == 1:
                rows = self._connection.execute(sql.WAITING, piece)
            else:
                rows = self._connection.execute(sql.ALL_WAITING, piece + piece[-1:] * (sql.AT_ONCE - len(piece)))
            for child, parent, position in rows:
                self._waiting[child].append((parent, position))
                parents.add(parent)
        if parents:
            self.read_fences(parents)

    def _note_link(self, parent: int, position: int, child: int, told: Told) -> None:
        """Write a link, the last of its place."""
        self._later("links", sql.LINK, (parent, position, child, int(told)))
        if told is Told.NOT_YET:
            self._is_awaited(child)

    def _is_awaited(self, key: int) -> None:
        fence = self._by_key.get(key)
        if fence is not None:
            fence.awaited = True

    def _wake(self, fence: Fence) -> None:
        if fence.state == RunState.WAITING and not (fence.paused or fence.woken):
            self._later("runs", sql.WAKE_RUN, (self._now, fence.key))
            fence.woken = True
