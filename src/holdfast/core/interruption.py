"""Interrupting workflow code that blocks its thread, and nothing else.

Python can raise an exception in another thread, between two bytecodes. The thread may have left the workflow's code by
then, and an exception there would break the engine: the event loop would not be restored, or a record would get lost.
So both threads agree on a window. The loop of a run opens it around the run's own callbacks and closes it before
anything else happens; another thread raises only while it is open.

No lock is taken unless a thread interrupts. The interrupting thread first sets ``is_interrupted``, and then checks
whether the window is open. The closing thread first closes the window, and then checks ``is_interrupted``. So at least
one of the two sees the other: the interrupter gives up, or the closer waits for it and withdraws an exception that has
not been raised yet. An exception that was raised inside the window ends the run's turn.
"""

from __future__ import annotations

import ctypes
from _thread import allocate_lock, get_ident  # the core starts no thread: other threads interrupt the one it runs in
from collections.abc import Callable

_raise_lock = allocate_lock()
"""Held while an exception is being raised in another thread, or withdrawn."""


class WorkflowBlocked(BaseException):
    """Raised in workflow code that has blocked the process for too long."""


class InterruptWindow:
    """The time in which the code of one run may be interrupted."""

    __slots__ = ("is_interrupted", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self.is_interrupted = False

    def interrupt(self, thread_id: int, is_wanted: Callable[[], bool], before_raise: Callable[[], None]) -> bool:
        """Raise ``WorkflowBlocked`` in the run's code, from another thread. False: the run's code no longer runs.

        Args:
            thread_id: the thread in which it runs.
            is_wanted: whether to interrupt at all; called when the window can no longer close unnoticed.
            before_raise: called right before the exception is raised.
        """
        with _raise_lock:
            self.is_interrupted = True
            if not (is_wanted() and self.is_open):
                self.is_interrupted = False
                return False
            before_raise()
            _raise_in_thread(thread_id, WorkflowBlocked)
            return True

    def absorb_interrupt(self) -> None:
        """The window was closed during an interruption: after this call, nothing is raised any more."""
        with _raise_lock:
            self.is_interrupted = False
            # CPython keeps a flag that something is to be raised, and clears it only when something is. Taking the
            # exception back would leave it set for good: all code would be slower, and no profiled call would return.
            try:
                _raise_in_thread(get_ident(), WorkflowBlocked)
                while True:
                    pass
            except WorkflowBlocked:
                pass


def _raise_in_thread(thread_id: int, exception: type[BaseException]) -> None:
    """Raise an exception in a thread at its next bytecode, replacing one that has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(exception))
