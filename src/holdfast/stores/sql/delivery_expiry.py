"""Ending delivered runs whose deadline has passed: they have no code that could notice it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.states import RunState
from holdfast.stores import run_errors
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.transaction import Transaction


def expire_runs(db: Database, now: float, limit: int) -> list[str]:
    """End up to ``limit`` of them, held or not, and return their ids.

    They are found without a lock, so they are checked again once they are locked: one may have ended or been delayed
    since.
    """
    db.begin()
    ended: list[str] = []
    keys = [row[0] for row in db.query(db.sql.OVERDUE, (now, limit))]
    if keys:
        transaction = _ExpiryTransaction(db, now)
        ended = transaction.end_runs(keys)
        transaction.flush()
    db.commit()
    return ended


class _ExpiryTransaction(Transaction):
    def end_runs(self, keys: Sequence[int]) -> list[str]:
        """End the runs that are still overdue once they are locked, and return their ids."""
        self._ending_keys = set(keys)
        self.read_fences(keys, (), keys)
        late = self._db.query(self._sql.RECHECK_OVERDUE, (self._now, self._db.to_list_parameter(keys)))
        for key, run_id in late:
            error = run_errors.encode_deadline_error(run_id)
            self._buffer_write("runs", self._sql.FINISH_RUN, key, (RunState.FAILED, None, error, self._now, None, key))
            self._end_run(self._runs_by_key[key], RunState.FAILED, error, self._now)
        return [run_id for _, run_id in late]
