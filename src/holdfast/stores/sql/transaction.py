"""What the operations of one transaction share: what is known of the runs that they touch, and what is still to write.

A transaction first reads the *fence* of every run that it will touch, in one statement, decides in Python what each
operation does, and writes with as few statements as possible: changes are gathered in *lanes*, one for each table, and
those of the same statement are written together, as long as no two changes of one run change places. Between lanes the
order does not matter, as long as a lane is flushed before its table is read.

What is asked of the tables has often been *foreseen* (see ``database``), so the transaction keeps in mind what it has
changed of that itself: records that it has appended, runs that it has sent something to.

When a run ends, whoever waits for it is told in the same transaction. Thousands of runs may end in one commit, so who
waits for any of them is read at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.states import TERMINAL, RunState
from holdfast.stores import rules
from holdfast.stores.rules import Told
from holdfast.stores.sql.blobs import NOTHING, Parcel
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.usage_accounts import SqlAccounts


class Fence:
    """What a transaction knows of a run: its row, and what earlier operations have made of it."""

    __slots__ = (
        "awaited", "by_delivery", "cancel", "epoch", "has_budget", "key", "limited", "paused", "state", "woken",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        epoch: int,
        state: str,
        cancel: str = "",
        paused: bool = False,
        awaited: bool = False,
        has_budget: bool = False,
        limited: bool = False,
        by_delivery: bool = False,
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
        self.limited = limited
        """What it uses may be charged to its queue."""
        self.by_delivery = by_delivery
        self.woken = False
        """It was parked, and something in this transaction has woken it."""


class Lane:
    """The changes of one table that are still to be written, gathered by statement."""

    __slots__ = ("_groups", "_latest", "_of_run")

    def __init__(self) -> None:
        self._groups: list[tuple[str, list[Row]]] = []
        self._latest: dict[str, int] = {}
        """The last group of each statement."""
        self._of_run: dict[int, int] = {}
        """The last group with a change of each run: what comes after it must not be written before it."""

    def add(self, statement: str, run: int, row: Row) -> None:
        """One more change."""
        at = self._latest.get(statement, -1)
        if at < 0 or at < self._of_run.get(run, -1):
            at = self._latest[statement] = len(self._groups)
            self._groups.append((statement, [row]))
        else:
            self._groups[at][1].append(row)
        self._of_run[run] = at

    def flush(self, db: Database) -> bool:
        """Write them; whether there were any."""
        if not self._groups:
            return False
        for statement, rows in self._groups:
            db.write(statement, rows)
        self._groups.clear()
        self._latest.clear()
        self._of_run.clear()
        return True


class Transaction:
    """The state of one transaction; whoever uses it begins and commits."""

    def __init__(self, db: Database, now: float, *, parcel: Parcel = NOTHING) -> None:
        self._db = db
        self._sql = db.sql
        self._now = now
        self._references = parcel.references
        self._by_key: dict[int, Fence] = {}
        self._by_id: dict[str, Fence] = {}
        self._lanes = {
            name: Lane()
            for name in (
                "runs",
                "records",
                "attempts",
                "signals",
                "links",
                "tags",
                "notices",
                "approvals",
                "charges",
                "spending",  # last: its rows are shared with others, and are to be locked for as short as possible
            )
        }
        self._ending: set[int] = set()
        """Runs that are likely to end in this transaction."""
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """Who waits for a run, as far as that has been read: the other run's key, and the position of its command."""
        self._appended: dict[tuple[int, int], int] = {}
        """The epochs of the records that this transaction has appended, by run and number."""
        self._sent: set[int] = set()
        """The runs whose mailbox this transaction has changed."""
        self._accounts = SqlAccounts(db)
        self._leftovers: tuple[bool, bool] | None = None
        """Whether there are notices of steps, and open questions, of any run: read when the first run ends."""
        if parcel.rows:
            db.write(self._sql.KEEP_BLOB, parcel.rows)

    # Fences

    def read_fences(self, keys: Iterable[int], ids: Iterable[str] = (), ending: Iterable[int] = ()) -> None:
        """Read what is not known yet of these runs; others do not change it from now on."""
        wanted = {key for key in keys if key not in self._by_key}
        names = {name for name in ids if name not in self._by_id}
        if not wanted and not names:
            return
        for row in self._db.fences(wanted, names, set(ending)):
            self._know(row)

    def _know(self, row: Row) -> Fence:
        """The run of a row of ``Database.fences``."""
        key, run_id, epoch, state, cancel, paused, awaited, budget, limited, by_delivery = row
        if key not in self._by_key:
            fence = Fence(
                key, epoch, state, cancel, paused == 1, awaited == 1, budget == 1, limited == 1, by_delivery == 1
            )
            self._by_key[key] = self._by_id[run_id] = fence
        return self._by_key[key]

    def _forget(self, key: int) -> None:
        """Read again what is known of a run that has been reopened, and of links."""
        self._by_key.pop(key, None)
        self._waiting.clear()
        self._appended = {place: epoch for place, epoch in self._appended.items() if place[0] != key}
        self._sent.add(key)
        for statement in (self._sql.RECORD_EPOCH, self._sql.WAITING, self._sql.LINKS):
            self._db.forget(statement)
        self.read_fences([key])

    def _held(self, key: int, epoch: int) -> Fence | None:
        """The run, if an operation under ``epoch`` may change it."""
        fence = self._by_key.get(key)
        return fence if fence is not None and rules.holds(fence.state, fence.epoch, epoch) else None

    # Lanes

    def _later(self, lane: str, statement: str, run: int, row: Row) -> None:
        self._lanes[lane].add(statement, run, row)

    def _flush(self, lane: str) -> None:
        if self._lanes[lane].flush(self._db) and lane == "links":
            self._db.forget(self._sql.WAITING)
            self._db.forget(self._sql.LINKS)

    def flush(self) -> None:
        """Write all that is still waiting for it."""
        for lane in self._lanes.values():
            lane.flush(self._db)
        self._accounts.flush()

    def _stored(self, payload: bytes | None) -> bytes | None:
        """What stands in the column for a payload."""
        return self._references.get(payload, payload) if self._references and payload is not None else payload

    # Records and mailboxes

    def _append_row(self, key: int, seq: int, epoch: int, row: Row) -> None:
        self._appended[key, seq] = epoch
        self._later("records", self._sql.APPEND, key, row)

    def _record_epoch(self, key: int, seq: int) -> int | None:
        """The epoch that wrote a record, if it is there."""
        epoch = self._appended.get((key, seq))
        if epoch is not None:
            return epoch
        rows = self._db.lookup(self._sql.RECORD_EPOCH, key, seq)
        return rows[0][0] if rows else None

    def _put(self, key: int, name: str, at: float, payload: bytes | None, position: int | None = None) -> None:
        """Put something into the mailbox of a run. ``payload`` is as it stands in a column."""
        self._sent.add(key)
        self._later("signals", self._sql.SEND_SIGNAL, key, (key, name, at, payload, position))

    def _take_out(self, statement: str, key: int, row: Row) -> None:
        """Take something out of a mailbox."""
        self._sent.add(key)
        self._later("signals", statement, key, row)

    def _mailbox(self, key: int) -> list[Row]:
        """Name and position of what is in a run's mailbox."""
        if key in self._sent:  # what may have been foreseen is no longer so
            self._flush("signals")
            self._db.forget(self._sql.SENT, key)
        return self._db.lookup(self._sql.SENT, key)

    # Ends

    def freed(self, key: int) -> None:
        """Nobody holds a run any more: give back what it has reserved."""
        fence = self._by_key.get(key)
        if fence is None or fence.has_budget:
            self._accounts.give_back_all(key)

    def ended(self, key: int, state: str, payload: bytes, at: float) -> bool:
        """Give back what a run has reserved that has ended, clean up behind it, and tell whoever waits for it.

        ``payload`` is as it stands in a column. Returns whether anybody waited.
        """
        self.freed(key)
        self._clean_up(key)
        if not self._may_be_awaited(key):
            return False
        if key not in self._waiting:
            self._read_waiting({key, *self._ending})
        waiting = self._waiting.pop(key)
        for parent, position in waiting:
            fence = self._by_key.get(parent)
            if fence is None or fence.state in TERMINAL:
                self._note_link(parent, position, key, Told.LATE)
                continue
            self._note_link(parent, position, key, Told.YES)
            self._put(parent, state, at, payload, position)
            self._wake(fence)
        return bool(waiting)

    def _clean_up(self, key: int) -> None:
        """Drop what was told of steps in flight, and withdraw questions: nobody waits for either."""
        if self._leftovers is None:
            [(told, asked)] = self._db.lookup(self._sql.LEFTOVERS)
            self._leftovers = (told == 1, asked == 1)
        if self._leftovers[0]:
            self._later("notices", self._sql.CLEAR_ALL_NOTICES, key, (key,))
        if self._leftovers[1]:
            self._later("approvals", self._sql.WITHDRAW_ALL, key, (key,))

    def _leaves_something(self) -> None:
        """A run that this transaction ends may leave something behind that this transaction has written."""
        self._leftovers = (True, True)

    def _leave(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        """Leave a notice that stays."""
        self._flush("notices")
        values = {"run": key, "position": position, "at": at, "kind": kind, "data": data}
        self._db.change(self._sql.LEAVE_NOTICE, values)

    def _may_be_awaited(self, key: int) -> bool:
        fence = self._by_key.get(key)
        return fence is None or fence.awaited

    def _read_waiting(self, keys: set[int]) -> None:
        self._flush("links")
        wanted = [key for key in keys if key not in self._waiting and self._may_be_awaited(key)]
        self._db.foresee({self._sql.WAITING: [(key,) for key in wanted]})
        for key in wanted:
            self._waiting[key] = [(parent, position) for parent, position in self._db.lookup(self._sql.WAITING, key)]
        self.read_fences(parent for key in wanted for parent, _ in self._waiting[key])

    def _note_link(self, parent: int, position: int, child: int, told: Told) -> None:
        """Write a link, the last of its place."""
        self._later("links", self._sql.LINK, parent, (parent, position, child, int(told)))
        if told is Told.NOT_YET:
            self._is_awaited(child)

    def _is_awaited(self, key: int) -> None:
        fence = self._by_key.get(key)
        if fence is not None:
            fence.awaited = True

    def _wake(self, fence: Fence) -> None:
        if fence.state == RunState.WAITING and not (fence.paused or fence.woken):
            self._later("runs", self._sql.WAKE_RUN, fence.key, (self._now, fence.key))
            fence.woken = True
