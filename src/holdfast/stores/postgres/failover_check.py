"""What a worker checks after a failover, because the database may lack commits that it had confirmed.

With asynchronous replication, a standby that takes over may lack the primary's last commits. The workers have seen
these commits, and hold runs that are further than the journals in the database. Three things must not happen:

- **A journal with a gap.** A worker that simply continued would append records after missing ones, and the next replay
  of the run could not make sense of them. So once the server has changed, the first record of each held run is appended
  only if the record before it exists. If not, the worker loses the run, which is released in the same transaction:
  whoever claims it continues from what the database has, as after a crash.
- **A wait for what is lost.** A run may wait for a child or an approval that the database does not know. So a run that
  has been held since before the failover is released when it wants to park. It is replayed, and starts what is missing.
- **Two holders of one run.** If the claim of a run was lost, another worker may claim it under the same epoch. And the
  sequence that numbers runs may have been set back, so the key of a lost run may belong to a new one. So the id and the
  owner of the run are compared, too.

A server that was restarted is checked like another server: that costs a few queries for each held run. Behind a pooler,
a connection may outlive the server. There, each transaction begins with a test for this (see ``connections``).

Runs that the database says are held by this worker, because it has lost their ends, are released by the engine, which
looks for them when ``server_change_count`` has changed (see ``claims`` in ``engine``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.stores.operations import (
    AppendRecord,
    FinishRun,
    Op,
    OpResult,
    OpStatus,
    ParkRun,
    ReleaseRun,
    Run,
    StartResult,
)

_DONE = (OpStatus.DONE, OpStatus.DONE_NOTIFIED)
_MAX_CLAIMS = 100_000
"""Maximum number of runs to remember. Those that a worker has lost without writing to them again would stay."""


class FailoverCheck:
    """Which of the runs that are held through a store must be checked before they are written to."""

    def __init__(self) -> None:
        self._claims: dict[int, tuple[str, int | None]] = {}
        """The ids and owners of held runs, by key."""
        self._server_started_at: float | None = None
        self.is_needed = False
        """Whether the server has changed."""
        self.carried_keys: set[int] = set()
        """The keys of runs that have been held since before the server changed."""
        self.intact_keys: set[int] = set()
        """The keys of held runs of which the current server has all records. Another server has another set, so that
        what belongs to the one before can still be added there."""

    # In the thread of the connection that writes

    def note_server(self, started_at: float) -> None:
        """The connection that writes is a new one."""
        if self._server_started_at not in (None, started_at):
            self.intact_keys = set()
            self.carried_keys = set(self._claims)
            self.is_needed = True
        self._server_started_at = started_at

    def must_check(self, key: int) -> bool:
        """Whether the claim of a run must be compared, and its next record must follow one that exists."""
        return self.is_needed and key not in self.intact_keys

    def note_intact(self, key: int) -> None:
        """The server has all records of a run, up to the one that is being appended."""
        if len(self.intact_keys) >= _MAX_CLAIMS:
            self.intact_keys.clear()  # they are checked again
        self.intact_keys.add(key)

    def is_own_claim(self, key: int, run_id: str, owner: int | None) -> bool:
        """Whether a row with this id and owner is the run that is held. Deliveries of a server are not known here."""
        return self._claims.get(key, (run_id, owner)) == (run_id, owner)

    # On the event loop

    def track(self, ops: Sequence[Op], answers: Sequence[OpResult], intact_keys: set[int]) -> None:
        """Note which runs are held after a commit. ``intact_keys`` is what it was before the commit."""
        for op, answer in zip(ops, answers, strict=True):
            if type(op) is AppendRecord:
                continue
            if isinstance(answer, StartResult):
                if answer.is_new and answer.run.owner is not None:
                    self.track_claimed([answer.run], intact_keys)
            elif isinstance(op, FinishRun | ParkRun | ReleaseRun) and answer in _DONE:
                self._claims.pop(op.key, None)
                self.carried_keys.discard(op.key)
                intact_keys.discard(op.key)

    def track_claimed(self, runs: Iterable[Run], intact_keys: set[int]) -> None:
        """These runs were claimed or started just now. ``intact_keys`` is what it was before that.

        A run that was held already may be claimed again under the same epoch: its first claim was lost, and what is in
        memory may be further than the journal.
        """
        for run in runs:
            if run.is_delivery:  # the next request about it may reach another server
                continue
            if len(self._claims) >= _MAX_CLAIMS:
                del self._claims[next(iter(self._claims))]
            if run.key not in self._claims:
                intact_keys.add(run.key)
            self._claims[run.key] = (run.id, run.owner)
