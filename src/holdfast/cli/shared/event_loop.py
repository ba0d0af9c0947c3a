"""Run a coroutine for a command: Ctrl-C ends it cleanly, and progress is printed if it takes long."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

import click

T = TypeVar("T")

_PROGRESS_DELAY_S, _PROGRESS_INTERVAL_S = 1.0, 5.0


def run_in_loop(
    main: Coroutine[Any, Any, T],
    *,
    format_progress: Callable[[], str] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Like ``asyncio.run``, but Ctrl-C cancels ``main`` between two callbacks of the loop, never within one.

    ``asyncio.run`` cancels from the signal handler, wherever the loop happens to be. If a future is just about to get
    its result, it is cancelled first, and the user who only pressed Ctrl-C sees the traceback of an
    ``InvalidStateError``. A second Ctrl-C ends the command at once.

    See ``await_with_progress`` for ``format_progress``. ``loop_factory`` creates another loop than asyncio's own.
    """
    if format_progress is not None:
        main = await_with_progress(main, format_progress)
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(main)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        is_interrupted = False

        def on_ctrl_c(number: int, frame: FrameType | None) -> None:
            nonlocal is_interrupted
            if is_interrupted or task.done():
                raise KeyboardInterrupt
            is_interrupted = True
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGINT, on_ctrl_c)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if is_interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


async def await_with_progress(work: Coroutine[Any, Any, T], format_progress: Callable[[], str]) -> T:
    """Await ``work``; on a terminal, print ``format_progress()`` to stderr after a second, then every five seconds."""
    if not sys.stderr.isatty():
        return await work

    async def print_progress() -> None:
        await asyncio.sleep(_PROGRESS_DELAY_S)
        while True:
            click.echo(format_progress(), err=True)
            await asyncio.sleep(_PROGRESS_INTERVAL_S)

    task = asyncio.create_task(print_progress())
    try:
        return await work
    finally:
        task.cancel()
