"""Operations from outside, in a transaction: signals, cancelling, pausing, and a person's retry."""

from __future__ import annotations

import json
from typing import Any

from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.operations import CancelState
from holdfast.stores.row_access import AwaitedRunRow, ReopenedRun
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.transaction import FencedRun, Transaction


class ClientOperations(Transaction):
    """What anyone can ask of a run."""

    _reader: RowReader
    _new_signal_keys: set[tuple[int, str]]
    """The deduplication keys that this transaction has written, by run."""

    def _has_signal_key(self, key: int, dedup_key: str) -> bool:
        return (key, dedup_key) in self._new_signal_keys or bool(
            self._db.lookup(self._sql.HAS_SIGNAL_KEY, key, dedup_key)
        )

    def _add_signal_key(self, key: int, dedup_key: str) -> None:
        self._new_signal_keys.add((key, dedup_key))
        self._buffer_write("signals", self._sql.ADD_SIGNAL_KEY, key, (key, dedup_key))

    def _get_seed(self, run: FencedRun) -> bytes:
        self._flush_table("runs")  # this transaction may have started the run
        [(seed,)] = self._db.query(self._sql.SEED, (run.key,))
        return seed

    def _cancel_run(self, run: FencedRun, at: float, *, is_immediate: bool) -> None:
        run.cancel_state = run.cancel_state or CancelState.REQUESTED
        run.is_paused = False
        if is_immediate:
            self._buffer_write("runs", self._sql.CANCEL_IMMEDIATELY, run.key, (at, run.key))
            self._end_run(run, RunState.CANCELLED, rules.make_end_payload(None, None), at)
        elif run.state == RunState.RUNNING:
            self._buffer_write("runs", self._sql.CANCEL_CLAIMED, run.key, (run.key,))
        else:
            self._buffer_write("runs", self._sql.CANCEL_IDLE, run.key, (self._now, run.key))

    def _pause_run(self, run: FencedRun, at: float) -> None:
        self._buffer_write("runs", self._sql.PAUSE_RUN, run.key, (at, run.key))
        run.is_paused = True
        run.is_woken = False

    def _resume_run(self, run: FencedRun) -> None:
        if run.state == RunState.RUNNING:
            self._buffer_write("runs", self._sql.RESUME_CLAIMED, run.key, (run.key,))
        elif rules.should_keep_wake_at(run.state, run.epoch):
            self._buffer_write("runs", self._sql.RESUME_UNSTARTED, run.key, (self._now, run.key))
        else:
            self._buffer_write("runs", self._sql.RESUME_IDLE, run.key, (self._now, run.key))
        run.is_paused = False

    # Reopening is rare: a person does it, so it may query the database step by step

    def _read_reopened(self, key: int) -> ReopenedRun:
        self.flush()
        row = self._db.query_one(self._sql.REOPENED_RUN, key)
        assert row is not None
        return ReopenedRun(key, row[0], row[1], self._reader.read_rewind(row[2], f"run {row[0]!r}"))

    def _list_awaited_runs(self, run: ReopenedRun) -> list[AwaitedRunRow]:
        rewind = run.active_rewind
        if rewind is None:
            return []
        values = self._make_rewind_values(run)
        rows = self._db.query(self._sql.AWAITED_BY_REOPENED, values)
        unread = [row[1] for row in rows if row[1] not in self._runs_by_key]
        if unread:  # another process may be reopening one of them: read again once they are locked
            self.read_fences(unread)
            rows = self._db.query(self._sql.AWAITED_BY_REOPENED, values)
        return [
            AwaitedRunRow(row[0], row[1], row[2], row[3], row[4] == 1, row[0] >= rewind.command_count)
            for row in rows
            if row[0] not in rewind.abandoned_positions
        ]

    def _get_last_seq(self, key: int) -> int:
        [last_seq] = self._db.query_one(self._sql.LAST_SEQ, key) or (-1,)
        return last_seq

    def _set_version(self, key: int, version: str) -> None:
        self._db.execute(self._sql.SET_VERSION, (version, key))

    def _rewind_journal(self, run: ReopenedRun) -> None:
        if run.active_rewind is not None:
            values = self._make_rewind_values(run)
            self._db.execute(self._sql.DELETE_REWOUND_ANSWERS, values)
            self._db.execute(self._sql.WITHDRAW_REWOUND_APPROVALS, values)
            self._db.execute(self._sql.DELETE_REWOUND_ATTEMPTS, values)
            self._db.execute(self._sql.RESTORE_SIGNALS, values)
            self._db.execute(self._sql.DELETE_REWOUND_RECORDS, values)
            self._db.execute(self._sql.ADD_REWIND_POINT, (json.dumps(run.active_rewind.point), run.key))
        self._db.query_one(self._sql.LOCK_QUEUE_OF_RUN, run.key)
        self._db.execute(self._sql.REOPEN_RUN, (self._now, self._now, run.key))
        self._reload_run(run.key)

    def _make_rewind_values(self, run: ReopenedRun) -> dict[str, Any]:
        """The values of the statements that select what a retry removes."""
        assert run.rewind is not None
        return {
            "run": run.key, "first": min(run.rewind.failed_seqs),
            "failed": self._db.to_list_parameter(run.rewind.failed_seqs),
            "positions": run.rewind.command_count, "timers": run.rewind.timer_count,
        }  # fmt: skip
