"""Commits that arrive while another one is under way are made together, with one sync of the disk for all of them.

An engine collects the writes of its runs itself. This is for a process with many concurrent callers, such as a server,
in which each caller knows only its own operation. No caller waits longer than it would have waited for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import Op, OpResult

CommitFunction = Callable[[Sequence[Op]], Awaitable[list[OpResult]]]

MAX_OPS = 500
"""Operations in one transaction, unless a single caller has more."""


PendingCommit = tuple[Sequence[Op], "asyncio.Future[list[OpResult]]"]


class GroupCommit:
    """Groups the commits of a database with a single writer."""

    def __init__(self, commit: CommitFunction) -> None:
        self._commit = commit
        self._is_busy = False
        self._waiting: list[PendingCommit] = []

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Commit operations, alone or together with other callers'."""
        if self._is_busy:
            future: asyncio.Future[list[OpResult]] = asyncio.get_running_loop().create_future()
            self._waiting.append((ops, future))
            return await future
        self._is_busy = True
        try:
            return await self._commit(ops)
        finally:
            self._commit_waiting()

    def _commit_waiting(self) -> None:
        """Start the next group, if any caller waits."""
        waiting = [(ops, future) for ops, future in self._waiting if not future.get_loop().is_closed()]
        if not waiting:
            self._is_busy, self._waiting = False, []
            return
        group, self._waiting = _split_group(waiting)
        self._task = group[0][1].get_loop().create_task(self._commit_next(group))

    async def _commit_next(self, group: Sequence[PendingCommit]) -> None:
        try:
            await _commit_group(self._commit, group)
        finally:
            self._commit_waiting()


class TurnCommit:
    """Commits together what different callers want to commit in one turn of the event loop.

    A commit that does not leave the event loop is never under way when the next one arrives, so ``GroupCommit`` has
    nothing to group. A turn is as long as it takes to handle everything that has arrived.
    """

    def __init__(self, commit: CommitFunction) -> None:
        self._commit = commit
        self._waiting: list[PendingCommit] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Commit operations, alone or together with other callers'. A caller that is cancelled affects no others."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[OpResult]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit_waiting)
        self._waiting.append((ops, future))
        return await future

    def _commit_waiting(self) -> None:
        while self._waiting:
            group, self._waiting = _split_group(self._waiting)
            task = asyncio.get_running_loop().create_task(_commit_group(self._commit, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _split_group(waiting: list[PendingCommit]) -> tuple[list[PendingCommit], list[PendingCommit]]:
    """What goes into the next transaction, and the rest."""
    count, taken = len(waiting[0][0]), 1
    while taken < len(waiting) and count + len(waiting[taken][0]) <= MAX_OPS:
        count += len(waiting[taken][0])
        taken += 1
    return waiting[:taken], waiting[taken:]


async def _commit_group(commit: CommitFunction, group: Sequence[PendingCommit]) -> None:
    try:
        answers = await commit([op for ops, _ in group for op in ops])
    except StoreUnavailable as error:
        for _, future in group:
            _fail_future(future, error)
    except Exception as error:
        if len(group) == 1:
            _fail_future(group[0][1], error)
            return
        for ops, future in group:  # one of them is at fault, and repeating the others is harmless
            await _commit_group(commit, [(ops, future)])
    else:
        at = 0
        for ops, future in group:
            if not future.done():
                future.set_result(answers[at : at + len(ops)])
            at += len(ops)


def _fail_future(future: asyncio.Future[list[OpResult]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
