"""Signals that stop a process: they reach the event loop, and what handled them before is put back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from holdfast.authoring.stop_signals import STOP_SIGNALS, StopSignalHandler

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to oneself there"),
]


async def test_a_signal_reaches_the_loop_and_what_was_before_is_put_back():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    came = asyncio.Event()
    with StopSignalHandler(came.set, 10.0):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(came.wait(), 10)
        came.clear()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(came.wait(), 10)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(wakeup) == wakeup


async def test_other_signals_that_the_loop_handles_are_still_handled():
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, came.set)
    try:
        with StopSignalHandler(lambda: None, 10.0):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(came.wait(), 10)
        came.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(came.wait(), 10)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def test_a_handler_that_comes_meanwhile_stays():
    loop = asyncio.get_running_loop()
    came, stopped = asyncio.Event(), asyncio.Event()
    try:
        with StopSignalHandler(stopped.set, 10.0):
            loop.add_signal_handler(signal.SIGUSR1, came.set)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), 10)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(came.wait(), 10)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def test_outside_of_the_main_thread_nothing_is_handled():
    def enter() -> None:
        async def main() -> None:
            with StopSignalHandler(lambda: None, 10.0):
                await asyncio.sleep(0)

        asyncio.run(main())

    before: list[Any] = [signal.getsignal(number) for number in STOP_SIGNALS]
    await asyncio.to_thread(enter)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
