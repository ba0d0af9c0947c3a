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


class GroupCommit:
    """Groups the commits of a database with a single writer."""

    def __init__(self, commit: CommitFunction) -> None:
        self._commit = commit
        self._is_busy = False
        self._waiting: list[tuple[Sequence[Op], asyncio.Future[list[OpResult]]]] = []

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
        count, taken = len(waiting[0][0]), 1
        while taken < len(waiting) and count + len(waiting[taken][0]) <= MAX_OPS:
            count += len(waiting[taken][0])
            taken += 1
        group, self._waiting = waiting[:taken], waiting[taken:]
        self._task = group[0][1].get_loop().create_task(self._commit_group(group))

    async def _commit_group(self, group: Sequence[tuple[Sequence[Op], asyncio.Future[list[OpResult]]]]) -> None:
        try:
            answers = await self._commit([op for ops, _ in group for op in ops])
        except StoreUnavailable as error:
            for _, future in group:
                _fail_future(future, error)
        except Exception:
            for ops, future in group:  # one of them is at fault, and repeating the others is harmless
                await self._commit_alone(ops, future)
        else:
            at = 0
            for ops, future in group:
                if not future.done():
                    future.set_result(answers[at : at + len(ops)])
                at += len(ops)
        finally:
            self._commit_waiting()

    async def _commit_alone(self, ops: Sequence[Op], future: asyncio.Future[list[OpResult]]) -> None:
        try:
            answers = await self._commit(ops)
        except Exception as error:
            _fail_future(future, error)
        else:
            if not future.done():
                future.set_result(answers)


def _fail_future(future: asyncio.Future[list[OpResult]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
