"""Signals that strike at an exact point of a process's life.

``HOLDFAST_TEST_KILL=before-commit:7`` kills this process in its seventh commit, before anything is written;
``after-commit:7`` when that commit is durable and nobody in this process knows it yet. Both times the process lives on
for a moment first, in which an engine that does not wait for its commits would begin what must not begin yet.

``HOLDFAST_TEST_STOP`` and ``HOLDFAST_TEST_TERM`` send SIGSTOP and SIGTERM instead, and ``HOLDFAST_TEST_SLOW`` lets that
call and all after it take a second longer, as on a slow disk. Other calls than ``commit`` can be had, see ``PLACES``.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from typing import Any

from holdfast.authoring.stop_signals import StopSignalHandler
from holdfast.engine.journal_writer import JournalWriter
from holdfast.stores.operations import AppendLiveEvents
from holdfast.stores.sql.claims import SqlClaims
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.workers import SqliteWorkers

PLACES = {
    "commit": SqliteStore,
    "claim": SqlClaims,
    "register": SqliteWorkers,
    "reap_dead": SqliteWorkers,
    "get_histories": SqliteStore,
    "retire": SqliteWorkers,
    "flush": JournalWriter,
    "__exit__": StopSignalHandler,
}
"""Where the trap may be set: the call, and the class whose method it is. It is the other store's if that is in use."""

STRIKES = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "TERM": signal.SIGTERM, "SLOW": None}
MOMENT = 0.02
renewing = threading.Lock()
"""Held while the lease is being renewed."""


def arm() -> None:
    """Set the traps that the environment asks for."""
    for name, strike in STRIKES.items():
        if point := os.environ.get(f"HOLDFAST_TEST_{name}"):
            _postpone_renewals()
            _arm(point, strike)


def _place(method: str) -> Any:
    place = PLACES[method]
    if os.environ.get("HOLDFAST_URL", "").startswith("postgresql:"):
        from holdfast.stores.postgres import PgStore
        from holdfast.stores.postgres.workers import PgWorkers

        return {SqliteStore: PgStore, SqliteWorkers: PgWorkers}.get(place, place)
    return place


def _postpone_renewals() -> None:
    """A process that is stopped while its heartbeat holds SQLite's write lock would stop everybody else, too."""
    renew = SqliteWorkers.renew_lease

    def renew_lease(*args: Any, **kwargs: Any) -> bool:
        with renewing:
            return renew(*args, **kwargs)

    SqliteWorkers.renew_lease = renew_lease


def _arm(point: str, strike: signal.Signals | None) -> None:
    moment, _, rest = point.partition("-")
    method, _, count = rest.partition(":")
    place = _place(method)
    inner = getattr(place, method)
    calls = 0

    def is_now(when: str, number: int) -> bool:
        return when == moment and (number == int(count) if strike is not None else number >= int(count))

    async def hit() -> None:
        await asyncio.sleep(MOMENT if strike is not None else 1)
        if strike is not None:
            with renewing:
                os.kill(os.getpid(), strike)
        if strike is signal.SIGTERM:
            await asyncio.sleep(MOMENT)  # to be dealt with in the middle of the call

    async def trapped_async(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if method == "commit" and all(isinstance(op, AppendLiveEvents) for op in args[1]):
            return await inner(*args, **kwargs)  # how many of these there are depends on how slow the machine is
        calls += 1
        number = calls  # others may be called before this one has its answer
        if is_now("before", number):
            await hit()
        answer = await inner(*args, **kwargs)
        if is_now("after", number):
            await hit()
        return answer

    def trapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        number = calls
        answer = inner(*args, **kwargs)
        if is_now("after", number) and strike is not None:
            os.kill(os.getpid(), strike)
        return answer

    setattr(place, method, trapped_async if inspect.iscoroutinefunction(inner) else trapped)
