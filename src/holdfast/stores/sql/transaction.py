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

from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.stores import rules
from holdfast.stores.rules import LinkState
from holdfast.stores.sql.blobs import NO_BLOBS, BlobBatch
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.usage_accounts import SqlUsageAccounts


class Fence:
    """What a transaction knows of a run: its row, and what earlier operations have made of it."""

    __slots__ = (
        "can_be_awaited",
        "cancel_state",
        "epoch",
        "has_budget",
        "is_delivery",
        "is_limited",
        "is_paused",
        "is_woken",
        "key",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        epoch: int,
        state: str,
        cancel_state: str = "",
        is_paused: bool = False,
        can_be_awaited: bool = False,
        has_budget: bool = False,
        is_limited: bool = False,
        is_delivery: bool = False,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.state = state
        self.cancel_state = cancel_state
        self.is_paused = is_paused
        self.can_be_awaited = can_be_awaited
        """There may be somebody who waits for its end."""
        self.has_budget = has_budget
        """Something may be reserved for it."""
        self.is_limited = is_limited
        """What it uses may be charged to its queue."""
        self.is_delivery = is_delivery
        self.is_woken = False
        """It was parked, and something in this transaction has woken it."""


class WriteBuffer:
    """The changes of one table that are still to be written, gathered by statement."""

    __slots__ = ("_groups", "_last_group_by_run", "_last_group_by_statement")

    def __init__(self) -> None:
        self._groups: list[tuple[str, list[Row]]] = []
        self._last_group_by_statement: dict[str, int] = {}
        """The last group of each statement."""
        self._last_group_by_run: dict[int, int] = {}
        """The last group with a change of each run: what comes after it must not be written before it."""

    def add(self, statement: str, run: int, row: Row) -> None:
        """One more change."""
        at = self._last_group_by_statement.get(statement, -1)
        if at < 0 or at < self._last_group_by_run.get(run, -1):
            at = self._last_group_by_statement[statement] = len(self._groups)
            self._groups.append((statement, [row]))
        else:
            self._groups[at][1].append(row)
        self._last_group_by_run[run] = at

    def flush(self, db: Database) -> bool:
        """Write them; whether there were any."""
        if not self._groups:
            return False
        for statement, rows in self._groups:
            db.write(statement, rows)
        self._groups.clear()
        self._last_group_by_statement.clear()
        self._last_group_by_run.clear()
        return True


class Transaction:
    """The state of one transaction; whoever uses it begins and commits."""

    def __init__(self, db: Database, now: float, *, blob_batch: BlobBatch = NO_BLOBS) -> None:
        self._db = db
        self._sql = db.sql
        self._now = now
        self._references = blob_batch.references
        self._fences_by_key: dict[int, Fence] = {}
        self._fences_by_id: dict[str, Fence] = {}
        self._write_buffers = {
            name: WriteBuffer()
            for name in (
                "runs",
                "records",
                "attempts",
                "signals",
                "links",
                "tags",
                "live_events",
                "approvals",
                "charges",
                "spending",  # last: its rows are shared with others, and are to be locked for as short as possible
            )
        }
        self._ending_keys: set[int] = set()
        """Runs that are likely to end in this transaction."""
        self._waiters: dict[int, list[tuple[int, int]]] = {}
        """Who waits for a run, as far as that has been read: the other run's key, and the position of its command."""
        self._appended_epochs: dict[tuple[int, int], int] = {}
        """The epochs of the records that this transaction has appended, by run and number."""
        self._changed_mailboxes: set[int] = set()
        """The runs whose mailbox this transaction has changed."""
        self._accounts = SqlUsageAccounts(db)
        self._leftovers: tuple[bool, bool] | None = None
        """Whether there are notices of steps, and open questions, of any run: read when the first run ends."""
        if blob_batch.rows:
            db.write(self._sql.PUT_BLOB, blob_batch.rows)

    # Fences

    def read_fences(self, keys: Iterable[int], ids: Iterable[str] = (), ending_keys: Iterable[int] = ()) -> None:
        """Read what is not known yet of these runs; others do not change it from now on."""
        wanted = {key for key in keys if key not in self._fences_by_key}
        names = {name for name in ids if name not in self._fences_by_id}
        if not wanted and not names:
            return
        for row in self._db.read_fences(wanted, names, set(ending_keys)):
            self._add_fence(row)

    def _add_fence(self, row: Row) -> Fence:
        """The run of a row of ``Database.read_fences``."""
        key, run_id, epoch, state, cancel, paused, awaited, budget, limited, by_delivery = row
        if key not in self._fences_by_key:
            fence = Fence(
                key, epoch, state, cancel, paused == 1, awaited == 1, budget == 1, limited == 1, by_delivery == 1
            )
            self._fences_by_key[key] = self._fences_by_id[run_id] = fence
        return self._fences_by_key[key]

    def _reload_run(self, key: int) -> None:
        """Read again what is known of a run that has been reopened, and of links."""
        self._fences_by_key.pop(key, None)
        self._waiters.clear()
        self._appended_epochs = {place: epoch for place, epoch in self._appended_epochs.items() if place[0] != key}
        self._changed_mailboxes.add(key)
        for statement in (self._sql.RECORD_EPOCH, self._sql.WAITERS, self._sql.LINKS):
            self._db.discard_prefetched(statement)
        self.read_fences([key])

    def _get_claimed(self, key: int, epoch: int) -> Fence | None:
        """The run, if an operation under ``epoch`` may change it."""
        fence = self._fences_by_key.get(key)
        return fence if fence is not None and rules.can_write(fence.state, fence.epoch, epoch) else None

    # Lanes

    def _buffer_write(self, table: str, statement: str, run: int, row: Row) -> None:
        self._write_buffers[table].add(statement, run, row)

    def _flush_table(self, table: str) -> None:
        if self._write_buffers[table].flush(self._db) and table == "links":
            self._db.discard_prefetched(self._sql.WAITERS)
            self._db.discard_prefetched(self._sql.LINKS)

    def flush(self) -> None:
        """Write all that is still waiting for it."""
        for lane in self._write_buffers.values():
            lane.flush(self._db)
        self._accounts.flush()

    def _to_column(self, payload: bytes | None) -> bytes | None:
        """What stands in the column for a payload."""
        return self._references.get(payload, payload) if self._references and payload is not None else payload

    # Records and mailboxes

    def _append_row(self, key: int, seq: int, epoch: int, row: Row) -> None:
        self._appended_epochs[key, seq] = epoch
        self._buffer_write("records", self._sql.APPEND_RECORD, key, row)

    def _record_epoch(self, key: int, seq: int) -> int | None:
        """The epoch that wrote a record, if it is there."""
        epoch = self._appended_epochs.get((key, seq))
        if epoch is not None:
            return epoch
        rows = self._db.lookup(self._sql.RECORD_EPOCH, key, seq)
        return rows[0][0] if rows else None

    def _add_signal(self, key: int, name: str, at: float, payload: bytes | None, position: int | None = None) -> None:
        """Put something into the mailbox of a run. ``payload`` is as it stands in a column."""
        self._changed_mailboxes.add(key)
        self._buffer_write("signals", self._sql.SEND_SIGNAL, key, (key, name, at, payload, position))

    def _delete_signal(self, statement: str, key: int, row: Row) -> None:
        """Take something out of a mailbox."""
        self._changed_mailboxes.add(key)
        self._buffer_write("signals", statement, key, row)

    def _read_mailbox(self, key: int) -> list[Row]:
        """Name and position of what is in a run's mailbox."""
        if key in self._changed_mailboxes:  # what may have been foreseen is no longer so
            self._flush_table("signals")
            self._db.discard_prefetched(self._sql.MAILBOX_NAMES, key)
        return self._db.lookup(self._sql.MAILBOX_NAMES, key)

    # Ends

    def release_reservations(self, key: int) -> None:
        """Nobody holds a run any more: give back what it has reserved."""
        fence = self._fences_by_key.get(key)
        if fence is None or fence.has_budget:
            self._accounts.release_reservations(key)

    def handle_run_end(self, key: int, state: str, payload: bytes, at: float) -> bool:
        """Give back what a run has reserved that has ended, clean up behind it, and tell whoever waits for it.

        ``payload`` is as it stands in a column. Returns whether anybody waited.
        """
        self.release_reservations(key)
        self._delete_leftovers(key)
        if not self._can_be_awaited(key):
            return False
        if key not in self._waiters:
            self._read_waiters({key, *self._ending_keys})
        waiting = self._waiters.pop(key)
        for parent, position in waiting:
            fence = self._fences_by_key.get(parent)
            if fence is None or fence.state in TERMINAL_STATES:
                self._put_link(parent, position, key, LinkState.LATE)
                continue
            self._put_link(parent, position, key, LinkState.NOTIFIED)
            self._add_signal(parent, state, at, payload, position)
            self._wake(fence)
        return bool(waiting)

    def _delete_leftovers(self, key: int) -> None:
        """Drop what was told of steps in flight, and withdraw questions: nobody waits for either."""
        if self._leftovers is None:
            [(told, asked)] = self._db.lookup(self._sql.HAS_LEFTOVERS)
            self._leftovers = (told == 1, asked == 1)
        if self._leftovers[0]:
            self._buffer_write("live_events", self._sql.CLEAR_ALL_LIVE_EVENTS, key, (key,))
        if self._leftovers[1]:
            self._buffer_write("approvals", self._sql.WITHDRAW_ALL_APPROVALS, key, (key,))

    def _mark_leftovers(self) -> None:
        """A run that this transaction ends may leave something behind that this transaction has written."""
        self._leftovers = (True, True)

    def _add_lasting_event(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        """Leave a notice that stays."""
        self._flush_table("live_events")
        values = {"run": key, "position": position, "at": at, "kind": kind, "data": data}
        self._db.execute(self._sql.ADD_LASTING_EVENT, values)

    def _can_be_awaited(self, key: int) -> bool:
        fence = self._fences_by_key.get(key)
        return fence is None or fence.can_be_awaited

    def _read_waiters(self, keys: set[int]) -> None:
        self._flush_table("links")
        wanted = [key for key in keys if key not in self._waiters and self._can_be_awaited(key)]
        self._db.prefetch({self._sql.WAITERS: [(key,) for key in wanted]})
        for key in wanted:
            self._waiters[key] = [(parent, position) for parent, position in self._db.lookup(self._sql.WAITERS, key)]
        self.read_fences(parent for key in wanted for parent, _ in self._waiters[key])

    def _put_link(self, parent: int, position: int, child: int, state: LinkState) -> None:
        """Write a link, the last of its place."""
        self._buffer_write("links", self._sql.PUT_LINK, parent, (parent, position, child, int(state)))
        if state is LinkState.PENDING:
            self._mark_awaited(child)

    def _mark_awaited(self, key: int) -> None:
        fence = self._fences_by_key.get(key)
        if fence is not None:
            fence.can_be_awaited = True

    def _wake(self, fence: Fence) -> None:
        if fence.state == RunState.WAITING and not (fence.is_paused or fence.is_woken):
            self._buffer_write("runs", self._sql.WAKE_RUN, fence.key, (self._now, fence.key))
            fence.is_woken = True
