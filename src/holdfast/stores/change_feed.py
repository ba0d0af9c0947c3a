"""Who in this process follows which run of a store, and is woken when there is something new of it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

EVERYTHING = ""
"""No run has this id: whoever listens to it hears of whatever changes, and never of one run alone."""


class Bell:
    """Rings when something may be new of a run."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._error: BaseException | None = None

    def clear(self) -> None:
        """Whatever comes from now on is new. Raises when nothing can come any more."""
        self._rung.clear()
        if self._error is not None:
            raise self._error

    async def wait(self, timeout: float) -> bool:
        """Until it rings, or so many seconds have passed; whether it has rung."""
        try:
            async with asyncio.timeout(timeout):
                return await self._rung.wait()
        except TimeoutError:
            return False

    def ring(self, error: BaseException | None = None) -> None:
        """Something may be new; or nothing can come any more, because of this error."""
        self._error = error
        self._rung.set()


class News:
    """Bells by run id."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}

    def __bool__(self) -> bool:
        return bool(self._bells)

    @contextmanager
    def listen(self, run_id: str) -> Generator[Bell]:
        """A bell that rings whenever something may be new of this run."""
        bell = Bell()
        bells = self._bells.setdefault(run_id, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(run_id) is bells:
                del self._bells[run_id]

    def tell(self, run_id: str) -> None:
        """There is something new of this run."""
        for bell in self._bells.get(run_id, ()):
            bell.ring()

    def tell_all(self, error: BaseException | None = None) -> None:
        """There may be something new of any run; or, because of this error, never will be."""
        for bells in self._bells.values():
            for bell in bells:
                bell.ring(error)
