"""Request bodies and webhook responses, read within a memory budget.

A caller who sends a large body and never finishes it occupies memory for as long as a body may take. So the server
counts bytes from their arrival until the request is answered, for each caller and in total. A body that exceeds the
caller's budget gets a 429, one that exceeds the total a 503, and the rest of it is not read.

The beginning of a body does not count toward the total. So a few callers with large bodies cannot keep all others from
sending small ones. These beginnings take little memory, since the number of connections is limited.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

from holdfast.server.http.json_scanner import (
    CHUNK_BYTES,
    MAX_NUMBER_CHARS,
    JsonLimitExceeded,
    JsonScanner,
    check_json,
)
from holdfast.server.http.request import Request
from holdfast.services.problems import Problem

MAX_BODIES_PER_CALLER: Final = 3
"""Bodies of the maximum size that one caller may have in memory."""
MAX_BODIES: Final = 8
"""Bodies of the maximum size that all callers together may have in memory."""
FREE_BYTES_DIVISOR: Final = 1024
"""The maximum size is this many times the beginning of a body, which does not count toward the total."""
RETRY_AFTER_S: Final = 2
_PROBLEM_TITLES: Final = {
    "too-deep": "The body is nested too deeply",
    "too-many-values": "The body has too many values",
    "bad-input": "The body is no JSON",
}


class BodyBudget:
    """Counts the bytes of all bodies in memory."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_bytes_per_caller = MAX_BODIES_PER_CALLER * max_body_bytes
        self._max_bytes = MAX_BODIES * max_body_bytes
        self._free_bytes = max_body_bytes // FREE_BYTES_DIVISOR
        self._used_by_caller: dict[str, int] = {}
        self._used_bytes = 0

    def open_reservation(self, caller: str) -> BodyReservation:
        """A reservation for one body, released at the end of a ``with`` block."""
        return BodyReservation(self, caller)

    def extend(self, caller: str, size: int, added: int) -> None:
        """Count ``added`` bytes of a body that had ``size``. Raises ``Problem`` if they exceed the budget."""
        counted = self._get_counted_bytes(size + added) - self._get_counted_bytes(size)
        used = self._used_by_caller.get(caller, 0) + added
        if used > self._max_bytes_per_caller:
            raise _too_many_bytes_problem(429, "too-many-bytes", "Bodies of this caller", self._max_bytes_per_caller)
        if counted and self._used_bytes + counted > self._max_bytes:
            raise _too_many_bytes_problem(503, "overloaded", "Bodies of all requests", self._max_bytes)
        self._used_by_caller[caller] = used
        self._used_bytes += counted

    def _get_counted_bytes(self, size: int) -> int:
        return size - self._free_bytes if size > self._free_bytes else 0

    def release(self, caller: str, size: int) -> None:
        """A body is no longer in memory."""
        if not size:
            return
        self._used_bytes -= self._get_counted_bytes(size)
        used = self._used_by_caller.pop(caller) - size
        if used > 0:
            self._used_by_caller[caller] = used


class BodyReservation:
    """The memory that one body takes."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The body is no longer in memory."""
        self._budget.release(self._caller, self.size)
        self.size = 0

    def extend(self, size: int) -> None:
        """Count bytes that have arrived. Raises ``Problem`` if they exceed the budget."""
        self._budget.extend(self._caller, self.size, size)
        self.size += size

    async def read_json(self, request: Request) -> bytes | bytearray:
        """The whole body. Raises ``Problem`` if it exceeds the budget, or a limit on JSON."""
        data, scanner, has_more = bytearray(), None, True
        try:
            while has_more:
                part, has_more = await request.receive_body()
                self.extend(len(part))
                if not has_more and not data and len(part) <= MAX_NUMBER_CHARS:  # so are most bodies
                    check_json(part)
                    return part
                data += part
                if len(data) <= MAX_NUMBER_CHARS:
                    continue  # a short text is checked as a whole
                if scanner is None:
                    scanner, part = JsonScanner(), bytes(data)
                for start in range(0, len(part), CHUNK_BYTES):
                    scanner.feed(part[start : start + CHUNK_BYTES])
                    if len(part) > CHUNK_BYTES:
                        await asyncio.sleep(0)
            if scanner is None:
                check_json(bytes(data))
            else:
                scanner.close()
        except JsonLimitExceeded as limit:
            raise Problem(422, limit.kind, _PROBLEM_TITLES[limit.kind], str(limit)) from None
        return data


def _too_many_bytes_problem(status: int, type: str, subject: str, max_bytes: int) -> Problem:
    return Problem(
        status,
        type,
        "Too many bytes in request bodies",
        f"{subject} may take {max_bytes:,} bytes at a time. Try again in a moment.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
