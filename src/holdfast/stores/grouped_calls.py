"""The calls of many callers, made together: commits, with one sync of the disk for all of them, and reads, with one
round trip.

An engine collects the writes of its runs itself. This is for a process with many concurrent callers, such as a server,
in which each caller knows only its own operation. ``GroupedCalls`` groups what arrives while a call is under way, so no
caller waits longer than it would have waited for its turn. ``TurnCalls`` groups what arrives in one turn of the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import Op, OpResult

Item = TypeVar("Item")
Answer = TypeVar("Answer")
GroupFunction = Callable[[Sequence[Item]], Awaitable[list[Answer]]]
"""Answers each of its items."""
CommitFunction = Callable[[Sequence[Op]], Awaitable[list[OpResult]]]

MAX_ITEMS = 500
"""Items in one call, unless a single caller has more."""


class GroupedCalls(Generic[Item, Answer]):
    """Calls a function for one group of callers at a time.

    A call that fails is repeated for each of its callers alone, which must be harmless.
    """

    def __init__(self, function: GroupFunction[Item, Answer]) -> None:
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
        group, self._waiting = _split_group(waiting)
        self._task = group[0][1].get_loop().create_task(self._call_for_group(group))

    async def _call_for_group(self, group: Sequence[tuple[Sequence[Item], asyncio.Future[list[Answer]]]]) -> None:
        try:
            await _call_for_group(self._function, group)
        finally:
            self._call_for_waiting()


class TurnCalls(Generic[Item, Answer]):
    """Calls a function once for what different callers pass to it in one turn of the event loop.

    A commit that does not leave the event loop is never under way when the next one arrives, so ``GroupedCalls`` has
    nothing to group. A turn is as long as it takes to handle everything that has arrived.
    """

    def __init__(self, function: GroupFunction[Item, Answer]) -> None:
        self._function = function
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, items: Sequence[Item]) -> list[Answer]:
        """Call the function, alone or together with other callers. A caller that is cancelled affects no others."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._call_for_waiting)
        self._waiting.append((items, future))
        return await future

    def _call_for_waiting(self) -> None:
        while self._waiting:
            group, self._waiting = _split_group(self._waiting)
            task = asyncio.get_running_loop().create_task(_call_for_group(self._function, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _split_group(
    waiting: list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]],
) -> tuple[
    list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]], list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]]
]:
    """The callers of the next call, and the rest."""
    count, taken = len(waiting[0][0]), 1
    while taken < len(waiting) and count + len(waiting[taken][0]) <= MAX_ITEMS:
        count += len(waiting[taken][0])
        taken += 1
    return waiting[:taken], waiting[taken:]


async def _call_for_group(
    function: GroupFunction[Item, Answer], group: Sequence[tuple[Sequence[Item], asyncio.Future[list[Answer]]]]
) -> None:
    try:
        answers = await function([item for items, _ in group for item in items])
    except StoreUnavailable as error:
        for _, future in group:
            _fail_future(future, error)
    except Exception as error:
        if len(group) == 1:
            _fail_future(group[0][1], error)
            return
        for items, future in group:  # one of them is at fault
            await _call_for_group(function, [(items, future)])
    else:
        at = 0
        for items, future in group:
            if not future.done():
                future.set_result(answers[at : at + len(items)])
            at += len(items)


def _fail_future(future: asyncio.Future[list[Answer]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
