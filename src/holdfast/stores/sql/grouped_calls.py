"""Calls that arrive while another one is under way are made together: commits, with one sync of the disk for all of
them, and reads, with one round trip.

An engine collects the writes of its runs itself. This is for a process with many concurrent callers, such as a server,
in which each caller knows only its own operation. No caller waits longer than it would have waited for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.errors import StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_ITEMS = 500
"""Items in one call, unless a single caller has more."""


class GroupedCalls(Generic[Item, Answer]):
    """Calls a function that answers each of its items, for one group of callers at a time.

    A call that fails is repeated for each of its callers alone, which must be harmless.
    """

    def __init__(self, function: Callable[[Sequence[Item]], Awaitable[list[Answer]]]) -> None:
        self._function = function
        self._is_busy = False
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]] = []

    async def call(self, items: Sequence[Item]) -> list[Answer]:
        """Call the function, alone or together with other callers."""
        if self._is_busy:
            future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
            self._waiting.append((items, future))
            return await future
        self._is_busy = True
        try:
            return await self._function(items)
        finally:
            self._call_for_waiting()

    def _call_for_waiting(self) -> None:
        """Start the next group, if any caller waits."""
        waiting = [(items, future) for items, future in self._waiting if not future.get_loop().is_closed()]
        if not waiting:
            self._is_busy, self._waiting = False, []
            return
        count, taken = len(waiting[0][0]), 1
        while taken < len(waiting) and count + len(waiting[taken][0]) <= MAX_ITEMS:
            count += len(waiting[taken][0])
            taken += 1
        group, self._waiting = waiting[:taken], waiting[taken:]
        self._task = group[0][1].get_loop().create_task(self._call_for_group(group))

    async def _call_for_group(self, group: Sequence[tuple[Sequence[Item], asyncio.Future[list[Answer]]]]) -> None:
        try:
            answers = await self._function([item for items, _ in group for item in items])
        except StoreUnavailable as error:
            for _, future in group:
                _fail_future(future, error)
        except Exception:
            for items, future in group:  # one of them is at fault
                await self._call_alone(items, future)
        else:
            at = 0
            for items, future in group:
                if not future.done():
                    future.set_result(answers[at : at + len(items)])
                at += len(items)
        finally:
            self._call_for_waiting()

    async def _call_alone(self, items: Sequence[Item], future: asyncio.Future[list[Answer]]) -> None:
        try:
            answers = await self._function(items)
        except Exception as error:
            _fail_future(future, error)
        else:
            if not future.done():
                future.set_result(answers)


def _fail_future(future: asyncio.Future[list[Answer]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
