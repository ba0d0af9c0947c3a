"""Which processes are notified of a commit: on one channel those that execute runs, on the other those that follow
them. Two more channels are for new workers (see ``death_watch``) and for new followers.

Most records notify no process: progress of a run matters only while some process follows runs, which it shows by a lock
(see ``workers``). Progress is notified a moment later: perhaps the run has ended by then. Processes that execute runs
are notified whenever there may be work, and when a slot in a limited queue becomes free, if this process knows that the
run had one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.states import RunState
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    FinishRun,
    Op,
    OpResult,
    OpStatus,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Run,
    SaveAttempt,
    StartResult,
)

_PROGRESS_DELAY_S = 0.005
"""Seconds after which progress of a run is notified."""
_UNFOLLOWED_INTERVAL_S = 0.2
"""Seconds between two notifications about runs while no process seems to follow any."""
_MAX_LIMITED_RUNS = 100_000
"""Maximum number of runs of limited queues to remember. Others free their slots without a notification."""


class Notifier:
    """Notifies other processes of a store's commits.

    ``notify`` sends on a channel while the store is open.
    """

    def __init__(self, schema: str, notify: Callable[[str], None]) -> None:
        self.work_channel, self.run_channel = f"{schema}:work", f"{schema}:runs"
        self.worker_channel, self.follower_channel = f"{schema}:workers", f"{schema}:followers"
        self.is_followed = False
        """Whether some process follows runs."""
        self._notify = notify
        self._notified_at = 0.0
        self._delayed_notify: asyncio.TimerHandle | None = None
        self._limited_runs: set[int] = set()
        """Keys of runs of limited queues that are held here: others may wait for their slots."""

    def notify_commit(self, ops: Sequence[Op], answers: Sequence[OpResult]) -> None:
        """Notify others of what these operations may have changed, by their answers."""
        work = runs = progress = False
        for op, answer in zip(ops, answers, strict=True):
            kind = type(op)
            if self._limited_runs and self._has_freed_slot(op, answer):
                work = True
            if kind is AppendRecord or kind is AppendLiveEvents or kind is ParkRun:
                progress = self.is_followed
            elif kind is FinishRun:
                runs = True
                work = work or answer is OpStatus.DONE_NOTIFIED
            elif isinstance(answer, StartResult):
                work = work or (answer.is_new and answer.run.state is RunState.PENDING)
            elif not (kind is SaveAttempt or kind is ReserveUsage) and answer is OpStatus.DONE:
                work = runs = True
        if work:
            self.notify_work()
        if runs:
            self._notify_runs()
        elif progress:
            self._notify_later(_PROGRESS_DELAY_S)

    def notify_work(self) -> None:
        """Notify workers that there may be work."""
        self._notify(self.work_channel)

    def notify_new_worker(self) -> None:
        """Notify the worker that watches the others that there is one more."""
        self._notify(self.worker_channel)

    def notify_all(self) -> None:
        """Notify workers that there may be work, and followers that runs may have ended."""
        self._notify(self.work_channel)
        self._notify(self.run_channel)

    def track_limited(self, run: Run) -> None:
        """Remember a run of a limited queue that is held through this store.

        A run that is released through another server stays here, so the number is limited.
        """
        self._limited_runs.add(run.key)
        if len(self._limited_runs) > _MAX_LIMITED_RUNS:
            self._limited_runs.pop()

    def _has_freed_slot(self, op: Op, answer: OpResult) -> bool:
        """Whether a run of a limited queue was held here until now."""
        if not isinstance(op, FinishRun | ParkRun | ReleaseRun) or op.key not in self._limited_runs:
            return False
        if answer is not OpStatus.REFUSED:
            self._limited_runs.discard(op.key)
        return answer in (OpStatus.DONE, OpStatus.DONE_NOTIFIED)

    def _notify_runs(self) -> None:
        """Notify at once if runs are followed, otherwise now and then: a follower may have just started."""
        loop = asyncio.get_running_loop()
        elapsed = loop.time() - self._notified_at
        if self.is_followed or elapsed >= _UNFOLLOWED_INTERVAL_S:
            self._notified_at = loop.time()
            self._notify(self.run_channel)
            if self._delayed_notify is not None:
                self._delayed_notify.cancel()
                self._delayed_notify = None
        else:
            self._notify_later(_UNFOLLOWED_INTERVAL_S - elapsed)

    def _notify_later(self, delay_s: float) -> None:
        if self._delayed_notify is None:
            self._delayed_notify = asyncio.get_running_loop().call_later(delay_s, self._notify_delayed)

    def _notify_delayed(self) -> None:
        self._delayed_notify = None
        self._notify_runs()

    def set_followed(self) -> None:
        """A process has begun to follow runs: notify it of what was held back."""
        self.is_followed = True
        if self._delayed_notify is not None:
            self._notify_runs()
