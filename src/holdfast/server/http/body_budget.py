"""Request bodies and webhook responses, read within a memory budget.

A caller who sends a large body and never finishes it occupies memory for as long as a body may take. So the server
counts bytes from their arrival until the request is answered, for each caller and in total. A body that exceeds the
caller's budget gets a 429, one that exceeds the total a 503, and the rest of it is not read.

The beginning of a body does not count toward the total. So a few callers with large bodies cannot keep all others from
sending small ones. These beginnings take little memory, since the number of connections is limited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request

from holdfast.server.http.json_scanner import PIECE, JsonLimit, JsonScanner
from holdfast.server.http.problems import Problem

PER_CALLER: Final = 3
"""Bodies of the maximum size that one caller may have in memory."""
IN_ALL: Final = 8
"""Bodies of the maximum size that all callers together may have in memory."""
UNCOUNTED: Final = 1024
"""The maximum size is this many times the beginning of a body, which does not count toward the total."""
RETRY_AFTER: Final = 2
_TITLES: Final = {
    "too-deep": "The body is nested too deeply",
    "too-many-values": "The body has too many values",
    "bad-input": "The body is no JSON",
}


class BodyBudget:
    """Counts the bytes of all bodies in memory."""

    def __init__(self, max_body: int) -> None:
        self._per_caller = PER_CALLER * max_body
        self._in_all = IN_ALL * max_body
        self._uncounted = max_body // UNCOUNTED
        self._by_caller: Counter[str] = Counter()
        self._used = 0

    @contextmanager
    def room(self, caller: str) -> Generator[BodyRoom]:
        """Room for one body, given back at the end of the block."""
        room = BodyRoom(self, caller)
        try:
            yield room
        finally:
            self._give_back(caller, room.size)

    def take(self, caller: str, size: int, more: int) -> None:
        """Count ``more`` bytes of a body that had ``size``. Raises ``Problem`` if they exceed the budget."""
        counted = self._counted(size + more) - self._counted(size)
        if self._by_caller[caller] + more > self._per_caller:
            raise _too_much(429, "too-many-bytes", "Bodies of this caller", self._per_caller)
        if counted and self._used + counted > self._in_all:
            raise _too_much(503, "too-busy", "Bodies of all requests", self._in_all)
        self._by_caller[caller] += more
        self._used += counted

    def _counted(self, size: int) -> int:
        return max(0, size - self._uncounted)

    def _give_back(self, caller: str, size: int) -> None:
        self._used -= self._counted(size)
        self._by_caller[caller] -= size
        if self._by_caller[caller] <= 0:
            del self._by_caller[caller]


class BodyRoom:
    """The memory that one body takes."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self.size = 0

    def take(self, size: int) -> None:
        """Count bytes that have arrived. Raises ``Problem`` if they exceed the budget."""
        self._budget.take(self._caller, self.size, size)
        self.size += size

    async def read_json(self, request: Request) -> bytearray:
        """The whole body. Raises ``Problem`` if it exceeds the budget, or a limit on JSON."""
        data, scanner = bytearray(), JsonScanner()
        try:
            async for part in request.stream():
                self.take(len(part))
                data += part
                for start in range(0, len(part), PIECE):
                    scanner.feed(part[start : start + PIECE])
                    if len(part) > PIECE:
                        await asyncio.sleep(0)
            scanner.close()
        except JsonLimit as limit:
            raise Problem(422, limit.kind, _TITLES[limit.kind], str(limit)) from None
        return data


def _too_much(status: int, type: str, whose: str, most: int) -> Problem:
    return Problem(
        status,
        type,
        "Too many bytes in request bodies",
        f"{whose} may take {most:,} bytes at a time. Try again in a moment.",
        headers={"Retry-After": str(RETRY_AFTER)},
    )
