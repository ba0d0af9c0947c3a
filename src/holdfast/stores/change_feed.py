"""Subscriptions of this process to changes of a store's runs."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

ALL_RUNS = ""
"""The id, which no run has, of subscriptions that are notified of all changes, but not of single runs."""


class Subscription:
    """A reader that waits for changes of a run."""

    def __init__(self) -> None:
        self._notified = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def is_notified(self) -> bool:
        """Whether there was a notification since the last ``clear``."""
        return self._notified.is_set()

    def clear(self) -> None:
        """Forget earlier notifications. Raises when no more can come."""
        self._notified.clear()
        if self._error is not None:
            raise self._error

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, at most ``timeout_s`` seconds. Returns whether there was one."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._notified.wait()
        except TimeoutError:
            return False

    def notify(self, error: BaseException | None = None) -> None:
        """Something may have changed; or, because of this error, no more notifications can come."""
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
        """A run has changed."""
        for subscription in self._subscriptions.get(run_id, ()):
            subscription.notify()

    def notify_all(self, error: BaseException | None = None) -> None:
        """Any run may have changed; or, because of this error, no more notifications can come."""
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notify(error)
