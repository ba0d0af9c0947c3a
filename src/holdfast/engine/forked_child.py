"""Processes that a step forks: they do their own work and end. They never execute the engine that they inherit.

``os.fork()`` copies all of a worker: its event loop with the steps of other runs, its signal handlers, its connections.
A child that returned into that loop would carry out its neighbors' steps a second time, and read from the pipe by which
the loop is told of signals, so that the worker never hears of its SIGTERM. Therefore, in a child:

- **The loop ends the process** as soon as it gets control, before it runs anything else.
- **A step ends the process** when its function returns or raises; ``sys.exit()`` and an uncaught exception have the
  exit code that they have in any process.
- **Signals** that the worker handles have their default effect, and nothing is written into the worker's pipe. They
  wait while the process is being forked: one that came to the child earlier would be taken for the worker's.

The stores see to it themselves that locks and connections stay with the parent. ``multiprocessing`` with the start
method ``fork`` needs none of this: its children run their target and end without returning from ``fork``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Collection, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""How many engines run on each loop. An engine that was never closed must not keep its loop in memory."""
_signals: list[int] = []
"""The signals that this process handles for an engine."""


def guard_loop(loop: asyncio.AbstractEventLoop) -> None:
    """An engine runs on this loop: a forked child must not."""
    _loops[loop] = _loops.get(loop, 0) + 1


def release_loop(loop: asyncio.AbstractEventLoop) -> None:
    """It does not any more."""
    engines = _loops.pop(loop, 0) - 1
    if engines > 0:
        _loops[loop] = engines


@contextmanager
def handling(signals: Collection[int]) -> Generator[None]:
    """While these signals are handled for an engine: a forked child is not to handle them so."""
    _signals.extend(signals)
    try:
        yield
    finally:
        for number in signals:
            if number in _signals:
                _signals.remove(number)


class StepProcess:
    """Calls the function of a step inside this block; a child that it has forked ends where the block ends."""

    __slots__ = ("_pid", "_step")

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            _end(f"step {self._step!r} forked this process, which returned from the step", error)


def _end(why: str, error: BaseException | None = None) -> NoReturn:
    """End the process without running anything else of what it has inherited."""
    code: Any = 0 if error is None else 1
    with contextlib.suppress(BaseException):  # whatever an exception says, the process ends
        if error is None:
            advice = "End it with os._exit(), or start a program with subprocess instead."
            sys.stderr.write(f"holdfast: {why}; it ends here. {advice}\n")
        elif not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif isinstance(error.code, int) or error.code is None:
            code = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _come_to_loop() -> None:
    _end("a process forked in a step came back to the event loop of its parent")


class _Masked(threading.local):
    """The signals that were blocked in this thread before it forked."""

    before: Collection[int] | None = None


_masked = _Masked()


def _hold_signals() -> None:
    if _signals:
        _masked.before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals)


def _let_signals_through() -> None:
    before, _masked.before = _masked.before, None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _disown() -> None:
    """In a forked child: leave the engine to the parent."""
    for loop in list(_loops):
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            # Before the callbacks that are ready already: they belong to other steps.
            cast("deque[asyncio.Handle]", ready).appendleft(asyncio.Handle(_come_to_loop, (), loop))
        else:  # a loop of another make; what is ready there cannot be taken from it
            loop.call_soon(_come_to_loop)
    if _loops:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
    for number in _signals:
        with contextlib.suppress(ValueError):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    _loops.clear()
    _signals.clear()
    _let_signals_through()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_disown)
