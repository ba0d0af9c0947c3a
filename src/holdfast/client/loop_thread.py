"""Event loops on threads of their own, for code without an event loop.

``LoopThread`` is one such loop. ``SyncLoop`` is the loop of an object's sync methods: it starts with the first call and
is there for all later ones, so that they share connections. It ends when it is closed, when the object is collected, or
when the process ends. In a forked process there is no such thread, so the next call there starts another one, and what
the parent's thread holds is left alone.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import thread as _thread_pools  # noqa: F401  # pyright: ignore[reportUnusedImport]  # its end is registered before ours
from typing import Any, TypeVar
from weakref import WeakSet, finalize

from holdfast.errors import UsageError
from holdfast.sync_methods import is_loop_running

T = TypeVar("T")
Disconnect = Callable[[], Coroutine[Any, Any, None]]

EXIT_TIMEOUT_S = 2.0
"""How long the end of the process waits for a loop to disconnect."""


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs. It does not in a forked process, or after a ``SystemExit`` there."""
        return self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there, in a copy of this thread's context."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result. If this thread is interrupted, the coroutine is cancelled."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise
        except BaseException:
            future.cancel()
            raise

    def end(self, disconnect: Disconnect | None = None) -> None:
        """End the thread soon, after it has disconnected and cancelled everything that runs there.

        Does not wait, because the garbage collector may call this on any thread.
        """
        if self.is_alive:
            self.submit(self._stop(disconnect))

    def close(self, disconnect: Disconnect | None = None, timeout_s: float | None = None) -> None:
        """End the thread, and wait for it."""
        self.end(disconnect)
        self._thread.join(timeout_s)

    async def _stop(self, disconnect: Disconnect | None) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            if disconnect is not None:
                await disconnect()
        finally:
            self._loop.call_soon(self._loop.stop)  # not at once: the caller's future must get its result first

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class SyncLoop:
    """The event loop of an object's sync methods.

    Args:
        disconnect: closes what the methods have opened on the loop. It must not refer to the object.
    """

    def __init__(self, disconnect: Disconnect) -> None:
        self._disconnect = disconnect
        self._threads: dict[int, LoopThread] = {}
        """By process id. Not guarded by a lock, which another thread may hold while the process is forked."""

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end. Raises ``UsageError`` where an event loop is running: it would be blocked."""
        __tracebackhide__ = True
        if is_loop_running():
            coroutine.close()
            raise UsageError("an event loop is running in this thread: use the async form and `await` it")
        return self._get_thread().run(coroutine)

    def run_blocking(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end, and block this thread for that long, even if an event loop is running in it."""
        return self._get_thread().run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T], /) -> None:
        """Run a coroutine, and do not wait for it."""
        self._get_thread().submit(coroutine)

    def close(self, timeout_s: float | None = None) -> None:
        """Disconnect, and end the thread; a later call starts another one."""
        if (thread := self._threads.pop(os.getpid(), None)) is not None:
            thread.close(self._disconnect, timeout_s)

    def _get_thread(self) -> LoopThread:
        pid = os.getpid()
        thread = self._threads.get(pid)
        if thread is not None and not thread.is_alive:
            self._threads.pop(pid, None)
            thread = None
        if thread is None:
            new = LoopThread("holdfast-client")
            thread = self._threads.setdefault(pid, new)
            if thread is new:
                finalize(self, new.end, self._disconnect).atexit = False
                _open_loops.add(self)
            else:
                new.close()
        return thread


_open_loops: WeakSet[SyncLoop] = WeakSet()


def _close_all() -> None:
    for loop in list(_open_loops):
        loop.close(EXIT_TIMEOUT_S)


# At the end of a process, Python shuts down the thread pools that stores read with, and then calls what is registered
# with `atexit`. What is registered here is called before that, latest first.
_register = getattr(threading, "_register_atexit", atexit.register)
_register(_close_all)
