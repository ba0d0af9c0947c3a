"""Processes that a step forks: they do their own work and end. They never execute the engine that they inherit.

``os.fork()`` copies all of a worker: its event loop with the steps of other runs, its signal handlers, its connections.
A child that returned into that loop would execute the steps of other runs a second time. It would also read from the
pipe that reports signals to the loop, so the worker would never see its SIGTERM. Therefore, in a child:

- **The loop ends the process** as soon as it gets control, before it runs anything else.
- **A step ends the process** when its function returns or raises; ``sys.exit()`` and an uncaught exception have the
  exit code that they have in any process.
- **Signals** that the worker handles have their default effect, and write nothing into the worker's pipe. They are
  blocked during the fork: the child would take an earlier one for a signal to the worker.

The stores themselves keep locks and connections in the parent. ``multiprocessing`` with the start method ``fork`` needs
none of this: its children run their target and end without returning from ``fork``.
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

_guarded_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""How many engines run on each loop. Weak, so that an engine that is never closed does not keep its loop in memory."""
_guarded_signals: list[int] = []
"""The signals that this process handles for an engine."""


generation = 0
"""How many forks are between this process and the first one. Asking the system for the process id takes longer."""


def guard_loop(loop: asyncio.AbstractEventLoop) -> None:
    """An engine runs on this loop: a forked child must not run it."""
    _guarded_loops[loop] = _guarded_loops.get(loop, 0) + 1


def unguard_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The engine no longer runs on this loop."""
    engines = _guarded_loops.pop(loop, 0) - 1
    if engines > 0:
        _guarded_loops[loop] = engines


@contextmanager
def guard_signals(signals: Collection[int]) -> Generator[None]:
    """Inside this block, an engine handles these signals: a forked child must not."""
    _guarded_signals.extend(signals)
    try:
        yield
    finally:
        for number in signals:
            if number in _guarded_signals:
                _guarded_signals.remove(number)


class ForkGuard:
    """A block that calls the function of a step; a child that the function forks ends at the end of the block."""

    __slots__ = ("_generation", "_step")

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._generation = generation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if generation != self._generation:
            exit_child_of_step(self._step, error)


def exit_child_of_step(step: str, error: BaseException | None) -> NoReturn:
    """End a child that a step has forked, and that returns from the step, with this exception if it raised one."""
    _exit_child(f"step {step!r} forked this process, which returned from the step", error)


def _exit_child(reason: str, error: BaseException | None = None) -> NoReturn:
    """End the process without running anything else that it has inherited."""
    code: Any = 0 if error is None else 1
    with contextlib.suppress(BaseException):  # the process ends, even if formatting the exception fails
        if error is None:
            advice = "End it with os._exit(), or start a program with subprocess instead."
            sys.stderr.write(f"holdfast: {reason}; it ends here. {advice}\n")
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


def _exit_on_parent_loop() -> None:
    _exit_child("a process forked in a step came back to the event loop of its parent")


class _SignalMask(threading.local):
    """The signals that were blocked in this thread before it forked."""

    previous: Collection[int] | None = None


_signal_mask = _SignalMask()


def _block_signals() -> None:
    if _guarded_signals:
        _signal_mask.previous = signal.pthread_sigmask(signal.SIG_BLOCK, _guarded_signals)


def _restore_signals() -> None:
    before, _signal_mask.previous = _signal_mask.previous, None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _detach_child() -> None:
    """In a forked child: leave the engine to the parent."""
    global generation
    generation += 1
    for loop in list(_guarded_loops):
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            # Before the callbacks that are ready already: they belong to other steps.
            cast("deque[asyncio.Handle]", ready).appendleft(asyncio.Handle(_exit_on_parent_loop, (), loop))
        else:  # another kind of loop: its ready callbacks cannot be removed
            loop.call_soon(_exit_on_parent_loop)
    if _guarded_loops:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
    for number in _guarded_signals:
        with contextlib.suppress(ValueError):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    _guarded_loops.clear()
    _guarded_signals.clear()
    _restore_signals()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block_signals, after_in_parent=_restore_signals, after_in_child=_detach_child)
