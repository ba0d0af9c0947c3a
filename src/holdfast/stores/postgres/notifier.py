"""Who else is told of a commit: on one channel those who execute runs, on the other those who wait for or follow them.

Nobody is told of every record: that a run has made progress matters only while somebody follows runs, which others show
by a lock (see ``workers``). That there is work to do is told whenever there may be some, and that a place in a limited
queue is free, as far as it is known here who had one.
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

_UNFOLLOWED_INTERVAL_S = 0.2
"""Seconds between two notifications about runs, while nobody seems to follow any."""
_MAX_LIMITED_RUNS = 100_000
"""So many runs of limited queues are remembered; of others it is not told that their places are free."""


class Notifier:
    """Tells others what a store has changed.

    Args:
        schema: whose channels are used.
        notify: lets those on a channel know, as long as the store is open.
    """

    def __init__(self, schema: str, notify: Callable[[str], None]) -> None:
        self.work_channel, self.run_channel = f"{schema}:work", f"{schema}:runs"
        """The two channels."""
        self.is_followed = False
        """Whether the progress of runs matters to anybody."""
        self._notify = notify
        self._notified_at = 0.0
        self._delayed_notify: asyncio.TimerHandle | None = None
        self._limited_runs: set[int] = set()
        """Runs of limited queues that were taken here: others may want their places."""

    def notify_commit(self, ops: Sequence[Op], answers: Sequence[OpResult]) -> None:
        """These operations were answered so."""
        work = runs = False
        for op, answer in zip(ops, answers, strict=True):
            kind = type(op)
            if self._limited_runs and self._has_freed_slot(op, answer):
                work = True
            if kind is AppendRecord or kind is AppendLiveEvents or kind is ParkRun:
                runs = runs or self.is_followed
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

    def notify_work(self) -> None:
        """There may be something to do."""
        self._notify(self.work_channel)

    def notify_all(self) -> None:
        """There may be, and runs may have ended."""
        self._notify(self.work_channel)
        self._notify(self.run_channel)

    def track_limited(self, run: Run) -> None:
        """A run of a limited queue is held through this store.

        Some are given back through other servers, and never heard of again here.
        """
        self._limited_runs.add(run.key)
        if len(self._limited_runs) > _MAX_LIMITED_RUNS:
            self._limited_runs.pop()

    def _has_freed_slot(self, op: Op, answer: OpResult) -> bool:
        """Whether a run of a limited queue was held here, and is no more."""
        if not isinstance(op, FinishRun | ParkRun | ReleaseRun) or op.key not in self._limited_runs:
            return False
        if answer is not OpStatus.REFUSED:
            self._limited_runs.discard(op.key)
        return answer in (OpStatus.DONE, OpStatus.DONE_NOTIFIED)

    def _notify_runs(self) -> None:
        """At once if somebody follows runs; else not too often: somebody may have begun to just now."""
        loop = asyncio.get_running_loop()
        if self.is_followed or loop.time() - self._notified_at >= _UNFOLLOWED_INTERVAL_S:
            self._notified_at = loop.time()
            self._notify(self.run_channel)
        elif self._delayed_notify is None:
            self._delayed_notify = loop.call_at(self._notified_at + _UNFOLLOWED_INTERVAL_S, self._notify_delayed)

    def _notify_delayed(self) -> None:
        self._delayed_notify = None
        self._notify_runs()
