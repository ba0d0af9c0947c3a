"""The threads in which plain (not async) steps run.

A step first *reserves* a thread and only then starts its timeout: the wait for a free thread is not the step's own
time. A thread cannot be stopped, so after a timeout it stays occupied until the function returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class StepThreadPool:
    """A bounded number of threads."""

    def __init__(self, max_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="holdfast-step")
        self._free_slots = asyncio.Semaphore(max_threads)
        self._was_used = False

    async def reserve(self) -> None:
        """Wait until a thread is free, and reserve it for the ``run`` that must follow at once."""
        await self._free_slots.acquire()

    def release(self) -> None:
        """Release a reserved thread that is not needed after all."""
        self._free_slots.release()

    async def run(self, call: Callable[[], Any]) -> Any:
        """Make the call in the reserved thread."""
        loop = asyncio.get_running_loop()

        def give_back(_: Future[Any]) -> None:
            try:
                loop.call_soon_threadsafe(self._free_slots.release)
            except RuntimeError:
                pass  # the loop has closed meanwhile: no more threads are reserved

        self._was_used = True
        done = self._pool.submit(call)
        done.add_done_callback(give_back)
        return await asyncio.wrap_future(done)

    async def join(self) -> None:
        """Wait until no step is running in a thread, and start no more."""
        if self._was_used:
            await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        else:
            self._pool.shutdown()

    def stop(self) -> None:
        """Start nothing more; running calls continue."""
        self._pool.shutdown(wait=False, cancel_futures=True)
