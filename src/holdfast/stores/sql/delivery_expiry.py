"""Ending runs by delivery whose deadline has passed: there is no code of theirs that could notice it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.states import RunState
from holdfast.stores import rules, run_errors
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.transaction import Transaction


def expire_runs(db: Database, now: float, limit: int) -> list[str]:
    """End up to ``limit`` of them, held or not, and tell their ids.

    They are found without a lock, so they are looked at once more when nobody else can change them: one may have ended,
    or have been put off.
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
    """The transaction that ends them."""

    def end_runs(self, keys: Sequence[int]) -> list[str]:
        """End those of these runs that are still late."""
        self._ending_keys = set(keys)
        self.read_fences(keys, (), keys)
        late = self._db.query(self._sql.RECHECK_OVERDUE, (self._now, self._db.to_list_parameter(keys)))
        for key, run_id in late:
            fence, error = self._fences_by_key[key], run_errors.encode_deadline_error(run_id)
            self._buffer_write("runs", self._sql.FINISH_RUN, key, (RunState.FAILED, None, error, self._now, None, key))
            fence.state = RunState.FAILED
            fence.is_paused = False
            self.handle_run_end(key, fence.state, rules.make_end_payload(None, error), self._now)
        return [run_id for _, run_id in late]
