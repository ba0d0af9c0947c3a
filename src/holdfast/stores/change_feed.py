"""Who in this process follows which run of a store, and is woken when there is something new of it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

ALL_RUNS = ""
"""No run has this id: whoever listens to it hears of whatever changes, and never of one run alone."""


class Subscription:
    """Is notified when something about a run may have changed."""

    def __init__(self) -> None:
        self._notified = asyncio.Event()
        self._error: BaseException | None = None

    def clear(self) -> None:
        """Whatever comes from now on is new. Raises when nothing can come any more."""
        self._notified.clear()
        if self._error is not None:
            raise self._error

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is notified or the time is up. Returns whether it was notified."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._notified.wait()
        except TimeoutError:
            return False

    def notify(self, error: BaseException | None = None) -> None:
        """Something may be new; or nothing can come any more, because of this error."""
        self._error = error
        self._notified.set()


class ChangeFeed:
    """Subscriptions by run id."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[Subscription]] = {}

    def __bool__(self) -> bool:
        return bool(self._subscriptions)

    @contextmanager
    def subscribe(self, run_id: str) -> Generator[Subscription]:
        """A subscription to changes of this run."""
        subscription = Subscription()
        subscriptions = self._subscriptions.setdefault(run_id, set())
        subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            subscriptions.discard(subscription)
            if not subscriptions and self._subscriptions.get(run_id) is subscriptions:
                del self._subscriptions[run_id]

    def notify(self, run_id: str) -> None:
        """There is something new of this run."""
        for subscription in self._subscriptions.get(run_id, ()):
            subscription.notify()

    def notify_all(self, error: BaseException | None = None) -> None:
        """There may be something new of any run; or, because of this error, never will be."""
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notify(error)
