"""The state that the operations of one transaction share: what is known about their runs, and what is not written yet.

A transaction first reads the *fence* of every run that it will touch (``FencedRun``), in one statement. It decides in
Python what each operation does, and writes with as few statements as possible: changes are collected in *write
buffers*, one for each table. Changes with the same statement are written together, unless that would reorder two
changes of one run. The order between tables does not matter, as long as a buffer is flushed before its table is read.

Most of what a transaction reads was prefetched (see ``database``), so the transaction keeps track of what it has
changed since: records that it has appended, and mailboxes that it has written to.

When a run ends, the runs that wait for it are notified in the same transaction. Thousands of runs may end in one
commit, so the waiters of all of them are read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.core.records import Record
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.stores import rules
from holdfast.stores.row_access import LinkKey
from holdfast.stores.rules import LinkState
from holdfast.stores.sql.blobs import NO_BLOBS, BlobBatch
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import record_to_row
from holdfast.stores.sql.usage_accounts import SqlUsageAccounts

_BUFFERED_TABLES = (
    "runs", "records", "attempts", "signals", "links", "tags", "live_events", "approvals", "charges", "audit",
    "spending",
)  # fmt: skip
"""In the order of writing. ``spending`` comes last: other transactions need the same rows, so they are locked only
briefly."""


@dataclass(slots=True, eq=False)
class FencedRun:
    """What a transaction knows about a run: its row, and what earlier operations have changed."""

    key: int
    epoch: int
    state: str
    cancel_state: str = ""
    is_paused: bool = False
    can_be_awaited: bool = False
    """Another run may wait for its end."""
    has_budget: bool = False
    """It may have reservations."""
    is_limited: bool = False
    """Its usage may be charged to its queue."""
    is_delivery: bool = False
    is_woken: bool = False
    """It was parked, and this transaction has woken it."""


class WriteBuffer:
    """Changes of one table that are not written yet, grouped by statement."""

    __slots__ = ("_groups", "_last_group_by_run", "_last_group_by_statement")

    def __init__(self) -> None:
        self._groups: list[tuple[str, list[Row]]] = []
        self._last_group_by_statement: dict[str, int] = {}
        """The last group of each statement."""
        self._last_group_by_run: dict[int, int] = {}
        """The last group with a change of each run: later changes of the run must not be written before it."""

    def add(self, statement: str, run: int, row: Row) -> None:
        at = self._last_group_by_statement.get(statement, -1)
        if at < 0 or at < self._last_group_by_run.get(run, -1):
            at = self._last_group_by_statement[statement] = len(self._groups)
            self._groups.append((statement, [row]))
        else:
            self._groups[at][1].append(row)
        self._last_group_by_run[run] = at

    def flush(self, db: Database) -> bool:
        """Write all changes. Returns whether there were any."""
        if not self._groups:
            return False
        for statement, rows in self._groups:
            db.write(statement, rows)
        self._groups.clear()
        self._last_group_by_statement.clear()
        self._last_group_by_run.clear()
        return True


class Transaction:
    """The state of one transaction. The caller begins it and commits it."""

    def __init__(self, db: Database, now: float, *, blob_batch: BlobBatch = NO_BLOBS) -> None:
        self._db = db
        self._sql = db.sql
        self._now = now
        self._references = blob_batch.references
        self._runs_by_key: dict[int, FencedRun] = {}
        self._runs_by_id: dict[str, FencedRun] = {}
        self._write_buffers = {table: WriteBuffer() for table in _BUFFERED_TABLES}
        self._ending_keys: set[int] = set()
        """Runs that are likely to end in this transaction."""
        self._waiters: dict[int, list[LinkKey]] = {}
        """The commands that wait for a run, for the runs for which they have been read."""
        self._appended_epochs: dict[tuple[int, int], int] = {}
        """The epochs of the records that this transaction has appended, by run and ``seq``."""
        self._changed_mailboxes: set[int] = set()
        """The runs whose mailbox this transaction has changed."""
        self._accounts = SqlUsageAccounts(db)
        self._leftovers: tuple[bool, bool] | None = None
        """Whether any run has live events of steps, or open approvals. Read when the first run ends."""
        if blob_batch.rows:
            db.write(self._sql.PUT_BLOB, blob_batch.rows)

    # Fences

    def read_fences(self, keys: Iterable[int], ids: Iterable[str] = (), ending_keys: Iterable[int] = ()) -> None:
        """Read the fences of these runs that are not known yet. No other process changes the runs from then on."""
        unread_keys = {key for key in keys if key not in self._runs_by_key}
        unread_ids = {run_id for run_id in ids if run_id not in self._runs_by_id}
        if not unread_keys and not unread_ids:
            return
        for row in self._db.read_fences(unread_keys, unread_ids, set(ending_keys)):
            self._add_run(row)

    def _add_run(self, row: Row) -> FencedRun:
        """The run in a row of ``Database.read_fences``."""
        key, run_id, epoch, state, cancel_state, paused, awaited, budget, limited, delivery = row
        run = self._runs_by_key.get(key)
        if run is None:
            run = FencedRun(
                key, epoch, state, cancel_state, paused == 1, awaited == 1, budget == 1, limited == 1, delivery == 1
            )
            self._runs_by_key[key] = self._runs_by_id[run_id] = run
        return run

    def _reload_run(self, key: int) -> None:
        """Read a reopened run again, and forget what was read about its records and links."""
        self._runs_by_key.pop(key, None)
        self._waiters.clear()
        self._appended_epochs = {record: epoch for record, epoch in self._appended_epochs.items() if record[0] != key}
        self._changed_mailboxes.add(key)
        for statement in (self._sql.RECORD_EPOCH, self._sql.WAITERS, self._sql.LINKS):
            self._db.discard_prefetched(statement)
        self.read_fences([key])

    def _get_by_key(self, key: int) -> FencedRun | None:
        return self._runs_by_key.get(key)

    def _get_by_id(self, run_id: str) -> FencedRun | None:
        return self._runs_by_id.get(run_id)

    def _list_by_key(self, keys: Sequence[int]) -> list[FencedRun]:
        self.read_fences(keys)
        return [self._runs_by_key[key] for key in keys]

    def _get_claimed(self, key: int, epoch: int) -> FencedRun | None:
        run = self._runs_by_key.get(key)
        if run is None or not rules.can_write(run.state, run.epoch, epoch):
            return None
        if self._db.must_check_claim(key):
            [(run_id, owner)] = self._db.lookup(self._sql.CLAIM, key)
            if not self._db.is_own_claim(key, run_id, owner):
                return None
        return run

    def _is_paused(self, run: FencedRun) -> bool:
        return run.is_paused

    # Write buffers

    def _buffer_write(self, table: str, statement: str, run: int, row: Row) -> None:
        self._write_buffers[table].add(statement, run, row)

    def _flush_table(self, table: str) -> None:
        if self._write_buffers[table].flush(self._db) and table == "links":
            self._db.discard_prefetched(self._sql.WAITERS)
            self._db.discard_prefetched(self._sql.LINKS)

    def flush(self) -> None:
        """Write everything that is not written yet."""
        for buffer in self._write_buffers.values():
            buffer.flush(self._db)
        self._accounts.flush()

    def _to_column(self, payload: bytes) -> bytes:
        return self._references.get(payload, payload) if self._references else payload

    # Records and mailboxes

    def _append_record(self, key: int, record: Record) -> None:
        payload = None if record.payload is None else self._to_column(record.payload)
        self._appended_epochs[key, record.seq] = record.epoch
        self._buffer_write("records", self._sql.APPEND_RECORD, key, record_to_row(key, record, payload))

    def _get_record_epoch(self, key: int, seq: int) -> int | None:
        """The epoch that wrote a record, if the record exists."""
        epoch = self._appended_epochs.get((key, seq))
        if epoch is not None:
            return epoch
        rows = self._db.lookup(self._sql.RECORD_EPOCH, key, seq)
        return rows[0][0] if rows else None

    def _add_signal(self, key: int, name: str, at: float, payload: bytes, position: int | None = None) -> None:
        self._changed_mailboxes.add(key)
        self._buffer_write("signals", self._sql.SEND_SIGNAL, key, (key, name, at, payload, position))

    def _delete_signal(self, statement: str, key: int, row: Row) -> None:
        self._changed_mailboxes.add(key)
        self._buffer_write("signals", statement, key, row)

    def _delete_end_signal(self, link_key: LinkKey) -> None:
        self._delete_signal(self._sql.DELETE_END_SIGNAL, link_key[0], link_key)
        self._waiters.clear()  # the link is replaced, and may be among them

    def _list_mailbox(self, key: int) -> Sequence[tuple[str, int | None]]:
        if key in self._changed_mailboxes:  # what was prefetched is out of date
            self._flush_table("signals")
            self._db.discard_prefetched(self._sql.MAILBOX_NAMES, key)
        return self._db.lookup(self._sql.MAILBOX_NAMES, key)

    # Ends

    def release_reservations(self, key: int) -> None:
        """Release the reservations of a run that no worker holds any more."""
        run = self._runs_by_key.get(key)
        if run is None or run.has_budget:
            self._accounts.release_reservations(key)

    def _end_run(self, run: FencedRun, state: RunState, payload: bytes, at: float) -> bool:
        """Note that this transaction ends a run. Returns whether another run waited for it."""
        run.state = state
        run.is_paused = False
        return self.handle_run_end(run.key, state, payload, at)

    def handle_run_end(self, key: int, state: str, payload: bytes, at: float) -> bool:
        """Release what an ended run has reserved, clean up after it, and notify the runs that wait for it.

        ``payload`` is in its stored form. Returns whether any run waited.
        """
        self.release_reservations(key)
        self._delete_leftovers(key)
        if not self._can_be_awaited(key):
            return False
        if key not in self._waiters:
            self._read_waiters({key, *self._ending_keys})
        waiting = self._waiters.pop(key)
        for link_key in waiting:
            waiter_key, position = link_key
            waiter = self._runs_by_key.get(waiter_key)
            if waiter is None or waiter.state in TERMINAL_STATES:
                self._put_link(link_key, key, LinkState.LATE)
                continue
            self._put_link(link_key, key, LinkState.NOTIFIED)
            self._add_signal(waiter_key, state, at, payload, position)
            self._wake(waiter)
        return bool(waiting)

    def _delete_leftovers(self, key: int) -> None:
        """Delete the live events of steps in flight, and withdraw open approvals: the run needs neither any more."""
        if self._leftovers is None:
            [(has_events, has_approvals)] = self._db.lookup(self._sql.HAS_LEFTOVERS)
            self._leftovers = (has_events == 1, has_approvals == 1)
        if self._leftovers[0]:
            self._buffer_write("live_events", self._sql.CLEAR_ALL_LIVE_EVENTS, key, (key,))
        if self._leftovers[1]:
            self._buffer_write("approvals", self._sql.WITHDRAW_ALL_APPROVALS, key, (key,))

    def _mark_leftovers(self) -> None:
        """This transaction has written something that a run may leave when it ends."""
        self._leftovers = (True, True)

    def _add_lasting_event(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        self._flush_table("live_events")
        values = {"run": key, "position": position, "at": at, "kind": kind, "data": data}
        self._db.execute(self._sql.ADD_LASTING_EVENT, values)

    # Links

    def _can_be_awaited(self, key: int) -> bool:
        run = self._runs_by_key.get(key)
        return run is None or run.can_be_awaited

    def _read_waiters(self, keys: set[int]) -> None:
        self._flush_table("links")
        unread = [key for key in keys if key not in self._waiters and self._can_be_awaited(key)]
        self._db.prefetch({self._sql.WAITERS: [(key,) for key in unread]})
        for key in unread:
            self._waiters[key] = [
                (waiter_key, position) for waiter_key, position in self._db.lookup(self._sql.WAITERS, key)
            ]
        self.read_fences(waiter_key for key in unread for waiter_key, _ in self._waiters[key])

    def _put_link(self, link_key: LinkKey, awaited_key: int, state: LinkState) -> None:
        self._buffer_write("links", self._sql.PUT_LINK, link_key[0], (*link_key, awaited_key, int(state)))
        if state is LinkState.PENDING:
            awaited = self._runs_by_key.get(awaited_key)
            if awaited is not None:
                awaited.can_be_awaited = True
            if awaited_key in self._waiters:
                self._waiters[awaited_key].append(link_key)

    def _delete_link(self, link_key: LinkKey) -> None:
        self._buffer_write("links", self._sql.DELETE_LINK, link_key[0], link_key)

    def _wake(self, run: FencedRun) -> None:
        if run.state == RunState.WAITING and not (run.is_paused or run.is_woken):
            self._buffer_write("runs", self._sql.WAKE_RUN, run.key, (self._now, run.key))
            run.is_woken = True
