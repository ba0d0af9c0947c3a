"""Replacements for three parts of asyncio that do not replay; they take effect only on a run's loop."""

from __future__ import annotations

import asyncio
from asyncio import tasks
from collections.abc import Iterable
from typing import Any

from holdfast.core.loop import RunLoop, get_run_loop


def _ordered_as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    """Create tasks in the given order; the original creates them in the order of a set of addresses."""
    if (loop := get_run_loop()) is not None:
        fs = [loop.create_task(f) if asyncio.iscoroutine(f) else asyncio.ensure_future(f) for f in fs]
    return _original_as_completed(fs, timeout=timeout)


def _stable_wait_for(fut: Any, timeout: float | None) -> Any:
    """Create the same tasks on every Python: the original creates an extra task on 3.11, and none from 3.12 on."""
    return _original_wait_for(fut, timeout) if get_run_loop() is None else _wait_for_in_run(fut, timeout)


async def _wait_for_in_run(fut: Any, timeout: float | None) -> Any:
    if timeout is not None and timeout <= 0:
        future = asyncio.ensure_future(fut)
        if future.done():
            return future.result()  # raises `CancelledError` if it was cancelled before
        future.cancel()
        await asyncio.wait([future])
        try:
            return future.result()
        except asyncio.CancelledError as cancelled:
            raise TimeoutError from cancelled
    async with asyncio.timeout(timeout):
        return await fut


_original_gather: Any = tasks._GatheringFuture  # type: ignore[attr-defined]


class _OrderedGather(_original_gather):
    """The future of ``gather``, with a hash by number: like other futures, it may be in the sets of ``wait``."""

    def __init__(self, children: Any, *, loop: asyncio.AbstractEventLoop) -> None:
        self.number = loop.allocate_number() if isinstance(loop, RunLoop) else None
        super().__init__(children, loop=loop)  # pyright: ignore[reportUnknownMemberType]

    def __hash__(self) -> int:
        return id(self) >> 4 if self.number is None else self.number


_original_as_completed = tasks.as_completed
_original_wait_for = tasks.wait_for


def install_overrides() -> None:
    """Install the replacements; idempotent."""
    for module in (asyncio, tasks):
        setattr(module, "as_completed", _ordered_as_completed)  # noqa: B010
        setattr(module, "wait_for", _stable_wait_for)  # noqa: B010
    setattr(tasks, "_GatheringFuture", _OrderedGather)  # noqa: B010
