"""The threads in which plain (not async) steps run.

A step first *reserves* a thread and only then starts its time-out: waiting for one of the others to end is not the
step's own time. A thread cannot be stopped, so one whose step timed out stays occupied until the function returns; it
counts as occupied until then.
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

    async def reserve(self) -> None:
        """Wait until a thread is free, and keep it for the ``run`` that must follow at once."""
        await self._free_slots.acquire()

    def release(self) -> None:
        """Give a thread back that was reserved, and is not needed after all."""
        self._free_slots.release()

    async def run(self, call: Callable[[], Any]) -> Any:
        """Call it in the reserved thread."""
        loop = asyncio.get_running_loop()

        def give_back(_: Future[Any]) -> None:
            try:
                loop.call_soon_threadsafe(self._free_slots.release)
            except RuntimeError:
                pass  # the loop has closed meanwhile: nobody reserves threads any more

        done = self._pool.submit(call)
        done.add_done_callback(give_back)
        return await asyncio.wrap_future(done)

    async def join(self) -> None:
        """Wait until no step is running in a thread any more, without starting another."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    def stop(self) -> None:
        """Start nothing more; what runs, runs on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
