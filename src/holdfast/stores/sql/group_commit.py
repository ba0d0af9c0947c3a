"""Commits that come in while one is under way are carried out together: one sync of the disk for all of them.

An engine gathers what its runs have to write itself. Whoever serves many callers at once, of which each knows only its
own operation, is helped here: nobody waits longer than they would have waited for their turn anyway.
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
    """Stands before the commits of a database with a single writer."""

    def __init__(self, commit: CommitFunction) -> None:
        self._commit = commit
        self._is_busy = False
        self._waiting: list[tuple[Sequence[Op], asyncio.Future[list[OpResult]]]] = []

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out operations, alone or together with others."""
        if self._is_busy:
            turn: asyncio.Future[list[OpResult]] = asyncio.get_running_loop().create_future()
            self._waiting.append((ops, turn))
            return await turn
        self._is_busy = True
        try:
            return await self._commit(ops)
        finally:
            self._commit_waiting()

    def _commit_waiting(self) -> None:
        """It is the turn of those that wait."""
        waiting = [(ops, turn) for ops, turn in self._waiting if not turn.get_loop().is_closed()]
        if not waiting:
            self._is_busy, self._waiting = False, []
            return
        count, taken = len(waiting[0][0]), 1
        while taken < len(waiting) and count + len(waiting[taken][0]) <= MAX_OPS:
            count += len(waiting[taken][0])
            taken += 1
        together, self._waiting = waiting[:taken], waiting[taken:]
        self._task = together[0][1].get_loop().create_task(self._commit_group(together))

    async def _commit_group(self, group: Sequence[tuple[Sequence[Op], asyncio.Future[list[OpResult]]]]) -> None:
        try:
            answers = await self._commit([op for ops, _ in group for op in ops])
        except StoreUnavailable as error:
            for _, turn in group:
                _fail_future(turn, error)
        except Exception:
            for ops, turn in group:  # one of them cannot be carried out: repeating the others is harmless
                await self._commit_alone(ops, turn)
        else:
            at = 0
            for ops, turn in group:
                if not turn.done():
                    turn.set_result(answers[at : at + len(ops)])
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
