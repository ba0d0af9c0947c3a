"""Serves runs until a signal stops the process, and then makes sure that the process exits.

A stopped worker hands its runs over and has nothing more to do. But a thread cannot be stopped from outside, and Python
waits for the threads of plain steps before it exits: one step that hangs would keep the process alive forever. So after
the handover the process has ``EXIT_DELAY_S`` seconds to exit in the usual way (exit handlers, buffers), and is then
ended. Nothing is lost: whatever such a step still does, another worker holds its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection

from holdfast.authoring.runtime import DEFAULT_GRACE_S, MAX_BLOCKED_S, Runtime
from holdfast.errors import HoldfastError
from holdfast.processes.readiness import Readiness
from holdfast.stores.urls import split_namespace

EXIT_DELAY_S = 2.0


async def serve(
    workflows: Collection[str],
    *,
    print_line: Callable[[str], object],
    url: str | None = None,
    queues: Collection[str] | None = None,
    concurrency: int = 1000,
    lease_s: float = 10.0,
    grace_s: float = DEFAULT_GRACE_S,
    max_blocked_s: float = MAX_BLOCKED_S,
    readiness: Readiness | None = None,
) -> None:
    """Execute runs of these workflows until SIGTERM or SIGINT, then finish or hand over what is in flight.

    For a process that does nothing else: it ends soon after this returns, and also when a step has blocked its event
    loop for ``max_blocked_s``. ``print_line`` is called with the lines that describe what it serves. ``readiness``
    becomes the readiness of this worker.
    """
    runtime = Runtime(
        url,
        lease=lease_s,
        max_concurrency=concurrency,
        queues=queues,
        workflows=workflows,
        max_blocked=max_blocked_s,
    )
    await runtime.open()
    if readiness is not None:
        readiness.get_reason = lambda: runtime.not_ready_reason
    # What is loaded by now stays, and this process is the worker's own: a full collection of it would take 30 ms.
    gc.freeze()
    served = ", ".join(sorted(workflows))
    source = "all queues" if queues is None else f"queue {', '.join(sorted(queues))}"
    store, namespace = split_namespace(runtime.url)
    if namespace is not None:
        store = f"namespace {namespace} in {store}"
    print_line(f"worker {runtime.worker_id} (pid {os.getpid()}) serves {served} from {source} of {store}")
    try:
        await runtime.run_worker(grace=grace_s, stop=_watch_sigterm(), exit_if_blocked=True)
    except HoldfastError:
        _schedule_exit(1)
        raise
    _schedule_exit(0)
    print_line(f"worker {runtime.worker_id} has handed over and stops")


def _watch_sigterm() -> asyncio.Event:
    """An event that SIGTERM sets while ``run_worker`` does not handle it: a second one must not kill the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: this process ends
            loop.call_soon_threadsafe(stop.set)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_signal)
    return stop


def _schedule_exit(code: int) -> None:
    """End this process after ``EXIT_DELAY_S`` seconds, whatever its threads do, if it has not exited by itself."""

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    timer = threading.Timer(EXIT_DELAY_S, end)
    timer.daemon = True
    timer.start()
