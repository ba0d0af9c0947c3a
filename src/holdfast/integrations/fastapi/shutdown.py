"""Ends the streams of an app when its process is told to stop.

A server such as uvicorn first waits for all responses to end, and shuts the app down afterwards. A stream of a run may
last for hours, so it must end earlier: when the signal comes that stops the server. The server's own handler of the
signal is called as well. Browsers reconnect, to the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

from starlette.requests import HTTPConnection

from holdfast.errors import UsageError

SHUTDOWN_STATE = "holdfast_shutdown"
"""The name of the event in the state that the lifespan hands to requests."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def get_shutdown(connection: HTTPConnection) -> asyncio.Event:
    """The event that is set when the app's process is told to stop."""
    shutdown = getattr(connection.state, SHUTDOWN_STATE, None)
    if not isinstance(shutdown, asyncio.Event):
        raise UsageError("stream_run needs the app's lifespan: create the app as FastAPI(lifespan=holdfast_lifespan())")
    return shutdown


@contextlib.contextmanager
def watch_shutdown() -> Generator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, in addition to what they do."""
    shutdown = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield shutdown
        shutdown.set()
        return
    loop = asyncio.get_running_loop()
    previous: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(shutdown.set)
        if callable(handler := previous[number]):
            handler(number, frame)
        elif handler == signal.SIG_DFL:  # end the process, as without this handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in _SIGNALS:
        previous[number] = signal.getsignal(number)
        signal.signal(number, handle)
    try:
        yield shutdown
    finally:
        shutdown.set()
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
