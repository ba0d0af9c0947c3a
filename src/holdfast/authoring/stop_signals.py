"""SIGTERM and SIGINT of a process that serves runs: they stop it, also while its event loop is blocked.

A handler of asyncio is called by the loop, so a step that blocks the loop would make the process deaf. Here the handler
is Python's own, which the main thread calls between two bytecodes, and asks the loop to call back. Native code may not
come to a bytecode for long either. Hence a thread, which hears of each signal through a socket (the *wakeup file
descriptor*, into which the C handler writes at once): if the loop does not answer for as long as it was given to stop,
the thread ends the process. Its runs are then taken over as after a crash.

Some native code, such as a regular expression that backtracks for hours, also keeps the interpreter's lock, so that no
thread of Python's runs. After a signal, ``faulthandler`` therefore watches the thread: it needs no lock, shows where
the process stands, and ends it. (Native code that keeps the lock and never looks for signals can only be killed.)
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

log = logging.getLogger("holdfast")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that tell a worker to stop."""
FORCED_GRACE_S = 1.0
"""Seconds for which a loop that was told twice to stop may be blocked."""
_POLL_INTERVAL_S = 0.1
_WATCHDOG_MARGIN_S = 3.0
"""Seconds by which the thread may be late before ``faulthandler`` ends the process in its place."""


class StopSignalHandler:
    """While this block runs, signals call ``on_signal`` on the running loop; what handled them before is put back."""

    def __init__(self, on_signal: Callable[[], object], grace_s: float) -> None:
        self._on_signal = on_signal
        self._grace_s = max(grace_s, FORCED_GRACE_S)
        self._loop = asyncio.get_running_loop()
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._signal_count = 0
        """How many signals to stop have come, as far as the main thread knows."""
        self._is_closed = False
        self._has_watchdog = False
        """``faulthandler`` watches the thread."""

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can handle signals
        self._read_socket, self._write_socket = socket.socketpair()
        self._write_socket.setblocking(False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._write_socket.fileno(), warn_on_full_buffer=False)
        # One handler from beginning to end: with none, even for a moment, a signal would kill the process.
        self._previous_handlers = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        self._thread = threading.Thread(target=self._watch_loop, name="holdfast-signals", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if not self._previous_handlers:
            return
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        replaced = signal.set_wakeup_fd(self._previous_wakeup_fd)
        if replaced != self._write_socket.fileno():
            signal.set_wakeup_fd(replaced)  # of somebody who has come meanwhile, and is still there
        self._is_closed = True
        self._write_socket.close()  # the thread hears of that, too
        self._thread.join()
        self._read_socket.close()
        if self._has_watchdog:
            faulthandler.cancel_dump_traceback_later()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signal_count += 1
        self._arm_watchdog(self._get_max_blocked_s(self._signal_count))
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._on_signal)

    def _get_max_blocked_s(self, signal_count: int) -> float:
        """Seconds for which the loop may be blocked after this many signals."""
        return self._grace_s if signal_count == 1 else FORCED_GRACE_S

    def _arm_watchdog(self, max_blocked_s: float) -> None:
        """End the process if the thread is not heard of for a moment longer than this."""
        if sys.__stderr__ is None:
            return  # a process without a console, and faulthandler has nowhere to write to
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it was closed
            faulthandler.dump_traceback_later(max_blocked_s + _WATCHDOG_MARGIN_S, exit=True, file=sys.__stderr__)
            self._has_watchdog = True

    # In the thread

    def _watch_loop(self) -> None:
        signals = 0
        answered: threading.Event | None = None
        asked = 0.0
        while not self._is_closed:
            signals += self._receive_signals(should_block=signals == 0)
            if not signals or self._is_closed:
                continue
            if answered is None or answered.is_set():
                answered, asked = threading.Event(), time.monotonic()
                self._arm_watchdog(self._get_max_blocked_s(signals))
                try:
                    self._loop.call_soon_threadsafe(answered.set)
                except RuntimeError:
                    return  # the loop has closed
            elif time.monotonic() - asked > self._get_max_blocked_s(signals):
                end_process("the event loop is blocked, and this process was told to stop")

    def _receive_signals(self, *, should_block: bool) -> int:
        """How many signals to stop have come, by now or next."""
        self._read_socket.settimeout(None if should_block else _POLL_INTERVAL_S)
        try:
            numbers = self._read_socket.recv(64)
        except TimeoutError:
            return 0
        except OSError:
            numbers = b""
        if not numbers:
            self._is_closed = True
        if self._previous_wakeup_fd >= 0:  # of a loop that handles other signals
            with contextlib.suppress(OSError):
                os.write(self._previous_wakeup_fd, numbers)
        return sum(number in STOP_SIGNALS for number in numbers)


def end_process(reason: str) -> NoReturn:
    """End this process without its event loop, which cannot hand anything over."""
    log.error("%s: it ends now, and other workers take its runs over as after a crash", reason)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
