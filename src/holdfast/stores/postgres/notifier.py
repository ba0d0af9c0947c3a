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
    Answer,
    AppendRecord,
    FinishRun,
    NoteAttempt,
    Op,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Run,
    Started,
    TellNotices,
    Verdict,
)

_RARELY = 0.2
"""Seconds between two notifications about runs, while nobody seems to follow any."""
_MOST_LIMITED = 100_000
"""So many runs of limited queues are remembered; of others it is not told that their places are free."""


class Notifier:
    """Tells others what a store has changed.

    Args:
        schema: whose channels are used.
        notify: lets those on a channel know, as long as the store is open.
    """

    def __init__(self, schema: str, notify: Callable[[str], None]) -> None:
        self.work, self.runs = f"{schema}:work", f"{schema}:runs"
        """The two channels."""
        self.is_followed = False
        """Whether the progress of runs matters to anybody."""
        self._notify = notify
        self._told_at = 0.0
        self._late: asyncio.TimerHandle | None = None
        self._limited: set[int] = set()
        """Runs of limited queues that were taken here: others may want their places."""

    def tell(self, ops: Sequence[Op], answers: Sequence[Answer]) -> None:
        """These operations were answered so."""
        work = runs = False
        for op, answer in zip(ops, answers, strict=True):
            kind = type(op)
            if self._limited and self._gives_up_a_place(op, answer):
                work = True
            if kind is AppendRecord or kind is TellNotices or kind is ParkRun:
                runs = runs or self.is_followed
            elif kind is FinishRun:
                runs = True
                work = work or answer is Verdict.TOLD
            elif isinstance(answer, Started):
                work = work or (answer.created and answer.run.state is RunState.PENDING)
            elif not (kind is NoteAttempt or kind is ReserveUsage) and answer is Verdict.DONE:
                work = runs = True
        if work:
            self.tell_of_work()
        if runs:
            self._tell_of_runs()

    def tell_of_work(self) -> None:
        """There may be something to do."""
        self._notify(self.work)

    def tell_all(self) -> None:
        """There may be, and runs may have ended."""
        self._notify(self.work)
        self._notify(self.runs)

    def note_limited(self, run: Run) -> None:
        """A run of a limited queue is held through this store.

        Some are given back through other servers, and never heard of again here.
        """
        self._limited.add(run.key)
        if len(self._limited) > _MOST_LIMITED:
            self._limited.pop()

    def _gives_up_a_place(self, op: Op, answer: Answer) -> bool:
        """Whether a run of a limited queue was held here, and is no more."""
        if not isinstance(op, FinishRun | ParkRun | ReleaseRun) or op.key not in self._limited:
            return False
        if answer is not Verdict.REFUSED:
            self._limited.discard(op.key)
        return answer in (Verdict.DONE, Verdict.TOLD)

    def _tell_of_runs(self) -> None:
        """At once if somebody follows runs; else not too often: somebody may have begun to just now."""
        loop = asyncio.get_running_loop()
        if self.is_followed or loop.time() - self._told_at >= _RARELY:
            self._told_at = loop.time()
            self._notify(self.runs)
        elif self._late is None:
            self._late = loop.call_at(self._told_at + _RARELY, self._tell_late)

    def _tell_late(self) -> None:
        self._late = None
        self._tell_of_runs()
