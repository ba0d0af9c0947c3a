"""SIGTERM and SIGINT of a process that serves runs: they stop it, even while its event loop is blocked.

The loop calls the signal handlers of asyncio, so a step that blocks the loop would also block signals. So this is
Python's own handler, which the main thread calls between two bytecodes, and which asks the loop to call back. Native
code may not reach a bytecode for a long time either. So there is also a thread, which receives each signal through a
socket (the *wakeup file descriptor*, into which the C handler writes at once): if the loop does not answer within the
grace period, the thread ends the process. Other workers then take over its runs as after a crash.

Some native code, such as a regular expression that backtracks for hours, also holds the interpreter's lock, so no
Python thread runs. After a signal, ``faulthandler`` therefore watches the thread: it needs no lock, prints the stack of
the process, and ends it. (Native code that holds the lock and never checks for signals can only be killed.)
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
"""The signals that stop a worker."""
FORCED_GRACE_S = 1.0
"""Seconds for which the loop may be blocked after a second signal."""
_POLL_INTERVAL_S = 0.1
_WATCHDOG_MARGIN_S = 3.0
"""Seconds by which the thread may be late before ``faulthandler`` ends the process in its place."""


class StopSignalHandler:
    """Inside this block, signals call ``on_signal`` on the running loop; afterwards the old handlers are restored."""

    def __init__(self, on_signal: Callable[[], object], grace_s: float) -> None:
        self._on_signal = on_signal
        self._grace_s = max(grace_s, FORCED_GRACE_S)
        self._loop = asyncio.get_running_loop()
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._signal_count = 0
        """How many stop signals the main thread has received."""
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
            signal.set_wakeup_fd(replaced)  # set by other code meanwhile, and still in use
        self._is_closed = True
        self._write_socket.close()  # this also wakes the thread
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
        """End the process if the thread does not re-arm the watchdog in this time, plus a margin."""
        if sys.__stderr__ is None:
            return  # the process has no console that faulthandler could write to
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr was closed
            faulthandler.dump_traceback_later(max_blocked_s + _WATCHDOG_MARGIN_S, exit=True, file=sys.__stderr__)
            self._has_watchdog = True

    # In the thread

    def _watch_loop(self) -> None:
        signals = 0
        answered: threading.Event | None = None
        probed_at = 0.0
        while not self._is_closed:
            signals += self._receive_signals(should_block=signals == 0)
            if not signals or self._is_closed:
                continue
            if answered is None or answered.is_set():
                answered, probed_at = threading.Event(), time.monotonic()
                self._arm_watchdog(self._get_max_blocked_s(signals))
                try:
                    self._loop.call_soon_threadsafe(answered.set)
                except RuntimeError:
                    return  # the loop has closed
            elif time.monotonic() - probed_at > self._get_max_blocked_s(signals):
                end_process("the event loop is blocked, and this process was told to stop")

    def _receive_signals(self, *, should_block: bool) -> int:
        """How many stop signals have arrived; waits for the next one if it should block."""
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
    """End this process at once, because its event loop cannot hand over its runs."""
    log.error("%s: it ends now, and other workers take its runs over as after a crash", reason)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
